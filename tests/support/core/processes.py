"""Python code in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code, folder, without=(), **environment):
    """Run code in `folder`, which comes first in its path; `without` these variables."""
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**inherited, "PYTHONPATH": path, **environment},
        cwd=folder,
    )
