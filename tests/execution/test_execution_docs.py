"""Would catch a module of execution without an example, or an undocumented name."""

from __future__ import annotations

import importlib
import inspect

import pytest

from jaxkern import execution


@pytest.mark.parametrize(
    "name",
    ["operator", "options", "jit", "mapping", "mesh", "microbatches", "structural"],
)
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.execution.{name}"))


def test_public_names_are_documented():
    for name in execution.__all__:
        assert inspect.getdoc(getattr(execution, name)), name
