"""Fits of one-time correlations g2(tau) of all bins at once: `fit_g2`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxkern.core.arguments import check_number
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.model.checks import choice
from jaxkern.xpcs.model.twin import LOSSES, SIGMA_FLOOR
from jaxkern.xpcs.onetime.models import LOGARITHMIC, DecayModel, as_model
from jaxkern.xpcs.onetime.program import (
    CHUNK,
    MOST_ITERATIONS,
    Curves,
    FitPlan,
    FittedCurves,
    fit_curves,
)
from jaxkern.xpcs.onetime.result import G2Fit

Array = NDArray[np.float64]

# Logarithms of bounds of 0 and infinity.
_LARGEST_LOG = 600.0
# A parameter whose error exceeds this multiple of its value is not determined.
_LARGEST_ERROR = 100.0
# A parameter that is nearer to a bound than this fraction of its range is at the bound.
_AT_BOUND = 1e-9
# The contrast of a decay exceeds this multiple of its error.
_LEAST_CONTRAST = 3.0


def fit_g2(
    tau: ArrayLike,
    g2: ArrayLike,
    g2_err: ArrayLike | None = None,
    *,
    model: str | Callable[..., Any] = "exponential",
    q: ArrayLike | None = None,
    share: Sequence[str] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
    loss: Literal["linear", "soft_l1", "huber", "cauchy", "arctan"] = "linear",
    f_scale: float | None = None,
    p0: Mapping[str, ArrayLike] | None = None,
    absolute_sigma: bool = False,
    g2_groups: ArrayLike | None = None,
    g2_parts: ArrayLike | None = None,
    bins: ArrayLike | None = None,
    phi: ArrayLike | None = None,
) -> G2Fit:
    """Fit g2(tau) of all bins at once by least squares, in float64.

    g2 = baseline + contrast g1^2, with g1 of the models:

    - ``"exponential"``: exp(-rate tau);
    - ``"stretched"``: exp(-(rate tau)^stretch);
    - ``"double"``: fraction exp(-rate tau) + (1 - fraction) exp(-slow_rate tau);
    - ``"shear-gaussian"``: exp(-rate tau - (shear tau)^2 / 2), of a normal distribution of
      velocities;
    - ``"shear-sinc"``: exp(-rate tau) sinc(shear tau)^2, as in `LaminarFlow`.

    Args:
      tau: [n_tau] delays in s.
      g2: [n_tau, n_bins] or [n_tau]; points that are not finite are left out.
      g2_err: the standard errors, of the same shape; None for equal weights. Points without a
        positive error are left out; where few points are used, errors of 0 or NaN are the usual
        reason.
      model: a name, or a function of tau [n_tau] and its parameters by name. Starting values of a
        function come from `p0`, from its defaults, and for `rate`, `contrast` and `baseline` from
        the data.
      q: [n_bins] in 1/Angstrom, for shared rates and `G2Fit.tau_q`.
      share: names of parameters that are equal in all bins. "D" replaces the rates by D q^2, and
        "exponent" in addition fits the power of q.
      bounds: name -> (lower, upper), which replace the default ones; equal bounds fix a parameter.
        The lower bound of "D" is at least 0.
      loss: as in `scipy.optimize.least_squares`.
      f_scale: the residual at which a robust loss bends, in units of g2_err (default 1), or of g2
        if there are no errors.
      p0: name -> starting value, a number or [n_bins], in place of those estimated from the data.
      absolute_sigma: as in `scipy.optimize.curve_fit`. It affects errors of independent noise.
      g2_groups: [n_groups, n_tau, n_bins] g2 of groups of pixels of equal size: errors then come
        from a jackknife over the groups, which includes the correlation of noise between delays;
        bins whose groups are NaN have errors of independent noise, and so have all bins with
        shared parameters if one bin lacks groups.
      g2_parts: [n_parts, n_tau, n_bins] the same for equal parts of the run, with NaN at delays
        that they do not have.
      bins, phi: [n_bins] labels for the result.

    Raises:
      ValueError: for shapes that do not agree, unknown names, and values out of range.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> tau, q = np.geomspace(1e-3, 1.0, 40), np.array([0.01, 0.02, 0.03])
      >>> g2 = 1 + 0.2 * np.exp(-2 * 1e4 * q**2 * tau[:, None])
      >>> fit = jk.xpcs.fit_g2(tau, g2, q=q)
      >>> fit.params["rate"].round(6).tolist(), bool(fit.success.all())
      ([1.0, 4.0, 9.0], True)
      >>> jk.xpcs.fit_g2(tau, g2, q=q, share=["D"]).params["D"].round(3).tolist()
      [10000.0, 10000.0, 10000.0]
    """
    decay = as_model(model)
    delays, curves, errors = _check_data(tau, g2, g2_err)
    n_tau, n_bins = curves.shape
    labels = {
        "q": _per_bin(q, "q", n_bins),
        "phi": _per_bin(phi, "phi", n_bins),
        "bins": _per_bin(bins, "bins", n_bins),
    }
    plan = _make_plan(decay, share, labels["q"], choice(loss, "loss", LOSSES), bounds)
    if f_scale is None and loss != "linear" and g2_err is None:
        raise ValueError(
            f"f_scale: expected a residual in units of g2 for loss={loss!r} without g2_err, got "
            "None; pass g2_err or f_scale"
        )
    scale = 1.0 if f_scale is None else check_number("f_scale", f_scale, np.finfo(float).tiny)
    weight = np.zeros((n_tau, n_bins))
    used = np.isfinite(curves) & np.isfinite(errors) & (errors > SIGMA_FLOOR)
    weight[used] = 1.0 / errors[used]
    if g2_groups is not None and g2_parts is not None:
        raise ValueError("g2_parts: expected groups or parts, got both; pass one of them")
    parts, kind = _check_parts(g2_groups, "g2_groups", curves.shape), "groups of pixels"
    if g2_parts is not None:
        parts, kind = _check_parts(g2_parts, "g2_parts", curves.shape), "parts of the run"
    lower, upper = _bounds(plan, bounds)
    order = [*plan.local, *plan.shared]
    held = lower >= upper
    local_free = int((~held)[: len(plan.local)].sum())
    deviations, common = _deviations(parts, errors, used)
    known = (np.isfinite(parts).all(0) & used).sum(0) >= max(local_free, 1)
    jackknife = known & bool(len(parts))
    if plan.shared:  # the noise of all bins affects the shared parameters
        jackknife[:] = jackknife[used.any(0)].all()
    start = _starts(plan, p0, n_bins, lower, upper)
    log_q = np.zeros(n_bins) if "D" not in plan.shared else np.log(labels["q"])
    data = Curves(
        g2=np.where(used, curves, 0.0).T,
        weight=weight.T,
        log_q=log_q,
        parts=np.moveaxis(deviations, -1, 0),
        common=common.T,
        start=start,
        lower=np.tile(_scaled(plan, lower), (n_bins, 1)),
        upper=np.tile(_scaled(plan, upper), (n_bins, 1)),
    )
    fitted = _run(plan, delays, scale, data)
    n_points = used.sum(0)
    shared_free = int((~held).sum()) - local_free
    freedom = n_points - local_free
    cost, freedom_of_cost = fitted.cost, freedom
    if plan.shared:
        total = max(int(freedom.sum()) - shared_free, 0)
        cost, freedom_of_cost = np.full(n_bins, cost.sum()), np.full(n_bins, total)
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = np.where(freedom_of_cost > 0, cost / freedom_of_cost, np.inf)
        reduced = np.where(freedom > 0, fitted.chi2 / freedom, np.inf)
    if g2_err is None:
        absolute_sigma = False
    variance = _variance(fitted, noise, absolute_sigma, len(parts), g2_err is None, jackknife)
    method = f"jackknife over {len(parts)} {kind}" if jackknife.any() else "independent"
    if jackknife.any() and not jackknife.all():
        method += f" in {jackknife.sum()} of {n_bins} bins, independent in the others"
    variance[:, [k for k, n in enumerate(plan.names) if n in order and held[order.index(n)]]] = 0.0
    values = fitted.values
    if decay.name == "double" and not plan.shared and not bounds:
        values, variance = _fast_first(plan, values, variance)
    with np.errstate(invalid="ignore"):
        deviation = np.sqrt(variance)
    params = {name: values[:, k] for k, name in enumerate(plan.names)}
    perr = {name: deviation[:, k] for k, name in enumerate(plan.names)}
    near = _AT_BOUND * np.where(np.isfinite(data.upper - data.lower), data.upper - data.lower, 0.0)
    at_lower, at_upper = fitted.vector <= data.lower + near, fitted.vector >= data.upper - near
    limits = {
        name: ((lower[k], at_lower[:, k]), (upper[k], at_upper[:, k]))
        for k, name in enumerate(order)
        if not held[k]
    }
    messages = _messages(params, perr, limits, fitted, n_points, local_free)
    return G2Fit(
        model=decay.name,
        params=params,
        errors=perr,
        chi2=fitted.chi2,
        reduced_chi2=reduced,
        n_points=n_points,
        success=np.array([not text for text in messages], bool),
        messages=tuple(messages),
        error_method=method,
        jackknife=jackknife,
        shared=plan.shared,
        tau=delays,
        g2=curves,
        g2_err=None if g2_err is None else errors,
        curve=fitted.curve.T,
        iterations=fitted.iterations,
        **labels,
    )


def _check_data(tau: Any, g2: Any, g2_err: Any) -> tuple[Array, Array, Array]:
    """Return tau [n_tau], and g2 and its errors [n_tau, n_bins]."""
    delays, curves = np.asarray(tau, np.float64), np.asarray(g2, np.float64)
    if delays.ndim != 1 or not len(delays) or not (np.isfinite(delays) & (delays > 0)).all():
        got = f"shape {delays.shape}"
        if delays.ndim == 1 and len(delays):
            got = f"{delays[~(np.isfinite(delays) & (delays > 0))][0]:g}"
        raise ValueError(f"tau: expected [n_tau] finite delays > 0 in s, got {got}")
    if curves.ndim not in (1, 2) or curves.shape[0] != len(delays) or not curves.size:
        raise ValueError(
            f"g2: expected [n_tau, n_bins] with n_tau = {len(delays)} as tau, got {curves.shape}"
        )
    errors = np.ones(curves.shape) if g2_err is None else np.asarray(g2_err, np.float64)
    if errors.shape != curves.shape:
        raise ValueError(f"g2_err: expected the shape of g2, {curves.shape}, got {errors.shape}")
    if (errors < 0).any():
        raise ValueError(f"g2_err: expected errors >= 0, got {np.nanmin(errors):g}")
    return delays, curves.reshape(len(delays), -1), errors.reshape(len(delays), -1)


def _per_bin(values: Any, name: str, n_bins: int) -> Any:
    if values is None:
        return None
    array = np.asarray(values)
    if array.shape != (n_bins,) or array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected [n_bins] = ({n_bins},) numbers, got {values!r:.80}")
    return array


def _check_parts(parts: Any, name: str, shape: tuple[int, ...]) -> Array:
    if parts is None:
        return np.zeros((0, *shape))
    array = np.asarray(parts, np.float64)
    array = array.reshape(len(array), *shape) if array.size == len(array) * shape[0] else array
    if array.shape[1:] != shape or len(array) < 2:
        raise ValueError(
            f"{name}: expected [n, n_tau, n_bins] with n of at least 2 and {list(shape)} as g2, "
            f"got {list(array.shape)}"
        )
    return array


def _deviations(parts: Array, errors: Array, used: Any) -> tuple[Array, Array]:
    """Return deviations of parts from their mean, and of delays that some part does not have.

    The latter are at delays near the length of a part or longer, where the noise is that of few
    independent pairs: they are taken to deviate together, by their standard errors.
    """
    if not len(parts):
        return parts, np.zeros(errors.shape)
    known = np.isfinite(parts).all(0)
    with np.errstate(invalid="ignore"):
        deviations = np.where(known & used, parts - parts.mean(0), 0.0)
    return deviations, np.where(used & ~known, errors, 0.0)


def _unknown(name: str, names: Sequence[str], argument: str) -> ValueError:
    near = get_close_matches(str(name), names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{argument}: expected names among {', '.join(names)}, got {name!r}{hint}")


def _make_plan(model: DecayModel, share: Sequence[str], q: Any, loss: int, bounds: Any) -> FitPlan:
    if isinstance(share, str):
        raise ValueError(f"share: expected a sequence of names, such as [{share!r}], got {share!r}")
    shared = tuple(dict.fromkeys(share))
    powers = ("D", "exponent") if "rate" in model.names else ()
    known = (*model.names, *(name for name in powers if name not in model.names))
    for name in shared:
        if name not in known:
            raise _unknown(name, known, "share")
    if "exponent" in shared and "D" not in shared and "exponent" not in model.names:
        raise ValueError("share: expected 'D' with 'exponent', for rates D q^exponent, got no 'D'")
    replaced: tuple[str, ...] = ()
    if "D" in shared and "D" not in model.names:
        replaced = ("rate",)
        if "rate" in shared:
            raise ValueError("share: expected 'rate' or 'D', got both; 'D' makes rates D q^2")
        low = _bound(model, "D", bounds)[0]
        if low < 0:
            raise ValueError(f"bounds['D']: expected a lower bound >= 0, got {low:g}")
        if q is None or not (np.isfinite(q) & (q > 0)).all():
            raise ValueError(f"q: expected [n_bins] q > 0 in 1/Angstrom for 'D', got {q!r:.80}")
    local = tuple(name for name in model.names if name not in (*shared, *replaced))
    for name in bounds or ():
        if name not in (*local, *shared):
            if name in known:
                raise ValueError(f"bounds: {name!r} is not fitted with share={list(shared)!r}")
            raise _unknown(name, (*local, *shared), "bounds")
    pairs = {name: _bound(model, name, bounds)[0] for name in (*local, *shared)}
    logarithmic = tuple(
        name
        for name in pairs
        if name in LOGARITHMIC
        and pairs[name] >= 0
        and (model.shape is not None or name not in model.names)
    )
    return FitPlan(model, local, shared, logarithmic, loss)


def _bound(model: DecayModel, name: str, bounds: Any) -> tuple[float, float]:
    pair = (bounds or {}).get(name)
    if pair is None:
        return model.bounds(name)
    try:
        low, high = map(float, pair)
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not low <= high:
        raise ValueError(
            f"bounds[{name!r}]: expected (lower, upper) with lower <= upper, got {pair!r}"
        )
    return low, high


def _bounds(plan: FitPlan, bounds: Any) -> tuple[Array, Array]:
    """Return the lower and upper bounds [p]."""
    pairs = [_bound(plan.model, name, bounds) for name in (*plan.local, *plan.shared)]
    lower, upper = np.array(pairs, np.float64).reshape(-1, 2).T
    return lower, upper


def _scaled(plan: FitPlan, values: Array) -> Array:
    """Return bounds [p] in the scale of the fit."""
    logarithmic = np.isin([*plan.local, *plan.shared], plan.logarithmic)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.clip(np.log(values), -_LARGEST_LOG, _LARGEST_LOG)
    return np.where(logarithmic, logs, values)


def _starts(plan: FitPlan, p0: Any, n_bins: int, lower: Array, upper: Array) -> Array:
    """Return starting values [n_bins, p] inside the bounds; NaN for those of the data."""
    names = (*plan.local, *plan.shared)
    for name in p0 or ():
        if name not in names:
            raise _unknown(name, names, "p0")
    start = np.full((n_bins, len(names)), np.nan)
    for k, name in enumerate(names):
        given = (p0 or {}).get(name, dict(plan.model.defaults).get(name))
        if given is None:
            estimated = ("rate", "contrast", "baseline", "D", "exponent")
            if plan.model.shape is None and name not in estimated:
                raise ValueError(
                    f"p0: expected a starting value of {name!r}, got none; pass "
                    f"p0={{{name!r}: ...}} or write a default in the signature of the model"
                )
            continue
        value = np.asarray(given, np.float64)
        allowed: tuple[Any, ...] = ((),) if name in plan.shared else ((), (n_bins,))
        if value.shape not in allowed or not np.isfinite(value).all():
            shapes = " or ".join(map(str, allowed))
            raise ValueError(f"p0[{name!r}]: expected finite, shape {shapes}, got {given!r:.80}")
        start[:, k] = np.clip(value, lower[k], upper[k])
        if name in (p0 or {}) and (start[:, k] != value).any():
            warnings.warn(
                f"p0[{name!r}] is outside of the bounds {lower[k]:g} to {upper[k]:g}, and moved to "
                "the nearest one",
                RuntimeWarning,
                stacklevel=3,
            )
    return start


def _run(plan: FitPlan, tau: Array, f_scale: float, data: Curves) -> FittedCurves:
    n_bins = len(data.g2)
    padding = 0 if plan.shared or n_bins <= CHUNK else -n_bins % CHUNK
    if padding:
        data = Curves(*(np.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) for x in data))
    with jax.enable_x64(True):
        if plan.model.shape is None:
            _check_function(plan, tau)
        grid = plan.model.candidates(tau)
    size = n_bins if plan.shared else min(n_bins, CHUNK)
    chunks = [Curves(*(x[k : k + size] for x in data)) for k in range(0, len(data.g2), size)]

    def call(chunk: Curves) -> FittedCurves:
        with jax.enable_x64(True):
            return FittedCurves(*map(np.array, fit_curves(plan, tau, f_scale, grid, chunk)))

    results = [call(chunks[0])]  # compiles the program
    if len(chunks) > 1:
        with ThreadPoolExecutor(min(num_threads(), len(chunks) - 1)) as pool:
            results += pool.map(call, chunks[1:])
    return FittedCurves(*(np.concatenate(x)[:n_bins] for x in zip(*results, strict=True)))


def _check_function(plan: FitPlan, tau: Array) -> None:
    """Check that a user's function can be traced and returns a value for each delay."""
    numbers = {name: jax.ShapeDtypeStruct((), np.float64) for name in plan.model.names}
    try:
        made = jax.eval_shape(
            lambda values: plan.model.function(jax.numpy.asarray(tau), **values), numbers
        )
        shape = getattr(made, "shape", None)
    except Exception as error:
        raise ValueError(
            f"model: expected a function of jax.numpy operations, got {plan.model.name}, which "
            f"raises {type(error).__name__}: {str(error).splitlines()[0]:.200}"
        ) from error
    if shape != tau.shape:
        raise ValueError(
            f"model: expected a function that returns g2 of shape {tau.shape} as tau, got "
            f"{plan.model.name}, which returns {made!r:.80}"
        )


def _variance(
    fitted: FittedCurves,
    noise: Array,
    absolute_sigma: bool,
    n_parts: int,
    unit_errors: bool,
    jackknife: Any,
) -> Array:
    """Return the variances [n_bins, P] of the parameters."""
    scale = np.ones_like(noise) if absolute_sigma else noise
    with np.errstate(invalid="ignore"):
        independent = np.where(np.isinf(fitted.variance), np.inf, fitted.variance * scale[:, None])
    if not n_parts:
        return independent
    from scipy.special import stdtrit

    # The interval of one standard error has its coverage with the few parts, too.
    student = stdtrit(n_parts - 1, 0.8413447460685429) ** 2
    variance = student * (fitted.changes[:, :-1] ** 2).sum(1) / (n_parts * (n_parts - 1))
    variance += fitted.changes[:, -1] ** 2 * (noise[:, None] if unit_errors else 1.0)
    return np.where(jackknife[:, None] & np.isfinite(independent), variance, independent)


def _fast_first(plan: FitPlan, values: Array, variance: Array) -> tuple[Array, Array]:
    """Exchange the two decays of bins whose first rate is the slower one."""
    fast, slow, fraction = (plan.names.index(n) for n in ("rate", "slow_rate", "fraction"))
    order = np.tile(np.arange(values.shape[1]), (len(values), 1))
    exchanged = values[:, fast] < values[:, slow]
    order[exchanged, fast], order[exchanged, slow] = slow, fast
    values, variance = (np.take_along_axis(x, order, 1) for x in (values, variance))
    values[exchanged, fraction] = 1.0 - values[exchanged, fraction]
    return values, variance


def _messages(
    params: Mapping[str, Array],
    errors: Mapping[str, Array],
    limits: Mapping[str, tuple[tuple[float, Any], tuple[float, Any]]],
    fitted: FittedCurves,
    n_points: Any,
    least_points: int,
) -> list[str]:
    """Return the reasons why the fit of each bin did not succeed; empty texts for the others."""
    reasons: list[list[str]] = [[] for _ in n_points]
    pending = np.ones(len(n_points), bool)

    def add(where: Any, text: str, *values: Any) -> None:
        for b in np.flatnonzero(pending & where).tolist():
            reasons[b].append(text.format(*(x[b] for x in values)))

    least = max(least_points, 1)
    text = (
        f"expected at least {least} points, got {{}}; those with an error of 0 or NaN are left out"
    )
    add(n_points < least, text, n_points)
    pending &= n_points >= least
    infinite = ~np.isfinite(fitted.cost)
    add(infinite, "the model is not finite at the starting values; pass p0")
    pending &= ~infinite
    add(~fitted.converged, f"no convergence after {MOST_ITERATIONS} iterations; pass p0")
    pending &= fitted.converged
    for name, pair in limits.items():
        value, error = params[name], errors[name]
        unknown = ~(error <= _LARGEST_ERROR * np.maximum(np.abs(value), np.finfo(float).tiny))
        if name != "baseline":
            add(unknown, f"the data do not determine {name}")
        for (bound, there), side in zip(pair, ("lower", "upper"), strict=True):
            if name != "contrast" or bound != 0:  # without contrast there is no decay, see below
                add(~unknown & there, f"{name} is at its {side} bound {bound:g}")
    if "contrast" in params:
        value, error = params["contrast"], errors["contrast"]
        pending &= [not texts for texts in reasons]
        none = ~(np.abs(value) > _LEAST_CONTRAST * error)
        add(none, "no decay: contrast {:.3g} +/- {:.2g}", value, error)
    return ["; ".join(texts) for texts in reasons]
