"""Two-time correlations of frames: `twotime`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators import two_time_products as products
from jaxkern.xpcs.correlators.bin_checks import (
    check_empty_bins,
    empty_frames,
    nan_bins,
    rows_and_columns,
    warn_of,
)
from jaxkern.xpcs.correlators.blocks import is_whole
from jaxkern.xpcs.correlators.frame_sums import FrameMeans, intensity_limits
from jaxkern.xpcs.correlators.hot_pixels import (
    HotPixels,
    check_hot_pixels,
    find_suspects,
    hot_pixel_messages,
    mask_suspects,
)
from jaxkern.xpcs.correlators.labels import BinLabels, time_step
from jaxkern.xpcs.correlators.native_sums import native_module
from jaxkern.xpcs.correlators.overview import OverviewSums
from jaxkern.xpcs.correlators.progress import CorrelationProgress
from jaxkern.xpcs.correlators.results import TwoTimeResult
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.correlators.two_time_events import EventRows
from jaxkern.xpcs.correlators.two_time_products import Piece, Tiles
from jaxkern.xpcs.correlators.two_time_reduction import (
    Form,
    Smoothing,
    TwoTimeReduction,
    Weights,
    check_form,
    check_smoothing,
    form_edges,
    twotime_result,
)
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.opening import frames_and_map
from jaxkern.xpcs.detectors.qmap import QMap

_PIECE = 16384  # pixels at most that are multiplied in one call
_PIECE_BYTES = 2**30  # of their counts, at most
_STAGED_BYTES = 2**30  # of counts that are kept between products
_PAIRS = 16  # tiles that are made at a time, and taken in while the next ones are


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
    """Two-time correlations C(t1, t2) of each dynamic bin.

    With the mean of a pixel's static bin in each frame as its weight,

        w[p, t]   = I[p, t] / (mean of I[., t] over p's static bin; 1 where that is 0)
        C[t1, t2] = P sum_p w[p, t1] w[p, t2] / (sum_p w[p, t1] sum_p w[p, t2])

    over the P pixels of the dynamic bin. Where sum_p w[p, t] is 0, the frame has no counts in the
    bin and C is undefined: NaN in its row and column, and left out of all averages. Sums of whole
    counts are exact, so that neither threads nor blocks change a bit. Products go through XLA's
    matrix product.

    Args:
      frames: an array [N, H, W] or [N, H * W], a `FrameSource`, or a path. Events of a sparse
        source are correlated as they are, as by `twotime_events`.
      qmap: which bins the pixels belong to.
      smoothing: "static", or "none" for w = I.
      form: "full", all of C; ("t1t2", n), means over n x n equal cells; ("age-lag", n_age, decade,
        n_lag), means over n_age equal cells of the age (t1 + t2) / 2, and of the lag t2 - t1 over
        every lag below `decade` and then n_lag cells a decade. A cell holds the mean over its pairs
        t1 <= t2 of good frames with counts in the bin, NaN where there are none. Both need no
        matrix of N x N; n and n_age are at most N.
      dtype: of `c2`, float64 or float32.
      bins: the dynamic bins that are wanted, by default all.
      begin, end, stride, average: frames `begin` to `end` (exclusive), every `stride`-th, sums of
        `average` neighbours.
      bad_frames: numbers of frames, counted from the first of all, that are left out: C is NaN
        where a sum holds no good frame, and means leave it out.
      intensity_cut: (low, high): frames whose light on the map's pixels is less than `low` or more
        than `high` times the median frame's are bad too; None is no limit.
      normalize: divide each frame by its mean over the pixels with mask 1, in float64. C depends on
        it only where frames are summed (`average`): the scale of a sum cancels.
      mask: [H, W], true where a pixel is good, besides the mask of `qmap`.
      hot_pixels: "report" or "mask", each with one more pass over the frames; see `multitau`.
      frame_time: from a frame to the next in s, before stride and average; by default what the
        frames' metadata say.
      overview: mean image, intensity in time and static means too, from a pass of their own.
      out: where C goes, an array, a memory map or an HDF5 data set of `c2`'s shape.
      progress: a bar on the terminal.

    Returns:
      `TwoTimeResult`.

    Raises:
      ValueError: frames of another shape than the map's, fewer than one frame, bins that are not
        there, forms or an `out` of a wrong kind, and counts that do not fit into 32 bits.
      MemoryError: where memory has no room for C.

    Warns:
      CorrelationWarning: bins without pixels, pixels with NaN, hot pixels, or a bin in which more
        than 1% of the good frames have no counts. The result has the texts in `warnings`.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> frames = np.random.default_rng(0).poisson(2.0, (50, 4, 6)).astype(np.uint8)
      >>> c = jk.xpcs.twotime(frames, jk.xpcs.QMap(np.ones((4, 6), int)))
      >>> c.c2.shape, c.g2.shape
      ((1, 50, 50), (50, 1))
    """
    check_smoothing(smoothing)
    check_hot_pixels(hot_pixels)
    with (
        frames_and_map(frames, qmap, mask) as (source, living),
        jax.enable_x64(True),
        CorrelationProgress(progress, "two-time") as bar,
    ):
        selection = FrameSelection(source.shape[0], begin, end, stride, average, bad_frames)
        if selection.n < 1:
            raise ValueError(
                f"begin, end, stride and average leave none of the {source.shape[0]} frames of "
                f"{source.name}; wanted one or more"
            )
        form_edges(check_form(form), selection.n)  # refused before the frames are read
        limits = intensity_limits(intensity_cut)
        suspects = None
        if hot_pixels == "mask":
            suspects, living = mask_suspects(source, selection, living)
        labels = BinLabels(living, bins)
        notes = check_empty_bins(qmap, labels, source.dead, mask, source.name)
        step = time_step(frame_time, source)
        divisor = None
        # C does not depend on the scale of a frame, only on that of frames in one sum.
        divide = normalize and average > 1
        if limits is not None or divide:
            means = FrameMeans(source, living, selection, bar)
            divisor = means.divisors() if divide else None
            if limits is not None:
                selection = selection.leaving_out(means.beyond(*limits))
        good = selection.good_counts() > 0
        reduction = TwoTimeReduction(len(labels.bins), good, form, dtype, out)
        native = native_module() if source.is_sparse and divisor is None else None
        with rows_and_columns(qmap.shape[1]):
            run: EventRows | _Dense
            if native is not None:
                run = EventRows(
                    native, source, selection, living, smoothing, labels.bins, reduction, bar
                )
            else:
                run = _Dense(
                    source, selection, divisor, living, smoothing, labels.bins, reduction, bar
                )
            run.correlate()
        seen = None
        if overview or hot_pixels == "report":
            seen = OverviewSums(living, selection, is_whole(source))
            seen.add_all(source)
        config = {
            "smoothing": smoothing,
            "form": reduction.form,
            "normalize": bool(normalize),
            "intensity_cut": None if intensity_cut is None else tuple(intensity_cut),
        }
        result = twotime_result(reduction, selection, labels, step, config)
        assert result.n_pairs is not None
        pairs = result.n_pairs.reshape(len(result.g2), -1)
        finite = (np.isfinite(result.g2) | (pairs == 0)).all(axis=0)
        notes += nan_bins(finite, labels, source, selection)
        notes += empty_frames(result)
    if seen is not None and hot_pixels == "report":
        suspects = find_suspects(seen, source, selection, living)
    if suspects is not None:
        result.config["hot_pixels"] = suspects.places(living)
    notes += hot_pixel_messages(suspects, living, hot_pixels == "mask")
    wanted = seen.overview() if seen is not None and overview else None
    return replace(result, overview=wanted, warnings=warn_of(notes))


class _Bin:
    """A dynamic bin: its place in the result, and the pixels of its static bins in pieces.

    Attributes:
      pieces: of each static bin with pixels, lists of at most `most` pixels.
      pixels: [n_static] how many pixels these have.
    """

    def __init__(self, qmap: QMap, place: int, number: int, most: int) -> None:
        self.place = place
        static = qmap.static.ravel()[qmap.pixels]
        self.pieces: list[list[NDArray[np.int32]]] = []
        for s in np.flatnonzero(qmap.dynamic_of_static == number) + 1:
            first, stop = np.searchsorted(static, [s, s + 1])
            parts = -(-(stop - first) // most)
            self.pieces.append(np.array_split(qmap.pixels[first:stop], parts))
        self.pixels = np.array([sum(map(len, parts)) for parts in self.pieces], np.int64)

    def staged_bytes(self, tiles: Tiles, itemsize: int) -> int:
        widths = sum(products.padded_pixels(len(p)) for parts in self.pieces for p in parts)
        return widths * tiles.size * tiles.count * itemsize


class _Dense:
    """Goes over bins, tiles and pieces of pixels, and gives C to the reduction."""

    def __init__(
        self,
        source: FrameSource,
        selection: FrameSelection,
        divisor: NDArray[np.float64] | None,
        qmap: QMap,
        smoothing: Smoothing,
        wanted: NDArray[np.int64],
        reduction: TwoTimeReduction,
        bar: CorrelationProgress,
    ) -> None:
        self._source, self._selection, self._divisor = source, selection, divisor
        self._smoothing: Smoothing = smoothing
        self._reduction, self._bar = reduction, bar
        self._n = selection.n
        self._tiles = Tiles.of(self._n)
        self._itemsize = products.count_dtype(
            source.dtype, selection.average, divisor is not None
        ).itemsize
        # By the counts alone, not by what memory is free: the order of sums goes with the pieces.
        piece = min(_PIECE, max(_PIECE_BYTES // (self._itemsize * max(self._n, 1)), 64))
        found = (_Bin(qmap, place, int(number), piece) for place, number in enumerate(wanted))
        self._bins = [b for b in found if b.pieces]
        self._room = min(_STAGED_BYTES, max(available_bytes() // 4, 1))
        self._waiting: list[tuple[int, int, int, jax.Array]] = []
        self._taken, self._frames_told = 0, 0
        bar.begin(self._n, source.frame_bytes)

    def correlate(self) -> None:
        """All bins."""
        group: list[_Bin] = []
        held = 0
        for each in self._bins:
            size = each.staged_bytes(self._tiles, self._itemsize)
            # An array is gathered from bin by bin; a file is read once for as many as there is
            # room for.
            if group and (self._source.array is not None or held + size > self._room):
                self._correlate(group)
                group, held = [], 0
            if size > self._room:
                self._correlate_in_parts(each)
            else:
                group.append(each)
                held += size
        if group:
            self._correlate(group)
        self._take()

    def _stage(self, pixels: list[NDArray[np.int32]]) -> list[Piece]:
        return products.stage(self._source, self._selection, self._divisor, pixels, self._tiles)

    def _correlate(self, group: list[_Bin]) -> None:
        """Bins whose counts are all kept, from one reading of the frames."""
        staged = iter(self._stage([p for each in group for parts in each.pieces for p in parts]))
        for each in group:
            pieces = [[next(staged) for _ in parts] for parts in each.pieces]
            for at in self._batches(_PAIRS):
                self._pairs(each, at, iter(pieces))

    def _correlate_in_parts(self, each: _Bin) -> None:
        """A bin that is read piece by piece, again for as many tiles as there is room for."""
        for at in self._batches(max(self._room // (4 * 8 * self._tiles.size**2), 1)):
            pieces = ((self._stage([p])[0] for p in parts) for parts in each.pieces)
            self._pairs(each, at, pieces)

    def _batches(self, most: int) -> Iterator[list[tuple[int, int]]]:
        """The tiles on and above the diagonal, row by row, at most so many at a time."""
        every = iter(products.pairs(self._tiles))
        while batch := list(islice(every, most)):
            yield batch

    def _pairs(
        self, each: _Bin, at: list[tuple[int, int]], static_bins: Iterator[Iterable[Piece]]
    ) -> None:
        """C of some tiles, from the pieces of each static bin in turn."""
        totals = {pair: self._zeros() for pair in at}
        sums: list[NDArray[Any]] = []
        for k, pieces in enumerate(static_bins):
            matrix: dict[tuple[int, int], jax.Array] = {}
            light: Any = 0
            for piece in pieces:
                light = light + piece.sums
                for i, j in at:
                    made = products.multiply(piece.tiles[i], piece.tiles[j], piece.product)
                    before = matrix.get((i, j))
                    if before is None and len(each.pieces[k]) > 1:
                        before = self._zeros()
                    matrix[i, j] = made if before is None else products.add(before, made)
            sums.append(light)
            of_bin = Weights.of(light[None], each.pixels[k : k + 1], self._smoothing)
            factors = self._in_tiles(of_bin.factors[0])
            for i, j in at:
                totals[i, j] = products.fold(totals[i, j], matrix[i, j], factors[i], factors[j])
        weights = Weights.of(np.stack(sums), each.pixels, self._smoothing)
        self._reduction.begin(each.place, weights.lit)
        divisors, pixels = self._in_tiles(weights.totals), float(weights.pixels)
        made = [products.divide(totals[i, j], divisors[i], divisors[j], pixels) for i, j in at]
        # The tiles before are taken in while XLA is busy with these.
        self._take()
        self._waiting = [(each.place, i, j, c) for (i, j), c in zip(at, made, strict=True)]

    def _take(self) -> None:
        """Gives to the reduction what waits for it."""
        size = self._tiles.size
        for place, i, j, tile in self._waiting:
            height, width = (min(size, self._n - k * size) for k in (i, j))
            block = np.asarray(tile)[:height, :width]
            self._reduction.add(place, i * size, j * size, block)
            self._taken += 1
        self._waiting = []
        # What is done of all tiles, as frames.
        tiles = len(self._bins) * self._tiles.count * (self._tiles.count + 1) // 2
        frames = self._n * self._taken // max(tiles, 1)
        self._bar.advance(frames - self._frames_told)
        self._frames_told = frames

    def _zeros(self) -> jax.Array:
        return jnp.zeros((self._tiles.size, self._tiles.size), np.float64)

    def _in_tiles(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """[N] as [tiles, size], with ones behind."""
        tiled = np.ones(self._tiles.count * self._tiles.size)
        tiled[: self._n] = values
        return tiled.reshape(self._tiles.count, self._tiles.size)
