"""The examples of the tools run, in docstrings and on the page: would catch one that fails, and an
import of a tool that is not used."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxkern import performance

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


# These hold what other tools return.
RESULTS = {"jaxkern.performance.changes", "jaxkern.performance.collectives"}


@pytest.mark.parametrize("name", sorted(set(performance._HOME.values()) - RESULTS))
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 9
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    shown = capsys.readouterr().out
    assert "x: shape (8,) -> (9,)" in shown
    assert "1 hits, 1 misses" in shown
    assert "the argument state['table'] is copied at entry" in shown
    assert "nothing saved" in shown


def test_public_names_are_documented():
    assert sorted(performance.__all__) == sorted(performance._HOME)
    for name in performance.__all__:
        assert inspect.getdoc(getattr(performance, name)), name


def test_import_is_light():
    code = (
        "import sys, jaxkern.performance as p;"
        "own = [m for m in sys.modules if m.startswith('jaxkern.performance.')];"
        "assert own == [], own;"
        "p.Policy; own = [m for m in sys.modules if m.startswith('jaxkern.performance.')];"
        "assert own == ['jaxkern.performance.precision'], own"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
