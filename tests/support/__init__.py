"""Modules that tests share: cases, oracles, and programs that tests start."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SUPPORT = Path(__file__).parent
#: True if the test extra's grain, simplejpeg and libraries of formats have wheels for this Python
FORMATS = sys.version_info < (3, 14) and not sysconfig.get_config_var("Py_GIL_DISABLED")


def environment() -> dict[str, str]:
    """Return the environment of a child process that imports this package."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_python(code: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program in a child process, and return its output and status."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment()
    )


def library(name: str) -> Any:
    """Import a library of the test extra; skip the test only where it has no wheels."""
    return importlib.import_module(name) if FORMATS else pytest.importorskip(name)
