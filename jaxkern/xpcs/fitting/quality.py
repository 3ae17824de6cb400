"""The first check of a fit: the size of the residuals must be that of the noise.

A solver also converges in a wrong minimum. There, the residuals are larger than the noise. The
noise is estimated from second differences along the diagonal, which remove smooth residuals:

    e_h = r[i, j] - (r[i-h, j-h] + r[i+h, j+h]) / 2

With h = 1 this is the noise of single points. Speckle noise is correlated over the time in which
the speckles change. It decorrelates over a fifth of the frames, but the residuals of a wrong model
hardly change along a diagonal, where the lag is constant. So the mean square of e over many frames
bounds the size of noise, correlated noise included, for any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.passes import MAX_VALUE
from jaxkern.xpcs.fitting.sampling import SPARSE_CUT, RowSample

Array = NDArray[np.float64]

# h of the long differences, as a fraction of the sampled frames.
_REACH = 0.2
# Frames with more than this multiple of the typical mean square are excluded from the estimate of
# noise, and points of the sample are clipped at this number of standard deviations.
_BAD_FRAME, _CUT = 4.0, 8.0
# The same for data with few counts, whose noise varies as 1 / (counts of both frames) and has a
# heavy tail. Their residuals are clipped like their noise, and compared with it in the sample.
_SPARSE_BAD_FRAME = 32.0
# Mean square of all residuals of such data, as a multiple of the limit, that needs no outliers.
_SPARSE_LOST = 3.0
# Lower limit of the decorrelation of the model over `_REACH`, which is a divisor.
_LEAST_CHANGE = 0.1
# With a cost a point above this multiple of the limit, a robust loss ignores most points.
_LOST = 100.0
# Correlated noise of correct models remains below this multiple of the noise of single points.
_CORRELATED = 10.0
# Largest ratio of the noise to a variance that the user declared to be absolute.
_ABSOLUTE = 1.5


@dataclass(frozen=True)
class Residuals:
    """Normalized residuals of the sampled rows."""

    rows: NDArray[np.intp]  # as in `RowSample`
    z: Array  # residuals [n_phi, 3 * bands, n] in units of sigma
    used: NDArray[np.bool_]  # True for points with weight, with the same shape
    sparse: NDArray[np.bool_]  # True for angles with few counts [n_phi], as in `RowSample`

    @classmethod
    def from_sample(cls, sample: RowSample, fitted: Array, sigma: Array) -> Residuals:
        """Compute from sampled values, the model there, and sigma broadcast to their shape."""
        sigma = np.broadcast_to(sigma, sample.values.shape)
        used = sample.used_points()[None] & np.isfinite(sample.values)
        used = used & (sigma > 1e-10) & np.isfinite(sigma)
        z = np.where(used, sample.values - fitted, 0.0) / np.where(used, sigma, 1.0)
        # The squares of huge numbers, as of a flipped bit, must not overflow.
        return cls(sample.rows, np.clip(z, -MAX_VALUE, MAX_VALUE), used, sample.sparse)

    def mean_square_by_frame(self) -> Array:
        """Return the mean square residual of each frame [n]; NaN for unused frames."""
        count = self.used.sum((0, 1))
        with np.errstate(invalid="ignore"):
            return np.asarray((self.z**2).sum((0, 1)) / np.where(count > 0, count, np.nan))

    def effective_points(self) -> float:
        """Return the number of normally distributed residuals that scatter equally.

        The variance of their mean square equals that of this sample. The number is smaller than
        that of the points for residuals with a heavy tail.
        """
        squares = (self.z / max(float(np.abs(self.z).max()), 1e-100)) ** 2
        total, fourth = float(squares.sum()), float((squares**2).sum())
        points = float(self.used.sum())
        return min(points, 3 * total**2 / fourth) if fourth > 0 else points


@dataclass(frozen=True)
class NoiseLevel:
    """Mean squares of normalized noise by angle [n_phi]; NaN for angles with too few points."""

    single: Array  # mean squares of single points
    over_time: Array  # of differences over many frames
    change: Array  # decorrelation of the model over these frames, 0 to 1
    clipped: Array  # mean square of the residuals without outliers
    covered: float  # the part of the residuals that `single` is computed from
    frames: Array  # mean square of each frame [n], NaN for unused ones
    typical: float  # the median of these
    bad: NDArray[np.bool_]  # True for frames with far larger residuals than others [n]


def noise_level(residuals: Residuals, memory: Array) -> NoiseLevel:
    """Estimate the noise; `memory` is g1^2 between the sampled rows [n_phi, 3 bands, 3 bands]."""
    frames = residuals.mean_square_by_frame()
    finite = frames[np.isfinite(frames)]
    typical, limit = float(np.median(finite)) if finite.size else np.nan, _BAD_FRAME
    if residuals.sparse.any() and finite.size:
        # The median frame may have no counts in common with the sampled ones.
        typical = float(np.mean(finite[finite <= np.quantile(finite, 0.95)]))
        limit = _SPARSE_BAD_FRAME
    with np.errstate(invalid="ignore"):
        bad = frames > limit * typical
    good = residuals.used & ~bad & ~bad[residuals.rows][:, None]
    cut = np.where(residuals.sparse, SPARSE_CUT, _CUT)[:, None, None] * np.sqrt(typical)
    clipped = _mean((np.clip(residuals.z, -cut, cut) ** 2).sum((1, 2), where=good), good)
    bands = len(residuals.rows) // 3
    reach = max(1, min((bands - 1) // 2, round(_REACH * (bands - 1))))
    neighbours = [(3 * band, 3 * band + 1, 3 * band + 2) for band in range(bands)]
    apart = [(at - 3 * reach, at, at + 3 * reach) for at in range(3 * reach, 3 * (bands - reach))]
    single, _, count = _differences(residuals, good, cut, memory, neighbours)
    over_time, change, _ = _differences(residuals, good, cut, memory, apart)
    covered = min(1.0, 3.0 * float(count.sum()) / max(float(good.sum()), 1.0))
    return NoiseLevel(single, over_time, change, clipped, covered, frames, typical, bad)


def _mean(total: Array, used: NDArray[np.bool_]) -> Array:
    count = used.sum((1, 2))
    return np.asarray(total / np.where(count > 0, count, np.nan))


def _differences(
    residuals: Residuals,
    good: NDArray[np.bool_],
    cut: Array,
    memory: Array,
    triples: Sequence[tuple[int, int, int]],
) -> tuple[Array, Array, Array]:
    """Return mean squares [n_phi] of differences along the diagonal, their change and number."""
    rows, z = residuals.rows, residuals.z
    n_phi, _, n = z.shape
    total, change, count = np.zeros(n_phi), np.zeros(n_phi), np.zeros(n_phi)
    for low, at, high in triples:
        back, ahead = int(rows[at] - rows[low]), int(rows[high] - rows[at])
        if n <= back + ahead or not back or not ahead:
            continue
        # Weights of the linear interpolation between the outer two points.
        left, right = ahead / (back + ahead), back / (back + ahead)
        norm = 1 + left**2 + right**2
        columns = slice(back, n - ahead), slice(0, n - back - ahead), slice(back + ahead, n)
        used = good[:, at, columns[0]] & good[:, low, columns[1]] & good[:, high, columns[2]]
        e = z[:, at, columns[0]] - left * z[:, low, columns[1]] - right * z[:, high, columns[2]]
        e = np.clip(e / np.sqrt(norm), -cut[:, 0], cut[:, 0])
        total += (e**2).sum(1, where=used)
        overlap = left * memory[:, at, low] + right * memory[:, at, high]
        overlap -= left * right * memory[:, low, high]
        change += (1 - 2 * overlap / norm) * used.sum(1)
        count += used.sum(1)
    divisor = np.where(count > 0, count, np.nan)
    return total / divisor, change / divisor, count


@dataclass(frozen=True)
class Judgement:
    """The outcome of the check."""

    reason: str | None  # why the residuals are not noise; None if they are
    notes: tuple[str, ...]  # warnings for the result
    sampled: bool = True  # False if large residuals are outside of the sampled rows


def allowed(level: NoiseLevel, single: Array, points: float) -> tuple[float, Array]:
    """Return the largest mean square that noise explains, of all angles and of each [n_phi].

    Both are in units of `single` [n_phi], the noise of single points: 1, plus twice the excess of
    the noise over time, plus a margin that is larger for few decorrelation times or few points.
    """
    n_phi = len(level.single)
    margin = 5.0 / np.sqrt(max(points, 1.0))
    change = np.maximum(np.where(np.isfinite(level.change), level.change, 0.0), _LEAST_CHANGE)
    ratio = level.over_time / single
    excess = np.maximum(np.where(np.isfinite(ratio), ratio, 1.0) - 1.1, 0.0)
    known = np.isfinite(level.single)
    mean_change = max(float(change[known].mean()) if known.any() else 0.0, _LEAST_CHANGE)
    mean_excess = float(excess[known].mean()) if known.any() else 0.0
    correlated = 2 * mean_excess / mean_change
    total = 1.1 + (0.04 + margin) / mean_change + correlated
    each = 1.15 + (0.08 + margin * np.sqrt(n_phi)) / change
    return total, each + np.maximum(2 * excess / change, correlated)


def judge(
    residuals: Residuals,
    memory: Array,
    mean_squares: Array,  # chi2 a degree of freedom of each angle [n_phi], from all points
    weights: Array,  # points of each angle [n_phi]
    *,
    points: float,  # independent points of all angles
    floor: Array,  # smallest mean square [n_phi] that is noise and not rounding error
    phi: Sequence[float],  # degrees
    # The cost a degree of freedom of a robust loss, which tolerates outliers: residuals without
    # these are compared. None for the linear loss.
    robust: float | None,
    absolute: bool,
) -> Judgement:
    """Compare the size of the residuals with that of the noise.

    Without `absolute`, only the dependence of sigma on the point is used, not its scale.
    """
    level = noise_level(residuals, memory)
    # With too few sampled points, sigma is the only estimate.
    noise = np.maximum(np.where(np.isfinite(level.single), level.single, 1.0), floor)
    if residuals.sparse.any():
        points = min(points, residuals.effective_points() * level.covered)
    limit, each = allowed(level, noise, points)
    known = weights > 0
    use_clipped = np.full(len(noise), robust is not None)
    if robust is None:
        use_clipped = residuals.sparse & (mean_squares <= _SPARSE_LOST * each * noise)
    sizes = np.where(use_clipped, np.nan_to_num(level.clipped), mean_squares)
    size = np.where(known, sizes, 0.0) / noise
    total = float((size * weights).sum() / weights.sum())
    mean_noise = float((noise * weights).sum() / weights.sum())
    failed = total > limit or bool((size[known] > each[known]).any())
    if robust is not None and robust / mean_noise > _LOST * limit:
        failed, total = True, max(total, robust / mean_noise)
    outliers = _worst(level, level.bad, 5)
    if not failed:
        notes = [f"some frames are outliers: {_frames(level, outliers)}"] if outliers else []
        if total > _CORRELATED:
            notes.append(
                f"the mean square of residuals is {total:.3g} times that of the noise of single "
                "points: they vary along the diagonal like noise that is correlated over frames, "
                "or an intensity that was not normalized"
            )
        if not absolute:
            return Judgement(None, tuple(notes))
        if mean_noise > _ABSOLUTE:
            return Judgement(
                f"the noise of single points is {mean_noise:.4g} sigma^2, expected about 1 with "
                "absolute_sigma=True: sigma is too small",
                tuple(notes),
            )
        if total * mean_noise < 1.0 / _ABSOLUTE:
            notes.append(
                f"the mean square of residuals is {total * mean_noise:.3g} sigma^2: sigma is too "
                "large, and so are errors of independent noise (absolute_sigma=True)"
            )
        return Judgement(None, tuple(notes))
    worst = np.argsort(-np.where(known, size, -1.0), kind="stable")[:3]
    angles = ", ".join(
        f"{k} (phi {phi[k]:g}: {size[k]:.3g} of {each[k]:.3g})" for k in worst if known[k]
    )
    frames = outliers or _worst(level, np.isfinite(level.frames), 3)
    text = (
        f"the residuals are not noise: their mean square is {total:.4g} times that of the noise, "
        f"at most {limit:.3g} expected; worst angles (and their limits) {angles}; "
        f"{_frames(level, frames)}"
    )
    in_sample = _mean((residuals.z**2).sum((1, 2)), residuals.used)
    top = int(worst[0])
    return Judgement(text, (), bool(np.nan_to_num(in_sample[top]) > 0.5 * mean_squares[top]))


def _worst(level: NoiseLevel, chosen: NDArray[np.bool_], most: int) -> list[int]:
    """Return the chosen frames with the largest residuals, the worst first."""
    order = np.argsort(-np.nan_to_num(level.frames, nan=-1.0), kind="stable")
    return [int(k) for k in order if chosen[k]][:most]


def _frames(level: NoiseLevel, frames: Sequence[int]) -> str:
    scale = level.typical if level.typical > 0 else 1.0
    listed = ", ".join(f"{k} ({level.frames[k] / scale:.3g})" for k in frames)
    return f"worst frames (counted from 0; mean square relative to the median) {listed}"
