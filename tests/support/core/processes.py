"""Python code in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code, folder=None, *arguments, without=(), **environment):
    """Run code in `folder`, which comes first in its path; `without` these variables."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(tuple(without))}
    if folder is not None:
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        inherited["PYTHONPATH"] = path
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=inherited | environment,
        cwd=folder,
    )


def python_output(code, folder=None, *arguments, **options):
    """Run code as `run_python` does, which must succeed; return its standard output."""
    done = run_python(code, folder, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
