"""The examples in the docstrings run, and every public name has one.

Would catch: an example that no longer works, a public class without documentation.
"""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

from jaxkern import image as im

MODULES = [
    f"jaxkern.image.{name}" for name in ("geometric", "values", "mixing", "compose", "ragged")
]


@pytest.mark.parametrize("name", [*MODULES, "jaxkern.core.keys"])
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), extraglobs={})
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", [n for n in im.__all__ if n != "Transform"])
def test_public_classes_have_examples(name):
    assert ">>> " in inspect.getdoc(getattr(im, name))
