"""Modules that tests share: cases, oracles, and programs that tests start."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]
SUPPORT = Path(__file__).parent


def environment() -> dict[str, str]:
    """Return the environment of a child process that imports this package."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
