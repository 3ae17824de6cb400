"""Would catch: wrong dtypes of a policy, gradients of microbatches that are not the batch's, and a
remat report that is not what the compiler and the clock say. With this package's kernels inside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxkern as jk
from jaxkern import performance
from jaxkern.performance import Policy, accumulate_gradients, remat_report

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 12, 12, 3), np.uint8)
CHAIN = jk.image.Compose([jk.image.CenterCrop(8), jk.image.Normalize(0.5, 0.25)], dtype=jnp.float32)
KEY = jax.random.key(0)


def image_loss(w, images):
    rows = CHAIN(KEY, images).reshape(images.shape[0], -1)
    return jnp.mean((rows @ w) ** 2)


def image_weights():
    return jnp.asarray(np.random.default_rng(1).normal(size=(8 * 8 * 3,)), jnp.float32)


@pytest.fixture(scope="module")
def xpcs():
    """A two-time problem: the loss of its residuals, by the contrast of each angle."""
    geometry = jk.xpcs.Geometry(
        q=0.0054, gap=2e6, dt=0.1, t=np.arange(8) * 0.1, phi=np.array([0.0, 45.0, 90.0, 135.0])
    )
    model = jk.xpcs.LaminarFlow(geometry)
    p0 = jnp.asarray(model.defaults, jnp.float32)
    rng = np.random.default_rng(2)
    data = jnp.asarray(1 + 0.2 * rng.random((4, 8, 8)), jnp.float32)
    sigma = jnp.full((4, 8, 8), 0.1, jnp.float32)

    def loss(contrast):
        offset = jnp.ones(4, contrast.dtype)
        residuals = jk.xpcs.residual(model, p0, contrast, offset, data, sigma)
        return jnp.mean(residuals.astype(jnp.float32) ** 2)

    return loss


def test_a_policy_casts_floating_arrays_only():
    policy = Policy()
    tree = {"w": jnp.ones(2), "n": jnp.arange(2), "key": KEY, "name": "a", "none": None, "x": 1.5}
    cast = policy.cast_to_compute(tree)
    assert cast["w"].dtype == jnp.bfloat16
    assert cast["n"].dtype == jnp.int32
    assert cast["key"].dtype == KEY.dtype
    assert (cast["name"], cast["none"], cast["x"]) == ("a", None, 1.5)
    assert policy.cast_to_param(cast)["w"].dtype == jnp.float32
    half = Policy("float32", "float16", "float16")
    assert half.cast_to_output(tree)["w"].dtype == jnp.float16
    assert str(half) == "params=float32, compute=float16, output=float16"


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_gradients_keep_the_dtype_of_parameters(compute):
    seen = []

    def loss(w, images):
        seen.append(w.dtype)
        rows = CHAIN(KEY, images).reshape(images.shape[0], -1).astype(w.dtype)
        return jnp.mean(jnp.matmul(rows, w, preferred_element_type=jnp.float32) ** 2)

    w = image_weights() / 16
    value, gradient = jax.jit(jax.value_and_grad(Policy(compute_dtype=compute).wrap(loss)))(
        w, IMAGES
    )
    assert seen == [jnp.dtype(compute)]
    assert value.dtype == gradient.dtype == jnp.float32
    wanted, wanted_gradient = jax.value_and_grad(image_loss)(w, IMAGES)
    np.testing.assert_allclose(value, wanted, rtol=3e-2)
    np.testing.assert_allclose(gradient, wanted_gradient, atol=3e-2 * np.abs(wanted_gradient).max())


def test_a_policy_around_a_residual(xpcs):
    contrast = jnp.linspace(0.1, 0.3, 4)
    value, gradient = jax.value_and_grad(Policy().wrap(xpcs))(contrast)
    wanted, wanted_gradient = jax.value_and_grad(xpcs)(contrast)
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(value, wanted, rtol=3e-2)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=5e-2, atol=1e-3)


def test_a_policy_of_other_dtypes():
    with pytest.raises(TypeError, match="compute_dtype is 'int32'; wanted a floating dtype"):
        Policy(compute_dtype="int32")
    with pytest.raises(TypeError, match="param_dtype is 'no'; wanted a floating dtype"):
        Policy(param_dtype="no")


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_microbatches_give_the_gradient_of_the_batch(steps):
    w = image_weights()
    value, gradient = jax.jit(accumulate_gradients(image_loss, steps))(w, IMAGES)
    wanted, wanted_gradient = jax.value_and_grad(image_loss)(w, IMAGES)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    scale = np.abs(wanted_gradient).max()
    np.testing.assert_allclose(gradient, wanted_gradient, atol=1e-5 * scale)


def test_sums_aux_and_other_axes():
    def loss(params, x, scale):
        rows = params["w"] @ x * scale  # rows are on axis 1 of x
        return jnp.sum(rows**2), {"sum": jnp.sum(rows), "rows": rows, "count": jnp.int32(3)}

    rng = np.random.default_rng(3)
    params = {"w": jnp.asarray(rng.normal(size=5), jnp.bfloat16)}
    x = jnp.asarray(rng.normal(size=(5, 6)), jnp.float32)
    fn = accumulate_gradients(loss, 3, has_aux=True, reduction="sum", in_axes=(1, None))
    (value, aux), gradients = fn(params, x, 2.0)
    (wanted, wanted_aux), wanted_gradients = jax.value_and_grad(loss, has_aux=True)(params, x, 2.0)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(aux["sum"], wanted_aux["sum"], rtol=1e-4)
    # Each microbatch has its own rows: together they are those of the batch.
    assert aux["rows"].shape == (3, 2)
    np.testing.assert_allclose(np.sort(aux["rows"].ravel()), np.sort(wanted_aux["rows"]), rtol=1e-5)
    assert aux["count"].tolist() == [3, 3, 3]
    assert gradients["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(
        gradients["w"].astype(np.float32), wanted_gradients["w"].astype(np.float32), rtol=2e-2
    )


def test_microbatches_take_less_memory():
    def loss(w, x):
        return jnp.mean(jnp.sin(jnp.sin(x @ w) @ w) ** 2)

    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((4096, 64), jnp.float32)
    whole = performance.memory_report(jax.value_and_grad(loss), w, x)
    parts = performance.memory_report(accumulate_gradients(loss, 16), w, x)
    assert parts.temporary_bytes < whole.temporary_bytes / 2


def test_a_sharded_batch_is_not_gathered():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    x = jax.device_put(np.ones((16, 64), np.float32), NamedSharding(mesh, PartitionSpec("d")))
    fn = accumulate_gradients(lambda w, x: jnp.mean((x @ w) ** 2), 4)
    report = performance.memory_report(fn, jnp.ones(64), x, time_collectives=False)
    assert {c.kind for c in report.collectives} <= {"all-reduce"}


def test_bad_steps():
    with pytest.raises(ValueError, match="steps is 0"):
        accumulate_gradients(image_loss, 0)
    with pytest.raises(ValueError, match="reduction is 'max'"):
        accumulate_gradients(image_loss, 2, reduction="max")
    fn = accumulate_gradients(image_loss, 3)
    with pytest.raises(ValueError, match=r"batch\[0\] has 8 rows on axis 0; wanted a multiple of"):
        fn(image_weights(), IMAGES)
    with pytest.raises(ValueError, match="in_axes is"):
        accumulate_gradients(image_loss, 2, in_axes=(0, 0))(image_weights(), IMAGES)


def layered(remat):
    @remat
    def layer(x, w):
        return jnp.sin(jnp.sin(jnp.sin(x @ w))), None

    def loss(ws, images):
        rows = CHAIN(KEY, images).reshape(images.shape[0] * 12, -1)
        return jnp.sum(jax.lax.scan(layer, rows, ws)[0] ** 2)

    return loss


def test_remat_of_layers_saves_what_the_compiler_says():
    ws = jnp.asarray(np.random.default_rng(4).normal(size=(16, 16, 16)) / 4, jnp.float32)
    report = remat_report(layered, ws, IMAGES, calls=2)
    assert [row.policy for row in report.rows] == ["no remat", "nothing saved", "dots saved"]
    plain, nothing, dots = report.rows
    for row, policy in (
        (nothing, None),
        (dots, jax.checkpoint_policies.dots_saveable),
    ):
        loss = layered(lambda f, policy=policy: jax.checkpoint(f, policy=policy))
        analysis = jax.jit(jax.value_and_grad(loss)).lower(ws, IMAGES).compile().memory_analysis()
        assert row.temporary_bytes == analysis.temp_size_in_bytes
        assert row.saved_bytes == plain.temporary_bytes - row.temporary_bytes
        assert row.slowdown == row.seconds / plain.seconds > 0
    assert nothing.saved_bytes > dots.saved_bytes > 0
    assert (plain.saved_bytes, plain.slowdown) == (0, 1)
    assert "no remat" in str(report)
    assert report["dots saved"] is dots
    with pytest.raises(KeyError, match="there are no remat"):
        report["other"]


def test_remat_of_a_residual(xpcs):
    report = remat_report(lambda remat: remat(xpcs), jnp.full(4, 0.2), policies={"all": None})
    assert [row.policy for row in report.rows] == ["no remat", "all"]


def test_remat_of_something_else():
    calls = []

    def make(remat):
        calls.append(0)
        return lambda x: len(calls) * jnp.sum(x**2)

    with pytest.raises(ValueError, match="gives another value or gradient"):
        remat_report(make, jnp.ones(3))
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"calls is {wrong}; expected an integer from 1"):
            remat_report(layered, jnp.ones(3), calls=wrong)
    with pytest.raises(TypeError, match="make is 3; wanted a function of remat"):
        performance.remat_report(3)
    with pytest.raises(TypeError, match="make returned 3; wanted the loss"):
        remat_report(lambda remat: 3, jnp.ones(3))


@pytest.mark.parametrize(("dtype", "equal"), [(jnp.float32, False), (jnp.float16, True)])
def test_remat_may_differ_by_the_rounding_of_what_it_computes_in(dtype, equal):
    calls = []

    def make(remat):
        calls.append(0)
        # Two units in the last place of f16, as another order of fused operations may make.
        scale = 1 + 0.002 * (len(calls) > 1)

        def loss(x):
            y = x.astype(dtype)
            return scale * jnp.sum((y * y).astype(jnp.float32))

        return loss

    if equal:
        assert len(remat_report(make, jnp.ones(3), policies={"all": None}, calls=1).rows) == 2
    else:
        with pytest.raises(ValueError, match="gives another value or gradient"):
            remat_report(make, jnp.ones(3), policies={"all": None}, calls=1)
