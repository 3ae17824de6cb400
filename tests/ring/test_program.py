"""Pop and push inside jitted programs.

Would catch: batches out of order in a scan, a training loop that differs from Python's, an error or
a close that a program does not raise, a stale or foreign token, a program that starves the producer
that it waits for, a recompilation for every ring.
"""

from __future__ import annotations

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern.core import registry

STRUCT = {"x": jax.ShapeDtypeStruct((8, 3), np.float32), "y": jax.ShapeDtypeStruct((8,), np.int32)}


def batches(count: int) -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(8, 3)).astype(np.float32), "y": rng.integers(0, 2, 8, np.int32)}
        for _ in range(count)
    ]


def feed(ring, items, delay: float = 0.0) -> threading.Thread:
    def produce():
        for item in items:
            time.sleep(delay)
            ring.put(item)
        ring.finish()

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    return thread


def wait_for_program() -> None:
    """Wait until a program waits for a batch."""
    while registry.module("cpu").join_waiters(0.0):
        time.sleep(0.001)


def update(weights, batch):
    def loss(w):
        logits = batch["x"] @ w
        return jnp.mean(jnp.logaddexp(0, logits) - batch["y"] * logits)

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.5 * gradient, value


@jax.jit
def epoch(weights, token):
    def step(carry, _):
        batch, token = jk.ring.pop(STRUCT, carry[1])
        weights, value = update(carry[0], batch)
        return (weights, token), value

    (weights, token), losses = jax.lax.scan(step, (weights, token), length=30)
    return weights, token, losses


def test_a_scan_trains_as_the_python_loop_does():
    items = batches(30)
    weights, losses = jnp.zeros(3), []
    for item in items:
        weights, value = jax.jit(update)(weights, item)
        losses.append(float(value))
    for delay in (0.0, 0.001):
        ring = jk.ring.Ring(STRUCT, capacity=3, pop_timeout=20)
        thread = feed(ring, items, delay)
        got, token, got_losses = epoch(jnp.zeros(3), ring.token())
        np.testing.assert_array_equal(token, ring.token())
        np.testing.assert_allclose(got, weights, rtol=1e-5)
        np.testing.assert_allclose(got_losses, losses, rtol=1e-5)
        assert ring.state()["last_delivered"] == 29
        assert ring.stats().copied == 60
        thread.join(10)
    assert epoch._cache_size() == 1  # one program for every ring of the structure


def test_a_token_differs_between_rings():
    tokens = {tuple(np.asarray(jk.ring.Ring(STRUCT).token()).tolist()) for _ in range(20)}
    assert len(tokens) == 20


@pytest.fixture
def pop():
    return jax.jit(lambda token: jk.ring.pop(STRUCT, token)[0])


def test_what_goes_wrong_raises_with_its_message(pop):
    def fails(token, *facts):
        with raises(jax.errors.JaxRuntimeError, *facts):
            jax.block_until_ready(pop(token))

    ring = jk.ring.Ring(STRUCT, pop_timeout=0.05)
    fails(ring.token(), "DEADLINE_EXCEEDED", "batch 0")
    ring.put(batches(1)[0])
    ring.fail(ValueError("a broken file"))
    ring.finish()
    jax.block_until_ready(pop(ring.token()))
    fails(ring.token(), "ABORTED", "batch 1", "ValueError: a broken file")
    fails(ring.token(), "OUT_OF_RANGE", "finished")
    token = ring.token()
    ring.close()
    fails(token, "NOT_FOUND", "closed")
    del ring
    fails(token, "NOT_FOUND", "closed")
    other = jk.ring.Ring({"x": np.zeros((8, 3), np.float32), "y": np.zeros(9, np.int32)})
    fails(other.token(), "INVALID_ARGUMENT", "leaf 1", "int32[8]", "int32[9]")
    fewer = jk.ring.Ring(np.zeros(3, np.float32))
    fails(fewer.token(), "INVALID_ARGUMENT", "2 leaves", "1")


def test_closing_wakes_a_waiting_program(pop):
    ring = jk.ring.Ring(STRUCT, pop_timeout=60)
    token = ring.token()
    assert registry.module("cpu").join_waiters(20.0)
    closing = threading.Thread(target=lambda: (wait_for_program(), ring.close()))
    closing.start()
    start = time.monotonic()
    with raises(jax.errors.JaxRuntimeError, "CANCELLED", "closed"):
        jax.block_until_ready(pop(token))
    assert time.monotonic() - start < 10
    closing.join()


def test_a_producer_that_runs_programs_is_not_starved():
    struct = jax.ShapeDtypeStruct((128, 128), np.float32)
    ring = jk.ring.Ring(struct, capacity=2, pop_timeout=30)
    make = jax.jit(lambda key: jnp.tanh(jax.random.normal(key, (128, 128)) @ jnp.ones((128, 128))))

    @jax.jit
    def total(token):
        def step(token, _):
            batch, token = jk.ring.pop(struct, token)
            return token, (batch @ batch).sum()

        return jax.lax.scan(step, token, length=20)[1]

    made = [np.asarray(make(jax.random.key(i))) for i in range(20)]

    def items():
        wait_for_program()
        yield from (make(jax.random.key(i)) for i in range(20))

    assert registry.module("cpu").join_waiters(20.0)
    thread = feed(ring, items())
    got = total(ring.token())
    np.testing.assert_allclose(got, [(m @ m).sum() for m in made], rtol=1e-3)
    thread.join(10)


def test_push_fills_the_ring_and_waits():
    struct = jax.ShapeDtypeStruct((3,), np.float32)
    ring = jk.ring.Ring(struct, capacity=2, pop_timeout=20)

    @jax.jit
    def produce(token):
        def step(token, i):
            return jk.ring.push(struct, token, jnp.full(3, i)), None

        return jax.lax.scan(step, token, jnp.arange(12.0))[0]

    def run():
        jax.block_until_ready(produce(ring.token()))
        ring.finish()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert [a.tolist() for a in ring] == [[i] * 3 for i in range(12)]
    thread.join(10)
    with raises(jax.errors.JaxRuntimeError, "OUT_OF_RANGE", "finished"):
        jax.block_until_ready(produce(ring.token()))


def test_a_batch_passes_through_two_rings():
    struct = jax.ShapeDtypeStruct((), np.int32)
    first, second = (jk.ring.Ring(struct, capacity=8, pop_timeout=10) for _ in range(2))
    for i in range(5):
        first.put(np.int32(i))

    @jax.jit
    def move(a, b):
        def step(tokens, _):
            batch, a = jk.ring.pop(struct, tokens[0])
            return (a, jk.ring.push(struct, tokens[1], batch * 10)), None

        return jax.lax.scan(step, (a, b), length=5)[0]

    jax.block_until_ready(move(first.token(), second.token()))
    assert [int(second.get(5)) for _ in range(5)] == [0, 10, 20, 30, 40]


def test_what_a_program_cannot_do_is_refused():
    ring = jk.ring.Ring(STRUCT)
    token = ring.token()
    with raises(NotImplementedError, "vmap"):
        jax.vmap(lambda t: jk.ring.pop(STRUCT, t)[0]["y"])(jnp.stack([token, token]))
    with raises(ValueError, "token", "int32[2]"):
        jk.ring.pop(ring, jnp.zeros(2, jnp.int32))
    with raises(ValueError, "['y']", "int32[9]", "int32[8]"):
        jk.ring.push(ring, token, {"x": jnp.zeros((8, 3)), "y": jnp.zeros(9, jnp.int32)})
    with raises(TypeError, "pack"):
        jk.ring.pop(jax.ShapeDtypeStruct((2,), jnp.int4), token)
    program = jax.jit(lambda t: jk.ring.pop(STRUCT, t)[1]).trace(token)
    with raises(NotImplementedError, "on cuda", "CPU", "Ring(..., device=device)"):
        program.lower(lowering_platforms=("cuda",))
    mesh = jax.make_mesh((4,), ("data",))
    spread = jax.device_put(jnp.zeros(4), jax.NamedSharding(mesh, jax.P("data")))
    with raises(NotImplementedError, "devices"):
        jax.jit(lambda t, s: jk.ring.pop(STRUCT, t)[0]["y"].sum() + s)(token, spread)


def test_gradients_pass_by_a_pop():
    struct = jax.ShapeDtypeStruct((3,), np.float32)
    ring = jk.ring.Ring(struct)
    ring.put(np.array([1, 2, 3], np.float32))

    @jax.jit
    def gradient(w, token):
        return jax.grad(lambda w: (w * jk.ring.pop(struct, token)[0]).sum())(w)

    assert gradient(jnp.ones(3), ring.token()).tolist() == [1, 2, 3]
