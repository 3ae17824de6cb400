"""Would catch: a pipeline of stages that mixes microbatches or returns wrong derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import execution as ex


class Layer(ex.Operator):
    def __init__(self, key, n, m):
        self.w = jax.random.normal(key, (n, m)) / n**0.5

    def forward(self, *, inputs):
        # The derivative at zero is infinite, so idle devices must not compute.
        return jnp.sqrt(jnp.abs(inputs @ self.w))


SIZES = (3, 5, 7, 2, 4)
STAGES = [
    Layer(key, n, m)
    for key, n, m in zip(jax.random.split(jax.random.key(0), 4), SIZES, SIZES[1:], strict=False)
]
X = jax.random.normal(jax.random.key(1), (12, 3))


def sequential(stages, x):
    for stage in stages:
        x = stage(x)
    return x


@pytest.mark.parametrize(("devices", "count"), [(1, 3), (2, 1), (4, 3), (4, 12)])
def test_equal_to_the_sequential_result(devices, count):
    run = ex.pipeline_parallel(STAGES, ex.DeviceMesh((devices,)), count)
    np.testing.assert_allclose(run(X), sequential(STAGES, X), rtol=1e-5)


def test_the_gradient_is_that_of_the_sequence():
    run = ex.pipeline_parallel(STAGES, ex.DeviceMesh((2, 2), ("data", "stage")), 4, axis="stage")
    gradient = lambda f: jax.jit(jax.grad(lambda s, x: (f(s, x) ** 2).sum(), (0, 1)))  # noqa: E731
    actual, expected = gradient(run.apply)(STAGES, X), gradient(sequential)(STAGES, X)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for g, w in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        # A gradient near 0 is a difference of terms as large as the other gradients.
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * float(jax.numpy.abs(w).max()))


def test_devices_send_results_and_do_not_gather():
    run = ex.pipeline_parallel(STAGES, ex.DeviceMesh((4,)), 4)
    text = str(jax.make_jaxpr(run.apply)(STAGES, X))
    assert text.count("ppermute") == 1
    assert "length=7" in text  # 4 microbatches through 4 stages


def test_a_kernel_in_a_stage():
    crop = jk.image.Compose([jk.image.CenterCrop(4), jk.image.Normalize(0.5, 0.25)])
    prepare = lambda x: crop.eval().apply(x.reshape(-1, 6, 6, 3), None)  # noqa: E731
    images = np.random.default_rng(0).random((4, 6, 6, 3), np.float32)
    stages = [prepare, lambda x: x.mean((1, 2))]
    run = ex.pipeline_parallel(stages, ex.DeviceMesh((2,)), 2)
    np.testing.assert_allclose(run(images), sequential(stages, jnp.asarray(images)), rtol=1e-5)


@pytest.mark.parametrize(
    ("stages", "count", "axis", "fact"),
    [
        (STAGES[:3], 2, 0, "3 stages"),
        (STAGES, 0, 0, "num_microbatches is 0"),
        (STAGES, 5, 0, "5 equal microbatches"),
        (STAGES, 3, "rows", "'rows'"),
        ([jnp.argmax] * 4, 2, 0, "int32"),
    ],
)
def test_bad_input(stages, count, axis, fact):
    with raises(TypeError if stages[0] is jnp.argmax else ValueError, fact):
        ex.pipeline_parallel(stages, ex.DeviceMesh((4,)), count, axis=axis)(X)


def test_parameters_of_other_types():
    keyed = lambda key, n, x: x + n * jax.random.normal(key, x.shape[-1:])  # noqa: E731
    stages = [
        jax.tree_util.Partial(keyed, jax.random.key(0), 3),
        jax.tree_util.Partial(lambda w, shift, x: (x * w).astype(jnp.float32) + shift,
                              jnp.bfloat16(2), np.int32(2**24 + 1)),
    ]  # fmt: skip
    run = ex.pipeline_parallel(stages, ex.DeviceMesh((2,)), 2)
    np.testing.assert_allclose(run(X), sequential(stages, X), rtol=1e-6)
