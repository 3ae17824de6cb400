"""From the solver's last point to a `FitResult`: errors, statistics and warnings."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files.sources import values
from jaxkern.xpcs.fitting.evaluation import Evaluation
from jaxkern.xpcs.fitting.faults import listed
from jaxkern.xpcs.fitting.input import FitData
from jaxkern.xpcs.fitting.jackknife import Jackknife, errors_of
from jaxkern.xpcs.fitting.noise import Noise
from jaxkern.xpcs.fitting.parameters import FitLayout
from jaxkern.xpcs.fitting.pass_program import AngleSums, PassProgram
from jaxkern.xpcs.fitting.passes import BadBlocks, PassPoint
from jaxkern.xpcs.fitting.quality import Residuals, judge
from jaxkern.xpcs.fitting.result import (
    FitResult,
    FitTimings,
    bound_warnings,
    rank_warnings,
    scaled_covariance,
)
from jaxkern.xpcs.fitting.solver import Solution, covariance
from jaxkern.xpcs.fitting.starting import SIGMA_FLOOR, check_residuals
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What a fit leaves behind, for its summary."""

    model: Model
    layout: FitLayout
    data: FitData
    noise: Noise
    free: NDArray[np.bool_]
    lower: Array
    upper: Array
    mirrored: NDArray[np.bool_]
    solution: Solution
    evaluation: Evaluation
    evaluations: list[Evaluation]
    program: PassProgram
    bad: BadBlocks
    loss: str
    empty_frames: tuple[int, ...]
    absolute_sigma: bool
    jackknife: Jackknife
    start_costs: tuple[float, ...]
    begin: float


def summarize(outcome: Outcome) -> FitResult:
    """The result of a fit."""
    solution, layout, evaluation = outcome.solution, outcome.layout, outcome.evaluation
    x = evaluation.full(solution.x)
    point = layout.split(x)
    sums = evaluation.sums(solution.x)
    normal = layout.join(sums)
    count = float(sums.count.sum())
    mirrored = np.where(outcome.mirrored, sums.count, sums.mirrored)
    independent = count - float(mirrored.sum()) / 2
    # 2 for symmetric data, where every number was counted twice; 1 where none was.
    pairs = count / independent if independent > 0 else 1.0
    freedom = independent - int(outcome.free.sum())
    chi2, cost = float(sums.chi2.sum()), float(sums.cost.sum())
    found = covariance(normal.jtj, active=outcome.free)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = cost / pairs / freedom if freedom > 0 else np.inf
    absolute = outcome.absolute_sigma
    pcov_independent, by_sigma = (
        scaled_covariance(found.inverse, pairs=pairs, reduced_chi2=scale, absolute_sigma=known)
        for known in (absolute, True)
    )
    errors = errors_of(outcome.jackknife, pcov_independent, by_sigma, pairs, layout.n_scales)
    names = layout.names
    notes = bound_warnings(x, outcome.lower, outcome.upper, names, outcome.free)
    notes += rank_warnings(found, names)
    sampled = _sampled(outcome, point)
    notes += _autocorrelation(outcome, sampled)
    reason, more = _checked(outcome, sums, sampled, point, independent, freedom)
    notes += more
    notes += outcome.jackknife.notes
    notes += [f"left out: {reason}" for reason in outcome.bad.reasons]
    if outcome.empty_frames:
        named = listed(outcome.empty_frames)
        notes.append(f"frames {named} (counted from 0) hold no finite number and are left out")
        warnings.warn(notes[-1], RuntimeWarning, stacklevel=4)
    if freedom <= 0:
        notes.append(f"{independent:g} independent points cannot determine {len(x)} parameters")
    if outcome.bad.reasons:
        warnings.warn(
            f"{len(outcome.bad.excluded)} of {outcome.bad.total} row blocks are left out: "
            f"{outcome.bad.reasons[0]}",
            RuntimeWarning,
            stacklevel=4,
        )
    seconds = sum(e.seconds for e in outcome.evaluations)
    compiled = outcome.program.compile_seconds
    return FitResult(
        popt=x,
        names=names,
        units=layout.units,
        pcov=errors.pcov,
        pcov_independent=pcov_independent,
        errors=outcome.jackknife.method,
        error_passes=outcome.jackknife.passes,
        inflation=errors.inflation,
        chi2=chi2,
        cost=cost,
        count=int(count),
        independent_count=independent,
        reduced_chi2=chi2 / pairs / freedom if freedom > 0 else float("inf"),
        nfev=sum(e.log.earlier for e in outcome.evaluations) + solution.nfev,
        n_batches=outcome.data.n_batches,
        success=solution.status > 0 and reason is None,
        status=solution.status,
        message=solution.message if reason is None else f"{solution.message} But {reason}",
        success_rate=outcome.bad.success_rate,
        strategy=outcome.data.strategy.value,
        sigma=outcome.noise.per_angle,
        sigma_method=outcome.noise.method,
        contrast=point.contrast,
        offset=point.offset,
        physics=point.physics,
        timings=FitTimings(compiled, seconds, time.perf_counter() - outcome.begin),
        peak_memory=_peak_memory(outcome),
        costs=solution.costs,
        warnings=tuple(notes),
        start_costs=outcome.start_costs,
        keep=outcome.data.frames,
    )


def _peak_memory(outcome: Outcome) -> int:
    peak = max(e.peak_bytes for e in outcome.evaluations)
    for way in outcome.data.ways:
        peak = max(peak, getattr(way, "peak_bytes", 0))
    return int(peak)


@dataclass(frozen=True)
class _Sampled:
    """The model and sigma at the sampled rows, and its memory between them."""

    fitted: Array
    sigma: Array
    memory: Array


def _sampled(outcome: Outcome, point: PassPoint) -> _Sampled:
    phases = outcome.evaluation.phases(point.physics)
    if phases is None:
        A, X = jax.jit(outcome.model.phases)(point.physics)
        phases = np.asarray(A), np.asarray(X)
    rows, power = outcome.data.sample.rows, outcome.model.shear_power
    ones = np.ones_like(point.contrast)
    alone = PassPoint(point.physics, ones, 0 * ones)
    sigma: Array | None = outcome.noise.per_angle
    if sigma is None:
        source = outcome.noise.sigma
        assert not isinstance(source, np.ndarray)
        sigma = np.array(
            [
                [values(source, source.read(k, int(row), int(row) + 1))[0] for row in rows]
                for k in range(len(point.contrast))
            ]
        )
    else:
        sigma = sigma[:, None, None]
    return _Sampled(
        model_rows(phases, power, point, rows),
        sigma,
        model_rows(tuple(phase[..., rows] for phase in phases), power, alone, np.arange(len(rows))),
    )


def _autocorrelation(outcome: Outcome, sampled: _Sampled) -> list[str]:
    """A warning where neighbouring residuals are alike: independent errors are then too small."""
    check = check_residuals(outcome.data.sample, sampled.fitted, sampled.sigma)
    if not check.suspicious:
        return []
    smaller = "errors" if outcome.jackknife.changes is None else "errors of independent noise"
    return [
        f"neighbouring residuals are correlated ({check.autocorrelation:.2f} at lag one): the "
        f"model does not describe all of the data, or the noise is correlated; {smaller} are too "
        "small"
    ]


def _checked(
    outcome: Outcome,
    sums: AngleSums,
    sampled: _Sampled,
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
    # Of points without weight, which are judged by no one, it may be as large as it likes.
    spread = np.median(np.where(sampled.sigma > 0, sampled.sigma, SIGMA_FLOOR), axis=(1, 2))
    floor = (SIGMA_FLOOR / spread) ** 2
    judgement = judge(
        Residuals.of(outcome.data.sample, sampled.fitted, sampled.sigma),
        sampled.memory,
        sums.chi2 * scale,
        sums.count,
        points=freedom,
        floor=floor,
        phi=outcome.model.geometry.phi,
        robust=None
        if outcome.loss == "linear"
        else float(sums.cost.sum() / sums.count.sum() * independent / freedom),
        estimated=outcome.noise.estimated,
    )
    if judgement.reason is None:
        return None, list(judgement.notes)
    reason = judgement.reason
    if not judgement.seen:
        found = outcome.data.find_largest(np.where(sums.count > 0, point.offset, np.nan))
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
