"""The examples of rooflines and devices run, in docstrings."""

import doctest
import importlib
import inspect

import pytest
from short_probes import shorten

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


@pytest.fixture(scope="module", autouse=True)
def quick_probes():
    """Seconds are for good figures; these examples only run."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(f"jaxkern.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("package", [jaxkern.performance, jaxkern.device])
def test_public_names_are_documented(package):
    for name in package.__all__:
        assert inspect.getdoc(getattr(package, name)), name
