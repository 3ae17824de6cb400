"""`profile_fn`: would catch unfinished results, compilation that counts as running, donated
arguments that are deleted, and resources that differ from the figures of the system."""

from __future__ import annotations

import math
import mmap
import resource
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import execution as ex
from jaxkern.core import timing
from jaxkern.core.timing import CompileClock

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def test_counts_calls_and_waits():
    calls = []

    def slow(x):
        calls.append(x)
        return jax.pure_callback(lambda y: (time.sleep(0.02), y)[1], x, x)

    measured = jk.benchmarking.profile_fn(slow, jnp.ones(3), calls=4, seconds=0, warmup=2)
    assert len(calls) == 1 + 2 + 4
    assert len(measured) == 4
    assert measured.min >= 0.02
    assert measured.name == "slow"
    assert measured.dimensions == {"args[0]": "float32[3]"}


def test_figures_by_attribute_and_by_name():
    measured = jk.benchmarking.profile_fn(sorted, [3, 1, 2], calls=20, seconds=0)
    for name in ("median", "mean", "std", "min", "max", "p90", "compile_seconds"):
        assert measured[name] == getattr(measured, name)
    assert measured.median == np.median(measured.seconds)
    with raises(KeyError, "p17"):
        measured["p17"]
    assert "sorted: 20 samples" in str(measured)


def test_compile_time_is_separate():
    def chain(x):
        for i in range(60):
            x = jnp.sin(x) + i
        return x

    fn = jax.jit(chain)
    first = jk.benchmarking.profile_fn(fn, jnp.ones(4), calls=5, seconds=0)
    again = jk.benchmarking.profile_fn(fn, jnp.ones(4), calls=5, seconds=0)
    assert 0.5 * first.first_call_seconds < first.compile_seconds <= first.first_call_seconds
    assert first.median < first.compile_seconds / 5
    # A second query of the donated arguments does not lower the function again.
    assert again.compile_seconds < first.compile_seconds / 5


def test_nested_compilations_count_once():
    clock = CompileClock()
    clock.spans = [(0.0, 10.0), (2.0, 5.0), (9.0, 12.0), (20.0, 21.0)]
    assert clock.seconds == 13.0


def test_donated_arguments_are_copied():
    add = jax.jit(lambda state, x: {"a": state["a"] + x}, donate_argnums=0)
    state, x = {"a": jnp.zeros(1000)}, jnp.ones(1000)
    measured = jk.benchmarking.profile_fn(add, state, x, calls=5, seconds=0)
    assert len(measured) == 5
    np.testing.assert_array_equal(state["a"], 0)
    assert "Donated arguments were copied" in measured.methodology[0]
    # Static arguments shift the positions of those after them.
    add = jax.jit(lambda how, x: x + 1, static_argnums=0, donate_argnums=1)
    assert len(jk.benchmarking.profile_fn(add, "fast", x, calls=3, seconds=0)) == 3
    assert not x.is_deleted()


def test_a_function_of_execution_jit_donates_nothing():
    x = jnp.zeros((300, 300))
    measured = jk.benchmarking.profile_fn(ex.jit(lambda x: x + 1), x, calls=3, seconds=0)
    assert "copied" not in measured.methodology[0]


def test_donation_inside_the_function():
    inner = jax.jit(lambda x: x + 1, donate_argnums=0)

    def outer(x):
        return inner(x)

    with raises(ValueError, "args[0]", "outer"):
        jk.benchmarking.profile_fn(outer, jnp.zeros(1000))


def test_invalid_arguments():
    with raises(TypeError, "fn"):
        jk.benchmarking.profile_fn(3)
    with raises(TypeError, "path how", "str"):
        jk.benchmarking.profile_fn(jax.jit(lambda x, how: x), 1.0, "fast")
    with pytest.raises(TypeError):
        jk.benchmarking.profile_fn(jax.jit(lambda x: int(x)), 1.0)
    for name, values in {
        "calls": (0, 1.5, True),
        "warmup": (-1,),
        "seconds": (math.nan, -1, "2", None),
    }.items():
        for wrong in values:
            with raises(ValueError, name, repr(wrong)):
                jk.benchmarking.profile_fn(sum, [1], **{name: wrong})


def touch_memory(size):
    """Allocate, write and free memory.

    It is a mapping, because an array may receive memory that the allocator kept from another test.
    """
    with mmap.mmap(-1, size, flags=_PRIVATE) as memory:
        for start in range(0, size, 2**20):
            memory[start : start + 2**20] = bytes(2**20)


def test_peak_memory():
    def measure(size):
        with jk.benchmarking.ResourceMeter() as meter:
            touch_memory(size)
        return meter.used

    size = 150 * 2**20
    before, used, after = measure(2**20), measure(size), measure(2**20)
    assert used.peak_of_span
    assert 0.98 * size < used.peak_bytes - used.start_bytes < 1.3 * size
    # The peak was reset: the blocks before and after do not include the array.
    assert max(before.peak_bytes, after.peak_bytes) < used.peak_bytes - 0.8 * size


def test_cpu_time():
    def spin(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    start = resource.getrusage(resource.RUSAGE_SELF)
    with jk.benchmarking.ResourceMeter() as meter:
        spin(0.2)
        time.sleep(0.2)
    end = resource.getrusage(resource.RUSAGE_SELF)
    expected = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    assert meter.used.cpu_seconds == pytest.approx(expected, abs=0.05)
    assert meter.used.wall_seconds > 0.39
    assert meter.used.cores_busy < 0.9


def test_number_of_calls_is_limited(monkeypatch):
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    assert len(jk.benchmarking.profile_fn(len, [1])) == 10_000
