"""`benchmarks/run.py`: would catch a benchmark that it does not run."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NO_STEPS = {"run"}  # the command itself


def test_every_program_is_a_step():
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    programs = {name for name, text in texts.items() if '__name__ == "__main__"' in text}
    assert "execution" in programs
    assert programs - NO_STEPS <= set(re.findall(r'"(\w+)"', texts["run"]))


def test_every_part_is_used_by_another_file():
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    for part, text in texts.items():
        if '__name__ == "__main__"' not in text:
            used = re.compile(rf"^\s*(?:from|import) {part}\b|\b{part}\.py\b", re.MULTILINE)
            assert any(used.search(other) for name, other in texts.items() if name != part), part
