"""Averages of repeats of one measurement, from files of results."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path
from jaxkern.xpcs.correlators.results import MultiTauResult, Overview
from jaxkern.xpcs.files.results_reader import read_g2

Array = NDArray[np.float64]

# The limit of Iglewicz and Hoaglin (1993); below this number of repeats the scatter is unknown.
_LIMIT, _LEAST = 3.5, 4
# A deviation of fewer times the median is no outlier, however small the scatter of deviations.
_RATIO = 2.0
# The baseline is the mean of g2 at this number of last delays with enough pairs of frames. Errors
# of fewer pairs are too small, because the mean of a pixel divides its product.
_LAST, _PAIRS = 4, 32
# Settings that the average has in common; others, such as bad frames, may differ.
_SETTINGS = ("dpl", "normalize", "stride", "average")


@dataclass(frozen=True, eq=False)
class AveragedResults:
    """Average of repeats.

    Attributes:
      result: weighted average; its `parts` are the repeats that were used, so that `fit_g2` has
        errors from the scatter of repeats.
      files: the repeats.
      deviations: [n] root mean square of the deviation from the median curve, in standard errors.
      scores: [n] modified z-scores of the deviations; NaN for fewer than 4 repeats.
      used: [n] False for outliers.
      metadata: of the first file.

    Example:
      >>> import numpy as np, pathlib, tempfile, jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01])
      >>> for k in range(2):
      ...     frames = np.random.default_rng(k).poisson(1.0, (40, 4, 4)).astype("u1")
      ...     _ = jk.xpcs.write_results(folder / f"{k}.hdf", jk.xpcs.multitau(frames, qmap))
      >>> average = jk.xpcs.average_results(sorted(folder.glob("*.hdf")))
      >>> average.deviations.shape, average.rejected
      ((2,), {})
    """

    result: MultiTauResult
    files: tuple[Path, ...]
    deviations: Array
    scores: Array
    used: NDArray[np.bool_]
    metadata: dict[str, Any]

    @property
    def rejected(self) -> dict[Path, str]:
        """The reason for each outlier."""
        return {
            file: f"deviates by {deviation:.3g} standard errors, modified z-score {score:.3g}"
            for file, deviation, score, used in zip(
                self.files, self.deviations, self.scores, self.used, strict=True
            )
            if not used
        }


def average_results(
    paths: Iterable[str | os.PathLike[str]], *, reject: bool = True
) -> AveragedResults:
    """Average g2 of repeats of one measurement, without outliers.

    Each point is averaged with weights 1 / g2_err^2, and its error is the root of 1 / the sum of
    the weights. Points without an error in some repeat have equal weights. Bins without counts in
    some repeats are averaged over the others.

    Outliers: only delays with 32 pairs of frames or more are compared. The baseline, the mean of
    the last 4 of them, is subtracted from each curve. A repeat
    deviates by the root mean square over bins and delays of its distance from the median curve of
    the repeats, divided by g2_err. It is left out if the modified z-score of its deviation,
    0.6745 (d - median) / median(abs(d - median)), exceeds 3.5 (Iglewicz and Hoaglin, 1993), and if
    it deviates more than twice as much as the median. At least 4 repeats are required.

    Args:
      paths: files of results with g2, at least 2.
      reject: False to keep outliers.

    Raises:
      ValueError: fewer than 2 files, files without g2, or files of different bins, delays, maps,
        times between frames, geometries or settings, with all differences.

    Example:
      >>> import numpy as np, pathlib, tempfile, jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01])
      >>> for k in range(2):
      ...     frames = np.random.default_rng(k).poisson(1.0, (40, 4, 4)).astype("u1")
      ...     _ = jk.xpcs.write_results(folder / f"{k}.hdf", jk.xpcs.multitau(frames, qmap))
      >>> average = jk.xpcs.average_results(sorted(folder.glob("*.hdf")))
      >>> average.result.g2.shape, average.used.tolist()
      ((16, 1), [True, True])
    """
    files = tuple(home_path(path) for path in paths)
    if len(files) < 2:
        raise ValueError(f"files: expected at least 2 repeats, got {len(files)}")
    read = [read_g2(file) for file in files]
    results: list[MultiTauResult] = []
    for file, content in zip(files, read, strict=True):
        if content.multitau is None:
            raise ValueError(f"{file}: expected g2 in xpcs/multitau, got a file without it")
        results.append(content.multitau)
    differences = []
    for file, result, content in zip(files[1:], results[1:], read[1:], strict=True):
        names = _differences(results[0], result, read[0].metadata, content.metadata)
        if names:
            differences.append(f"{file} differs from {files[0]} in {', '.join(names)}")
    if differences:
        raise ValueError("; ".join(differences))
    curves = np.stack([result.g2 for result in results])
    errors = np.stack([result.g2_err for result in results])
    deviations, scores = _scores(curves, errors, results[0].n_pairs)
    used = np.ones(len(files), bool)
    if reject:
        used = ~((scores > _LIMIT) & (deviations > _RATIO * np.median(deviations)))
    kept = [result for result, good in zip(results, used, strict=True) if good]
    g2, g2_err = weighted_average(curves[used], errors[used])
    averaged = replace(
        kept[0],
        g2=g2,
        g2_err=g2_err,
        n_pairs=np.sum([result.n_pairs for result in kept], axis=0),
        n_frames=sum(result.n_frames for result in kept),
        overview=_average_overview(kept),
        parts=tuple(replace(result, parts=(), g2_groups=None) for result in kept),
        g2_groups=None,
        warnings=tuple(dict.fromkeys(text for result in kept for text in result.warnings)),
    )
    return AveragedResults(averaged, files, deviations, scores, used, read[0].metadata)


def weighted_average(curves: Array, errors: Array) -> tuple[Array, Array]:
    """Return the average [...] of curves [n, ...] with weights 1 / errors^2, and its error.

    Curves that are NaN at a point do not contribute to it.
    """
    finite = np.isfinite(curves)
    usable = ((np.isfinite(errors) & (errors > 0)) | ~finite).all(axis=0) & finite.any(axis=0)
    weights = np.where(finite, 1 / np.where(usable & finite, errors, 1.0) ** 2, 0.0)
    total = weights.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        average = (weights * np.where(finite, curves, 0.0)).sum(axis=0) / total
        return average, np.where(usable, 1 / np.sqrt(total), np.nan)


def _scores(curves: Array, errors: Array, pairs: Any) -> tuple[Array, Array]:
    """Return deviations from the median curve and their modified z-scores, each [n]."""
    known = np.isfinite(curves).all(axis=0) & (pairs >= _PAIRS)[:, None]
    signals = curves.copy()
    for k in np.flatnonzero(known.any(axis=0)):
        signals[:, :, k] -= curves[:, np.flatnonzero(known[:, k])[-_LAST:], k].mean(1)[:, None]
    usable = known & (np.isfinite(errors) & (errors > 0)).all(axis=0)
    if not usable.any():
        return np.zeros(len(curves)), np.full(len(curves), np.nan)
    distance = (signals - np.median(signals, axis=0))[:, usable] / errors[:, usable]
    deviations = np.sqrt((distance**2).mean(axis=1))
    if len(curves) < _LEAST:
        return deviations, np.full(len(curves), np.nan)
    centred = deviations - np.median(deviations)
    scatter = np.median(np.abs(centred))
    return deviations, 0.6745 * centred / max(scatter, 1e-300)


def _differences(
    one: MultiTauResult, other: MultiTauResult, metadata: Any, other_metadata: Any
) -> list[str]:
    """Return the names of properties in which two results differ, with values of numbers."""
    names = []
    for name in ("bins", "q", "phi", "delay"):
        pair = [getattr(result, name) for result in (one, other)]
        if any(x is None for x in pair):
            same = pair[0] is pair[1]
        else:
            same = pair[0].shape == pair[1].shape and np.allclose(pair[0], pair[1], 1e-6, 0)
        if not same:
            sizes = ["none" if x is None else len(x) for x in pair]
            names.append(name + (f" ({sizes[1]}, not {sizes[0]})" if sizes[0] != sizes[1] else ""))
    for name in ("dynamic", "static"):
        if not np.array_equal(getattr(one.qmap, name), getattr(other.qmap, name)):
            names.append(f"the {name} map of bins")
    numbers = [("frame_time", one.frame_time, other.frame_time)]
    keys = ("energy", "distance", "pixel_size", "x_pixel_size", "y_pixel_size")
    numbers += [(key, metadata.get(key), other_metadata.get(key)) for key in keys]
    numbers += [(key, one.config.get(key), other.config.get(key)) for key in _SETTINGS]
    for name, value, found in numbers:
        same = value is found or (value is not None and found is not None)
        if same and value is not None:
            known = np.asarray(value, float)
            same = np.allclose(known, np.asarray(found, float), rtol=1e-6, atol=0, equal_nan=True)
        if not same:
            names.append(f"{name} ({found}, not {value})")
    return names


def _average_overview(results: list[MultiTauResult]) -> Overview | None:
    """Average images and means, weighted by the number of frames; intensities are concatenated."""
    overviews = [result.overview for result in results]
    known = [overview for overview in overviews if overview is not None]
    if len(known) < len(results):
        return None
    weights = [result.n_frames for result in results]

    def mean(name: str) -> Array:
        return np.average([getattr(x, name) for x in known], axis=0, weights=weights)

    return Overview(
        mean("mean_image"),
        np.concatenate([x.intensity for x in known]),
        mean("static_means"),
        mean("static_means_parts"),
    )
