"""The probes of a GPU and rooflines on it: would catch rates that other programs on it exceed, and
probes that disturb JAX's memory or its choice of a device."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern as jk
from jaxkern.core.timing import call_seconds
from jaxkern.performance import ceilings, roofline_analysis


@pytest.fixture
def roof(device: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = ceilings(device)
    assert ceilings(device).source.startswith(str(tmp_path))
    return found


def test_ceilings_are_near_what_jax_reaches(device: Any, roof: Any) -> None:
    print(roof)
    assert all(np.isfinite(v) and v > 0 for v in dataclasses.astuple(roof.all_threads))
    assert roof.seconds < 5 or device.platform == "cpu"
    x = jax.device_put(jnp.ones(128 << 20, jnp.float32), device)
    seconds = statistics.median(call_seconds(jax.jit(lambda x: x + 1), x, calls=20))
    streamed = 2 * x.nbytes / seconds
    assert 0.3 * roof.best.bandwidth < streamed < 1.15 * roof.best.bandwidth
    a = jax.device_put(jnp.ones((4096, 4096), jnp.float32), device)
    product = jax.jit(lambda a: jnp.dot(a, a, precision="highest"))
    seconds = statistics.median(call_seconds(product, a, calls=10))
    assert 2 * 4096**3 / seconds < 1.15 * roof.best.fma_f32


def test_the_g2_kernel_has_a_row(device: Any, roof: Any) -> None:
    t = jax.device_put(jnp.arange(2000.0), device)
    op = jk.xpcs.ops.two_time_g2

    def model(t: Any) -> Any:
        return op(0.001 * t, 0.01 * t, 0.3, jnp.float32(1), shear_power=4)

    found = roofline_analysis(model, t, ceilings=roof)
    print(found)
    assert (found.rows[0].reason, found.rows[0].operands) == (None, "its own")
    assert found.rows[0].bytes == 4 * 2000**2


def test_the_default_device_is_asked_for_its_performance(device: Any, roof: Any) -> None:
    found = jk.device.benchmark_device_performance(device)
    print(found)
    assert found.native
    print(jk.device.get_device_status())
