"""The result of a fit with its errors and warnings, and its files."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arrays import npz_bytes
from jaxkern.core.paths import write_atomically
from jaxkern.xpcs.fitting.data import BadBlocks
from jaxkern.xpcs.fitting.evaluation import Evaluation, FitProblem
from jaxkern.xpcs.fitting.jackknife import Jackknife, combine_errors
from jaxkern.xpcs.fitting.profile import Profile, profile
from jaxkern.xpcs.fitting.quality import check
from jaxkern.xpcs.fitting.sampling import format_frames
from jaxkern.xpcs.fitting.solver import Solution, covariance
from jaxkern.xpcs.fitting.verdict import (
    ambiguous,
    at_bounds,
    rank_warnings,
    unusable,
    without_decay,
)
from jaxkern.xpcs.model.models import Geometry

Array = NDArray[np.float64]

# Arrays [n_phi] of a result.
SCALES = ("contrast", "contrast_error", "offset", "offset_error")


@dataclass(frozen=True)
class FitTimings:
    """Seconds of compilation, of passes including reading, and in total.

    Example:
      >>> import jaxkern as jk
      >>> timings = jk.xpcs.FitTimings(compile=0.5, compute=1.0, total=1.75)
      >>> timings.total - timings.compile - timings.compute  # the solver
      0.25
    """

    compile: float
    compute: float
    total: float


@dataclass(frozen=True)
class FitResult:
    """The result of `jaxkern.xpcs.fit`.

    Attributes:
      popt: fitted parameters [p], ordered [contrast..., offset..., physics...].
      names, units: of the parameters.
      pcov: covariance [p, p]; infinite for parameters that the data do not determine. After a
        jackknife over B blocks its rank is at most B - 1.
      pcov_independent: the covariance for independent noise of the points, mirrored ones counted
        once.
      errors: the origin of pcov: ``"jackknife over 10 blocks of 40 frames"``, ``"independent"``.
      error_passes: passes over the data for pcov, which `nfev` does not include.
      inflation: ratio of the variances of the physics to those of independent noise of sigma, on
        average; `log_likelihood` with it is as wide as pcov.
      chi2: sum of squared residuals over all points with weight, counting mirrored ones twice.
      cost: twice the minimized function: chi2, or the sum of rho for a robust loss.
      count, independent_count: points with weight; the same with mirrored pairs counted once.
      reduced_chi2: chi2 a degree of freedom, with mirrored pairs counted once.
      nfev, n_batches: passes over the data by the solver, and kernel calls, one for each chunk.
      success: True if a tolerance was met, the residuals are noise, no physics parameter is at a
        bound, none has an error that is infinite or exceeds 100 times its value, a constant does
        not describe the data as well, and no other fitted start led to a minimum that is as good.
      status, message: SciPy's; with the reasons why a converged fit has `success` False.
      success_rate: the used part of the data's row blocks.
      keep: True for used frames [n_t]: neither masked nor without finite numbers; [n_phi, n_t] if
        these differ between angles.
      strategy: ``"memory"`` or ``"stream"``, see `Strategy`.
      sigma, sigma_method: the noise [n_phi] (None for point-wise noise) and its origin.
      contrast, offset, contrast_error, offset_error: of each angle [n_phi], for every scaling, and
        their standard errors.
      scale_basis: [n_phi, k]; contrast = scale_basis @ popt[:k], offset = scale_basis @ popt[k:2k].
      physics: the model's parameters [p] in its own order.
      timings: `FitTimings`, in seconds.
      peak_memory: largest measured anonymous memory, bytes.
      costs, start_costs: of the evaluated points, and of each start that was fitted to all data, if
        there were several, in order; that of a start that ended early is predicted.
      search: description of the starts that were compared and fitted.
      warnings: remarks on the result.
      held: names of the parameters that were not fitted.
      interrupted: True for the best result so far of a fit that Ctrl-C ended, see `FitInterrupted`.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> geometry = jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=.1 * np.arange(64), phi=[0.0])
      >>> model = jk.xpcs.Static(geometry)
      >>> clean = np.asarray(jk.xpcs.g2(model, [2e4, 0.3, 50.0], [0.2], [1.0]), float)
      >>> data = clean + 0.003 * np.random.default_rng(0).normal(size=clean.shape)
      >>> result = jk.xpcs.fit(model, data, search="local", progress=False)
      >>> result.names, result.popt.shape, result.timings.total > 0
      (('contrast[0]', 'offset[0]', 'D0', 'alpha', 'D_offset'), (5,), True)
    """

    popt: Array
    names: tuple[str, ...]
    units: tuple[str, ...]
    pcov: Array
    chi2: float
    cost: float
    count: int
    independent_count: float
    reduced_chi2: float
    nfev: int
    n_batches: int
    success: bool
    status: int
    message: str
    success_rate: float
    strategy: str
    sigma: Array | None
    sigma_method: str
    contrast: Array
    offset: Array
    contrast_error: Array
    offset_error: Array
    scale_basis: Array
    physics: Array
    timings: FitTimings
    peak_memory: int
    costs: tuple[float, ...]
    warnings: tuple[str, ...] = ()
    start_costs: tuple[float, ...] = ()
    search: str = ""
    pcov_independent: Array = field(default_factory=lambda: np.zeros((0, 0)))
    errors: str = "independent"
    error_passes: int = 0
    inflation: float = 1.0
    keep: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    held: tuple[str, ...] = ()
    interrupted: bool = False
    # The data and options for `profile`; not part of a pickle.
    _problem: tuple[FitProblem, BadBlocks] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_problem": None}

    def profile(
        self, name: str, values: Sequence[float] | None = None, *, progress: bool = True
    ) -> Profile:
        """Return the profile likelihood of a parameter, with intervals of 68% and 95%.

        The parameter is held at values outward from its optimum, in steps of about half a standard
        error up to the end of the 95% interval, and all others are refitted from the neighbouring
        refit. The result refers to the data of the fit: they must still be readable, and arrays
        stay in memory as long as the result does.

        Args:
          name: a fitted parameter, such as ``"D0"`` or ``"contrast[0]"``.
          values: the values instead; intervals end between them.
          progress: True for a progress bar on a terminal.

        Raises:
          ValueError: for an unknown or held parameter, values outside of its bounds, and a result
            that was unpickled, which does not refer to data.
        """
        if self._problem is None:
            raise ValueError("profile: expected the result of a fit in this process; fit again")
        problem, bad = self._problem
        k = self.names.index(name) if name in self.names else 0
        # The cost increases by pairs * variance of the noise in one error of independent noise.
        pairs = self.count / max(self.independent_count, 1.0)
        freedom = max(self.independent_count - int(problem.free.sum()), 1.0)
        unit = pairs if problem.errors.absolute_sigma else self.cost / freedom
        error, independent = self.perr[k], self.perr_independent[k]
        if math.isfinite(error) and independent > 0:
            unit *= (error / independent) ** 2
        if not unit > 0:
            raise ValueError("profile: expected data with noise, got residuals of 0")
        pcov = self.pcov_independent
        return profile(
            problem, bad, name, self.popt, self.cost, pcov, error, unit, values, progress
        )

    @property
    def perr(self) -> Array:
        """Standard errors [p]."""
        return np.sqrt(np.diag(self.pcov))

    @property
    def perr_independent(self) -> Array:
        """Standard errors [p] for independent noise of the points."""
        return np.sqrt(np.diag(self.pcov_independent))

    @property
    def as_dict(self) -> dict[str, float]:
        """Fitted parameters by name."""
        return {name: float(value) for name, value in zip(self.names, self.popt, strict=True)}

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        """Return name, value, both errors and unit of each parameter."""
        errors = self.perr, self.perr_independent
        return zip(self.names, self.popt, *errors, self.units, strict=True)

    def __str__(self) -> str:
        width = max(map(len, self.names))
        has_both = self.errors != "independent"
        rows = []
        for name, value, error, independent, unit in self._rows():
            text = f"+/- {error:.2g}" + (f" ({independent:.2g})" if has_both else "")
            text = "held" if name in self.held else text
            rows.append(f"  {name:<{width}}  {value: .6g} {text} {unit}".rstrip())
        if "contrast[c0]" in self.names:
            row = "  at angle {}: contrast {:.6g} +/- {:.2g}, offset {:.6g} +/- {:.2g}"
            columns = (getattr(self, name) for name in SCALES)
            rows += [row.format(k, *values) for k, values in enumerate(zip(*columns, strict=True))]
        if has_both:
            rows.append(f"  errors: {self.errors} (in brackets: for independent points)")
        stopped = "converged but is NOT reliable" if self.status > 0 else "NOT converged"
        state = "interrupted" if self.interrupted else "converged" if self.success else stopped
        lines = [
            f"fit {state} after {self.nfev} passes ({self.strategy}): {self.message}",
            *rows,
            f"  chi2 {self.chi2:.6g} over {self.count} points, reduced {self.reduced_chi2:.4g}",
            f"  sigma: {self.sigma_method}",
            f"  starts: {self.search}",
            f"  compile {self.timings.compile:.2f} s, compute {self.timings.compute:.2f} s, "
            f"total {self.timings.total:.2f} s; {self.peak_memory / 2**20:.0f} MiB of memory",
        ]
        if self.success_rate < 1.0:
            lines.append(f"  {self.success_rate:.2%} of the data were used")
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C during `jaxkern.xpcs.fit`, with the best result so far.

    Attributes:
      result: the best `FitResult` of all starts, with `interrupted` True, `success` False and
        errors of independent noise; None before the first pass has finished.
    """

    def __init__(self, result: FitResult | None) -> None:
        super().__init__("the fit was interrupted")
        self.result = result


def save_result(
    directory: str | Path,
    result: FitResult,
    geometry: Geometry,
    settings: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write ``results.npz`` and then ``results.json`` into a directory, each atomically.

    The directory is created if missing. Both files contain the `geometry` of the model, the JSON
    file also the `settings`, a configuration, and the `provenance`. Returns the two paths.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> geometry = jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=.1 * np.arange(64), phi=[0.0])
      >>> model = jk.xpcs.Static(geometry)
      >>> clean = np.asarray(jk.xpcs.g2(model, [2e4, 0.3, 50.0], [0.2], [1.0]), float)
      >>> data = clean + 0.003 * np.random.default_rng(0).normal(size=clean.shape)
      >>> import tempfile
      >>> result = jk.xpcs.fit(model, data, search="local", progress=False)
      >>> paths = jk.xpcs.save_result(tempfile.mkdtemp(), result, geometry)
      >>> [path.name for path in paths]
      ['results.json', 'results.npz']
    """
    values = {item.name: getattr(result, item.name) for item in fields(result)}
    scalars = str, int, float, np.generic
    columns = ("value", "error", "error_independent")
    summary = {
        "parameters": {
            name: {
                **dict(zip(columns, map(_number, numbers), strict=True)),
                "unit": unit,
                "held": name in result.held,
            }
            for name, *numbers, unit in result._rows()
        },
        **{name: _number(value) for name, value in values.items() if isinstance(value, scalars)},
        **{
            name: None if (column := values[name]) is None else [*map(_number, column.tolist())]
            for name in ("sigma", *SCALES)
        },
        "warnings": list(result.warnings),
        "timings": {name: _number(value) for name, value in asdict(result.timings).items()},
        "geometry": {name: getattr(geometry, name) for name in ("q", "gap", "dt")}
        | {"phi": geometry.phi.tolist(), "frames": geometry.n_t},
        "settings": dict(settings or {}),
    }
    if provenance is not None:
        summary["provenance"] = dict(provenance)
    text, binary = _paths(directory)
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    arrays |= {"perr": result.perr, "perr_independent": result.perr_independent}
    arrays |= {"names": np.array(result.names), "costs": np.array(result.costs, np.float64)}
    arrays |= {"phi": geometry.phi, "t": geometry.t, "q": np.asarray(geometry.q)}
    text.unlink(missing_ok=True)  # it never describes the arrays of another result
    write_atomically(binary, npz_bytes(arrays))
    write_atomically(text, json.dumps(summary, indent=2).encode() + b"\n")
    return text, binary


def load_result(directory: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the contents of ``results.json`` and the arrays that `save_result` wrote.

    Raises:
      FileNotFoundError: if the directory contains no results.
      ValueError: for a damaged file.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> geometry = jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=.1 * np.arange(64), phi=[0.0])
      >>> model = jk.xpcs.Static(geometry)
      >>> clean = np.asarray(jk.xpcs.g2(model, [2e4, 0.3, 50.0], [0.2], [1.0]), float)
      >>> data = clean + 0.003 * np.random.default_rng(0).normal(size=clean.shape)
      >>> import tempfile
      >>> result = jk.xpcs.fit(model, data, search="local", progress=False)
      >>> paths = jk.xpcs.save_result(tempfile.mkdtemp(), result, geometry)
      >>> values, arrays = jk.xpcs.load_result(paths[0].parent)
      >>> bool((arrays["popt"] == result.popt).all())
      True
    """
    (text, binary), advice = _paths(directory), "`python -m jaxkern xpcs fit` writes it"
    for path in (text, binary):
        if not path.exists():
            raise FileNotFoundError(f"no such file: {str(path)!r}; {advice}")
    reading = text
    try:
        summary = json.loads(text.read_bytes())
        reading = binary
        with np.load(binary) as arrays:
            return summary, dict(arrays)
    except Exception as error:  # JSON, zip and NumPy share no type of error
        raise ValueError(f"{reading} cannot be read as a result: {error}; {advice}") from error


def _paths(directory: str | Path) -> tuple[Path, Path]:
    return Path(directory) / "results.json", Path(directory) / "results.npz"


def _number(value: Any) -> Any:
    """Return a value for JSON, which has no infinite numbers and NaN: None for these."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarize(
    problem: FitProblem,
    evaluation: Evaluation,
    solution: Solution,
    others: Sequence[Solution],
    jackknife: Jackknife,
    start_costs: tuple[float, ...],
    search: str,
    begin: float,
    interrupted: str,
) -> FitResult:
    """Return the result of a fit that began at `begin`; `others` are those of the worse starts.

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
    excluded, scales = np.zeros(layout.size, bool), layout.n_scales
    excluded[: 2 * scales] = np.tile(~layout.basis[sums.count > 0].any(0), 2)
    inverse = covariance(normal.jtj, active=problem.free & ~excluded)
    inverse.inverse[excluded] = inverse.inverse[:, excluded] = np.inf
    scale = cost / pairs / freedom if freedom > 0 else np.inf
    by_sigma = pcov_independent = _scaled_covariance(inverse.inverse, pairs)
    if not problem.errors.absolute_sigma:
        pcov_independent = _scaled_covariance(inverse.inverse, pairs * scale)
    pcov, inflation = combine_errors(jackknife, pcov_independent, by_sigma, pairs, scales)
    halves = slice(scales), slice(scales, 2 * scales)
    scale_errors = [_propagated(layout.basis, pcov[half, half]) for half in halves]
    names = layout.names
    notes: list[str] = []
    if negative := np.flatnonzero(point.contrast < 0).tolist():
        advice = ": try a lower fourier_order" if "contrast[c0]" in names else ""
        notes.append(f"the contrast is negative at angles {negative}{advice}")
    reasons: list[str] = []
    issued: list[str] = []
    if np.any(sums.jtj):
        bounded = at_bounds(x, *problem.bounds.solver, names, problem.free & ~excluded)
        notes += [f"{line}; its error is not meaningful" for line in bounded.values()]
        notes += rank_warnings(inverse, names)
        reasons = unusable(problem, x, pcov, bounded, normal.jtj)
        # The variance of the noise, in units of the cost.
        unit = max(pairs * inflation, np.finfo(float).tiny)
        physics = problem.free & (np.arange(layout.size) >= 2 * scales)
        reasons += without_decay(x, normal.jtj, scales, unit, scales + int(physics.sum()))
        minima = [(evaluation.full(s.x), (s.cost - solution.cost) / unit) for s in others]
        text, is_exchanged = ambiguous(problem, x, np.sqrt(np.diag(pcov)), physics, minima)
        if is_exchanged:
            notes.append(text)
        elif text:
            reasons.append(text)
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
        contrast_error=scale_errors[0],
        offset_error=scale_errors[1],
        scale_basis=layout.basis,
        physics=point.physics,
        timings=FitTimings(compiled, runner.seconds, time.perf_counter() - begin),
        peak_memory=runner.peak_bytes,
        costs=solution.costs,
        warnings=tuple(notes),
        start_costs=start_costs if len(start_costs) > 1 else (),
        search=search,
        keep=data.keep,
        held=tuple(name for name, free in zip(names, problem.free, strict=True) if not free),
        interrupted=bool(interrupted),
        _problem=(problem, bad),
    )


def _propagated(basis: Array, pcov: Array) -> Array:
    """Return the standard errors of basis @ x [n], where x has the covariance `pcov`."""
    known = np.isfinite(np.diag(pcov))
    inner = basis[:, known]
    variance = ((inner @ pcov[np.ix_(known, known)]) * inner).sum(1)
    return np.where(basis[:, ~known].any(1), np.inf, np.sqrt(np.maximum(variance, 0.0)))


def _scaled_covariance(inverse: Array, scale: float) -> Array:
    """Scale (J^T J)^-1 to a covariance; the zeros of held parameters remain with infinite scale."""
    with np.errstate(invalid="ignore"):
        scaled = np.where(inverse == 0, 0.0, inverse * scale)
    return np.where(np.isinf(inverse) | np.isinf(scaled), np.inf, scaled)
