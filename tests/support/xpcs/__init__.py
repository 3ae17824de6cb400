"""Oracles, simulated measurements, files and programs of the XPCS tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from support import environment


def words(text):
    """Split facts of a message at spaces, except inside parentheses."""
    return re.findall(r"\([^)]*\)|\S+", text)


def run_program(*arguments):
    """Run Python with these arguments in another process; return the last line as JSON."""
    command = [sys.executable, *map(str, arguments)]
    options = {"env": environment(), "capture_output": True, "text": True, "timeout": 280}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
