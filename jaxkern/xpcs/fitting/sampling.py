"""A sample of the data, and estimates from it before a fit: noise, contrast, offset, faults."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files import sources

Array = NDArray[np.float64]

# Number of bands of three rows in a sample; fewer for many points, but not fewer than the minimum.
BANDS, _LEAST_BANDS, _SAMPLE_POINTS = 48, 8, 600_000
SIGMA_METHOD = (
    "per angle: 1.4826 median |e| / sqrt(1.5), with e = C(i,j) - (C(i-1,j-1) + C(i+1,j+1)) / 2 "
    "off the diagonal; the root mean square of e / sqrt(1.5) where many values of C are 0"
)
# If more than this fraction of the values is exactly 0, medians carry no information.
_SPARSE = 0.25
# Such values are clipped at this multiple of their root mean square without the largest 0.1%.
SPARSE_CUT = 64.0
# Smallest estimate of sigma, of noiseless data; far above 1e-10, the threshold for a weight of 0.
SIGMA_FLOOR = 1e-6


@dataclass(frozen=True)
class RowSample:
    """Bands of three rows: values [n_phi, 3 * bands, n] of the rows `rows` [3 * bands]."""

    rows: NDArray[np.intp]
    values: Array
    good: NDArray[np.bool_]  # [n], True for used frames

    @property
    def sparse(self) -> NDArray[np.bool_]:
        """True for angles [n_phi] with many values of exactly 0: pairs without common counts.

        At low count rates the noise therefore has a heavy tail, and medians are 0.
        """
        used = self.used_points() & np.isfinite(self.values)
        zeros = (used & (self.values == 0)).sum((1, 2))
        return np.asarray(zeros > _SPARSE * used.sum((1, 2)))

    def used_points(self) -> NDArray[np.bool_]:
        """Return a mask [3 * bands, n] of the points of used frames off the diagonal."""
        off_diagonal = self.rows[:, None] != np.arange(self.values.shape[2])
        return np.asarray(self.good & self.good[self.rows][:, None] & off_diagonal)


def sample_rows(frames: NDArray[np.bool_], bands: int = BANDS) -> NDArray[np.intp]:
    """Return rows in bands of three, spread evenly over the used frames."""
    used = np.flatnonzero(frames)
    middles = np.unique(np.linspace(1, len(used) - 2, bands).astype(np.intp))
    return used[(middles[:, None] + np.arange(-1, 2)).ravel()]


def read_sample(source: sources.Source, frames: NDArray[np.bool_]) -> RowSample:
    """Read the bands; rows that cannot be read are NaN here, and are reported by the fit."""
    n_phi, n, _ = source.shape
    rows = sample_rows(frames, min(BANDS, max(_LEAST_BANDS, _SAMPLE_POINTS // (3 * n_phi * n))))
    groups = [rows] if hasattr(source, "read_rows") else rows.reshape(-1, 3)
    parts = [[rows_of_angle(source, angle, k) for k in groups] for angle in range(n_phi)]
    return RowSample(rows, np.array(parts).reshape(n_phi, len(rows), -1), frames)


def sigma_rows(sigma: Any, rows: NDArray[np.intp]) -> Array:
    """Return sigma in rows [n_phi, len(rows), n], or [n_phi, 1, 1]; zeros in unreadable rows."""
    if isinstance(sigma, np.ndarray):
        return sigma[:, None, None]
    result = np.stack([rows_of_angle(sigma, angle, rows) for angle in range(sigma.shape[0])])
    return np.nan_to_num(result, copy=False, posinf=np.inf)


def along_diagonal(
    values: Array, rows: NDArray[np.intp], triple: tuple[int, int, int], good: NDArray[np.bool_]
) -> tuple[Array, NDArray[np.bool_], tuple[float, float]]:
    """Return second differences along the diagonal, the mask of those of good points, and weights.

    `triple` are three indices of the rows [m]; values [n_phi, m, n] and good [.., m, n] are their
    points. With the weights (left, right) of linear interpolation, a difference is
    (C(j) - left C(j - back) - right C(j + ahead)) / sqrt(1 + left^2 + right^2). Along a diagonal
    the lag is constant and C changes slowly, so this is noise.
    """
    low, at, high = triple
    back, ahead, n = int(rows[at] - rows[low]), int(rows[high] - rows[at]), values.shape[2]
    left, right = ahead / (back + ahead), back / (back + ahead)
    size = max(n - back - ahead, 0)
    middle, before, after = (slice(k, k + size) for k in (back, 0, back + ahead))
    used = good[..., at, middle] & good[..., low, before] & good[..., high, after]
    with np.errstate(invalid="ignore"):  # infinity - infinity
        e = values[:, at, middle] - (left * values[:, low, before] + right * values[:, high, after])
    return e / np.sqrt(1 + left**2 + right**2), used, (left, right)


def rows_of_angle(source: sources.Source, angle: int, rows: NDArray[np.intp]) -> Array:
    """Return the values [len(rows), n] of one angle; NaN for rows that cannot be read."""
    if hasattr(source, "read_rows"):
        return sources.values(source, source.read_rows(angle, rows))
    result = np.full((len(rows), source.shape[1]), np.nan)
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    for begin, end in itertools.pairwise([*starts, len(rows)]):
        with contextlib.suppress(OSError):
            stored = source.read(angle, int(rows[begin]), int(rows[end - 1]) + 1)
            result[begin:end] = sources.values(source, stored)
    return result


def estimate_sigma(sample: RowSample) -> Array:
    """Estimate the noise [n_phi] of a point from second differences along the diagonal."""
    noise: list[list[Array]] = [[] for _ in sample.values]
    sparse = sample.sparse
    lag = np.abs(sample.rows[:, None] - np.arange(sample.values.shape[2]))
    good = sample.good & sample.good[sample.rows][:, None] & (lag > 1)
    for k in range(0, len(sample.rows), 3):
        e, used, _ = along_diagonal(sample.values, sample.rows, (k, k + 1, k + 2), good)
        for angle, row in enumerate(np.abs(e[:, used])):
            noise[angle].append(row[np.isfinite(row)])
    result = np.ones(len(noise))
    for angle, parts in enumerate(noise):
        e = np.concatenate(parts)
        if e.size:
            result[angle] = _clipped_rms(e) if sparse[angle] else 1.4826 * np.median(e)
    return np.maximum(result, SIGMA_FLOOR)


def _clipped_rms(e: Array) -> float:
    """Return the root mean square of values that are mostly 0, with outliers clipped."""
    bulk = e[e <= np.quantile(e, 0.999)]
    scale = float(np.sqrt(np.mean(bulk**2))) or float(e.max())
    return float(np.sqrt(np.mean(np.minimum(e, SPARSE_CUT * scale) ** 2)))


def estimate_contrast_offset(sample: RowSample) -> tuple[Array, Array]:
    """Estimate contrast [n_phi] and offset [n_phi] from medians over lags (means, if sparse).

    The offset is the lowest median of 16 ranges of lags, contrast + offset that of the first two.
    """
    n_phi, _, n = sample.values.shape
    lag = np.abs(np.arange(n)[None, :] - sample.rows[:, None])
    edges = np.unique(np.geomspace(1, max(n, 4), 17).astype(int))
    contrast, offset = np.full(n_phi, 0.5), np.ones(n_phi)
    used, sparse = sample.used_points(), sample.sparse
    for angle in range(n_phi):
        usable = used & np.isfinite(sample.values[angle])
        lags, c2 = lag[usable], sample.values[angle][usable]
        groups = [c2[(lags >= low) & (lags < high)] for low, high in itertools.pairwise(edges)]
        center = np.mean if sparse[angle] else np.median
        levels = [float(center(group)) for group in groups if group.size >= 16]
        start = c2[lags <= 2]
        if not levels or not start.size or c2.min() == c2.max():
            continue
        offset[angle] = min(levels)
        contrast[angle] = float(center(start)) - offset[angle]
    return contrast, offset


def frames_without_numbers(sample: RowSample) -> NDArray[np.intp]:
    """Return the frames whose column is NaN in every sampled row of some angle.

    Angles and rows without any finite number are ignored, such as rows that cannot be read.
    """
    numbers = np.isfinite(sample.values)
    columns = np.arange(numbers.shape[2])
    used = sample.good & (sample.rows[:, None] != columns)
    # A sampled row of a frame without numbers carries no information on the columns.
    rows = (numbers & used).any(axis=2)
    sampled = (rows[:, :, None] & used).any(axis=1)
    finite = (numbers & rows[:, :, None] & used).any(axis=1)
    return np.flatnonzero((sampled & ~finite).any(axis=0))


def lag_edges(n: int, ratio: float) -> NDArray[np.intp]:
    """Return increasing edges of bins of the lags 1 .. n - 1, whose ratio is about `ratio`."""
    edges = [1]
    while edges[-1] < n:
        edges.append(max(edges[-1] + 1, round(edges[-1] * ratio)))
    return np.array(edges)


def format_frames(frames: Sequence[int], most: int = 10) -> str:
    """Return frame indices for a message, shortened after `most` of them."""
    more = f" and {len(frames) - most} more" if len(frames) > most else ""
    return ", ".join(map(str, frames[:most])) + more


def mirrored_angles(source: sources.Source) -> NDArray[np.bool_]:
    """True for angles [n_phi] whose matrix is bit-identical to its transpose."""
    n_phi, n, _ = source.shape
    known = getattr(source, "symmetric", None)
    if known is not None:
        return np.array(np.broadcast_to(known, n_phi), bool)
    result = np.zeros(n_phi, bool)
    for angle in range(n_phi):
        with contextlib.suppress(OSError):
            if isinstance(source, sources.StackSource) and source.in_memory:
                result[angle] = _equals_transpose(source.read(angle, 0, n))
            else:
                result[angle] = _mirrored_by_checksum(source, angle)
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


def _mirrored_by_checksum(source: sources.Source, angle: int, block_points: int = 2**20) -> bool:
    """Compare a matrix with its transpose in one pass over the rows, for data not in memory.

    Compares sum a_i b_j h(C_ij) over i < j with sum a_j b_i h(C_ij) over i > j, modulo 2^64, with a
    bijective hash h and random odd a and b; other triangles are equal with a probability of 2^-60.
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
                # One row at a time, which stays in the cache.
                bits = line.view(f"u{block.dtype.itemsize}").astype(np.uint64)
                bits ^= bits >> np.uint64(33)
                bits *= np.uint64(0xFF51AFD7ED558CCD)
                bits ^= bits >> np.uint64(29)
                upper = upper + a[row] * np.dot(bits[row + 1 :], b[row + 1 :])
                lower = lower + b[row] * np.dot(bits[:row], a[:row])
    return bool(upper == lower)


@dataclass(frozen=True)
class Noise:
    """The noise of a fit."""

    sigma: Array | sources.Source  # [n_phi], or a source of [n_phi, n, n]
    method: str  # the origin of sigma, in words
    # True if sigma was estimated from the data; 0 for angles with the same number everywhere.
    estimated: bool = False

    @property
    def per_angle(self) -> Array | None:
        return self.sigma if isinstance(self.sigma, np.ndarray) else None


def resolve_noise(
    sigma: Any, weights: Any, shape: tuple[int, int, int], sample: RowSample
) -> Noise:
    """Check sigma or weights of the user, or estimate sigma."""
    if sigma is not None and weights is not None:
        raise ValueError("sigma and weights: expected one of them (1 / sigma^2), got both")
    if sigma is None and weights is None:
        used = sample.used_points() & np.isfinite(sample.values)
        lowest = np.min(sample.values, axis=(1, 2), where=used, initial=np.inf)
        highest = np.max(sample.values, axis=(1, 2), where=used, initial=-np.inf)
        silent = lowest == highest
        estimate = np.where(silent, 0.0, estimate_sigma(sample))
        return Noise(estimate, f"estimated from the data, {SIGMA_METHOD}", True)
    name, argument = ("sigma", sigma) if weights is None else ("weights", weights)
    is_array = not isinstance(argument, sources.Source | Path | str | Mapping)
    is_small = is_array and np.ndim(argument) <= 1
    source: Any = np.asarray(argument, np.float64) if is_small else None
    if source is None:
        source = sources.as_source(argument, name=name)
    if source.shape not in (((), shape[:1]) if is_small else (shape,)):
        raise ValueError(
            f"{name}: expected a number, one for each angle {shape[:1]} or the shape of the data "
            f"{shape}, got shape {source.shape}"
        )
    if isinstance(source, np.ndarray):
        sources.check_not_negative(source, name)
        value = source if weights is None else sources.weights_to_sigma(source)
        return Noise(np.ascontiguousarray(np.broadcast_to(value, shape[:1])), "given")
    if isinstance(source, sources.StackSource) and source.in_memory:
        for matrix in source.array:
            sources.check_not_negative(matrix, name)
        if weights is None:
            return Noise(source, "given")
    return Noise(sources.SigmaSource(source, name), "given")


def resolve_frames(keep: Any, n: int, unused_frames: tuple[int, ...] = ()) -> NDArray[np.bool_]:
    """Return the mask [n] of used frames from `keep`: a mask [n], a slice, or None for all.

    `unused_frames` are those that the model does not use.
    """
    frames = np.zeros(n, bool)
    mask = slice(None) if keep is None else keep
    if not isinstance(mask, slice):
        mask = np.asarray(keep)
        if mask.shape != (n,) or mask.dtype.kind not in "bui":
            raise ValueError(f"keep: expected [{n}] or a slice, got {mask.dtype}{mask.shape}")
        mask = mask.astype(bool)
    frames[mask] = True
    frames[list(unused_frames)] = False
    if int(frames.sum()) < 3:
        without = f" without frame {', '.join(map(str, unused_frames))}" if unused_frames else ""
        raise ValueError(
            f"keep: expected 3 or more frames{without}, got {int(frames.sum())} of {n}"
        )
    return frames
