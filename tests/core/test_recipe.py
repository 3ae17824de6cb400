"""Would catch: an op that breaks a promise of the recipe. A later op adds one line to its cases."""

from __future__ import annotations

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.core.native_library import build
from support.core.recipe_cases import CASES, SCALE, case
from support.errors import raises

import jaxkern as jk


@pytest.fixture(scope="session", autouse=True)
def _scale_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("scale")
    build(folder, "scale_library")
    sys.path.insert(0, str(folder))
    # Also for the fresh processes that run exported programs.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    assert jk.load_library("scale_library").problem is None


@pytest.mark.parametrize(("name", "check"), CASES)
def test_recipe(name: str, check: str) -> None:
    with jax.enable_x64("f64" in name):
        assert case(name).run([check]) == [check]


def test_bad_samples() -> None:
    op = jk.Op("test.same", version=1, abstract=lambda x: x, impl=lambda x: x)
    with raises(ValueError, "multiple of 4", "got 3"):
        jk.testing.check_op(op, [(jnp.ones(2),)] * 3)
    with raises(ValueError, "shape and dtype"):
        jk.testing.check_op(op, [(jnp.ones(2),)] * 3 + [(jnp.ones(3),)])
    with raises(ValueError, "names: "):
        jk.testing.check_op(op, [(jnp.ones(2),)] * 4, only=["nonsense"])


def test_batch_axes_must_agree() -> None:
    op = SCALE
    with raises(ValueError, "batch axis 0 has sizes [3, 2]"):
        op(jnp.ones((3, 4)), jnp.ones(2), batch_dims=1)
    with raises(ValueError, "lacks the 1 leading batch axes"):
        op(jnp.ones((3, 4)), 2.0, batch_dims=1)


def test_errors_of_handlers() -> None:
    """A serialized program is not trusted: the handler checks shapes and dtypes itself."""
    x, out = jnp.ones((4, 3)), jax.ShapeDtypeStruct((4, 3), np.float32)
    call = jax.ffi.ffi_call("test.scale.v1", out)
    for s, message in (
        (jnp.ones(3), r"operand 's'.*\[4\|1\].*\[3\]"),
        (jnp.ones(4, jnp.int32), "operand 's'.*float32.*int32"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(call(x, s))
    wide = jax.ShapeDtypeStruct((1,) * 20, np.float32)
    with raises(jax.errors.JaxRuntimeError, "at most 12 batch axes"):
        jax.block_until_ready(jax.ffi.ffi_call("test.scale.v1", wide)(x, jnp.ones(4)))


def test_doctor_names_op_and_target() -> None:
    report = str(jk.doctor())
    assert "test.scale on cpu: native test.scale.v1" in report
    assert "test.scale on cuda: pure JAX (" in report
