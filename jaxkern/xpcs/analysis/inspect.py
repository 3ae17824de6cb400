"""HTML pages about data before they are correlated or fitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.analysis import correlation_plots, fit_plots
from jaxkern.xpcs.analysis.html_page import Page
from jaxkern.xpcs.correlators.checks import suspect_pixels
from jaxkern.xpcs.correlators.frame_sums import OverviewSums
from jaxkern.xpcs.correlators.results import Overview
from jaxkern.xpcs.correlators.selection import FrameSelection, has_integer_counts, time_step
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.opening import open_frames, without_dead_pixels
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.aps import ApsFile
from jaxkern.xpcs.files.sources import values
from jaxkern.xpcs.fitting.sampling import (
    estimate_contrast_offset,
    estimate_sigma,
    frames_without_numbers,
    read_sample,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# A frame is conspicuous if its intensity differs from the median of its neighbours by this many
# standard deviations, which 1 of 10^9 normally distributed intensities does.
_DEVIATIONS = 6.0
_NEIGHBOURS = 100
# Sides of the maps of matrices, and their largest number.
_SHOWN, _MOST_MAPS = 300, 6
_MOST_ROWS = 200
# Largest number of characters of a list of frames.
_MOST_LISTED = 300


def inspect_frames(
    path: Path,
    output: Path,
    qmap: QMap | None = None,
    *,
    frame_shape: tuple[int, int] | None = None,
    dataset: str | None = None,
    frame_time: float | None = None,
    progress: bool = False,
) -> Path:
    """Write a page about a file of frames or events: intensity, detector, bins, doubtful data.

    All frames are read once.

    Args:
      path, frame_shape, dataset: as `jaxkern.xpcs.open_frames`.
      output: the page.
      qmap: the bins; without it pixels are not compared with those of their bin.
      frame_time: seconds between frames; None for that of the file.
      progress: show a progress bar.
    """
    shape = qmap.shape if qmap is not None else frame_shape
    with open_frames(path, shape, dataset) as source:
        n, height, width = source.shape
        used = without_dead_pixels(
            QMap(np.ones((height, width), int)) if qmap is None else qmap, source
        )
        integer = has_integer_counts(source)
        sums, selection = OverviewSums(used, integer, 1, n), FrameSelection(n)
        with ProgressBar(progress, f"reading {n:,} frames", "pass"):
            sums.add_all(source, selection)
        overview = sums.overview()
        step = time_step(frame_time, source)
        suspects = {} if qmap is None else suspect_pixels(overview, used, n, integer)
        page = Page(f"Frames of {path.name}", f"{source!r}; {used if qmap else 'no map of bins'}")
        _add_frames(page, source, overview, step, used.n_pixels if integer else None)
        _add_detector(page, source, overview, used, suspects, with_bins=qmap is not None)
    return page.write(output)


def unusual_frames(intensity: Array, pixels: int | None = None) -> NDArray[np.intp]:
    """Return the frames whose intensity is not finite or unlike that of their neighbours.

    The scatter is the median of the absolute deviations from the medians of blocks of frames, or
    their standard deviation if the median is 0.

    Args:
      intensity: [n] mean counts of a pixel.
      pixels: number of pixels, if the counts are photons: their noise is allowed for, with
        Bernstein's inequality for Poisson counts.
    """
    finite = np.isfinite(intensity)
    if not finite.any():
        return np.flatnonzero(~finite)
    starts = np.arange(0, len(intensity), _NEIGHBOURS)
    level = np.array(
        [np.median(x[np.isfinite(x)]) if np.isfinite(x).any() else 0.0
         for x in np.split(intensity, starts[1:])]
    )  # fmt: skip
    deviation = intensity - np.repeat(level, _NEIGHBOURS)[: len(intensity)]
    scatter = 1.4826 * float(np.median(np.abs(deviation[finite])))
    if scatter == 0:
        scatter = float(np.std(deviation[finite]))
    allowed = max(_DEVIATIONS * scatter, 1e-12)
    if pixels is not None:
        exponent, photons = _DEVIATIONS**2 / 2, float(np.mean(intensity[finite])) * pixels
        noise = np.sqrt(2 * exponent * photons) + exponent / 3
        allowed = max(allowed, noise / pixels)
    with np.errstate(invalid="ignore"):
        unusual = np.abs(deviation) > allowed
    return np.flatnonzero(~finite | unusual)


def frame_list(frames: Sequence[int] | NDArray[Any]) -> str:
    """Return numbers as --bad-frames takes them, such as 7,100-120."""
    frames = np.asarray(frames, np.int64)
    runs = np.split(frames, np.flatnonzero(np.diff(frames) != 1) + 1) if len(frames) else []
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _add_frames(
    page: Page, source: FrameSource, overview: Overview, step: float | None, pixels: int | None
) -> None:
    intensity = overview.intensity
    tenth = max(len(intensity) // 10, 1)
    first, last = np.nanmean(intensity[:tenth]), np.nanmean(intensity[-tenth:])
    unusual = unusual_frames(intensity, pixels)
    page.heading("Intensity")
    page.values(
        {
            "frames": len(intensity),
            "time between frames (s)": "unknown" if step is None else float(step),
            "duration (s)": "unknown" if step is None else float(step * len(intensity)),
            "mean counts of a pixel in a frame": float(np.nanmean(intensity)),
            "standard deviation of a frame's mean": float(np.nanstd(intensity)),
            "last tenth of the run over the first": float(last / first) if first else "undefined",
            "frames without counts": int((intensity == 0).sum()),
        }
    )
    if listed := frame_list(unusual):
        text = "Unusual intensities; to leave them out: --bad-frames "
        if len(listed) > _MOST_LISTED:
            text = f"{len(unusual):,} frames have unusual intensities, the first of them: "
            listed = listed[: listed.rindex(",", 0, _MOST_LISTED)]
        page.remarks([text + listed])
    figure = correlation_plots.plot_intensity(overview, step)
    page.figure(figure, "Mean counts of a pixel in each frame")
    if source.metadata:
        page.heading("File")
        page.values({name: str(value) for name, value in source.metadata.items()})


def _add_detector(
    page: Page, source: FrameSource, overview: Overview, qmap: QMap, suspects: dict[int, str],
    with_bins: bool,
) -> None:  # fmt: skip
    assert overview.mean_square is not None
    mean, square = overview.mean_image, overview.mean_square
    dark = (mean == 0) & qmap.mask
    page.heading("Detector")
    marked = 0 if source.dead is None else int(source.dead.sum())
    page.values(
        {
            "pixels": mean.size,
            "pixels that the file marks as dead": marked,
            "pixels in bins" if with_bins else "pixels that are not dead": qmap.n_pixels,
            "of these without any counts": int((dark & qmap.used).sum()),
            "largest mean counts of a pixel": float(np.nanmax(mean)) if mean.size else 0.0,
        }
    )  # fmt: skip
    page.figure(correlation_plots.plot_detector(overview, qmap), "Mean image and bins")
    if not with_bins:
        page.text("Pass --qmap for bins, and to compare pixels with the others of their bin.")
        return
    if suspects:
        page.heading("Suspect pixels")
        page.remarks(
            [f"{len(suspects):,} pixels of the map are unlike their bin; to leave them out: "
             "--hot-pixels mask"]
        )  # fmt: skip
        positions = [(*divmod(pixel, qmap.shape[1]), why) for pixel, why in suspects.items()]
        names = ("row", "column", "reason")
        page.table([dict(zip(names, one, strict=True)) for one in positions[:_MOST_ROWS]])
    page.heading("Bins")
    page.text(
        "The excess variance is that of a pixel's counts over time without photon noise, divided "
        "by the squared mean, on average over the pixels of a bin that are not suspect. Speckles "
        "that move give the contrast, static ones 0; a drifting intensity adds to it."
    )
    rows = []
    labels = np.where(qmap.used, qmap.dynamic, 0)
    suspect = np.zeros(mean.shape, bool)
    suspect.flat[list(suspects)] = True
    for number in range(1, min(qmap.n_dynamic, _MOST_ROWS) + 1):
        inside = labels == number
        m, s = mean[inside & ~suspect], square[inside & ~suspect]
        total = float((m**2).sum())
        row: dict[str, Any] = {"bin": number}
        row |= {} if qmap.q is None else {"q (1/Angstrom)": float(qmap.q[number - 1])}
        row |= {} if qmap.phi is None else {"phi (deg)": float(qmap.phi[number - 1])}
        row |= {
            "pixels": int(inside.sum()),
            "without counts": int((mean[inside] == 0).sum()),
            "suspect": int((inside & suspect).sum()),
            "mean counts": float(m.mean()) if len(m) else None,
            "excess variance": float((s - m**2 - m).sum()) / total if total else None,
        }
        rows.append(row)
    page.table(rows)


def inspect_matrices(path: Path, output: Path, *, progress: bool = False) -> Path:
    """Write a page about a file of two-time correlations: contrast, noise, empty frames, maps.

    Args:
      path: as `jaxkern.xpcs.ApsFile`.
      output: the page.
      progress: show a progress bar.
    """
    with ApsFile(path) as file, ProgressBar(progress, "reading", "matrices") as bar:
        count, n_t, _ = file.shape
        sample = read_sample(file, np.ones(n_t, bool))
        contrast, offset = estimate_contrast_offset(sample)
        sigma = estimate_sigma(sample)
        empty = frames_without_numbers(sample)
        chosen = fit_plots.chosen_angles(count, _MOST_MAPS, None)
        maps = []
        for done, angle in enumerate(chosen):
            bar.update(done, len(chosen))
            maps.append(_thumbnail(file, angle))
        page = Page(
            f"Two-time correlations of {path.name}",
            f"{count} matrices of {n_t} frames, layout {file.layout}, "
            + ("time between frames unknown" if file.dt is None else f"{file.dt:.6g} s apart"),
        )
        dead = ~np.isfinite(sample.values).any(axis=(1, 2))
        without = (("frames", empty), ("matrices", np.flatnonzero(dead)))
        page.remarks(f"{name} without numbers: {frame_list(k)}" for name, k in without if len(k))
        page.heading("Matrices")
        page.text(
            "Contrast and baseline are those of the smallest and the largest lags; noise is the "
            "standard deviation of a point, from differences of neighbours along the diagonals."
        )
        estimates = (np.where(dead, np.nan, x) for x in (contrast, offset, sigma))
        columns = [x.tolist() for x in (np.arange(count), file.q, file.phi, *estimates)]
        names = ("matrix", "q (1/Angstrom)", "phi (deg)", "contrast", "baseline", "noise")
        page.table([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
        page.heading("Maps")
        labels = [f"matrix {k}, q {file.q[k]:.4g}, {file.phi[k]:.4g} deg" for k in chosen]
        step = 1.0 if file.dt is None else file.dt
        figure = _plot_thumbnails(maps, labels, n_t * step, "frames" if file.dt is None else "s")
        page.figure(figure, "g2 of evenly spread matrices, without the diagonal")
    return page.write(output)


def _thumbnail(file: ApsFile, angle: int) -> Array:
    """Return means of k x k points of a matrix, without its diagonal."""
    n_t = file.shape[1]
    block = -(-n_t // _SHOWN)
    starts = np.arange(0, n_t, block)
    rows = []
    for first in range(0, n_t, block):
        stop = min(first + block, n_t)
        part = np.array(values(file, file.read(angle, first, stop)), np.float64)
        part[np.arange(stop - first), np.arange(first, stop)] = np.nan
        known = np.isfinite(part)
        total = np.add.reduceat(np.where(known, part, 0).sum(0), starts)
        number = np.add.reduceat(known.sum(0), starts)
        rows.append(np.where(number > 0, total / np.maximum(number, 1), np.nan))
    return np.stack(rows)


def _plot_thumbnails(
    maps: Sequence[Array], labels: Sequence[str], length: float, unit: str
) -> Figure:
    columns = min(3, len(maps))
    lines = -(-len(maps) // columns)
    figure = fit_plots.new_figure(3.5 * columns, 3.1 * lines)
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in grid[len(maps) :]:
        axes.set_axis_off()
    for axes, image, label in zip(grid, maps, labels, strict=False):
        low, high = fit_plots.percentiles(image, [1, 99], (0.0, 1.0))
        options: Any = {"vmin": low, "vmax": high, "origin": "lower", "extent": (0, length) * 2}
        fit_plots.draw_image(figure, axes, image, **options)
        axes.set_title(label, fontsize=8)
        fit_plots.label_axes(axes, f"t2 ({unit})", f"t1 ({unit})")
    return figure
