"""Every benchmark that this machine allows, one after the other: ``make bench-all``.

    python benchmarks/run.py                        # writes benchmarks/results/<date>-<machine>.*
    python benchmarks/run.py --quick --only ops     # few rounds, writes to ./benchmark-results

What ``--only`` leaves out stays in the page as it was if that is of this day and these versions.

Each benchmark is a program of its own and writes its own files. This one runs them, puts their
tables into one file beside the figures of the ops, and says by name what was left out and why.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import harness

from jaxkern.benchmarking import environment

HERE = Path(__file__).parent
NATIVE = Path("build/bench")


def _no_gpu() -> str | None:
    import jax

    return None if jax.default_backend() == "gpu" else "JAX has no GPU here"


def _no_compiler() -> str | None:
    return None if shutil.which("cmake") else "cmake is not installed"


@dataclasses.dataclass(frozen=True)
class Step:
    """A benchmark: its commands, of which the last one prints the table.

    Attributes:
      quick: whether it has a ``--quick`` that writes nothing; the others are left out of a quick
        run.
      problem: why it cannot run here; None where it can.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    quick: bool = True
    problem: Callable[[], str | None] = lambda: None


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / f"{name}.py"), *arguments)


_BUILD = (("cmake", "-S", str(HERE / "native"), "-B", str(NATIVE)),
          ("cmake", "--build", str(NATIVE), "-j", "2"))  # fmt: skip


def _native(name: str, script: str, binary: str, record: str) -> Step:
    path = str(NATIVE / record)
    commands = (*_BUILD, (str(NATIVE / binary), "--json", path), _script(script, path))
    return Step(name, commands, quick=False, problem=_no_compiler)


STEPS = (
    Step("image-augment", (_script("image_augment"),)),
    Step("image-policies", (_script("image_policies"),)),
    Step("plain-calls", (_script("plain_calls"),)),
    Step("overheads", (_script("overheads"),)),
    Step("allocator", (_script("allocator"),)),
    Step("execution", (_script("execution"),)),
    Step("ring-batches", (_script("ring_batches"),)),
    Step("file-batches", (_script("file_batches"),)),
    Step("open-files", (_script("open_files"),)),
    Step("packed-files", (_script("packed_files"),)),
    Step("token-packing", (_script("token_packing"),)),
    Step("mixtures", (_script("mixtures"),)),
    Step("chosen-workers", (_script("chosen_workers"),)),
    Step("xpcs-kernels", (_script("xpcs_kernels"),)),
    Step("xpcs-fits", (_script("xpcs_fits"),)),
    Step("xpcs-errors", (_script("xpcs_errors"),)),
    Step("xpcs-fit-checks", (_script("xpcs_fit_checks"),)),
    Step("xpcs-streaming", (_script("xpcs_streaming"),)),
    Step("xpcs-correlators", (_script("xpcs_correlators"),)),
    Step("xpcs-growth", (_script("xpcs_growth"),)),
    Step("xpcs-cpu", (_script("xpcs_cpu"),), quick=False),
    _native("native", "ffi_overhead", "bench_image", "native.json"),
    _native("xpcs-native", "xpcs_native", "bench_xpcs", "native-xpcs.json"),
    _native("ring-handover", "ring_handover", "bench_ring", "native-ring.json"),
    Step("gpu-image", (_script("gpu_image"),), quick=False, problem=_no_gpu),
    Step("gpu-xpcs", (_script("gpu_xpcs"),), quick=False, problem=_no_gpu),
)


def peers() -> tuple[dict[str, str], list[str]]:
    """The other libraries that peers.txt names: versions of the installed ones, and the missing."""
    there, missing = {}, []
    lines = (HERE / "peers.txt").read_text().splitlines()
    names = [re.split(r"[=<>;\s]", line, maxsplit=1)[0] for line in lines if line[:1].isalpha()]
    for name in [*names, "torchvision"]:
        try:
            there[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    return there, missing


def _placeless(text: str) -> str:
    """Text without the folders of this clone and of its Python: they are nobody else's."""
    return text.replace(f"{HERE.parent.resolve()}/", "").replace(f"{sys.prefix}/", "")


def ops(rounds: int, folder: Path, plot: Path) -> dict[str, Any]:
    """Native ops against pure JAX by ``python -m jaxkern bench``."""
    # -P: the installed package, not the source tree of the working directory.
    command = [sys.executable, "-P", "-m", "jaxkern", "bench", "--json", "--rounds", str(rounds)]
    command += ["--output-dir", str(folder), "--plot", str(plot)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"outcome": "failed", "output": _placeless(done.stderr)[-2000:]}
    return {"outcome": "done", "cases": json.loads(done.stdout)["cases"]}


def run(step: Step, quick: bool) -> dict[str, Any]:
    """Runs a step's commands; the record says how it went, with the files that it wrote."""
    problem = step.problem()
    if problem is None and quick and not step.quick:
        problem = "it has no quick form"
    if problem is not None:
        return {"outcome": "left out", "why": problem}
    began, stamp = time.perf_counter(), time.time()
    for command in step.commands:
        last = command is step.commands[-1]
        done = subprocess.run(
            [*command, *(["--quick"] if quick and last else [])], capture_output=True, text=True
        )
        if done.returncode != 0:
            said = _placeless(done.stdout + done.stderr)[-2000:]
            shown = [_placeless(word) for word in command]
            return {"outcome": "failed", "command": shown, "output": said}
    written = sorted(p.name for p in harness.RESULTS.iterdir() if p.stat().st_mtime >= stamp)
    return {
        "outcome": "done",
        "seconds": round(time.perf_counter() - began, 1),
        "output": _placeless(done.stdout),
        "files": written,
    }


def markdown(record: dict[str, Any], plot: Path) -> str:
    """One page: the ops, then each benchmark's own table, then what is missing."""
    cores, versions = record["machine"]["cores"], record["versions"]
    lines = [f"# Benchmarks on {record['machine']['cpu']}, {cores} cores", ""]
    lines += [f"{record['date']}; " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".", ""]
    lines += ["## Native ops against pure JAX", ""]
    cases = record["ops"].get("cases", [])
    if cases:
        lines += ["| op | native, ms | pure JAX, ms | times as fast (95% interval) |"]
        lines += ["|---|--:|--:|--:|"]
    for case in cases:
        if "problem" in case:
            lines += [f"| {case['case']} | not timed: {case['problem']} | | |"]
            continue
        native, theirs = (1e3 * case[key] for key in ("native_seconds", "jax_seconds"))
        x = case["speedup"]
        lines += [f"| {case['case']} | {native:.3g} | {theirs:.3g} | "
                  f"{x['value']:.3g} ({x['low']:.3g} to {x['high']:.3g}) |"]  # fmt: skip
    if plot.exists():
        lines += ["", f"![Native ops against pure JAX]({plot.name})"]
    if record["ops"]["outcome"] == "failed":
        lines += ["failed:", "", "```", record["ops"]["output"].strip(), "```"]
    for name, step in record["steps"].items():
        lines += ["", f"## {name}", ""]
        if step["outcome"] == "left out":
            lines += [f"Left out: {step['why']}."]
        elif step["outcome"] == "failed":
            lines += ["Failed:", "", "```", step["output"].strip(), "```"]
        elif files := [f for f in step["files"] if f.endswith(".md")]:
            for file in files:
                body = (harness.RESULTS / file).read_text()
                lines += [re.sub(r"^#+ ", "### ", body, flags=re.MULTILINE).strip()]
        else:
            lines += ["```", step["output"].strip(), "```"]
    lines += ["", "## Missing peers", ""]
    lines += [", ".join(record["missing_peers"]) + "." if record["missing_peers"] else "None."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, to ./benchmark-results")
    parser.add_argument("--only", action="append", metavar="NAME",
                        choices=["ops", *(step.name for step in STEPS)])  # fmt: skip
    options = parser.parse_args()
    folder = Path("benchmark-results") if options.quick else harness.RESULTS
    folder.mkdir(exist_ok=True)
    where = environment()
    machine = where["machine"]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['cores']}-core".lower())
    path = folder / f"{datetime.date.today():%Y-%m-%d}-{slug.strip('-')}.json"
    plot = path.with_suffix(".png")
    there, missing = peers()
    expected = options.only or ["ops", *(step.name for step in STEPS)]
    record: dict[str, Any] = {
        "date": f"{datetime.date.today():%Y-%m-%d}",
        "machine": machine,
        "versions": where["versions"],
        "peers": there,
        "missing_peers": missing,
        "ops": {"outcome": "left out", "why": "--only names others"},
        "steps": {},
    }
    if options.only and path.exists():
        kept = json.loads(path.read_text())
        if all(kept[part] == record[part] for part in ("machine", "versions", "peers")):
            record |= {"ops": kept["ops"], "steps": kept["steps"]}
    if "ops" in expected:
        print("ops: ", end="", flush=True)
        record["ops"] = ops(5 if options.quick else 25, Path("benchmark-results"), plot)
        print(record["ops"]["outcome"], flush=True)
    for step in STEPS:
        if step.name in expected:
            print(f"{step.name}: ", end="", flush=True)
            record["steps"][step.name] = found = run(step, options.quick)
            print(found["outcome"], found.get("why", ""), flush=True)
    for name in missing:
        print(f"missing peer: {name}")
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(record, plot))
    print(f"wrote {path} and {path.with_suffix('.md').name}")
    failed = [name for name, step in record["steps"].items() if step["outcome"] == "failed"]
    if failed or record["ops"]["outcome"] == "failed":
        raise SystemExit(f"failed: {', '.join(failed) or 'ops'}; the page says how")


if __name__ == "__main__":
    main()
