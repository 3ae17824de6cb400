"""Would catch: an operator whose arrays are constants of a program, or whose settings are not."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

from jaxkern import execution as ex


@ex.jit
class Dense(ex.Operator):
    def __init__(self, n, m, activation="tanh"):
        self.w = jnp.full((n, m), 0.5)
        self.activation = activation
        self.names = ["in", "out"]

    def forward(self, *, inputs):
        y = inputs @ self.w
        return jnp.tanh(y) if self.activation == "tanh" else y


class Two(ex.Operator):
    def __init__(self):
        self.layers = [Dense(3, 4), Dense(4, 2, "none")]

    def forward(self, *, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


def test_a_changed_array_is_used_and_a_changed_setting_recompiles():
    Dense.forward.cache_clear()
    op, x = Dense(3, 2, "none"), jnp.ones(3)
    assert op(x).tolist() == [1.5, 1.5]
    op.w = op.w * 2
    assert op(inputs=x).tolist() == [3, 3]
    assert Dense.forward.cache_info().misses == 1
    op.activation = "tanh"
    np.testing.assert_allclose(op(x), np.tanh([3, 3]), rtol=1e-6)
    assert Dense.forward.cache_info().misses == 2
    assert op.names == ["in", "out"]


def test_operators_are_pytrees():
    op, x = Two(), jnp.ones(3)
    grads = jax.grad(lambda op: op(x).sum())(op)
    assert [leaf.shape for leaf in jax.tree.leaves(grads)] == [(3, 4), (4, 2)]
    h = jnp.tanh(x @ op.layers[0].w)
    expected = jnp.tile(h[:, None], (1, 2))
    np.testing.assert_allclose(grads.layers[1].w, expected, rtol=1e-6)
    stepped = jax.tree.map(lambda p, g: p - g, op, grads)
    assert isinstance(stepped, Two)
    assert stepped.layers[0].activation == "tanh"
    marks = jax.tree.map(lambda _: "mark", op)  # any leaf keeps the structure
    assert jax.tree.structure(marks) == jax.tree.structure(op)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(op)]
    assert paths == [".layers[0].w", ".layers[1].w"]


def test_samples_are_compiled_when_an_instance_is_created():
    @ex.jit(options=ex.JITOptions(sample_input=jax.ShapeDtypeStruct((3,), jnp.float32)))
    class Scale(ex.Operator):
        def __init__(self, by):
            self.by = jnp.float32(by)

        def forward(self, *, inputs):
            return self.by * inputs

    op = Scale(2)
    assert op(jnp.ones(3)).tolist() == [2, 2, 2]
    info = op.forward.cache_info()
    assert (info.hits, info.misses) == (1, 0)
    Scale.forward.precompile(op, inputs=jnp.ones(4))
    op(jnp.zeros(4))
    assert Scale.forward.cache_info().misses == 0


def test_host_operators_are_never_traced():
    seen = []
    op = ex.operator(lambda x: seen.append(x) or x, host=True)
    each = ex.vmap(op)
    for function in (op, lambda x: 2 * op(x), ex.jit(lambda x: op(x)), lambda x: each(x[None])):
        for transform in (jax.jit, jax.grad, lambda f: ex.vmap(lambda y: f(y))):
            with raises(TypeError, "host = True"):
                transform(function)(
                    jnp.ones(()) if transform in (jax.jit, jax.grad) else jnp.ones(2)
                )
    assert not seen
    # It may run on constants while JAX traces.
    assert jax.jit(lambda x: x + op(2.0))(1.0) == 3
    assert seen == [2.0]


def test_bad_operators():
    class Counts(ex.Operator):
        def __init__(self):
            self.count = jnp.zeros(())

        def forward(self, *, inputs):
            self.count = self.count + 1
            return inputs

    class Unhashable(ex.Operator):
        def __init__(self):
            self.names = {"a", "b"}

    class Host(ex.Operator):
        host = True

    with raises(TypeError, "Counts"):
        ex.jit(Counts())(1.0)
    with raises(TypeError, "names"):
        jax.tree.leaves(Unhashable())
    for host in (Host, Host()):
        with pytest.raises(TypeError):
            ex.jit(host)
    with pytest.raises(NotImplementedError):
        Host()(1)
    with pytest.raises(TypeError):
        ex.operator(3)


class Scale(ex.Operator):
    def __init__(self, w):
        self.w = jnp.float32(w)

    def forward(self, *, inputs):
        return self.w * inputs

    def times(self, x):
        return self.w * x


MESH, SPEC = ex.DeviceMesh(2), ex.PartitionSpec(0)
HOST = ex.operator(lambda x: x, host=True)
CALLERS = {
    "jit": lambda op: ex.jit(op),
    "jit of a method": lambda op: ex.jit(op.times),
    "vmap": lambda op: ex.vmap(op),
    "pmap": lambda op: ex.pmap(ex.vmap(op)),
    "one device": lambda op: ex.pmap(op, 1),
    "method": lambda op: ex.pmap(op.times),
    "mesh": lambda op: ex.mesh_sharded(op, MESH, SPEC),
    "method on a mesh": lambda op: ex.mesh_sharded(op.times, MESH, SPEC),
    "stages": lambda op: ex.pipeline_parallel([op], ex.DeviceMesh(1), 2),
    "jitted in a graph": lambda op: graph_of(ex.jit(op)),
    "method in a graph": lambda op: graph_of(Holds(op.times)),
}


def graph_of(step):
    return ex.structural_jit(lambda x: step(HOST(x)), execution_strategy="parallel")


class Holds(ex.Operator):
    def __init__(self, step):
        self.step, self.host_step = step, HOST

    def forward(self, *, inputs):
        return self.step(inputs)


@pytest.mark.parametrize("name", CALLERS)
def test_callers_of_an_operator_use_its_changed_arrays(name):
    op, x = Scale(2), jnp.ones((4, 2))
    fn = CALLERS[name](op)
    for w in (2.0, 3.0):
        op.w = jnp.float32(w)
        np.testing.assert_array_equal(fn(x), w * x)


def test_public_names_are_documented():
    for name in ex.__all__:
        assert inspect.getdoc(getattr(ex, name)), name
