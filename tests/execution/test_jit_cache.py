"""Would catch: a stale program, a cache that grows, or one that hides compilations."""

from __future__ import annotations

import enum
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import execution as ex


def counts(fn):
    info = fn.cache_info()
    return info.hits, info.misses, info.evictions, info.programs


def test_weak_types_are_distinguished():
    half, f = jnp.ones(2, jnp.bfloat16), ex.jit(lambda x, y: x + y)
    assert f(half, 1.0).dtype == jnp.bfloat16
    assert f(half, np.float32(1)).dtype == jnp.float32


def test_the_least_recently_used_program_is_evicted_and_freed():
    f = ex.jit(lambda x: jnp.sin(x) + 1, options=ex.JITOptions(cache_size=2))
    arrays = [jnp.ones(n) for n in (1, 2, 3)]
    client = jax.devices()[0].client

    def live():
        gc.collect()
        return len(client.live_executables())

    f(arrays[0]), f(arrays[1])
    before = live()
    f(arrays[0])
    f(arrays[2])  # evicts the program for arrays[1]
    assert counts(f) == (1, 3, 1, 2)
    assert live() == before
    f(arrays[0])
    assert counts(f) == (2, 3, 1, 2)
    f(arrays[1])
    assert counts(f) == (2, 4, 2, 2)
    f.cache_clear()
    assert counts(f) == (0, 0, 0, 0)
    assert live() == before - 2


def test_threads_that_evict_each_others_programs():
    f = ex.jit(lambda x, y: x + y, options=ex.JITOptions(cache_size=2))
    arrays = [jnp.full(n, float(n)) for n in range(1, 6)]
    calls = 40

    def work(seed):
        for n in np.random.default_rng(seed).integers(0, 5, calls):
            assert f(arrays[n], arrays[n]).tolist() == [2.0 * (n + 1)] * (n + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    info = f.cache_info()
    assert info.programs <= 2
    assert info.hits + info.misses == 4 * calls


def test_precompiled_shapes_are_hits():
    traces = []

    def f(x, y):
        traces.append(1)
        return x @ y

    sample = (jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32))
    once = ex.jit(f, options=ex.JITOptions(sample_input=sample))
    assert len(traces) == 1
    assert once(jnp.ones((2, 3)), jnp.ones(3)).tolist() == [3, 3]
    assert counts(once) == (1, 0, 0, 1)
    late = ex.jit(f)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(late.precompile, *sample)
        assert late(jnp.ones((2, 3)), jnp.ones(3)).tolist() == [3, 3]
    assert len(traces) == 2  # one of the threads compiled it
    late(jnp.ones((1, 3)), jnp.ones(3))  # another shape
    assert late.cache_info().programs == 2


def test_under_other_transformations():
    f = ex.jit(lambda x, mode: jnp.sin(x) if mode == "sin" else x)
    x = jnp.arange(3.0)
    np.testing.assert_allclose(jax.grad(lambda x: f(x, "sin").sum())(x), jnp.cos(x), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda x: f(x, "sin"))(x), jnp.sin(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda x: f(x, "sin"))(x), jnp.sin(x), rtol=1e-6)
    assert counts(f) == (0, 0, 0, 0)


def test_kernels_inside():
    crop = jk.image.Compose([jk.image.RandomCrop(8), jk.image.Normalize(0.5, 0.25)])
    images = np.random.default_rng(0).integers(0, 256, (4, 12, 12, 3), np.uint8)
    keys = jk.random.record_keys(0, 0, np.arange(4))
    f = ex.jit(lambda keys, images: crop(keys, images))
    np.testing.assert_array_equal(f(keys, images), jax.jit(crop)(keys, images))
    f(keys, images)
    assert counts(f) == (1, 1, 0, 1)


def test_bad_input():
    with raises(TypeError, "path s", "set"):
        ex.jit(lambda x, s: x)(1.0, {1})
    with pytest.raises(jax.errors.TracerBoolConversionError):
        ex.jit(lambda x: 1 if x else 2)(1.0)

    for wrong, name in ((3, "int"), (int.__class__, "type")):
        with raises(TypeError, f"got {name}"):
            ex.jit(wrong)
    with raises(ValueError, "cache_size"):
        ex.JITOptions(cache_size=0)


def test_nested_programs_count_once():
    """JAX reports the trace of an inner jitted function as part of its caller's too."""

    def nested(depth):
        def f(x):
            time.sleep(0.05)
            return jnp.sin(x) if depth == 0 else jax.jit(nested(depth - 1))(x)

        return f

    f = ex.jit(nested(4))
    started = time.perf_counter()
    f(jnp.ones(3))
    assert 0.25 < f.cache_info().compile_seconds <= time.perf_counter() - started


def test_a_function_that_calls_itself_ends():
    calls = []

    @ex.jit
    def f(x):
        calls.append(x)
        return x + (f(np.ones(2, np.float32)) if len(calls) < 3 else 0)

    with pytest.raises(RecursionError):  # as with jax.jit
        f(np.ones(2, np.float32))
    np.testing.assert_array_equal(f(np.ones(2, np.float32)), [1, 1])


def test_programs_of_several_precisions_count():
    f = ex.jit(lambda x: x @ x, options=ex.JITOptions(cache_size=2))
    for precision in ("bfloat16", "tensorfloat32", "float32", "default"):
        for _ in range(2):
            with jax.default_matmul_precision(precision):
                f(jnp.ones((4, 4)))
    assert counts(f) == (4, 4, 2, 2)


def test_clearing_while_others_compile():
    started, resume = threading.Semaphore(0), threading.Event()

    @ex.jit
    def f(x):
        started.release()
        assert resume.wait(60)
        return x + 1

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(f, jnp.ones(n)) for n in range(1, 5)]
        for _ in calls:
            assert started.acquire(timeout=60)
        f.cache_clear()
        resume.set()
    assert counts(f) == (0, 0, 0, 0)
    f(jnp.ones(1))
    assert counts(f) == (0, 1, 0, 1)


def test_random_keys_enumerations_and_functions():
    class Direction(enum.Enum):
        UP = 1
        DOWN = -1

    f = ex.jit(lambda key, direction, fn: fn(jax.random.normal(key)) * direction.value)
    for seed in (0, 1):
        key = jax.random.key(seed)
        for direction in Direction:
            expected = jnp.sin(jax.random.normal(key)) * direction.value
            np.testing.assert_allclose(f(key, direction, jnp.sin), expected, rtol=1e-6)
    assert counts(f) == (2, 2, 0, 2)
    text = ex.jit(lambda x, mode: -x if mode == "minus" else x)
    assert text(2.0, np.str_("minus")) == -2


def test_known_values_inside_a_trace_compile_nothing():
    f = ex.jit(lambda x: x + 1)
    assert jax.jit(lambda y: f(2.0) + y)(1.0) == 4
    assert counts(f) == (0, 0, 0, 0)


def test_disabled_jit_runs_the_function():
    seen = []

    @ex.jit
    def f(x, mode="double"):
        seen.append(isinstance(x, jax.core.Tracer))
        return 2 * x if mode == "double" else x

    with jax.disable_jit():
        assert f(jnp.ones(3)).tolist() == [2, 2, 2]
        assert f(jnp.ones(3), "keep").tolist() == [1, 1, 1]
    assert seen == [False, False]
    assert f(jnp.ones(3)).tolist() == [2, 2, 2]


def test_threads_compile_a_program_once():
    traces, together = [], threading.Barrier(4)

    @ex.jit
    def f(x):
        traces.append(1)
        time.sleep(0.05)
        return x + 1

    def work(_):
        together.wait(60)
        return float(f(np.float32(1)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [2.0] * 4
    assert len(traces) == 1
    assert counts(f) == (3, 1, 0, 1)


def test_interrupted_and_failed_compilations_cache_nothing():
    failures, started, resume = [True], threading.Event(), threading.Event()

    @ex.jit
    def f(x):
        if failures:
            failures.clear()
            started.set()
            assert resume.wait(60)
            raise KeyboardInterrupt
        return x + 1

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(f, 1.0)
        assert started.wait(60)
        second = pool.submit(f, 1.0)  # waits, then compiles
        resume.set()
        assert float(second.result()) == 2
        with pytest.raises(KeyboardInterrupt):
            first.result()
    assert float(f(1.0)) == 2
    assert counts(f) == (1, 1, 0, 1)
    with pytest.raises(ZeroDivisionError):
        ex.jit(lambda x: 1 / 0)(1.0)


def test_programs_recover_from_clear_caches():
    f = ex.jit(lambda x: x + 1, options=ex.JITOptions(cache_size=2))
    f(jnp.ones(3)), f(jnp.ones(4))
    jax.clear_caches()
    for n in (3, 4, 3):
        assert f(jnp.ones(n)).tolist() == [2] * n
    assert counts(f) == (3, 2, 0, 2)
