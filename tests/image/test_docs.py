"""Would catch: a public class or a module without an example; `make docs` runs the examples."""

from __future__ import annotations

import importlib
import inspect

import pytest

from jaxkern import image as im

MODULES = ["compose.compose", "policies.policies", "ragged"]
MODULES += [f"transforms.{name}" for name in ("choices", "colour", "crops", "detection", "noise")]
MODULES += [f"transforms.{name}" for name in ("sizes", "transform", "values", "warps")]


@pytest.mark.parametrize("name", [*(f"image.{name}" for name in MODULES), "core.keys"])
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.{name}"))


@pytest.mark.parametrize("name", im.__all__)
def test_public_names_have_examples(name):
    assert ">>> " in inspect.getdoc(getattr(im, name))
