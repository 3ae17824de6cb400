"""Writes the results of the native XPCS benchmark under benchmarks/results/.

    python benchmarks/xpcs_native.py build/bench/native-xpcs.json

``make bench-native`` runs it after the benchmark itself, which needs neither Python nor XLA.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import harness


def main(native: Path) -> None:
    rows = json.loads(native.read_text())["rows"]
    lines = [
        "| case | level | threads | ns a point | Mpoints/s | share of the ceiling |",
        "|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        "| {case} | {level} | {threads} | {ns_per_point:.3f} | {million_points_per_second:,.0f} "
        "| {share_of_ceiling:.0%} |".format(**row)
        for row in rows
    ]
    title = "Native XPCS kernels, without Python or XLA"
    harness.write("xpcs-native", title, "\n".join(lines), {"rows": rows}, note="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
