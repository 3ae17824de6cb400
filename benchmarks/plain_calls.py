"""Calls in an ordinary program: new processes, no environment variables, no settings.

    python benchmarks/plain_calls.py --before DIR        # also against another build of jaxkern

The fused chain (random resized crop, flip, normalize of 64 and of 256 photographs) against jitted
gathers, also with `tune_host_allocator` called first, and with donated results; g2 of 23 x 400^2
against the jitted model. DIR is a folder with another built `jaxkern` package, such as a checkout
of an earlier commit. Every process runs one arm, the arms take turns, and all results are compared
first. The result of a process is the median of its calls.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import image_augment
import jax
import numpy as np
import xpcs_kernels
from photographs import crops

import jaxkern as jk

WARMUP, CALLS = 5, 20
COUNTS = (64, 256)
G2 = "g2, 23 x 400^2"


@dataclasses.dataclass(frozen=True)
class Arm:
    """An arm: images to augment (0: g2), the version, and "plain", "tuned" or "donated"."""

    count: int
    version: str = "jaxkern"
    memory: str = "plain"


def donating(aug: jk.image.Compose, images: Any, params: Any) -> Callable[[], Any]:
    """Return a call whose result takes the memory of the previous one."""
    apply, batch = jk.execution.donated(aug.apply), None

    def call() -> Any:
        nonlocal batch
        batch = apply(images, params, out=batch).block_until_ready()
        return batch

    return call


def measure(count: int, version: str, memory: str, with_result: bool) -> dict[str, Any]:
    """Return the seconds and page faults of each call of one arm, and its result if asked."""
    if memory == "tuned" and not jk.performance.tune_host_allocator():
        raise SystemExit("tune_host_allocator has no effect here")
    backend = "jax" if version == "JAX" else "native"
    if count:
        images = jax.numpy.asarray(np.tile(crops(), (count // 64, 1, 1, 1)))
        aug = image_augment.chain()
        params = image_augment.draw(aug, count)
        call = image_augment.jitted(aug, images, params, backend)
        if memory == "donated":
            call = donating(aug, images, params)
    else:
        jax.config.update("jax_enable_x64", True)
        arms = xpcs_kernels.Problem("laminar", 23, 400).g2()
        call = arms["theirs" if version == "JAX" else "ours"]
    result = np.asarray(call()) if with_result else None
    seconds, faults = [], []
    for _ in range(WARMUP + CALLS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    package = str(Path(jk.__file__).parent.parent)
    timed = {"seconds": seconds[WARMUP:], "faults": faults[WARMUP:]}
    return {**timed, "package": package, "result": result}


def run(arm: Arm, before: Path | None, with_result: bool = False) -> dict[str, Any]:
    """Run an arm in a new process, as users start it."""
    earlier = {"PYTHONPATH": str(before)} if arm.version == "before" else {}
    without = ["MALLOC_", "GLIBC_", "XLA_", "JAXKERN_"]
    arguments = (*dataclasses.astuple(arm), with_result)
    result = harness.call("plain_calls", "measure", *arguments, without=without, **earlier)
    package = result.pop("package")  # a folder of this machine, which no record names
    if earlier and before is not None and package != str(before.resolve()):
        raise SystemExit(f"expected the build in {before}, got {package}")
    return result


def row(ours: Arm, theirs: Arm, runs: dict[Arm, Any], bar: float | None) -> list[object]:
    medians = {arm: [statistics.median(p["seconds"]) for p in runs[arm]] for arm in (theirs, ours)}
    seconds = [statistics.median(times) for times in medians.values()]
    faults = [statistics.median(n for p in runs[arm] for n in p["faults"]) for arm in medians]
    ratio = seconds[0] / seconds[1]
    each = [t / o for t, o in zip(medians[theirs], medians[ours], strict=True)]
    return [
        f"{ours.count} images" if ours.count else G2,
        ours.memory,
        theirs.version,
        *(f"{1e3 * s:.2f}" for s in seconds),
        f"{faults[0]:,.0f} and {faults[1]:,.0f}",
        f"{ratio:.2f} ({min(each):.2f} to {max(each):.2f})",
        *(("", "") if bar is None else (f"{bar:g}", harness.at_least(ratio, bar))),
    ]


def main() -> None:
    bench = harness.Benchmark(
        __doc__,
        {"--before": {"type": Path, "help": "directory with another built jaxkern package"}},
        rounds=(7, 1),
    )
    before = bench.options.before
    compared = []  # our arm, the other one, and the bar
    for count in (*COUNTS, 0):
        compared.append((Arm(count), Arm(count, "JAX"), 2.5 if count else None))
        if before:
            compared.append((Arm(count), Arm(count, "before"), 2.5 if count else 2.0))
        if count:
            compared.append((Arm(count, memory="tuned"), Arm(count, "JAX", "tuned"), 4.5))
            compared.append((Arm(count, memory="donated"), Arm(count), None))
    arms = list(dict.fromkeys(arm for ours, theirs, _ in compared for arm in (ours, theirs)))
    results = {a: run(a, before, True)["result"] for a in harness.progress(arms, "checking")}
    for arm, result in results.items():
        expected = results[Arm(arm.count)]
        if arm.count:
            harness.check_levels(str(arm), result, expected, 0.06, scale=image_augment.LEVELS)
        else:
            harness.check_relative(str(arm), result, expected, 1e-12)
    runs: dict[Arm, list[Any]] = {arm: [] for arm in arms}
    for _ in harness.progress(range(bench.rounds), "timing"):
        for arm in arms:
            runs[arm].append(run(arm, before))
    header = (
        "work | memory | against | theirs, ms | ours, ms | faults a call, theirs and ours "
        "| ratio (least and most of the processes) | bar | "
    )
    rows = [row(ours, theirs, runs, bar) for ours, theirs, bar in compared]
    note = (
        f"Each process runs one arm, {bench.rounds} processes of each in turns; medians of "
        f"{CALLS} calls after {WARMUP}. Plain: no environment variables and no settings; tuned: "
        "`tune_host_allocator` was called; donated: by `jaxkern.execution.donated`."
    )
    lines = [*harness.table(header, "lllrrrrrl", rows), ""]
    for arm in arms:
        if arm.count and arm.memory == "plain":
            seconds = statistics.median(statistics.median(p["seconds"]) for p in runs[arm])
            lines.append(f"{arm.count} images, {arm.version}: {arm.count / seconds:,.0f} images/s.")
    bench.write(lines, note=note, runs={str(arm): processes for arm, processes in runs.items()})


if __name__ == "__main__":
    main()
