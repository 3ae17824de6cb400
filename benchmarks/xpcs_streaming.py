"""A fit that streams its data from a file: memory and points per second.

    python benchmarks/xpcs_streaming.py                     # 1e9 points f32, a file of 4 GB
    python benchmarks/xpcs_streaming.py --points 2e7 --quick    # small, and writes nothing

The file contains 10 angles with symmetric noise and is deleted afterwards. Its pages are dropped
from the page cache before it is read, as far as the system allows, to measure the speed of the
disk. The fit runs in a new process, whose private memory is sampled.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import xpcs_model as model

import jaxkern as jk

ANGLES, CONTRAST, OFFSET, SIGMA = 10, 0.3, 1.0, 0.05
TILE = 2048  # rows and columns of noise that are drawn at once
MEMORY_BAR, THROUGHPUT_BAR = 0.20, 0.80


def write_data(path: Path, frames: int) -> None:
    """Write f32 [ANGLES, frames, frames]: the model, with noise that is mirrored tile by tile."""
    import jax

    data = np.lib.format.open_memmap(path, "w+", np.float32, (ANGLES, frames, frames))
    random = np.random.default_rng(0)
    all_angles = model.geometry(ANGLES, frames)
    with jax.enable_x64(True):
        for angle in harness.progress(range(ANGLES), "writing"):
            phi = all_angles.phi[angle : angle + 1]
            flow = jk.xpcs.LaminarFlow(dataclasses.replace(all_angles, phi=phi))
            clean = np.asarray(jk.xpcs.g2(flow, model.PHYSICS, CONTRAST, OFFSET))[0]
            for i in range(0, frames, TILE):
                for j in range(i, frames, TILE):
                    rows, columns = slice(i, i + TILE), slice(j, j + TILE)
                    tile = clean[rows, columns].astype(np.float32)
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


def fit(path: str) -> dict[str, Any]:
    """Fit the file in this process; return the result and samples of the private memory."""
    frames = np.load(path, mmap_mode="r").shape[1]
    start = model.PHYSICS * [1.2, 0.9, 1.2, 1.1, 0.9, 1.2, 0.8]
    with harness.sampled_memory(0.02) as samples:
        result = jk.xpcs.fit(
            jk.xpcs.LaminarFlow(model.geometry(ANGLES, frames)),
            path,
            SIGMA,
            start,
            scaling="constant",
            errors=jk.xpcs.ErrorOptions("independent", absolute_sigma=True),  # as the noise
            streaming=jk.xpcs.StreamingOptions(strategy="stream", symmetric=True),
            progress=False,
        )
    off = np.abs(result.popt - [CONTRAST, OFFSET, *model.PHYSICS]) / result.perr
    ended_well = result.success and result.success_rate == 1.0
    return {
        "off": float(off.max()) if ended_well else None,
        "nfev": result.nfev,
        "compute": result.timings.compute,
        "rss_anon": samples,
    }


def kernel(path: str) -> float:
    """Return the points per second of the kernel on one angle in memory, one call per pass."""
    import jax

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


def measure(path: Path, frames: int) -> tuple[list[str], dict[str, Any]]:
    """Return the table and the raw samples."""
    write_data(path, frames)
    drop_pages(path)
    read = [read_seconds(path), read_seconds(path)]  # from the disk, and from the page cache
    points, size = ANGLES * frames**2, path.stat().st_size
    in_memory = harness.call("xpcs_streaming", "kernel", str(path), JAXKERN_BACKEND="native")
    drop_pages(path)
    result = harness.call("xpcs_streaming", "fit", str(path), JAXKERN_BACKEND="native")
    off = np.inf if result["off"] is None else result["off"]
    harness.within("the fit", off, 5, "standard errors from the truth")
    reading, streamed = points / read[0], points * result["nfev"] / result["compute"]
    share = streamed / min(in_memory, reading)
    memory = [value / 2**20 for value in result["rss_anon"]]
    mean = statistics.fmean(memory)
    variation = statistics.pstdev(memory) / mean
    rows = [
        ("points", f"{points:,}", "", ""),
        ("file, GB", f"{size / 1e9:.2f}", "", ""),
        ("passes over the file", result["nfev"], "", ""),
        ("compute, s", f"{result['compute']:.1f}", "", ""),
        ("RssAnon, mean, MiB", f"{mean:.0f}", "", ""),
        ("RssAnon, smallest to largest, MiB", f"{min(memory):.0f} to {max(memory):.0f}", "", ""),
        (
            f"RssAnon, coefficient of variation ({len(memory)} samples)", f"{variation:.1%}",
            f"{MEMORY_BAR:.0%}", harness.at_most(variation, MEMORY_BAR),
        ),
        ("streamed, Mpoints/s", f"{streamed / 1e6:,.0f}", "", ""),
        ("kernel on one angle in memory, Mpoints/s", f"{in_memory / 1e6:,.0f}", "", ""),
        ("reading the file, Mpoints/s", f"{reading / 1e6:,.0f}", "", ""),
        (
            "streamed, of the lower of these two", f"{share:.0%}", f"{THROUGHPUT_BAR:.0%}",
            harness.at_least(share, THROUGHPUT_BAR),
        ),
    ]  # fmt: skip
    record = {"fit": result, "kernel_points_per_second": in_memory, "read_seconds": read}
    return harness.table(" | measured | bar | ", "lrrl", rows), record


def main() -> None:
    options = harness.parse(
        __doc__,
        ("--points", {"type": float, "help": "about this many; default 1e9, with --quick 2e7"}),
        ("--folder", {"type": Path, "default": Path("build/bench"), "help": "of the file"}),
    )
    points = options.points or (2e7 if options.quick else 1e9)
    frames = round((points / ANGLES) ** 0.5)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = (options.folder / f"xpcs-streaming-{os.getpid()}.npy").absolute()
    try:
        lines, record = measure(path, frames)
    finally:
        path.unlink(missing_ok=True)
    title = f"A fit that streams {ANGLES * frames**2:,} points f32 from a file"
    note = "The kernel and the reading of the file were timed separately."
    harness.write("xpcs-streaming", title, lines, record, ["scipy"], note, options.quick)


if __name__ == "__main__":
    main()
