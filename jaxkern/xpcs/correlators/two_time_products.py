"""Exact matrices of static bins from dense frames, by XLA's matrix product.

M[t, t'] = sum of I[p, t] I[p, t'] over some pixels. Products are made in float32 where no sum can
pass 2^24, in float32 a few pixels at a time and then added in float64 where that takes enough of
them at a time, else in float64, and of 16-bit halves where sums can pass 2^53: always the exact
whole number, so that neither threads nor blocks change a bit. (Above 2^53 it is the sum of three
exact parts, rounded.) Floating-point counts are multiplied in float64, `_FLOAT_CHUNK` pixels at a
time, so that the order of the sums does not depend on how XLA shares its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.alignment import aligned_array
from jaxkern.xpcs.correlators.blocks import as_counts, frame_blocks, summed
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource

TILE = 512  # frames at most along a side of what one product gives
_CHUNK = 2048  # pixels of a product whose operands stay in the caches
_FEWEST = 128  # pixels at a time for which float32 is faster than float64
_FLOAT_CHUNK = 128
_BLOCK_BYTES = 2**22


class Product(NamedTuple):
    """How to multiply: pixels at a time, dtype of operands, dtype of the sums, of 16-bit halves."""

    chunk: int
    operands: str
    sums: str
    halves: bool = False


@dataclass(frozen=True)
class Tiles:
    """Frames in `count` tiles of `size`; the last one may reach beyond the frames."""

    size: int
    count: int

    @classmethod
    def of(cls, n_frames: int) -> Tiles:
        count = max(-(-n_frames // TILE), 1)
        size = -(-n_frames // count)
        return cls(-(-size // 8) * 8, count)


@dataclass(frozen=True)
class Piece:
    """Counts of some pixels of one static bin in all frames.

    Attributes:
      tiles: counts [size, K] of each tile, zeros in frames and pixels that there are not.
      product: how they are multiplied.
      sums: [N] over the pixels: int64, or float64.
    """

    tiles: list[jax.Array]
    product: Product
    sums: NDArray[Any]


def choose_product(dtype: np.dtype[Any], most: int, padded: int) -> Product:
    """How `padded` pixels of counts up to `most` (as a magnitude) are multiplied exactly."""
    if dtype.kind == "f":
        return Product(_chunk(padded, _FLOAT_CHUNK), "float64", "float64")
    exact = 2**24 // max(most, 1) ** 2  # pixels whose sum float32 holds
    if exact >= padded:
        return Product(_chunk(padded, _CHUNK), "float32", "float32")
    if exact >= _FEWEST:
        return Product(_chunk(padded, min(exact, _CHUNK)), "float32", "float64")
    halves = padded * most**2 > 2**53
    return Product(_chunk(padded, _CHUNK), "float64", "float64", halves)


def padded_pixels(count: int) -> int:
    """Pixels with zeros behind them: few different numbers, since each is compiled for itself."""
    step = 64
    while step * 16 < count:
        step *= 2
    return max(-(-count // step) * step, step)


def _chunk(padded: int, most: int) -> int:
    """The largest part of `padded` pixels up to `most` that is a multiple of 16."""
    count = -(-padded // most)
    while padded % (16 * count):
        count += 1
    return padded // count


def count_dtype(dtype: np.dtype[Any], average: int, divided: bool = False) -> np.dtype[Any]:
    """Of the sums of `average` frames of a dtype, each divided by its mean or not."""
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
    """Reads the frames once, and keeps the counts of some lists of pixels.

    Args:
      divisor: [N * average] what each frame is divided by, or None.
    """
    n, average, bad = selection.n, selection.average, selection.bad_places()
    dtype = count_dtype(source.dtype, average, divisor is not None)
    whole = dtype.kind != "f"
    widths = [padded_pixels(len(wanted)) for wanted in pixels]
    # Padding is gathered too, from some pixel, and then cleared.
    gathered = [np.resize(wanted, width) for wanted, width in zip(pixels, widths, strict=True)]
    counts = [aligned_array((tiles.size * tiles.count, width), dtype) for width in widths]
    sums = [np.zeros(n, np.int64 if whole else np.float64) for _ in pixels]
    most = [0] * len(pixels)
    for first, frames in frame_blocks(source, selection, _BLOCK_BYTES):
        rows = slice(first, first + len(frames) // average)
        of_rows = slice(rows.start * average, rows.stop * average)
        factors = None if divisor is None else divisor[of_rows]
        plain = frames.dtype == dtype and average == 1 and not bad[of_rows].any()
        for k, wanted in enumerate(pixels):
            taken = counts[k][rows]
            if plain and factors is None:
                np.take(frames, gathered[k], axis=1, out=taken, mode="clip")
            else:
                some = summed(frames[:, gathered[k]], average, bad[of_rows], factors)
                taken[...] = as_counts(some, f"a sum of {source.name}")
            taken[:, len(wanted) :] = 0
            sums[k][rows] = taken.sum(axis=1, dtype=sums[k].dtype)
            if whole:
                most[k] = max(most[k], int(taken.max()), -int(taken.min()))
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


@partial(jax.jit, static_argnames="how")
def multiply(rows: Any, columns: Any, how: Product) -> jax.Array:
    """Exact products [T, T'] of counts [T, K] and [T', K], in `how.sums`."""
    if how.halves:
        high_r, low_r = _halves(rows)
        high_c, low_c = _halves(columns)
        across = _product(high_r, low_c, how) + _product(low_r, high_c, how)
        high = _product(high_r, high_c, how) * 2.0**32 + across * 2.0**16
        return high + _product(low_r, low_c, how)
    return _product(rows, columns, how)


def _halves(counts: Any) -> tuple[Any, Any]:
    """high * 2^16 + low, with low from 0 on."""
    return counts >> 16, counts & 0xFFFF


def _product(rows: Any, columns: Any, how: Product) -> jax.Array:
    shape = rows.shape[0], columns.shape[0]

    def of_chunk(k: Any) -> jax.Array:
        x, y = (
            jax.lax.dynamic_slice_in_dim(side, k * how.chunk, how.chunk, axis=1).astype(
                how.operands
            )
            for side in (rows, columns)
        )
        return jax.lax.dot_general(
            x, y, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST
        ).astype(how.sums)

    count = rows.shape[1] // how.chunk
    if count == 1:
        return of_chunk(0)
    nothing = jnp.zeros(shape, how.sums)
    sums: jax.Array = jax.lax.fori_loop(0, count, lambda k, sums: sums + of_chunk(k), nothing)
    return sums


@partial(jax.jit, donate_argnums=0)
def add(total: jax.Array, product: jax.Array) -> jax.Array:
    """total + product, in float64."""
    return total + product.astype(jnp.float64)


@partial(jax.jit, donate_argnums=0)
def fold(total: jax.Array, product: jax.Array, rows: Any, columns: Any) -> jax.Array:
    """total + product times the factors of its rows and columns, in float64."""
    # The product of two factors first: the same for (t, t') and (t', t).
    factors: jax.Array = rows[:, None] * columns[None, :]
    return total + factors * product.astype(jnp.float64)


@partial(jax.jit, donate_argnums=0)
def divide(total: jax.Array, rows: Any, columns: Any, pixels: float) -> jax.Array:
    """C of the sum over static bins: times the pixels, over the totals of its rows and columns."""
    totals: jax.Array = rows[:, None] * columns[None, :]
    return total * pixels / totals


def pairs(tiles: Tiles) -> Iterator[tuple[int, int]]:
    """The tiles on and above the diagonal, row by row."""
    return ((i, j) for i in range(tiles.count) for j in range(i, tiles.count))
