"""Two-time correlations of frames or events: `twotime` and `twotime_events`."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import available_bytes
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.checks import (
    HotPixels,
    PreparedRun,
    empty_frames,
    rows_and_columns,
    takes_options_of,
)
from jaxkern.xpcs.correlators.native import CorrelationProgress, computed_ahead, native_module
from jaxkern.xpcs.correlators.results import TwoTimeResult
from jaxkern.xpcs.correlators.selection import EventMemory, FrameSelection
from jaxkern.xpcs.correlators.two_time_dense import DenseProducts
from jaxkern.xpcs.correlators.two_time_reduction import (
    Form,
    Smoothing,
    TwoTimeReduction,
    Weights,
    check_form,
    check_smoothing,
    form_edges,
)
from jaxkern.xpcs.detectors.frames import MAX_INDEX, RawEvents
from jaxkern.xpcs.detectors.opening import frames_and_map
from jaxkern.xpcs.detectors.qmap import QMap

_WORD_BYTES = 8  # largest size of a sorted event
_BLOCK_BYTES = 2**25  # size of a block of rows of C
_MAX_ROWS = 512


def twotime(
    frames: Any,
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
    """Compute two-time correlations C(t1, t2) of each dynamic bin.

    With the mean of a pixel's static bin in each frame as its weight,

        w[p, t]   = I[p, t] / (mean of I[., t] over p's static bin; 1 where that is 0)
        C[t1, t2] = P sum_p w[p, t1] w[p, t2] / (sum_p w[p, t1] sum_p w[p, t2])

    over the P pixels of the dynamic bin. If sum_p w[p, t] is 0, the frame has no counts in the bin
    and C is undefined: it is NaN in this row and column, and averages skip it. Sums of integer
    counts are exact, so that the result does not depend on threads or blocks.

    Args:
      frames: an array [N, H, W] or [N, H * W], a `FrameSource`, or a path. A sparse source is
        correlated as events, see `twotime_events`.
      qmap: the bins of the pixels.
      smoothing: "static", or "none" for w = I.
      form: "full", the whole matrix C; ("t1t2", n), means over n x n equal cells; ("age-lag",
        n_age, decade, n_lag), means over n_age equal cells of the age (t1 + t2) / 2 and cells of
        the lag t2 - t1, which are single lags below `decade` and n_lag cells per decade from there.
        A cell holds the mean over its pairs t1 <= t2 of good frames with counts in the bin, or NaN
        without such pairs. The last two forms do not need N x N numbers; n and n_age are at most N.
      dtype: dtype of `c2`, float64 or float32.
      bins, begin, end, stride, average, intensity_cut: see `multitau`.
      mask, hot_pixels, frame_time, overview, progress: see `multitau`.
      bad_frames: numbers of frames, counted from the first frame of the source, that are left out:
        C is NaN where a sum holds no good frame, and means skip it.
      normalize: divide each frame by its mean over the pixels with mask 1, in float64. This changes
        C only if frames are summed (`average`), since the scale of a sum cancels.
      out: destination of C: an array, a memory map or an HDF5 data set of the shape of `c2`.

    Raises:
      ValueError: frames of another shape than the map, no frame, unknown bins, an invalid form or
        `out`, or counts that do not fit into 32 bits.
      MemoryError: C does not fit into memory.

    Warns:
      CorrelationWarning: bins without pixels, pixels with NaN, hot pixels, or a bin in which more
        than 1% of the good frames have no counts. The texts are also in `warnings` of the result.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> frames = np.random.default_rng(0).poisson(2.0, (50, 4, 6)).astype(np.uint8)
      >>> c = jk.xpcs.twotime(frames, jk.xpcs.QMap(np.ones((4, 6), int)))
      >>> c.c2.shape, c.g2.shape
      ((1, 50, 50), (50, 1))
    """
    check_smoothing(smoothing)
    with (
        frames_and_map(frames, qmap, mask) as (source, masked),
        jax.enable_x64(True),
        CorrelationProgress(progress, "two-time") as bar,
    ):
        selection = FrameSelection(source.shape[0], begin, end, stride, average, bad_frames)
        selection.check_length(source, 1)
        form_edges(check_form(form), selection.n)  # raises before frames are read
        run = PreparedRun(
            source, qmap, masked, selection, bar, bins=bins, mask=mask, hot_pixels=hot_pixels,
            intensity_cut=intensity_cut, frame_time=frame_time, overview=overview,
        )  # fmt: skip
        # The scale of a sum of frames cancels in C. Only the scales within a sum matter.
        run.apply_cut(normalize and average > 1)
        selection, labels = run.selection, run.labels
        good = selection.good_counts() > 0
        reduction = TwoTimeReduction(len(labels.bins), good, form, dtype, out)
        native = native_module() if source.is_sparse and run.divisor is None else None
        with rows_and_columns(qmap.shape[1]):
            if native is not None:
                _correlate_events(native, run, smoothing, reduction)
            else:
                DenseProducts(run, smoothing, reduction).correlate()
        if run.sums is not None:
            run.sums.add_all(source, selection)
        config = {
            "smoothing": smoothing,
            "form": reduction.form,
            "normalize": bool(normalize),
            "intensity_cut": run.cut,
        }
        result = reduction.result(labels.fields(selection, run.time_step, config))
        assert result.n_pairs is not None
        run.check_nan(result.g2, result.n_pairs)
        run.messages += empty_frames(result)
    return run.complete(result)


@takes_options_of(twotime)
def twotime_events(
    pixel: Any, frame: Any, count: Any, n_frames: int, qmap: QMap, *arguments: Any, **options: Any
) -> TwoTimeResult:
    """Compute two-time correlations of events, equal to `twotime` of the frames that they form.

    The last bits may differ. The work is proportional to the number of pairs of events of a pixel.
    With a `form` other than "full", `.g2` at all linear delays does not need an N x N matrix. With
    `normalize` and `average` together, and without the native kernels, frames are formed block by
    block.

    Args:
      pixel, frame, count, n_frames: as in `multitau_events`.
      qmap: the bins of the pixels.
      **options: all others, as in `twotime`.

    Raises:
      ValueError: as in `twotime` and `multitau_events`.
      MemoryError: as in `twotime`.

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
    n_frames = check_integer("n_frames", n_frames, 0, MAX_INDEX)
    source = RawEvents(pixel, frame, count, qmap.shape, n_frames)
    return twotime(source, qmap, *arguments, **options)


def _correlate_events(
    native: ModuleType, run: PreparedRun, smoothing: Smoothing, reduction: TwoTimeReduction
) -> None:
    """Pass blocks of rows of C of each bin to the reduction, in groups whose events fit."""
    events, n = EventMemory.from_source(run.source), run.selection.n
    step = int(np.clip(_BLOCK_BYTES // (8 * n), 1, _MAX_ROWS))
    qmap, bins = run.qmap, run.labels.bins
    dynamic, static = (x.ravel()[qmap.pixels] for x in (qmap.dynamic, qmap.static))
    # (index in the result, pixels ordered by static bin, numbers of pixels of the static bins)
    groups: list[tuple[int, NDArray[np.int32], NDArray[np.int64]]] = []
    for index in np.flatnonzero(np.isin(bins, dynamic)).tolist():
        inside = dynamic == bins[index]
        counts = np.array([np.count_nonzero(inside)])
        if smoothing == "static":
            counts = np.unique(static[inside], return_counts=True)[1]
        groups.append((index, qmap.pixels[inside], counts.astype(np.int64)))
    run.bar.begin(n * len(groups), 0)
    parts = min(-(-2 * _WORD_BYTES * events.size // max(available_bytes(), 1)), len(groups))
    size = max(-(-len(groups) // max(parts, 1)), 1)
    for k in range(0, len(groups), size):
        group = groups[k : k + size]
        pairs = native.EventPairs(
            *events.arguments,
            *events.frames(run.selection),
            np.concatenate([pixels for _, pixels, _ in group]),
            np.cumsum(np.concatenate([counts for *_, counts in group])),
            num_threads(),
        )
        totals, first = pairs.totals(), 0
        for index, _, counts in group:
            stop = first + len(counts)
            weights = Weights.from_sums(totals[first:stop], counts, smoothing)
            reduction.begin(index, weights.lit)
            calls = [(pairs, first, weights, row, min(step, n - row)) for row in range(0, n, step)]
            blocks = computed_ahead(_event_rows, calls, "jaxkern-two-time")
            for row, block in zip(range(0, n, step), blocks, strict=True):
                reduction.add(index, row, row, block)
                run.bar.advance(len(block))
            first = stop


def _event_rows(
    pairs: Any, first: int, weights: Weights, row: int, count: int
) -> NDArray[np.float64]:
    """Return `count` rows of C from the diagonal on, of a bin whose first static bin is `first`."""
    block = np.empty((count, len(weights.totals) - row))
    scale = np.ascontiguousarray(weights.factors), weights.totals, float(weights.pixels)
    pairs.rows(first, *scale, row, block, num_threads())
    return block
