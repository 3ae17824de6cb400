"""The checks of a fit: the size of its residuals, and their averages, must be those of noise.

The first check estimates the noise from second differences of the residuals along the diagonal.
Between neighbours, these are the noise of single points. Over a fifth of the frames speckle noise
decorrelates, but the residuals of a wrong model hardly change, since the lag is constant. So their
mean square bounds the size of noise, correlated noise included, for any model.

The second check averages the residuals z in logarithmic bins of the lag, with Legendre polynomials
in the age as weights. The standard error of such an average c is estimated from the scatter between
parts u of the data: blocks of frames t1 at one angle, in which the model decays. The fit has
adjusted its parameters to the noise: with H = J^T J, s_u = the share of part u in J^T z, and J_c of
the weighted Jacobian, part u changes the weighted sum of the residuals by

    h[u, c] = (weighted sum of z over the points of u) - J_c H^-1 s_u.

t[c] = sum_u h[u, c] in units of its standard error is compared with Student's t distribution. The
degrees of freedom are the effective number of parts, less one and the shared parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting import sampling
from jaxkern.xpcs.fitting.evaluation import Evaluation, FitProblem
from jaxkern.xpcs.fitting.passes import MAX_VALUE, AngleSums, HostTables, PassPoint
from jaxkern.xpcs.fitting.sampling import SIGMA_FLOOR, SPARSE_CUT, RowSample

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]

# Span of the long differences, as a fraction of the sampled frames.
_REACH = 0.2
# Frames with more than this multiple of the typical mean square are excluded from the estimate of
# noise, and points of the sample, or of robust fits, are clipped at this number of standard
# deviations.
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
# False-alarm probability by the degree of the weight, divided by the number of bins (Bonferroni).
_LEVELS = (2e-3, 5e-4, 5e-4)
# Number of bins of the age; the weight is constant in each.
_AGES = 12
# Largest number of points that are read; the minimum number of rows may exceed it.
_POINTS, _LEAST_ROWS = 2**18, 24
# Ratio of neighbouring edges of the bins of the lag.
_RATIO = 1.6
# Largest correlation of the model between the ends of a block, and minimum number of its frames.
_MAX_CORRELATION, _LEAST_FRAMES = float(np.exp(-4.0)), 3
# The scatter between blocks underestimates the variance by up to this factor: neighbours share some
# noise, and contrast and offset of an angle with few blocks absorb a part of it.
_WIDER = 1.25
# Cells with fewer degrees of freedom are skipped.
_LEAST_FREEDOM = 4.0


def check(
    evaluation: Evaluation, sums: AngleSums, point: PassPoint, independent: float, freedom: float
) -> tuple[str | None, list[str]]:
    """Return the reason that the residuals are not noise, or None, and remarks on them.

    The fit has `independent` points, and `freedom` more than parameters.
    """
    problem = evaluation.problem
    if not np.any(sums.jtj):
        return "no point has weight: sigma is 0 or infinite, or all frames are masked", []
    if freedom < 0:
        return f"{independent:g} independent points are fewer than the parameters", []
    if freedom == 0:
        return None, []
    sample, count = problem.data.sample, sums.count
    tables = problem.program.host_tables(point.physics)
    sigma, sparse = sampling.sigma_rows(problem.noise.sigma, sample.rows), sample.sparse
    f = tables.correlation(sample.rows[:, None], np.arange(len(sample.good))[None])
    f = np.broadcast_to(f, (len(count), *f.shape[1:]))
    fitted = point.offset[:, None, None] + point.contrast[:, None, None] * f
    z, used = _residuals(sample, fitted, sigma)
    level = _noise_level(sample.rows, z, used, sparse, memory=f[:, :, sample.rows])
    # Points without weight are not checked, so their smallest mean square is irrelevant.
    spread = np.median(np.where(sigma > 0, sigma, SIGMA_FLOOR), axis=(1, 2))
    floor = (SIGMA_FLOOR / spread) ** 2  # mean squares below are rounding errors
    # With too few sampled points, sigma is the only estimate.
    noise = np.maximum(np.where(np.isfinite(level.single), level.single, 1.0), floor)
    points = min(freedom, _effective_points(z, used) * level.covered) if sparse.any() else freedom
    limit, each = _allowed(level, noise, points)
    known = count > 0
    mean_squares = sums.chi2 * (independent / freedom / np.where(known, count, 1.0))
    robust, use_clipped = 0.0, sparse & (mean_squares <= _SPARSE_LOST * each * noise)
    if problem.solver.loss != "linear":
        # A robust loss tolerates outliers: the residuals without these are compared.
        use_clipped = np.ones(len(count), bool)
        robust = float(sums.cost.sum() / count.sum() * independent / freedom)
    sizes = np.where(use_clipped, np.nan_to_num(level.clipped), mean_squares)
    size = np.where(known, sizes, 0.0) / noise
    total, mean_noise = (float((v * count).sum() / count.sum()) for v in (size, noise))
    failed = total > limit or bool((size[known] > each[known]).any())
    if robust / mean_noise > _LOST * limit:
        failed, total = True, max(total, robust / mean_noise)
    outliers, notes = _worst(level, level.bad, 5), []
    absolute = problem.errors.absolute_sigma and not problem.noise.estimated
    evaluation.runner.measure_memory()
    if not failed and not (absolute and mean_noise > _ABSOLUTE):
        if outliers:
            notes.append(f"some frames are outliers: {_frames(level, outliers)}")
        if total > _CORRELATED:
            notes.append(
                f"the mean square of residuals is {total:.3g} times that of the noise of single "
                "points: they vary along the diagonal like noise that is correlated over frames, "
                "or an intensity that was not normalized"
            )
        if absolute and total * mean_noise < 1.0 / _ABSOLUTE:
            notes.append(
                f"the mean square of residuals is {total * mean_noise:.3g} sigma^2: sigma is too "
                "large, and so are errors of independent noise (absolute_sigma=True)"
            )
        reason = _misfit(problem, tables, point, float(np.sqrt(floor).max()))
        evaluation.runner.measure_memory()
        return reason, notes
    text = (
        f"the noise of single points is {mean_noise:.4g} sigma^2, expected about 1 with "
        "absolute_sigma=True: sigma is too small"
    )
    if failed:
        phi = problem.model.geometry.phi
        worst = np.argsort(-np.where(known, size, -1.0), kind="stable")
        angles = ", ".join(
            f"{k} (phi {phi[k]:g}: {size[k]:.3g} of {each[k]:.3g})" for k in worst[:3] if known[k]
        )
        frames = outliers or _worst(level, np.isfinite(level.frames), 3)
        text = (
            f"the residuals are not noise: their mean square is {total:.4g} times that of the "
            f"noise, at most {limit:.3g} expected; worst angles (and their limits) {angles}; "
            f"{_frames(level, frames)}"
        )
        in_sample = np.nan_to_num(_mean((z**2).sum((1, 2)), used))
        if not in_sample[worst[0]] > 0.5 * mean_squares[worst[0]]:
            furthest = problem.data.find_largest(np.where(known, point.offset, np.nan))
            if furthest is not None:
                angle, i, j, value = furthest
                text += f"; the most distant value is {value:.6g} at angle {angle}, frames {i}, {j}"
    return f"{text}. Mask bad frames with `keep`, or try other starts or models", []


def _residuals(sample: RowSample, fitted: Array, sigma: Array) -> tuple[Array, Mask]:
    """Return sampled residuals [n_phi, 3 * bands, n] in units of sigma, and a mask of used ones."""
    used = sample.used_points()[None] & np.isfinite(sample.values)
    used = used & (sigma > 1e-10) & np.isfinite(sigma)
    z = np.where(used, sample.values - fitted, 0.0) / np.where(used, sigma, 1.0)
    # The squares of huge numbers, as of a flipped bit, must not overflow.
    return np.clip(z, -MAX_VALUE, MAX_VALUE), used


def _effective_points(z: Array, used: Mask) -> float:
    """Return the number of normally distributed residuals whose mean square scatters equally.

    It is smaller than that of the points for residuals with a heavy tail.
    """
    squares = (z / max(float(np.abs(z).max()), 1e-100)) ** 2
    total, fourth = float(squares.sum()), float((squares**2).sum())
    points = float(used.sum())
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
    bad: Mask  # True for frames with far larger residuals than others [n]


def _noise_level(rows: Indices, z: Array, used: Mask, sparse: Mask, memory: Array) -> NoiseLevel:
    """Estimate the noise; `memory` is g1^2 between the sampled rows [n_phi, 3 bands, 3 bands]."""
    count = used.sum((0, 1))
    with np.errstate(invalid="ignore"):
        frames = (z**2).sum((0, 1)) / np.where(count > 0, count, np.nan)
    finite = frames[np.isfinite(frames)]
    typical, limit = float(np.median(finite)) if finite.size else np.nan, _BAD_FRAME
    if sparse.any() and finite.size:
        # The median frame may have no counts in common with the sampled ones.
        typical = float(np.mean(finite[finite <= np.quantile(finite, 0.95)]))
        limit = _SPARSE_BAD_FRAME
    with np.errstate(invalid="ignore"):
        bad = frames > limit * typical
    good = used & ~bad & ~bad[rows][:, None]
    cut = np.where(sparse, SPARSE_CUT, _CUT)[:, None, None] * np.sqrt(typical)
    clipped = _mean((np.clip(z, -cut, cut) ** 2).sum((1, 2), where=good), good)
    bands = len(rows) // 3
    reach = max(1, min((bands - 1) // 2, round(_REACH * (bands - 1))))
    neighbours = [(3 * band, 3 * band + 1, 3 * band + 2) for band in range(bands)]
    apart = [(at - 3 * reach, at, at + 3 * reach) for at in range(3 * reach, 3 * (bands - reach))]

    def differences(triples: Sequence[tuple[int, int, int]]) -> tuple[Array, Array, Array]:
        """Return mean squares [n_phi] of differences, their decorrelation and number."""
        total, change, number = np.zeros((3, len(z)))
        for low, at, high in triples:
            e, both, (left, right) = sampling.along_diagonal(z, rows, (low, at, high), good)
            total += (np.clip(e, -cut[:, 0], cut[:, 0]) ** 2).sum(1, where=both)
            overlap = left * memory[:, at, low] + right * memory[:, at, high]
            overlap -= left * right * memory[:, low, high]
            change += (1 - 2 * overlap / (1 + left**2 + right**2)) * both.sum(1)
            number += both.sum(1)
        divisor = np.where(number > 0, number, np.nan)
        return total / divisor, change / divisor, number

    single, _, number = differences(neighbours)
    over_time, change, _ = differences(apart)
    covered = min(1.0, 3.0 * float(number.sum()) / max(float(good.sum()), 1.0))
    return NoiseLevel(single, over_time, change, clipped, covered, frames, typical, bad)


def _mean(total: Array, used: Mask) -> Array:
    count = used.sum((1, 2))
    return np.asarray(total / np.where(count > 0, count, np.nan))


def _allowed(level: NoiseLevel, single: Array, points: float) -> tuple[float, Array]:
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


def _worst(level: NoiseLevel, chosen: Mask, most: int) -> list[int]:
    """Return the chosen frames with the largest residuals, the worst first."""
    order = np.argsort(-np.nan_to_num(level.frames, nan=-1.0), kind="stable")
    return [int(k) for k in order if chosen[k]][:most]


def _frames(level: NoiseLevel, frames: Sequence[int]) -> str:
    scale = level.typical if level.typical > 0 else 1.0
    listed = ", ".join(f"{k} ({level.frames[k] / scale:.3g})" for k in frames)
    return f"worst frames (counted from 0; mean square relative to the median) {listed}"


def _misfit(problem: FitProblem, tables: HostTables, point: PassPoint, floor: float) -> str | None:
    """Return the reason that averages are not noise, with the worst lags and ages, or None.

    `tables` are those at the point; averages up to `floor` are rounding errors.
    """
    averages, geometry = _averages(problem, tables, point), problem.model.geometry
    if averages is None:
        return None
    t, mean, limit, edges = averages
    excess = np.where(np.abs(mean) > floor, np.abs(t) / limit, 0.0)
    worst = np.argsort(-excess, axis=None, kind="stable")[:4]
    outliers = [np.unravel_index(k, t.shape) for k in worst if excess.flat[k] > 1.0]
    if not outliers:
        return None
    begin, end = float(geometry.t[0]), float(geometry.t[-1])
    weights = (
        f"mean over the ages {begin:.3g} to {end:.3g} s",
        f"rise from the age {begin:.3g} s to {end:.3g} s",
        f"rise from the age {(begin + end) / 2:.3g} s to both ends of the run",
    )
    texts = []
    for degree, k in outliers:
        first, last = geometry.dt * edges[k], geometry.dt * (edges[k + 1] - 1)
        lags = f"lag {first:.3g} s" if first == last else f"lags {first:.3g} to {last:.3g} s"
        value = f"{t[degree, k]:+.3g} (at most {limit[degree, k]:.3g})"
        texts.append(f"{lags}, {weights[degree]}: {value}")
    return (
        "the residuals averaged by lag and age are not noise, so the model does not describe the "
        f"data: in standard errors, {'; '.join(texts)}. Plot cuts along the lag, try other models"
    )


def _averages(
    problem: FitProblem, tables: HostTables, point: PassPoint
) -> tuple[Array, Array, Array, Indices] | None:
    """Read some rows of the data and return the averages of their residuals; None without points.

    Returns t, the averages in units of sigma, and the largest |t| compatible with noise, each
    [degree of the weight, bins], and the edges of the bins of the lag in frames.
    """
    data, sigma, layout = problem.data, problem.noise.sigma, problem.layout
    used = np.flatnonzero(data.frames)
    count = min(len(used), max(_LEAST_ROWS, _POINTS // (data.shape[0] * data.shape[1])))
    rows = used[np.linspace(0, len(used) - 1, count).round().astype(np.intp)]
    mask, first, second, cell, edges = _pairs(rows, data.frames)
    n_cells = _AGES * (len(edges) - 1)
    # Sums over all angles, and by blocks: of residuals and points [blocks, cells], and J^T z.
    normal, jacobian = np.zeros((layout.size, layout.size)), np.zeros((layout.size, n_cells))
    z_sums, counts, scores = [], [], []
    for angle in range(data.shape[0]):
        measured = sampling.rows_of_angle(data.source, angle, rows)
        if isinstance(sigma, np.ndarray):
            noise = np.broadcast_to(sigma[angle], measured.shape)
        else:
            noise = sampling.rows_of_angle(sigma, angle, rows)
        z, noise = measured.ravel()[mask], noise.ravel()[mask]
        good = np.isfinite(z) & np.isfinite(noise) & (noise > 1e-10)
        if not good.any():
            continue
        noise, cells = noise[good], cell[good]
        i, j = first[good], second[good]
        own_tables = tables.at_angle(angle)
        slopes = _jacobian(own_tables, i, j, float(point.contrast[angle]))
        fitted = point.offset[angle] + point.contrast[angle] * slopes[0]
        slopes /= noise
        # The squares of huge numbers, as of a flipped bit, must not overflow.
        z = np.clip((z[good] - fitted) / noise, -MAX_VALUE, MAX_VALUE)
        if problem.solver.loss != "linear":
            cut = _CUT * 1.4826 * float(np.median(np.abs(z)))
            z = np.clip(z, -cut, cut)
        block = _blocks(own_tables, data.shape[1])[i]
        n_blocks = int(block.max()) + 1
        shape, size = (n_blocks, n_cells), n_blocks * n_cells
        index = block * n_cells + cells
        z_sums.append(np.bincount(index, z, size).reshape(shape))
        counts.append(np.bincount(index, minlength=size).reshape(shape).astype(np.float64))
        change = layout.jacobian(angle)
        normal += change.T @ (slopes @ slopes.T) @ change
        jacobian += change.T @ [np.bincount(cells, row, n_cells) for row in slopes]
        score = np.array([np.bincount(block, row * z, n_blocks) for row in slopes])
        scores.append(score.T @ change)
    if not z_sums:
        return None
    # The fit has adjusted the free parameters.
    score, free = np.concatenate(scores)[:, problem.free], problem.free
    normal, jacobian = normal[np.ix_(free, free)], jacobian[free]
    norms = np.sqrt(np.maximum(np.diag(normal), np.finfo(float).tiny))
    inverse = np.linalg.pinv(normal / np.outer(norms, norms), rcond=1e-10, hermitian=True)
    inverse /= np.outer(norms, norms)
    h = np.concatenate(z_sums) - score @ inverse @ jacobian
    shared = int(free[2 * layout.n_scales :].sum())
    shared += 2 * layout.n_scales if layout.n_scales < layout.n_phi else 0
    return *_statistics(h, np.concatenate(counts), shared), edges


def _pairs(rows: Indices, frames: Mask) -> tuple[Mask, Indices, Indices, Indices, Indices]:
    """Return the points of the rows that are read, each pair of frames once.

    Returns a mask of these points in the flattened rows, their frames (first < second), the indices
    age * (bins of the lag) + bin of their averages, and the edges of the bins in frames.
    """
    n = len(frames)
    edges = sampling.lag_edges(n, _RATIO)
    edges[-1] = n
    row, column = np.repeat(rows, n), np.tile(np.arange(n), len(rows))
    is_row = np.zeros(n, bool)
    is_row[rows] = True
    # A point left of the diagonal is skipped if its mirror image is in another row.
    mask = ((column > row) | ((column < row) & ~is_row[column])) & frames[column]
    row, column = row[mask], column[mask]
    first, second = np.minimum(row, column), np.maximum(row, column)
    bins = np.searchsorted(edges, np.arange(n), side="right") - 1
    age = _AGES * (first + second) // (2 * n - 1)
    return mask, first, second, age * (len(edges) - 1) + bins[second - first], edges


def _jacobian(tables: HostTables, i: Indices, j: Indices, contrast: float) -> Array:
    """Return the derivatives [2 + p, points] of g2 of one angle by contrast, offset and physics."""
    f, slopes = tables.correlation_slopes(j, i)
    return np.concatenate([f, np.ones_like(f), contrast * slopes[0]])


def _blocks(tables: HostTables, n: int) -> Indices:
    """Return the index of the block of each frame [n]."""
    starts = [0]
    while True:
        start, later = starts[-1], np.arange(min(starts[-1] + _LEAST_FRAMES, n), n)
        remaining = tables.correlation(later, np.array([start]))[0]
        decayed = np.flatnonzero(remaining <= _MAX_CORRELATION)
        if not decayed.size:
            # The frames after the last start are too few for a block, and join the previous one.
            return np.searchsorted(starts[1:-1], np.arange(n), side="right")
        starts.append(int(later[decayed[0]]))


def _statistics(h: Array, count: Array, shared: int) -> tuple[Array, Array, Array]:
    """Return `_averages` from sums [parts, ages * bins]; t is 0 with too few degrees of freedom."""
    from scipy.special import stdtrit

    # From sums over ages to weighted ones [parts, degree, bins].
    weights = np.polynomial.legendre.legvander((np.arange(_AGES) + 0.5) / _AGES * 2 - 1, 2).T
    h, count = (
        np.einsum("da,uab->udb", w, v.reshape(len(v), _AGES, -1))
        for w, v in ((weights, h), (weights**2, count))
    )
    total, points = h.sum(0), count.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = count / points
        n_effective = np.nan_to_num(1.0 / (weight**2).sum(0))
        freedom = n_effective - 1 - shared
        variance = ((h - weight * total) ** 2).sum(0) * n_effective / freedom * _WIDER
        t, mean = total / np.sqrt(variance), total / points
    usable = (freedom >= _LEAST_FREEDOM) & np.isfinite(t)
    levels = np.array(_LEVELS) / np.maximum(usable.sum(1), 1)
    limit = -stdtrit(np.where(usable, freedom, 1.0), levels[:, None] / 2)
    return np.where(usable, t, 0.0), np.where(usable, mean, 0.0), limit
