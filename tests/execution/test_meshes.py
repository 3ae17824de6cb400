"""Would catch: a function that is not sharded, or a kernel whose operands are gathered."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import execution as ex

MESH = ex.DeviceMesh(shape=(2, 2))
X = np.arange(32.0, dtype=np.float32).reshape(4, 8)


def test_a_mesh_is_a_jax_mesh():
    four, names = jax.devices()[:4], ("i", "j")
    for shape in ((2, 2), np.array([2, 2]), (-1, 2), (2, -1)):
        expected = jax.sharding.Mesh(np.array(four).reshape(2, 2), names)
        assert ex.DeviceMesh(shape, names, four) == expected
    for shape, size in ((np.int64(2), 2), (-1, jax.device_count())):
        assert dict(ex.DeviceMesh(shape).shape) == {"axis0": size}


@pytest.mark.parametrize("spec", [ex.PartitionSpec(0, 1), jax.P("axis0", "axis1")])
def test_arguments_are_split_over_all_devices(spec):
    f = ex.mesh_sharded(lambda x: x * 2, MESH, spec)
    result = f(X)
    assert result.sharding.shard_shape(X.shape) == (2, 4)
    assert len(result.sharding.device_set) == 4
    np.testing.assert_array_equal(result, X * 2)


def test_a_tree_of_specifications():
    specs = ({"x": ex.PartitionSpec((0, 1)), "y": ex.PartitionSpec(None, 1)}, ex.PartitionSpec())
    mesh = ex.DeviceMesh((2, 2), ("data", "model"))
    f = ex.mesh_sharded(lambda t, b: t["x"] @ t["y"] + b, mesh, specs)
    np.testing.assert_allclose(f({"x": X, "y": X.T}, np.float32(1)), X @ X.T + 1)
    grads = jax.grad(lambda x: f({"x": x, "y": X.T}, 0.0).sum())(jnp.asarray(X))
    np.testing.assert_allclose(grads, np.tile(X.sum(0), (4, 1)))


def test_kernels_run_on_the_device_of_their_images():
    crop = jk.image.Compose([jk.image.RandomCrop(4), jk.image.Normalize(0.5, 0.25)])
    images = np.random.default_rng(0).integers(0, 256, (8, 6, 6, 3), np.uint8)
    params = crop.sample(jk.random.record_keys(0, 0, np.arange(8)), (6, 6))
    f = ex.mesh_sharded(crop.apply, MESH, ex.PartitionSpec((0, 1)))
    text = f.lower(images, params).compile().as_text()
    assert "jaxkern.image_chain" in text
    assert "all-gather" not in text
    np.testing.assert_array_equal(f(images, params), crop.apply(images, params))


@pytest.mark.parametrize(
    "shape", [(64, 2), (2, 0), (-1, -1), (-1, 64), (2.0, 2), "22", 2.5], ids=str
)
def test_bad_meshes(shape):
    with raises(ValueError, "shape"):
        ex.DeviceMesh(shape)
    with raises(ValueError, "axis_names"):
        ex.DeviceMesh((2, 2), ("a",))


def test_bad_specifications():
    for entry in (2, -1, "rows", True):
        with pytest.raises(ValueError, match=repr(entry)):
            ex.mesh_sharded(jnp.sin, MESH, ex.PartitionSpec(entry))
    for args, spec, fact in [
        ((X[:3],), ex.PartitionSpec(0), "(3, 8)"),
        ((X, X), (ex.PartitionSpec(),), "length 1"),
    ]:
        with raises(ValueError, fact):
            ex.mesh_sharded(jnp.add, MESH, spec)(*args)
    for mesh, spec, fact in [((2, 2), ex.PartitionSpec(0), "got tuple"), (MESH, 0, "got int")]:
        with raises(TypeError, fact):
            ex.mesh_sharded(jnp.sin, mesh, spec)
