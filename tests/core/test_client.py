"""Would catch a memory fraction that is set too late, or under a name that JAX does not read."""

import os

import jax
import pytest
from support.core.processes import python_output
from support.errors import raises

from jaxkern.core import client, compat


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (client.MEMORY_FRACTION, "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.setenv(name, "0.25")


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan"), "much", None, True])
def test_invalid_fractions(fraction):
    with raises(ValueError, "the memory fraction is"):
        client.set_memory_fraction(fraction)
    assert os.environ[client.MEMORY_FRACTION] == "0.25"


def test_jax_reads_the_fraction():
    jax.devices()  # the CPU backend may have started
    client.set_memory_fraction(0.5)
    # JAX's function that reads the variable for a GPU client. It raises if both names are set.
    import jaxlib.xla_client

    options = jaxlib.xla_client.generate_pjrt_gpu_plugin_options()
    assert options["memory_fraction"] == 0.5


def test_error_after_a_gpu_has_started(monkeypatch):
    monkeypatch.setattr(compat, "started_backends", lambda: ("cpu", "cuda"))
    with raises(RuntimeError, "cuda backend of JAX has already", "FRACTION=0.5"):
        client.set_memory_fraction(0.5)
    assert os.environ[client.MEMORY_FRACTION] == "0.25"


def test_neither_import_nor_setting_starts_a_backend():
    code = """
import sys, jax, jaxkern, jaxkern.performance
assert not {'jaxkern.image', 'jaxkern.pipeline', 'jaxkern.xpcs'} & {*sys.modules}
import jaxkern.image, jaxkern.random
from jaxkern.core import compat
jaxkern.performance.set_memory_fraction(0.5)
assert compat.started_backends() == (), compat.started_backends()
jax.config.update('jax_num_cpu_devices', 2)
assert jax.device_count() == 2
assert compat.started_backends() == ("cpu",), compat.started_backends()
"""
    python_output(code, JAX_PLATFORMS="cpu")
