"""What is read off the data before a fit: noise, contrast, offset, faults, and their symmetry.

Everything but the mirror check looks at a few bands of three rows only, of frames that count and
follow each other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files.sources import Source, StackSource, values

Array = NDArray[np.float64]

BANDS = 48
SIGMA_METHOD = (
    "per angle: 1.4826 median |e| / sqrt(1.5), with e = C(i,j) - (C(i-1,j-1) + C(i+1,j+1)) / 2 "
    "off the diagonal; the root mean square of e / sqrt(1.5) where many values of C are 0"
)
# Of values of which more than this part is exactly 0, the medians say nothing.
_SPARSE = 0.25
# Such values are clipped at so many times their root mean square, taken without the largest 0.1%.
SPARSE_CUT = 64.0
# Below this no noise is meant: sigma of data without noise stays far above the 1e-10 that counts.
SIGMA_FLOOR = 1e-6


@dataclass(frozen=True)
class RowSample:
    """Bands of three rows: values [n_phi, 3 * bands, n] of the rows `rows` [3 * bands]."""

    rows: NDArray[np.intp]
    values: Array
    good: NDArray[np.bool_]  # [n]: the frames that count

    @property
    def sparse(self) -> NDArray[np.bool_]:
        """[n_phi]: angles with so few counts that many pairs of frames have none in common.

        C is exactly 0 for these pairs and large for the others: the noise has a heavy tail, and
        medians are 0.
        """
        away = self.rows[:, None] != np.arange(self.values.shape[2])
        counts = self.good & self.good[self.rows][:, None] & away & np.isfinite(self.values)
        zeros = (counts & (self.values == 0)).sum((1, 2))
        return np.asarray(zeros > _SPARSE * counts.sum((1, 2)))


def sample_rows(frames: NDArray[np.bool_], bands: int = BANDS) -> NDArray[np.intp]:
    """Rows in bands of three, spread over the frames that count."""
    used = np.flatnonzero(frames)
    middles = np.unique(np.linspace(1, len(used) - 2, bands).astype(np.intp))
    rows: NDArray[np.intp] = used[(middles[:, None] + np.arange(-1, 2)).ravel()]
    return rows


def read_sample(source: Source, frames: NDArray[np.bool_], bands: int = BANDS) -> RowSample:
    """Reads the bands; rows that cannot be read are NaN here, and met again in the fit."""
    n_phi, n, _ = source.shape
    rows = sample_rows(frames, bands)
    found = np.full((n_phi, len(rows), n), np.nan)
    for angle in range(n_phi):
        for place in range(0, len(rows), 3):
            first, middle, last = map(int, rows[place : place + 3])
            try:
                if last - first == 2:
                    band = source.read(angle, first, last + 1)
                else:
                    band = np.concatenate(
                        [source.read(angle, row, row + 1) for row in (first, middle, last)]
                    )
            except OSError:
                continue
            found[angle, place : place + 3] = values(source, band)
    return RowSample(rows, found, frames)


def rows_of(source: Any, rows: NDArray[np.intp]) -> Array:
    """Rows [n_phi, len(rows), n] of every angle of a source; zeros for one that cannot be read."""
    n_phi, n, _ = source.shape
    found = np.zeros((n_phi, len(rows), n))
    for angle in range(n_phi):
        for place, row in enumerate(map(int, rows)):
            with contextlib.suppress(OSError):
                found[angle, place] = source.read(angle, row, row + 1)[0]
    return found


def rows_of_angle(source: Source, angle: int, rows: NDArray[np.intp]) -> Array:
    """Return the values [len(rows), n] of one angle; NaN for rows that cannot be read."""
    found = np.full((len(rows), source.shape[1]), np.nan)
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    for begin, end in itertools.pairwise([*starts, len(rows)]):
        with contextlib.suppress(OSError):
            stored = source.read(angle, int(rows[begin]), int(rows[end - 1]) + 1)
            found[begin:end] = values(source, stored)
    return found


def estimate_sigma(sample: RowSample) -> Array:
    """The noise [n_phi] of one point, from second differences along the diagonal.

    Along a diagonal the lag is constant and the correlation changes slowly, so that what is left
    of e = C(i,j) - (C(i-1,j-1) + C(i+1,j+1)) / 2 is noise with the variance 1.5 sigma^2. Between
    frames that are further apart, the straight line takes the place of the mean.
    """
    n_phi, _, n = sample.values.shape
    noise: list[list[Array]] = [[] for _ in range(n_phi)]
    for place in range(0, len(sample.rows), 3):
        first, middle, last = map(int, sample.rows[place : place + 3])
        back, ahead = middle - first, last - middle
        column = np.arange(back, n - ahead)
        frames = sample.good
        counts = frames[column - back] & frames[column] & frames[column + ahead]
        counts &= (np.abs(column - middle) > 1) & bool(frames[[first, middle, last]].all())
        column = column[counts]
        before, at, after = (
            sample.values[:, place + k, column + away] for k, away in enumerate((-back, 0, ahead))
        )
        left, right = ahead / (back + ahead), back / (back + ahead)
        with np.errstate(invalid="ignore"):  # of infinite numbers
            e = np.abs(at - (left * before + right * after)) / np.sqrt(1 + left**2 + right**2)
        for angle, found in enumerate(e):
            noise[angle].append(found[np.isfinite(found)])
    result = np.ones(n_phi)
    for angle, parts in enumerate(noise):
        every = np.concatenate(parts)
        if every.size and sample.sparse[angle]:
            result[angle] = _clipped_rms(every)
        elif every.size:
            result[angle] = 1.4826 * np.median(every)
    return np.maximum(result, SIGMA_FLOOR)


def _clipped_rms(e: Array) -> float:
    """Return the root mean square of values that are mostly 0, and clip what is far beyond it."""
    usual = e[e <= np.quantile(e, 0.999)]
    scale = float(np.sqrt(np.mean(usual**2))) or float(e.max())
    return float(np.sqrt(np.mean(np.minimum(e, SPARSE_CUT * scale) ** 2)))


def estimate_contrast_offset(sample: RowSample) -> tuple[Array, Array]:
    """(contrast [n_phi], offset [n_phi]) from medians over lags; from means of sparse data.

    The offset is the lowest of the medians of 16 ranges of lags, the contrast what the median of
    the first two lags lies above it.
    """
    n_phi, _, n = sample.values.shape
    lag = np.abs(np.arange(n)[None, :] - sample.rows[:, None])
    counts = sample.good[None, :] & sample.good[sample.rows][:, None] & (lag > 0)
    edges = np.unique(np.geomspace(1, max(n, 4), 17).astype(int))
    contrast, offset = np.full(n_phi, 0.5), np.ones(n_phi)
    for angle in range(n_phi):
        usable = counts & np.isfinite(sample.values[angle])
        lags, found = lag[usable], sample.values[angle][usable]
        groups = [found[(lags >= low) & (lags < high)] for low, high in itertools.pairwise(edges)]
        center = np.mean if sample.sparse[angle] else np.median
        levels = [float(center(group)) for group in groups if group.size >= 16]
        start = found[lags <= 2]
        if not levels or not start.size or found.min() == found.max():
            continue
        offset[angle] = min(levels)
        contrast[angle] = float(center(start)) - offset[angle]
    return contrast, offset


def frames_without_numbers(sample: RowSample) -> NDArray[np.intp]:
    """Frames that are NaN in every sampled row of some angle, as a column.

    Angles without any number are no matter of frames; nor are rows without any, such as those that
    cannot be read.
    """
    numbers = np.isfinite(sample.values)
    columns = np.arange(numbers.shape[2])
    away = sample.good & (sample.rows[:, None] != columns)
    # A frame without numbers that was sampled as a row says nothing of the columns.
    rows = (numbers & away).any(axis=2)
    seen = (rows[:, :, None] & away).any(axis=1)
    found = (numbers & rows[:, :, None] & away).any(axis=1)
    return np.flatnonzero((seen & ~found).any(axis=0))


def listed(frames: Sequence[int], most: int = 10) -> str:
    """The numbers of frames for a message, the first ones of many."""
    more = f" and {len(frames) - most} more" if len(frames) > most else ""
    return ", ".join(map(str, frames[:most])) + more


def angles_without_signal(sample: RowSample) -> NDArray[np.bool_]:
    """[n_phi]: angles with the same number at every sampled point, such as 0 throughout."""
    away = sample.rows[:, None] != np.arange(sample.values.shape[2])
    counts = (sample.good & sample.good[sample.rows][:, None] & away) & np.isfinite(sample.values)
    lowest = np.min(sample.values, axis=(1, 2), where=counts, initial=np.inf)
    highest = np.max(sample.values, axis=(1, 2), where=counts, initial=-np.inf)
    return np.asarray(lowest == highest)


def mirrored_angles(source: Source) -> NDArray[np.bool_]:
    """[n_phi]: whether each matrix equals its transpose to the last bit (NaN equals NaN)."""
    n_phi, n, _ = source.shape
    known = getattr(source, "symmetric", None)
    if known is not None:
        return np.full(n_phi, bool(known))
    result = np.zeros(n_phi, bool)
    for angle in range(n_phi):
        try:
            if isinstance(source, StackSource) and source.in_memory:
                result[angle] = _equals_transpose(source.read(angle, 0, n))
            else:
                result[angle] = _mirrored_by_checksum(source, angle)
        except OSError:
            result[angle] = False
    return result


def _equals_transpose(matrix: NDArray[np.generic], tile: int = 128) -> bool:
    n = len(matrix)
    bits = matrix.view(f"u{matrix.dtype.itemsize}") if matrix.dtype.itemsize <= 8 else matrix
    for row in range(0, n, tile):
        for column in range(row, n, tile):
            upper = bits[row : row + tile, column : column + tile]
            if not np.array_equal(upper, bits[column : column + tile, row : row + tile].T):
                return False
    return True


def _mirrored_by_checksum(source: Source, angle: int, block_points: int = 2**20) -> bool:
    """The same from one run over the rows, for data that are not in memory.

    Compares sum a_i b_j h(C_ij) over i < j with sum a_j b_i h(C_ij) over i > j, modulo 2^64, with
    a one-to-one mixing h of the bit patterns and random odd numbers a and b: triangles that differ
    agree by chance once in about 2^60.
    """
    n = source.shape[1]
    draw = np.random.default_rng(20261121 + angle)
    a, b = (draw.integers(0, 2**63, n, np.uint64) * 2 + 1 for _ in range(2))
    rows = max(1, block_points // n)
    upper = lower = np.uint64(0)
    with np.errstate(over="ignore"):
        for first in range(0, n, rows):
            block = np.ascontiguousarray(source.read(angle, first, min(first + rows, n)))
            for row, line in enumerate(block, first):
                # A row at a time, which stays in the cache through all of this.
                bits = line.view(f"u{block.dtype.itemsize}").astype(np.uint64)
                bits ^= bits >> np.uint64(33)
                bits *= np.uint64(0xFF51AFD7ED558CCD)
                bits ^= bits >> np.uint64(29)
                upper = upper + a[row] * np.dot(bits[row + 1 :], b[row + 1 :])
                lower = lower + b[row] * np.dot(bits[:row], a[:row])
    return bool(upper == lower)
