"""``bench``: the package's ops in native code against pure JAX, on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

from jaxkern.cli.output import print_json, print_table


def add_parser(commands: Any) -> None:
    about = "compare the native kernels with pure JAX here; values are checked first"
    parser = commands.add_parser("bench", help=about, description=about)
    parser.add_argument(
        "--case", action="append", metavar="NAME", help="only this; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="for the measurements; ./benchmark-results by default",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="DIR",
        help="judge the native times against the newest ones saved there",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the speedups")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(chosen: argparse.Namespace) -> int:
    from jaxkern.benchmarking.saved import DIRECTORY, save
    from jaxkern.cli.bench_cases import chosen_cases
    from jaxkern.core.client import start_backend

    names = chosen_cases(chosen.case)
    start_backend()
    results = [_measure(name, chosen.rounds, chosen.baseline) for name in names]
    saved = [
        str(save(arm, chosen.output_dir or DIRECTORY))
        for result in results
        for arm in result.pop("arms", [])
    ]
    timed = [result for result in results if "speedup" in result]
    if chosen.plot is not None and timed:
        from jaxkern.benchmarking.plots import bar_chart

        bar_chart(
            chosen.plot,
            [result["case"] for result in timed],
            [result["speedup"].value for result in timed],
            "Native kernels against pure JAX on this machine",
            "times as fast as pure JAX",
        )
    if chosen.json:
        print_json({"cases": results, "files": saved})
        return 0
    _print(results, judged=chosen.baseline is not None)
    if saved:
        print(f"wrote {len(saved)} measurements to {chosen.output_dir or DIRECTORY}")
    return 0


def _measure(name: str, rounds: int, baseline: Path | None) -> dict[str, Any]:
    from jaxkern.benchmarking import compare
    from jaxkern.benchmarking.saved import compare_to_baseline
    from jaxkern.cli.bench_cases import prepared

    with prepared(name) as case:
        arms = {"jax": case.arm("jax"), "native": case.arm("native")}
        try:
            found = compare(
                arms, *case.args, check="close", rtol=case.rtol, atol=case.atol, rounds=rounds
            )
        except NotImplementedError as error:
            return {"case": name, "problem": str(error)}
    native, jax_arm = (
        dataclasses.replace(found[way], name=f"{name}-{way}") for way in ("native", "jax")
    )
    result = {
        "case": name,
        "checked": found.checked,
        "native_seconds": native.median,
        "jax_seconds": jax_arm.median,
        "values_per_second": case.values / native.median,
        "speedup": found.speedup("native", over="jax"),
        "arms": [native, jax_arm],
    }
    if baseline is not None:
        result["verdict"] = compare_to_baseline(native, baseline)
    return result


def _print(results: list[dict[str, Any]], judged: bool) -> None:
    from jaxkern.benchmarking.samples import MIN_SAMPLES
    from jaxkern.core.quantities import format_duration

    timed = [result for result in results if "speedup" in result]
    # All cases have as many rounds.
    intervals = all(math.isfinite(result["speedup"].low) for result in timed)
    columns = ["case", "native", "pure JAX", "values/s", "times as fast"]
    rows = [
        [
            result["case"],
            format_duration(result["native_seconds"]),
            format_duration(result["jax_seconds"]),
            f"{result['values_per_second']:.3g}",
            str(result["speedup"]),
            *([result["verdict"].outcome] if judged else []),
        ]
        for result in timed
    ]
    if rows:
        title = "Native kernels against pure JAX: medians of interleaved rounds"
        title += ", 95% intervals" if intervals else ""
        print_table(title, columns + (["against the baseline"] if judged else []), rows)
    if not intervals:
        print(f"fewer than {MIN_SAMPLES} rounds: too few for an interval")
    for result in results:
        if "problem" in result:
            print(f"{result['case']}: not timed: {result['problem']}")
        if judged and "verdict" in result and not result["verdict"].same_machine:
            print(f"{result['case']}: the baseline is of another machine")
