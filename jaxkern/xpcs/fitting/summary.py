"""The `FitResult` of a solution: errors, statistics, checks and warnings."""

from __future__ import annotations

import time
import warnings

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting import result
from jaxkern.xpcs.fitting.evaluation import Evaluation, FitProblem
from jaxkern.xpcs.fitting.jackknife import Jackknife, combine_errors
from jaxkern.xpcs.fitting.quality import check
from jaxkern.xpcs.fitting.sampling import format_frames
from jaxkern.xpcs.fitting.solver import Solution, covariance

Array = NDArray[np.float64]


def summarize(
    problem: FitProblem,
    evaluation: Evaluation,
    solution: Solution,
    jackknife: Jackknife,
    start_costs: tuple[float, ...],
    begin: float,
    interrupted: str,
) -> result.FitResult:
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
    scale = cost / pairs / freedom if freedom > 0 else np.inf
    by_sigma = pcov_independent = result.scaled_covariance(inverse.inverse, pairs)
    if not problem.errors.absolute_sigma:
        pcov_independent = result.scaled_covariance(inverse.inverse, pairs * scale)
    pcov, inflation = combine_errors(jackknife, pcov_independent, by_sigma, pairs, layout.n_scales)
    names = layout.names
    notes: list[str] = []
    reasons: list[str] = []
    issued: list[str] = []
    if np.any(sums.jtj):
        bounded = result.at_bounds(x, *problem.bounds.solver, names, problem.free & ~excluded)
        notes = [f"{line}; its error is not meaningful" for line in bounded.values()]
        notes += result.rank_warnings(inverse, names)
        reasons = _unusable(problem, x, pcov, bounded)
    if interrupted:
        reasons = [interrupted]
    else:
        reason, remarks = check(evaluation, sums, point, independent, freedom)
        reasons = ([] if reason is None else [reason]) + reasons
        notes += remarks
    notes += jackknife.notes
    notes += [f"excluded: {reason}" for reason in bad.reasons]
    if data.empty_frames:
        some, there = (" at some angle", " there") if data.keep.ndim == 2 else ("", "")
        issued.append(
            f"frames {format_frames(data.empty_frames)} (counted from 0) contain no finite number"
            f"{some} and are excluded{there}"
        )
        notes += issued
    if freedom <= 0:
        notes.append(f"{independent:g} independent points cannot determine {len(x)} parameters")
    if bad.reasons:
        excluded_blocks = f"{len(bad.excluded)} of {bad.total} row blocks are excluded"
        issued.append(f"{excluded_blocks}: {bad.reasons[0]}")
    for text in issued:
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    runner, compiled = evaluation.runner, problem.program.compile_seconds
    return result.FitResult(
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
        timings=result.FitTimings(compiled, runner.seconds, time.perf_counter() - begin),
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
            f"{', '.join(lines)}: try other starts or bounds, or pass allow_bounds=True if physical"
        )
    errors = np.sqrt(np.diag(pcov))
    physics = problem.free & (np.arange(len(x)) >= scales)
    values = [
        f"{names[k]} = {x[k]:.4g} +/- {errors[k]:.2g}"
        for k in result.undetermined(x, errors, problem.bounds, physics)
    ]
    if values:
        reasons.append(f"the data do not determine {', '.join(values)}: hold some, or simplify")
    return reasons
