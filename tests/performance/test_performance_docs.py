"""The examples of the tools run, in docstrings: would catch one that fails, and an
import of a tool that is not used."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys

import pytest

from jaxkern import performance

# These hold what other tools return.
RESULTS = {
    "jaxkern.performance.changes",
    "jaxkern.performance.collectives",
    "jaxkern.performance.roofline_result",
}
# These run with quick probes, in test_roofline_page.py.
ROOFLINES = {"jaxkern.core.ceilings", "jaxkern.core.client", "jaxkern.performance.roofline"}


@pytest.mark.parametrize("name", sorted(set(performance._HOME.values()) - RESULTS - ROOFLINES))
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


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
