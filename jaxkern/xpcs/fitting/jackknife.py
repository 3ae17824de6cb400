"""Standard errors by a jackknife: what leaving out a block of frames, or an angle, changes.

The noise of a two-time correlation is that of speckles and photons, which a frame has in common
with all the others that it is correlated with: its points are far from independent, and
2 inv(J^T J) is too small by factors of 2 to 20. A block of frames that is left out of both times
takes its noise with it.

With H = J^T J of all data, H_b without block b, and the block's share s_b of J^T r at the optimum,
a refit without the block begins with the step -inv(H_b) s_b. Blocks do not hold equal parts of what
is known of a parameter (a rate that falls as 1/t is known from the first frames alone), and where
one holds most of it, its step is far larger than the error. The weighted jackknife (Wu, Ann. Stat.
14, 1261, 1986) multiplies each step with the root of the part of the information that stays,

    d_b = -G (G^T H_b G)^(-1/2) G^T s_b,  G G^T = inv(H),
    covariance = B / (B - 1) sum (d_b - mean)(d_b - mean)^T,

which is the usual jackknife, (B - 1) / B times the sum over steps, where all blocks know as much.

A robust loss makes H, which has the weights rho' alone, larger than half the second derivative K of
the cost, and steps smaller than a refit's: G then becomes G (G^T K G)^-1, with K from differences
of the gradient J^T r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import Evaluation
from jaxkern.xpcs.fitting.parameters import FitLayout
from jaxkern.xpcs.fitting.pass_program import AngleSums
from jaxkern.xpcs.fitting.passes import BadDataError
from jaxkern.xpcs.fitting.problem import FitProblem
from jaxkern.xpcs.fitting.solver import NormalPoint, normalized, rank_threshold

Array = NDArray[np.float64]

ERRORS = ("jackknife", "independent")
BLOCKS = 10
LEAST_BLOCKS = 5
# Fewer frames than this a block, and the angles are left out instead where there are enough.
LEAST_FRAMES = 3
# What may be left of the correlation after a block: neighbours share the noise that lasts longer.
SLOW = float(np.exp(-1.0))
# Of a robust loss, in units of J^T J with its weights.
_LEAST_CURVATURE = 0.05


@dataclass(frozen=True)
class Jackknife:
    """What leaving out one block after the other changes.

    Attributes:
      changes: of the fitted parameters [B, p]; None where there was no jackknife.
      method: what was left out, in words.
      passes: over the data that were made for it.
      own: (J^T J)^-1 [p, p] of contrast and offset of each angle for given physics, which must be
        added where angles are left out: no other angle knows them.
      notes: what a careful reader should know.
    """

    changes: Array | None
    method: str
    passes: int = 0
    own: Array | None = None
    notes: tuple[str, ...] = ()

    def covariance(self) -> Array:
        """The covariance [p, p] of the parameters."""
        assert self.changes is not None
        count = len(self.changes)
        change = self.changes - self.changes.mean(axis=0)
        covariance: Array = count / (count - 1) * change.T @ change
        return covariance


def independent(*notes: str) -> Jackknife:
    """No jackknife."""
    return Jackknife(None, "independent", notes=notes)


def blocks_of_frames(frames: NDArray[np.bool_], n_phi: int) -> list[NDArray[np.bool_]]:
    """The frames [n] of each block; none where angles should be left out, or nothing can be."""
    used = np.flatnonzero(frames)
    count = min(BLOCKS, len(used) // LEAST_FRAMES)
    if count < (BLOCKS if n_phi >= LEAST_BLOCKS else LEAST_BLOCKS):
        return []
    blocks = []
    for part in np.array_split(used, count):
        block = np.zeros(len(frames), bool)
        block[part] = True
        blocks.append(block)
    return blocks


def jackknife(problem: FitProblem, evaluation: Evaluation, x: Array) -> Jackknife:
    """Leaves out blocks of frames, or angles where frames are few or a block holds few decay times.

    Args:
      problem: the fit.
      evaluation: that found x.
      x: the solution, the free parameters.
    """
    layout, bad, robust = problem.layout, problem.bad, problem.loss != "linear"
    used, sums = problem.data.frames, evaluation.sums(x)
    n_phi = int((sums.count > 0).sum())  # without those that are left out
    blocks, notes = blocks_of_frames(used, n_phi), []
    if blocks:
        frames = used.sum() / len(blocks)
        phases = evaluation.phases(layout.split(evaluation.full(x)).physics)
        left = correlation_left(problem.model.shear_power, phases, round(frames))
        if left > SLOW and n_phi >= LEAST_BLOCKS:
            blocks = []
        elif left > SLOW:
            notes.append(
                f"the model's correlation is {left:.0%} after {frames:.3g} frames, the blocks of "
                "the jackknife: the noise of blocks is not independent, and errors can be too small"
            )
    elif n_phi < LEAST_BLOCKS:
        return independent(
            f"{int(used.sum())} frames and {n_phi} angles are too few for a jackknife "
            f"(wanted {LEAST_BLOCKS * LEAST_FRAMES} frames, or {LEAST_BLOCKS} angles): the errors "
            "are those of independent noise, too small where it is correlated"
        )
    free = evaluation.free
    unusable, told = set(bad.excluded), len(bad.reasons)
    shifts = _shifts(sums, layout, free, x, problem.upper[free]) if robust else []
    nothing = np.zeros_like(used)
    passes = [(x, block) for block in blocks] + [(x + s, nothing) for s in shifts]
    found: list[AngleSums] = []
    try:
        found = evaluation.extra_passes(passes)
    except BadDataError:
        if len(bad.excluded) < bad.total:  # the fit was told to fail on bad data
            raise
    if bad.excluded > unusable:
        # The fit itself had them.
        reason = bad.reasons[told]
        bad.excluded &= unusable
        del bad.reasons[told:]
        return independent(
            f"rows turned bad after the fit, in the passes for its errors ({reason}); these are "
            "therefore those of independent noise, too small where the noise is correlated"
        )
    if robust:
        curved = _curvature(sums, found[len(blocks) :], shifts, layout, free)
    else:
        curved = sums
    if blocks:
        total, curvature = (evaluation.of_free(layout.join(part)) for part in (sums, curved))
        parts = [evaluation.of_free(layout.join(part)) for part in found[: len(blocks)]]
        changes, own = weighted_changes(total, parts, curvature.jtj), None
        method = f"jackknife over {len(blocks)} blocks of {used.sum() / len(blocks):.3g} frames"
    else:
        changes, own = _over_angles(sums, curved, layout, free)
        method = f"jackknife over {n_phi} angles"
    if changes is None:
        return independent("a part of the data gives no finite sums: errors of independent noise")
    full = np.zeros((len(changes), len(free)))
    full[:, free] = changes
    return Jackknife(full, method, len(passes), own, tuple(notes))


def correlation_left(shear_power: int, phases: tuple[Array, Array], lag: int) -> float:
    """(g2 - offset) / contrast of the model at a lag of some frames, on average."""
    A, X = phases
    distance = np.abs(A[..., lag:] - A[..., :-lag])
    shear = np.sinc((X[:, lag:] - X[:, :-lag]) / np.pi) ** shear_power
    return float(np.mean(np.exp(-2.0 * distance) * shear))


def _shifts(
    sums: AngleSums, layout: FitLayout, free: NDArray[np.bool_], x: Array, upper: Array
) -> list[Array]:
    """Small changes of x [p free] for differences of the gradient: contrasts together, as offsets.

    The sums come angle by angle, and no angle knows the contrast of another.
    """
    normal = layout.join(sums)
    steps = 0.05 / np.sqrt(np.maximum(np.diag(normal.jtj), np.finfo(float).tiny))
    scales = layout.n_scales
    groups = [np.arange(scales), scales + np.arange(scales)] if scales else []
    groups += [np.array([k]) for k in range(2 * scales, layout.size) if free[k]]
    shifts = []
    for group in groups:
        shift = np.zeros(layout.size)
        shift[group] = steps[group]
        inside = shift[free]
        shifts.append(np.where(x + inside > upper, -inside, inside))
    return shifts


def _curvature(
    sums: AngleSums,
    moved: list[AngleSums],
    shifts: list[Array],
    layout: FitLayout,
    free: NDArray[np.bool_],
) -> AngleSums:
    """`sums` with half the second derivative of the cost, by differences, instead of J^T J."""
    scales, jtj = layout.n_scales, sums.jtj.copy()
    for part, shift in zip(moved, shifts, strict=True):
        full = np.zeros(layout.size)
        full[free] = shift
        at = int(np.flatnonzero(full)[0])
        if at >= 2 * scales:
            column, size = at - 2 * scales + 2, full[at : at + 1]
        else:
            column, size = at // scales, full[at : at + scales]
        jtj[:, :, column] = (sums.jtr - part.jtr) / size[:, None]
    both = 0.5 * (jtj + np.swapaxes(jtj, 1, 2))
    return AngleSums(both, sums.jtr, sums.chi2, sums.cost, sums.count, sums.mirrored)


def _over_angles(
    sums: AngleSums, curved: AngleSums, layout: FitLayout, free: NDArray[np.bool_]
) -> tuple[Array | None, Array | None]:
    """Changes [B, p free] without each angle that counts, and (J^T J)^-1 of what is their own.

    The contrast and offset of an angle go with it: they are eliminated first.
    """
    n_phi, scales = layout.n_phi, layout.n_scales
    physics, counts = free[2 * scales :], sums.count > 0
    if layout.scaling != "individual":
        first = 2 if scales == 0 else 0
        inside = np.ix_(free, free)
        parts = [
            NormalPoint(jtj[inside], jtr[free], 0.0)
            for jtj, jtr in zip(
                sums.jtj[counts, first:, first:], sums.jtr[counts, first:], strict=True
            )
        ]
        return _one_by_one(parts, curved.jtj[:, first:, first:].sum(0)[inside]), None
    parts, curvature = [], np.zeros((int(physics.sum()),) * 2)
    own, follow = np.zeros((len(free), len(free))), np.zeros((n_phi, 2, int(physics.sum())))
    for k in np.flatnonzero(counts):
        inverse = np.linalg.pinv(sums.jtj[k, :2, :2], hermitian=True)
        places = [k, n_phi + k]
        own[np.ix_(places, places)] = inverse
        slope = inverse @ sums.jtj[k, :2, 2:][:, physics]
        follow[k] = -slope
        # Contrast and offset move with the physics.
        along = np.vstack([-slope, np.eye(len(physics))[:, physics]])
        parts.append(NormalPoint(along.T @ sums.jtj[k] @ along, along.T @ sums.jtr[k], 0.0))
        curvature += along.T @ curved.jtj[k] @ along
    changes = _one_by_one(parts, curvature)
    if changes is None:
        return None, None
    contrast, offset = (changes @ follow[:, row].T for row in (0, 1))
    return np.concatenate([contrast, offset, changes], axis=1), own


def _one_by_one(parts: list[NormalPoint], curvature: Array) -> Array | None:
    """`weighted_changes` where each of the parts, which add up to the whole, is left out."""
    jtj, jtr = np.sum([p.jtj for p in parts], axis=0), np.sum([p.jtr for p in parts], axis=0)
    rest = [NormalPoint(jtj - p.jtj, jtr - p.jtr, 0.0) for p in parts]
    return weighted_changes(NormalPoint(jtj, jtr, 0.0), rest, curvature)


def weighted_changes(total: NormalPoint, rest: list[NormalPoint], curvature: Array) -> Array | None:
    """The changes d_b [B, p] of the formula above; None where sums are not finite.

    Args:
      total: the normal equations [p] of all data at the optimum.
      rest: those without each block.
      curvature: half the second derivative [p, p] of the cost; J^T J for the linear loss.
    """
    if not all(point.is_finite() for point in (total, *rest)):
        return None
    if not total.jtr.size:
        return np.zeros((len(rest), 0))
    scaled, norms = normalized(total.jtj)
    values, vectors = np.linalg.eigh(scaled)
    kept = values > 10 * rank_threshold(len(norms)) * max(values[-1], np.finfo(float).tiny)
    root = vectors[:, kept] / np.sqrt(values[kept]) / norms[:, None]
    along = root.T @ curvature @ root
    # A loss that falls back (cauchy, arctan) can be flat where the data scatter widely.
    low, turned = np.linalg.eigh(along)
    step = root @ (turned / np.maximum(low, _LEAST_CURVATURE)) @ turned.T
    changes = []
    for part in rest:
        share = total.jtr - part.jtr
        stays, axes = np.linalg.eigh(root.T @ part.jtj @ root)
        # Where a block holds all that is known in a direction, its share there is zero too.
        weight = np.where(stays > 1e-9, 1 / np.sqrt(np.maximum(stays, 1e-9)), 0.0)
        changes.append(-step @ (axes @ (weight * (axes.T @ (root.T @ share)))))
    return np.stack(changes)


def errors_of(
    found: Jackknife, independent: Array, by_sigma: Array, pairs: float, n_scales: int
) -> tuple[Array, float]:
    """Joins the jackknife's covariance with that of independent noise.

    Args:
      found: the jackknife.
      independent: the covariance [p, p] of independent noise, as the fit scales it.
      by_sigma: the same, with sigma as it is: `pairs` times (J^T J)^-1.
      pairs: how often a number was counted.
      n_scales: contrasts among the parameters (as many offsets).

    Returns:
      The covariance, infinite where `independent` is (the data do not determine the parameter), and
      the mean over the physics of its diagonal in units of `by_sigma`.
    """
    pcov = independent
    if found.changes is not None:
        pcov = np.where(np.isfinite(independent), found.covariance(), np.inf)
    variances, units = np.diag(pcov), np.diag(by_sigma)
    usable = np.isfinite(variances) & np.isfinite(units) & (units > 0)
    physics = np.arange(len(usable)) >= 2 * n_scales
    inflation = 1.0
    for chosen in (usable & physics, usable):
        if chosen.any():
            inflation = float(np.mean(variances[chosen] / units[chosen]))
            break
    if found.own is not None:
        pcov = pcov + inflation * pairs * found.own
    return pcov, inflation
