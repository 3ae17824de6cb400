"""Sums of frames over time and pixels against NumPy, and argument checks of the native function.

Would catch a narrow sum that overflows, a skipped or overrun edge of a tile, a bad frame that is
included, and writes to arrays of a wrong size.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.errors import raises

from jaxkern import _cpu
from jaxkern.xpcs.correlators.frame_sums import frame_sums

TILE = 4096


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "i4", "f4", "f8"])
@pytest.mark.parametrize("pixels", [1, 15, TILE, TILE + 5])
def test_largest_counts_are_exact(backend, dtype, pixels):
    rng = np.random.default_rng(3)
    kind = np.dtype(dtype)
    largest = np.iinfo(kind).max if kind.kind != "f" else 2**20
    frames = np.full((300, pixels), largest, kind)
    frames[::7] = rng.integers(0, largest, (43, pixels), dtype=np.int64).astype(kind)
    masks = [rng.random(pixels) < 0.5, np.ones(pixels, bool)]
    bad = rng.random(300) < 0.1
    image = np.full(pixels, 5, "f8" if kind.kind == "f" else "i8")
    squares = np.full(pixels, 5.0)
    totals = frame_sums(frames, masks, image, bad, squares)
    exact = (frames[~bad].astype(np.longdouble) ** 2).sum(axis=0)
    np.testing.assert_allclose(squares, 5 + exact.astype(float), rtol=1e-12)
    for total, mask in zip(totals, masks, strict=True):
        np.testing.assert_array_equal(total, frames[:, mask].sum(axis=1, dtype=image.dtype))
    np.testing.assert_array_equal(image, 5 + frames[~bad].sum(axis=0, dtype=image.dtype))


def test_masked_pixels_may_be_nan_or_infinite(backend):
    frames = np.ones((9, 40), np.float32)
    frames[:, 7], frames[:, 8] = np.nan, np.inf
    mask = np.ones(40, bool)
    mask[7:9] = False
    assert (frame_sums(frames, [mask])[0] == 38).all()


def test_strided_frames_at_odd_addresses():
    memory = np.random.default_rng(0).integers(0, 256, 100_001, np.uint8)
    frames = memory[1:].view("u2").reshape(50, 1000)[::3, 3:990]
    image = np.zeros(987, np.int64)
    totals = _cpu.frame_sums(frames, [np.ones(987, np.uint8)], image)
    np.testing.assert_array_equal(totals[0], frames.sum(axis=1, dtype=np.int64))
    np.testing.assert_array_equal(image, frames.sum(axis=0, dtype=np.int64))


def test_sums_do_not_depend_on_threads():
    frames = np.random.default_rng(0).random((30, 3 * TILE + 1)).astype(np.float32)
    result = []
    for threads in (1, 2, 64):
        image = np.zeros(frames.shape[1])
        result.append(
            (_cpu.frame_sums(frames, [np.ones_like(image, np.uint8)], image, None, threads), image)
        )
    for totals, image in result[1:]:
        np.testing.assert_array_equal(totals, result[0][0])
        np.testing.assert_array_equal(image, result[0][1])


FRAMES = np.ones((4, 10), np.uint8)
MASK = np.ones(10, np.uint8)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ((FRAMES, [MASK] * 3), ["masks", "at most 2"]),
        ((FRAMES, [MASK[:9]]), ["masks", "length"]),
        ((FRAMES, [MASK], np.zeros(9, np.int64)), ["image"]),
        ((FRAMES, [MASK], np.zeros(10)), ["image", "int64"]),
        ((FRAMES, [MASK], np.zeros((10, 1), np.int64)), ["image"]),
        ((FRAMES, [MASK], None, np.zeros(3, np.uint8)), ["bad", "length"]),
        ((FRAMES, [MASK], np.zeros(10, np.int64), None, 0, np.zeros(9)), ["squares"]),
        ((FRAMES, [MASK], None, None, 0, np.zeros(10)), ["squares", "image"]),
        ((FRAMES.astype(np.int8), [MASK]), ["frames", "dtype"]),
        ((FRAMES[:, ::2], [MASK[:5]]), ["frames", "contiguous"]),
    ],
)
def test_wrong_arrays(arguments, facts):
    with raises((TypeError, ValueError), *facts):
        _cpu.frame_sums(*arguments)


def test_a_read_only_image():
    image = np.zeros(10, np.int64)
    image.flags.writeable = False
    with pytest.raises((TypeError, ValueError, BufferError)):
        _cpu.frame_sums(FRAMES, [MASK], image)
    assert not image.any()
