"""Multi-tau sums over the pixels of bins: by the native kernels, or in pure JAX without them."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.checks import PreparedRun
from jaxkern.xpcs.correlators.native import native_module, run_watched
from jaxkern.xpcs.correlators.results import BinSums, multitau_delays
from jaxkern.xpcs.correlators.selection import (
    COUNT_LIMIT,
    BinnedPixels,
    EventMemory,
    selected_frames,
    summed,
)
from jaxkern.xpcs.correlators.twin import add_frames, state_shapes

Ranges: TypeAlias = Sequence[tuple[int, int]]

# Pixels whose ratios are reduced together without the native kernels.
_TILE = 4096
_add_frames = jax.jit(add_frames, static_argnames="dpl", donate_argnums=range(2, 7))


def in_place_sums(
    native: ModuleType, run: PreparedRun, ranges: Ranges, pixels: BinnedPixels, dpl: int
) -> list[BinSums]:
    """Return the sums of frames in memory for each range (first, stop) of sums of frames."""
    strips = len(np.unique(pixels.pixel // native.MULTITAU_STRIP))
    average, every, sums = run.selection.average, run.selection.bad_mask(), []
    for first, stop in ranges:
        run.bar.begin((stop - first) * average, run.source.frame_bytes)
        at = slice(first * average, stop * average)
        bad = every[at]
        call = partial(
            native.multitau,
            selected_frames(run.source, run.selection, first, stop),
            *pixels.arguments,
            dpl=dpl,
            average=average,
            bad=bad.view(np.uint8) if bad.any() else None,
            divisor=None if run.divisor is None else run.divisor[at],
        )
        arrays = run_watched(call, strips * (stop - first), run.bar.set_fraction)
        sums.append(_bin_sums(arrays, pixels))
    return sums


def event_sums(
    native: ModuleType, run: PreparedRun, ranges: Ranges, pixels: BinnedPixels, dpl: int
) -> list[BinSums]:
    """Return the sums of events, bit-identical to those of the frames that they form."""
    events, sums = EventMemory.from_source(run.source), []
    frame_bytes = events.size * events.event_bytes // max(run.selection.n, 1)
    for first, stop in ranges:
        run.bar.begin(stop - first, frame_bytes)
        call = partial(
            native.multitau_events,
            *events.arguments,
            *events.frames(run.selection.part(first, stop)),
            *pixels.arguments,
            dpl=dpl,
            bytes=available_bytes() / 2,
        )
        sums.append(_bin_sums(run_watched(call, events.size, run.bar.set_fraction), pixels))
    return sums


def make_pixel_sums(
    pixels: BinnedPixels, dpl: int, average: int, missing: NDArray[np.uint32], integer_counts: bool
) -> PixelSums:
    """Return empty sums of pixels; `missing` [N] are the bad frames in each sum of frames."""
    native = native_module() if len(pixels) else None
    how = (pixels, dpl, average, missing, integer_counts)
    return JaxSums(*how) if native is None else NativeSums(native, *how)


def pixel_tiles(pixels: BinnedPixels) -> NDArray[np.int64]:
    """Return the tile [P] of each pixel; groups of whole tiles give the bits of all pixels."""
    native = native_module() if len(pixels) else None
    if native is None:
        return np.arange(len(pixels)) // _TILE
    strips = np.unique(pixels.pixel // native.MULTITAU_STRIP, return_inverse=True)[1]
    return np.asarray(strips // native.MULTITAU_TILE_STRIPS)


def bytes_per_pixel(n: int, dpl: int, integer_counts: bool, weighted: bool) -> int:
    """Return the memory of a pixel's state for n sums of frames, of which some may be bad."""
    weighted = weighted or native_module() is None
    return sum(array.nbytes for array in _state(n, 1, dpl, integer_counts, weighted))


def _state(
    n: int, pixels: int, dpl: int, integer_counts: bool, weighted: bool
) -> list[NDArray[np.uint32]]:
    """Return the arrays of a state as the native `multitau_update` expects them, all zeros."""
    shapes = state_shapes(len(multitau_delays(n, dpl)), pixels, dpl, not integer_counts)
    names = ("total", "g", "head", "history") + ("g", "g") * weighted
    return [np.zeros(shapes[name], np.uint32) for name in names]


class PixelSums(abc.ABC):
    """Sums of pixels, to which blocks of frames are added."""

    def __init__(
        self,
        pixels: BinnedPixels,
        dpl: int,
        average: int,
        missing: NDArray[np.uint32],
        integer_counts: bool,
    ) -> None:
        self._pixels, self._dpl, self._average = pixels, dpl, average
        self._missing, self._integer_counts, self._seen = missing, integer_counts, 0

    @abc.abstractmethod
    def add(
        self, frames: NDArray[Any], bad: NDArray[np.bool_], divisor: NDArray[np.float64] | None
    ) -> None:
        """Add frames [T * average, H * W], divided by `divisor`, without those in `bad`."""

    @abc.abstractmethod
    def bin_sums(self, before: BinSums | None = None) -> BinSums:
        """Return the sums over bins, added to those of the preceding tiles of pixels."""


class NativeSums(PixelSums):
    """Sums of one or more pixels by the native kernels."""

    def __init__(self, native: ModuleType, pixels: BinnedPixels, *how: Any) -> None:
        super().__init__(pixels, *how)
        self._native, dpl, missing = native, self._dpl, self._missing
        first, last = pixels.pixel[[0, -1]]
        # Frames are read in place if most of the pixels between the first and the last are used.
        width = int(last) + 1 - int(first)
        self._gathered = width > 2 * len(pixels)
        self._columns = pixels.pixel - first
        if self._gathered:
            width = len(pixels)
            self._columns = np.arange(width, dtype=np.int32)
        self._at = slice(int(first), int(first) + width)
        weighted = bool(missing.any())
        self._options = {
            "most_frames": len(missing),
            "dpl": dpl,
            "average": self._average,
            "missing": missing if weighted else None,
            "real": not self._integer_counts,
            "threads": num_threads(),
        }
        self._state = _state(len(missing), width, dpl, self._integer_counts, weighted)
        self._width = width

    def add(
        self, frames: NDArray[Any], bad: NDArray[np.bool_], divisor: NDArray[np.float64] | None
    ) -> None:
        pixels = self._pixels.pixel
        counts = np.take(frames, pixels, axis=1) if self._gathered else frames[:, self._at]
        marks = {"bad": bad.view(np.uint8) if bad.any() else None, "divisor": divisor}
        self._native.multitau_update(counts, self._seen, self._state, **marks, **self._options)
        self._seen += len(frames) // self._average

    def bin_sums(self, before: BinSums | None = None) -> BinSums:
        pixels, delays = self._pixels, len(self._state[1])
        if before is None:
            words = 2 if self._integer_counts else 1
            n_means = delays * pixels.n_dynamic
            sizes = (3 * delays * pixels.n_static * words, n_means, n_means, pixels.n_dynamic)
            carried = [np.zeros(size, np.int64) for size in sizes]
        else:
            carried = before.carried
        state = (self._state, self._seen, self._width)
        options = {**self._options, "offset": self._columns, "carried": carried}
        sums = sums_of_state(self._native, *state, pixels, options)
        return replace(sums, pixels=carried[-1], carried=carried)


class JaxSums(PixelSums):
    """Sums by the pure-JAX implementation of the op, for which c is one more pixel."""

    def __init__(self, pixels: BinnedPixels, *how: Any) -> None:
        super().__init__(pixels, *how)
        self._good = self._average - self._missing.astype(np.int64)
        shape = len(self._good), len(pixels) + 1
        state = _state(*shape, self._dpl, self._integer_counts, weighted=True)
        self._state: Any = [*state[:2], *state[3:]]  # without head

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
            self._state = _add_frames(block, np.int32(self._seen), *self._state, dpl=self._dpl)
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
            "2^32 - 1 or more; mask the pixel, or give the frames as float64 (exact below 2^53)"
        )


def bins_of_pixels(
    pixels: BinnedPixels,
    weight: NDArray[np.float64],
    sums: NDArray[Any],
    before: BinSums | None = None,
) -> BinSums:
    """Add G, IP and IF [3, n_tau, P], exact for integers, to the sums `before` of other pixels."""
    if before is None:
        # Python's integers, which do not overflow.
        kind = np.float64 if sums.dtype.kind == "f" else object
        exact = np.zeros((3, len(weight), pixels.n_static), kind)
        counts = np.zeros(pixels.n_dynamic, np.int64)
        mean, squares = np.zeros((2, len(weight), pixels.n_dynamic))
    else:
        exact, mean, squares, counts = before.carried, before.mean, before.squares, before.pixels
    for first in range(0, len(pixels), _TILE):
        part = np.arange(first, min(first + _TILE, len(pixels)))
        order = part[np.lexsort((pixels.static[part], pixels.dynamic[part]))]
        static, dynamic, tile = pixels.static[order], pixels.dynamic[order], sums[:, :, order]
        starts = _run_starts(static)
        if tile.dtype.kind == "f":
            exact[:, :, static[starts]] += np.add.reduceat(tile, starts, axis=2)
        else:  # in Python's integers, from halves that do not overflow
            high, low = (
                np.add.reduceat(x, starts, axis=2).astype(object)
                for x in (tile >> 32, tile & 0xFFFFFFFF)
            )
            exact[:, :, static[starts]] += high * 2**32 + low
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


def sums_of_state(
    native: ModuleType,
    state: list[NDArray[Any]],
    seen: int,
    width: int,
    pixels: BinnedPixels,
    options: Mapping[str, Any],
) -> BinSums:
    """Return the sums of a state of `width` pixels after `seen` sums of frames."""
    arrays = native.multitau_reduce(state, seen, width, *pixels.arguments, **options)
    return _bin_sums(arrays, pixels)


def _bin_sums(arrays: tuple[NDArray[np.float64], ...], pixels: BinnedPixels) -> BinSums:
    counts = np.bincount(pixels.dynamic, minlength=pixels.n_dynamic).astype(np.int64)
    weight, sums, mean, squares = arrays
    return BinSums(weight, sums, mean, squares, counts)
