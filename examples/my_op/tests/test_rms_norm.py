"""RMS normalization against NumPy in float64, and against every promise of the recipe.

Catches: a wrong formula or derivative, a kernel that is built but not called, a derivative that
leaves the kernel, and bad input that reaches it.
"""

import jax
import jax.numpy as jnp
import my_op
import numpy as np
import pytest

import jaxkern as jk


def reference(x, scale, eps):
    x, scale = np.asarray(x, np.float64), np.asarray(scale, np.float64)
    return scale * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)


def samples(n):
    random = np.random.default_rng(0)
    return [tuple(random.standard_normal((2, n)).astype(np.float32)) for _ in range(4)]


@pytest.mark.parametrize("shape", [(7,), (3, 1), (2, 3, 1000), (0, 4)])
@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_equals_numpy(shape, eps):
    random = np.random.default_rng(1)
    x = random.standard_normal(shape).astype(np.float32)
    scale = random.standard_normal(shape[-1]).astype(np.float32)
    with jk.backend("native"):
        actual = my_op.rms_norm(x, scale, eps)
    np.testing.assert_allclose(actual, reference(x, scale, eps), rtol=1e-6, atol=1e-6)


def test_gradient_equals_finite_differences_and_runs_natively():
    x, scale = samples(6)[0]
    loss = lambda x, scale: jnp.sum(my_op.rms_norm(x, scale) ** 2)  # noqa: E731
    with jk.backend("native"):
        gradient = jax.jit(jax.grad(loss))
        text = gradient.lower(x, scale).compile().as_text()
        actual = gradient(x, scale)
    assert 'custom_call_target="my_op.rms_norm_tangent.v1"' in text
    step = 1e-6 * np.eye(6)
    expected = [
        (np.sum(reference(x + h, scale, 1e-6) ** 2) - np.sum(reference(x - h, scale, 1e-6) ** 2))
        / 2e-6
        for h in step
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", [my_op.rms_norm_op, my_op.tangent_op], ids=lambda op: op.name)
def test_recipe(op):
    jk.testing.check_op(op, samples(8), static={"eps": 1e-3})


def test_other_dtypes_take_pure_jax():
    x, scale = (jnp.asarray(v, jnp.bfloat16) for v in samples(8)[0])
    np.testing.assert_allclose(
        my_op.rms_norm(x, scale).astype(np.float32), reference(x, scale, 1e-6), rtol=0.05, atol=0.05
    )
    with jk.backend("native"), pytest.raises(NotImplementedError, match="float32"):
        my_op.rms_norm(x, scale)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="scale: expected shape"):
        my_op.rms_norm(jnp.ones((2, 3)), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="shape"):
        my_op.rms_norm(jnp.ones((2, 3)), jnp.ones(4))
    with pytest.raises(TypeError, match="dtype"):
        my_op.rms_norm(jnp.ones((2, 3), jnp.int32), jnp.ones(3))
    with pytest.raises(ValueError, match="eps"):
        my_op.rms_norm(jnp.ones(3), jnp.ones(3), eps=-1.0)


def test_handler_checks_what_a_serialized_program_could_say():
    call = jax.ffi.ffi_call("my_op.rms_norm.v1", jax.ShapeDtypeStruct((4,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="operand 'scale'"):
        jax.block_until_ready(call(jnp.ones(4), jnp.ones(3), eps=np.float32(0)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'eps'"):
        jax.block_until_ready(call(jnp.ones(4), jnp.ones(4), eps=np.float32(np.nan)))
