"""Weights, forms and diagonals of two-time correlations, from exact matrices of static bins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import check_memory
from jaxkern.xpcs.correlators.results import TwoTimeResult

Smoothing: TypeAlias = Literal["static", "none"]
Form: TypeAlias = Literal["full"] | tuple[str, int] | tuple[str, int, int, int]

PARTS = 5  # parts of the run with a g2 each
_FORMS = '"full", ("t1t2", n) or ("age-lag", n_age, decade, n_lag)'


@dataclass(frozen=True)
class Weights:
    """Factors that relate the exact sums of static bins to C of their dynamic bin.

    With M_s[t, t'] the sum of I[p, t] I[p, t'] over the pixels of static bin s,

        C[t, t'] = pixels * sum_s factors[s, t] factors[s, t'] M_s[t, t'] / (totals[t] totals[t'])

    """

    factors: NDArray[np.float64]  # [n_static, N] 1 / mean of the static bin; 1 where it is 0
    totals: NDArray[np.float64]  # [N] sum of the weighted counts; 1 where it is 0
    lit: NDArray[np.bool_]  # [N] true where that sum is not 0; C is undefined for other frames
    pixels: int  # of the dynamic bin

    @classmethod
    def from_sums(cls, sums: NDArray[Any], pixels: NDArray[Any], smoothing: Smoothing) -> Weights:
        """Return the weights for exact sums [n_static, N] of counts over pixels [n_static]."""
        sums, count = np.asarray(sums), np.asarray(pixels, np.int64)[:, None]
        if smoothing == "static":
            counted = sums != 0
            factors = np.where(counted, count / np.where(counted, sums, 1), 1.0)
            totals = np.where(counted, count, 0).sum(axis=0).astype(np.float64)
        else:
            factors = np.ones(sums.shape)
            totals = sums.sum(axis=0).astype(np.float64)
        lit = totals != 0
        return cls(factors, np.where(lit, totals, 1.0), lit, int(count.sum()))


def check_smoothing(smoothing: Any) -> None:
    """Raise ValueError for anything but "static" and "none"."""
    if smoothing not in ("static", "none"):
        raise ValueError(f'smoothing: expected "static" or "none", got {smoothing!r:.80}')


def check_form(form: Any) -> Form:
    """Return a form as "full", or a tuple of its name and its numbers, which are checked."""
    if form == "full":
        return "full"
    kind, *numbers = form if isinstance(form, tuple | list) and form else (None,)
    if kind == "t1t2" and len(numbers) == 1:
        return "t1t2", check_integer('n of form ("t1t2", n)', numbers[0], 1)
    if kind == "age-lag" and len(numbers) == 3:
        named = zip(("n_age", "decade", "n_lag"), numbers, strict=True)
        n_age, decade, n_lag = (check_integer(f'{k} of form "age-lag"', x, 1) for k, x in named)
        return "age-lag", n_age, decade, n_lag
    raise ValueError(f"form: expected {_FORMS}, got {form!r:.80}")


def form_edges(form: Form, n_frames: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the edges of the cells of a form along its first and second axis, in frames."""
    if isinstance(form, str):
        frames = np.arange(n_frames + 1, dtype=np.float64)
        return frames, frames
    cells = form[1]
    if cells > n_frames:
        raise ValueError(f"form: expected at most {n_frames} cells (frames), got {form!r}")
    edges = np.linspace(0.0, n_frames, cells + 1)
    if len(form) == 2:
        return edges, edges
    _, _, decade, n_lag = form
    lags = list(range(min(decade, n_frames) + 1))
    while lags[-1] < n_frames:
        step = lags[-1] * 10.0 ** (1 / n_lag)
        lags.append(min(max(lags[-1] + 1, round(step)), n_frames))
    return edges, np.array(lags, np.float64)


class TwoTimeReduction:
    """Reduction of blocks of C of each bin to the requested form, g2 and its parts.

    `begin` is called once per bin, before its blocks. A block [R, K] holds the frames t1 = row ..
    row + R - 1 and t2 = column .. column + K - 1. It begins at the diagonal (row = column, K >= R)
    or is above it, and each pair t1 <= t2 is in one block. C is NaN in bins without `begin`, and in
    rows and columns of frames that are not `good` [N] or have no counts in the bin.
    """

    def __init__(
        self,
        n_bins: int,
        good: NDArray[np.bool_],
        form: Any = "full",
        dtype: DTypeLike = np.float64,
        out: Any = None,
    ) -> None:
        self._n = len(good)
        self._good = good
        self.form = check_form(form)
        self.t1, self.t2 = form_edges(self.form, self._n)
        self._is_full = self.form == "full"
        self._cells_shape = (len(self.t1) - 1, len(self.t2) - 1)
        dtype = np.dtype(dtype)
        if dtype not in (np.float64, np.float32):
            raise ValueError(f"dtype: expected float64 or float32, got {dtype.name}")
        shape = (n_bins, *self._cells_shape)
        if out is None:
            check_memory(
                f"two-time correlations {list(shape)}",
                int(np.prod(shape)) * dtype.itemsize,
                "use out= (a memory map or an HDF5 data set), dtype=np.float32, fewer bins=, or "
                "another form=",
            )
            out = np.empty(shape, dtype)
        elif tuple(out.shape) != shape:
            raise ValueError(f"out: expected the shape {shape}, got {tuple(out.shape)}")
        self.c2 = out
        self._seen = np.zeros(n_bins, bool)
        self._defined = np.zeros((n_bins, self._n), bool)
        self._diagonals = np.zeros((n_bins, self._n))
        self._part = self._n // PARTS
        self._part_diagonals = np.zeros((n_bins, PARTS, self._part))
        if not self._is_full:
            size = self._cells_shape[0] * self._cells_shape[1]
            self._sums = np.zeros((n_bins, size))
            self._counts = np.zeros((n_bins, size), np.int64)
            # The first cell by t, or by t1 + t2; the second cell by t, or by lag.
            times = np.arange(self._n)
            first = times if self.form[0] == "t1t2" else np.arange(2 * self._n - 1) / 2
            self._first = np.searchsorted(self.t1, first, "right") - 1
            self._second = np.searchsorted(self.t2, times, "right") - 1

    def begin(self, index: int, lit: NDArray[np.bool_]) -> None:
        """Start the bin at `index`; `lit` [N] is true for frames with counts in it."""
        self._seen[index] = True
        self._defined[index] = self._good & lit

    def add(self, index: int, row: int, column: int, block: NDArray[Any]) -> None:
        """Add a block of C of the bin at `index` of the result."""
        rows, columns = slice(row, row + block.shape[0]), slice(column, column + block.shape[1])
        counts, values, stored = None, block, block
        defined = self._defined[index]
        if not (defined[rows].all() and defined[columns].all()):
            counts = np.logical_and.outer(defined[rows], defined[columns])
            values, stored = np.where(counts, block, 0.0), np.where(counts, block, np.nan)
        self._add_diagonals(index, row, column, values)
        if self._is_full:
            self._write(index, rows, columns, stored)
        else:
            self._add_cells(index, row, column, values, counts)

    def _add_diagonals(self, index: int, row: int, column: int, values: NDArray[Any]) -> None:
        lags, sums = diagonal_sums(values, column - row)
        self._diagonals[index, lags] += sums
        for part in range(PARTS if self._part else 0):
            first, stop = part * self._part, (part + 1) * self._part
            r = slice(max(first - row, 0), max(min(stop - row, values.shape[0]), 0))
            c = slice(max(first - column, 0), max(min(stop - column, values.shape[1]), 0))
            if r.start < r.stop and c.start < c.stop:
                lags, sums = diagonal_sums(values[r, c], column + c.start - row - r.start)
                self._part_diagonals[index, part, lags] += sums

    def _write(self, index: int, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        if rows.start == columns.start:
            n = block.shape[0]
            lower = np.tri(n, k=-1, dtype=bool)
            self.c2[index, rows, rows] = np.where(lower, block[:, :n].T, block[:, :n])
            columns, block = slice(rows.stop, columns.stop), block[:, n:]
        if block.shape[1]:
            self.c2[index, rows, columns] = block
            self.c2[index, columns, rows] = block.T

    def _add_cells(
        self,
        index: int,
        row: int,
        column: int,
        values: NDArray[Any],
        counts: NDArray[np.bool_] | None,
    ) -> None:
        t1 = np.arange(row, row + values.shape[0])[:, None]
        t2 = np.arange(column, column + values.shape[1])
        lag = t2 - t1
        if self.form[0] == "t1t2":
            first, second = self._first[t1], self._second[t2]
        else:
            first, second = self._first[t1 + t2], self._second[np.abs(lag)]
        cells = first * self._cells_shape[1] + second
        used = lag >= 0 if counts is None else counts & (lag >= 0)
        if not used.all():
            cells, values = cells[used], values[used]
        cells, size = cells.ravel(), self._sums.shape[1]
        self._sums[index] += np.bincount(cells, values.ravel(), minlength=size)
        self._counts[index] += np.bincount(cells, minlength=size)

    def result(self, fields: Mapping[str, Any]) -> TwoTimeResult:
        """Complete `c2` after all blocks were added, and return it with `BinLabels.fields`."""
        n_pairs = pairs_by_lag(self._defined)
        in_parts = self._defined[:, : PARTS * self._part]
        n_pairs_parts = pairs_by_lag(in_parts.reshape(len(self._seen), PARTS, self._part))
        empty = (self._good & ~self._defined).sum(axis=1)
        counts = None
        if self._is_full:
            for index in np.flatnonzero(~self._seen):
                self.c2[index] = np.nan
        else:
            means = _mean(self._sums, self._counts).reshape(-1, *self._cells_shape)
            counts = self._counts.reshape(means.shape)
            if self.form[0] == "t1t2":  # mirror the pairs t1 > t2
                upper = np.triu(np.ones(self._cells_shape, bool))
                means = np.where(upper, means, means.transpose(0, 2, 1))
                counts = np.where(upper, counts, counts.transpose(0, 2, 1))
            self.c2[...] = means
        return TwoTimeResult(
            c2=self.c2,
            g2=_mean(self._diagonals, n_pairs).T,
            g2_parts=np.moveaxis(_mean(self._part_diagonals, n_pairs_parts), 0, -1),
            t1=self.t1,
            t2=self.t2,
            n_pairs=n_pairs.T,
            n_pairs_parts=np.moveaxis(n_pairs_parts, 0, -1),
            n_empty=np.where(self._seen, empty, 0),
            c2_pairs=counts,
            **fields,
        )


def diagonal_sums(block: NDArray[Any], lag: int) -> tuple[slice, NDArray[np.float64]]:
    """Return the lags of 0 or more of a block whose first element has `lag`, and their sums."""
    rows, columns = block.shape
    # The block is written into rows of one length and read in rows that are one element longer.
    # Each row is thereby shifted left by one element from the row before, so that a diagonal
    # becomes a column.
    flat = np.zeros(rows * (rows + columns))
    flat[:-rows].reshape(rows, -1)[:, rows - 1 :] = block
    sums = flat.reshape(rows, -1).sum(axis=0)[:-1]
    first = lag - (rows - 1)
    return slice(max(first, 0), lag + columns), sums[max(-first, 0) :]


def pairs_by_lag(defined: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the numbers [..., N] of pairs of defined frames [..., N] at each lag 0 .. N - 1."""
    n = defined.shape[-1]
    pairs = np.empty(defined.shape, np.int64)
    for index in np.ndindex(defined.shape[:-1]):
        frames = defined[index]
        if frames.all():
            pairs[index] = np.arange(n, 0, -1)
        else:
            spectrum = np.fft.rfft(frames.astype(np.float64), 2 * n)
            pairs[index] = np.rint(np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[:n])
    return pairs


def _mean(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[np.float64] = np.where(counts > 0, sums / counts, np.nan)
    return means
