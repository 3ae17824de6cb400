"""``roofline``: the package's ops against what this machine can do at best."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxkern.cli.output import print_json, print_table


def add_parser(commands: Any) -> None:
    about = "set the package's ops against this machine's measured ceilings"
    parser = commands.add_parser("roofline", help=about, description=about)
    parser.add_argument("--case", action="append", metavar="NAME", help="only this; repeatable")
    parser.add_argument("--plot", type=Path, metavar="FILE",
                        help="draw the roofline; of several cases FILE-CASE each")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(chosen: argparse.Namespace) -> int:
    from jaxkern.cli.bench_cases import chosen_cases, prepared
    from jaxkern.core.client import start_backend
    from jaxkern.performance import roofline_analysis

    names = chosen_cases(chosen.case)
    start_backend()
    found: dict[str, Any] = {}
    for name in names:
        with prepared(name) as case:
            found[name] = roofline_analysis(case.fn, *case.args)
    if chosen.plot is not None:
        chosen.plot.parent.mkdir(parents=True, exist_ok=True)
        for name, result in found.items():
            plot: Path = chosen.plot
            result.plot(plot if len(found) == 1 else plot.with_stem(f"{plot.stem}-{name}"))
    if chosen.json:
        print_json({"cases": {name: result.as_dict() for name, result in found.items()}})
        return 0
    print(next(iter(found.values())).ceilings)
    columns = ["case", "time", "flop/byte", "GFLOP/s", "GB/s", "bound by", "of the ceiling"]
    print_table("The package's ops under these ceilings", columns, [
        _row(name, result) for name, result in found.items()
    ])  # fmt: skip
    for name, result in found.items():
        for note in result.notes:
            print(f"{name}: {note}")
    return 0


def _row(name: str, result: Any) -> list[str]:
    from jaxkern.core.quantities import format_duration

    def figure(value: float | None, scale: float = 1.0) -> str:
        return "unknown" if value is None else f"{value / scale:.3g}"

    rates = [None if x is None else x / result.time for x in (result.flops, result.bytes)]
    share = result.efficiency
    return [
        name,
        format_duration(result.time),
        figure(result.intensity),
        figure(rates[0], 1e9),
        figure(rates[1], 1e9),
        result.bottleneck or "unknown",
        "unknown" if share is None else f"{100 * share:.3g}%",
    ]
