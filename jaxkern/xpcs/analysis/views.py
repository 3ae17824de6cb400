"""What the plots of a fit draw of an angle: reduced maps, means along the lag, residuals."""

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

# Pixels of a map at most, along a side: of longer matrices, means of k x k points.
SHOWN_FRAMES = 500
# The run is divided into bands of the sample's age, and each band into parts whose scatter gives
# the error bars: noise that is correlated between neighbouring frames is in it.
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
      lag: [k] seconds, the mean of each bin; every lag up to a decade, then logarithmic bins.
      data, model: [k] means of the same pairs.
      error: [k] standard errors of the mean of data, from the scatter of the band's parts;
        NaN where only one part has pairs.
    """

    ages: tuple[float, float]
    lag: Array
    data: Array
    model: Array
    error: Array


@dataclass(frozen=True)
class AngleView:
    """What is drawn of one angle. Points on the diagonal, at bad frames and NaN count nowhere.

    Nor does an angle without sigma, which the fit left out: all is NaN there.

    Attributes:
      phi: degrees.
      along_flow: whether it is the angle nearest the flow.
      edges: (first, last) time of the maps in seconds.
      data, model: [m, m] means of k x k points, NaN where none counts.
      residual: [m, m] the same of (data - model) / sigma, or of data - model without sigma.
      scaled: whether sigma was given.
      cuts: one for each band of ages.
      residual_counts: points of the upper triangle between `RESIDUAL_EDGES`; those outside are
        in the first and the last.
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
    """Data and model of some angles, spread over all of them, the one nearest the flow among them.

    Every point of the upper triangle of these angles is read once, in slabs of rows.

    Args:
      data: [n_phi, n_t, n_t], mirrored.
      model: with the data's geometry.
      params: [p]; contrast and offset: [n_phi].
      sigma: a number or [n_phi]; None: residuals as they are.
      keep: [n_t] or [n_phi, n_t], 0 at frames that do not count.
      angles: how many.
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
    """The angle whose phi is nearest to phi0, modulo 180 degrees; None in a model without phi0."""
    if "phi0" not in model.parameter_names:
        return None
    phi0 = params[model.parameter_names.index("phi0")]
    away = (np.asarray(model.geometry.phi) - phi0 + 90.0) % 180.0 - 90.0
    return int(np.argmin(np.abs(away)))


def chosen_angles(n_phi: int, angles: int, along: int | None) -> list[int]:
    """At most `angles` of them, evenly spread; the one along the flow replaces its neighbour."""
    spread = np.linspace(0, n_phi - 1, min(angles, n_phi)).round().astype(int)
    if along is not None and along not in spread:
        spread[np.argmin(np.abs(spread - along))] = along
    return sorted({int(angle) for angle in spread})


def lag_bins(n_t: int) -> Array:
    """The bin of each lag 0 .. n_t - 1: one each up to a decade, then logarithmic ones."""
    lags = np.arange(n_t)
    step = 10 ** (1 / _LAGS_PER_DECADE)
    edges = [1]
    while edges[-1] < n_t:
        edges.append(max(edges[-1] + 1, round(edges[-1] * step)))
    bins: Array = np.searchsorted(edges, lags, side="right") - 1
    return np.maximum(bins, 0)


def _slabs(n_t: int, step: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of some `_SLAB_POINTS`; each but the last a multiple of `step`."""
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
            given = None if weights is None else weights[used]
            total += np.bincount(flat, given, minlength=parts * n_bins)
        counted = np.clip(residual[used], RESIDUAL_EDGES[0], RESIDUAL_EDGES[-1])
        histogram += np.histogram(counted, RESIDUAL_EDGES)[0]
        square += float(np.sum(residual[used] ** 2))
    maps += maps.transpose(0, 2, 1) * (1 - np.eye(len(starts)))
    t = model.geometry.t
    with np.errstate(invalid="ignore"):
        shown = np.where(maps[0] > 0, maps[1:] / np.maximum(maps[0], 1), np.nan)
    bands = np.linspace(t[0], t[-1], AGE_BANDS + 1)
    step = (t[-1] - t[0]) / (n_t - 1)
    return AngleView(
        phi=float(model.geometry.phi[angle]),
        along_flow=angle == along,
        edges=(float(t[0]), float(t[-1])),
        data=shown[0],
        model=shown[1],
        residual=shown[2],
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
    """Means of a band from the sums [4, parts, bins] of its parts."""
    pairs = sums[0].sum(0)
    there = pairs > 0
    lag, data, model = sums[1:].sum(1)[:, there] / pairs[there]
    # The scatter of the parts about the model, so that what changes with the age is not noise.
    with np.errstate(invalid="ignore", divide="ignore"):
        off = (sums[2] - sums[3])[:, there] / sums[0][:, there]
    weight = sums[0][:, there] / pairs[there]
    mean = np.nansum(weight * off, 0)
    parts = (sums[0][:, there] > 0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.nansum((weight * (off - mean)) ** 2, 0) * parts / (parts - 1)
    error = np.where(parts > 1, np.sqrt(variance), np.nan)
    return Cut(ages, lag * step, data, model, error)


def scale(views: Sequence[AngleView]) -> tuple[float, float]:
    """The range of g2 that all cuts share: what is drawn, without what counts nowhere."""
    drawn = [values for view in views for cut in view.cuts for values in (cut.data, cut.model)]
    every = np.concatenate(drawn) if drawn else np.zeros(0)
    every = every[np.isfinite(every)]
    if not every.size:
        return 0.0, 1.0
    low, high = np.percentile(every, [0.5, 99.5])
    room = 0.06 * max(float(high - low), 1e-12)
    return float(low) - room, float(high) + room


def residual_scale(view: AngleView) -> tuple[float, float]:
    """The range of data - model in an angle's cuts: of the points that have an error."""
    ends = [np.abs(cut.data - cut.model) + cut.error for cut in view.cuts]
    every = np.concatenate(ends) if ends else np.zeros(0)
    every = every[np.isfinite(every)]
    most = 1.1 * float(every.max()) if every.size and every.max() > 0 else 1.0
    return -most, most
