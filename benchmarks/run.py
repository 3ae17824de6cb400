"""Runs all benchmarks that this machine supports: ``make bench-all``.

    python benchmarks/run.py                        # writes benchmarks/results/<date>-<machine>.md
    python benchmarks/run.py --quick --only ops     # a short run, writes to ./benchmark-results

Each benchmark is a separate program that writes its own files. This one runs them, combines their
tables in one page, and lists skipped benchmarks with the reasons.
"""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import harness
import jax

from jaxkern.benchmarking import environment
from jaxkern.benchmarking.measurement import conditions

# The other programs, which have a step each; native.py has one for each kind.
PROGRAMS = sorted(
    path.stem
    for path in harness.HERE.glob("*.py")
    if "__main__" in path.read_text() and path.stem not in ("run", "native")
)
EMULATION = ("aarch64-linux-gnu-g++", "qemu-aarch64", "qemu-x86_64", "cmake")
# Parts of the names of steps -> commands that they need.
COMMANDS = {"native": ("cmake",), "instructions": EMULATION}


def script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(harness.HERE / f"{name}.py"), *arguments]


def native(kind: str) -> list[list[str]]:
    build = Path("build/bench")
    return [
        ["cmake", "-S", str(harness.HERE / "native"), "-B", str(build)],
        ["cmake", "--build", str(build), "-j", "2"],
        script("native", kind, str(build / f"bench_{kind}")),
    ]


# Name of a step -> commands, of which the last one prints the table.
STEPS = {
    # -P: the installed package, not the source tree of the working directory.
    "ops": [[sys.executable, "-P", "-m", "jaxkern", "bench", "--output-dir", str(harness.RAW)]],
    **{name.replace("_", "-"): [script(name)] for name in PROGRAMS},
    **{f"native-{kind}": native(kind) for kind in ("image", "xpcs", "ring")},
}


def missing(name: str) -> str:
    """Return what a step needs and this machine lacks."""
    if name == "gpu" and jax.default_backend() != "gpu":
        return "a GPU"
    if name == "free-threads" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded Python"
    needed = [command for part, all_ in COMMANDS.items() if part in name for command in all_]
    return ", ".join(command for command in needed if not shutil.which(command))


def run(name: str, quick: bool) -> tuple[str, list[str]]:
    """Run the commands of a step; return its outcome and its lines of the page."""
    if lacking := missing(name):
        return "skipped", [f"Skipped: needs {lacking}."]
    start, (*before, last) = time.time(), STEPS[name]
    shorter = ["--rounds", "5"] if name == "ops" else ["--quick"]
    for command in [*before, [*last, *(shorter if quick else ())]]:
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            output = (process.stdout + process.stderr).strip()[-2000:]
            return "failed", ["Failed:", "", "```", output, "```"]
    written = sorted(p for p in harness.RESULTS.glob("*.md") if p.stat().st_mtime >= start)
    bodies = [re.sub(r"^#+ ", "### ", p.read_text(), flags=re.MULTILINE) for p in written]
    return "done", bodies or ["```", process.stdout.strip(), "```"]


def main() -> None:
    only = {"action": "append", "metavar": "NAME", "choices": STEPS}
    bench = harness.Benchmark(__doc__, {"--only": only})
    where = environment()
    machine = f"{where['machine']['cpu']}, {where['machine']['cores']} cores"
    lines, failed = [f"# Benchmarks on {machine}", "", f"{conditions(where)}.", ""], []
    for name in bench.options.only or STEPS:
        print(f"{name}: ", end="", flush=True)
        outcome, body = run(name, bench.quick)
        print(outcome, flush=True)
        lines += [f"## {name}", "", *body, ""]
        failed += [name] if outcome == "failed" else []
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    folder = harness.RAW if bench.quick else harness.RESULTS
    page = folder / f"{datetime.date.today():%Y-%m-%d}-{slug}.md"
    folder.mkdir(exist_ok=True)
    # The directories of this clone and of its Python environment are not part of the results.
    text = "\n".join(lines).replace(f"{harness.HERE.parent}/", "").replace(f"{sys.prefix}/", "")
    page.write_text(text)
    print(f"wrote {page}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; see {page.name}")


if __name__ == "__main__":
    main()
