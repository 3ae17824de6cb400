"""Multi-tau sums in NumPy, level by level: what the native kernel does, where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.correlators.blocks import MOST_COUNTS, summed
from jaxkern.xpcs.correlators.delays import multitau_delays, pair_weights
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.pixels import BinnedPixels

# Pixels whose sums are made, and reduced to those of bins, at a time.
_TILE = 4096


def too_many_counts(pixel: int) -> str:
    """What is wrong with a pixel whose counts are not summed, as the native kernels say it."""
    return (
        f"pixel {pixel} has a negative count, or counts that sum to 2^32 - 1 or more; leave the "
        "pixel out by the mask, or give the frames as float64, whose sums are exact below 2^53"
    )


@dataclass
class _Level:
    """Its last 2 dpl sums of frames, one that waits for its neighbour, and products by delay."""

    counts: NDArray[Any]  # [at most 2 dpl, P]
    good: NDArray[np.int64]
    odd_counts: NDArray[Any]  # [0 or 1, P]
    odd_good: NDArray[np.int64]
    products: dict[int, NDArray[Any]] = field(default_factory=dict)  # t -> [3, P]


class NumpySums:
    """Sums of pixels to which blocks of frames are added; sums of bins in the end.

    Args:
      missing: [N] bad frames in each of the N sums of frames that will be added.
      whole: whether counts are whole numbers.
    """

    def __init__(
        self,
        pixels: BinnedPixels,
        dpl: int,
        average: int,
        missing: NDArray[np.uint32],
        whole: bool,
    ) -> None:
        self._pixels, self._dpl, self._average, self._whole = pixels, dpl, average, whole
        self._good = average - missing.astype(np.int64)
        self._bins = _tiles_of(pixels)
        self._tiles = [PixelSums(tile.pixel, dpl, whole) for tile in self._bins]
        self._seen = 0

    @staticmethod
    def bytes_of_pixel(n: int, dpl: int, whole: bool, weighted: bool) -> int:
        """Memory of a pixel's sums over n sums of frames."""
        levels = max(n, 1).bit_length()
        return 8 * (3 * len(multitau_delays(n, dpl)) + (2 * dpl + 1) * levels)

    def add(
        self, frames: NDArray[Any], bad: NDArray[np.bool_], divisor: NDArray[np.float64] | None
    ) -> None:
        """Adds frames [T * average, H * W], of which `bad` are left out.

        Args:
          divisor: [T * average] what each is divided by.
        """
        good = self._good[self._seen : self._seen + len(frames) // self._average]
        for tile in self._tiles:
            tile.add(
                summed(np.take(frames, tile.pixels, axis=1), self._average, bad, divisor), good
            )
        self._seen += len(good)

    @staticmethod
    def tiles(pixels: BinnedPixels) -> NDArray[np.int64]:
        """[P] the tile of each pixel: tiles are added one after the other, whoever sums them."""
        return np.arange(len(pixels)) // _TILE

    def bin_sums(self, before: BinSums | None = None) -> BinSums:
        """The sums of what was added, on top of those of the tiles of pixels before."""
        if before is None:
            weight, _ = pair_weights(self._good[: self._seen], self._dpl)
            total = _BinTotals(self._pixels, weight, self._whole)
        else:
            total = before.carried
        for tile, bins in zip(self._tiles, self._bins, strict=True):
            total.add(bins, tile.sums())
        return total.bin_sums()


class PixelSums:
    """G, IP and IF of `BinSums` of some pixels, from blocks of sums of frames in their order.

    Any split into blocks gives the same sums of whole counts.

    Args:
      pixels: [P] numbers row * W + column.
      dpl: delays a level.
      whole: whether counts are whole numbers, which are summed exactly; else in float64.
    """

    def __init__(self, pixels: NDArray[np.int32], dpl: int, whole: bool) -> None:
        self.pixels, self._dpl = pixels, dpl
        self._dtype = np.dtype(np.int64 if whole else np.float64)
        self._levels: list[_Level] = []
        self._total = np.zeros(len(pixels), self._dtype)

    def add(self, frames: NDArray[Any], good: NDArray[Any]) -> None:
        """Adds sums of frames [T, P] with `good` [T] good ones in each; zeros without any.

        Raises:
          ValueError: for negative whole counts, and a pixel with 2^32 - 1 counts together or more.
        """
        counts, good = frames.astype(self._dtype), good.astype(np.int64)
        if self._dtype.kind == "i":
            self._total += counts.sum(axis=0)
            wrong = (counts < 0).any(axis=0) | (self._total >= MOST_COUNTS)
            if wrong.any():
                raise ValueError(too_many_counts(int(self.pixels[wrong.argmax()])))
        number = 0
        while len(counts):
            if number == len(self._levels):
                nothing = np.zeros((0, len(self.pixels)), self._dtype), np.zeros(0, np.int64)
                self._levels.append(_Level(*nothing, *nothing))
            counts, good = self._add_to(self._levels[number], number, counts, good)
            number += 1

    def _add_to(
        self, level: _Level, number: int, counts: NDArray[Any], good: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Adds sums to a level; gives the sums of neighbours, for the next one."""
        before = len(level.counts)
        s, c = np.concatenate([level.counts, counts]), np.concatenate([level.good, good])
        for t in range(self._dpl + 1 if number else 1, 2 * self._dpl + 1):
            now, later = slice(max(before - t, 0), len(s) - t), slice(max(before, t), len(s))
            if later.start >= len(s):
                break
            total = level.products.setdefault(t, np.zeros((3, s.shape[1]), self._dtype))
            total[0] += np.einsum("tp,tp->p", s[now], s[later])
            total[1] += np.einsum("tp,t->p", s[now], c[later])
            total[2] += np.einsum("tp,t->p", s[later], c[now])
        keep = max(len(s) - 2 * self._dpl, 0)
        level.counts, level.good = s[keep:].copy(), c[keep:].copy()
        counts = np.concatenate([level.odd_counts, counts])
        good = np.concatenate([level.odd_good, good])
        full = len(counts) // 2 * 2
        level.odd_counts, level.odd_good = counts[full:].copy(), good[full:].copy()
        return counts[0:full:2] + counts[1:full:2], good[0:full:2] + good[1:full:2]

    def sums(self) -> NDArray[Any]:
        """[3, n_tau, P] G, IP and IF; int64 of whole counts, else float64."""
        found = [level.products[t] for level in self._levels for t in level.products]
        if not found:
            return np.zeros((3, 0, len(self.pixels)), self._dtype)
        return np.stack(found, axis=1)


def bins_of_pixels(
    pixels: BinnedPixels, weight: NDArray[np.float64], sums: NDArray[Any], whole: bool
) -> BinSums:
    """The sums of bins of G, IP and IF [3, n_tau, P] of all their pixels."""
    total = _BinTotals(pixels, weight, whole)
    first = 0
    for tile in _tiles_of(pixels):
        total.add(tile, sums[:, :, first : first + len(tile)])
        first += len(tile)
    return total.bin_sums()


def _tiles_of(pixels: BinnedPixels) -> list[BinnedPixels]:
    return [pixels.taken(slice(k, k + _TILE)) for k in range(0, len(pixels), _TILE)]


class _BinTotals:
    """Adds up the sums of tiles of pixels to those of bins.

    The result depends, in the last bits of `mean` and `squares`, on the tiles and their order, and
    on nothing else.
    """

    def __init__(self, pixels: BinnedPixels, weight: NDArray[np.float64], whole: bool) -> None:
        self._weight = weight
        # Python's integers, which have any size.
        self._sums = np.zeros((3, len(weight), pixels.n_static), object if whole else np.float64)
        self._pixels = np.zeros(pixels.n_dynamic, np.int64)
        self._mean = np.zeros((len(weight), pixels.n_dynamic))
        self._squares = self._mean.copy()

    def add(self, pixels: BinnedPixels, sums: NDArray[Any]) -> None:
        """Adds G, IP and IF [3, n_tau, P] of some pixels."""
        if not sums.size:
            return
        order = pixels.by_bin()
        static, dynamic, sums = pixels.static[order], pixels.dynamic[order], sums[:, :, order]
        starts = _starts(static)
        self._sums[:, :, static[starts]] += _added(sums, starts)
        G, IP, IF = sums.astype(np.float64)
        ratios = np.zeros(G.shape)
        with np.errstate(invalid="ignore"):  # frames with an infinity give NaN
            np.divide(G * self._weight[:, None], IP * IF, out=ratios, where=IP * IF != 0)
        self._add_ratios(dynamic, ratios)

    def _add_ratios(self, dynamic: NDArray[np.int32], ratios: NDArray[np.float64]) -> None:
        starts = _starts(dynamic)
        bins, count = dynamic[starts], np.diff(np.append(starts, len(dynamic)))
        mean = np.add.reduceat(ratios, starts, axis=1) / count
        distance = ratios - np.repeat(mean, count, axis=1)
        squares = np.add.reduceat(distance * distance, starts, axis=1)
        # Means and squares of two sets as those of both (Chan, Golub and LeVeque, 1983).
        before = self._pixels[bins]
        both = before + count
        step = mean - self._mean[:, bins]
        self._mean[:, bins] += step * (count / both)
        self._squares[:, bins] += squares + step * step * (before * count / both)
        self._pixels[bins] = both

    def bin_sums(self) -> BinSums:
        """The sums of all pixels that were added."""
        sums = self._sums.astype(np.float64)
        return BinSums(self._weight, sums, self._mean, self._squares, self._pixels, self)


def _starts(labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where each run of equal labels begins."""
    return np.flatnonzero(np.diff(labels, prepend=-1))


def _added(sums: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """[3, n_tau, len(starts)] sums over runs of pixels, Python's integers for whole counts."""
    if sums.dtype.kind == "f":
        return np.asarray(np.add.reduceat(sums, starts, axis=2))
    high = np.add.reduceat(sums >> 32, starts, axis=2).astype(object)
    low = np.add.reduceat(sums & 0xFFFFFFFF, starts, axis=2).astype(object)
    return np.asarray(high * 2**32 + low)
