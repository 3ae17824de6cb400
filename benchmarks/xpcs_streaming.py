"""A fit that streams its data from a file: memory and points per second.

    python benchmarks/xpcs_streaming.py                     # 1e9 points f32, a file of 4 GB
    python benchmarks/xpcs_streaming.py --points 2e7 --quick    # small, and writes nothing

The file contains 10 angles with symmetric noise and is deleted afterwards. Its pages are dropped
from the page cache before it is read, as far as the system allows, to measure the speed of the
disk. Another process samples RssAnon, the private memory, during the fit. RSS would include the
pages of the mapped file, which the system can reclaim.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

ANGLES, CONTRAST, OFFSET, SIGMA = 10, 0.3, 1.0, 0.05
TILE = 2048  # rows and columns of noise that are drawn at once
MEMORY_BAR, THROUGHPUT_BAR = 0.20, 0.80


def write_data(path: Path, frames: int) -> None:
    """Data [ANGLES, frames, frames] f32: the model, with noise that is mirrored tile by tile."""
    import jax
    import xpcs_model as model

    import jaxkern as jk

    data = np.lib.format.open_memmap(path, "w+", np.float32, (ANGLES, frames, frames))
    random = np.random.default_rng(0)
    whole = model.geometry(ANGLES, frames)
    with jax.enable_x64(True):
        for angle in harness.progress(range(ANGLES), "writing"):
            geometry = dataclasses.replace(whole, phi=whole.phi[angle : angle + 1])
            flow = jk.xpcs.LaminarFlow(geometry)
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


def forget(path: Path) -> None:
    """Asks the system to drop the file's pages from its cache, which it may or may not do."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_seconds(path: Path) -> float:
    """Seconds of reading the file once from its beginning to its end."""
    room = bytearray(16 * 2**20)
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(room):
            pass
    return time.perf_counter() - start


def fit_case(path: str) -> dict[str, Any]:
    """Run the fit in a new process, which prints a line when it begins."""
    import jax
    import xpcs_model as model

    import jaxkern as jk

    frames = np.load(path, mmap_mode="r").shape[1]
    jax.devices()
    start = model.PHYSICS * [1.2, 0.9, 1.2, 1.1, 0.9, 1.2, 0.8]
    print("begin", flush=True)
    begin = time.monotonic()
    result = jk.xpcs.fit(
        jk.xpcs.LaminarFlow(model.geometry(ANGLES, frames)),
        path,
        SIGMA,
        start,
        scaling="constant",
        errors=jk.xpcs.ErrorOptions("independent", absolute_sigma=True),  # as the simulated noise
        streaming=jk.xpcs.StreamingOptions(strategy="stream", symmetric=True),
    )
    print(result, file=sys.stderr)
    return {
        "begin": begin,
        "end": time.monotonic(),
        "popt": result.popt.tolist(),
        "perr": result.perr.tolist(),
        "truth": [CONTRAST, OFFSET, *model.PHYSICS.tolist()],
        "success": result.success,
        "success_rate": result.success_rate,
        "nfev": result.nfev,
        "n_batches": result.n_batches,
        "reduced_chi2": result.reduced_chi2,
        "compile": result.timings.compile,
        "compute": result.timings.compute,
        "total": result.timings.total,
        "peak_memory": result.peak_memory,
    }


def kernel_case(path: str) -> dict[str, Any]:
    """Return points per second of the kernel on one angle in memory, with one call per pass."""
    import jax
    import xpcs_model as model

    import jaxkern as jk

    one = np.array(np.load(path, mmap_mode="r")[:1])
    geometry = model.geometry(1, one.shape[1])
    with jax.enable_x64(True):
        data = jax.device_put(one)
        flow = jk.xpcs.LaminarFlow(geometry)
        run = jax.jit(
            lambda p, d: jk.xpcs.normal_equations(
                flow, p, CONTRAST, OFFSET, d, SIGMA, symmetric=True
            )
        )
        p = jax.numpy.asarray(model.PHYSICS)
        seconds = []
        for _ in range(6):
            start = time.perf_counter()
            jax.block_until_ready(run(p, data))
            seconds.append(time.perf_counter() - start)
    return {"points": one.size, "seconds": seconds[1:]}


def process(case: str, path: Path) -> subprocess.Popen[str]:
    """-P: of the installed package, not of a source tree around it."""
    code = (
        f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import json; "
        f"import xpcs_streaming as s; print(json.dumps(s.{case}_case({str(path)!r})))"
    )
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAXKERN_BACKEND": "native"},
    )


def result_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"the case ended with status {child.returncode}")
    return json.loads(out.splitlines()[-1])


def anonymous(pid: int) -> int:
    """RssAnon of a process in bytes; 0 when it has gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.split("RssAnon:")[1].split()[0]) * 1024 if "RssAnon:" in text else 0


def sampled_fit(path: Path) -> tuple[dict[str, Any], list[tuple[float, int]]]:
    """The fit's result, and (time, RssAnon) of its process all through it."""
    child = process("fit", path)
    assert child.stdout is not None
    while child.stdout.readline().strip() != "begin":
        if child.poll() is not None:
            raise SystemExit(f"the fit ended with status {child.returncode} before it began")
    samples = []
    while child.poll() is None:
        samples.append((time.monotonic(), anonymous(child.pid)))
        time.sleep(0.02)
    found = result_of(child)
    return found, [s for s in samples if found["begin"] <= s[0] <= found["end"] and s[1]]


def check(found: dict[str, Any]) -> None:
    """Stops where the fit did not find what the data were made of."""
    off = np.abs(np.subtract(found["popt"], found["truth"])) / found["perr"]
    if not (found["success"] and found["success_rate"] == 1.0 and off.max() < 5):
        raise SystemExit(f"the fit is off by up to {off.max():.1f} standard errors: {found}")
    print(f"all parameters within {off.max():.1f} standard errors of the truth")


def measure(path: Path, frames: int) -> dict[str, Any]:
    write_data(path, frames)
    forget(path)
    cold = read_seconds(path)
    warm = read_seconds(path)
    kernel = result_of(process("kernel", path))
    forget(path)
    found, samples = sampled_fit(path)
    check(found)
    points, size = ANGLES * frames**2, path.stat().st_size
    values = [value for _, value in samples]
    series = samples[:: len(samples) // 200 + 1]
    in_memory = kernel["points"] / statistics.median(kernel["seconds"])
    reading = points / cold
    achieved = points * found["nfev"] / found["compute"]
    return {
        "points": points,
        "file_bytes": size,
        "fit": found,
        "kernel": kernel,
        "read_seconds": {"after dropping pages": cold, "again": warm},
        "points_per_second": {"streamed": achieved, "kernel": in_memory, "disk": reading},
        "share_of_the_lower": achieved / min(in_memory, reading),
        "rss_anon": {
            "samples": len(values),
            "mean": statistics.fmean(values),
            "smallest": min(values),
            "largest": max(values),
            "variation": statistics.pstdev(values) / statistics.fmean(values),
            "series": [(round(t - found["begin"], 2), v) for t, v in series],
        },
    }


def table(record: dict[str, Any]) -> str:
    memory, rates, found = record["rss_anon"], record["points_per_second"], record["fit"]
    share, variation = record["share_of_the_lower"], memory["variation"]
    return "\n".join(
        [
            "| | measured | bar | |",
            "|---|--:|--:|---|",
            f"| points | {record['points']:,} | | |",
            f"| file, GB | {record['file_bytes'] / 1e9:.2f} | | |",
            f"| passes over the file | {found['nfev']} | | |",
            f"| compute, s | {found['compute']:.1f} | | |",
            f"| RssAnon, mean, MiB | {memory['mean'] / 2**20:.0f} | | |",
            f"| RssAnon, smallest to largest, MiB | {memory['smallest'] / 2**20:.0f} to "
            f"{memory['largest'] / 2**20:.0f} | | |",
            f"| RssAnon, coefficient of variation ({memory['samples']} samples) | {variation:.1%} "
            f"| {MEMORY_BAR:.0%} | {harness.at_most(variation, MEMORY_BAR)} |",
            f"| streamed, Mpoints/s | {rates['streamed'] / 1e6:,.0f} | | |",
            f"| kernel on one angle in memory, Mpoints/s | {rates['kernel'] / 1e6:,.0f} | | |",
            f"| reading the file, Mpoints/s | {rates['disk'] / 1e6:,.0f} | | |",
            f"| streamed, of the lower of these two | {share:.0%} | {THROUGHPUT_BAR:.0%} "
            f"| {harness.at_least(share, THROUGHPUT_BAR)} |",
        ]
    )


def main() -> None:
    arguments = harness.parse(
        __doc__,
        (
            "--points",
            {"type": float, "help": "approximate number of points; default 1e9, with --quick 2e7"},
        ),
        (
            "--folder",
            {
                "type": Path,
                "default": Path("build/bench"),
                "help": "directory of the temporary file",
            },
        ),
    )
    points = arguments.points or (2e7 if arguments.quick else 1e9)
    frames = round((points / ANGLES) ** 0.5)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / f"xpcs-streaming-{os.getpid()}.npy"
    try:
        record = measure(path, frames)
    finally:
        path.unlink(missing_ok=True)
    text = table(record)
    title = f"A fit that streams {record['points']:,} points f32 from a file"
    note = "The kernel and the reading of the file were timed separately."
    harness.write("xpcs-streaming", title, text, record, ["scipy"], note, quick=arguments.quick)


if __name__ == "__main__":
    main()
