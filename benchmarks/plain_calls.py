"""Calls in an ordinary program: new processes, no environment variables, no settings.

    python benchmarks/plain_calls.py                     # prints, and writes benchmarks/results/
    python benchmarks/plain_calls.py --before DIR        # also against another build of jaxkern
    python benchmarks/plain_calls.py --quick             # one process an arm, writes nothing

The fused chain (random resized crop, flip, normalize of 64 and of 256 photographs) against jitted
gathers, also with `tune_host_allocator` called first; g2 of 23 x 400^2 against the jitted model.
DIR is a folder with another built `jaxkern` package, such as a checkout of an earlier commit. Every
process runs one arm, the arms take turns, and all results are compared first. The result of a
process is the median of its calls. Processes do not import the harness.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

WARMUP, CALLS = 5, 20
COUNTS = (64, 256)
ANGLES, FRAMES = 23, 400
G2 = f"g2, {ANGLES} x {FRAMES}^2"


def child(arm: dict[str, Any], save: str) -> dict[str, Any]:
    """Return the seconds and page faults of each call of one arm; save its result if asked."""
    import jax

    import jaxkern as jk

    if arm["tuned"] and not jk.performance.tune_host_allocator():
        raise SystemExit("tune_host_allocator has no effect here")
    import jax.numpy as jnp
    import numpy as np

    if "count" in arm:
        import image_augment as bench

        crops = bench.photographs()
        images = jnp.asarray(np.tile(crops, (arm["count"] // len(crops), 1, 1, 1)))
        aug = bench.chain(antialias=False)
        keys = jk.random.record_keys(0, 0, np.arange(len(images)))
        params = jax.jit(lambda k: aug.sample(k, images.shape[1:3]))(keys)
        call = bench.jitted(aug, images, params, "jax" if arm["way"] == "JAX" else "native")
    else:
        jax.config.update("jax_enable_x64", True)
        import xpcs_kernels

        arms = xpcs_kernels.g2_arms(ANGLES, FRAMES)
        call = arms["theirs" if arm["way"] == "JAX" else "ours"]
    if save:
        np.save(save, np.asarray(call()))
    seconds, faults = [], []
    for _ in range(WARMUP + CALLS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    package = str(Path(jk.__file__).resolve().parent)
    return {"seconds": seconds[WARMUP:], "faults": faults[WARMUP:], "package": package}


def run(arm: dict[str, Any], before: Path | None, save: str = "") -> dict[str, Any]:
    """Run an arm in a new process, as users start it."""
    import harness

    earlier = {"PYTHONPATH": str(before)} if arm["way"] == "before" else {}
    without = ["MALLOC_", "GLIBC_", "XLA_", "JAXKERN_"]
    result = harness.call("plain_calls", "child", arm, save, without=without, **earlier)
    package = result.pop("package")  # a folder of this machine, which no record names
    if earlier and before is not None and package != str((before / "jaxkern").resolve()):
        raise SystemExit(f"expected the build in {before}, got {package}")
    return result


def label(arm: dict[str, Any]) -> str:
    work = f"{arm['count']} images" if "count" in arm else G2
    return f"{work}, {arm['way']}, {'tuned' if arm['tuned'] else 'plain'}"


def all_arms(before: bool) -> list[dict[str, Any]]:
    ways = ("jaxkern", "JAX", "before") if before else ("jaxkern", "JAX")
    plain = [{"way": way, "tuned": False} for way in ways]
    tuned = [{"way": way, "tuned": True} for way in ("jaxkern", "JAX")]
    return [{"count": n, **arm} for n in COUNTS for arm in plain + tuned] + plain


def check(saved: dict[str, Path]) -> None:
    """End the benchmark if two arms of the same work return different values."""
    import image_augment as bench
    import numpy as np
    import xpcs_kernels

    for name, path in saved.items():
        work = G2 if name.startswith(G2) else name.split(", ")[0]
        ours = np.load(saved[f"{work}, jaxkern, plain"])
        if work == G2:
            xpcs_kernels.close(np.load(path), ours, name, 1e-12)
        else:
            bench.same(np.load(path), ours, name, 0.06)


def table(runs: dict[str, list[dict[str, Any]]], before: bool) -> list[str]:
    import harness

    seconds = {n: [statistics.median(p["seconds"]) for p in r] for n, r in runs.items()}
    faults = {n: statistics.median(c for p in r for c in p["faults"]) for n, r in runs.items()}
    comparisons: list[tuple[str, str, str, float | None]] = []
    for work in (*(f"{n} images" for n in COUNTS), G2):
        images = work != G2
        comparisons.append((work, "plain", "JAX", 2.5 if images else None))
        if before:
            comparisons.append((work, "plain", "before", 2.5 if images else 2.0))
        if images:
            comparisons.append((work, "tuned", "JAX", 4.5))
    rows = []
    for work, state, way, bar in comparisons:
        theirs, ours = f"{work}, {way}, {state}", f"{work}, jaxkern, {state}"
        medians = [statistics.median(seconds[name]) for name in (theirs, ours)]
        ratio = medians[0] / medians[1]
        each = [t / o for t, o in zip(seconds[theirs], seconds[ours], strict=True)]
        verdict = ("", "") if bar is None else (f"{bar:g}", harness.at_least(ratio, bar))
        rows.append(
            (
                *(work, state, way, f"{1e3 * medians[0]:.1f}", f"{1e3 * medians[1]:.2f}"),
                f"{faults[theirs]:,.0f} and {faults[ours]:,.0f}",
                f"{ratio:.2f} ({min(each):.2f} to {max(each):.2f})",
                *verdict,
            )
        )
    header = (
        "work | memory | against | theirs, ms | ours, ms | faults a call, theirs and ours "
        "| ratio (least and most of the processes) | bar | "
    )
    return harness.table(header, "lllrrrrrl", rows)


def sentence(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Return the sentence with the rates in README.md and docs/start.md."""

    def rate(count: int, way: str) -> str:
        processes = runs[f"{count} images, {way}, plain"]
        medians = (statistics.median(p["seconds"]) for p in processes)
        return f"{count / statistics.median(medians):,.0f}"

    rates = [f"{rate(n, 'jaxkern')} images/s of {n} images ({rate(n, 'JAX')})" for n in COUNTS]
    return f"jaxkern makes {' and '.join(rates)}; in parentheses jitted JAX gathers."


def main() -> None:
    import harness

    options = harness.parse(
        __doc__,
        ("--before", {"type": Path, "help": "directory with another built jaxkern package"}),
        rounds=(7, 1),
    )
    arms = all_arms(options.before is not None)
    runs: dict[str, list[dict[str, Any]]] = {label(arm): [] for arm in arms}
    with tempfile.TemporaryDirectory() as folder:
        saved = {label(arm): Path(folder) / f"{i}.npy" for i, arm in enumerate(arms)}
        for arm in harness.progress(arms, "checking"):
            run(arm, options.before, str(saved[label(arm)]))
        check(saved)
    for _ in harness.progress(range(options.rounds), "timing"):
        for arm in arms:
            runs[label(arm)].append(run(arm, options.before))
    note = (
        f"Each process runs one arm, {options.rounds} processes of each in turns; medians of "
        f"{CALLS} calls after {WARMUP}. Plain: no environment variables and no settings; tuned: "
        "`tune_host_allocator` was called."
    )
    lines = [*table(runs, options.before is not None), "", sentence(runs)]
    title = "Plain calls"
    harness.write("plain-calls", title, lines, {"runs": runs}, note=note, quick=options.quick)


if __name__ == "__main__":
    main()
