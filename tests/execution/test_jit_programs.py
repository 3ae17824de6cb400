"""Would catch: a program used for another signature, or an unnecessary compilation."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import execution as ex
from jaxkern import performance


def counts(fn):
    info = fn.cache_info()
    return info.hits, info.misses, info.evictions, info.programs


def total(*xs, **named):
    leaves = jax.tree.leaves((xs, named))
    return sum(100 * ord(x[0]) if isinstance(x, str) else jnp.sum(x) for x in leaves)


X = np.arange(6, dtype=np.float32)
CALLS = [
    ((X,), {}, 15, ""),
    ((X[:3],), {}, 3, ""),
    ((X.astype(np.int32),), {}, 15, ""),
    ((X, 2.0), {}, 17, ""),
    ((X, 2), {}, 17, ""),
    ((X, True), {}, 16, ""),
    ((X, "a"), {}, 15, "a"),
    ((X, "b"), {}, 15, "b"),
    (("a", X), {}, 15, "a"),
    (([X, X],), {}, 30, ""),
    (((X, X),), {}, 30, ""),
    (({"x": X, "y": X},), {}, 30, ""),
    (({"x": X, "mode": "deep"},), {}, 15, "d"),
    ((X,), {"y": X}, 30, ""),
    ((X,), {"z": X}, 30, ""),
    ((X,), {"self": "text"}, 15, "t"),
    ((X, None), {}, 15, ""),
    ((), {}, 0, ""),
]


def test_each_signature_has_its_program():
    f = ex.jit(total)
    for repeat in range(2):
        for index, (args, kwargs, expected, text) in enumerate(CALLS):
            assert float(f(*args, **kwargs)) == expected + 100 * ord(text or "\0"), index
            assert counts(f)[1] == (index + 1 if repeat == 0 else len(CALLS))
    assert counts(f) == (len(CALLS), len(CALLS), 0, len(CALLS))


@dataclasses.dataclass(frozen=True)
class Setting:
    value: float


def test_static_values_are_distinguished_by_types_and_bits():
    f = ex.jit(lambda x, s: x + math.copysign(2, s.value) * (1 + isinstance(s.value, int)))
    for _ in range(2):
        settings = [Setting(0.0), Setting(-0.0), Setting(0)]
        assert [float(f(0.0, s)) for s in settings] == [2, -2, 4]
    assert counts(f) == (3, 3, 0, 3)


@pytest.mark.parametrize(
    ("sample", "arrays"),
    [
        (np.ones(4, np.float32), [jnp.ones(4), np.ones(4), np.ones((1, 4))[0]]),
        (jnp.ones(4), [np.ones(4, np.float32)]),
        (jax.ShapeDtypeStruct((), jnp.float32, weak_type=True), [jnp.asarray(2.0)]),
        (jax.random.key(0), [jax.random.key(1)]),
        (2.0, [3.0]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_arguments_that_are_equal_to_jax_share_a_program(sample, arrays):
    f = ex.jit(lambda x, kind: jax.random.normal(x) if kind == "key" else x + 1)
    kind = "key" if jnp.issubdtype(jnp.result_type(sample), jax.dtypes.extended) else "add"
    f.precompile(sample, kind)
    with performance.watch_compiles() as watch:
        for x in arrays:
            f(x, kind)
    assert (watch.traces, watch.compiles) == (0, 0)
    assert counts(f) == (len(arrays), 0, 0, 1)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_each_sharding_has_a_program(kind):
    meshes = [
        jax.make_mesh((2,), ("i",), axis_types=(kind,), devices=jax.devices()[at : at + 2])
        for at in (0, 2)
    ]
    split = [jax.NamedSharding(mesh, jax.P("i")) for mesh in meshes]
    shardings = [None, *jax.devices()[:2], *split, jax.NamedSharding(meshes[0], jax.P())]
    f, x = ex.jit(lambda x: x + 1), np.arange(4, dtype=np.float32)
    for sharding in split:
        f.precompile(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding))
    arrays = [x if s is None else jax.device_put(x, s) for s in shardings]
    with performance.watch_compiles() as watch:
        for array in arrays:
            for _ in range(2):
                result = f(array)
                np.testing.assert_array_equal(result, x + 1)
                assert result.committed == (array is not x)
                if array is not x:
                    assert result.sharding.is_equivalent_to(array.sharding, 1)
    assert counts(f) == (8, 4, 0, 6)
    assert watch[f].compiles == 4


def test_each_context_has_a_program():
    double = jk.Op("tests.execution_double", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
    f, x = ex.jit(lambda x: double(x)), jnp.arange(8.0)
    with jk.backend("jax"):
        f(x)
    with raises(Exception, "execution_double"), jk.backend("native"):
        f(x)
    f(x)
    assert counts(f) == (0, 2, 0, 2)
    g = ex.jit(lambda x: x * 2)
    for _ in range(2):
        assert g(np.ones(2)).dtype == g(1.5).dtype == jnp.float32
        with jax.enable_x64(True):
            assert g(np.ones(2)).dtype == g(1.5).dtype == jnp.float64
    assert counts(g) == (4, 4, 0, 4)
    h = ex.jit(lambda x: x @ x)
    meshes = [jax.make_mesh((1,), ("i",), devices=jax.devices()[i : i + 1]) for i in (0, 1)]
    for mesh in meshes:  # they differ only in their devices
        for _ in range(2):
            with jax.set_mesh(mesh):
                assert h(np.ones(2)).devices() == set(mesh.devices.flat)
    assert counts(h) == (2, 2, 0, 2)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        ex.jit(lambda x: jnp.log(x))(-1.0)


def test_compile_watches_name_functions_and_arguments():
    @ex.jit
    def scaled(x, mode="sum", *, factor=1.0):
        return x.sum() * factor if mode == "sum" else x * factor

    class Double(ex.Operator):
        def forward(self, *, inputs):
            return 2 * inputs

    double, y = ex.jit(Double)(), X[:4]
    with performance.watch_compiles() as watch:
        scaled(X), scaled(y), scaled(y, "keep"), scaled(y, "copy"), scaled(y, "copy", factor=y)
        with jax.default_matmul_precision("highest"):
            scaled(y, "copy", factor=y)
        scaled(jax.device_put(y, jax.devices()[1]), "copy", factor=y)
        double(X), double(y), double(y)
    assert (watch[scaled].traces, watch[scaled].compiles) == (7, 7)
    assert [(change.argument, change.kind) for (change,) in watch[scaled].changes] == [
        ("x", "shape"),
        ("mode", "structure"),
        ("mode", "static value"),
        ("factor", "structure"),
        ("", "context"),
        ("", "sharding"),
    ]
    (operator,) = [f for f in watch.functions if f.name == "Double"]
    assert (operator.traces, operator.compiles) == (2, 2)
    assert [change.argument for (change,) in operator.changes] == ["inputs"]


def test_errors_are_those_of_the_call():
    f = ex.jit(lambda x, y: x @ y)
    x = jnp.ones((2, 2))
    f(x, x)
    with pytest.raises(TypeError):
        f(x, jnp.ones((3, 2)))
    with pytest.raises(TypeError):
        f(x)
    assert counts(f) == (0, 1, 0, 1)
    deleted = jnp.ones((2, 2))
    deleted.delete()
    with pytest.raises(RuntimeError):
        f(deleted, deleted)
    with raises(jax.errors.TracerBoolConversionError, "deep"):
        ex.jit(lambda x, deep: x if deep else -x)("text", True)


def test_operators_share_programs():
    class Scale(ex.Operator):
        def __init__(self, factor, mode):
            self.factors, self.mode = [jnp.float32(factor), "a string"], mode

        def forward(self, *, inputs):
            factor, text = self.factors
            assert text == "a string"
            return inputs * factor if self.mode == "times" else inputs / factor

    x = jnp.float32(6)
    cls = ex.jit(Scale)
    ops = [cls(2, "times"), cls(3, "times"), cls(2, "over")]
    for _ in range(2):
        assert [float(op(x)) for op in ops] == [12, 18, 3]
    assert counts(Scale.forward) == (4, 2, 0, 2)
    op = Scale(2, "times")
    one = ex.jit(op)
    assert float(one(x)) == 12
    op.factors = [jnp.float32(5), "a string"]  # the next call uses it
    assert float(one(x)) == 30
    assert counts(one) == (1, 1, 0, 1)


class Config:
    """Static: not a pytree, and compared by identity."""


def test_static_values_are_freed_with_their_program():
    f = ex.jit(lambda x, mode: x + 1, options=ex.JITOptions(cache_size=2))
    refs = []
    for _ in range(5):
        config = Config()
        f(X, config), f(X, config)
        refs.append(weakref.ref(config))
    del config
    gc.collect()
    assert sum(ref() is not None for ref in refs) == 2
    assert f.cache_info().evictions == 3
    f.cache_clear()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 5


def test_a_dropped_function_and_its_arguments_are_freed():
    class Weights(ex.Operator):
        def __init__(self):
            self.w = jnp.ones(3)

        def forward(self, *, inputs):
            return inputs + self.w

    def make():
        def f(x, op):
            return op(x)

        jitted, op = ex.jit(f), Weights()
        for _ in range(2):
            jitted(jnp.ones(3), op)
            jax.jit(lambda x: jitted(x, op))(jnp.ones(3))
        return jitted, weakref.ref(op), weakref.ref(f), weakref.ref(jitted)

    jitted, *refs = make()
    gc.collect()
    assert refs[0]() is None
    del jitted
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_misleading_signatures():
    x = jnp.ones((2, 3))

    def inner(x):
        return x

    @functools.wraps(inner)
    def wrapper(x, mode):
        return inner(x) if mode == "d" else -x

    def varied(*a, **k):
        return sum(a) + sum(k.values())

    assert ex.jit(wrapper)(x, "d").sum() == 6
    assert ex.jit(wrapper)(x, mode="e").sum() == -6
    for fn, args, kwargs, shape in [
        (getattr, (x, "T"), {}, (3, 2)),
        (max, ([x],), {}, (2, 3)),
        (varied, (x,), {"function": x, "self": x, "args": x, "fn": x}, (2, 3)),
    ]:
        jitted = ex.jit(fn)
        for _ in range(2):
            assert jitted(*args, **kwargs).shape == shape
    with pytest.raises(TypeError):
        ex.jit(inner)(x, "text")
    with pytest.raises(TypeError):
        ex.jit(inner)(x, mode="text")


def test_objects_that_are_arrays():
    class Wrapped:
        __slots__ = ("a",)

        def __init__(self, a):
            self.a = a

        def __jax_array__(self):
            return self.a

    f, x = ex.jit(lambda x: jnp.asarray(x) + 1), jnp.ones(2)
    for value in (Wrapped(x), x, Wrapped(2 * x)):
        np.testing.assert_array_equal(f(value), jnp.asarray(value) + 1)


@pytest.mark.parametrize("seed", range(2))
def test_random_calls_against_a_list(seed):
    rng = np.random.default_rng(seed)
    f = ex.jit(lambda x, text="": x.sum() + len(text), options=ex.JITOptions(cache_size=3))
    calls = [(np.ones(n, np.float32), text) for n in (1, 2, 3) for text in ("", "a")]
    order, hits, misses, evictions = [], 0, 0, 0
    for _ in range(60):
        which, ahead = int(rng.integers(len(calls))), rng.random() < 0.1
        for _ in range(1 if ahead else int(rng.integers(1, 4))):
            x, text = calls[which]
            if ahead:
                f.precompile(x, text)
            else:
                assert float(f(x, text)) == x.size + len(text)
                hits, misses = hits + (which in order), misses + (which not in order)
            order = [other for other in order if other != which] + [which]
            evictions += len(order) > 3
            order = order[-3:]
            assert counts(f) == (hits, misses, evictions, len(order))
