"""Whether the residuals of a fit are noise: an absolute check, and the frames and angles to blame.

A solver says "converged" in the wrong minimum too. What tells is the size of the residuals beside
that of the noise, and noise is what second differences along the diagonal leave:

    e_h = r[i, j] - (r[i-h, j-h] + r[i+h, j+h]) / 2

Over h = 1 that is the noise of single points. Speckle noise is correlated over the time in which
the speckles change; over a fifth of the frames it differs from itself, and what a wrong model
leaves along a diagonal, where the lag is constant, hardly does. So the mean square of e over many
frames is the size that noise can have, also correlated noise, whatever the model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.starting import SPARSE_CUT, RowSample

Array = NDArray[np.float64]

# e_h is taken over this part of the sampled frames.
_REACH = 0.2
# Frames with so many times the mean square of the usual frame do not say what noise is; nor do
# points of the sample beyond so many standard deviations, which are cut there.
_BAD_FRAME, _CUT = 4.0, 8.0
# The same for data with few counts, whose noise varies as 1 / (counts of both frames) and has a
# heavy tail. Their residuals are limited as their noise is, and compared with it in the sample.
_SPARSE_BAD_FRAME = 32.0
# All residuals of such data may be so many times the limit, before single values are wrong.
_SPARSE_LOST = 3.0
# How far the model decorrelates over that reach, at least, for what is divided by it.
_LEAST_CHANGE = 0.1
# The cost of a robust loss a point beyond so many times the limit: it cannot see the others.
_LOST = 100.0
# Speckles of right models stay below this many times the noise of single points.
_CORRELATED = 10.0
# By what a variance that is given as that of the noise may differ from it.
_ABSOLUTE = 1.5


@dataclass(frozen=True)
class Residuals:
    """Normalized residuals z [n_phi, 3 * bands, n] of the sampled rows, and which of them count.

    `sparse` [n_phi] are the angles with few counts, as in `RowSample`.
    """

    rows: NDArray[np.intp]
    z: Array
    counts: NDArray[np.bool_]
    sparse: NDArray[np.bool_]

    @classmethod
    def of(cls, sample: RowSample, fitted: Array, sigma: Array) -> Residuals:
        """From the sampled values, the model there, and sigma broadcast to their shape."""
        sigma = np.broadcast_to(sigma, sample.values.shape)
        away = sample.rows[:, None] != np.arange(sample.values.shape[2])
        counts = (sample.good & sample.good[sample.rows][:, None] & away)[None]
        counts = counts & np.isfinite(sample.values) & (sigma > 1e-10) & np.isfinite(sigma)
        z = np.where(counts, sample.values - fitted, 0.0) / np.where(counts, sigma, 1.0)
        # Squares of what a flipped bit makes of a number shall not overflow.
        return cls(sample.rows, np.clip(z, -1e100, 1e100), counts, sample.sparse)

    def of_frames(self) -> Array:
        """The mean square residual [n] of each frame; NaN for those that do not count."""
        count = self.counts.sum((0, 1))
        with np.errstate(invalid="ignore"):
            return np.asarray((self.z**2).sum((0, 1)) / np.where(count > 0, count, np.nan))

    def normal_points(self) -> float:
        """The number of normal residuals whose mean square scatters as that of the sampled ones.

        Each counts by its square, and a heavy tail leaves few that do.
        """
        squares = (self.z / max(float(np.abs(self.z).max()), 1e-100)) ** 2
        total, fourth = float(squares.sum()), float((squares**2).sum())
        points = float(self.counts.sum())
        return min(points, 3 * total**2 / fourth) if fourth > 0 else points


@dataclass(frozen=True)
class NoiseLevel:
    """Mean squares of normalized noise by angle [n_phi]; NaN where the sample cannot tell.

    `single` is that of points by themselves, `over_time` that of their differences over many
    frames, `change` how far (0 to 1) the model says that speckles are others after these, and
    `clipped` the mean square of the residuals themselves, without what is no noise.
    """

    single: Array
    over_time: Array
    change: Array
    clipped: Array
    covered: float  # the share of the residuals that `single` is taken from
    frames: Array  # [n]: mean square of each frame, NaN for those that do not count
    typical: float  # the median of these
    bad: NDArray[np.bool_]  # [n]: frames far beyond the others


def noise_level(residuals: Residuals, memory: Array) -> NoiseLevel:
    """What the residuals themselves say of the noise.

    Args:
      residuals: of the sampled rows.
      memory: [n_phi, 3 * bands, 3 * bands] between the sampled rows: g1^2 of the model, with which
        speckle noise correlates with itself.
    """
    frames = residuals.of_frames()
    usual = frames[np.isfinite(frames)]
    typical, limit = float(np.median(usual)) if usual.size else np.nan, _BAD_FRAME
    if residuals.sparse.any() and usual.size:
        # The median frame can have no counts in common with the sampled ones.
        typical = float(np.mean(usual[usual <= np.quantile(usual, 0.95)]))
        limit = _SPARSE_BAD_FRAME
    with np.errstate(invalid="ignore"):
        bad = frames > limit * typical
    good = residuals.counts & ~bad & ~bad[residuals.rows][:, None]
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
    """Mean square [n_phi] of differences along the diagonal, the change, and their number."""
    rows, z = residuals.rows, residuals.z
    n_phi, _, n = z.shape
    total, change, count = np.zeros(n_phi), np.zeros(n_phi), np.zeros(n_phi)
    for low, at, high in triples:
        back, ahead = int(rows[at] - rows[low]), int(rows[high] - rows[at])
        if n <= back + ahead or not back or not ahead:
            continue
        # The line through the outer two points, at the middle one.
        left, right = ahead / (back + ahead), back / (back + ahead)
        norm = 1 + left**2 + right**2
        columns = slice(back, n - ahead), slice(0, n - back - ahead), slice(back + ahead, n)
        used = good[:, at, columns[0]] & good[:, low, columns[1]] & good[:, high, columns[2]]
        e = z[:, at, columns[0]] - left * z[:, low, columns[1]] - right * z[:, high, columns[2]]
        e = np.clip(e / np.sqrt(norm), -cut[:, 0], cut[:, 0])
        total += (e**2).sum(1, where=used)
        alike = left * memory[:, at, low] + right * memory[:, at, high]
        alike -= left * right * memory[:, low, high]
        change += (1 - 2 * alike / norm) * used.sum(1)
        count += used.sum(1)
    some = np.where(count > 0, count, np.nan)
    return total / some, change / some, count


@dataclass(frozen=True)
class Judgement:
    """Why a fit is not to be believed (None: it may be), and what else is to be told."""

    reason: str | None
    notes: tuple[str, ...]
    # Whether the sampled rows show what is wrong, or a single value elsewhere must be.
    seen: bool = True


def allowed(level: NoiseLevel, single: Array, points: float) -> tuple[float, Array]:
    """The largest mean square, of all angles [] and of each [n_phi], that noise explains.

    In units of `single` [n_phi], the noise of single points. 1 for that noise alone; twice what
    noise over time has beyond it; and a margin that grows where the frames hold few times of
    decorrelation, or few points.
    """
    n_phi = len(level.single)
    margin = 5.0 / np.sqrt(max(points, 1.0))
    change = np.maximum(np.where(np.isfinite(level.change), level.change, 0.0), _LEAST_CHANGE)
    ratio = level.over_time / single
    beyond = np.maximum(np.where(np.isfinite(ratio), ratio, 1.0) - 1.1, 0.0)
    known = np.isfinite(level.single)
    mean_change = max(float(change[known].mean()) if known.any() else 0.0, _LEAST_CHANGE)
    mean_beyond = float(beyond[known].mean()) if known.any() else 0.0
    correlated = 2 * mean_beyond / mean_change
    whole = 1.1 + (0.04 + margin) / mean_change + correlated
    each = 1.15 + (0.08 + margin * np.sqrt(n_phi)) / change
    return whole, each + np.maximum(2 * beyond / change, correlated)


def judge(
    residuals: Residuals,
    memory: Array,
    mean_squares: Array,
    weights: Array,
    *,
    points: float,
    floor: Array,
    phi: Sequence[float],
    robust: float | None,
    absolute: bool,
) -> Judgement:
    """Compares the size of the residuals with that of the noise.

    Args:
      residuals, memory: as in `noise_level`.
      mean_squares: [n_phi], chi2 a degree of freedom of each angle, from all points.
      weights: [n_phi], points of each angle.
      points: independent points of all angles.
      floor: [n_phi], the least mean square that is noise and not rounding.
      phi: degrees, of the angles.
      robust: for a robust loss, the cost a degree of freedom; outliers are its business, so that
        the residuals without them are looked at. None for a linear loss.
      absolute: True if sigma is given as the noise itself (`absolute_sigma`). Otherwise its scale
        has no meaning, and only its dependence on the point is used.
    """
    level = noise_level(residuals, memory)
    # Where the sample is too small to tell, sigma itself is what is known.
    used = np.maximum(np.where(np.isfinite(level.single), level.single, 1.0), floor)
    if residuals.sparse.any():
        points = min(points, residuals.normal_points() * level.covered)
    whole, each = allowed(level, used, points)
    known = weights > 0
    limited = np.full(len(used), robust is not None)
    if robust is None:
        limited = residuals.sparse & (mean_squares <= _SPARSE_LOST * each * used)
    sizes = np.where(limited, np.nan_to_num(level.clipped), mean_squares)
    size = np.where(known, sizes, 0.0) / used
    total = float((size * weights).sum() / weights.sum())
    outside = total > whole or bool((size[known] > each[known]).any())
    if robust is not None:
        lost = robust / float((used * weights).sum() / weights.sum())
        if lost > _LOST * whole:
            outside, total = True, max(total, lost)
    standing = _standing_out(level)
    if not outside:
        notes = [f"some frames stand out: {_frames(level, standing)}"] if standing else []
        if total > _CORRELATED:
            notes.append(
                f"the mean square of residuals is {total:.3g} times that of the noise of single "
                "points: they vary along the diagonal as noise that is correlated over frames "
                "does, or an intensity that was not normalized"
            )
        if not absolute:
            return Judgement(None, tuple(notes))
        noise = float((used * weights).sum() / weights.sum())
        if noise > _ABSOLUTE:
            return Judgement(
                f"the noise of single points is {noise:.4g} sigma^2, expected about 1 with "
                "absolute_sigma=True: sigma is too small",
                tuple(notes),
            )
        if total * noise < 1.0 / _ABSOLUTE:
            notes.append(
                f"the mean square of residuals is {total * noise:.3g} sigma^2: sigma is too large, "
                "and so are errors of independent noise (absolute_sigma=True)"
            )
        return Judgement(None, tuple(notes))
    worst = np.argsort(-np.where(known, size, -1.0), kind="stable")[:3]
    named = ", ".join(
        f"{k} (phi {phi[k]:g}: {size[k]:.3g} of {each[k]:.3g})" for k in worst if known[k]
    )
    frames = standing or _largest(level)
    text = (
        f"the residuals are not noise: their mean square is {total:.4g} times that of the noise, "
        f"which allows {whole:.3g}; worst angles (and what they are allowed) {named}; "
        f"{_frames(level, frames)}"
    )
    sampled = _mean((residuals.z**2).sum((1, 2)), residuals.counts)
    top = int(worst[0])
    seen = bool(np.nan_to_num(sampled[top]) > 0.5 * mean_squares[top])
    return Judgement(text, (), seen)


def _largest(level: NoiseLevel) -> list[int]:
    order = np.argsort(-np.nan_to_num(level.frames, nan=-1.0), kind="stable")
    return [int(k) for k in order[:3] if np.isfinite(level.frames[k])]


def _standing_out(level: NoiseLevel, most: int = 5) -> list[int]:
    """Frames with residuals far beyond the others', the worst first."""
    bad = np.flatnonzero(level.bad)
    return [int(k) for k in bad[np.argsort(-level.frames[bad], kind="stable")][:most]]


def _frames(level: NoiseLevel, frames: Sequence[int]) -> str:
    scale = level.typical if level.typical > 0 else 1.0
    named = ", ".join(f"{k} ({level.frames[k] / scale:.3g})" for k in frames)
    return f"worst frames (counted from 0; their mean square over the median's) {named}"
