"""`make gpu-check` without a GPU.

Would catch: a test for GPUs that cannot be collected, an op that is neither checked nor timed, and
a results page that is lost when a step fails or the time is up.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import jaxkern as jk
from jaxkern.core import compat, registry

ROOT = Path(__file__).parents[2]


def test_gpu_tests_are_collected(tmp_path: Path) -> None:
    folder = str(ROOT / "tests" / "gpu")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", f"--confcutdir={folder}"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT / "tests")]
    command += ["-o", f"pythonpath={folder}", "-p", "no:cacheprovider", folder]
    # The installed package, not the sources.
    environment = os.environ | {"JAXKERN_TEST_PLATFORM": "cpu", "PYTHONSAFEPATH": "1"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    files = set(re.findall(r"gpu/(test_\w+)\.py::", run.stdout))
    assert files == {path.stem for path in (ROOT / "tests/gpu").glob("test_*.py")}


def check(
    page: Path, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/gpu-check", "--dry-run", "--installed"]
    command += ["--results", str(page), *arguments]
    environment = os.environ | {"PYTHON": python}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_page_is_written_when_the_time_is_up(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\n[ $1 = -u ] && exec sleep 60\nexit 1\n")
    sleeper.chmod(0o755)
    assert check(page, "--seconds", "3", python=str(sleeper)).returncode == 1
    text = page.read_text()
    assert re.search(r"\| versions \| \*\*stopped\*\* after [1-3] s \|", text)
    assert "| tests | skipped: versions failed |" in text


@pytest.mark.slow
def test_a_dry_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    run = check(page, "--cases", "^(g2|MixUp, f32)$", "--tests", "single_points")
    assert run.returncode == 0, run.stdout + run.stderr
    text = page.read_text()
    for step in ("versions", "values of every op", "times of every op", "tests"):
        assert f"| {step} | passed |" in text
    assert len(re.findall(r"^\| g2 \| [\d.]+ \| within \S+ \|$", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^\| MixUp, f32( \| [\d.]+%?){8} \|$", text, re.MULTILINE)) == 1
    assert re.search(r"\b1 passed\b", text)


@pytest.mark.slow
def test_every_op_is_checked_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the cases for CUDA, as if the CUDA module were loaded."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("gpu_cases", ROOT / "benchmarks/gpu.py")
    assert spec is not None
    assert spec.loader is not None
    gpu = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_cases", gpu)
    spec.loader.exec_module(gpu)
    rows = "".join(path.read_text() for path in ROOT.glob("csrc/*/ops.h"))
    rows = re.sub(r"#define \w+_(CPU|STAGE|JPEG)_OPS\(OP\)(.*\\\n)*.*\n", "", rows)
    targets = set(re.findall(r'OP\(\w+, +"([\w.]+)"\)', rows)) - {
        "jaxkern.ring_pop.v1",
        "jaxkern.ring_push.v1",
    }
    assert len(targets) == 16
    library = registry.Library("jaxkern._cuda", "cuda", targets=sorted(targets))
    library.loaded = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(registry._libraries, ("jaxkern._cuda", "cuda"), library)
    for name in targets:
        monkeypatch.setitem(registry._targets, (name, "cuda"), library)
    monkeypatch.setattr(compat, "started_backends", lambda: ("cpu",))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    called = set()
    with jk.backend("native"):
        for case in gpu.cases(small=True):
            lowered = jax.jit(case.fn).trace(*case.sets[0]).lower(lowering_platforms=("cuda",))
            called |= set(re.findall(r"jaxkern\.\w+\.v\d+", lowered.as_text()))
    assert called >= targets, targets - called
