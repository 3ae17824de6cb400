"""The `FitResult` of a solution: errors, statistics, checks and warnings."""

from __future__ import annotations

import time
import warnings

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import Evaluation, FitProblem
from jaxkern.xpcs.fitting.jackknife import Jackknife, combine_errors
from jaxkern.xpcs.fitting.misfit import averages, misfit
from jaxkern.xpcs.fitting.passes import AngleSums, PassPoint, correlation
from jaxkern.xpcs.fitting.quality import Residuals, judge
from jaxkern.xpcs.fitting.result import (
    FitResult,
    FitTimings,
    at_bounds,
    rank_warnings,
    scaled_covariance,
    undetermined,
)
from jaxkern.xpcs.fitting.sampling import SIGMA_FLOOR, format_frames, rows_of
from jaxkern.xpcs.fitting.solver import Solution, covariance

Array = NDArray[np.float64]


def summarize(
    problem: FitProblem,
    evaluation: Evaluation,
    solution: Solution,
    jackknife: Jackknife,
    start_costs: tuple[float, ...],
    begin: float,
    *,
    interrupted: str = "",
) -> FitResult:
    """Return the result of a fit that began at `begin`, from its best start.

    `interrupted` is the reason, if Ctrl-C ended the fit; it skips checks that read the data.
    """
    layout, bad, data = problem.layout, evaluation.runner.bad, problem.data
    x = problem.bounds.wrap(evaluation.full(solution.x))
    point = layout.split(x)
    sums = evaluation.sums(solution)
    normal = layout.join(sums)
    count = float(sums.count.sum())
    mirrored = np.where(problem.mirrored, sums.count, sums.mirrored)
    independent = count - float(mirrored.sum()) / 2
    # 2 for symmetric data, where every number was counted twice; 1 if none was.
    pairs = count / independent if independent > 0 else 1.0
    freedom = independent - int(problem.free.sum())
    chi2, cost = float(sums.chi2.sum()), float(sums.cost.sum())
    # Contrast and offset of an excluded angle have no information; one warning covers both.
    excluded = np.zeros(layout.size, bool)
    if layout.scaling == "individual":
        excluded[: 2 * layout.n_phi] = np.tile(sums.count == 0, 2)
    inverse = covariance(normal.jtj, active=problem.free & ~excluded)
    inverse.inverse[excluded] = inverse.inverse[:, excluded] = np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = cost / pairs / freedom if freedom > 0 else np.inf
    pcov_independent, by_sigma = (
        scaled_covariance(inverse.inverse, pairs=pairs, reduced_chi2=scale, absolute_sigma=known)
        for known in (problem.errors.absolute_sigma, True)
    )
    pcov, inflation = combine_errors(jackknife, pcov_independent, by_sigma, pairs, layout.n_scales)
    names = layout.names
    notes = []
    reasons: list[str] = []
    if np.any(sums.jtj):
        free = problem.free & ~excluded
        bounded = at_bounds(x, problem.lower, problem.upper, names, free)
        notes = [f"{line}; its error is not meaningful" for line in bounded.values()]
        notes += rank_warnings(inverse, names)
        reasons = _unusable(problem, x, pcov, bounded)
    if interrupted:
        reasons = [interrupted]
    else:
        reason, remarks = _check(evaluation, sums, point, independent, freedom)
        reasons = ([] if reason is None else [reason]) + reasons
        notes += remarks
    notes += jackknife.notes
    notes += [f"excluded: {reason}" for reason in bad.reasons]
    if data.empty_frames:
        frames = format_frames(data.empty_frames)
        where = (" at some angle", " there") if data.keep.ndim == 2 else ("", "")
        notes.append(
            f"frames {frames} (counted from 0) contain no finite number{where[0]} and are excluded"
            f"{where[1]}"
        )
        warnings.warn(notes[-1], RuntimeWarning, stacklevel=5)
    if freedom <= 0:
        notes.append(f"{independent:g} independent points cannot determine {len(x)} parameters")
    if bad.reasons:
        warnings.warn(
            f"{len(bad.excluded)} of {bad.total} row blocks are excluded: {bad.reasons[0]}",
            RuntimeWarning,
            stacklevel=5,
        )
    runner, compiled = evaluation.runner, problem.program.compile_seconds
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
        nfev=evaluation.earlier + evaluation.passes,
        n_batches=runner.n_batches,
        success=solution.status > 0 and not reasons,
        status=solution.status,
        message=" But ".join(filter(None, [solution.message, "; ".join(reasons)])),
        success_rate=bad.success_rate,
        strategy=data.strategy.value,
        sigma=problem.noise.per_angle,
        sigma_method=problem.noise.method,
        contrast=point.contrast,
        offset=point.offset,
        physics=point.physics,
        timings=FitTimings(compiled, runner.seconds, time.perf_counter() - begin),
        peak_memory=runner.peak_bytes,
        costs=solution.costs,
        warnings=tuple(notes),
        start_costs=start_costs if len(start_costs) > 1 else (),
        keep=data.keep,
        held=tuple(name for name, free in zip(names, problem.free, strict=True) if not free),
        interrupted=bool(interrupted),
    )


def _unusable(problem: FitProblem, x: Array, pcov: Array, bounded: dict[int, str]) -> list[str]:
    """Return reasons why the physics [p] are unusable; contrast and offset are ignored."""
    names, scales = problem.layout.names, 2 * problem.layout.n_scales
    reasons = []
    lines = [line for k, line in bounded.items() if k >= scales]
    if lines and not problem.solver.allow_bounds:
        reasons.append(
            f"{', '.join(lines)}: try other starts or wider bounds, or pass allow_bounds=True if "
            "the bounds are physical"
        )
    errors = np.sqrt(np.diag(pcov))
    physics = problem.free & (np.arange(len(x)) >= scales)
    values = [
        f"{names[k]} = {x[k]:.4g} +/- {errors[k]:.2g}"
        for k in undetermined(x, errors, problem.bounds, physics)
    ]
    if values:
        reasons.append(
            f"the data do not determine {', '.join(values)}: hold parameters, or fit a model with "
            "fewer"
        )
    return reasons


def _check(
    evaluation: Evaluation,
    sums: AngleSums,
    point: PassPoint,
    independent: float,
    freedom: float,
) -> tuple[str | None, list[str]]:
    """Return the reason that the residuals are not noise, or None, and remarks on them."""
    problem, runner = evaluation.problem, evaluation.runner
    if not np.any(sums.jtj):
        return "no point has weight: sigma is 0 or infinite, or all frames are masked", []
    if freedom < 0:
        return f"{independent:g} independent points are fewer than the parameters", []
    if freedom == 0:
        return None, []
    sample, power = problem.data.sample, problem.model.shear_power
    tables = problem.program.host_tables(point.physics)
    sigma: Array | None = problem.noise.per_angle
    if sigma is None:
        sigma = rows_of(problem.noise.sigma, sample.rows)
    else:
        sigma = sigma[:, None, None]
    residuals = Residuals.from_sample(
        sample, model_rows(tables[:2], power, point, sample.rows), sigma
    )
    n_phi = len(point.contrast)
    unscaled = PassPoint(point.physics, np.ones(n_phi), np.zeros(n_phi))
    sampled_phases = tuple(phase[..., sample.rows] for phase in tables[:2])
    memory = model_rows(sampled_phases, power, unscaled, np.arange(len(sample.rows)))
    # Points without weight are not checked, so their smallest mean square is irrelevant.
    spread = np.median(np.where(sigma > 0, sigma, SIGMA_FLOOR), axis=(1, 2))
    floor = (SIGMA_FLOOR / spread) ** 2
    scale = independent / freedom / np.where(sums.count > 0, sums.count, 1.0)
    robust = None
    if problem.solver.loss != "linear":
        robust = float(sums.cost.sum() / sums.count.sum() * independent / freedom)
    judgement = judge(
        residuals,
        memory,
        sums.chi2 * scale,
        sums.count,
        points=freedom,
        floor=floor,
        phi=problem.model.geometry.phi,
        robust=robust,
        absolute=problem.errors.absolute_sigma and not problem.noise.estimated,
    )
    runner.measure_memory()
    if judgement.reason is None:
        cells = averages(problem, tables, point)
        runner.measure_memory()
        reason = misfit(cells, problem.model.geometry, float(np.sqrt(floor).max()))
        return reason, list(judgement.notes)
    reason = judgement.reason
    if not judgement.sampled:
        furthest = problem.data.find_largest(np.where(sums.count > 0, point.offset, np.nan))
        if furthest is not None:
            angle, i, j, value = furthest
            reason += f"; the most distant value is {value:.6g} at angle {angle}, frames {i}, {j}"
    return f"{reason}. Mask bad frames with `keep`, or try other starts or models", []


def model_rows(
    phases: tuple[Array, ...], shear_power: int, point: PassPoint, rows: NDArray[np.intp]
) -> Array:
    """Return g2 [n_phi, len(rows), n] of some rows, computed with NumPy."""
    n_phi = len(point.contrast)
    tables = (np.broadcast_to(phase, (n_phi, phase.shape[-1])) for phase in phases)
    dA, dX = (table[:, rows, None] - table[:, None, :] for table in tables)
    f = correlation(dA, dX, shear_power)
    return np.asarray(point.offset[:, None, None] + point.contrast[:, None, None] * f)
