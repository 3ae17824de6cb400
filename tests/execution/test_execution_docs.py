"""The examples of execution run, in docstrings: would catch one that fails."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

from jaxkern import execution


@pytest.mark.parametrize(
    "name",
    ["operator", "options", "jit", "mapping", "mesh", "microbatches", "structural"],
)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(f"jaxkern.execution.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_public_names_are_documented():
    for name in execution.__all__:
        assert inspect.getdoc(getattr(execution, name)), name
