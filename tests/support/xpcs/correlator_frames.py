"""Frames, maps and sources that the tests of the correlators share."""

from __future__ import annotations

import threading

import numpy as np

import jaxkern as jk

# Bin 4 of both maps has no pixels, and each static bin is within one dynamic bin.
DYNAMIC = np.array([[1, 1, 1, 2, 2], [1, 3, 3, 2, 0], [3, 3, 5, 2, 0], [1, 1, 5, 0, 0]])
STATIC = np.array([[1, 1, 8, 2, 2], [1, 3, 3, 2, 0], [3, 3, 6, 7, 5], [8, 8, 6, 0, 5]])


class Blocks(jk.xpcs.FrameSource):
    """Source that is not an array in memory; records its reads and their threads."""

    def __init__(self, array, frame_time=None):
        super().__init__()
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.metadata = {} if frame_time is None else {"frame_time": frame_time}
        self.reads = []

    def read(self, first, stop):
        self.check_range(first, stop)
        self.reads.append((first, stop, threading.current_thread().name))
        return self._array[first:stop].copy()


def photons(n, dtype="u2", mean=3.0, seed=0, shape=DYNAMIC.shape):
    """Counts whose mean varies with the pixel and in time."""
    rng = np.random.default_rng(seed)
    light = rng.gamma(2.0, mean / 2, shape) * (1 + 0.5 * np.sin(np.arange(n) / 7))[:, None, None]
    return rng.poisson(light).astype(dtype)


def events_of(frames):
    """Pixels, frames and counts of the nonzero counts of frames."""
    flat = frames.reshape(len(frames), -1)
    frame, pixel = np.nonzero(flat)
    return pixel, frame, flat[frame, pixel]


def check_fields(
    result, expected, names=("delay", "g2", "g2_err", "n_pairs", "bins", "n_pixels"), rtol=0.0
):
    """Compare fields of two results, by default bit by bit."""
    for name in names:
        one, other = getattr(result, name), getattr(expected, name)
        if rtol:
            np.testing.assert_allclose(one, other, rtol, err_msg=name)
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)


def check_g2(result, expected, exactly=True):
    """A result against the oracle's: the very bits of g2, its errors within rounding."""
    bins = result.bins - 1
    np.testing.assert_array_equal(result.delay, expected.delay)
    if exactly:
        np.testing.assert_array_equal(result.g2, expected.g2[:, bins])
    else:
        np.testing.assert_allclose(result.g2, expected.g2[:, bins], rtol=1e-12)
    np.testing.assert_allclose(result.g2_err, expected.g2_err[:, bins], rtol=1e-9, atol=1e-13)
    np.testing.assert_array_equal(result.n_pairs, expected.sums.pairs)
