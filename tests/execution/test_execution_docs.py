"""The examples of execution run, in docstrings and on the page: would catch one that fails."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

from jaxkern import execution

PAGE = Path(__file__).parents[2] / "docs" / "execution.md"


@pytest.mark.parametrize(
    "name",
    ["operator", "options", "jit", "precompile", "mapping", "mesh", "microbatches", "structural"],
)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(f"jaxkern.execution.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 10
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    shown = capsys.readouterr().out
    assert "Both: 3 operators in 3 parts" in shown
    assert "critical path: " in shown


def test_public_names_are_documented():
    for name in execution.__all__:
        assert inspect.getdoc(getattr(execution, name)), name
