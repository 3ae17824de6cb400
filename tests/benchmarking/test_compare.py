"""`compare`: would catch timing of unequal work, arms that are not interleaved, and an error that
does not say where results differ."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern.benchmarking import DifferentResultsError, compare
from jaxkern.core import timing

X = jnp.arange(12.0).reshape(3, 4)


def quick(arms, *args, **options):
    return compare(arms, *args, **{"rounds": 2, "warmup": 0, "turn_seconds": 0, **options})


def test_arms_are_interleaved_and_rounds_rotate():
    calls = []
    quick({name: partial(calls.append, name) for name in "abc"}, rounds=3)
    # A check of each arm, a call of each to choose the repeats, then turns of two calls.
    assert "".join(calls[:6]) == "abcabc"
    assert "".join(calls[6:]) == "aabbcc" + "bbccaa" + "ccaabb"


def test_speedup(monkeypatch):
    """Uses a simulated clock that only the arms advance."""
    clock = SimpleNamespace(now=0.0)

    def advance(seconds):
        clock.now += seconds

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    arms = {"slow": partial(advance, 0.02), "fast": partial(advance, 0.002)}
    result = compare(arms, rounds=6, warmup=0)
    assert result.fastest == "fast"
    assert result["slow"].min == pytest.approx(0.02)
    speedup = result.speedup("fast", over="slow")
    assert speedup.low == pytest.approx(10)
    assert speedup.high == pytest.approx(10)
    assert result["slow"].rounds == result["fast"].rounds
    with raises(KeyError, "slow", "fast"):
        result["other"]


def one_wrong(x):
    return {"a": x.at[2, 1].add(1.0), "b": [x]}


@pytest.mark.parametrize(
    ("second", "facts"),
    [
        (one_wrong, ["['a']", "1 of 12", "[2, 1]", "9.0", "10.0"]),
        (lambda x: {"a": x, "b": [x[0]]}, ["['b'][0]", "(3, 4)", "(4,)"]),
        (lambda x: {"a": x, "b": [x.astype(jnp.bfloat16)]}, ["['b'][0]", "bfloat16"]),
        (lambda x: {"a": x}, ["PyTreeDef"]),
    ],
)
def test_different_results_raise_before_timing(second, facts):
    calls = []

    def counted(x):
        calls.append(1)
        return {"a": x, "b": [x]}

    with raises(DifferentResultsError, "'first'", "'second'", *facts):
        compare({"first": counted, "second": second}, X)
    assert len(calls) == 1


def test_equal_results():
    nan = jnp.asarray([jnp.nan, 1.0])
    assert quick({"a": lambda: nan, "b": lambda: nan * 1}).checked == "All results are equal"
    keys = {"a": lambda: jax.random.key(3), "b": lambda: jax.random.key(3)}
    assert quick(keys)["a"].kind == "arm"
    keys["b"] = lambda: jax.random.key(4)
    with pytest.raises(DifferentResultsError):
        quick(keys)
    # Adjacent floats are not equal.
    with pytest.raises(DifferentResultsError):
        quick({"a": lambda: np.float32(1), "b": lambda: np.nextafter(np.float32(1), 2)})


def test_close_results():
    arms = {"a": lambda: X, "b": lambda: X * (1 + 1e-5)}
    with pytest.raises(DifferentResultsError):
        quick(arms)
    assert quick(arms, check="close").checked == "All results are close"
    with raises(DifferentResultsError, "rtol=1e-07", "atol=0"):
        quick(arms, check="close", rtol=1e-7)
    # The coarser dtype determines rtol: bfloat16's epsilon is 2**-7.
    quick({"a": lambda: X, "b": lambda: X.astype(jnp.bfloat16)}, check="close")
    # Integers have no tolerance, and are not close to floats.
    for other in (lambda: jnp.int32(2), lambda: jnp.float32(1)):
        with pytest.raises(DifferentResultsError):
            quick({"a": lambda: jnp.int32(1), "b": other}, check="close")


def test_check_by_a_function():
    arms = {"a": lambda: 1, "b": lambda: 5}

    def same_parity(a, b):
        return a % 2 == b % 2

    assert quick(arms, check=same_parity).checked == "All results passed same_parity"
    with raises(DifferentResultsError, "False"):
        quick(arms, check=lambda a, b: a == b)
    with raises(DifferentResultsError, "Not equal to tolerance"):
        quick(arms, check=np.testing.assert_allclose)


def test_unchecked_results_are_reported():
    result = quick({"a": lambda: 1, "b": lambda: 2}, check=None)
    assert result.checked == "The results were not compared"
    assert "not compared" in result["a"].methodology[0]


def test_back_to_back_calls_wait_once():
    waited = []

    class Result:
        def block_until_ready(self):
            waited.append(1)
            return self

    arms = dict.fromkeys(("a", "b"), Result)
    options = {"check": None, "rounds": 1, "warmup": 0, "turn_seconds": 1e-3}
    each = compare(arms, **options)
    count, result = len(waited), compare(arms, back_to_back=True, **options)
    together = len(waited) - count
    # Each arm: the check, the choice of repeats, an untimed call, a turn.
    assert together == 2 * 4
    assert together < count
    assert "every call waits" in each["a"].methodology[1]
    assert "a turn waits" in result["a"].methodology[1]
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    with raises(ValueError, "got b"):
        compare({"a": jnp.sin, "b": donating}, X, back_to_back=True)


def test_donating_arms_receive_fresh_arguments():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    result = compare({"donates": add, "keeps": jax.jit(lambda x: x + 1)}, X, rounds=3)
    assert len(result["donates"]) == 3
    assert float(X[0, 1]) == 1.0


def test_native_against_jax():
    chain = jk.image.Compose([jk.image.Normalize((0.5,) * 3, (0.5,) * 3)])
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)

    def run(backend, x):
        with jk.backend(backend):
            return chain.apply(x, ({},))

    arms = {name: jax.jit(partial(run, name)) for name in ("native", "jax")}
    result = compare(arms, images, check="close", rounds=2)
    assert result["jax"].dimensions == {"args[0]": "uint8[2, 16, 16, 3]"}


def test_invalid_arguments():
    arms = {"a": lambda: 1, "b": lambda: 1}
    for fact, wrong in {"arms": {"alone": len}, "got 2": {"a": len, "b": 2}}.items():
        with raises((TypeError, ValueError), fact):
            compare(wrong)
    for name, wrong in (
        ("check", "same"),
        ("rounds", 0),
        ("rounds", 1.5),
        ("warmup", -1),
        ("turn_seconds", math.nan),
        ("turn_seconds", math.inf),
        ("rtol", math.nan),
        ("atol", -1.0),
    ):
        with raises(ValueError, name, repr(wrong)):
            compare(arms, **{name: wrong})


def test_arm_that_modifies_its_arguments():
    """The second arm would sort an array that the first one has sorted."""

    def in_place(x):
        x.sort()
        return x

    for check in ("equal", None):
        with raises(ValueError, "'in place'", "args[0]"):
            quick({"in place": in_place, "copy": np.sort}, np.array([2.0, 1.0]), check=check)
