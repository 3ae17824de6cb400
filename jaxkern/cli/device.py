"""``device``: what this process may use, and with ``--measure`` what it can do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxkern.cli.output import print_json, print_table


def add_parser(commands: Any) -> None:
    about = "tell which devices, cores and memory this process may use"
    parser = commands.add_parser("device", help=about, description=about)
    parser.add_argument("--measure", action="store_true",
                        help="also measure memory, arithmetic and a kernel")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw what --measure found")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(chosen: argparse.Namespace) -> int:
    from jaxkern.device import benchmark_device_performance, get_device_status

    status = get_device_status()
    measured = benchmark_device_performance() if chosen.measure or chosen.plot else None
    if chosen.plot is not None and measured is not None:
        from jaxkern.benchmarking.plots import bar_chart

        bar_chart(
            chosen.plot,
            ["most at its intensity", "two-time g2"],
            [measured.ceiling / 1e9, measured.flops_per_second / 1e9],
            f"Two-time g2 of {measured.size} frames under this machine's ceilings",
            "GFLOP/s",
        )
    if chosen.json:
        performance = measured.as_dict() if measured is not None else None
        print_json({"status": status.as_dict(), "performance": performance})
        return 0
    columns = ["device", "platform", "process", "memory, GiB", "in use, GiB"]
    rows = [
        [
            f"{device.kind} {device.id}",
            device.platform,
            str(device.process_index),
            _gib(device.memory_bytes),
            _gib(device.memory_in_use_bytes),
        ]
        for device in status.devices
    ]
    print_table("JAX's devices", columns, rows)
    print(status)
    if measured is not None:
        print(f"\n{measured}")
    return 0


def _gib(size: int | None) -> str:
    return "not told" if size is None else f"{size / 2**30:.2f}"
