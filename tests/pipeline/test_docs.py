"""Would catch a module of pipelines without an example, and heavy imports that `import jaxkern`
should not make."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from jaxkern import pipeline

MODULES = ("mixtures", "nodes", "operators", "order", "pipeline", "sources.source")


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.pipeline.{name}"))


def test_public_names_are_documented():
    for name in pipeline.__all__:
        assert inspect.getdoc(getattr(pipeline, name)), name


def test_import_is_light():
    code = (
        "import sys, jaxkern;"
        "heavy = {'jaxkern.pipeline', 'jaxkern.image', 'h5py', 'PIL', 'grain'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "jaxkern.from_source; heavy -= {'jaxkern.pipeline', 'jaxkern.image'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
