"""Multi-tau sums over the pixels of bins: by the native kernels, or in pure JAX without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.bins import BinnedPixels
from jaxkern.xpcs.correlators.g2 import BinSums, multitau_delays
from jaxkern.xpcs.correlators.native import CorrelationProgress, native_module, run_watched
from jaxkern.xpcs.correlators.selection import (
    COUNT_LIMIT,
    EventMemory,
    FrameSelection,
    selected_frames,
    summed,
)
from jaxkern.xpcs.correlators.twin import state_shapes, weighted_update
from jaxkern.xpcs.detectors.frames import FrameSource

# Pixels whose ratios are reduced together without the native kernels.
_TILE = 4096
_weighted_update = jax.jit(weighted_update, static_argnames="dpl", donate_argnums=range(2, 7))


def in_place_sums(
    native: ModuleType,
    source: FrameSource,
    selection: FrameSelection,
    ranges: Sequence[tuple[int, int]],
    pixels: BinnedPixels,
    dpl: int,
    divisor: NDArray[np.float64] | None,
    bar: CorrelationProgress,
) -> list[BinSums]:
    """Return the sums of frames in memory for each range (first, stop) of sums of frames.

    Args:
      divisor: [N * average], the number that each frame is divided by.
    """
    strips = len(np.unique(pixels.pixel // native.MULTITAU_STRIP))
    average, every, sums = selection.average, selection.bad_mask(), []
    for first, stop in ranges:
        bar.begin((stop - first) * average, source.frame_bytes)
        at = slice(first * average, stop * average)
        bad = every[at]
        call = partial(
            native.multitau,
            selected_frames(source, selection, first, stop),
            *_arguments(pixels),
            dpl=dpl,
            average=average,
            bad=bad.view(np.uint8) if bad.any() else None,
            divisor=None if divisor is None else divisor[at],
        )
        arrays = run_watched(call, strips * (stop - first), bar.set_fraction)
        sums.append(_bin_sums(arrays, pixels))
    return sums


def event_sums(
    native: ModuleType,
    source: FrameSource,
    selection: FrameSelection,
    ranges: Sequence[tuple[int, int]],
    pixels: BinnedPixels,
    dpl: int,
    bar: CorrelationProgress,
) -> list[BinSums]:
    """Return the sums of events, bit-identical to those of the frames that they form."""
    events, sums = EventMemory.from_source(source), []
    frame_bytes = events.size * events.event_bytes // max(selection.n, 1)
    for first, stop in ranges:
        bar.begin(stop - first, frame_bytes)
        call = partial(
            native.multitau_events,
            *events.arguments(),
            *events.frames(selection.part(first, stop)),
            *_arguments(pixels),
            dpl=dpl,
            bytes=available_bytes() / 2,
        )
        sums.append(_bin_sums(run_watched(call, events.size, bar.set_fraction), pixels))
    return sums


def make_pixel_sums(
    pixels: BinnedPixels, dpl: int, average: int, missing: NDArray[np.uint32], integer_counts: bool
) -> NativeSums | JaxSums:
    """Return empty sums of some pixels.

    Args:
      missing: [N], the number of bad frames in each of the N sums of frames that will be added.
      integer_counts: True if counts are integers.
    """
    native = native_module() if len(pixels) else None
    if native is None:
        return JaxSums(pixels, dpl, average, missing, integer_counts)
    return NativeSums(native, pixels, dpl, average, missing, integer_counts)


def pixel_tiles(pixels: BinnedPixels) -> NDArray[np.int64]:
    """Return the tile [P] of each pixel.

    The sums of tiles are added in order. Groups of pixels that consist of whole tiles therefore
    give the same bits as all pixels at once.
    """
    native = native_module() if len(pixels) else None
    if native is None:
        return np.arange(len(pixels)) // _TILE
    strips = np.unique(pixels.pixel // native.MULTITAU_STRIP, return_inverse=True)[1]
    return np.asarray(strips // native.MULTITAU_TILE_STRIPS)


def bytes_per_pixel(n: int, dpl: int, integer_counts: bool, weighted: bool) -> int:
    """Return the memory of a pixel's state for n sums of frames, of which some may be bad."""
    if native_module() is None:
        weighted = True
    return sum(
        rows * dtype.itemsize
        for rows, dtype in _native_state_shapes(n, dpl, integer_counts, weighted)
    )


class NativeSums:
    """Sums of one or more pixels, to which the native kernels add blocks of frames."""

    def __init__(
        self,
        native: ModuleType,
        pixels: BinnedPixels,
        dpl: int,
        average: int,
        missing: NDArray[np.uint32],
        integer_counts: bool,
    ) -> None:
        self._native, self._pixels = native, pixels
        first, last = pixels.pixel[[0, -1]]
        width = int(last) + 1 - int(first)
        # Frames are read in place if most of the pixels between the first and the last are used.
        self._first, self._gathered = int(first), width > 2 * len(pixels)
        self._columns = pixels.pixel - first
        if self._gathered:
            width = len(pixels)
            self._columns = np.arange(width, dtype=np.int32)
        delays = len(multitau_delays(len(missing), dpl))
        sums, dynamic = (3, delays, pixels.n_static), (delays, pixels.n_dynamic)
        # (shape, dtype) of the arrays that `multitau_reduce` carries between tiles
        self._carried_shapes: list[tuple[tuple[int, ...], type[np.generic]]] = [
            ((*sums, 2), np.uint64) if integer_counts else (sums, np.float64),
            (dynamic, np.float64),
            (dynamic, np.float64),
            ((pixels.n_dynamic,), np.int64),
        ]
        self._options = {
            "most_frames": len(missing),
            "dpl": dpl,
            "average": average,
            "missing": missing if missing.any() else None,
            "real": not integer_counts,
            "threads": num_threads(),
        }
        shapes = _native_state_shapes(len(missing), dpl, integer_counts, bool(missing.any()))
        self._state = [np.zeros((rows, width), dtype) for rows, dtype in shapes]
        self._width, self._seen, self._average = width, 0, average

    def add(
        self, frames: NDArray[Any], bad: NDArray[np.bool_], divisor: NDArray[np.float64] | None
    ) -> None:
        """Add frames [T * average, H * W], divided by `divisor`, without those in `bad`."""
        if self._gathered:
            counts = np.take(frames, self._pixels.pixel, axis=1)
        else:
            counts = frames[:, self._first : self._first + self._width]
        self._native.multitau_update(
            counts,
            self._seen,
            self._state,
            bad=bad.view(np.uint8) if bad.any() else None,
            divisor=divisor,
            **self._options,
        )
        self._seen += len(frames) // self._average

    def bin_sums(self, before: BinSums | None = None) -> BinSums:
        """Return the sums over bins, added to those of the preceding tiles of pixels."""
        carried = [np.zeros(*like) for like in self._carried_shapes]
        if before is not None:
            carried = before.carried
        options = {**self._options, "place": self._columns, "carried": carried}
        sums = sums_of_state(
            self._native, self._state, self._seen, self._width, self._pixels, options
        )
        return replace(sums, pixels=carried[-1], carried=carried)


class JaxSums:
    """The same by the pure-JAX implementation of the op, for which c is one more pixel."""

    def __init__(
        self,
        pixels: BinnedPixels,
        dpl: int,
        average: int,
        missing: NDArray[np.uint32],
        integer_counts: bool,
    ) -> None:
        self._pixels, self._dpl = pixels, dpl
        self._average, self._integer_counts = average, integer_counts
        self._good = average - missing.astype(np.int64)
        self._seen = 0
        delays = len(multitau_delays(len(missing), dpl))
        shapes = state_shapes(delays, len(pixels) + 1, dpl, not integer_counts)
        names = ("total", "g", "history", "g", "g")
        self._state: Any = [np.zeros(shapes[name], np.uint32) for name in names]

    def add(
        self, frames: NDArray[Any], bad: NDArray[np.bool_], divisor: NDArray[np.float64] | None
    ) -> None:
        good = self._good[self._seen : self._seen + len(frames) // self._average]
        counts = summed(np.take(frames, self._pixels.pixel, axis=1), self._average, bad, divisor)
        if self._integer_counts:
            # A negative or a very large count becomes a number that no valid total reaches.
            counts = counts.astype(np.int64)
            counts = np.where((counts >= 0) & (counts < COUNT_LIMIT), counts, COUNT_LIMIT)
        block = np.concatenate([counts, good[:, None]], axis=1)
        block = block.astype(np.uint32 if self._integer_counts else np.float64)
        with jax.enable_x64(True):
            self._state = _weighted_update(block, np.int32(self._seen), *self._state, dpl=self._dpl)
        self._seen += len(good)

    def bin_sums(self, before: BinSums | None = None) -> BinSums:
        dtype = np.int64 if self._integer_counts else np.float64
        total, g, _, past, future = (np.asarray(x) for x in self._state)
        if self._integer_counts:
            check_totals(total.view(np.uint64)[:-1, 0], self._pixels.pixel)
        sums = np.stack([g, past, future]).view(dtype)[..., 0]
        weight = sums[0, :, -1].astype(np.float64)
        return bins_of_pixels(self._pixels, weight, sums[..., :-1], before)


def check_totals(total: NDArray[np.uint64], numbers: Any) -> None:
    """Check the total counts [P] of pixels, whose numbers are row * W + column."""
    invalid = total >= COUNT_LIMIT
    if invalid.any():
        raise ValueError(
            f"pixel {numbers[int(invalid.argmax())]} has a negative count, or counts that sum to "
            "2^32 - 1 or more; mask the pixel, or give the frames as float64, whose sums are exact "
            "below 2^53"
        )


def bins_of_pixels(
    pixels: BinnedPixels,
    weight: NDArray[np.float64],
    sums: NDArray[Any],
    before: BinSums | None = None,
) -> BinSums:
    """Return the sums over bins of G, IP and IF [3, n_tau, P], exact for integers.

    Args:
      weight: [n_tau], see `BinSums`.
      before: the sums over the preceding tiles of pixels.
    """
    if before is None:
        # Python's integers, which do not overflow.
        kind = np.float64 if sums.dtype.kind == "f" else object
        exact = np.zeros((3, len(weight), pixels.n_static), kind)
        counts = np.zeros(pixels.n_dynamic, np.int64)
        mean = np.zeros((len(weight), pixels.n_dynamic))
        squares = mean.copy()
    else:
        exact, mean, squares, counts = before.carried, before.mean, before.squares, before.pixels
    for first in range(0, len(pixels), _TILE):
        part = np.arange(first, min(first + _TILE, len(pixels)))
        order = part[np.lexsort((pixels.static[part], pixels.dynamic[part]))]
        static, dynamic, tile = pixels.static[order], pixels.dynamic[order], sums[:, :, order]
        starts = _run_starts(static)
        exact[:, :, static[starts]] += _sums_of_runs(tile, starts)
        G, IP, IF = tile.astype(np.float64)
        ratios = np.zeros(G.shape)
        with np.errstate(invalid="ignore"):  # infinite counts give NaN
            np.divide(G * weight[:, None], IP * IF, out=ratios, where=IP * IF != 0)
        starts = _run_starts(dynamic)
        bins, added = dynamic[starts], np.diff(np.append(starts, len(dynamic)))
        tile_mean = np.add.reduceat(ratios, starts, axis=1) / added
        distance = ratios - np.repeat(tile_mean, added, axis=1)
        # Means and squares of two sets are combined as by Chan, Golub and LeVeque (1983).
        n, both = counts[bins], counts[bins] + added
        step = tile_mean - mean[:, bins]
        mean[:, bins] += step * (added / both)
        squares[:, bins] += np.add.reduceat(distance * distance, starts, axis=1)
        squares[:, bins] += step * step * (n * added / both)
        counts[bins] = both
    return BinSums(weight, exact.astype(np.float64), mean, squares, counts, exact)


def _run_starts(labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the index of the first element of each run of equal labels."""
    return np.flatnonzero(np.diff(labels, prepend=-1))


def _sums_of_runs(sums: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Return sums [3, n_tau, len(starts)] over runs of pixels; Python's integers for integers."""
    if sums.dtype.kind == "f":
        return np.asarray(np.add.reduceat(sums, starts, axis=2))
    high = np.add.reduceat(sums >> 32, starts, axis=2).astype(object)
    low = np.add.reduceat(sums & 0xFFFFFFFF, starts, axis=2).astype(object)
    return np.asarray(high * 2**32 + low)


def sums_of_state(
    native: ModuleType,
    state: list[NDArray[Any]],
    seen: int,
    width: int,
    pixels: BinnedPixels,
    options: Mapping[str, Any],
) -> BinSums:
    """Return the sums of a state of `width` pixels after `seen` sums of frames."""
    arrays = native.multitau_reduce(state, seen, width, *_arguments(pixels), **options)
    return _bin_sums(arrays, pixels)


def _arguments(pixels: BinnedPixels) -> tuple[Any, ...]:
    return pixels.pixel, pixels.static, pixels.dynamic, pixels.n_static, pixels.n_dynamic


def _bin_sums(arrays: tuple[NDArray[np.float64], ...], pixels: BinnedPixels) -> BinSums:
    weight, sums, mean, squares = arrays
    counts = np.bincount(pixels.dynamic, minlength=pixels.n_dynamic).astype(np.int64)
    return BinSums(weight, sums, mean, squares, counts)


def _native_state_shapes(
    n: int, dpl: int, integer_counts: bool, weighted: bool
) -> list[tuple[int, np.dtype[Any]]]:
    """Return (rows, dtype) of the arrays of a state, see the native `multitau_update`."""
    delays = len(multitau_delays(n, dpl))
    levels = 1 + max(-(-(delays - 2 * dpl) // dpl), 0)
    wide = np.dtype(np.uint64 if integer_counts else np.float64)
    narrow = np.dtype(np.uint32 if integer_counts else np.float64)
    shapes = [(1, wide), (delays, wide), (delays, narrow), (levels * 2 * dpl, narrow)]
    return shapes + ([(delays, wide)] * 2 if weighted else [])
