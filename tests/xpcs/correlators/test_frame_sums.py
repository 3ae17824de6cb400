"""Sums of frames over time and pixels against NumPy, and calls that the native entry must refuse.

Would catch a narrow sum that overflows, a tile's edge that is left out or read beyond, a bad frame
that counts, and arrays of a wrong size that are written to.
"""

from __future__ import annotations

import numpy as np
import pytest

from jaxkern import _cpu
from jaxkern.xpcs.correlators.frame_sums import frame_sums, sum_dtype

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
    image = np.full(pixels, 5, sum_dtype(kind))
    squares = np.full(pixels, 5.0)
    totals = frame_sums(frames, masks, image, bad, squares)
    exact = (frames[~bad].astype(np.longdouble) ** 2).sum(axis=0)
    np.testing.assert_allclose(squares, 5 + exact.astype(float), rtol=1e-12)
    for total, mask in zip(totals, masks, strict=True):
        np.testing.assert_array_equal(total, frames[:, mask].sum(axis=1, dtype=image.dtype))
    np.testing.assert_array_equal(image, 5 + frames[~bad].sum(axis=0, dtype=image.dtype))


def test_masked_pixels_may_be_anything(backend):
    frames = np.ones((9, 40), np.float32)
    frames[:, 7], frames[:, 8] = np.nan, np.inf
    mask = np.ones(40, bool)
    mask[7:9] = False
    assert (frame_sums(frames, [mask])[0] == 38).all()


def test_frames_apart_and_at_odd_addresses():
    memory = np.random.default_rng(0).integers(0, 256, 100_001, np.uint8)
    frames = memory[1:].view("u2").reshape(50, 1000)[::3, 3:990]
    image = np.zeros(987, np.int64)
    totals = _cpu.frame_sums(frames, [np.ones(987, np.uint8)], image)
    np.testing.assert_array_equal(totals[0], frames.sum(axis=1, dtype=np.int64))
    np.testing.assert_array_equal(image, frames.sum(axis=0, dtype=np.int64))


def test_threads_change_no_bit():
    frames = np.random.default_rng(0).random((30, 3 * TILE + 1)).astype(np.float32)
    found = []
    for threads in (1, 2, 64):
        image = np.zeros(frames.shape[1])
        found.append(
            (_cpu.frame_sums(frames, [np.ones_like(image, np.uint8)], image, None, threads), image)
        )
    for totals, image in found[1:]:
        np.testing.assert_array_equal(totals, found[0][0])
        np.testing.assert_array_equal(image, found[0][1])


FRAMES = np.ones((4, 10), np.uint8)
MASK = np.ones(10, np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((FRAMES, [MASK] * 3), r"masks.*2"),
        ((FRAMES, [MASK[:9]]), "length"),
        ((FRAMES, [MASK], np.zeros(9, np.int64)), "image"),
        ((FRAMES, [MASK], np.zeros(10)), "image"),
        ((FRAMES, [MASK], np.zeros((10, 1), np.int64)), "image"),
        ((FRAMES, [MASK], None, np.zeros(3, np.uint8)), r"bad.*length"),
        (
            (FRAMES, [MASK], np.zeros(10, np.int64), None, 0, np.zeros(9)),
            "squares",
        ),
        ((FRAMES, [MASK], None, None, 0, np.zeros(10)), r"squares.*image"),
        ((FRAMES.astype(np.int8), [MASK]), r"frames.*dtype"),
        ((FRAMES[:, ::2], [MASK[:5]]), "contiguous"),
    ],
)
def test_wrong_arrays_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        _cpu.frame_sums(*arguments)


def test_an_image_that_cannot_be_written_is_refused():
    image = np.zeros(10, np.int64)
    image.flags.writeable = False
    with pytest.raises((TypeError, ValueError, BufferError)):
        _cpu.frame_sums(FRAMES, [MASK], image)
    assert not image.any()
