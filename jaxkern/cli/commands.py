"""All commands, and those that examine this installation and machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jaxkern.cli import run_doctor
from jaxkern.cli.output import PATH, Command, check_plot, flag, json_option, option, print_json
from jaxkern.cli.pack import pack
from jaxkern.cli.profile import profile
from jaxkern.cli.xpcs import xpcs
from jaxkern.core.version import __version__

CASES = ("image-crops", "image-normalize", "xpcs-g2", "xpcs-normal-equations")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
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
@case_option
@option("--rounds", "N", "Number of rounds.", click.IntRange(1), default=15)
@option("--output-dir", "DIR", "Save measurements here; default ./benchmark-results.", PATH)
@option("--baseline", "DIR", "Compare the native times with the newest ones saved here.", PATH)
@option("--plot", "FILE", "Draw the speedups.", PATH)
@json_option
def bench(
    case: tuple[str, ...],
    rounds: int,
    output_dir: Path | None,
    baseline: Path | None,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Compare the native kernels with pure JAX here, after a check of their values."""
    check_plot(plot)
    import jax

    from jaxkern.benchmarking import compare, compare_to_baseline
    from jaxkern.benchmarking.saved import DIRECTORY, save
    from jaxkern.cli.bench_cases import prepare_case
    from jaxkern.core.backend import backend
    from jaxkern.core.client import start_backend

    start_backend()
    results: list[dict[str, Any]] = []
    files: list[str] = []
    speedups = {}
    for name in case or CASES:
        pure_jax, native = f"{name}-jax", f"{name}-native"
        arms = {}
        with prepare_case(name) as (fn, args, rtol, atol):
            try:
                with backend("jax"):
                    arms[pure_jax] = jax.jit(fn).lower(*args).compile()
                with backend("native"):
                    arms[native] = jax.jit(fn).lower(*args).compile()
            except NotImplementedError as error:
                results.append({"case": name, "problem": str(error)})
                if not as_json:
                    print(f"{name}: not timed: {error}")
                continue
            comparison = compare(arms, *args, check="close", rtol=rtol, atol=atol, rounds=rounds)
        speedups[name] = comparison.speedup(native, over=pure_jax)
        result: dict[str, Any] = {
            "case": name,
            "checked": comparison.checked,
            "native_seconds": comparison[native].median,
            "jax_seconds": comparison[pure_jax].median,
            "speedup": speedups[name],
        }
        if baseline is not None:
            result["verdict"] = compare_to_baseline(comparison[native], baseline)
        results.append(result)
        files += [str(save(arm, output_dir or DIRECTORY)) for arm in comparison.arms.values()]
        if not as_json:
            print(f"{name}: {comparison}")
            if baseline is not None:
                print(f"  against the baseline: {result['verdict']}")
    if plot is not None and speedups:
        from jaxkern.benchmarking.plots import bar_chart

        title = "Native kernels compared with pure JAX on this machine"
        values = [speedup.value for speedup in speedups.values()]
        bar_chart(plot, list(speedups), values, title, "speedup over pure JAX")
    if as_json:
        print_json({"cases": results, "files": files})
    elif files:
        print(f"wrote {len(files)} measurements to {output_dir or DIRECTORY}")
    return 0


@cli.command(cls=Command)
@case_option
@option("--plot", "FILE", "Draw the roofline; several cases each to FILE-CASE.", PATH)
@json_option
def roofline(case: tuple[str, ...], plot: Path | None, as_json: bool) -> int:
    """Compare the package's ops with the measured ceilings of this machine."""
    check_plot(plot)
    from jaxkern.cli.bench_cases import prepare_case
    from jaxkern.core.client import start_backend
    from jaxkern.performance import roofline_analysis

    start_backend()
    results = {}
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
    for name, result in results.items():
        print(f"\n{name}: {result}")
    return 0


@cli.command(cls=Command)
@flag("--measure", "Also measure memory, arithmetic and a kernel.")
@json_option
def device(measure: bool, as_json: bool) -> int:
    """Report the devices, cores and memory that this process may use."""
    from jaxkern.device import benchmark_device_performance, get_device_status

    status = get_device_status()
    performance = benchmark_device_performance() if measure else None
    if as_json:
        figures = performance.as_dict() if performance is not None else None
        print_json({"status": status.as_dict(), "performance": figures})
        return 0
    print(status)
    if performance is not None:
        print(f"\n{performance}")
    return 0
