"""Files of `benchmarks/`: would catch a module that nothing uses any more."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_part_is_used_by_another_file():
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    for part, text in texts.items():
        if '__name__ == "__main__"' not in text:
            used = re.compile(rf"^\s*(?:from|import) {part}\b|\b{part}\.py\b", re.MULTILINE)
            assert any(used.search(other) for name, other in texts.items() if name != part), part
