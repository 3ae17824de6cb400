"""All commands, and those that examine this installation and machine."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import click

from jaxkern.cli import run_doctor
from jaxkern.cli.bench_cases import CASES, prepare_case
from jaxkern.cli.output import (
    PATH,
    Command,
    check_output,
    combine,
    flag,
    json_option,
    option,
    print_json,
    print_table,
)
from jaxkern.cli.pack import pack
from jaxkern.cli.profile import profile
from jaxkern.cli.xpcs import xpcs


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Native kernels for JAX."""


cli.add_command(pack)
cli.add_command(profile)
cli.add_command(xpcs)
case_option = option("--case", "NAME", "Only this; repeatable.", click.Choice(CASES), multiple=True)


@cli.command(cls=Command)
@json_option
def doctor(as_json: bool) -> int:
    """Report which kernels are used here, and why.

    Exits with 1 if the default platform runs an op in pure JAX.
    """
    return run_doctor(as_json)


@cli.command(cls=Command)
@combine(
    case_option,
    option("--rounds", "N", "Number of rounds.", default=15),
    option("--output-dir", "DIR", "Save measurements here; default ./benchmark-results.", PATH),
    option("--baseline", "DIR", "Compare the native times with the newest ones saved here.", PATH),
    option("--plot", "FILE", "Draw the speedups.", PATH),
    json_option,
)
def bench(
    case: tuple[str, ...],
    rounds: int,
    output_dir: Path | None,
    baseline: Path | None,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Compare the native kernels with pure JAX here, after a check of their values."""
    check_output(not as_json, plot)
    from jaxkern.benchmarking.saved import DIRECTORY, save
    from jaxkern.core.client import start_backend

    start_backend()
    results = [_measure_case(name, rounds, baseline) for name in case or CASES]
    directory = output_dir or DIRECTORY
    saved = [str(save(arm, directory)) for result in results for arm in result.pop("arms", [])]
    timed = [result for result in results if "speedup" in result]
    if plot is not None and timed:
        from jaxkern.benchmarking.plots import bar_chart

        bar_chart(
            plot,
            [result["case"] for result in timed],
            [result["speedup"].value for result in timed],
            "Native kernels compared with pure JAX on this machine",
            "speedup over pure JAX",
        )
    if as_json:
        print_json({"cases": results, "files": saved})
        return 0
    _print_cases(results, timed, has_baseline=baseline is not None)
    if saved:
        print(f"wrote {len(saved)} measurements to {directory}")
    return 0


def _measure_case(name: str, rounds: int, baseline: Path | None) -> dict[str, Any]:
    from jaxkern.benchmarking import compare, compare_to_baseline

    with prepare_case(name) as case:
        arms = {"jax": case.arm("jax"), "native": case.arm("native")}
        try:
            comparison = compare(
                arms, *case.args, check="close", rtol=case.rtol, atol=case.atol, rounds=rounds
            )
        except NotImplementedError as error:
            return {"case": name, "problem": str(error)}
    native, pure_jax = (
        dataclasses.replace(comparison[arm], name=f"{name}-{arm}") for arm in ("native", "jax")
    )
    result = {
        "case": name,
        "checked": comparison.checked,
        "native_seconds": native.median,
        "jax_seconds": pure_jax.median,
        "values_per_second": case.values / native.median,
        "speedup": comparison.speedup("native", over="jax"),
        "arms": [native, pure_jax],
    }
    if baseline is not None:
        result["verdict"] = compare_to_baseline(native, baseline)
    return result


def _print_cases(
    results: list[dict[str, Any]], timed: list[dict[str, Any]], has_baseline: bool
) -> None:
    from jaxkern.benchmarking.measurement import MIN_SAMPLES
    from jaxkern.core.quantities import format_duration

    # All cases have the same number of rounds.
    intervals = all(math.isfinite(result["speedup"].low) for result in timed)
    columns = ["case", "native", "pure JAX", "values/s", "speedup"]
    rows = [
        [
            result["case"],
            format_duration(result["native_seconds"]),
            format_duration(result["jax_seconds"]),
            f"{result['values_per_second']:.3g}",
            str(result["speedup"]),
            *([result["verdict"].outcome] if has_baseline else []),
        ]
        for result in timed
    ]
    if rows:
        title = "Native kernels compared with pure JAX: medians of interleaved rounds"
        title += ", 95% intervals" if intervals else ""
        print_table(title, columns + (["against the baseline"] if has_baseline else []), rows)
    if not intervals:
        print(f"fewer than {MIN_SAMPLES} rounds: too few for an interval")
    for result in results:
        if "problem" in result:
            print(f"{result['case']}: not timed: {result['problem']}")
        if "verdict" in result and not result["verdict"].same_machine:
            print(f"{result['case']}: the baseline was measured on another machine")


@cli.command(cls=Command)
@combine(
    case_option,
    option("--plot", "FILE", "Draw the roofline; several cases each to FILE-CASE.", PATH),
    json_option,
)
def roofline(case: tuple[str, ...], plot: Path | None, as_json: bool) -> int:
    """Compare the package's ops with the measured ceilings of this machine."""
    check_output(not as_json, plot)
    from jaxkern.core.client import start_backend
    from jaxkern.performance import Roofline, roofline_analysis

    start_backend()
    results: dict[str, Roofline] = {}
    for name in case or CASES:
        with prepare_case(name) as prepared:
            results[name] = roofline_analysis(prepared.fn, *prepared.args)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        for name, result in results.items():
            result.plot(plot if len(results) == 1 else plot.with_stem(f"{plot.stem}-{name}"))
    if as_json:
        print_json({"cases": {name: result.as_dict() for name, result in results.items()}})
        return 0
    print(next(iter(results.values())).ceilings)
    columns = ["case", "time", "flop/byte", "GFLOP/s", "GB/s", "bound by", "of the ceiling"]
    rows = [_roofline_row(name, result) for name, result in results.items()]
    print_table("The package's ops under these ceilings", columns, rows)
    for name, result in results.items():
        for note in result.notes:
            print(f"{name}: {note}")
    return 0


def _roofline_row(name: str, result: Any) -> list[str]:
    from jaxkern.core.quantities import format_duration

    def figure(value: float | None, scale: float = 1.0, suffix: str = "") -> str:
        return "unknown" if value is None else f"{value / scale:.3g}{suffix}"

    flops, moved = (None if x is None else x / result.time for x in (result.flops, result.bytes))
    return [
        name,
        format_duration(result.time),
        figure(result.intensity),
        figure(flops, 1e9),
        figure(moved, 1e9),
        result.bottleneck,
        figure(result.efficiency, 0.01, "%"),
    ]


@cli.command(cls=Command)
@combine(
    flag("--measure", "Also measure memory, arithmetic and a kernel."),
    option("--plot", "FILE", "Draw the results of --measure.", PATH),
    json_option,
)
def device(measure: bool, plot: Path | None, as_json: bool) -> int:
    """Report the devices, cores and memory that this process may use."""
    check_output(has_table=False, plot=plot)
    from jaxkern.device import benchmark_device_performance, get_device_status

    status = get_device_status()
    performance = benchmark_device_performance() if measure or plot else None
    if plot is not None and performance is not None:
        from jaxkern.benchmarking.plots import bar_chart

        bar_chart(
            plot,
            ["ceiling at its intensity", "two-time g2"],
            [performance.ceiling / 1e9, performance.flops_per_second / 1e9],
            f"Two-time g2 of {performance.size} frames under this machine's ceilings",
            "GFLOP/s",
        )
    if as_json:
        figures = performance.as_dict() if performance is not None else None
        print_json({"status": status.as_dict(), "performance": figures})
        return 0
    print(status)
    if performance is not None:
        print(f"\n{performance}")
    return 0
