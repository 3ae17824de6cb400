"""Would catch: a call that a guessed program serves though another should, or miscounts."""

from __future__ import annotations

import functools
import gc
import math
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkern import execution as ex
from jaxkern import performance


def counts(fn):
    info = fn.cache_info()
    return info.hits, info.misses, info.evictions, info.programs


def warmed(fn, *args, calls=12, **kwargs):
    """Calls until the program is guessed."""
    for _ in range(calls):
        fn(*args, **kwargs)
    assert fn._guess is not None
    return fn


def leaves_and_static(*xs, **named):
    leaves = jax.tree.leaves((xs, named))
    texts = [leaf for leaf in leaves if isinstance(leaf, str)]
    total = sum(jnp.sum(leaf) for leaf in leaves if not isinstance(leaf, str))
    return total, ",".join(texts)


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
    (({"x": X, "how": "deep"},), {}, 15, "deep"),
    ((X,), {"y": X}, 30, ""),
    ((X,), {"z": X}, 30, ""),
    ((X,), {"z": "text"}, 15, "text"),
    ((X, None), {}, 15, ""),
    ((), {}, 0, ""),
]


@pytest.mark.parametrize("known", range(len(CALLS)))
def test_every_other_call_after_a_guess(known):
    f = ex.jit(leaves_and_static)
    args, kwargs, *_ = CALLS[known]
    for _ in range(12):
        f(*args, **kwargs)
    assert counts(f) == (11, 1, 0, 1)
    for index, (args, kwargs, total, text) in enumerate(CALLS):
        for _ in range(2):
            got, how = f(*args, **kwargs)
            assert float(got) == total, index
            assert how == text, index
    assert counts(f) == (11 + len(CALLS) + 1, len(CALLS), 0, len(CALLS))


@pytest.mark.parametrize("length", [1, 3, 60])
def test_calls_that_alternate_are_counted(length):
    f = ex.jit(lambda x: x.sum())
    arrays, calls = [jnp.ones(n) for n in (2, 3)], 0
    for _ in range(300 // length):
        for x in arrays:
            for _ in range(length):
                assert float(f(x)) == x.size
                calls += 1
    assert counts(f) == (calls - 2, 2, 0, 2)


def test_wrong_guesses_become_rare_and_worthy_ones_do_not():
    f = ex.jit(lambda x: x.sum())
    arrays = [jnp.ones(n) for n in (2, 3)]
    for _ in range(20):
        for x in arrays:
            for _ in range(20):
                f(x)
    assert f._patience > 20  # as many calls of one kind in a row are not worth it
    for _ in range(1200):
        f(arrays[0])
    assert f._guess is not None
    f(arrays[1])
    assert f._patience < 20


def test_static_arguments():
    @functools.partial(ex.jit, options=ex.JITOptions(static_argnames=("n", "shape")))
    def f(x, n, *, shape=(1,)):
        return jnp.broadcast_to(x**n, shape)

    x = jnp.float32(3)
    warmed(f, x, 2, shape=(2, 3))
    assert f(x, 2, shape=(2, 3)).shape == (2, 3)
    assert f(x, 2, shape=(3, 2)).shape == (3, 2)
    assert f(x, 2).shape == (1,)
    assert float(f(x, 1)[0]) == 3
    assert float(f(x, n=3)[0]) == 27
    assert f(jnp.int32(3), 2)[0].dtype == jnp.int32
    assert f(jnp.int32(3), 2.0)[0].dtype == jnp.float32  # equal to 2, and of another type
    warmed(f, x, 2)
    with pytest.raises(TypeError, match="has no hash"):
        f(x, [2])
    assert float(f(x, 2)[0]) == 9


def test_contexts_and_shardings_after_a_guess():
    f = ex.jit(lambda x, factor: x * factor, options=ex.JITOptions(cache_size=2))
    x = jnp.arange(8.0)
    warmed(f, x, 2.0)
    mesh = jax.make_mesh((4,), ("i",))
    for spec in (jax.P("i"), jax.P()):
        y = jax.device_put(x, jax.NamedSharding(mesh, spec))
        for _ in range(12):
            np.testing.assert_array_equal(f(y, 2.0), 2 * x)
        assert f.cache_info().programs <= 2
    assert f.cache_info().misses == 3
    with jax.enable_x64(True):
        g = warmed(ex.jit(lambda x: x * 2), 1.5)
        assert g(1.5).dtype == jnp.float64
    assert g(1.5).dtype == jnp.float32
    assert g(1.5).dtype == jnp.float32
    h = warmed(ex.jit(lambda x: x * 2), 1.5)
    assert h(1.5).dtype == jnp.float32
    with jax.enable_x64(True):
        assert h(1.5).dtype == jnp.float64
        assert h(np.float64(1.5)).dtype == jnp.float64


def test_transformations_after_a_guess():
    f = warmed(ex.jit(lambda x: jnp.sin(x).sum()), jnp.ones(3))
    x = jnp.linspace(0, 1, 3)
    np.testing.assert_allclose(jax.grad(f)(x), jnp.cos(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(x), jnp.sin(x).sum(), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f)(x[None]), jnp.sin(x).sum()[None], rtol=1e-6)
    info = f.cache_info()
    assert (info.hits, info.misses, info.inlined) == (11, 1, 3)


def test_errors_after_a_guess_are_those_of_the_call():
    f = warmed(ex.jit(lambda x, y: x @ y), jnp.ones((2, 2)), jnp.ones((2, 2)))
    with pytest.raises(TypeError, match="dot_general"):
        f(jnp.ones((2, 2)), jnp.ones((3, 2)))
    with pytest.raises(TypeError, match=r"argument 1 is a object|has no hash|dot_general|matmul"):
        f(jnp.ones((2, 2)), {1, 2})
    with pytest.raises(TypeError):
        f(jnp.ones((2, 2)))
    assert counts(f)[1:] == (1, 0, 1)
    warmed(f, jnp.ones((2, 2)), jnp.ones((2, 2)), calls=80)
    gone = jnp.ones((2, 2))
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        f(gone, gone)
    assert f._guess is not None  # it was right about the program


def test_donated_arguments_after_a_guess():
    options = ex.JITOptions(donate_argnames=("x", "tree"))
    f = ex.jit(lambda x, keep, *, tree: (x + 1, tree["a"] * 2 + keep), options=options)
    for _ in range(14):
        x, keep, a = jnp.ones(4), jnp.ones(4), jnp.ones(4)
        y, b = f(x, keep, tree={"a": a})
        assert x.is_deleted()
        assert a.is_deleted()
        assert not keep.is_deleted()
        np.testing.assert_array_equal(y, np.full(4, 2))
        np.testing.assert_array_equal(b, np.full(4, 3))
    assert f._guess is not None


def test_operators_share_a_guess():
    class Scale(ex.Operator):
        def __init__(self, factor, how):
            self.factor, self.how = jnp.float32(factor), how

        def forward(self, *, inputs):
            return inputs * self.factor if self.how == "times" else inputs / self.factor

    x = jnp.float32(6)
    cls = ex.jit(Scale)
    ops = [cls(2, "times"), cls(3, "times"), cls(2, "over")]
    for _ in range(4):
        assert [float(ops[0](x)) for _ in range(12)] == [12] * 12
        assert [float(op(x)) for op in ops] == [12, 18, 3]
    info = Scale.forward.cache_info()
    assert (info.misses, info.programs) == (2, 2)
    one = ex.jit(Scale(2, "times"))
    warmed(one, x)
    one._fn.factor = jnp.float32(5)  # an operand: the next call uses it
    assert float(one(x)) == 30


def test_a_wrong_guess_is_no_compilation():
    f = ex.jit(lambda x: x + 1)
    warmed(f, jnp.ones(3)), f(jnp.ones(4)), warmed(f, jnp.ones(3), calls=20)
    four = jnp.ones(4)
    with performance.watch_compiles() as watch:
        for _ in range(3):
            f(four)
    assert (watch.compiles, watch.traces, watch.functions) == (0, 0, [])
    warmed(f, jnp.ones(3), calls=40)
    jax.clear_caches()
    with performance.watch_compiles() as watch:
        f(jnp.ones(3))
    assert (watch[f].compiles, watch[f].traces) == (1, 1)


def test_a_watch_knows_functions_and_their_arguments():
    @ex.jit
    def scaled(x, how="sum", *, factor=1.0):
        return x.sum() * factor if how == "sum" else x * factor

    class Double(ex.Operator):
        def forward(self, *, inputs):
            return 2 * inputs

    double = ex.jit(Double)()
    with performance.watch_compiles() as watch:
        scaled(X), scaled(X[:4]), scaled(X[:4], "keep"), scaled(X[:4], "keep", factor=X[:4])
        double(X), double(X[:4])
    found = watch[scaled]
    assert (found.traces, found.compiles) == (4, 4)
    assert [change.argument for (change,) in found.changes] == ["x", "how", "factor"]
    (operator,) = [f for f in watch.functions if f.name == "Double"]
    assert (operator.traces, operator.compiles) == (2, 2)
    assert [change.argument for (change,) in operator.changes] == ["inputs"]


def test_evicted_and_cleared_programs_are_guessed_no_more():
    f = ex.jit(lambda x: x + 1, options=ex.JITOptions(cache_size=1))
    warmed(f, jnp.ones(3))
    f(jnp.ones(4))
    assert counts(f) == (11, 2, 1, 1)
    f(jnp.ones(3))
    assert counts(f) == (11, 3, 2, 1)
    warmed(f, jnp.ones(3), calls=20)
    f.cache_clear()
    f(jnp.ones(3))
    assert counts(f) == (0, 1, 0, 1)


def test_threads_that_guess():
    f = ex.jit(lambda x: x.sum(), options=ex.JITOptions(cache_size=2))
    arrays, wrong = [jnp.ones(n) for n in (1, 2, 3)], []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            n = int(rng.integers(0, 3))
            for _ in range(int(rng.integers(1, 30))):
                if float(f(arrays[n])) != n + 1:
                    wrong.append(n)
                calls[seed] += 1

    calls = [0] * 4
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # raises what a thread has raised
    assert wrong == []
    info = f.cache_info()
    assert info.hits + info.misses == sum(calls)
    assert info.programs <= 2


class Config:
    """Fixed in a program: no pytree, and told apart by identity."""


def test_what_is_fixed_goes_with_its_program():
    f = ex.jit(lambda x, how: x + 1, options=ex.JITOptions(cache_size=2))
    g = ex.jit(lambda x, c: x + 1, options=ex.JITOptions(cache_size=2, static_argnames="c"))
    kept = []
    for _ in range(6):
        for jitted in (f, g):
            config = Config()
            for _ in range(12):
                jitted(X, config)
            kept.append(weakref.ref(config))
    del config
    gc.collect()
    assert sum(ref() is not None for ref in kept) == 4
    assert f.cache_info().evictions == g.cache_info().evictions == 4
    f.cache_clear(), g.cache_clear()
    gc.collect()
    assert [ref() for ref in kept] == [None] * 12


def test_a_wrong_guess_keeps_nothing():
    class Op(ex.Operator):
        def __init__(self):
            self.w = jnp.ones(3)

        def forward(self, *, inputs):
            return inputs + self.w

    f = ex.jit(lambda x, c: c(x) if isinstance(c, ex.Operator) else x)
    x, kept = jnp.ones(3), []
    for _ in range(3):
        for _ in range(60):
            f(x, "a")
        op = Op()
        f(x, op)
        kept.append(weakref.ref(op))
    del op
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3


def test_a_dropped_function_is_freed():
    def made():
        def f(x):
            return x + 1

        jitted = ex.jit(f)
        warmed(jitted, jnp.ones(3))
        return weakref.ref(f), weakref.ref(jitted)

    refs = made()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_signatures_that_say_something_else():
    x = jnp.ones((2, 3))

    def inner(x):
        return x

    @functools.wraps(inner)
    def wrapper(x, mode):
        return inner(x) if mode == "d" else -x

    def varied(*a, **k):
        return sum(a) + sum(k.values())

    for _ in range(4):
        assert ex.jit(wrapper)(x, "d").sum() == 6
        assert ex.jit(wrapper)(x, mode="e").sum() == -6
    for fn, args, kwargs, shape in [
        (getattr, (x, "T"), {}, (3, 2)),
        (max, ([x],), {}, (2, 3)),
        (varied, (x,), {"z": x, "a": x}, (2, 3)),
        (varied, (x,), {"function": x, "self": x, "args": x, "fn": x}, (2, 3)),
    ]:
        jitted = ex.jit(fn)
        for _ in range(12):
            assert jitted(*args, **kwargs).shape == shape
        assert jitted._guess is not None
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        ex.jit(inner)(x, "text")
    with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
        ex.jit(inner)(x, mode="text")


def test_objects_that_are_arrays_after_a_guess():
    class Wrapped:
        __slots__ = ("a",)

        def __init__(self, a):
            self.a = a

        def __jax_array__(self):
            return self.a

    f, x = ex.jit(lambda x: jnp.asarray(x) + 1), jnp.ones(2)
    assert f(Wrapped(x)).tolist() == [2, 2]
    warmed(f, x)
    assert f(Wrapped(x)).tolist() == [2, 2]


def test_a_static_nan_is_one_value():
    f = ex.jit(lambda x, c: x * c, options=ex.JITOptions(static_argnames="c", cache_size=2))
    for _ in range(6):
        assert np.isnan(f(X, math.nan)).all()
    assert counts(f) == (5, 1, 0, 1)


def test_the_order_of_use_is_exact():
    f = ex.jit(lambda x: x + 1, options=ex.JITOptions(cache_size=2))
    a, b, c = (jnp.ones(n) for n in (1, 2, 3))
    warmed(f, a)
    ex.precompile(f, b)
    f(c)  # takes the place of a, which was used before b
    misses = f.cache_info().misses
    f(b), f(c)
    assert f.cache_info().misses == misses


def test_caches_that_jax_clears_cost_one_compilation_each():
    f = ex.jit(lambda x: x + 1, options=ex.JITOptions(cache_size=2))
    warmed(f, jnp.ones(3)), f(jnp.ones(4)), warmed(f, jnp.ones(3), calls=20)
    jax.clear_caches()
    for _ in range(3):
        f(jnp.ones(3)), f(jnp.ones(4))
    assert f.cache_info().programs == 2
    assert f.cache_info().evictions == 0


@pytest.mark.parametrize("seed", range(4))
def test_random_uses_against_a_list(seed):
    rng = np.random.default_rng(seed)
    f = ex.jit(lambda x, how="": x.sum() + len(how), options=ex.JITOptions(cache_size=3))
    calls = [(np.ones(n, np.float32), how) for n in (1, 2, 3) for how in ("", "a")]
    order, hits, misses, evictions = [], 0, 0, 0
    for _ in range(60):
        which, ahead = int(rng.integers(len(calls))), rng.random() < 0.1
        for _ in range(1 if ahead else int(rng.integers(1, 30))):
            x, how = calls[which]
            if ahead:
                ex.precompile(f, (x, how))
            else:
                assert float(f(x, how)) == x.size + len(how)
                hits, misses = hits + (which in order), misses + (which not in order)
            order = [other for other in order if other != which] + [which]
            evictions += len(order) > 3
            order = order[-3:]
            assert counts(f) == (hits, misses, evictions, len(order))


def test_interrupted_compilations_leave_no_programs():
    def f(x):
        raise KeyboardInterrupt

    jitted = ex.jit(f)
    for n in range(3):
        with pytest.raises(KeyboardInterrupt):
            jitted(np.ones(n + 1))
    assert jitted._programs == {}
    assert ex.jit(lambda x, how: (x, how))(X, np.str_("text"))[1] == "text"
