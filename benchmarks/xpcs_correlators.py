"""From frames and events to correlations, compared with other correlators, on random counts.

    make bench-correlators                                    # writes a result file
    make bench-correlators BENCHFLAGS=--quick                 # small, and writes nothing

A peer that would take minutes processes the first frames only, and rates are compared. First its g2
or C is compared with ours for the same frames, and a difference ends the run.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import jax
import numpy as np

import jaxkern as jk
from jaxkern.core.memory import status_bytes
from jaxkern.core.threads import num_threads

Arms = dict[str, tuple[Callable[[], Any], float]]  # a function, and the amount of work of one call
Cells = list[str]


class Report:
    """Rows of the table."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.rows: list[Cells] = []

    def rates(
        self, part: str, unit: str, scale: float, arms: Arms, bars: dict[str, float], bar: float = 0
    ) -> None:
        """Compare the rate of the first arm, ours, with those of others and with a fixed rate."""
        if len(arms) == 1:
            return  # no other library is installed
        runs = {name: run for name, (run, _) in arms.items()}
        samples = harness.interleave(runs, self.rounds, warmup=0, turn_seconds=0)
        rates = {n: amount / samples[n].median / scale for n, (_, amount) in arms.items()}
        ours = rates[next(iter(arms))]
        for name, least in bars.items():
            if name in arms:
                self.add(part, name, rates[name], ours, unit, ours / rates[name], least)
        if bar:
            self.add(part, "a rate", None, ours, unit, ours, bar)

    def limit(self, part: str, against: str, unit: str, value: float, bar: float) -> None:
        """Add a value that is at most the bar."""
        self.add(part, against, None, value, unit, value, bar, harness.at_most)

    def add(
        self, part: str, against: str, theirs: float | None, ours: float, unit: str, value: float,
        bar: float, judge: Callable[[float, float], str] = harness.at_least,
    ) -> None:  # fmt: skip
        other = "" if theirs is None else f"{theirs:.3g}"
        cells = [f"{ours:.3g}", unit, f"{value:.3g}", f"{bar:g}", judge(value, bar)]
        self.rows.append([part, against, other, *cells])


def check(name: str, ours: Any, theirs: Any, rtol: float) -> None:
    """End the benchmark if values differ by more than a fraction of the other ones."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    worst = np.max(np.abs(ours[~same] / theirs[~same] - 1), initial=0.0)
    harness.within(name, worst, rtol, "of the value")


def check_upper(name: str, ours: Any, theirs: Any, rtol: float) -> None:
    """Compare 200 rows of the upper triangles of two matrices."""
    rows = np.unique(np.linspace(0, len(ours) - 1, 200).astype(int))
    check(name, np.triu(ours)[rows], np.triu(theirs)[rows], rtol)


def rings(shape: tuple[int, int], dynamic: int = 8, static: int = 5) -> jk.xpcs.QMap:
    """Bands of rows as bins, of about as many pixels each."""
    parts = np.arange(shape[0] * shape[1]).reshape(shape) * (dynamic * static) // np.prod(shape)
    return jk.xpcs.QMap(parts // static + 1, parts + 1)


def random_events(n: int, pixels: int, occupancy: float = 0.005) -> tuple[Any, Any, Any]:
    """Events of one or two photons at random offsets of frames x pixels, ordered by frame."""
    rng = np.random.default_rng(0)
    expected = int(n * pixels * occupancy)
    offset = np.cumsum(rng.geometric(occupancy, int(expected * 1.01) + 1000), dtype=np.int64) - 1
    offset = offset[offset < n * pixels]
    frame, pixel = np.divmod(offset, pixels)
    count = 1 + (rng.random(len(offset), np.float32) < 0.05)
    return pixel.astype(np.int32), frame.astype(np.int32), count.astype(np.uint8)


def dense_frames(events: tuple[Any, Any, Any], n: int, shape: tuple[int, int]) -> np.ndarray:
    pixel, frame, count = events
    stop = np.searchsorted(frame, n)
    frames = np.zeros((n, shape[0] * shape[1]), np.uint8)
    frames[frame[:stop], pixel[:stop]] = count[:stop]
    return frames.reshape(n, *shape)


# Other correlators, which `make xpcs-peers` installs, on arrays in memory. Reading files, making
# maps and starting a cluster are not part of their time.


def boost_multitau(frames: Any) -> Callable[[], Any]:
    """G, IP and IF [tau, 3, pixels] in float32, with exact levels (max_count=4096), on the CPU.

    frames: [N, P]. The queues use at most 4 GB. Means over bins are not part of its time.
    """
    import torch
    from boost_corr import MultitauCorrelator

    torch.set_num_threads(num_threads())

    def run() -> Any:
        correlator = MultitauCorrelator(
            (1, frames.shape[1]), len(frames), device="cpu", max_memory=4.0, max_count=4096
        )
        for first in range(0, len(frames), 64):
            correlator.process(torch.from_numpy(frames[first : first + 64]))
        correlator.post_process()
        return correlator.get_results()[1]["G2"].numpy()

    return run


def g2_of_sums(sums: Any, static: Any, dynamic: Any) -> np.ndarray:
    """g2 [tau, bins] of G, IP and IF [tau, 3, pixels], as boost-corr normalizes them."""
    means = np.apply_along_axis(lambda x: np.bincount(static, x)[1:], 2, sums)
    means /= np.bincount(static)[1:]
    ratio = means[:, 0] / (means[:, 1] * means[:, 2])
    bins = [np.unique(static[dynamic == b]) - 1 for b in range(1, int(dynamic.max()) + 1)]
    return np.stack([ratio[:, b].mean(axis=1) for b in bins], axis=1)


def skbeam_multitau(frames: Any, dynamic: Any) -> Callable[[], Any]:
    """g2 [lags, bins] and the lags of frames [N, H, W], with 4 levels of 8 lags."""
    from skbeam.core.correlation import multi_tau_auto_corr

    return lambda: multi_tau_auto_corr(4, 8, dynamic, frames)


def boost_twotime(frames: Any, edges: Any) -> Callable[[], Any]:
    """C [bins, N, N], its upper triangle, of frames [N, P]; bin b begins at edges[b]."""
    import torch
    from boost_corr import TwotimeCorrelator

    slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    bins = list(range(1, len(slices) + 1))
    layout = {"dq_idx": bins, "dq_slc": slices, "sq_idx": bins, "sq_slc": slices}

    def run() -> Any:
        correlator = TwotimeCorrelator(layout, len(frames), (1, frames.shape[1]), device="cpu")
        correlator.process(torch.from_numpy(frames))
        correlator.compute_smooth_data("sqmap")
        matrices: list[Any] = []
        for payload in correlator.get_twotime_generator():
            matrices += [x for key, x in payload.items() if key.startswith("correlation_map")]
        return np.stack(matrices)

    return run


def numba_twotime(by_pixel: Mapping[str, Any], n_frames: int) -> Callable[[], Any]:
    """C [N, N] of one bin, its upper triangle, and the sums of all lags, on two threads.

    by_pixel: intensity, time_index and pixel_pointer, as xpcs-correlator orders events. Its kernel
    is compiled and does not hold the interpreter's lock; each thread runs it on half of the pixels.
    """
    from xpcscorr.correlators.sparse.base import _calculate_correlation_csc

    count, frame, begin = (by_pixel[k] for k in ("intensity", "time_index", "pixel_pointer"))
    pixels = len(begin) - 1

    def half(first: int, stop: int) -> tuple[Any, Any]:
        products, sums = np.zeros((n_frames, n_frames)), np.zeros(n_frames, np.int64)
        events = slice(int(begin[first]), int(begin[stop]))
        _calculate_correlation_csc(
            count[events], frame[events], begin[first : stop + 1] - begin[first], products, sums,
            np.zeros(n_frames), True,
        )  # fmt: skip
        return products, sums

    def run() -> Any:
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(half, (0, pixels // 2), (pixels // 2, pixels)))
        products, sums = (first + second for first, second in zip(*parts, strict=True))
        divisor = np.where(sums > 0, sums, 1).astype(np.float64)
        return products * pixels / divisor / divisor[:, None]

    return run


def add_boost_multitau(arms: Arms, frames: np.ndarray, qmap: Any, amount: float) -> None:
    """Add boost-corr's multi-tau of frames, after a comparison of g2."""
    run = boost_multitau(frames.reshape(len(frames), -1))
    g2 = g2_of_sums(run(), qmap.static.ravel(), qmap.dynamic.ravel())
    check("boost-corr's g2", jk.xpcs.multitau(frames, qmap, progress=False).g2, g2, 2e-4)
    arms["boost-corr"] = run, amount


def multi_tau(report: Report, quick: bool) -> None:
    n, side, few, fewer = (1024, 64, 256, 64) if quick else (8192, 256, 1024, 160)
    frames = np.random.default_rng(0).poisson(1.5, (n, side, side)).astype(np.uint8)
    qmap = rings((side, side))
    arms: Arms = {"jaxkern": (lambda: jk.xpcs.multitau(frames, qmap, progress=False), frames.size)}
    with harness.optional("boost-corr"):
        add_boost_multitau(arms, frames[:few], qmap, frames[:few].size)
    with harness.optional("scikit-beam"):
        first = frames[:fewer]
        run = skbeam_multitau(first, qmap.dynamic)
        g2, lags = run()
        # With a static bin a dynamic one, at the delays that it computes from the same sums.
        ours = jk.xpcs.multitau(first, jk.xpcs.QMap(qmap.dynamic), progress=False)
        same = np.isin(ours.delay, lags) & ~np.isin(ours.delay, 8 * 2 ** np.arange(20))
        theirs = g2[np.searchsorted(lags, ours.delay[same])]
        check("multi-tau, scikit-beam", ours.g2[same], theirs, 1e-6)
        arms["scikit-beam"] = run, first.size
    bars = {"boost-corr": 100.0, "scikit-beam": 300.0}
    report.rates("multi-tau", "G pixel-frames/s", 1e9, arms, bars, 1.5)


def events(report: Report, quick: bool) -> None:
    """Compare events with dense frames and boost-corr, which process the first frames."""
    n, shape, dense, few = (
        (2000, (128, 128), 500, 128) if quick else (20_000, (512, 1024), 1500, 192)
    )
    pixel, frame, count = random_events(n, shape[0] * shape[1])
    qmap, per_frame = rings(shape), len(pixel) / n
    frames = dense_frames((pixel, frame, count), dense, shape)
    stop = np.searchsorted(frame, dense)
    arms: Arms = {
        "jaxkern": (
            lambda: jk.xpcs.multitau_events(pixel, frame, count, n, qmap, progress=False),
            len(pixel),
        ),
        "jaxkern, dense": (
            lambda: jk.xpcs.multitau(frames, qmap, progress=False), per_frame * dense
        ),
    }  # fmt: skip
    first = (x[:stop] for x in (pixel, frame, count))
    sparse = jk.xpcs.multitau_events(*first, dense, qmap, progress=False)
    check("events, dense", sparse.g2, arms["jaxkern, dense"][0]().g2, 1e-12)
    with harness.optional("boost-corr"):
        add_boost_multitau(arms, frames[:few], qmap, per_frame * few)
    bars = {"jaxkern, dense": 1.0, "boost-corr": 100.0}
    report.rates("events", "M events/s", 1e6, arms, bars, 50.0)


def all_lags(report: Report, quick: bool) -> None:
    n, pixels = (1000, 20_000) if quick else (10_000, 200_000)
    pixel, frame, count = random_events(n, pixels)
    qmap = jk.xpcs.QMap(np.ones((1, pixels), int))

    def ours() -> Any:
        return jk.xpcs.twotime_events(
            pixel, frame, count, n, qmap, smoothing="none", progress=False
        )

    arms: Arms = {"jaxkern": (ours, 1.0)}
    with harness.optional("xpcs-correlator"):
        order = np.lexsort((frame, pixel))
        by_pixel = {
            "intensity": count[order].astype(np.int32),
            "time_index": frame[order],
            "pixel_pointer": np.searchsorted(pixel[order], np.arange(pixels + 1)),
        }
        run = numba_twotime(by_pixel, n)
        check_upper("all-lags, xpcs-correlator", ours().c2[0], run(), 1e-10)
        arms["xpcs-correlator"] = run, 1.0
    report.rates("all-lags", "runs/s", 1.0, arms, {"xpcs-correlator": 3.0})


def two_time(report: Report, quick: bool) -> None:
    n, pixels, bins = (256, 8_000, 8) if quick else (2000, 100_000, 8)
    frames = np.random.default_rng(0).poisson(2.0, (n, pixels)).astype(np.uint8)
    edges = np.arange(bins + 1) * pixels // bins
    qmap = jk.xpcs.QMap(np.repeat(np.arange(1, bins + 1), np.diff(edges))[None])
    product = jax.jit(lambda x: x @ x.T)
    parts = [jax.numpy.asarray(frames[:, a:b], "float32") for a, b in itertools.pairwise(edges)]

    def ours() -> Any:
        return jk.xpcs.twotime(frames, qmap, dtype=np.float32, progress=False)

    work = 2.0 * n * n * pixels
    arms: Arms = {
        "jaxkern": (ours, work),
        "XLA's f32 product": (lambda: [product(part) for part in parts], work),
    }
    with harness.optional("boost-corr"):
        run = boost_twotime(frames, edges)
        check_upper("two-time, boost-corr", ours().c2[0], run()[0], 2e-4)
        arms["boost-corr"] = run, work
    bars = {"XLA's f32 product": 0.8, "boost-corr": 2.0}
    report.rates("two-time", "GFLOP/s", 1e9, arms, bars)


def live(report: Report, quick: bool) -> None:
    """Measure adding blocks of frames to a state on the device, and g2 of all bins from it."""
    shape, n, block = ((128, 128), 1024, 64) if quick else ((512, 1024), 8192, 64)
    pixels, qmap = shape[0] * shape[1], rings(shape)
    rng = np.random.default_rng(0)
    counts = [rng.poisson(0.3, (block, pixels)).astype(np.uint8) for _ in range(4)]
    blocks = [jax.numpy.asarray(frames) for frames in counts]
    update = jax.jit(jk.xpcs.multitau_update, donate_argnums=0)
    small = jk.xpcs.multitau_init(64, n, "uint8")  # compile first, which also allocates memory
    jax.block_until_ready(update(small, np.zeros((block, 64), np.uint8)))
    before = status_bytes("VmRSS")
    state = jk.xpcs.multitau_init(pixels, n, "uint8")
    adds, results = [], []
    for number in range(n // block):
        began = time.perf_counter()
        state = jax.block_until_ready(update(state, blocks[number % 4]))
        adds.append(time.perf_counter() - began)
        if number % 16 == 15:
            began = time.perf_counter()
            jk.xpcs.multitau_result(state, qmap)
            results.append(time.perf_counter() - began)
    # As documented: 8 bytes a pixel, 12 for each delay and 8 dpl for each level of delays.
    delays = len(jk.xpcs.multitau_delays(n))
    documented = (8 + 12 * delays + 32 * (1 + (delays - 5) // 4)) * pixels
    ratio = (status_bytes("VmRSS") - before) / documented
    added = float(np.median(adds[2:]))
    report.limit("live", "a block added", "ms", 1e3 * added, 45.0)
    # Frames come at 1 kHz: in a second 1000 / block blocks and one g2.
    busy = added * 1000 / block + float(np.median(results))
    report.limit("live", "1 kHz and g2 a second", "s of each s", busy, 1.0)
    report.limit("live", "memory as documented", "times", ratio, 1.1)


def file(report: Report, quick: bool) -> None:
    """Compare g2 of a file in the page cache with reading it, and with correlating its events."""
    n, shape = 6000 if quick else 20_000, (512, 1024)
    pixel, frame, count = random_events(n, shape[0] * shape[1])
    words = frame.astype(np.uint64) << np.uint64(40) | pixel.astype(np.uint64) << np.uint64(16)
    words |= count
    qmap = rings(shape)
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "run.bin", Path(folder) / "small.bin"
        words.tofile(path)
        words[:40_000].tofile(small)
        last, size = int(frame[-1]) + 1, len(pixel)
        arms: Arms = {
            "jaxkern": (lambda: jk.xpcs.multitau(path, qmap, progress=False), size),
            "reading": (lambda: np.fromfile(path, "<u8"), size),
            "correlating": (
                lambda: jk.xpcs.multitau_events(pixel, frame, count, last, qmap, progress=False),
                size,
            ),
        }
        check("file", arms["jaxkern"][0]().g2, arms["correlating"][0]().g2, 1e-15)
        bars = dict.fromkeys(("reading", "correlating"), 0.6)
        report.rates("file", "M events/s", 1e6, arms, bars)
        added = harness.call("xpcs_correlators", "added_memory", small, path, shape)
        ratio = added / path.stat().st_size
        report.limit("memory", "the size of the file", "times", ratio, 1.2)


def added_memory(small: Path, path: Path, shape: tuple[int, int]) -> int:
    """Return the bytes that a large file adds at most to this process after a small one."""
    qmap = rings(shape)
    jk.xpcs.multitau(small, qmap, progress=False)
    with harness.sampled_memory(5e-4) as samples:
        jk.xpcs.multitau(path, qmap, progress=False)
    return max(samples) - samples[0]


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(5, 2))
    report = Report(bench.rounds)
    for part in (multi_tau, events, all_lags, two_time, live, file):
        part(report, bench.quick)
    header = "work | against | theirs | ours |  | ratio or value | bar | "
    lines = harness.table(header, "llrrlrrl", report.rows)
    note = (
        "Medians; arms took turns. Rates are compared: of the dense peers the first frames (1,024 "
        "and 160 of 8,192; of events 192 and, of the dense kernel, 1,500 of 20,000)."
    )
    packages = ["torch", "boost-corr", "scikit-beam", "xpcs-correlator", "numba"]
    bench.write(lines, packages, note)


if __name__ == "__main__":
    main()
