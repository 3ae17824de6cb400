"""The native multi-tau sums.

Would catch: a pair of frames that is skipped or counted twice, sums that overflow or depend on
threads, wrong ends of a level, and pixels that are assigned to their neighbour's bin.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.errors import raises
from support.xpcs import correlator_oracle as oracle

import jaxkern as jk
from jaxkern import _cpu

DTYPES = [np.uint8, np.uint16, np.uint32, np.int32, np.float32, np.float64]


def sums_of_pixels(frames, dpl=4, bad=(), average=1):
    """G, IP and IF [3, n_tau, P] and their weights; a sum of frames counts once if none is bad."""
    result = oracle.pixel_sums(oracle.select(frames, average=average, bad_frames=bad), dpl)
    sums, weight = np.array([result.G, result.IP, result.IF]), np.array(result.weight, object)
    if not len(bad):
        levels = [level for _, level, _ in oracle.delays(len(frames) // average, dpl)]
        c = average * 2 ** np.array(levels, object)
        sums[1:] = sums[1:] // c[:, None] if sums.dtype == object else sums[1:] / c[:, None]
        weight = weight // c**2
    return sums, weight


def drawn(dtype, n, pixels, seed=0, most=None):
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return random.uniform(0, 3, (n, pixels)).astype(dtype)
    most = most or min(np.iinfo(dtype).max, (2**32 - 2) // n)
    return random.integers(0, most, (n, pixels), dtype, endpoint=True)


def native(frames, pixel=None, static=None, dynamic=None, **options):
    pixels = np.arange(frames.shape[1], dtype=np.int32) if pixel is None else pixel
    static = np.arange(len(pixels), dtype=np.int32) if static is None else static
    dynamic = static if dynamic is None else dynamic
    return _cpu.multitau(
        frames,
        pixels.astype(np.int32),
        static.astype(np.int32),
        dynamic.astype(np.int32),
        int(static.max(initial=0)) + 1,
        int(dynamic.max(initial=0)) + 1,
        **options,
    )


def check_sums(result, expected, weight, exact=True):
    assert result[0].tolist() == [float(w) for w in weight]
    if exact:
        np.testing.assert_array_equal(result[1], expected.astype(np.float64))
    else:
        np.testing.assert_allclose(result[1], expected.astype(np.float64), rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 9, 40, 129, 517])
def test_each_pixel(dtype, n):
    frames = drawn(dtype, n, 37)
    expected, weight = sums_of_pixels(frames)
    check_sums(native(frames), expected, weight, np.dtype(dtype).kind != "f")


@pytest.mark.parametrize("most", [1, 255, 32767, 32768, 65535])
def test_largest_counts(most):
    """Counts on both sides of the largest that pairs of 15 bits hold, all at it."""
    frames = np.full((260, 40), most, np.uint16)
    frames[:, 20:] = drawn(np.uint16, 260, 20, most=most)
    expected, weight = sums_of_pixels(frames)
    check_sums(native(frames), expected, weight)


def test_bins_and_masks():
    """Pixels in any place of bins in any order; threads change nothing."""
    random = np.random.default_rng(3)
    frames = drawn(np.uint16, 150, 3000)
    frames[:, ::7] = 0
    pixel = np.sort(random.choice(3000, 1500, replace=False))
    static = random.integers(0, 20, 1500)
    dynamic = static // 3
    result = native(frames, pixel, static, dynamic, threads=1)
    each, weight = sums_of_pixels(frames[:, pixel])
    expected = np.zeros((3, len(weight), 20), object)
    for b in range(20):
        expected[:, :, b] = each[:, :, static == b].sum(2)
    check_sums(result, expected, weight)
    G, IP, IF = each.astype(float)
    light = IP * IF
    ratio = np.where(
        light > 0, G * weight[:, None].astype(float) / np.where(light > 0, light, 1), 0
    )
    for b in range(7):
        own = ratio[:, dynamic == b]
        np.testing.assert_allclose(result[2][:, b], own.mean(1), rtol=1e-12)
        np.testing.assert_allclose(result[3][:, b], own.var(1) * own.shape[1], rtol=1e-9)
    for threads in (2, 64):
        second = native(frames, pixel, static, dynamic, threads=threads)
        for one, other in zip(result, second, strict=True):
            np.testing.assert_array_equal(one, other)


def test_strides_and_sums_of_neighbours():
    """Every third frame of a part of a detector, off any alignment; two of them a sum."""
    memory = np.random.default_rng(5).integers(0, 256, 399 * 60 * 2 + 1, np.uint8)
    frames = np.ndarray((399, 60), np.uint16, memory, 1)[5::3]
    expected, weight = sums_of_pixels(np.array(frames), average=2)
    check_sums(native(frames, average=2), expected, weight)


def test_divided_frames():
    frames = drawn(np.uint16, 90, 35, most=900)
    mean = frames.mean(1)
    expected, weight = sums_of_pixels(frames / mean[:, None])
    check_sums(native(frames, divisor=mean), expected, weight, exact=False)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.float64])
@pytest.mark.parametrize("average", [1, 3])
def test_bad_frames(dtype, average):
    frames = drawn(dtype, 200, 33, most=5000 if dtype == np.uint32 else None)
    bad = np.zeros(200, np.uint8)
    bad[[0, 7, 8, 9, 100, 150, 198, 199]] = 1
    frames[1:2] = 0
    expected, weight = sums_of_pixels(frames, bad=np.flatnonzero(bad), average=average)
    result = native(frames, bad=bad, average=average)
    check_sums(result, expected, weight, dtype != np.float64)


def arrays_of_state(pixels, most_frames, real=False, missing=False, dpl=4):
    delays = len(jk.xpcs.multitau_delays(most_frames, dpl))
    levels = max(1, -(-(delays - dpl) // dpl))
    wide, narrow = (np.float64, np.float64) if real else (np.uint64, np.uint32)
    shapes = [(1, wide), (delays, wide), (delays, narrow), (levels * 2 * dpl, narrow)]
    shapes += [(delays, wide)] * (2 if missing else 0)
    return [np.zeros((rows, pixels), dtype) for rows, dtype in shapes]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("block", [1, 3, 64, 130, 299])
def test_any_split_into_blocks(dtype, block):
    """The same bits, with frames missing, for a run and its state after each block."""
    real = dtype == np.float32
    frames = drawn(dtype, 299, 45)
    bad = (np.arange(299) % 41 == 7).astype(np.uint8)
    every = native(frames, bad=bad)
    state = arrays_of_state(45, 299, real, True)
    bins = np.arange(45, dtype=np.int32)
    for first in range(0, 299, block):
        part = slice(first, first + block)
        _cpu.multitau_update(
            frames[part], first, state, 299, bad=bad[part], missing=bad.astype(np.uint32), real=real
        )
        if first > 100:
            continue
        seen = min(first + block, 299)
        result = _cpu.multitau_reduce(
            state, seen, 45, bins, bins, bins, 45, 45, 299, missing=bad.astype(np.uint32), real=real
        )
        early = native(frames[:seen], bad=bad[:seen])
        reached = len(early[0])
        assert not result[0][reached:].any()
        np.testing.assert_array_equal(result[1][:, :reached], early[1])
    result = _cpu.multitau_reduce(
        state, 299, 45, bins, bins, bins, 45, 45, 299, missing=bad.astype(np.uint32), real=real
    )
    for one, other in zip(result, every, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"offset": np.zeros(3, np.int32)}, ["offset", "length"]),
        ({"offset": np.full(4, 40, np.int32)}, ["offset"]),
        ({"offset": np.array([0, 1, 2, -1], np.int32)}, ["offset"]),
        ({"carried": [np.zeros(1)] * 3}, ["carried", "4 arrays"]),
        ({"carried": [np.zeros(1)] * 4}, ["carried", "size"]),
    ],
)
def test_reductions_check_their_arguments(arguments, facts):
    bins = np.arange(4, dtype=np.int32)
    state = arrays_of_state(40, 20, False, False)
    with raises(ValueError, *facts):
        _cpu.multitau_reduce(state, 9, 40, bins, bins, bins, 4, 4, 20, **arguments)


def test_progress_and_stop():
    frames, progress = drawn(np.uint8, 300, 100), np.zeros(2, np.int64)
    native(frames, progress=progress)
    assert progress[0] == 300 * -(-100 // _cpu.MULTITAU_STRIP)
    progress[:] = 0, 1
    assert native(frames, progress=progress) is None
    assert progress[0] == 0


def test_wrong_arguments():
    frames, bins = np.zeros((9, 4), np.uint8), np.zeros(2, np.int32)
    for pixel in ([1, 1], [2, 1], [-1, 1], [1, 4]):
        with raises(ValueError, "pixel", "ascending"):
            native(frames, np.array(pixel), bins)
    with raises(ValueError, "bin", "below 0"):
        _cpu.multitau(frames, np.array([1], np.int32), bins[:1] + 1, bins[:1], 1, 1)
    with raises(TypeError, "frames", "dtype"):
        native(frames.astype(np.int8))
    with raises(ValueError, "frames", "contiguous"):
        native(np.zeros((9, 8), np.uint8)[:, ::2])
    with raises(ValueError, "dpl", "1 to 64"):
        native(frames, dpl=65)
    with raises(ValueError, "bad", "length"):
        native(frames, bad=np.zeros(8, np.uint8))
    with raises(ValueError, "divisor", "length"):
        native(frames, divisor=np.ones(8))
    with raises(ValueError, "state", "size"):
        _cpu.multitau_update(frames, 0, arrays_of_state(5, 9), 9)
    with raises(ValueError, "missing"):
        _cpu.multitau_update(
            frames, 1, arrays_of_state(4, 9, missing=True), 9, missing=np.zeros(9, np.uint32)
        )
