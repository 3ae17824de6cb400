"""Would catch a public name without documentation or example, and a slow import."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import jaxkern.device
import jaxkern.performance

MODULES = (
    "core.calls",
    "core.ceilings",
    "core.client",
    "device.benchmark",
    "device.configuration",
    "device.status",
    "performance.auditing",
    "performance.batch_size",
    "performance.cache",
    "performance.compiles",
    "performance.host",
    "performance.memory",
    "performance.roofline",
)


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.{name}"))


@pytest.mark.parametrize("package", [jaxkern.performance, jaxkern.device])
def test_public_names_are_documented(package):
    for name in package.__all__:
        assert inspect.getdoc(getattr(package, name)), name


def test_import_loads_no_domain_and_starts_no_backend():
    code = (
        "import sys, jax, jaxkern.performance;"
        "assert not {'jaxkern.image', 'jaxkern.pipeline', 'jaxkern.xpcs'} & {*sys.modules};"
        "jax.config.update('jax_num_cpu_devices', 2);"
        "assert jax.device_count() == 2"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
