"""What a fit returns, with its errors and warnings, and how it is kept.

`results.json` is to be read, `results.npz` to be computed with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.archives import npz_bytes
from jaxkern.core.paths import write_atomically
from jaxkern.xpcs.fitting.parameters import Turns
from jaxkern.xpcs.fitting.solver import Covariance
from jaxkern.xpcs.model.geometry import Geometry

Array = NDArray[np.float64]

# Standard errors beyond so many times the parameter say that the data do not determine it.
_LARGEST_ERROR = 100.0


@dataclass(frozen=True)
class FitTimings:
    """Seconds: of compiling, of computing (passes with their reading) and of everything."""

    compile: float
    compute: float
    total: float


@dataclass(frozen=True)
class FitResult:
    """The result of `jaxkern.xpcs.fit`.

    Parameters come in the order [contrast..., offset..., physics...], as `names` tells.

    Attributes:
      popt: fitted parameters [p].
      names, units: of the parameters.
      pcov: covariance [p, p]; infinite for parameters that the data do not determine. That of a
        jackknife over B blocks has the rank B - 1 at most.
      pcov_independent: the covariance if the noise of each point were its own. Mirrored points are
        counted once (physics: a two-time correlation holds each number twice).
      errors: what pcov comes from: ``"jackknife over 10 blocks of 40 frames"``, ``"independent"``.
      error_passes: passes over the data for pcov, besides `nfev`.
      inflation: by how much the variances of the physics exceed those of independent noise of
        sigma, on average: what `log_likelihood` takes to be as wide as pcov.
      chi2: sum of squared residuals over all points that count, mirrored ones twice.
      cost: what was minimized, times two: chi2, or the sum of rho for a robust loss.
      count, independent_count: points that count, and those with mirrored pairs counted once.
      reduced_chi2: chi2 a degree of freedom, with mirrored pairs counted once.
      nfev: passes over the data. n_batches: chunks that the kernel was given.
      success: True if a tolerance was met, the residuals are noise, no physics parameter is at a
        bound and none has an error that is infinite or exceeds 100 times its value. status:
        SciPy's. message: SciPy's, and the reasons why the result is no success although the solver
        stopped well.
      success_rate: the part of the data's row blocks that could be used.
      keep: [n_t] bool, the frames that counted: without masked ones and those without numbers;
        [n_phi, n_t] where these are others at other angles.
      strategy: the way through the data.
      sigma, sigma_method: the noise [n_phi] (None for noise given point by point) and its origin.
      contrast, offset: [n_phi] of each angle, also where they were not fitted one by one.
      physics: the model's parameters in its own order.
      timings, peak_memory: seconds; bytes of anonymous memory, the largest that was seen.
      warnings: what a careful reader should know.
      start_costs: the cost from each start of a multistart, in the order of the starts.
      held: names of the parameters that were not fitted.
      interrupted: True for the best result so far of a fit that Ctrl-C ended, see `FitInterrupted`.
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
    physics: Array
    timings: FitTimings
    peak_memory: int
    costs: tuple[float, ...]
    warnings: tuple[str, ...] = ()
    start_costs: tuple[float, ...] = ()
    pcov_independent: Array = field(default_factory=lambda: np.zeros((0, 0)))
    errors: str = "independent"
    error_passes: int = 0
    inflation: float = 1.0
    keep: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    held: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def perr(self) -> Array:
        """Standard errors [p]."""
        return np.sqrt(np.diag(self.pcov))

    @property
    def perr_independent(self) -> Array:
        """Standard errors [p] if the noise of each point were its own."""
        return np.sqrt(np.diag(self.pcov_independent))

    @property
    def as_dict(self) -> dict[str, float]:
        """Fitted parameters by name."""
        return {name: float(value) for name, value in zip(self.names, self.popt, strict=True)}

    def __str__(self) -> str:
        width = max((len(name) for name in self.names), default=9)
        both = self.errors != "independent"
        rows = [
            f"  {name:<{width}}  {value: .6g} "
            + ("held" if name in self.held else f"+/- {error:.2g}")
            + (f" ({alone:.2g})" if both and name not in self.held else "")
            + (f" {unit}" if unit else "")
            for name, value, error, alone, unit in zip(
                self.names, self.popt, self.perr, self.perr_independent, self.units, strict=True
            )
        ]
        if both:
            rows.append(f"  errors: {self.errors} (in brackets: if all points were independent)")
        stopped = "converged but is NOT to be believed" if self.status > 0 else "NOT converged"
        state = "interrupted" if self.interrupted else "converged" if self.success else stopped
        lines = [
            f"fit {state} after {self.nfev} passes ({self.strategy}): {self.message}",
            *rows,
            f"  chi2 {self.chi2:.6g} over {self.count} points, reduced {self.reduced_chi2:.4g}",
            f"  sigma: {self.sigma_method}",
            f"  compile {self.timings.compile:.2f} s, compute {self.timings.compute:.2f} s, "
            f"total {self.timings.total:.2f} s; {self.peak_memory / 2**20:.0f} MiB of memory",
        ]
        if self.success_rate < 1.0:
            lines.append(f"  {self.success_rate:.2%} of the data could be used")
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C during `jaxkern.xpcs.fit`, with what the fit had found by then.

    Attributes:
      result: the best `FitResult` so far, of all starts, with `interrupted` True, `success` False
        and errors of independent noise; None before the first pass has ended.
    """

    def __init__(self, result: FitResult | None) -> None:
        super().__init__("the fit was interrupted")
        self.result = result


def save_result(
    directory: str | Path,
    result: FitResult,
    geometry: Geometry,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Writes ``results.json`` and ``results.npz`` into a directory, each in one step.

    Args:
      directory: made when it is not there.
      result: of `fit`.
      geometry: of the fitted model; goes into both files.
      settings: the configuration, kept in the JSON file.

    Returns:
      The two paths.
    """
    directory = Path(directory)
    held = {item.name: getattr(result, item.name) for item in fields(result)}
    rows = zip(
        result.names, result.popt, result.perr, result.perr_independent, result.units, strict=True
    )
    summary = {
        "parameters": {
            name: {
                "value": _number(value),
                "error": _number(error),
                "error_independent": _number(alone),
                "unit": unit,
                "held": name in result.held,
            }
            for name, value, error, alone, unit in rows
        },
        **{k: _number(v) for k, v in held.items() if isinstance(v, str | int | float | np.generic)},
        "sigma": None if result.sigma is None else [_number(s) for s in result.sigma.tolist()],
        "warnings": list(result.warnings),
        "timings": {name: _number(value) for name, value in asdict(result.timings).items()},
        "geometry": {
            "q": geometry.q,
            "gap": geometry.gap,
            "dt": geometry.dt,
            "phi": geometry.phi.tolist(),
            "frames": geometry.n_t,
        },
        "settings": dict(settings or {}),
    }
    text, binary = directory / "results.json", directory / "results.npz"
    arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
    arrays |= {"perr": result.perr, "perr_independent": result.perr_independent}
    arrays |= {"names": np.array(result.names), "costs": np.array(result.costs, np.float64)}
    arrays |= {"phi": geometry.phi, "t": geometry.t, "q": np.asarray(geometry.q)}
    write_atomically(text, json.dumps(summary, indent=2).encode() + b"\n")
    write_atomically(binary, npz_bytes(arrays))
    return text, binary


def load_result(directory: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `save_result` wrote: the contents of ``results.json``, and the arrays.

    Raises:
      FileNotFoundError: no results in the directory.
      ValueError: a file that is damaged, or of something else.
    """
    directory = Path(directory)
    text, binary = directory / "results.json", directory / "results.npz"
    for path in (text, binary):
        if not path.exists():
            raise FileNotFoundError(
                f"there is no {str(path)!r}; `python -m jaxkern xpcs fit` writes it"
            )
    reading = text
    try:
        summary = json.loads(text.read_bytes())
        reading = binary
        with np.load(binary) as arrays:
            return summary, {name: arrays[name] for name in arrays.files}
    except Exception as error:  # of JSON, zip and NumPy, which have no kind in common
        raise ValueError(
            f"{reading} cannot be read as a result: {error}; `python -m jaxkern xpcs fit` writes it"
        ) from error


def _number(value: Any) -> Any:
    """A plain number of JSON, which has none that is infinite or NaN: null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def scaled_covariance(
    inverse: Array, *, pairs: float, reduced_chi2: float, absolute_sigma: bool
) -> Array:
    """(J^T J)^-1 as a covariance: `pairs` is 2 where each number was counted twice.

    Without `absolute_sigma` the noise is taken from the residuals, as SciPy's curve_fit does.
    """
    scale = pairs if absolute_sigma else pairs * reduced_chi2
    with np.errstate(invalid="ignore"):
        # An infinite scale leaves the zeros of parameters that are held.
        scaled = np.where(inverse == 0, 0.0, inverse * scale)
    return np.where(np.isinf(inverse) | np.isinf(scaled), np.inf, scaled)


def at_bounds(
    x: Array, lower: Array, upper: Array, names: Sequence[str], free: NDArray[np.bool_]
) -> dict[int, str]:
    """The parameters that ended at one of their bounds, by index, each with which bound."""
    found = {}
    for k in map(int, np.flatnonzero(free)):
        width = upper[k] - lower[k]
        room = 1e-6 * (width if np.isfinite(width) else max(abs(x[k]), 1.0))
        for side, bound in (("lower", lower[k]), ("upper", upper[k])):
            if abs(x[k] - bound) <= room:
                found[k] = f"{names[k]} is at its {side} bound {bound:g}"
    return found


def undetermined(x: Array, errors: Array, turns: Turns, free: NDArray[np.bool_]) -> list[int]:
    """Parameters with a standard error that is infinite or exceeds 100 times the value.

    A parameter that may be zero is compared with the width of its bounds too: one that is zero in
    truth, and well known, is often smaller than a hundredth of its error. An angle is compared with
    half of its period.
    """
    signed = (turns.lower < 0) & (turns.upper > 0)
    limit = np.maximum(_LARGEST_ERROR * np.abs(x), np.where(signed, turns.upper - turns.lower, 0.0))
    limit = np.minimum(limit, turns.period / 2)
    return [int(k) for k in np.flatnonzero(free & ~(np.isfinite(errors) & (errors <= limit)))]


def rank_warnings(covariance: Covariance, names: Sequence[str]) -> list[str]:
    """A line for each direction that the data do not determine, and one for nearly equal pairs."""
    found = []
    for members in covariance.tradeoffs:
        if len(members) == 1:
            found.append(f"the data do not depend on {names[members[0]]} here")
        else:
            listed = ", ".join(names[k] for k in members)
            found.append(f"the fit is rank deficient: {listed} trade off against each other")
    if covariance.nearly:
        a, b, value = max(covariance.nearly, key=lambda pair: abs(pair[2]))
        pair = f"{names[a]} and {names[b]} can hardly be told apart (correlation {value:.6f})"
        count = len(covariance.nearly) - 1
        others = f", the worst of {count + 1} such pairs" if count else ""
        found.append(pair + others)
    # Several directions may lie in the same parameters.
    return list(dict.fromkeys(found))
