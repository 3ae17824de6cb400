"""Would catch a module of rooflines and devices without an example, or an undocumented name."""

import importlib
import inspect

import pytest

import jaxkern.device
import jaxkern.performance

MODULES = (
    "core.calls",
    "core.ceilings",
    "core.client",
    "performance.roofline",
    "device.status",
    "device.configuration",
    "device.benchmark",
)


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.{name}"))


@pytest.mark.parametrize("package", [jaxkern.performance, jaxkern.device])
def test_public_names_are_documented(package):
    for name in package.__all__:
        assert inspect.getdoc(getattr(package, name)), name
