"""One changed byte in a small file, over and over: would catch a check that finds no damage any
more, and errors that do not name the file. `benchmarks/damaged_files.py` counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "damaged_files.py"
# Values that may be wrong without an error, of 60 mutations: what the format cannot tell.
MOST_OTHER = {
    "npz-events": 0,
    "token-offsets": 6,
    "parquet checksums, verify": 3,
    "tar": 8,
    "results": 3,
    "qmap": 4,
}


@pytest.mark.slow
def test_how_much_is_found():
    options = ["--quick", "--seed", "1", "--count", "60"]
    command = [sys.executable, str(SCRIPT), *options, *MOST_OTHER]
    paths = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}  # of the benchmarks' harness
    text = subprocess.run(command, env=paths, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [line.strip("| ").split(" | ") for line in lines[1:]]
    assert [name for name, *_ in rows] == list(MOST_OTHER)
    for name, *counts in rows:
        mutations, error, unnamed, _, other, crash = map(int, counts)
        assert mutations == 60
        assert error > 0
        assert unnamed + crash == 0, name
        assert other <= MOST_OTHER[name], name
