"""Calls in an ordinary program: new processes, no environment variables, no settings.

    python benchmarks/plain_calls.py                     # prints, and writes benchmarks/results/
    python benchmarks/plain_calls.py --before DIR        # also against another build of jaxkern
    python benchmarks/plain_calls.py --quick             # one process an arm, writes nothing

The fused chain (random resized crop, flip, normalize of 64 and of 256 photographs) against jitted
gathers, also with `tune_host_allocator` called first; g2 of 23 x 400^2 against the jitted model.
DIR is a folder with another built `jaxkern` package, such as a checkout of an earlier commit. Every
process runs one arm, the arms take turns, and all results are compared first. The result of a
process is the median of its calls.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
WARMUP, CALLS = 5, 20
COUNTS = (64, 256)
ANGLES, FRAMES = 23, 400


def child(arm: dict[str, Any]) -> dict[str, Any]:
    """Seconds and page faults of each call of one arm; its result goes to a file when asked for."""
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
        backend = "jax" if arm["way"] == "JAX" else "native"
        call = bench.jitted(aug, images, params, backend)
    else:
        jax.config.update("jax_enable_x64", True)
        import xpcs_kernels

        arms = xpcs_kernels.g2_arms(ANGLES, FRAMES)
        call = arms["theirs" if arm["way"] == "JAX" else "ours"]
    if arm["save"]:
        np.save(arm["save"], np.asarray(call()))
    seconds, faults = [], []
    for _ in range(WARMUP + CALLS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return {
        "seconds": seconds[WARMUP:],
        "faults": faults[WARMUP:],
        "package": str(Path(jk.__file__).resolve().parent),
    }


def run(arm: dict[str, Any], before: Path | None, save: str = "") -> dict[str, Any]:
    """An arm in a new process, as users start it."""
    import harness

    try:
        printed = harness.in_new_python(
            __file__,
            "--child",
            json.dumps({**arm, "save": save}),
            without=["MALLOC_", "GLIBC_", "XLA_", "JAXKERN_"],
            **({"PYTHONPATH": str(before)} if arm["way"] == "before" else {}),
        )
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{label(arm)} failed") from error
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    package = found.pop("package")  # a folder of this machine, which no record names
    if arm["way"] == "before" and before is not None:
        expected = str((before / "jaxkern").resolve())
        if package != expected:
            raise SystemExit(f"the earlier build is imported from {package}, not {expected}")
    return found


def label(arm: dict[str, Any]) -> str:
    work = f"{arm['count']} images" if "count" in arm else f"g2, {ANGLES} x {FRAMES}^2"
    return f"{work}, {arm['way']}, {'tuned' if arm['tuned'] else 'plain'}"


def arms_of(before: bool) -> list[dict[str, Any]]:
    ways = ("jaxkern", "JAX", "before") if before else ("jaxkern", "JAX")
    plain = [{"way": way, "tuned": False} for way in ways]
    tuned = [{"way": way, "tuned": True} for way in ("jaxkern", "JAX")]
    return [{"count": n, **arm} for n in COUNTS for arm in plain + tuned] + plain


def check(saved: dict[str, Path]) -> None:
    """Stops where two arms of the same work return different values."""
    import image_augment as bench
    import numpy as np
    import xpcs_kernels

    for name, path in saved.items():
        work = name.split(", ")[0]
        ours = next(p for n, p in saved.items() if n.startswith(f"{work}, ") and "jaxkern" in n)
        if work == "g2":
            xpcs_kernels.close(np.load(path), np.load(ours), name, 1e-12)
        else:
            bench.same(np.load(path), np.load(ours), name, 0.06)


def rows(found: dict[str, list[dict[str, Any]]], before: bool) -> list[str]:
    """The table."""
    import harness

    seconds = {n: [statistics.median(p["seconds"]) for p in runs] for n, runs in found.items()}
    faults = {n: statistics.median(c for p in r for c in p["faults"]) for n, r in found.items()}
    comparisons = []
    for work in (*(f"{n} images" for n in COUNTS), f"g2, {ANGLES} x {FRAMES}^2"):
        images = work.endswith("images")
        comparisons.append((work, "plain", "JAX", 2.5 if images else None))
        if before:
            comparisons.append((work, "plain", "before", 2.5 if images else 2.0))
        if images:
            comparisons.append((work, "tuned", "JAX", 4.5))
    lines = [
        "| work | memory | against | theirs, ms | ours, ms | faults a call, theirs and ours "
        "| ratio (least and most of the processes) | bar | |",
        "|---|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for work, state, way, bar in comparisons:
        theirs, ours = f"{work}, {way}, {state}", f"{work}, jaxkern, {state}"
        ratio = statistics.median(seconds[theirs]) / statistics.median(seconds[ours])
        each = [t / o for t, o in zip(seconds[theirs], seconds[ours], strict=True)]
        verdict = "" if bar is None else harness.at_least(ratio, bar)
        lines.append(
            f"| {work} | {state} | {way} | {1e3 * statistics.median(seconds[theirs]):.1f} "
            f"| {1e3 * statistics.median(seconds[ours]):.2f} "
            f"| {faults[theirs]:,.0f} and {faults[ours]:,.0f} "
            f"| {ratio:.2f} ({min(each):.2f} to {max(each):.2f}) "
            f"| {'' if bar is None else f'{bar:g}'} | {verdict} |"
        )
    return lines


def sentence(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return the sentence with the rates in README.md and docs/start.md."""

    def rate(count: int, way: str) -> str:
        runs = found[f"{count} images, {way}, plain"]
        return f"{count / statistics.median(statistics.median(p['seconds']) for p in runs):,.0f}"

    rates = [f"{rate(n, 'jaxkern')} images/s of {n} images ({rate(n, 'JAX')})" for n in COUNTS]
    return f"jaxkern makes {' and '.join(rates)}; in parentheses jitted JAX gathers."


def main() -> None:
    if sys.argv[1:2] == ["--child"]:  # measured without the imports of the harness
        print(json.dumps(child(json.loads(sys.argv[2]))))
        return
    import harness

    options = harness.parse(
        __doc__,
        ("--processes", {"type": int, "default": 7, "help": "processes per arm"}),
        ("--before", {"type": Path, "help": "directory with another built jaxkern package"}),
    )
    arms = arms_of(options.before is not None)
    found: dict[str, list[dict[str, Any]]] = {label(arm): [] for arm in arms}
    with tempfile.TemporaryDirectory() as folder:
        saved = {label(arm): Path(folder) / f"{i}.npy" for i, arm in enumerate(arms)}
        for arm in harness.progress(arms, "checking"):
            run(arm, options.before, str(saved[label(arm)]))
        check(saved)
    for _ in harness.progress(range(1 if options.quick else options.processes), "timing"):
        for arm in arms:
            found[label(arm)].append(run(arm, options.before))
    text = "\n".join([*rows(found, options.before is not None), "", sentence(found)])
    note = (
        f"Each process runs one arm, {options.processes} processes of each in turns; medians of "
        f"{CALLS} calls after {WARMUP}. Plain: no environment variables and no settings; tuned: "
        "`tune_host_allocator` was called."
    )
    harness.write(
        "plain-calls", "Plain calls", text, {"runs": found}, note=note, quick=options.quick
    )


if __name__ == "__main__":
    main()
