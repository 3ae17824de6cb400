"""The FFI handlers are a trust boundary: a serialized program may call them with anything.

Would catch: an attribute, operand or result of any target that is used before it is checked, so
that the process dies; an error that does not name its target. The calls run in another process,
whose death is a failure that names the call.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import SUPPORT, environment

import jaxkern as jk

if not jk.export_targets():
    pytest.skip("this installation has no native kernels", allow_module_level=True)


def run_fuzz(folder: Path, extent: str, seed: int, count: int) -> None:
    log = folder / "calls.log"
    script = SUPPORT / "core" / "fuzz_handlers.py"
    arguments = [str(log), extent, str(seed), str(count)]
    try:
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"a call does not return: {_last_call(log)}")
    if done.returncode != 0:
        pytest.fail(f"exit status {done.returncode} in {_last_call(log)}\n{done.stderr[-3000:]}")


def _last_call(log: Path) -> str:
    return (log.read_text().splitlines() if log.exists() else ["no call"])[-1]


def test_every_attribute_and_some_operands(tmp_path: Path) -> None:
    run_fuzz(tmp_path, "brief", seed=1, count=1)


@pytest.mark.slow
def test_every_change_of_an_attribute_and_every_case(tmp_path: Path) -> None:
    run_fuzz(tmp_path, "long", seed=2, count=2)
