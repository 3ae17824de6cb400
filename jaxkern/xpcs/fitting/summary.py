"""From the solver's last point to a `FitResult`: errors, statistics and warnings."""

from __future__ import annotations

import time
import warnings

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import Evaluation
from jaxkern.xpcs.fitting.jackknife import Jackknife, errors_of
from jaxkern.xpcs.fitting.misfit import averages, misfit
from jaxkern.xpcs.fitting.pass_program import AngleSums
from jaxkern.xpcs.fitting.passes import PassPoint
from jaxkern.xpcs.fitting.problem import FitProblem
from jaxkern.xpcs.fitting.quality import Residuals, judge
from jaxkern.xpcs.fitting.result import (
    FitResult,
    FitTimings,
    at_bounds,
    rank_warnings,
    scaled_covariance,
    undetermined,
)
from jaxkern.xpcs.fitting.solver import Solution, covariance
from jaxkern.xpcs.fitting.starting import SIGMA_FLOOR, listed, rows_of

Array = NDArray[np.float64]


def summarize(
    problem: FitProblem,
    evaluations: list[Evaluation],
    best: int,
    solution: Solution,
    jackknife: Jackknife,
    start_costs: tuple[float, ...],
    *,
    interrupted: str = "",
) -> FitResult:
    """The result of a fit: the solution of its best start, with the errors of the jackknife.

    `interrupted` says where Ctrl-C ended the fit; nothing that takes a run over the data follows.
    """
    layout, evaluation = problem.layout, evaluations[best]
    x = problem.turns.wrap(evaluation.full(solution.x))
    point = layout.split(x)
    sums = evaluation.sums(solution.x)
    normal = layout.join(sums)
    count = float(sums.count.sum())
    mirrored = np.where(problem.mirrored, sums.count, sums.mirrored)
    independent = count - float(mirrored.sum()) / 2
    # 2 for symmetric data, where every number was counted twice; 1 where none was.
    pairs = count / independent if independent > 0 else 1.0
    freedom = independent - int(problem.free.sum())
    chi2, cost = float(sums.chi2.sum()), float(sums.cost.sum())
    # An angle that is left out says nothing of its own contrast and offset, which is told once.
    unseen = np.zeros(layout.size, bool)
    if layout.scaling == "individual":
        unseen[: 2 * layout.n_phi] = np.tile(sums.count == 0, 2)
    found = covariance(normal.jtj, active=problem.free & ~unseen)
    found.inverse[unseen] = found.inverse[:, unseen] = np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = cost / pairs / freedom if freedom > 0 else np.inf
    absolute = problem.absolute_sigma
    pcov_independent, by_sigma = (
        scaled_covariance(found.inverse, pairs=pairs, reduced_chi2=scale, absolute_sigma=known)
        for known in (absolute, True)
    )
    pcov, inflation = errors_of(jackknife, pcov_independent, by_sigma, pairs, layout.n_scales)
    names = layout.names
    notes = []
    reasons: list[str] = []
    if np.any(sums.jtj):
        seen = problem.free & ~unseen
        bounded = at_bounds(x, problem.lower, problem.upper, names, seen)
        notes = [f"{line}; its error is not meaningful" for line in bounded.values()]
        notes += rank_warnings(found, names)
        reasons = _unusable(problem, x, pcov, bounded)
    sample, power = problem.data.sample, problem.model.shear_power
    phases = evaluation.phases(point.physics)
    sigma: Array | None = problem.noise.per_angle
    if sigma is None:
        sigma = rows_of(problem.noise.sigma, sample.rows)
    else:
        sigma = sigma[:, None, None]
    residuals = Residuals.of(sample, model_rows(phases, power, point, sample.rows), sigma)
    alone = PassPoint(point.physics, np.ones(layout.n_phi), np.zeros(layout.n_phi))
    sampled_phases = tuple(phase[..., sample.rows] for phase in phases)
    memory = model_rows(sampled_phases, power, alone, np.arange(len(sample.rows)))
    # Of points without weight, which are judged by no one, it may be as large as it likes.
    spread = np.median(np.where(sigma > 0, sigma, SIGMA_FLOOR), axis=(1, 2))
    floor = (SIGMA_FLOOR / spread) ** 2
    if interrupted:
        reasons = [interrupted]
    else:
        reason, more = _checked(
            problem, sums, residuals, memory, floor, point, independent, freedom
        )
        if reason is None and freedom > 0 and np.any(sums.jtj):
            cells = averages(problem, evaluation.tables(point.physics), point)
            reason = misfit(cells, problem.model.geometry, float(np.sqrt(floor).max()))
        reasons = ([] if reason is None else [reason]) + reasons
        notes += more
    notes += jackknife.notes
    notes += [f"left out: {reason}" for reason in problem.bad.reasons]
    if problem.empty_frames:
        named = listed(problem.empty_frames)
        notes.append(f"frames {named} (counted from 0) hold no finite number and are left out")
        warnings.warn(notes[-1], RuntimeWarning, stacklevel=3)
    if freedom <= 0:
        notes.append(f"{independent:g} independent points cannot determine {len(x)} parameters")
    if problem.bad.reasons:
        warnings.warn(
            f"{len(problem.bad.excluded)} of {problem.bad.total} row blocks are left out: "
            f"{problem.bad.reasons[0]}",
            RuntimeWarning,
            stacklevel=3,
        )
    seconds = sum(e.seconds for e in evaluations)
    compiled = problem.context.program.compile_seconds
    return FitResult(
        popt=x,
        names=names,
        units=layout.units,
        pcov=pcov,
        pcov_independent=pcov_independent,
        errors=jackknife.method,
        error_passes=jackknife.passes,
        inflation=inflation,
        chi2=chi2,
        cost=cost,
        count=int(count),
        independent_count=independent,
        reduced_chi2=chi2 / pairs / freedom if freedom > 0 else float("inf"),
        nfev=sum(e.log.earlier for e in evaluations) + solution.nfev,
        n_batches=problem.data.n_batches,
        success=solution.status > 0 and not reasons,
        status=solution.status,
        message=" But ".join(filter(None, [solution.message, "; ".join(reasons)])),
        success_rate=problem.bad.success_rate,
        strategy=problem.data.strategy.value,
        sigma=problem.noise.per_angle,
        sigma_method=problem.noise.method,
        contrast=point.contrast,
        offset=point.offset,
        physics=point.physics,
        timings=FitTimings(compiled, seconds, time.perf_counter() - problem.begin),
        peak_memory=_peak_memory(problem, evaluations),
        costs=solution.costs,
        warnings=tuple(notes),
        start_costs=start_costs,
        keep=problem.data.frames,
        held=tuple(name for name, free in zip(names, problem.free, strict=True) if not free),
        interrupted=bool(interrupted),
    )


def _unusable(problem: FitProblem, x: Array, pcov: Array, bounded: dict[int, str]) -> list[str]:
    """Reasons why the physics [p] cannot be used; contrast and offset are nuisance parameters."""
    names, scales = problem.layout.names, 2 * problem.layout.n_scales
    reasons = []
    lines = [line for k, line in bounded.items() if k >= scales]
    if lines and not problem.allow_bounds:
        reasons.append(
            f"{', '.join(lines)}: try other starts or wider bounds, or pass allow_bounds=True if "
            "the bounds are physical"
        )
    errors = np.sqrt(np.diag(pcov))
    physics = problem.free & (np.arange(len(x)) >= scales)
    told = [
        f"{names[k]} = {x[k]:.4g} +/- {errors[k]:.2g}"
        for k in undetermined(x, errors, problem.turns, physics)
    ]
    if told:
        reasons.append(
            f"the data do not determine {', '.join(told)}: hold parameters, or fit a model with "
            "fewer"
        )
    return reasons


def _peak_memory(problem: FitProblem, evaluations: list[Evaluation]) -> int:
    peak = max(e.peak_bytes for e in evaluations)
    for way in problem.data.ways:
        peak = max(peak, getattr(way, "peak_bytes", 0))
    return int(peak)


def _checked(
    problem: FitProblem,
    sums: AngleSums,
    residuals: Residuals,
    memory: Array,
    floor: Array,
    point: PassPoint,
    independent: float,
    freedom: float,
) -> tuple[str | None, list[str]]:
    """Why the result is not to be believed, or None; and what else the residuals tell."""
    if not np.any(sums.jtj):
        return "no point has any weight: sigma is 0 or infinite, or frames are masked", []
    if freedom < 0:
        return f"{independent:g} independent points are fewer than the parameters", []
    if freedom == 0:
        return None, []
    scale = independent / freedom / np.where(sums.count > 0, sums.count, 1.0)
    judgement = judge(
        residuals,
        memory,
        sums.chi2 * scale,
        sums.count,
        points=freedom,
        floor=floor,
        phi=problem.model.geometry.phi,
        robust=None
        if problem.loss == "linear"
        else float(sums.cost.sum() / sums.count.sum() * independent / freedom),
        absolute=problem.absolute_sigma and not problem.noise.estimated,
    )
    if judgement.reason is None:
        return None, list(judgement.notes)
    reason = judgement.reason
    if not judgement.seen:
        found = problem.data.find_largest(np.where(sums.count > 0, point.offset, np.nan))
        if found is not None:
            angle, i, j, value = found
            reason += f"; the value furthest off is {value:.6g} at angle {angle}, frames {i}, {j}"
    return f"{reason}. Mask bad frames with keep, or try other starts or models", []


def model_rows(
    phases: tuple[Array, ...], shear_power: int, point: PassPoint, rows: NDArray[np.intp]
) -> Array:
    """g2 [n_phi, len(rows), n] of some rows, in NumPy."""
    n_phi = len(point.contrast)
    A, X = (np.broadcast_to(phase, (n_phi, phase.shape[-1])) for phase in phases)
    fitted = np.exp(-2.0 * np.abs(A[:, rows, None] - A[:, None, :]))
    if shear_power:
        fitted *= np.sinc((X[:, rows, None] - X[:, None, :]) / np.pi) ** shear_power
    return np.asarray(point.offset[:, None, None] + point.contrast[:, None, None] * fitted)
