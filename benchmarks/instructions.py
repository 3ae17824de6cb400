"""Instructions of the main loops: NEON compared with AVX2, per lane.

Times under emulation mean nothing, so this counts instructions with a plugin of QEMU's user mode
(Debian's qemu-user, g++ and g++-aarch64-linux-gnu). One repetition of each loop of
``native/main_loops.cc`` is the difference of two runs. A vector of AVX2 has twice the lanes of one
of NEON, so a ratio per lane is half the ratio of the counts if at least a tenth of x86-64's
instructions use such vectors. The exit status is 1 if a ratio exceeds 1.5.

With ``--check TABLE`` it counts AVX2's instructions only, and the exit status is 1 if a loop takes
over 10% more than in a written table. The emulated CPU is the same on every machine. Counts of
another GCC or QEMU than the table's are not compared.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

NATIVE = Path(__file__).parent / "native"
BUILD = NATIVE.parents[1] / "build" / "instructions"
LIMIT = 1.5
WIDE = 0.1
GROWTH = 1.1
TOOLS = (os.environ.get("CXX", "g++"), "aarch64-linux-gnu-g++", "qemu-x86_64")
CROSS = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
COMPILER = "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"
EMULATORS = {
    "v3": ["qemu-x86_64", "-cpu", "max"],
    "neon": ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
}


def build(level: str) -> Path:
    """Compile the loops for the architecture of a level and return the program."""
    folder = BUILD / level
    options = [*CROSS, COMPILER] if level == "neon" else []
    configure = ["cmake", "-S", NATIVE, "-B", folder, "-DJAXKERN_JPEG=OFF", *options]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    target = ["cmake", "--build", folder, "--target", "main_loops", "--parallel", "2"]
    subprocess.run(target, check=True, stdout=sys.stderr)
    return folder / "main_loops"


def count(plugin: str, program: Path, level: str, case: str) -> np.ndarray:
    """Return the instructions of one repetition of a case, and those that use AVX2's vectors."""
    totals = []
    with tempfile.NamedTemporaryFile("r") as file:
        for repetitions in ("2", "1"):
            environment = {**os.environ, "JAXKERN_SIMD": level, "COUNT_FILE": file.name}
            command = [*EMULATORS[level], "-plugin", plugin, program, case, repetitions]
            subprocess.run(command, check=True, env=environment)
            totals.append(np.loadtxt(file.name))
    return totals[0] - totals[1]


def version(tool: str) -> str:
    """Return a program with its version."""
    text = subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout
    return f"{tool} {re.findall(r'[0-9]+[.][0-9.]+', text)[0]}"


def comparable(table: Path) -> bool:
    """Print a line if a table is of another major version of GCC or QEMU than those here."""
    for tool in (TOOLS[0], TOOLS[2]):
        here = version(tool)
        if f"{here.split('.')[0]}." not in table.read_text():
            print(f"{table.name} has no counts of {here}: instructions are not compared")
            return False
    return True


def check(table: Path, counts: dict[str, float]) -> None:
    """Exit with a list of the loops whose counts exceed those of a table by more than 10%."""
    rows = [line.split("|")[1:3] for line in table.read_text().splitlines() if "|" in line]
    before = {name.strip(): value.strip() for name, value in rows}
    grown = []
    for case, value in counts.items():
        if case not in before:
            grown.append(f"{case} is not in {table.name}: write a new table")
        elif value > GROWTH * float(before[case]) + 0.01:
            grown.append(f"{case}: {value:.2f} instructions a value, {before[case]} in the table")
    print(f"{len(counts)} loops compared with {table.name}")
    if grown:
        raise SystemExit("\n".join(grown))


def main() -> None:
    bench = harness.Benchmark(
        __doc__,
        {
            "filter": {"nargs": "?", "default": "", "help": "part of the names of the cases"},
            "--programs": {
                "nargs": "+",
                "type": Path,
                "metavar": "PROGRAM",
                "help": "main_loops for x86-64 and for ARM, instead of building them",
            },
            "--check": {"type": Path, "metavar": "TABLE", "help": "compare with a written table"},
        },
    )
    table = bench.options.check
    if table and not comparable(table):
        return
    levels = ["v3"] if table else list(EMULATORS)
    programs = bench.options.programs or [build(level) for level in levels]
    BUILD.mkdir(parents=True, exist_ok=True)
    plugin = str(BUILD / "count_instructions.so")
    source = NATIVE / "count_instructions.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", plugin], check=True)
    listed = subprocess.run([programs[0]], check=True, capture_output=True, text=True).stdout
    cases = [line.split("\t") for line in listed.splitlines() if bench.options.filter in line]
    if table:
        counts = {
            case: float(count(plugin, programs[0], "v3", case)[0]) / int(values)
            for case, values in cases
        }
        return check(table, counts)
    plugin += ",vectors=on"
    rows, worst = [], 0.0
    for case, values in harness.progress(cases, "loops"):
        (v3, wide), (neon, _) = (
            count(plugin, program, level, case) / int(values)
            for level, program in zip(EMULATORS, programs, strict=True)
        )
        lanes = 2 if wide >= WIDE * v3 else 1
        ratio = neon / v3 / lanes
        worst = max(worst, ratio)
        rows.append([case, f"{v3:.2f}", f"{neon:.2f}", str(lanes), f"{ratio:.2f}"])
    header = "loop | AVX2: instructions a value | NEON | lanes, AVX2 / NEON | NEON / AVX2 per lane"
    note = (
        f"{', '.join(map(version, TOOLS))}. The largest ratio is {worst:.2f}; the limit is {LIMIT}."
    )
    bench.write(harness.table(header, "lrrrr", rows), note=note)
    if worst > LIMIT:
        raise SystemExit(f"a ratio per lane is {worst:.2f}; expected at most {LIMIT}")


if __name__ == "__main__":
    main()
