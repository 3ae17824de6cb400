"""Correlations of events (pixel, frame, count): `multitau_events` and `twotime_events`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.correlators.hot_pixels import HotPixels
from jaxkern.xpcs.correlators.multitau import multitau
from jaxkern.xpcs.correlators.results import MultiTauResult, TwoTimeResult
from jaxkern.xpcs.correlators.two_time import twotime
from jaxkern.xpcs.correlators.two_time_reduction import Form, Smoothing
from jaxkern.xpcs.detectors.events import MOST, GivenEvents
from jaxkern.xpcs.detectors.qmap import QMap


def multitau_events(
    pixel: Any,
    frame: Any,
    count: Any,
    n_frames: int,
    qmap: QMap,
    dpl: int = 4,
    normalize: bool = False,
    bad_frames: Sequence[int] | NDArray[Any] | None = None,
    begin: int = 0,
    end: int | None = None,
    stride: int = 1,
    average: int = 1,
    *,
    intensity_cut: tuple[float | None, float | None] | None = None,
    mask: Any = None,
    hot_pixels: HotPixels = "ignore",
    bins: Sequence[int] | NDArray[Any] | None = None,
    parts: int = 0,
    frame_time: float | None = None,
    overview: bool = False,
    progress: bool = True,
) -> MultiTauResult:
    """g2 of the dynamic bins of a map at multi-tau delays, of events: what `multitau` gives, bit by
    bit, of the frames that they make.

    Events are sorted by pixel, and a pixel's counts correlated as a list, until its sums of frames
    grow dense: the work goes with the events and not with frames times pixels. Where they do not
    fit half of the free memory, they are taken in parts, by pixels. `normalize`, and Python without
    the native kernels, make frames of them block by block.

    Args:
      pixel: [M] whole numbers, row * W + column.
      frame: [M] whole numbers, in any order.
      count: [M] whole numbers of 0 or more; counts of one pixel in one frame are added.
      n_frames: how many frames there are, with those that have no events.
      qmap, and all others: as of `multitau`.

    Raises:
      ValueError: as `multitau`; for events whose pixel or frame is not there, or whose count is
        negative, with their place; and for a pixel of the map whose counts sum to 2^32 - 1 or more.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> rng = np.random.default_rng(0)
      >>> pixel, frame = rng.integers(0, 64, 5000), rng.integers(0, 1000, 5000)
      >>> qmap = jk.xpcs.QMap(np.ones((8, 8), int))
      >>> r = jk.xpcs.multitau_events(pixel, frame, np.ones(5000, int), 1000, qmap)
      >>> r
      MultiTauResult(1 bins of 64 pixels, 34 delays to 768 frames, 1000 frames)
    """
    n_frames = check_integer("n_frames", n_frames, 0, MOST)
    return multitau(
        GivenEvents(pixel, frame, count, qmap.shape, n_frames),
        qmap,
        dpl,
        normalize,
        bad_frames,
        begin,
        end,
        stride,
        average,
        intensity_cut=intensity_cut,
        mask=mask,
        hot_pixels=hot_pixels,
        bins=bins,
        parts=parts,
        frame_time=frame_time,
        overview=overview,
        progress=progress,
    )


def twotime_events(
    pixel: Any,
    frame: Any,
    count: Any,
    n_frames: int,
    qmap: QMap,
    smoothing: Smoothing = "static",
    form: Form = "full",
    *,
    dtype: DTypeLike = np.float64,
    bins: Sequence[int] | NDArray[Any] | None = None,
    begin: int = 0,
    end: int | None = None,
    stride: int = 1,
    average: int = 1,
    bad_frames: Sequence[int] | NDArray[Any] | None = None,
    intensity_cut: tuple[float | None, float | None] | None = None,
    normalize: bool = False,
    mask: Any = None,
    hot_pixels: HotPixels = "ignore",
    frame_time: float | None = None,
    overview: bool = False,
    out: Any = None,
    progress: bool = True,
) -> TwoTimeResult:
    """Two-time correlations of each dynamic bin, of events: what `twotime` gives of the frames that
    they make, but for the last bits.

    Events are sorted by pixel, and C comes row by row from pairs of events of a pixel: the work
    goes with the pairs. `.g2`, the mean of each diagonal, has all linear delays; with a `form`
    other than "full" no N x N matrix is kept on the way to it. `normalize` together with `average`,
    and Python without the native kernels, make frames of them block by block.

    Args:
      pixel, frame, count, n_frames: as of `multitau_events`.
      qmap, and all others: as of `twotime`.

    Raises:
      ValueError: as `twotime` and `multitau_events`; like there, a pixel of the map whose counts
        sum to 2^32 - 1 or more is refused.
      MemoryError: as `twotime`.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> rng = np.random.default_rng(0)
      >>> pixel, frame = rng.integers(0, 64, 5000), rng.integers(0, 200, 5000)
      >>> qmap = jk.xpcs.QMap(np.ones((8, 8), int))
      >>> c = jk.xpcs.twotime_events(
      ...     pixel, frame, np.ones(5000, int), 200, qmap, form=("age-lag", 2, 10, 5)
      ... )
      >>> c.c2.shape, c.g2.shape
      ((1, 2, 17), (200, 1))
    """
    n_frames = check_integer("n_frames", n_frames, 0, MOST)
    return twotime(
        GivenEvents(pixel, frame, count, qmap.shape, n_frames),
        qmap,
        smoothing,
        form,
        dtype=dtype,
        bins=bins,
        begin=begin,
        end=end,
        stride=stride,
        average=average,
        bad_frames=bad_frames,
        intensity_cut=intensity_cut,
        normalize=normalize,
        mask=mask,
        hot_pixels=hot_pixels,
        frame_time=frame_time,
        overview=overview,
        out=out,
        progress=progress,
    )
