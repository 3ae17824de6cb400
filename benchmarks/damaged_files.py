"""Detection of damage by the readers: one random byte of a small file is changed.

    python benchmarks/damaged_files.py --quick --seed 1 --count 120 tar qmap

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
import functools
import hashlib
import io
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import harness
import numpy as np

import jaxkern as jk
from jaxkern import pipeline

sys.path.append(str(harness.HERE.parent / "tests"))
from support.pipeline.written import write_tar
from support.xpcs.detector_files import imm_bytes, rigaku_bytes

RANDOM = np.random.default_rng(20261123)
FRAMES = RANDOM.poisson(0.4, (24, 8, 16)).astype(np.uint16)
QMAP = jk.xpcs.QMap(1 + np.arange(128).reshape(8, 16) // 32, q=[0.01, 0.02, 0.03, 0.04])
TOKENS = RANDOM.integers(0, 50_000, 400).astype(np.int32)
OFFSETS = np.concatenate([[0], np.sort(RANDOM.integers(0, 400, 49)), [400]])
ROWS = RANDOM.standard_normal((30, 20)).astype(np.float32)
COLUMNS = {
    "x": RANDOM.standard_normal(300).astype(np.float32),
    "label": RANDOM.integers(0, 10, 300),
    "text": [f"récord {k % 37}" for k in range(300)],
}


def write_events(path: Path) -> None:
    frame, row, column = np.nonzero(FRAMES)
    pixel, count = row * 16 + column, FRAMES[frame, row, column]
    np.savez(path, shape=FRAMES.shape, pixel=pixel, frame=frame, count=count)


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("entry/data/data", data=FRAMES, chunks=(4, 8, 16), compression="gzip")
        file["entry/instrument/detector/frame_time"] = 0.1


def write_parquet(path: Path, **options: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(COLUMNS), path, **options)


def write_arrow(path: Path, **options: Any) -> None:
    import pyarrow as pa

    table, how = pa.table(COLUMNS), pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_file(str(path), table.schema, options=how) as out:
        out.write_table(table, max_chunksize=100)


def write_shard(path: Path) -> None:
    samples = []
    for k, row in enumerate(ROWS):
        file = io.BytesIO()
        np.save(file, row)
        samples.append((f"{k:05}", {"cls": str(k).encode(), "npy": file.getvalue()}))
    write_tar(path, samples)


def write_results(path: Path) -> None:
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


def hashed(data: bytes) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(data).digest(), np.uint8).astype(np.int32)


def read_table(kind: Any, path: Path, **options: Any) -> Any:
    return read_source(kind(path, decoders={"text": hashed}, **options))


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


Format = tuple[str, Callable[[Path], Any], Callable[[Path], Any], int]
READ_ARROW = functools.partial(read_table, pipeline.ArrowSource)
READ_PARQUET = functools.partial(read_table, pipeline.ParquetSource)
VERIFY_ARROW = functools.partial(READ_ARROW, verify=True)
VERIFY_PARQUET = functools.partial(READ_PARQUET, verify=True)
CHECKSUMS = functools.partial(write_parquet, write_page_checksum=True)
LZ4 = functools.partial(write_arrow, compression="lz4")
#: Format -> (name of the file, function that writes it, function that reads it, mutations).
FORMATS: dict[str, Format] = {
    "rigaku": ("x.bin", lambda p: p.write_bytes(rigaku_bytes(FRAMES)), read_frames, 600),
    "imm-sparse": ("x.imm", lambda p: p.write_bytes(imm_bytes(FRAMES, True)), read_frames, 600),
    "imm-dense": ("x.imm", lambda p: p.write_bytes(imm_bytes(FRAMES, False)), read_frames, 600),
    "npy-frames": ("x.npy", lambda p: np.save(p, FRAMES), read_frames, 600),
    "npz-events": ("x.npz", write_events, read_frames, 600),
    "hdf5-frames": ("x.h5", write_hdf5, read_frames, 300),
    "tokens": (
        "x.npy", lambda p: np.save(p, TOKENS),
        lambda p: read_source(pipeline.TokenSource(p, np.arange(0, 401, 40))), 400,
    ),
    "token-offsets": (
        "x.npy", lambda p: np.save(p, OFFSETS),
        lambda p: read_source(pipeline.TokenSource(np.arange(400), p)), 400,
    ),
    "parquet": ("x.parquet", write_parquet, READ_PARQUET, 300),
    "parquet, verify": ("x.parquet", write_parquet, VERIFY_PARQUET, 300),
    "parquet checksums, verify": ("x.parquet", CHECKSUMS, VERIFY_PARQUET, 300),
    "arrow": ("x.arrow", write_arrow, READ_ARROW, 300),
    "arrow, verify": ("x.arrow", write_arrow, VERIFY_ARROW, 300),
    "arrow lz4, verify": ("x.arrow", LZ4, VERIFY_ARROW, 300),
    "tar": ("x.tar", write_shard, lambda p: read_source(pipeline.WebDatasetSource(p)), 300),
    "results": ("x.hdf", write_results, read_results, 250),
    "qmap": ("x.h5", QMAP.write, read_qmap, 250),
}  # fmt: skip
OUTCOMES = ("error", "unnamed", "same", "other", "crash")
FORKED = {"hdf5-frames", "results", "qmap"}


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
        message = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return "error" if path.name in message else "unnamed"


def forked_outcome(read: Callable[[Path], Any], path: Path, undamaged: str) -> str:
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


def measure(name: str, seed: int, count: int | None) -> collections.Counter[str]:
    """Return how often each outcome occurred."""
    file, write, read, default = FORMATS[name]
    outcomes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        write(path)
        content = path.read_bytes()
        undamaged = digest(read(path))
        assert digest(read(path)) == undamaged
        random = np.random.default_rng([seed, len(content)])
        for _ in range(count or default):
            offset = int(random.integers(len(content)))
            damaged = bytearray(content)
            damaged[offset] ^= int(random.integers(1, 256))
            path.write_bytes(damaged)
            outcomes[(forked_outcome if name in FORKED else outcome)(read, path, undamaged)] += 1
    return outcomes


def main() -> None:
    bench = harness.Benchmark(
        __doc__,
        {
            "formats": {"nargs": "*", "metavar": "FORMAT"},
            "--seed": {"type": int, "default": 0},
            "--count": {"type": int, "help": "mutations of a format"},
        },
    )
    count = bench.options.count or (20 if bench.quick else None)
    # Files are read by NumPy and h5py alone, so no thread of JAX is running when a process forks.
    warnings.filterwarnings("ignore", message=".*fork", category=Warning)
    rows = []
    for name in harness.progress(bench.options.formats or FORMATS, "formats"):
        outcomes = measure(name, bench.options.seed, count)
        rows.append([name, outcomes.total(), *(outcomes[kind] for kind in OUTCOMES)])
    header = f"format | mutations | {' | '.join(OUTCOMES)}"
    note = f"Seed {bench.options.seed}; HDF5 {h5py.version.hdf5_version}."
    lines = harness.table(header, "lrrrrrr", rows)
    bench.write(lines, ["h5py", "pyarrow"], note)


if __name__ == "__main__":
    main()
