"""Two-time correlations of dense frames, from exact matrices by XLA's matrix product.

M[t, t'] = sum of I[p, t] I[p, t'] over some pixels is the exact integer (above 2^53 the rounded sum
of three exact parts), which does not depend on threads or blocks. Floating-point counts are
multiplied `_FLOAT_CHUNK` pixels at a time, so that XLA's scheduling does not change the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arrays import aligned_array
from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators.checks import PreparedRun
from jaxkern.xpcs.correlators.selection import FrameSelection, as_counts, frame_blocks, summed
from jaxkern.xpcs.correlators.two_time_reduction import Smoothing, TwoTimeReduction, Weights
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

TILE = 512  # largest number of frames along a side of a product
_CHUNK = 2048  # pixels of a product whose operands fit into the caches
_FEWEST = 128  # least number of pixels for which float32 is faster than float64
_FLOAT_CHUNK = 128
_PIECE = 16384  # largest number of pixels in one product
_PIECE_BYTES = 2**30  # largest size of their counts
_STAGED_BYTES = 2**30  # largest size of the counts in memory between products
_PAIRS = 16  # tiles per batch; a batch is reduced while the next one is computed
_BLOCK_BYTES = 2**22


class Product(NamedTuple):
    """Method of a product."""

    chunk: int  # pixels that are multiplied at a time
    operands: str  # dtype
    sums: str  # dtype
    halves: bool = False  # multiply 16-bit halves


@dataclass(frozen=True)
class Tiles:
    """Frames in `count` tiles of `size` frames; the last tile may be padded."""

    size: int
    count: int

    @classmethod
    def for_frames(cls, n_frames: int) -> Tiles:
        count = max(-(-n_frames // TILE), 1)
        size = -(-n_frames // count)
        return cls(-(-size // 8) * 8, count)


@dataclass(frozen=True)
class Piece:
    """Counts of some pixels of one static bin in all frames."""

    tiles: list[jax.Array]  # counts [size, K] of each tile, padded with zeros
    product: Product  # method of their product
    sums: NDArray[Any]  # [N] sums over the pixels: int64, or float64


def choose_product(dtype: np.dtype[Any], most: int, padded: int) -> Product:
    """Return the fastest exact method for `padded` pixels with counts of magnitude up to `most`."""
    if dtype.kind == "f":
        return Product(_chunk(padded, _FLOAT_CHUNK), "float64", "float64")
    # Instructions for sums of products of bytes make int8 1.5 to 4 times faster than float32.
    if most <= 127 and padded * most**2 < 2**31:
        return Product(padded, "int8", "int32")
    exact = 2**24 // max(most, 1) ** 2  # pixels whose sum is exact in float32
    if exact >= padded:
        return Product(_chunk(padded, _CHUNK), "float32", "float32")
    if exact >= _FEWEST:
        return Product(_chunk(padded, min(exact, _CHUNK)), "float32", "float64")
    halves = padded * most**2 > 2**53
    return Product(_chunk(padded, _CHUNK), "float64", "float64", halves)


def padded_pixels(count: int) -> int:
    """Round up a number of pixels to one of few values, since XLA compiles for each of them."""
    step = 64
    while step * 16 < count:
        step *= 2
    return max(-(-count // step) * step, step)


def _chunk(padded: int, most: int) -> int:
    """Return the largest divisor of `padded` up to `most` that is a multiple of 16."""
    count = -(-padded // most)
    while padded % (16 * count):
        count += 1
    return padded // count


def count_dtype(dtype: np.dtype[Any], average: int, divided: bool = False) -> np.dtype[Any]:
    """Return the dtype of sums of `average` frames of a dtype, which may be divided by numbers."""
    if divided or (dtype.kind == "f" and average > 1):
        return np.dtype(np.float64)
    if average == 1:
        return as_counts(np.zeros(0, dtype)).dtype
    small = dtype.kind == "u" and np.iinfo(dtype).max * average < 2**16
    return np.dtype(np.uint16 if small else np.int32)


def stage(
    source: FrameSource,
    selection: FrameSelection,
    divisor: NDArray[np.float64] | None,
    pixels: list[NDArray[np.int32]],
    tiles: Tiles,
) -> list[Piece]:
    """Read the frames, divided by `divisor` [N * average], and return counts of lists of pixels."""
    n, average = selection.n, selection.average
    dtype = count_dtype(source.dtype, average, divisor is not None)
    integer_counts = dtype.kind != "f"
    widths = [padded_pixels(len(numbers)) for numbers in pixels]
    # The padding is gathered from any pixel, and then cleared.
    gathered = [np.resize(numbers, width) for numbers, width in zip(pixels, widths, strict=True)]
    counts = [aligned_array((tiles.size * tiles.count, width), dtype) for width in widths]
    sums = [np.zeros(n, np.int64 if integer_counts else np.float64) for _ in pixels]
    most = [0] * len(pixels)
    for first, frames, bad, factors in frame_blocks(source, selection, divisor, _BLOCK_BYTES):
        rows = slice(first, first + len(frames) // average)
        plain = frames.dtype == dtype and average == 1 and not bad.any()
        for k, numbers in enumerate(pixels):
            target = counts[k][rows]
            if plain and factors is None:
                np.take(frames, gathered[k], axis=1, out=target, mode="clip")
            else:
                block = summed(frames[:, gathered[k]], average, bad, factors)
                target[...] = as_counts(block, f"a sum of {source.name}")
            target[:, len(numbers) :] = 0
            sums[k][rows] = target.sum(axis=1, dtype=sums[k].dtype)
            if integer_counts:
                most[k] = max(most[k], int(target.max()), -int(target.min()))
    for array in counts:
        array[n:] = 0
    return [
        Piece(
            [jax.device_put(tile) for tile in np.split(array, tiles.count)],
            choose_product(dtype, largest, width),
            total,
        )
        for array, width, largest, total in zip(counts, widths, most, sums, strict=True)
    ]


@partial(jax.jit, static_argnames="method")
def multiply(rows: Any, columns: Any, method: Product) -> jax.Array:
    """Return exact products [T, T'] of counts [T, K] and [T', K], in `method.sums`."""
    if method.halves:
        high_r, low_r = _halves(rows)
        high_c, low_c = _halves(columns)
        across = _product(high_r, low_c, method) + _product(low_r, high_c, method)
        high = _product(high_r, high_c, method) * 2.0**32 + across * 2.0**16
        return high + _product(low_r, low_c, method)
    return _product(rows, columns, method)


def _halves(counts: Any) -> tuple[Any, Any]:
    """Split into high * 2^16 + low, with low of 0 or more."""
    return counts >> 16, counts & 0xFFFF


def _product(rows: Any, columns: Any, method: Product) -> jax.Array:
    shape = rows.shape[0], columns.shape[0]

    def chunk_product(k: Any) -> jax.Array:
        x, y = (
            jax.lax.dynamic_slice_in_dim(side, k * method.chunk, method.chunk, axis=1).astype(
                method.operands
            )
            for side in (rows, columns)
        )
        return jax.lax.dot_general(
            x, y, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=np.int32 if method.sums == "int32" else None,
        ).astype(method.sums)  # fmt: skip

    count = rows.shape[1] // method.chunk
    if count == 1:
        return chunk_product(0)
    zeros = jnp.zeros(shape, method.sums)
    return jax.lax.fori_loop(0, count, lambda k, sums: sums + chunk_product(k), zeros)


@partial(jax.jit, donate_argnums=0)
def add(total: jax.Array, product: jax.Array) -> jax.Array:
    """Return total + product, in float64."""
    return total + product.astype(jnp.float64)


@partial(jax.jit, donate_argnums=0)
def fold(total: jax.Array, product: jax.Array, rows: Any, columns: Any) -> jax.Array:
    """Return total + product times the factors of its rows and columns, in float64."""
    # Multiply the two factors first, so that (t, t') and (t', t) give the same bits.
    factors: jax.Array = rows[:, None] * columns[None, :]
    return total + factors * product.astype(jnp.float64)


@partial(jax.jit, donate_argnums=0)
def divide(total: jax.Array, rows: Any, columns: Any, pixels: float) -> jax.Array:
    """Return C: the sum over static bins times `pixels`, over the totals of rows and columns."""
    totals: jax.Array = rows[:, None] * columns[None, :]
    return total * pixels / totals


class _Bin:
    """A dynamic bin: its index in the result, and pieces of up to `most` pixels per static bin."""

    def __init__(self, qmap: QMap, index: int, number: int, most: int) -> None:
        self.index = index
        static = qmap.static.ravel()[qmap.pixels]
        self.pieces: list[list[NDArray[np.int32]]] = []
        for s in np.flatnonzero(qmap.dynamic_of_static == number) + 1:
            first, stop = np.searchsorted(static, [s, s + 1])
            parts = -(-(stop - first) // most)
            self.pieces.append(np.array_split(qmap.pixels[first:stop], parts))
        self.pixels = np.array([sum(map(len, parts)) for parts in self.pieces], np.int64)

    def staged_bytes(self, tiles: Tiles, itemsize: int) -> int:
        widths = sum(padded_pixels(len(p)) for parts in self.pieces for p in parts)
        return widths * tiles.size * tiles.count * itemsize


class DenseProducts:
    """Loops over bins, tiles and pieces of pixels, and passes blocks of C to the reduction."""

    def __init__(self, run: PreparedRun, smoothing: Smoothing, reduction: TwoTimeReduction) -> None:
        self._run, self._smoothing, self._reduction = run, smoothing, reduction
        self._n = run.selection.n
        self._tiles = Tiles.for_frames(self._n)
        dtypes = (run.source.dtype, run.selection.average, run.divisor is not None)
        self._itemsize = count_dtype(*dtypes).itemsize
        # This depends on the counts and not on the free memory, since it determines the order of
        # sums.
        piece = min(_PIECE, max(_PIECE_BYTES // (self._itemsize * max(self._n, 1)), 64))
        bins = enumerate(run.labels.bins.tolist())
        candidates = (_Bin(run.qmap, index, number, piece) for index, number in bins)
        self._bins = [b for b in candidates if b.pieces]
        self._room = min(_STAGED_BYTES, max(available_bytes() // 4, 1))
        self._waiting: list[tuple[int, int, int, jax.Array]] = []
        self._finished_tiles = 0
        run.bar.begin(self._n, run.source.frame_bytes)

    def correlate(self) -> None:
        """Correlate all bins."""
        group: list[_Bin] = []
        group_size = 0
        for each in self._bins:
            size = each.staged_bytes(self._tiles, self._itemsize)
            # Arrays are gathered bin by bin. A file is read once for as many bins as fit.
            if group and (self._run.source.array is not None or group_size + size > self._room):
                self._correlate(group)
                group, group_size = [], 0
            if size > self._room:  # a pass over the frames for each batch of tiles
                for at in self._batches(max(self._room // (4 * 8 * self._tiles.size**2), 1)):
                    pieces = ((self._stage([p])[0] for p in parts) for parts in each.pieces)
                    self._pairs(each, at, pieces)
            else:
                group.append(each)
                group_size += size
        if group:
            self._correlate(group)
        self._reduce_waiting()

    def _stage(self, pixels: list[NDArray[np.int32]]) -> list[Piece]:
        run = self._run
        return stage(run.source, run.selection, run.divisor, pixels, self._tiles)

    def _correlate(self, group: list[_Bin]) -> None:
        """Correlate bins whose counts fit into memory, with one pass over the frames."""
        staged = iter(self._stage([p for each in group for parts in each.pieces for p in parts]))
        for each in group:
            pieces = [[next(staged) for _ in parts] for parts in each.pieces]
            for at in self._batches(_PAIRS):
                self._pairs(each, at, iter(pieces))

    def _batches(self, most: int) -> Iterator[list[tuple[int, int]]]:
        """Yield batches of at most `most` tiles on and above the diagonal, row by row."""
        count = self._tiles.count
        tiles = ((i, j) for i in range(count) for j in range(i, count))
        while batch := list(islice(tiles, most)):
            yield batch

    def _pairs(
        self, each: _Bin, at: list[tuple[int, int]], static_bins: Iterator[Iterable[Piece]]
    ) -> None:
        """Compute some tiles of C from the pieces of each static bin."""
        totals = {pair: self._zeros() for pair in at}
        sums: list[NDArray[Any]] = []
        for k, pieces in enumerate(static_bins):
            several = len(each.pieces[k]) > 1
            matrix = {pair: self._zeros() for pair in at} if several else {}
            counts: Any = 0
            for piece in pieces:
                counts = counts + piece.sums
                for i, j in at:
                    product = multiply(piece.tiles[i], piece.tiles[j], piece.product)
                    matrix[i, j] = add(matrix[i, j], product) if several else product
            sums.append(counts)
            static = Weights.from_sums(counts[None], each.pixels[k : k + 1], self._smoothing)
            factors = self._in_tiles(static.factors[0])
            for i, j in at:
                totals[i, j] = fold(totals[i, j], matrix[i, j], factors[i], factors[j])
        weights = Weights.from_sums(np.stack(sums), each.pixels, self._smoothing)
        self._reduction.begin(each.index, weights.lit)
        divisors, pixels = self._in_tiles(weights.totals), float(weights.pixels)
        blocks = [divide(totals[i, j], divisors[i], divisors[j], pixels) for i, j in at]
        # Reduce the previous tiles while XLA computes these.
        self._reduce_waiting()
        self._waiting = [(each.index, i, j, c) for (i, j), c in zip(at, blocks, strict=True)]

    def _reduce_waiting(self) -> None:
        size = self._tiles.size
        for index, i, j, tile in self._waiting:
            height, width = (min(size, self._n - k * size) for k in (i, j))
            block = np.asarray(tile)[:height, :width]
            self._reduction.add(index, i * size, j * size, block)
            self._finished_tiles += 1
        self._waiting = []
        tiles = len(self._bins) * self._tiles.count * (self._tiles.count + 1) // 2
        self._run.bar.set_fraction(self._finished_tiles / max(tiles, 1))

    def _zeros(self) -> jax.Array:
        return jnp.zeros((self._tiles.size, self._tiles.size), np.float64)

    def _in_tiles(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Reshape [N] to [tiles, size], padded with ones."""
        tiled = np.ones(self._tiles.count * self._tiles.size)
        tiled[: self._n] = values
        return tiled.reshape(self._tiles.count, self._tiles.size)
