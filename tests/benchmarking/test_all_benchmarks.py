"""`benchmarks/run.py`: would catch a benchmark that the one command for all of them leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_program_is_a_step():
    code = (
        "import sys; sys.path.insert(0, '.'); import run; from pathlib import Path;"
        "print(*[Path(part).name for s in run.STEPS for c in s.commands for part in c])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, check=True, capture_output=True, text=True
    )
    # A profile of one fit is no comparison: `make profile-nlsq`, `make profile-mcmc`.
    programs = {
        path.name
        for path in BENCHMARKS.glob("*.py")
        if "harness.write(" in path.read_text() and path.name not in ("run.py", "profile_fit.py")
    }
    assert "execution.py" in programs
    assert programs <= set(done.stdout.split())
