"""`benchmarks/run.py`: would catch a benchmark that it does not run."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# The command itself, and programs that do not compare anything.
NO_STEPS = {"run", "damaged_files"}
# Programs and modules that a step starts or imports.
PARTS = {
    "xpcs_cases": "xpcs_fits",
    "photographs": "file_batches",
    "ffcv_epochs": "peers",
    "gpu": "run",
    "policy_peers": "image_policies",
}


def test_every_program_is_a_step():
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    programs = {name for name, text in texts.items() if '__name__ == "__main__"' in text}
    steps = texts["run"].partition("STEPS = (")[2].partition("\n)")[0]
    assert "execution" in programs
    assert programs - NO_STEPS - set(PARTS) <= set(re.findall(r'"(\w+)"', steps))


def test_every_part_is_used_by_another_file():
    for part, user in PARTS.items():
        assert part in (BENCHMARKS / f"{user}.py").read_text()
