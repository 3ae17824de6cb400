"""Runs all benchmarks that this machine supports: ``make bench-all``.

    python benchmarks/run.py                        # writes benchmarks/results/<date>-<machine>.*
    python benchmarks/run.py --quick --only ops     # a short run, writes to ./benchmark-results

With ``--only``, the results of other benchmarks are copied from an earlier run on the same day with
the same versions.

Each benchmark is a separate program that writes its own files. This one runs them, combines their
tables with the timings of the ops in one page, and lists skipped benchmarks with the reasons.
"""

from __future__ import annotations

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
    """A benchmark: its commands; the last one prints the table.

    Attributes:
      quick: True if it supports ``--quick``; others are skipped in a quick run.
      problem: returns the reason why it cannot run here, or None.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    quick: bool = True
    problem: Callable[[], str | None] = lambda: None


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / f"{name}.py"), *arguments)


_BUILD = (("cmake", "-S", str(HERE / "native"), "-B", str(NATIVE)),
          ("cmake", "--build", str(NATIVE), "-j", "2"))  # fmt: skip


def _step(script: str, **options: Any) -> Step:
    return Step(script.replace("_", "-"), (_script(script),), **options)


def _native(name: str, binary: str, record: str, script: str, *arguments: str) -> Step:
    path = str(NATIVE / record)
    commands = (*_BUILD, (str(NATIVE / binary), "--json", path), _script(script, *arguments, path))
    return Step(name, commands, quick=False, problem=_no_compiler)


STEPS = (
    *map(_step, (
        "image_augment", "image_policies", "plain_calls", "overheads", "allocator", "execution",
        "ring_batches", "file_batches", "open_files", "packed_files", "token_packing",
        "mixtures", "chosen_workers", "xpcs_kernels", "xpcs_fits", "xpcs_errors",
        "xpcs_fit_checks", "xpcs_streaming", "xpcs_correlators", "xpcs_growth",
        "xpcs_cpu",
    )),
    _native("native", "bench_image", "native.json", "native", "image"),
    _native("xpcs-native", "bench_xpcs", "native-xpcs.json", "native", "xpcs"),
    _native("ring-handover", "bench_ring", "native-ring.json", "ring_handover"),
    *(
        Step(f"gpu-{kind}", (_script("gpu", kind),), quick=False, problem=_no_gpu)
        for kind in ("image", "xpcs")
    ),
)  # fmt: skip


def peers() -> tuple[dict[str, str], list[str]]:
    """Return the versions of the installed libraries of peers.txt, and the missing ones."""
    installed, missing = {}, []
    lines = (HERE / "peers.txt").read_text().splitlines()
    names = [re.split(r"[=<>;\s]", line, maxsplit=1)[0] for line in lines if line[:1].isalpha()]
    for name in [*names, "torchvision"]:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    return installed, missing


def _without_paths(text: str) -> str:
    """Remove the directories of this clone and of its Python environment from a text."""
    return text.replace(f"{HERE.parent.resolve()}/", "").replace(f"{sys.prefix}/", "")


def ops(rounds: int, folder: Path, plot: Path) -> dict[str, Any]:
    """Compare native ops with pure JAX by ``python -m jaxkern bench``."""
    # -P: the installed package, not the source tree of the working directory.
    command = [sys.executable, "-P", "-m", "jaxkern", "bench", "--json", "--rounds", str(rounds)]
    command += ["--output-dir", str(folder), "--plot", str(plot)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        return {"outcome": "failed", "output": _without_paths(process.stderr)[-2000:]}
    return {"outcome": "done", "cases": json.loads(process.stdout)["cases"]}


def run(step: Step, quick: bool) -> dict[str, Any]:
    """Run the commands of a step; return the outcome and the files that it wrote."""
    problem = step.problem()
    if problem is None and quick and not step.quick:
        problem = "it does not support --quick"
    if problem is not None:
        return {"outcome": "skipped", "why": problem}
    start, stamp = time.perf_counter(), time.time()
    for command in step.commands:
        last = command is step.commands[-1]
        process = subprocess.run(
            [*command, *(["--quick"] if quick and last else [])], capture_output=True, text=True
        )
        if process.returncode != 0:
            output = _without_paths(process.stdout + process.stderr)[-2000:]
            shown = [_without_paths(word) for word in command]
            return {"outcome": "failed", "command": shown, "output": output}
    written = sorted(p.name for p in harness.RESULTS.iterdir() if p.stat().st_mtime >= stamp)
    return {
        "outcome": "done",
        "seconds": round(time.perf_counter() - start, 1),
        "output": _without_paths(process.stdout),
        "files": written,
    }


def markdown(record: dict[str, Any], plot: Path) -> str:
    """Return a page with the ops, the table of each benchmark, and missing libraries."""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [f"# Benchmarks on {record['machine']['cpu']}, {record['machine']['cores']} cores", ""]
    lines += [f"{record['date']}; {versions}.", "", "## Native ops against pure JAX", ""]
    rows = []
    for case in record["ops"].get("cases", []):
        if "problem" in case:
            rows.append((case["case"], f"not timed: {case['problem']}", "", ""))
            continue
        native, theirs = (f"{1e3 * case[key]:.3g}" for key in ("native_seconds", "jax_seconds"))
        x = case["speedup"]
        ratio = f"{x['value']:.3g} ({x['low']:.3g} to {x['high']:.3g})"
        rows.append((case["case"], native, theirs, ratio))
    header = "op | native, ms | pure JAX, ms | times as fast (95% interval)"
    lines += harness.table(header, "lrrr", rows)
    if plot.exists():
        lines += ["", f"![Native ops against pure JAX]({plot.name})"]
    steps = {"": record["ops"], **record["steps"]}
    for name, step in steps.items():
        lines += ["", f"## {name}", ""] if name else []
        if step["outcome"] == "failed":
            lines += ["Failed:", "", "```", step["output"].strip(), "```"]
        elif not name:
            continue
        elif step["outcome"] == "skipped":
            lines += [f"Skipped: {step['why']}."]
        elif files := [f for f in step["files"] if f.endswith(".md")]:
            for file in files:
                body = (harness.RESULTS / file).read_text()
                lines += [re.sub(r"^#+ ", "### ", body, flags=re.MULTILINE).strip()]
        else:
            lines += ["```", step["output"].strip(), "```"]
    missing = ", ".join(record["missing_peers"]) or "None"
    return "\n".join([*lines, "", "## Libraries that are not installed", "", f"{missing}.", ""])


def main() -> None:
    names = ["ops", *(step.name for step in STEPS)]
    options = harness.parse(
        __doc__, ("--only", {"action": "append", "metavar": "NAME", "choices": names})
    )
    folder = harness.RAW if options.quick else harness.RESULTS
    folder.mkdir(exist_ok=True)
    harness.RAW.mkdir(exist_ok=True)
    where = environment()
    machine = where["machine"]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['cores']}-core".lower())
    page = folder / f"{datetime.date.today():%Y-%m-%d}-{slug.strip('-')}.md"
    raw, plot = harness.RAW / f"{page.stem}.json", page.with_suffix(".png")
    installed, missing = peers()
    chosen = options.only or names
    record: dict[str, Any] = {
        "date": f"{datetime.date.today():%Y-%m-%d}",
        "machine": machine,
        "versions": where["versions"],
        "peers": installed,
        "missing_peers": missing,
        "ops": {"outcome": "skipped", "why": "not in --only"},
        "steps": {},
    }
    if options.only and raw.exists():
        earlier = json.loads(raw.read_text())
        if all(earlier[part] == record[part] for part in ("machine", "versions", "peers")):
            record |= {"ops": earlier["ops"], "steps": earlier["steps"]}
    if "ops" in chosen:
        print("ops: ", end="", flush=True)
        record["ops"] = ops(5 if options.quick else 25, harness.RAW, plot)
        print(record["ops"]["outcome"], flush=True)
    for step in STEPS:
        if step.name in chosen:
            print(f"{step.name}: ", end="", flush=True)
            record["steps"][step.name] = result = run(step, options.quick)
            print(result["outcome"], result.get("why", ""), flush=True)
    for name in missing:
        print(f"not installed: {name}")
    raw.write_text(json.dumps(record, indent=1) + "\n")
    page.write_text(markdown(record, plot))
    print(f"wrote {page} and {raw}")
    failed = [name for name, step in record["steps"].items() if step["outcome"] == "failed"]
    if failed or record["ops"]["outcome"] == "failed":
        raise SystemExit(f"failed: {', '.join(failed) or 'ops'}; see {page.name}")


if __name__ == "__main__":
    main()
