"""From frames and events to correlations, compared with other correlators, on random counts.

    make bench-correlators                                    # writes a result file
    make bench-correlators BENCHFLAGS=--quick                 # small, and writes nothing
    make bench-correlators BENCHFLAGS="--only multi-tau live" # some of the parts, writes nothing

A peer that would take minutes processes the first frames only, and rates are compared. First its g2
or C is compared with ours for the same frames, and a difference ends the run.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness
import numpy as np
import xpcs_correlator_peers as peers

import jaxkern as jk
from jaxkern.benchmarking import Samples
from jaxkern.core.memory import status_bytes

SIZES = {
    "multi-tau": {"n": 8192, "side": 256, "boost": 1024, "skbeam": 160},
    "events": {"n": 20_000, "shape": (512, 1024), "dense": 1500, "boost": 192},
    "all-lags": {"n": 10_000, "pixels": 200_000},
    "two-time": {"n": 2000, "pixels": 100_000, "bins": 8},
    "live": {"shape": (512, 1024), "block": 64, "frames": 8192},
    "file": {"n": 20_000, "shape": (512, 1024)},
    "memory": {"n": 20_000, "shape": (512, 1024)},
}
QUICK = {
    "multi-tau": {"n": 1024, "side": 64, "boost": 256, "skbeam": 64},
    "events": {"n": 2000, "shape": (128, 128), "dense": 500, "boost": 128},
    "all-lags": {"n": 1000, "pixels": 20_000},
    "two-time": {"n": 256, "pixels": 8_000, "bins": 8},
    "live": {"shape": (128, 128), "block": 64, "frames": 1024},
    "file": {"n": 1000, "shape": (512, 1024)},
    "memory": {"n": 6000, "shape": (512, 1024)},
}


@dataclasses.dataclass
class Arm:
    """A function to time, and the amount of work of one call."""

    run: Callable[[], Any]
    amount: float


@dataclasses.dataclass
class Line:
    """A line of the table: our value, that of another library, and the bar."""

    part: str
    against: str
    unit: str
    ours: float
    theirs: float | None
    value: float
    bar: float
    at_least: bool = True

    def cells(self) -> list[str]:
        verdict = (harness.at_least if self.at_least else harness.at_most)(self.value, self.bar)
        theirs = "" if self.theirs is None else f"{self.theirs:.3g}"
        ours, value, bar = f"{self.ours:.3g}", f"{self.value:.3g}", f"{self.bar:g}"
        return [self.part, self.against, theirs, ours, self.unit, value, bar, verdict]


def limit(part: str, against: str, unit: str, value: float, bar: float) -> Line:
    """Return a line for a value that is at most the bar."""
    return Line(part, against, unit, value, None, value, bar, at_least=False)


def turns(arms: Mapping[str, Arm], rounds: int) -> dict[str, Samples]:
    """Return the seconds of each arm; each round starts with the next arm."""
    names = list(arms)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in harness.progress(range(rounds), "turns"):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            time.sleep(0.1)
            start = time.perf_counter()
            arms[name].run()
            seconds[name].append(time.perf_counter() - start)
    return {name: Samples(tuple(values)) for name, values in seconds.items()}


def lines(
    part: str, unit: str, scale: float, arms: Mapping[str, Arm], rounds: int,
    bars: Mapping[str, float], record: dict[str, Any], absolute: float | None = None,
) -> list[Line]:  # fmt: skip
    """Compare the rate of the first arm, ours, with those of the others and with a fixed rate."""
    samples = turns(arms, rounds)
    record[part] = {
        name: {"seconds": list(samples[name].seconds), "amount": arm.amount}
        for name, arm in arms.items()
    }
    rates = {name: arm.amount / samples[name].median / scale for name, arm in arms.items()}
    mine = next(iter(arms))
    made = [
        Line(part, name, unit, rates[mine], rates[name], rates[mine] / rates[name], bar)
        for name, bar in bars.items()
        if name in arms
    ]
    if absolute is not None:
        made.append(Line(part, "a rate", unit, rates[mine], None, rates[mine], absolute))
    return made


def check(what: str, ours: Any, theirs: Any, rtol: float) -> None:
    """End the benchmark if values differ by more than a fraction of the other ones."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    worst = np.max(np.abs(ours[~same] / theirs[~same] - 1), initial=0.0)
    harness.within(what, worst, rtol, "of the value")


def upper_rows(first: Any, other: Any) -> tuple[Any, Any]:
    """Rows of two matrices, of which the second has the upper triangle only, in the same form."""
    rows = np.unique(np.linspace(0, len(first) - 1, 200).astype(int))
    return np.triu(first)[rows], np.triu(other)[rows]


def rings(shape: tuple[int, int], dynamic: int = 8, static: int = 5) -> jk.xpcs.QMap:
    """Bands of rows as bins, of about as many pixels each."""
    parts = np.arange(shape[0] * shape[1]).reshape(shape) * (dynamic * static) // np.prod(shape)
    return jk.xpcs.QMap(parts // static + 1, parts + 1)


def random_events(n: int, pixels: int, occupancy: float, seed: int = 0) -> tuple[Any, Any, Any]:
    """Events of one or two photons at random places of frames x pixels, ordered by frame."""
    rng = np.random.default_rng(seed)
    expected = int(n * pixels * occupancy)
    place = np.cumsum(rng.geometric(occupancy, int(expected * 1.01) + 1000), dtype=np.int64) - 1
    place = place[place < n * pixels]
    frame, pixel = np.divmod(place, pixels)
    count = 1 + (rng.random(len(place), np.float32) < 0.05)
    return pixel.astype(np.int32), frame.astype(np.int32), count.astype(np.uint8)


def dense_frames(events: tuple[Any, Any, Any], n: int, shape: tuple[int, int]) -> np.ndarray:
    pixel, frame, count = events
    stop = np.searchsorted(frame, n)
    frames = np.zeros((n, shape[0] * shape[1]), np.uint8)
    frames[frame[:stop], pixel[:stop]] = count[:stop]
    return frames.reshape(n, *shape)


def multi_tau(size: Any, rounds: int, record: dict[str, Any]) -> list[Line]:
    shape = (size["side"], size["side"])
    frames = np.random.default_rng(0).poisson(1.5, (size["n"], *shape)).astype(np.uint8)
    qmap = rings(shape)
    flat = frames.reshape(len(frames), -1)
    arms = {"jaxkern": Arm(lambda: jk.xpcs.multitau(frames, qmap, progress=False), frames.size)}
    if "boost_corr" not in peers.MISSING:
        n = size["boost"]
        run = peers.boost_multitau(flat[:n])
        g2 = peers.g2_of_sums(run(), qmap.static.ravel(), qmap.dynamic.ravel())
        ours = jk.xpcs.multitau(frames[:n], qmap, progress=False)
        check("multi-tau, boost-corr", ours.g2, g2, 2e-4)
        arms["boost-corr"] = Arm(run, flat[:n].size)
    if "skbeam" not in peers.MISSING:
        n = size["skbeam"]
        run = peers.skbeam_multitau(frames[:n], qmap.dynamic, 4)
        g2, lags = run()
        # With a static bin a dynamic one, at the delays that it takes from the same sums.
        ours = jk.xpcs.multitau(frames[:n], jk.xpcs.QMap(qmap.dynamic), progress=False)
        same = np.isin(ours.delay, lags) & ~np.isin(ours.delay, 8 * 2 ** np.arange(20))
        at = np.searchsorted(lags, ours.delay[same])
        check("multi-tau, scikit-beam", ours.g2[same], g2[at], 1e-6)
        arms["scikit-beam"] = Arm(run, flat[:n].size)
    bars = {"boost-corr": 100.0, "scikit-beam": 300.0}
    return lines("multi-tau", "G pixel-frames/s", 1e9, arms, rounds, bars, record, 1.5)


def events(size: Any, rounds: int, record: dict[str, Any]) -> list[Line]:
    n, shape = size["n"], size["shape"]
    pixel, frame, count = random_events(n, shape[0] * shape[1], 0.005)
    qmap = rings(shape)
    per_frame = len(pixel) / n
    # Of whole runs; the dense arms get their first frames, and events count as many as those hold.
    m = size["dense"]
    frames = dense_frames((pixel, frame, count), m, shape)
    stop = np.searchsorted(frame, m)
    first = pixel[:stop], frame[:stop], count[:stop]
    sparse = jk.xpcs.multitau_events(*first, m, qmap, progress=False)
    check("events, dense", sparse.g2, jk.xpcs.multitau(frames, qmap, progress=False).g2, 1e-12)
    arms = {
        "jaxkern": Arm(
            lambda: jk.xpcs.multitau_events(pixel, frame, count, n, qmap, progress=False),
            len(pixel),
        ),
        "jaxkern, dense": Arm(
            lambda: jk.xpcs.multitau(frames, qmap, progress=False), per_frame * m
        ),
    }
    if "boost_corr" not in peers.MISSING:
        k = size["boost"]
        flat = frames[:k].reshape(k, -1)
        run = peers.boost_multitau(flat)
        g2 = peers.g2_of_sums(run(), qmap.static.ravel(), qmap.dynamic.ravel())
        check("events, boost-corr", jk.xpcs.multitau(frames[:k], qmap, progress=False).g2, g2, 2e-4)
        arms["boost-corr"] = Arm(run, per_frame * k)
    bars = {"jaxkern, dense": 1.0, "boost-corr": 100.0}
    return lines("events", "M events/s", 1e6, arms, rounds, bars, record, 50.0)


def all_lags(size: Any, rounds: int, record: dict[str, Any]) -> list[Line]:
    n, pixels = size["n"], size["pixels"]
    pixel, frame, count = random_events(n, pixels, 0.005)
    qmap = jk.xpcs.QMap(np.ones((1, pixels), int))

    def ours() -> Any:
        return jk.xpcs.twotime_events(
            pixel, frame, count, n, qmap, smoothing="none", progress=False
        )

    arms = {"jaxkern": Arm(ours, 1.0)}
    if "xpcscorr" not in peers.MISSING:
        order = np.lexsort((frame, pixel))
        by_pixel = {
            "intensity": count[order].astype(np.int32),
            "time_index": frame[order],
            "pixel_pointer": np.searchsorted(pixel[order], np.arange(pixels + 1)),
        }
        run = peers.numba_twotime(by_pixel, n)
        check("all-lags, xpcs-correlator", *upper_rows(ours().c2[0], run()), 1e-10)
        arms["xpcs-correlator"] = Arm(run, 1.0)
    return lines("all-lags", "runs/s", 1.0, arms, rounds, {"xpcs-correlator": 3.0}, record)


def two_time(size: Any, rounds: int, record: dict[str, Any]) -> list[Line]:
    import jax

    n, pixels, bins = size["n"], size["pixels"], size["bins"]
    frames = np.random.default_rng(0).poisson(2.0, (n, pixels)).astype(np.uint8)
    edges = np.arange(bins + 1) * pixels // bins
    dynamic = np.repeat(np.arange(1, bins + 1), np.diff(edges))[None]
    qmap = jk.xpcs.QMap(dynamic)
    product = jax.jit(lambda x: x @ x.T)
    parts = [jax.numpy.asarray(frames[:, a:b], "float32") for a, b in itertools.pairwise(edges)]

    def ours() -> Any:
        return jk.xpcs.twotime(frames, qmap, dtype=np.float32, progress=False)

    def products() -> Any:
        return jax.block_until_ready([product(part) for part in parts])

    work = 2.0 * n * n * pixels
    arms = {"jaxkern": Arm(ours, work), "XLA's f32 product": Arm(products, work)}
    if "boost_corr" not in peers.MISSING:
        run = peers.boost_twotime(frames, edges)
        check("two-time, boost-corr", *upper_rows(ours().c2[0], run()[0]), 2e-4)
        arms["boost-corr"] = Arm(run, work)
    products()
    bars = {"XLA's f32 product": 0.8, "boost-corr": 2.0}
    return lines("two-time", "GFLOP/s", 1e9, arms, rounds, bars, record)


def live(size: Any, rounds: int, record: dict[str, Any]) -> list[Line]:
    """A block of frames added to a state on the device, and g2 of all bins from it."""
    import jax

    shape, block, n = size["shape"], size["block"], size["frames"]
    qmap = rings(shape)
    rng = np.random.default_rng(0)
    blocks = [
        jax.numpy.asarray(rng.poisson(0.3, (block, shape[0] * shape[1])).astype(np.uint8))
        for _ in range(4)
    ]
    update = jax.jit(jk.xpcs.multitau_update, donate_argnums=0)
    small = jk.xpcs.multitau_init(64, n, "uint8")  # compile first, which also allocates memory
    jax.block_until_ready(update(small, np.zeros((block, 64), np.uint8)))
    before = status_bytes("VmRSS")
    state = jk.xpcs.multitau_init(shape[0] * shape[1], n, "uint8")
    adds, results = [], []
    for number in range(n // block):
        frames = blocks[number % len(blocks)]
        began = time.perf_counter()
        state = jax.block_until_ready(update(state, frames))
        adds.append(time.perf_counter() - began)
        if number % 16 == 15:
            began = time.perf_counter()
            jk.xpcs.multitau_result(state, qmap)
            results.append(time.perf_counter() - began)
    # As documented: 8 bytes a pixel, 12 for each delay and 8 dpl for each level of delays.
    delays = jk.xpcs.multitau_delays(n)
    levels = 1 + (len(delays) - 5) // 4
    held = (8 + 12 * len(delays) + 32 * levels) * shape[0] * shape[1]
    ratio = (status_bytes("VmRSS") - before) / held
    added, result = Samples(tuple(adds[2:])).median, Samples(tuple(results)).median
    record["live"] = {"add": adds, "result": results, "state": held}
    # Frames come at 1 kHz: in a second 1000 / block blocks and one g2.
    busy = added * 1000 / block + result
    return [
        limit("live", "a block added", "ms", 1e3 * added, 45.0),
        limit("live", "1 kHz and g2 a second", "s of each s", busy, 1.0),
        limit("live", "memory as documented", "times", ratio, 1.1),
    ]


def write_rigaku(path: Path, size: Any) -> Any:
    pixel, frame, count = random_events(size["n"], size["shape"][0] * size["shape"][1], 0.005)
    words = frame.astype(np.uint64) << np.uint64(40)
    words |= pixel.astype(np.uint64) << np.uint64(16)
    words |= count
    words.tofile(path)
    return pixel, frame, count


def file(size: Any, rounds: int, record: dict[str, Any]) -> list[Line]:
    """Compare g2 of a file in the page cache with reading it, and with correlating its events."""
    qmap = rings(size["shape"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.bin"
        held = write_rigaku(path, size)
        n = int(held[1][-1]) + 1
        arms = {
            "jaxkern": Arm(lambda: jk.xpcs.multitau(path, qmap, progress=False), len(held[0])),
            "reading": Arm(lambda: np.fromfile(path, "<u8"), len(held[0])),
            "correlating": Arm(
                lambda: jk.xpcs.multitau_events(*held, n, qmap, progress=False), len(held[0])
            ),
        }
        check("file", arms["jaxkern"].run().g2, arms["correlating"].run().g2, 1e-15)
        rows = lines("file", "M events/s", 1e6, arms, rounds, dict.fromkeys(arms, 0.6), record)
    return [min(rows[1:], key=lambda line: line.theirs or 0.0)]


def memory(size: Any, rounds: int, record: dict[str, Any]) -> list[Line]:
    """Return the peak of the private memory for a file of events beyond that for a small file."""
    del rounds
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "run.bin", Path(folder) / "small.bin"
        write_rigaku(path, size)
        write_rigaku(small, {**size, "n": 16})
        peak = harness.call("xpcs_correlators", "peak", str(small), str(path), size["shape"])
        file_bytes = path.stat().st_size
    record["memory"] = {"file": file_bytes, "peak": peak}
    return [limit("memory", "the size of the file", "times", peak / file_bytes, 1.2)]


def peak(small: str, path: str, shape: tuple[int, int]) -> int:
    """Return the bytes that a large file adds at most to this process after a small one."""
    qmap = rings((shape[0], shape[1]))
    jk.xpcs.multitau(small, qmap, progress=False)
    with harness.sampled_memory(5e-4) as samples:
        jk.xpcs.multitau(path, qmap, progress=False)
    return max(samples) - samples[0]


PARTS = {
    "multi-tau": multi_tau, "events": events, "all-lags": all_lags, "two-time": two_time,
    "live": live, "file": file, "memory": memory,
}  # fmt: skip


def main() -> None:
    options = harness.parse(
        __doc__,
        ("--only", {"nargs": "+", "choices": PARTS, "help": "only these; no results are written"}),
        rounds=(5, 2),
    )
    peers.two_threads()
    sizes = QUICK if options.quick else SIZES
    record: dict[str, Any] = {"sizes": sizes, "missing": peers.MISSING}
    rows: list[Line] = []
    for name in options.only or PARTS:
        rows += PARTS[name](sizes[name], options.rounds, record)
    header = "work | against | theirs | ours |  | ratio or value | bar | "
    lines = harness.table(header, "llrrlrrl", (line.cells() for line in rows))
    if peers.MISSING:
        lines += ["", f"Not installed: {', '.join(peers.MISSING)}."]
    note = (
        "Medians; arms took turns. Rates are compared: of the dense peers the first frames "
        f"({SIZES['multi-tau']['boost']:,} and {SIZES['multi-tau']['skbeam']} of "
        f"{SIZES['multi-tau']['n']:,}; of events {SIZES['events']['boost']} and, of the dense "
        f"kernel, {SIZES['events']['dense']:,} of {SIZES['events']['n']:,})."
    )
    packages = ["torch", "boost-corr", "scikit-beam", "xpcs-correlator", "numba"]
    title, quick = "From frames and events to correlations", bool(options.quick or options.only)
    harness.write("xpcs-correlators", title, lines, record, packages, note, quick)


if __name__ == "__main__":
    main()
