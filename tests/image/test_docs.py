"""Would catch: a public class or a module without an example; `make docs` runs the examples."""

from __future__ import annotations

import importlib
import inspect

import pytest

from jaxkern import image as im

MODULES = [
    f"jaxkern.image.{name}"
    for name in (
        "transforms.crops",
        "transforms.padding",
        "transforms.sizes",
        "transforms.values",
        "transforms.mixing",
        "transforms.colour",
        "compose.compose",
        "ragged",
    )
]


@pytest.mark.parametrize("name", [*MODULES, "jaxkern.core.keys"])
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(name))


@pytest.mark.parametrize("name", [n for n in im.__all__ if n != "Transform"])
def test_public_classes_have_examples(name):
    assert ">>> " in inspect.getdoc(getattr(im, name))
