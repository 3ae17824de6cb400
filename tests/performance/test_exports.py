"""Would catch a public name without documentation, and a slow import."""

from __future__ import annotations

import inspect

import pytest
from support.core.processes import python_output

import jaxkern.device
import jaxkern.performance


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
