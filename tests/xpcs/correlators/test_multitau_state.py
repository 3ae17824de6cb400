"""Multi-tau states that are updated block by block.

Would catch: sums that depend on the split into blocks, on x64 or on the devices, delays that are
reported before enough frames were added, and a result that differs from that of one call.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from support.errors import raises
from xpcs.correlators.test_multitau_sums import drawn, sums_of_pixels

import jaxkern as jk

FRAMES = drawn(np.uint16, 150, 24, most=40000)


@functools.cache
def update():
    return jax.jit(jk.xpcs.multitau_update, donate_argnums=0)


def added(frames, block, backend="auto", most=None, dpl=4):
    state = jk.xpcs.multitau_init(frames.shape[1], most or len(frames), frames.dtype, dpl)
    with jk.backend(backend):
        for first in range(0, len(frames), block):
            state = update()(state, frames[first : first + block])
    return state


def same_bits(one, other):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("backend", ["auto", "jax"])
@pytest.mark.parametrize("block", [150, 1, 7])
def test_any_split_equals_the_definition(backend, block):
    frames = FRAMES if block > 1 else FRAMES[:20]
    state = added(frames, block, backend)
    result = jk.xpcs.multitau_result(state)
    sums, weight = sums_of_pixels(frames)
    width = 2 ** np.ceil(np.log2(np.maximum(result.delay / 8, 1)))
    for values, expected, power in zip(result[1:], sums, (2, 1, 1), strict=True):
        scale = weight.astype(float) * width**power
        np.testing.assert_array_equal(values, expected.astype(float) / scale[:, None])
    same_bits(state, added(frames, len(frames)))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_x64_changes_nothing(dtype):
    frames = drawn(dtype, 60, 10)
    states = []
    for on in (False, True):
        with jax.enable_x64(on):
            states.append(added(frames, 60))
    same_bits(*states)
    if dtype == np.float32:
        with raises(ValueError, "float32", "jax_enable_x64"):
            added(frames, 60, "jax")


def test_result_at_any_time():
    """The available delays equal those of one call on the frames so far; the others are NaN."""
    qmap = jk.xpcs.QMap((np.arange(24) % 4).reshape(4, 6), (np.arange(24) % 12).reshape(4, 6))
    state = jk.xpcs.multitau_init(24, 150, np.uint16)
    delay = jk.xpcs.multitau_delays(150)
    for first in range(0, 150, 30):
        state = update()(state, FRAMES[first : first + 30])
        seen = first + 30
        reached = len(jk.xpcs.multitau_delays(seen))
        live = jk.xpcs.multitau_result(state, qmap, frame_time=0.5)
        whole = jk.xpcs.multitau(FRAMES[:seen], qmap, progress=False)
        np.testing.assert_array_equal(live.delay, delay)
        np.testing.assert_array_equal(live.tau, delay * 0.5)
        np.testing.assert_array_equal(live.g2[:reached], whole.g2)
        np.testing.assert_array_equal(live.g2_err[:reached], whole.g2_err)
        np.testing.assert_array_equal(live.n_pairs[:reached], whole.n_pairs)
        assert np.isnan(live.g2[reached:]).all()
        assert live.n_frames == seen
        with jk.backend("jax"):
            pure_jax = jk.xpcs.multitau_result(state, qmap, bins=[2])
        np.testing.assert_allclose(pure_jax.g2[:, 0], live.g2[:, 1], rtol=1e-12)
        np.testing.assert_allclose(pure_jax.g2_err[:, 0], live.g2_err[:, 1], rtol=1e-9)
        each = jk.xpcs.multitau_result(state)
        assert (np.isnan(each.G).all(1) == (np.arange(len(delay)) >= reached)).all()


def test_more_frames_than_n_frames_max():
    """Frames after `n_frames_max` contribute to the existing delays."""
    result = jk.xpcs.multitau_result(added(FRAMES, 50, most=40))
    expected = jk.xpcs.multitau_result(added(FRAMES, 50))
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(one, other[: len(result.delay)])


def test_scan_over_a_ring():
    ring = jk.ring.Ring(jax.ShapeDtypeStruct((10, 24), np.uint16), 16)
    for block in np.split(FRAMES, 15):
        ring.put(block)

    @jax.jit
    def run(state, token):
        def step(carry, _):
            frames, token = jk.ring.pop(ring, carry[1])
            return (jk.xpcs.multitau_update(carry[0], frames), token), None

        return jax.lax.scan(step, (state, token), length=15)[0][0]

    state = run(jk.xpcs.multitau_init(24, 150, np.uint16), ring.token())
    same_bits(state, added(FRAMES, 150))


def test_data_sets_and_devices():
    runs = np.stack([FRAMES, FRAMES[::-1], FRAMES // 3])
    states = jax.vmap(lambda _: jk.xpcs.multitau_init(24, 150, np.uint16))(jnp.arange(3))
    states = jax.jit(jax.vmap(jk.xpcs.multitau_update))(states, runs)
    each = [added(run, 150) for run in runs]
    same_bits(states, jax.tree.map(lambda *x: np.stack(x), *each))
    with raises(TypeError, "state", "150, 150, 150"):
        jk.xpcs.multitau_result(states)

    mesh = jax.make_mesh((4,), ("pixels",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = PartitionSpec(None, "pixels")
    state = jk.xpcs.multitau_init(24, 150, np.uint16)
    specs = jax.tree.unflatten(
        jax.tree.structure(state), [PartitionSpec(), PartitionSpec("pixels"), rows, rows, rows]
    )
    parts = jax.shard_map(
        jk.xpcs.multitau_update, mesh=mesh, in_specs=(specs, rows), out_specs=specs
    )
    same_bits(jax.jit(parts)(state, FRAMES), each[0])


def test_counts_that_do_not_fit():
    frames = np.ones((30, 24), np.int32)
    frames[2, 5] = -3
    for backend in ("auto", "jax"):
        state = added(frames, 30, backend)
        with raises(ValueError, "pixel 5", "negative"):
            jk.xpcs.multitau_result(state)
    with raises(ValueError, "row 0, column 5", "negative"):
        jk.xpcs.multitau_result(state, jk.xpcs.QMap(np.ones((4, 6))))
    masked = np.arange(24).reshape(4, 6) != 5
    result = jk.xpcs.multitau_result(state, jk.xpcs.QMap(masked))
    np.testing.assert_array_equal(result.g2[~np.isnan(result.g2)], 1)


def test_wrong_arguments():
    state = jk.xpcs.multitau_init(24, 150, np.uint16)
    with raises(ValueError, "frames", "uint16", "int32[3, 24]"):
        jk.xpcs.multitau_update(state, np.ones((3, 24), np.int32))
    with raises(ValueError, "total", "uint16[3, 23]"):
        jk.xpcs.multitau_update(state, np.ones((3, 23), np.uint16))
    for dtype in (np.float64, np.int8):
        with raises(ValueError, "dtype", f"got {np.dtype(dtype)}"):
            jk.xpcs.multitau_init(24, 150, dtype)
    with raises(ValueError, "n_frames_max", "0"):
        jk.xpcs.multitau_init(24, 0, np.uint8)
    with raises(ValueError, "qmap", "24 pixels", "1 x 5"):
        jk.xpcs.multitau_result(state, jk.xpcs.QMap(np.ones((1, 5))))
    with raises(TypeError, "state", "jit"):
        jax.jit(jk.xpcs.multitau_result)(state)
