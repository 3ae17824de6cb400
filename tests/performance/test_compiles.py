"""Would catch a wrong count of traces or compilations, a wrong cause, and a remaining listener."""

from __future__ import annotations

import functools
import logging
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.core.processes import run_python

from jaxkern import performance
from jaxkern.core import compat
from jaxkern.performance import compiles


def kinds(record):
    return [[(c.argument, c.kind) for c in changes] for changes in record.changes]


@pytest.fixture
def unchanged():
    """Check that the state of JAX and logging is the same after a test."""

    def now():
        loggers = [logging.getLogger(name) for name in compat.COMPILE_LOGGERS]
        return [(list(x.filters), x.level) for x in loggers], compiles._read_options()

    before = now()
    yield
    assert now() == before


def test_each_kind_of_change_names_its_argument(unchanged):
    @functools.partial(jax.jit, static_argnames=("mode", "steps"))
    def step(params, x, *, mode="a", steps=1):
        return params["w"] * x * steps

    w, x, integers = jnp.ones(()), jnp.ones(4), jnp.ones(5, jnp.int32)
    with performance.watch_compiles() as watch:
        step({"w": w}, x)
        step({"w": w}, x)  # nothing changed
        step({"w": w}, jnp.ones(5))
        step({"w": w}, integers)
        step({"w": 1.0}, integers)
        step({"w": 1.0}, integers, mode="b")
        step({"w": 1.0}, integers, mode="c")
        step({"w": 1.0, "v": w}, integers, mode="c")
    record = watch[step]
    assert (record.traces, record.compiles) == (7, 7)
    assert kinds(record) == [
        [("x", "shape")],
        [("x", "dtype")],
        [("params['w']", "weak type")],
        [("mode", "structure")],
        [("mode", "static value")],
        [("params['v']", "structure")],
    ]
    change = record.changes[4][0]
    assert (change.before, change.now) == ("'b'", "'c'")
    assert "x: shape (4,) -> (5,)" in str(watch)
    assert record.compile_seconds > 0
    assert record.trace_seconds > 0


def test_positional_static_values_and_varargs():
    @functools.partial(jax.jit, static_argnums=1)
    def scale(x, factor, *more):
        return x * factor + sum(more)

    one = jnp.ones(2)
    with performance.watch_compiles() as watch:
        scale(one, 2, one)
        scale(one, 3, one)
        scale(one, 3, jnp.ones((2, 2)))
    assert kinds(watch[scale]) == [[("factor", "static value")], [("more[0]", "shape")]]


def test_changes_since_a_compilation_before_the_watch():
    double = jax.jit(lambda x: 2 * x)
    double(jnp.ones(3))
    with performance.watch_compiles() as watch:
        double(jnp.ones(3))
        assert watch[double].traces == 0
        double(jnp.ones(4))
    assert kinds(watch[double]) == [[("x", "shape")]]


def test_function_defined_in_each_call():
    x = jnp.ones(3)
    with performance.watch_compiles() as watch:
        for _ in range(3):
            jax.jit(lambda y: y + 1)(x)
    (record,) = [f for f in watch.functions if f.name == "<lambda>"]
    assert (record.traces, record.compiles) == (3, 3)
    assert kinds(record) == [[("", "function")]] * 2


def test_context_is_not_an_argument():
    double = jax.jit(lambda x: x @ x)
    x = jnp.ones((3, 3))
    with performance.watch_compiles() as watch:
        double(x)
        with jax.default_matmul_precision("highest"):
            double(x)
    assert kinds(watch[double]) == [[("", "context")]]


def test_change_of_placement():
    double = jax.jit(lambda x: 2 * x)
    x = jnp.ones(4)
    with performance.watch_compiles() as watch:
        double(x)
        double(jax.device_put(x, jax.devices()[1]))
    assert watch[double].compiles == 2
    assert watch[double].changes[-1][0].kind == "sharding"


def test_inner_functions_are_traced_but_not_compiled():
    inner = jax.jit(lambda x: x + 1)

    @jax.jit
    def outer(x):
        return inner(x) * inner(x)

    with performance.watch_compiles() as watch:
        outer(jnp.ones(3))
    assert (watch[inner].traces, watch[inner].compiles) == (1, 0)
    assert (watch[outer].traces, watch[outer].compiles) == (1, 1)


def test_failed_trace_does_not_affect_the_next():
    @jax.jit
    def picky(x):
        if x.shape[0] == 3:
            raise ValueError("three")
        return x

    with performance.watch_compiles() as watch:
        with pytest.raises(ValueError, match="three"):
            picky(jnp.ones(3))
        picky(jnp.ones(4))
        picky(jnp.ones(5))
    assert (watch[picky].traces, watch[picky].compiles) == (3, 2)
    assert str(watch[picky].changes[-1][0]) == "x: shape (4,) -> (5,)"


def test_nested_watches(unchanged):
    double = jax.jit(lambda x: 2 * x)
    sizes = [jnp.ones(n) for n in (1, 2, 3)]
    with performance.watch_compiles() as outer:
        double(sizes[0])
        with performance.watch_compiles() as inner:
            double(sizes[1])
        double(sizes[2])
    double(jnp.ones(9))
    assert (outer[double].compiles, inner[double].compiles) == (3, 1)


def test_functions_in_threads(unchanged):
    def make(index):
        def fn(x):
            return x * index

        fn.__name__ = fn.__qualname__ = f"fn{index}"
        return jax.jit(fn)

    arrays = [jnp.ones(n) for n in range(2, 7)]
    with performance.watch_compiles() as watch, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda f: [f(x).block_until_ready() for x in arrays], map(make, range(4))))
    for index in range(4):
        record = watch[f"fn{index}"]
        assert (record.traces, record.compiles) == (5, 5)
        assert kinds(record) == [[("x", "shape")]] * 4


def test_nothing_is_logged(unchanged, caplog):
    with performance.watch_compiles():
        jax.jit(lambda x: x - 1)(jnp.ones(3))
    assert not caplog.records


def test_persistent_cache_is_silent(tmp_path):
    code = (
        "import sys, jax, jax.numpy as jnp; from jaxkern import performance\n"
        "performance.enable_persistent_cache(sys.argv[1])\n"
        "with performance.watch_compiles() as watch:\n"
        "    jax.jit(lambda x: x + 1)(jnp.ones(3))\n"
        "print(watch.compiles)"
    )
    for _ in ("misses", "hits"):
        # Without XLA's own messages about unknown features of the processor.
        process = run_python(code, None, tmp_path, TF_CPP_MIN_LOG_LEVEL="3")
        assert int(process.stdout) >= 1
        assert process.stderr == ""


def test_requested_logs_remain(unchanged):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("jax").addHandler(handler)
    try:
        with jax.log_compiles(), performance.watch_compiles():
            jax.jit(lambda x: x - 2)(jnp.ones(3))
    finally:
        logging.getLogger("jax").removeHandler(handler)
    texts = [record.getMessage() for record in records]
    assert any("Compiling" in text for text in texts)
    assert not any("CACHE MISS" in text for text in texts)


def test_watch_does_not_recompile():
    double = jax.jit(lambda x: 2 * x)
    x = jnp.ones(3)
    double(x)
    with performance.watch_compiles() as watch:
        double(x)
    double(x)
    assert watch.traces == watch.compiles == 0
    assert double._cache_size() == 1


def test_partials_and_callable_objects():
    class Scale:
        def __call__(self, x):
            return 3 * x

    def power(x, n):
        return x**n

    cube, scale = jax.jit(functools.partial(power, n=3)), jax.jit(Scale())
    with performance.watch_compiles() as watch:
        for fn in (cube, scale):
            for n in (3, 4):
                fn(np.ones(n, np.float32))
    for fn in (cube, scale):
        assert (watch[fn].traces, watch[fn].compiles) == (2, 2)
        assert kinds(watch[fn]) == [[("x", "shape")]]
    assert watch.traces == 4


def test_counts_with_a_disabled_log():
    double = jax.jit(lambda x: 2 * x)
    logging.disable(logging.WARNING)
    try:
        with performance.watch_compiles() as watch:
            double(np.ones(3, np.float32))
            double(np.ones(4, np.float32))
    finally:
        logging.disable(logging.NOTSET)
    assert (watch[double].traces, watch[double].compiles) == (2, 2)
