"""Data for the plots of a fit at one angle: reduced maps, means along the lag, residuals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxkern.xpcs.files.sources import Source, values
from jaxkern.xpcs.model.correlation import g2_at
from jaxkern.xpcs.model.models import Model
from jaxkern.xpcs.model.twin import SIGMA_FLOOR

Array = NDArray[Any]

# Largest number of pixels of a map along a side. Longer matrices are averaged over k x k points.
SHOWN_FRAMES = 500
# The run is divided into bands of the sample's age, and each band into parts. Their scatter gives
# the error bars, which therefore include noise that is correlated between neighbouring frames.
AGE_BANDS = 3
_PARTS = 6
_LAGS_PER_DECADE = 12
RESIDUAL_EDGES = np.linspace(-6.0, 6.0, 97)
_SLAB_POINTS = 1 << 19


@dataclass(frozen=True)
class Cut:
    """Means over all pairs of frames of one band of ages, by lag.

    Attributes:
      ages: the band, (first, last) in seconds; the age of a pair is (t1 + t2) / 2.
      lag: [k] seconds, the mean of each bin; single lags up to a decade, then logarithmic bins.
      data, model: [k] means over the same pairs.
      error: [k] standard errors of the mean of data, from the scatter of the band's parts;
        NaN if only one part has pairs.
    """

    ages: tuple[float, float]
    lag: Array
    data: Array
    model: Array
    error: Array


@dataclass(frozen=True)
class AngleView:
    """Data of one angle for plots.

    Points on the diagonal, at bad frames and with NaN are excluded. An angle without sigma, which
    the fit left out, has only NaN.

    Attributes:
      phi: degrees.
      along_flow: true for the angle nearest to the flow.
      edges: (first, last) time of the maps in seconds.
      data, model: [m, m] means of k x k points, NaN if all are excluded.
      residual: [m, m] the same for (data - model) / sigma, or data - model without sigma.
      scaled: true if sigma is known.
      cuts: a cut for each band of ages.
      residual_counts: histogram of the upper triangle with `RESIDUAL_EDGES`; values outside are
        counted in the first and the last bin.
      mean_square: mean of residual^2 over the upper triangle.
    """

    phi: float
    along_flow: bool
    edges: tuple[float, float]
    data: Array
    model: Array
    residual: Array
    scaled: bool
    cuts: tuple[Cut, ...]
    residual_counts: Array
    mean_square: float


def view_angles(
    data: Source,
    model: Model,
    params: ArrayLike,
    contrast: ArrayLike,
    offset: ArrayLike,
    sigma: ArrayLike | None = None,
    *,
    keep: ArrayLike | None = None,
    angles: int = 6,
) -> list[AngleView]:
    """Return the data of evenly spread angles, including the angle nearest to the flow.

    Every point of the upper triangle of these angles is read once, in slabs of rows.

    Args:
      data: [n_phi, n_t, n_t], symmetric.
      model: model with the geometry of the data.
      params: [p]; contrast and offset: [n_phi].
      sigma: a number or [n_phi]; None for residuals that are not scaled.
      keep: [n_t] or [n_phi, n_t], 0 at frames to exclude.
      angles: number of angles.
    """
    n_phi, n_t, _ = data.shape
    counts = np.broadcast_to(True if keep is None else np.asarray(keep, bool), (n_phi, n_t))
    noise = np.broadcast_to(np.asarray(1.0 if sigma is None else sigma, np.float64), (n_phi,))
    along = angle_along_flow(model, np.asarray(params, np.float64))
    with jax.enable_x64(True):
        evaluate = jax.jit(lambda index: g2_at(model, params, contrast, offset, index))
        return [
            _view(
                angle, data, model, evaluate, noise[angle], counts[angle], sigma is not None, along
            )
            for angle in chosen_angles(n_phi, angles, along)
        ]


def angle_along_flow(model: Model, params: Array) -> int | None:
    """Return the index of the angle nearest to phi0 modulo 180 degrees; None without phi0."""
    if "phi0" not in model.parameter_names:
        return None
    phi0 = params[model.parameter_names.index("phi0")]
    away = (np.asarray(model.geometry.phi) - phi0 + 90.0) % 180.0 - 90.0
    return int(np.argmin(np.abs(away)))


def chosen_angles(n_phi: int, angles: int, along: int | None) -> list[int]:
    """Return at most `angles` evenly spread indices; `along` replaces the nearest of them."""
    spread = np.linspace(0, n_phi - 1, min(angles, n_phi)).round().astype(int)
    if along is not None and along not in spread:
        spread[np.argmin(np.abs(spread - along))] = along
    return sorted({int(angle) for angle in spread})


def lag_bins(n_t: int) -> Array:
    """Return the bin of each lag 0 .. n_t - 1: single lags up to a decade, then logarithmic."""
    lags = np.arange(n_t)
    step = 10 ** (1 / _LAGS_PER_DECADE)
    edges = [1]
    while edges[-1] < n_t:
        edges.append(max(edges[-1] + 1, round(edges[-1] * step)))
    bins: Array = np.searchsorted(edges, lags, side="right") - 1
    return np.maximum(bins, 0)


def _slabs(n_t: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of about `_SLAB_POINTS` points; all but the last divide by `step`."""
    rows = max(_SLAB_POINTS // n_t // step, 1) * step
    for first in range(0, n_t, rows):
        yield first, min(first + rows, n_t)


def _view(
    angle: int,
    data: Source,
    model: Model,
    evaluate: Any,
    sigma: float,
    counts: Array,
    scaled: bool,
    along: int | None,
) -> AngleView:
    n_t = data.shape[1]
    block = -(-n_t // SHOWN_FRAMES)
    starts = np.arange(0, n_t, block)
    maps = np.zeros((4, len(starts), len(starts)))  # points, and sums of data, model, residual
    bins = lag_bins(n_t)
    n_bins, parts = int(bins.max()) + 1, AGE_BANDS * _PARTS
    part_of = np.minimum(np.arange(2 * n_t) * parts // (2 * n_t - 1), parts - 1)
    sums = np.zeros((4, parts * n_bins))  # pairs, and sums of the lag, data, model
    histogram = np.zeros(len(RESIDUAL_EDGES) - 1, np.int64)
    square = 0.0
    weighted = SIGMA_FLOOR < sigma < np.inf
    for first, stop in _slabs(n_t, block):
        measured = values(data, data.read(angle, first, stop))
        i, j = np.mgrid[first:stop, :n_t].astype(np.int32)
        index = np.stack([np.full_like(i, angle), i, j], -1).reshape(-1, 3)
        expected = np.asarray(evaluate(index)).reshape(i.shape)
        used = (i < j) & counts[i] & counts[j] & np.isfinite(measured) & weighted
        measured, expected = np.where(used, measured, 0.0), np.where(used, expected, 0.0)
        residual = (measured - expected) / (sigma if weighted else 1.0)
        rows = starts[(starts >= first) & (starts < stop)] - first
        at = first // block
        for total, part in zip(maps, (used, measured, expected, residual), strict=True):
            reduced = np.add.reduceat(part, rows, axis=0, dtype=np.float64)
            total[at : at + len(rows)] = np.add.reduceat(reduced, starts, axis=1)
        flat = (part_of[i + j] * n_bins + bins[j - i])[used]
        for total, weights in zip(sums, (None, j - i, measured, expected), strict=True):
            used_weights = None if weights is None else weights[used]
            total += np.bincount(flat, used_weights, minlength=parts * n_bins)
        counted = np.clip(residual[used], RESIDUAL_EDGES[0], RESIDUAL_EDGES[-1])
        histogram += np.histogram(counted, RESIDUAL_EDGES)[0]
        square += float(np.sum(residual[used] ** 2))
    maps += maps.transpose(0, 2, 1) * (1 - np.eye(len(starts)))
    t = model.geometry.t
    with np.errstate(invalid="ignore"):
        means = np.where(maps[0] > 0, maps[1:] / np.maximum(maps[0], 1), np.nan)
    bands = np.linspace(t[0], t[-1], AGE_BANDS + 1)
    step = (t[-1] - t[0]) / (n_t - 1)
    return AngleView(
        phi=float(model.geometry.phi[angle]),
        along_flow=angle == along,
        edges=(float(t[0]), float(t[-1])),
        data=means[0],
        model=means[1],
        residual=means[2],
        scaled=scaled,
        cuts=tuple(
            _cut(part, (float(low), float(high)), step)
            for part, low, high in zip(
                np.split(sums.reshape(4, parts, n_bins), AGE_BANDS, axis=1),
                bands[:-1],
                bands[1:],
                strict=True,
            )
        ),
        residual_counts=histogram,
        mean_square=square / max(int(histogram.sum()), 1),
    )


def _cut(sums: Array, ages: tuple[float, float], step: float) -> Cut:
    """Return the means of a band from the sums [4, parts, bins] of its parts."""
    pairs = sums[0].sum(0)
    filled = pairs > 0
    lag, data, model = sums[1:].sum(1)[:, filled] / pairs[filled]
    # Use the scatter of the parts about the model, so that aging does not count as noise.
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation = (sums[2] - sums[3])[:, filled] / sums[0][:, filled]
    weight = sums[0][:, filled] / pairs[filled]
    mean = np.nansum(weight * deviation, 0)
    parts = (sums[0][:, filled] > 0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.nansum((weight * (deviation - mean)) ** 2, 0) * parts / (parts - 1)
    error = np.where(parts > 1, np.sqrt(variance), np.nan)
    return Cut(ages, lag * step, data, model, error)


def scale(views: Sequence[AngleView]) -> tuple[float, float]:
    """Return the common range of g2 of all cuts."""
    curves = [values for view in views for cut in view.cuts for values in (cut.data, cut.model)]
    points = np.concatenate(curves) if curves else np.zeros(0)
    points = points[np.isfinite(points)]
    if not points.size:
        return 0.0, 1.0
    low, high = np.percentile(points, [0.5, 99.5])
    margin = 0.06 * max(float(high - low), 1e-12)
    return float(low) - margin, float(high) + margin


def residual_scale(view: AngleView) -> tuple[float, float]:
    """Return the range of data - model in an angle's cuts, of points with an error."""
    ends = [np.abs(cut.data - cut.model) + cut.error for cut in view.cuts]
    points = np.concatenate(ends) if ends else np.zeros(0)
    points = points[np.isfinite(points)]
    most = 1.1 * float(points.max()) if points.size and points.max() > 0 else 1.0
    return -most, most
