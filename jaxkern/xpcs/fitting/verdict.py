"""Reasons why the parameters of a converged fit are not usable, and warnings about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import DISTINCT, FitProblem
from jaxkern.xpcs.fitting.parameters import PeriodicBounds
from jaxkern.xpcs.fitting.sampling import SIGMA_FLOOR
from jaxkern.xpcs.fitting.solver import Covariance, weakest_direction

Array = NDArray[np.float64]

# Largest relative standard error of a parameter that counts as determined by the data.
_LARGEST_ERROR = 100.0
# Another minimum is as good if its chi2 exceeds that of the result by at most this multiple of the
# variance of the noise.
_EVIDENCE = 9.0


def unusable(
    problem: FitProblem, x: Array, pcov: Array, bounded: dict[int, str], jtj: Array
) -> list[str]:
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
    unknown = undetermined(x, errors, problem.bounds, physics)
    values = [f"{names[k]} = {x[k]:.4g} +/- {errors[k]:.2g}" for k in unknown]
    if values:
        members, change = weakest_direction(jtj, physics)
        along = ""
        if len(members) > 1 and not {*members.tolist()}.isdisjoint(unknown):
            ratio = " : ".join(f"{number:.3g}" for number in change)
            along = f" (chi2 changes least along {' : '.join(names[k] for k in members)} = {ratio})"
        listed = ", ".join(values)
        reasons.append(f"the data do not determine {listed}{along}: hold some, or fit fewer")
    return reasons


def without_decay(x: Array, jtj: Array, scales: int, unit: float, count: int) -> list[str]:
    """Return the reason if a constant describes the data as well.

    At fixed physics the model is linear in contrast and offset, the first 2 `scales` parameters, so
    that a contrast of 0 with the best offset raises chi2 by a quadratic form. `unit` is the
    variance of the noise, and `count` the number of the other parameters.
    """
    contrast = np.where(np.abs(x[:scales]) > SIGMA_FLOOR, x[:scales], 0.0)
    (a, b), (_, d) = jtj[: 2 * scales, : 2 * scales].reshape(2, scales, 2, scales).swapaxes(1, 2)
    signal = float(contrast @ (a - b @ np.linalg.pinv(d, hermitian=True) @ b.T) @ contrast)
    signal /= max(unit, np.finfo(float).tiny)
    # Noise lowers chi2 by one variance a parameter.
    if not scales or signal > count:
        return []
    return [
        f"the data show no decay: with a contrast of 0, chi2 is higher by only {signal:.3g} times "
        "the variance of the noise"
    ]


def ambiguous(
    problem: FitProblem,
    x: Array,
    errors: Array,
    physics: NDArray[np.bool_],
    minima: Sequence[tuple[Array, float]],
) -> tuple[str, bool]:
    """Describe a minimum with other physics that is as good; "" if there is none.

    `minima` are pairs of parameters [p] and the difference of chi2 in variances of the noise. The
    second result is True if all of them are `Model.exchange` of this one.
    """
    names, first, exchanged = problem.layout.names, 2 * problem.layout.n_scales, ""
    for other, difference in minima:
        step = problem.bounds.difference(other, x)
        distinct = [k for k in range(len(x)) if physics[k] and abs(step[k]) > DISTINCT * errors[k]]
        if difference > _EVIDENCE or not distinct:
            continue
        values = ", ".join(f"{names[k]} = {x[k] + step[k]:.4g}, not {x[k]:.4g}" for k in distinct)
        if pairs := problem.model.exchange:
            to, of = first + np.array(pairs).T
            swapped = x.copy()
            swapped[to] = x[of]
            apart = problem.bounds.difference(other, swapped)[to]
            if (np.abs(apart) <= DISTINCT * errors[of]).all():
                exchanged = (
                    f"the components can be exchanged ({values}): both solutions are as good; "
                    "bounds of a fraction below or above 0.5 choose one"
                )
                continue
        text = (
            f"another minimum is nearly as good ({values}; chi2 is higher by {difference:.3g} "
            "times the variance of the noise): restrict the bounds, or hold some parameters"
        )
        return text, False
    return exchanged, bool(exchanged)


def at_bounds(
    x: Array, lower: Array, upper: Array, names: Sequence[str], free: NDArray[np.bool_]
) -> dict[int, str]:
    """Return the parameters at one of their bounds: index -> message."""
    messages = {}
    for k in map(int, np.flatnonzero(free)):
        width = upper[k] - lower[k]
        tolerance = 1e-6 * (width if np.isfinite(width) else max(abs(x[k]), 1.0))
        for side, bound in (("lower", lower[k]), ("upper", upper[k])):
            if abs(x[k] - bound) <= tolerance:
                messages[k] = f"{names[k]} is at its {side} bound {bound:g}"
    return messages


def undetermined(
    x: Array, errors: Array, bounds: PeriodicBounds, free: NDArray[np.bool_]
) -> list[int]:
    """Return the parameters with a standard error that is infinite or exceeds 100 times the value.

    The error may also be as large as the distance of bounds that include zero, since a
    well-determined parameter can be near zero, but at most half of the period of an angle.
    """
    signed = (bounds.lower < 0) & (bounds.upper > 0)
    width = np.where(signed, bounds.upper - bounds.lower, 0.0)
    limit = np.maximum(_LARGEST_ERROR * np.abs(x), width)
    limit = np.minimum(limit, bounds.period / 2)
    return [int(k) for k in np.flatnonzero(free & ~(np.isfinite(errors) & (errors <= limit)))]


def rank_warnings(covariance: Covariance, names: Sequence[str]) -> list[str]:
    """Return a warning for each direction without information, and for the worst correlation."""
    messages = []
    for members in covariance.tradeoffs:
        if len(members) == 1:
            messages.append(f"the data do not depend on {names[members[0]]} here")
        else:
            listed = ", ".join(names[k] for k in members)
            messages.append(f"the fit is rank deficient: {listed} trade off against each other")
    if covariance.nearly:
        a, b, value = max(covariance.nearly, key=lambda pair: abs(pair[2]))
        pair = f"{names[a]} and {names[b]} are hardly distinguishable (correlation {value:.6f})"
        count = len(covariance.nearly) - 1
        others = f", the worst of {count + 1} such pairs" if count else ""
        messages.append(pair + others)
    # Several directions may involve the same parameters.
    return list(dict.fromkeys(messages))
