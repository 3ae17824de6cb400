"""Standard errors from a jackknife that omits blocks of frames, in both times, or angles.

With H = J^T J of all data, H_b without block b, and the block's share s_b of J^T r at the optimum,
the first step of a refit without the block is -inv(H_b) s_b. The weighted jackknife (Wu, Ann. Stat.
14, 1261, 1986) multiplies it by the root of the remaining part of the information, since blocks
contain different parts; for blocks of equal information it is the usual jackknife:

    d_b = -G (G^T H_b G)^(-1/2) G^T s_b,  G G^T = inv(H),
    covariance = B / (B - 1) sum (d_b - mean)(d_b - mean)^T.

With a robust loss, H contains only the weights rho' and is larger than half the second derivative K
of the cost, so steps would be smaller than those of a refit. G is replaced by G (G^T K G)^-1 then,
with K from differences of the gradient J^T r.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.data import BadDataError
from jaxkern.xpcs.fitting.evaluation import Evaluation, FitProblem
from jaxkern.xpcs.fitting.parameters import FitLayout
from jaxkern.xpcs.fitting.passes import AngleSums
from jaxkern.xpcs.fitting.solver import NormalPoint, Solution, normalized, rank_threshold

Array = NDArray[np.float64]

BLOCKS = 10
LEAST_BLOCKS = 5
# If blocks have fewer frames than this, the jackknife omits angles, provided there are enough.
LEAST_FRAMES = 3
# Largest correlation of the model over a block. Neighbouring blocks share noise that lasts longer.
SLOW = float(np.exp(-1.0))
# Minimum curvature of a robust loss, in units of J^T J with its weights.
_LEAST_CURVATURE = 0.05


@dataclass(frozen=True)
class Jackknife:
    """Changes of the parameters when one block at a time is omitted."""

    # Of the fitted parameters [B, p]; None without a jackknife, for errors of independent noise.
    changes: Array | None = None
    method: str = "independent"  # the kind and number of blocks, in words
    passes: int = 0  # number of passes over the data
    # (J^T J)^-1 [p, p] of contrast and offset of each angle at fixed physics. It is added if
    # angles are omitted, because other angles have no information on these.
    scale_covariance: Array | None = None
    notes: tuple[str, ...] = ()  # warnings for the result


def _blocks_of_frames(frames: NDArray[np.bool_], n_phi: int) -> list[NDArray[np.bool_]]:
    """Return the frames [n] of each block; an empty list to omit angles, or nothing."""
    used = np.flatnonzero(frames)
    count = min(BLOCKS, len(used) // LEAST_FRAMES)
    enough = count >= (BLOCKS if n_phi >= LEAST_BLOCKS else LEAST_BLOCKS)
    parts = np.array_split(used, count) if enough else []
    return [np.isin(np.arange(len(frames)), part) for part in parts]


def jackknife(problem: FitProblem, evaluation: Evaluation, solution: Solution) -> Jackknife:
    """Omit blocks of frames, or angles if frames are few or blocks are shorter than the decay."""
    layout, x, bad = problem.layout, solution.x, evaluation.runner.bad
    robust = problem.solver.loss != "linear"
    used, sums = problem.data.frames, evaluation.sums(solution)
    n_phi = int((sums.count > 0).sum())  # without excluded angles
    blocks, notes = _blocks_of_frames(used, n_phi), []
    if blocks:
        frames = used.sum() / len(blocks)
        physics = layout.split(evaluation.full(x)).physics
        starts = np.arange(len(used) - round(frames))
        tables = problem.program.host_tables(physics)
        remaining = float(np.mean(tables.correlation(starts + round(frames), starts)))
        if remaining > SLOW and n_phi >= LEAST_BLOCKS:
            blocks = []
        elif remaining > SLOW:
            notes.append(
                f"the model's correlation is {remaining:.0%} after {frames:.3g} frames, the blocks "
                "of the jackknife: blocks share noise, and errors can be too small"
            )
    elif n_phi < LEAST_BLOCKS:
        note = (
            f"the jackknife needs {LEAST_BLOCKS * LEAST_FRAMES} frames or {LEAST_BLOCKS} angles, "
            f"got {int(used.sum())} frames and {n_phi} angles: the errors of independent noise are "
            "too small if it is correlated"
        )
        return Jackknife(notes=(note,))
    free = evaluation.free
    excluded, n_reasons = set(bad.excluded), len(bad.reasons)
    shifts = _shifts(sums, problem, evaluation.full(x)) if robust else {}
    passes: list[tuple[Array, NDArray[np.bool_] | None]] = [(x, block) for block in blocks]
    passes += [(x + shift[free], None) for shift in shifts.values()]
    results: list[AngleSums] = []
    try:
        results = evaluation.extra_passes(passes)
    except BadDataError:
        if len(bad.excluded) < bad.total:  # on_bad_chunk="raise"
            raise
    if bad.excluded > excluded:
        # The solution is that of the data with these rows.
        reason = bad.reasons[n_reasons]
        bad.excluded &= excluded
        del bad.reasons[n_reasons:]
        note = (
            f"rows turned bad after the fit, in the passes for its errors ({reason}); the errors "
            "are therefore those of independent noise, too small if the noise is correlated"
        )
        return Jackknife(notes=(note,))
    curved = _curvature(sums, results[len(blocks) :], shifts, layout)
    if blocks:
        total, curvature = (evaluation.restrict(layout.join(part)) for part in (sums, curved))
        parts = [evaluation.restrict(layout.join(part)) for part in results[: len(blocks)]]
        changes, scale_covariance = weighted_changes(total, parts, curvature.jtj), None
        method = f"jackknife over {len(blocks)} blocks of {used.sum() / len(blocks):.3g} frames"
    else:
        changes, scale_covariance = _over_angles(sums, curved, layout, free)
        method = f"jackknife over {n_phi} angles"
    if changes is None:
        note = "sums of a part of the data are not finite: errors of independent noise"
        return Jackknife(notes=(note,))
    full = np.zeros((len(changes), len(free)))
    full[:, free] = changes
    return Jackknife(full, method, len(passes), scale_covariance, tuple(notes))


def _shifts(sums: AngleSums, problem: FitProblem, x: Array) -> dict[int, Array]:
    """Return small changes of x [p] for differences of the gradient, by parameter of an angle.

    The contrasts of all angles change together, and all offsets, because each affects the sums of
    one angle.
    """
    layout = problem.layout
    scales, index = layout.n_scales, np.arange(layout.size)
    steps = 0.05 / np.sqrt(np.maximum(np.diag(layout.join(sums).jtj), np.finfo(float).tiny))
    own = [np.median(sums.jtj[sums.count > 0, k, k]) for k in (0, 1)]
    # Coefficients that add the same to all angles.
    ones = np.linalg.pinv(layout.basis).sum(1)
    steps[: 2 * scales] = np.outer(0.05 / np.sqrt(own), ones).ravel()
    steps = np.where(x + steps > problem.bounds.solver[1], -steps, steps)
    groups = {0: index < scales, 1: (index >= scales) & (index < 2 * scales)} if scales else {}
    groups |= {2 + k - 2 * scales: index == k for k in index[2 * scales :] if problem.free[k]}
    return {parameter: np.where(group, steps, 0.0) for parameter, group in groups.items()}


def _curvature(
    sums: AngleSums, shifted: list[AngleSums], shifts: dict[int, Array], layout: FitLayout
) -> AngleSums:
    """Return `sums` with half the second derivative of a robust cost in place of J^T J."""
    if not shifts:
        return sums
    jtj = sums.jtj.copy()
    for part, (parameter, shift) in zip(shifted, shifts.items(), strict=True):
        change = [layout.jacobian(k)[parameter] @ shift for k in range(layout.n_phi)]
        jtj[:, :, parameter] = (sums.jtr - part.jtr) / np.array(change)[:, None]
    return replace(sums, jtj=0.5 * (jtj + np.swapaxes(jtj, 1, 2)))


def _over_angles(
    sums: AngleSums, curved: AngleSums, layout: FitLayout, free: NDArray[np.bool_]
) -> tuple[Array | None, Array | None]:
    """Return the changes [B, free] without each used angle, and `Jackknife.scale_covariance`.

    Contrast and offset are eliminated first if they are individual, because they are omitted with
    the angle, or if the angles leave few degrees of freedom for coefficients of a series.
    """
    scales, used = layout.n_scales, np.flatnonzero(sums.count > 0)
    physics, eliminate = free[2 * scales :], len(used) - scales < LEAST_BLOCKS - 1
    parts, curvatures = [], []
    # From contrast and offset of the used angles to their coefficients.
    back = np.kron(np.eye(2), np.linalg.pinv(layout.basis[used]))
    covariance = np.zeros((len(free), len(free)))
    follow, inverses = np.zeros((2, len(used), int(physics.sum()))), np.zeros((2, len(used)) * 2)
    for row, k in enumerate(used.tolist()):
        along = layout.jacobian(k)[:, free]
        if eliminate:
            inverses[:, row, :, row] = inverse = np.linalg.pinv(sums.jtj[k, :2, :2], hermitian=True)
            # Contrast and offset move with the physics.
            follow[:, row] = -inverse @ sums.jtj[k, :2, 2:][:, physics]
            along = np.vstack([follow[:, row], np.eye(len(physics))[:, physics]])
        parts.append(NormalPoint(along.T @ sums.jtj[k] @ along, along.T @ sums.jtr[k], 0.0))
        curvatures.append(along.T @ curved.jtj[k] @ along)
    changes = _one_by_one(parts, np.sum(curvatures, axis=0))
    if changes is None or not eliminate:
        return changes, None
    size = 2 * len(used)
    covariance[: 2 * scales, : 2 * scales] = back @ inverses.reshape(size, size) @ back.T
    return np.hstack([changes @ (back @ follow.reshape(size, -1)).T, changes]), covariance


def _one_by_one(parts: list[NormalPoint], curvature: Array) -> Array | None:
    """Return `weighted_changes` for the omission of each of `parts`, whose sum is all data."""
    jtj, jtr = np.sum([p.jtj for p in parts], axis=0), np.sum([p.jtr for p in parts], axis=0)
    rest = [NormalPoint(jtj - p.jtj, jtr - p.jtr, 0.0) for p in parts]
    return weighted_changes(NormalPoint(jtj, jtr, 0.0), rest, curvature)


def weighted_changes(total: NormalPoint, rest: list[NormalPoint], curvature: Array) -> Array | None:
    """Return the changes d_b [B, p] of the formula above; None if sums are not finite.

    `rest` are the normal equations without each block. `curvature` [p, p] is half the second
    derivative of the cost; J^T J for the linear loss.
    """
    if not (np.isfinite(curvature).all() and all(p.is_finite() for p in (total, *rest))):
        return None
    if not total.jtr.size:
        return np.zeros((len(rest), 0))
    scaled, norms = normalized(total.jtj)
    values, vectors = np.linalg.eigh(scaled)
    regular = values > 10 * rank_threshold(len(norms)) * max(values[-1], np.finfo(float).tiny)
    root = vectors[:, regular] / np.sqrt(values[regular]) / norms[:, None]
    along = root.T @ curvature @ root
    # A redescending loss (cauchy, arctan) can be flat if the data scatter widely.
    low, axes_K = np.linalg.eigh(along)
    step = root @ (axes_K / np.maximum(low, _LEAST_CURVATURE)) @ axes_K.T
    changes = []
    for part in rest:
        share = total.jtr - part.jtr
        remaining, axes = np.linalg.eigh(root.T @ part.jtj @ root)
        # If a block has all information in a direction, its share there is zero too.
        weight = np.where(remaining > 1e-9, 1 / np.sqrt(np.maximum(remaining, 1e-9)), 0.0)
        changes.append(-step @ (axes @ (weight * (axes.T @ (root.T @ share)))))
    return np.stack(changes)


def combine_errors(
    jackknife: Jackknife, independent: Array, by_sigma: Array, pairs: float, n_scales: int
) -> tuple[Array, float]:
    """Return the covariance, and the mean over the physics of its diagonal in units of `by_sigma`.

    `independent` [p, p] and `by_sigma`, `pairs` (J^T J)^-1, are covariances of independent noise.
    """
    pcov = independent
    if jackknife.changes is not None:
        count, change = len(jackknife.changes), jackknife.changes - jackknife.changes.mean(axis=0)
        covariance = count / (count - 1) * change.T @ change
        pcov = np.where(np.isfinite(independent), covariance, np.inf)
    variances, units = np.diag(pcov), np.diag(by_sigma)
    usable = np.isfinite(variances) & np.isfinite(units) & (units > 0)
    physics = np.arange(len(usable)) >= 2 * n_scales
    chosen = usable & physics if (usable & physics).any() else usable
    inflation = float(np.mean(variances[chosen] / units[chosen])) if chosen.any() else 1.0
    if jackknife.scale_covariance is not None:
        pcov = pcov + inflation * pairs * jackknife.scale_covariance
    return pcov, inflation
