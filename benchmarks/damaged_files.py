"""Detection of damage by the readers: one random byte of a small file is changed.

    python benchmarks/damaged_files.py [--seed 0] [--count N] [FORMAT ...]

Each mutation draws an offset and a byte from the seed. The outcomes:

- error: the reader raises an error that names the file;
- unnamed: it raises an error that does not;
- same: it returns the values of the whole file (the byte means nothing);
- other: it returns other values without an error;
- crash: the process ends (HDF5 files are read in forked processes).
"""

from __future__ import annotations

import argparse
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
    found = {name: values.astype(np.uint64) for name, values in events().items()}
    words = found["frame"] << np.uint64(40) | found["pixel"] << np.uint64(16) | found["count"]
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
            for place, dtype, value in put:
                data = np.array(value, dtype).tobytes()
                header[place : place + len(data)] = data
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


def parquet(path: Path, **how: Any) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table(), path, **how)


def arrow(path: Path, **how: Any) -> None:
    import pyarrow as pa

    rows = table()
    options = pa.ipc.IpcWriteOptions(**how)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, rows.schema, options=options) as out,
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
    found = jk.xpcs.multitau(FRAMES, QMAP, overview=True)
    jk.xpcs.write_results(path, found, jk.xpcs.twotime(FRAMES, QMAP))


def read_frames(path: Path) -> Any:
    with jk.xpcs.open_frames(path, (8, 16)) as source:
        frames = [source.read(k, k + 1).tobytes() for k in range(len(source))]
        return source.shape, frames, source.dead, sorted(source.metadata.items())


def read_source(source: Any) -> Any:
    found = [
        source.gather(np.arange(k, min(k + 50, len(source)))) for k in range(0, len(source), 50)
    ]
    return [{name: np.asarray(values) for name, values in batch.items()} for batch in found]


def text_length(data: bytes) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(data).digest(), np.uint8).astype(np.int32)


def read_table(kind: Any, path: Path, **how: Any) -> Any:
    return read_source(kind(path, decoders={"text": text_length}, **how))


def read_results(path: Path) -> Any:
    found = jk.xpcs.read_results(path)
    return [
        found.multitau.g2, found.multitau.g2_err, found.multitau.delay, found.multitau.bins,
        found.multitau.q, found.multitau.n_pairs, found.twotime.c2, found.twotime.g2,
        found.twotime.bins, found.twotime.q, found.multitau.overview.mean_image,
        sorted(found.metadata.items()), found.multitau.qmap.dynamic,
    ]  # fmt: skip


def read_qmap(path: Path) -> Any:
    found = jk.xpcs.QMap.read(path)
    return [found.dynamic, found.static, found.mask, found.q, found.phi]


P = jk.pipeline
#: format -> (file's name, what writes it, what reads it, how many mutations, own process)
FORMATS: dict[str, tuple[str, Callable[[Path], None], Callable[[Path], Any], int, bool]] = {
    "rigaku": ("x.bin", rigaku, read_frames, 600, False),
    "imm-sparse": ("x.imm", lambda p: imm(p, True), read_frames, 600, False),
    "imm-dense": ("x.imm", lambda p: imm(p, False), read_frames, 600, False),
    "npy-frames": ("x.npy", lambda p: np.save(p, FRAMES), read_frames, 600, False),
    "npz-events": (
        "x.npz",
        lambda p: np.savez(p, shape=FRAMES.shape, **events()),
        read_frames,
        600,
        False,
    ),
    "hdf5-frames": ("x.h5", hdf5_frames, read_frames, 300, True),
    "tokens": (
        "x.npy",
        tokens,
        lambda p: read_source(P.TokenSource(p, np.arange(0, 401, 40))),
        400,
        False,
    ),
    "token-offsets": (
        "x.npy",
        offsets,
        lambda p: read_source(P.TokenSource(np.arange(400), p)),
        400,
        False,
    ),
    "parquet": ("x.parquet", parquet, lambda p: read_table(P.ParquetSource, p), 300, False),
    "parquet, verify": (
        "x.parquet",
        parquet,
        lambda p: read_table(P.ParquetSource, p, verify=True),
        300,
        False,
    ),
    "parquet checksums, verify": (
        "x.parquet",
        lambda p: parquet(p, write_page_checksum=True),
        lambda p: read_table(P.ParquetSource, p, verify=True),
        300,
        False,
    ),
    "arrow": ("x.arrow", arrow, lambda p: read_table(P.ArrowSource, p), 300, False),
    "arrow, verify": (
        "x.arrow",
        arrow,
        lambda p: read_table(P.ArrowSource, p, verify=True),
        300,
        False,
    ),
    "arrow lz4, verify": (
        "x.arrow",
        lambda p: arrow(p, compression="lz4"),
        lambda p: read_table(P.ArrowSource, p, verify=True),
        300,
        False,
    ),
    "tar": ("x.tar", tar, lambda p: read_source(P.WebDatasetSource(p)), 300, False),
    "results": ("x.hdf", results, read_results, 250, True),
    "qmap": ("x.h5", QMAP.write, read_qmap, 250, True),
}


def digest(found: Any) -> str:
    """Of all values, with their types and shapes."""
    text = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            value = sorted(value.items())
        if isinstance(value, list | tuple):
            text.update(b"[")
            for part in value:
                add(part)
        elif isinstance(value, np.ndarray):
            text.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        else:
            text.update(repr(value).encode())

    add(found)
    return text.hexdigest()


def outcome(read: Callable[[Path], Any], path: Path, whole: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "same" if digest(read(path)) == whole else "other"
    except Exception as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return "error" if path.name in said else "unnamed"


def forked(read: Callable[[Path], Any], path: Path, whole: str) -> str:
    """`outcome` in a process that may crash or hang."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with contextlib.suppress(BaseException):
            os.write(writer, outcome(read, path, whole).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read().decode()
    os.waitpid(child, 0)
    return found or "crash"


def mutations(whole: bytes, seed: list[int], count: int) -> Iterator[tuple[int, bytes]]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        place = int(random.integers(len(whole)))
        damaged = bytearray(whole)
        damaged[place] ^= int(random.integers(1, 256))
        yield place, bytes(damaged)


def measure(name: str, seed: int, count: int | None = None) -> dict[str, int]:
    """How often each outcome was found."""
    file, write, read, usual, own_process = FORMATS[name]
    found: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        write(path)
        content = path.read_bytes()
        whole = digest(read(path))
        assert digest(read(path)) == whole
        for place, damaged in mutations(content, [seed, len(content)], count or usual):
            path.write_bytes(damaged)
            kind = (forked if own_process else outcome)(read, path, whole)
            found[kind] += 1
            if os.environ.get("SHOW") == kind:
                print(name, place, content[place], damaged[place], file=sys.stderr)
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", metavar="FORMAT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=None)
    chosen = parser.parse_args()
    kinds = ("error", "unnamed", "same", "other", "crash")
    print(f"{'format':26} {'read':>6} " + " ".join(f"{kind:>8}" for kind in kinds))
    # No thread of JAX's runs yet: files are read by NumPy and h5py alone.
    warnings.filterwarnings("ignore", message=".*fork", category=Warning)
    for name in chosen.formats or FORMATS:
        found = measure(name, chosen.seed, chosen.count)
        counts = [found.get(kind, 0) for kind in kinds]
        print(f"{name:26} {sum(counts):6} " + " ".join(f"{n:8}" for n in counts), flush=True)


if __name__ == "__main__":
    main()
