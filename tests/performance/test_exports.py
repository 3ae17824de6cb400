"""Would catch a public name without documentation or example, and a slow import."""

from __future__ import annotations

import importlib
import inspect

import pytest
from support.core.processes import python_output

import jaxkern.device
import jaxkern.performance

CORE = ("calls", "ceilings", "client")
DEVICE = ("benchmark", "configuration", "status")
PERFORMANCE = ("auditing", "batch_size", "compiles", "programs", "roofline", "settings")


def test_modules_have_examples():
    for package, names in {"core": CORE, "device": DEVICE, "performance": PERFORMANCE}.items():
        for name in names:
            module = importlib.import_module(f"jaxkern.{package}.{name}")
            assert ">>> " in inspect.getsource(module), name


@pytest.mark.parametrize("package", [jaxkern.performance, jaxkern.device])
def test_public_names_are_documented(package):
    for name in package.__all__:
        assert inspect.getdoc(getattr(package, name)), name


def test_import_loads_no_domain_and_starts_no_backend():
    python_output(
        "import sys, jax, jaxkern.performance;"
        "assert not {'jaxkern.image', 'jaxkern.pipeline', 'jaxkern.xpcs'} & {*sys.modules};"
        "jax.config.update('jax_num_cpu_devices', 2);"
        "assert jax.device_count() == 2"
    )
