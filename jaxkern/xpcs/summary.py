"""From the solver's last point to a `FitResult`: errors, statistics and warnings."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.evaluation import Evaluation
from jaxkern.xpcs.input import FitData
from jaxkern.xpcs.jackknife import Jackknife, errors_of
from jaxkern.xpcs.layout import Layout
from jaxkern.xpcs.models import Model
from jaxkern.xpcs.noise import Noise
from jaxkern.xpcs.passes import BadBlocks, PassPoint
from jaxkern.xpcs.program import PassProgram
from jaxkern.xpcs.result import (
    FitResult,
    FitTimings,
    bound_warnings,
    rank_warnings,
    scaled_covariance,
)
from jaxkern.xpcs.solver import Solution, covariance
from jaxkern.xpcs.sources import values
from jaxkern.xpcs.starting import check_residuals

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What a fit leaves behind, for its summary."""

    model: Model
    layout: Layout
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
    notes += _autocorrelation(outcome, point)
    notes += outcome.jackknife.notes
    notes += outcome.bad.reasons
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
        success=solution.status > 0,
        status=solution.status,
        message=solution.message,
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
    )


def _peak_memory(outcome: Outcome) -> int:
    peak = max(e.peak_bytes for e in outcome.evaluations)
    for way in outcome.data.ways:
        peak = max(peak, getattr(way, "peak_bytes", 0))
    return int(peak)


def _autocorrelation(outcome: Outcome, point: PassPoint) -> list[str]:
    """A warning where neighbouring residuals are alike: independent errors are then too small."""
    phases = outcome.evaluation.phases(point.physics)
    if phases is None:
        A, X = jax.jit(outcome.model.phases)(point.physics)
        phases = np.asarray(A), np.asarray(X)
    sample = outcome.data.sample
    fitted = model_rows(phases, outcome.model.shear_power, point, sample.rows)
    sigma: Array | None = outcome.noise.per_angle
    if sigma is None:
        source = outcome.noise.sigma
        assert not isinstance(source, np.ndarray)
        rows = [
            [values(source, source.read(k, int(row), int(row) + 1))[0] for row in sample.rows]
            for k in range(len(point.contrast))
        ]
        check = check_residuals(sample, fitted, np.array(rows))
    else:
        check = check_residuals(sample, fitted, sigma[:, None, None])
    if not check.suspicious:
        return []
    smaller = "errors" if outcome.jackknife.changes is None else "errors of independent noise"
    return [
        f"neighbouring residuals are correlated ({check.autocorrelation:.2f} at lag one): the "
        f"model does not describe all of the data, or the noise is correlated; {smaller} are too "
        "small"
    ]


def model_rows(
    phases: tuple[Array, Array], shear_power: int, point: PassPoint, rows: NDArray[np.intp]
) -> Array:
    """g2 [n_phi, len(rows), n] of some rows, in NumPy."""
    n_phi = len(point.contrast)
    A, X = (np.broadcast_to(phase, (n_phi, phase.shape[-1])) for phase in phases)
    fitted = np.exp(-2.0 * np.abs(A[:, rows, None] - A[:, None, :]))
    if shear_power:
        fitted *= np.sinc((X[:, rows, None] - X[:, None, :]) / np.pi) ** shear_power
    return np.asarray(point.offset[:, None, None] + point.contrast[:, None, None] * fitted)
