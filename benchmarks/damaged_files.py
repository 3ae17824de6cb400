"""Detection of damage by the readers: one random byte of a small file is changed.

    python benchmarks/damaged_files.py [--seed 0] [--count N] [FORMAT ...]

Each mutation draws an offset and a byte from the seed. The outcomes:

- error: the reader raises an error that names the file;
- unnamed: it raises an error that does not;
- same: it returns the values of the undamaged file (the byte means nothing);
- other: it returns other values without an error;
- crash: the process ends (HDF5 files are read in forked processes).
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import os
import signal
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import jaxkern as jk

RANDOM = np.random.default_rng(20261123)
FRAMES = RANDOM.poisson(0.4, (24, 8, 16)).astype(np.uint16)
QMAP = jk.xpcs.QMap(1 + np.arange(128).reshape(8, 16) // 32, q=[0.01, 0.02, 0.03, 0.04])


def events() -> dict[str, np.ndarray]:
    frame, row, column = np.nonzero(FRAMES)
    return {
        "pixel": (row * 16 + column).astype(np.int32),
        "frame": frame.astype(np.int32),
        "count": FRAMES[frame, row, column].astype(np.int32),
    }


def rigaku(path: Path) -> None:
    e = {name: values.astype(np.uint64) for name, values in events().items()}
    words = e["frame"] << np.uint64(40) | e["pixel"] << np.uint64(16) | e["count"]
    words.astype("<u8").tofile(path)


def imm(path: Path, sparse: bool) -> None:
    with path.open("wb") as file:
        for number, frame in enumerate(FRAMES):
            flat = frame.reshape(-1)
            pixel = np.flatnonzero(flat)
            header = bytearray(1024)
            put = [(4, "<i4", 6 if sparse else 0), (108, "<i4", 8), (112, "<i4", 16)]
            put += [(116, "<i4", 2), (128, "<f8", 0.1 * number), (136, "<f8", 0.1)]
            put += [(152, "<u4", len(pixel) if sparse else flat.size)]
            for offset, dtype, value in put:
                data = np.array(value, dtype).tobytes()
                header[offset : offset + len(data)] = data
            file.write(header)
            if sparse:
                file.write(pixel.astype("<i4").tobytes() + flat[pixel].astype("<i2").tobytes())
            else:
                file.write(flat.astype("<u2").tobytes())


def hdf5_frames(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("entry/data/data", data=FRAMES, chunks=(4, 8, 16), compression="gzip")
        file["entry/instrument/detector/frame_time"] = 0.1


def tokens(path: Path) -> None:
    np.save(path, RANDOM.integers(0, 50_000, 400).astype(np.int32))


def offsets(path: Path) -> None:
    np.save(path, np.concatenate([[0], np.sort(RANDOM.integers(0, 400, 49)), [400]]))


def table() -> Any:
    import pyarrow as pa

    return pa.table(
        {
            "x": RANDOM.standard_normal(300).astype(np.float32),
            "label": RANDOM.integers(0, 10, 300),
            "text": [f"récord {k % 37}" for k in range(300)],
        }
    )


def parquet(path: Path, **options: Any) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table(), path, **options)


def arrow(path: Path, **options: Any) -> None:
    import pyarrow as pa

    rows = table()
    write_options = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, rows.schema, options=write_options) as out,
    ):
        out.write_table(rows, max_chunksize=100)


def tar(path: Path) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for k in range(30):
            array = io.BytesIO()
            np.save(array, RANDOM.standard_normal(20).astype(np.float32))
            for ending, content in (("cls", str(k).encode()), ("npy", array.getvalue())):
                member = tarfile.TarInfo(f"{k:05}.{ending}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def results(path: Path) -> None:
    correlations = jk.xpcs.multitau(FRAMES, QMAP, overview=True)
    jk.xpcs.write_results(path, correlations, jk.xpcs.twotime(FRAMES, QMAP))


def read_frames(path: Path) -> Any:
    with jk.xpcs.open_frames(path, (8, 16)) as source:
        frames = [source.read(k, k + 1).tobytes() for k in range(len(source))]
        return source.shape, frames, source.dead, sorted(source.metadata.items())


def read_source(source: Any) -> Any:
    n = len(source)
    batches = [source.gather(np.arange(k, min(k + 50, n))) for k in range(0, n, 50)]
    return [{name: np.asarray(values) for name, values in batch.items()} for batch in batches]


def text_length(data: bytes) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(data).digest(), np.uint8).astype(np.int32)


def read_table(kind: Any, path: Path, **options: Any) -> Any:
    return read_source(kind(path, decoders={"text": text_length}, **options))


def read_results(path: Path) -> Any:
    stored = jk.xpcs.read_results(path)
    m, t = stored.multitau, stored.twotime
    return [
        m.g2, m.g2_err, m.delay, m.bins,
        m.q, m.n_pairs, t.c2, t.g2,
        t.bins, t.q, m.overview.mean_image,
        sorted(stored.metadata.items()), m.qmap.dynamic,
    ]  # fmt: skip


def read_qmap(path: Path) -> Any:
    qmap = jk.xpcs.QMap.read(path)
    return [qmap.dynamic, qmap.static, qmap.mask, qmap.q, qmap.phi]


P = jk.pipeline
#: Format -> (name of the file, function that writes it, function that reads it).
FORMATS: dict[str, tuple[str, Callable[[Path], None], Callable[[Path], Any]]] = {
    "rigaku": ("x.bin", rigaku, read_frames),
    "imm-sparse": ("x.imm", lambda p: imm(p, True), read_frames),
    "imm-dense": ("x.imm", lambda p: imm(p, False), read_frames),
    "npy-frames": ("x.npy", lambda p: np.save(p, FRAMES), read_frames),
    "npz-events": ("x.npz", lambda p: np.savez(p, shape=FRAMES.shape, **events()), read_frames),
    "hdf5-frames": ("x.h5", hdf5_frames, read_frames),
    "tokens": ("x.npy", tokens, lambda p: read_source(P.TokenSource(p, np.arange(0, 401, 40)))),
    "token-offsets": (
        "x.npy", offsets, lambda p: read_source(P.TokenSource(np.arange(400), p)),
    ),
    "parquet": ("x.parquet", parquet, lambda p: read_table(P.ParquetSource, p)),
    "parquet, verify": (
        "x.parquet", parquet, lambda p: read_table(P.ParquetSource, p, verify=True),
    ),
    "parquet checksums, verify": (
        "x.parquet", lambda p: parquet(p, write_page_checksum=True),
        lambda p: read_table(P.ParquetSource, p, verify=True),
    ),
    "arrow": ("x.arrow", arrow, lambda p: read_table(P.ArrowSource, p)),
    "arrow, verify": ("x.arrow", arrow, lambda p: read_table(P.ArrowSource, p, verify=True)),
    "arrow lz4, verify": (
        "x.arrow", lambda p: arrow(p, compression="lz4"),
        lambda p: read_table(P.ArrowSource, p, verify=True),
    ),
    "tar": ("x.tar", tar, lambda p: read_source(P.WebDatasetSource(p))),
    "results": ("x.hdf", results, read_results),
    "qmap": ("x.h5", QMAP.write, read_qmap),
}  # fmt: skip
#: Mutations of a format; HDF5 files are read in a separate process, which takes longer.
COUNTS = {"tokens": 400, "token-offsets": 400, "hdf5-frames": 300, "results": 250, "qmap": 250}
COUNTS |= dict.fromkeys(("rigaku", "imm-sparse", "imm-dense", "npy-frames", "npz-events"), 600)
OWN_PROCESS = {"hdf5-frames", "results", "qmap"}


def digest(value: Any) -> str:
    """Return a hash of all values, with their types and shapes."""
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, list | tuple):
        text = "".join(map(digest, value)).encode()
    elif isinstance(value, np.ndarray):
        text = f"{value.dtype}{value.shape}".encode() + value.tobytes()
    else:
        text = repr(value).encode()
    return hashlib.sha256(text).hexdigest()


def outcome(read: Callable[[Path], Any], path: Path, undamaged: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "same" if digest(read(path)) == undamaged else "other"
    except Exception as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return "error" if path.name in said else "unnamed"


def forked(read: Callable[[Path], Any], path: Path, undamaged: str) -> str:
    """`outcome` in a process that may crash or hang."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with contextlib.suppress(BaseException):
            os.write(writer, outcome(read, path, undamaged).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pipe.read().decode()
    os.waitpid(child, 0)
    return result or "crash"


def mutations(content: bytes, seed: list[int], count: int) -> Iterator[tuple[int, bytes]]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        offset = int(random.integers(len(content)))
        damaged = bytearray(content)
        damaged[offset] ^= int(random.integers(1, 256))
        yield offset, bytes(damaged)


def measure(name: str, seed: int, count: int | None = None) -> dict[str, int]:
    """Return how often each outcome occurred."""
    file, write, read = FORMATS[name]
    outcomes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        write(path)
        content = path.read_bytes()
        undamaged = digest(read(path))
        assert digest(read(path)) == undamaged
        count = count or COUNTS.get(name, 300)
        for offset, damaged in mutations(content, [seed, len(content)], count):
            path.write_bytes(damaged)
            kind = (forked if name in OWN_PROCESS else outcome)(read, path, undamaged)
            outcomes[kind] += 1
            if os.environ.get("SHOW") == kind:
                print(name, offset, content[offset], damaged[offset], file=sys.stderr)
    return dict(outcomes)


def main() -> None:
    import harness

    options = harness.parse(
        __doc__,
        ("formats", {"nargs": "*", "metavar": "FORMAT"}),
        ("--seed", {"type": int, "default": 0}),
        ("--count", {"type": int, "help": "mutations of a format"}),
    )
    kinds = ("error", "unnamed", "same", "other", "crash")
    print(f"{'format':26} {'read':>6} " + " ".join(f"{kind:>8}" for kind in kinds))
    # Files are read by NumPy and h5py alone, so no thread of JAX is running when a process forks.
    warnings.filterwarnings("ignore", message=".*fork", category=Warning)
    for name in options.formats or FORMATS:
        outcomes = measure(name, options.seed, 20 if options.quick else options.count)
        counts = [outcomes.get(kind, 0) for kind in kinds]
        print(f"{name:26} {sum(counts):6} " + " ".join(f"{n:8}" for n in counts), flush=True)


if __name__ == "__main__":
    main()
