"""A fit that streams its data from a file: memory and points per second.

    python benchmarks/xpcs_streaming.py                     # 1e9 points f32, a file of 4 GB
    python benchmarks/xpcs_streaming.py --points 1e8 --quick    # smaller, and writes nothing

The file contains 10 angles with symmetric noise and is deleted afterwards. Its pages are dropped
from the page cache before it is read, as far as the system allows, to measure the speed of the
disk. The fit runs in a new process, whose private memory is sampled.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from pathlib import Path

import harness
import jax
import numpy as np
import xpcs_model as model

import jaxkern as jk

ANGLES, CONTRAST, OFFSET, SIGMA = 10, 0.3, 1.0, 0.05
TILE = 2048  # rows and columns of noise that are drawn at once


def write_data(path: Path, frames: int) -> None:
    """Write f32 [ANGLES, frames, frames]: the model, with noise that is mirrored tile by tile."""
    data = np.lib.format.open_memmap(path, "w+", np.float32, (ANGLES, frames, frames))
    random = np.random.default_rng(0)
    all_angles = model.geometry(ANGLES, frames)
    for angle in harness.progress(range(ANGLES), "writing"):
        phi = all_angles.phi[angle : angle + 1]
        flow = jk.xpcs.LaminarFlow(dataclasses.replace(all_angles, phi=phi))
        with jax.enable_x64(True):
            clean = np.asarray(jk.xpcs.g2(flow, model.PHYSICS, CONTRAST, OFFSET), np.float32)[0]
        for i in range(0, frames, TILE):
            for j in range(i, frames, TILE):
                rows, columns = slice(i, i + TILE), slice(j, j + TILE)
                tile = clean[rows, columns]
                noise = random.standard_normal(tile.shape, np.float32)
                tile += SIGMA * (np.triu(noise, 1) + np.triu(noise, 1).T if i == j else noise)
                data[angle, rows, columns] = tile
                data[angle, columns, rows] = tile.T
    data.flush()


def drop_pages(path: Path) -> None:
    """Ask the system to drop the pages of the file from its cache, which it may not do."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_seconds(path: Path) -> float:
    """Return the seconds of reading the file once from its beginning to its end."""
    buffer = bytearray(16 * 2**20)
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def fit(path: Path) -> tuple[float, int, float, list[int]]:
    """Fit the file in this process.

    Returns:
      The largest difference from the true values in standard errors, the passes, the seconds of
      compute, and samples of the private memory.
    """
    frames = np.load(path, mmap_mode="r").shape[1]
    with harness.sampled_memory(0.02) as samples:
        result = jk.xpcs.fit(
            jk.xpcs.LaminarFlow(model.geometry(ANGLES, frames)),
            str(path),
            SIGMA,
            model.PHYSICS * [1.2, 0.9, 1.2, 1.1, 0.9, 1.2, 0.8],
            scaling="constant",
            errors=jk.xpcs.ErrorOptions("independent", absolute_sigma=True),  # as the noise
            streaming=jk.xpcs.StreamingOptions(strategy="stream", symmetric=True),
            progress=False,
        )
    off = np.abs(result.popt - [CONTRAST, OFFSET, *model.PHYSICS]) / result.perr
    worst = off.max() if result.success and result.success_rate == 1.0 else np.inf
    return float(worst), result.nfev, result.timings.compute, samples


def kernel(path: Path) -> float:
    """Return the points per second of the kernel on one angle in memory, one call per pass."""
    one = np.array(np.load(path, mmap_mode="r")[:1])
    with jax.enable_x64(True):
        data, p = jax.device_put(one), jax.numpy.asarray(model.PHYSICS)
        flow = jk.xpcs.LaminarFlow(model.geometry(1, one.shape[1]))
        run = jax.jit(
            lambda p, d: jk.xpcs.normal_equations(
                flow, p, CONTRAST, OFFSET, d, SIGMA, symmetric=True
            )
        )
        seconds = []
        for _ in range(6):
            start = time.perf_counter()
            jax.block_until_ready(run(p, data))
            seconds.append(time.perf_counter() - start)
    return float(one.size / statistics.median(seconds[1:]))


def measure(path: Path, frames: int) -> list[str]:
    """Return the table."""
    write_data(path, frames)
    drop_pages(path)
    read = read_seconds(path)
    points = ANGLES * frames**2
    in_memory = harness.call("xpcs_streaming", "kernel", path, JAXKERN_BACKEND="native")
    drop_pages(path)
    off, passes, compute, private = harness.call(
        "xpcs_streaming", "fit", path, JAXKERN_BACKEND="native"
    )
    harness.within("the fit", off, 5, "standard errors from the truth")
    reading, streamed = points / read, points * passes / compute
    share = streamed / min(in_memory, reading)
    memory = [value / 2**20 for value in private]
    mean = statistics.fmean(memory)
    variation = statistics.pstdev(memory) / mean
    rows = [
        ("points", f"{points:,}", "", ""),
        ("file, GB", f"{path.stat().st_size / 1e9:.2f}", "", ""),
        ("passes over the file", passes, "", ""),
        ("compute, s", f"{compute:.1f}", "", ""),
        ("RssAnon, mean, MiB", f"{mean:.0f}", "", ""),
        ("RssAnon, smallest to largest, MiB", f"{min(memory):.0f} to {max(memory):.0f}", "", ""),
        (
            f"RssAnon, coefficient of variation ({len(memory)} samples)", f"{variation:.1%}", "20%",
            harness.at_most(variation, 0.2),
        ),
        ("streamed, Mpoints/s", f"{streamed / 1e6:,.0f}", "", ""),
        ("kernel on one angle in memory, Mpoints/s", f"{in_memory / 1e6:,.0f}", "", ""),
        ("reading the file, Mpoints/s", f"{reading / 1e6:,.0f}", "", ""),
        (
            "streamed, of the lower of these two", f"{share:.0%}", "80%",
            harness.at_least(share, 0.8),
        ),
    ]  # fmt: skip
    return harness.table(" | measured | bar | ", "lrrl", rows)


def main() -> None:
    help_ = "number of points; default 1e9, with --quick 2e7"
    bench = harness.Benchmark(__doc__, {"--points": {"type": float, "help": help_}})
    points = bench.options.points or (2e7 if bench.quick else 1e9)
    frames = round((points / ANGLES) ** 0.5)
    folder = Path("build/bench")  # not in memory, as the directory of temporary files may be
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        lines = measure(Path(temporary).absolute() / "data.npy", frames)
    note = "The kernel and the reading of the file were timed separately."
    bench.write(lines, ["scipy"], note)


if __name__ == "__main__":
    main()
