"""Would catch a tool without an example, and an import of one that is not used."""

from __future__ import annotations

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


@pytest.mark.parametrize("name", sorted(set(performance._HOME.values()) - RESULTS))
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(name))


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
