"""From exact matrices of static bins to two-time correlations: weights, forms, diagonals.

What `twotime` and `twotime_events` share: `Weights` are the two vectors between the whole-number
matrix of a static bin and C of its dynamic bin, `TwoTimeReduction` takes C block by block and keeps
what was asked for: all of it, or means over cells of it, and the means of its diagonals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators.labels import BinLabels
from jaxkern.xpcs.correlators.results import TwoTimeResult
from jaxkern.xpcs.correlators.selection import FrameSelection

Smoothing: TypeAlias = Literal["static", "none"]
Form: TypeAlias = Literal["full"] | tuple[str, int] | tuple[str, int, int, int]

PARTS = 5  # of the run, whose g2 is taken alone
_FORMS = '"full", ("t1t2", n) or ("age-lag", n_age, decade, n_lag)'


@dataclass(frozen=True)
class Weights:
    """What makes C of the exact sums of a dynamic bin's static bins.

    With M_s[t, t'] the sum of I[p, t] I[p, t'] over the pixels of static bin s,

        C[t, t'] = pixels * sum_s factors[s, t] factors[s, t'] M_s[t, t'] / (totals[t] totals[t'])

    Attributes:
      factors: [n_static, N], 1 / mean of the static bin in each frame, and 1 where that is 0.
      totals: [N] the sum of the weighted counts, and 1 where that is 0.
      lit: [N] True where that sum is not 0; C is undefined in the rows and columns of other frames.
      pixels: of the dynamic bin.
    """

    factors: NDArray[np.float64]
    totals: NDArray[np.float64]
    lit: NDArray[np.bool_]
    pixels: int

    @classmethod
    def of(cls, sums: NDArray[Any], pixels: NDArray[Any], smoothing: Smoothing) -> Weights:
        """Of the exact sums [n_static, N] of the static bins' counts and their pixels [n_static].

        With `smoothing` "static" a static bin with light sums up to its number of pixels.
        """
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
    """Raises ValueError for anything but "static" and "none"."""
    if smoothing not in ("static", "none"):
        raise ValueError(f'smoothing is {smoothing!r:.80}; wanted "static" or "none"')


def check_form(form: Any) -> Form:
    """A form as a tuple of its name and its numbers, or "full".

    Raises:
      ValueError: for a form that is none.
    """
    if form == "full":
        return "full"
    kind, *numbers = form if isinstance(form, tuple | list) and form else (None,)
    if kind == "t1t2" and len(numbers) == 1:
        return "t1t2", check_integer('n of form ("t1t2", n)', numbers[0], 1)
    if kind == "age-lag" and len(numbers) == 3:
        names = ("n_age", "decade", "n_lag")
        n_age, decade, n_lag = (
            check_integer(f'{name} of form "age-lag"', number, 1)
            for name, number in zip(names, numbers, strict=True)
        )
        return "age-lag", n_age, decade, n_lag
    raise ValueError(f"form is {form!r:.80}; wanted {_FORMS}")


def form_edges(form: Form, n_frames: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges of the cells of a form along its first and second axis, in frames.

    Raises:
      ValueError: for more cells of the times, or of the age, than frames: some would be empty.
    """
    if isinstance(form, str):
        whole = np.arange(n_frames + 1, dtype=np.float64)
        return whole, whole
    cells = form[1]
    if cells > n_frames:
        raise ValueError(
            f"form is {form!r}, {cells} cells of {n_frames} frames; wanted at most {n_frames}, a "
            "frame each"
        )
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
    """Takes blocks of C of each bin, and gives the form that was asked for, g2 and its parts.

    `begin` starts a bin with the frames that have counts in it, before its blocks. Blocks [R, K]
    stand at frames t1 = row .. row + R - 1 and t2 = column .. column + K - 1, and together hold
    each pair t1 <= t2 once. A block either begins at the diagonal (row = column, K >= R; what it
    holds below the diagonal is not looked at) or lies above it (column >= row + R). For the same
    bits whatever the blocks are, give the same blocks in the same order: means are sums over
    blocks.

    Args:
      n_bins: how many bins there are; a bin that never begins is NaN.
      good: [N] whether a frame counts; C is NaN in rows and columns of others, and of frames
        without counts in the bin, and means leave them out.
      form, dtype: of the result.
      out: where C goes, [n_bins, ...] of the form: an array, a memory map or an HDF5 data set.

    Raises:
      ValueError: for a form or dtype that is none, more cells than frames, and an `out` of another
        shape.
      MemoryError: for matrices that memory has no room for.
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
        self._whole = self.form == "full"
        self._cells_shape = (len(self.t1) - 1, len(self.t2) - 1)
        dtype = np.dtype(dtype)
        if dtype not in (np.float64, np.float32):
            raise ValueError(f"dtype is {dtype.name}; wanted float64 or float32")
        shape = (n_bins, *self._cells_shape)
        if out is None:
            needed, free = int(np.prod(shape)) * dtype.itemsize, available_bytes()
            if needed > free:
                raise MemoryError(
                    f"two-time correlations {list(shape)} take {needed / 1e9:,.3g} GB and "
                    f"{free / 1e9:,.3g} GB of memory are left: give out=, a memory map or an HDF5 "
                    "data set, dtype=np.float32, fewer bins=, or another form="
                )
            out = np.empty(shape, dtype)
        elif tuple(out.shape) != shape:
            raise ValueError(f"out has the shape {tuple(out.shape)}; wanted {shape}")
        self.c2 = out
        self._seen = np.zeros(n_bins, bool)
        self._defined = np.zeros((n_bins, self._n), bool)
        self._diagonals = np.zeros((n_bins, self._n))
        self._part = self._n // PARTS
        self._part_diagonals = np.zeros((n_bins, PARTS, self._part))
        if not self._whole:
            size = self._cells_shape[0] * self._cells_shape[1]
            self._sums = np.zeros((n_bins, size))
            self._counts = np.zeros((n_bins, size), np.int64)
            self._first, self._second = self._cell_numbers()

    def _cell_numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The cell of each t (or of each t1 + t2) along the first axis and of each t (or lag)."""
        times = np.arange(self._n)
        if self.form[0] == "t1t2":
            first = np.searchsorted(self.t1, times, "right") - 1
            return first, first
        ages = np.searchsorted(self.t1, np.arange(2 * self._n - 1) / 2, "right") - 1
        return ages, np.searchsorted(self.t2, times, "right") - 1

    def begin(self, place: int, lit: NDArray[np.bool_]) -> None:
        """Starts the bin at `place`; lit [N]: the frames that have counts in it."""
        self._seen[place] = True
        self._defined[place] = self._good & lit

    def add(self, place: int, row: int, column: int, block: NDArray[Any]) -> None:
        """Takes a block of C of the bin at `place`."""
        rows, columns = slice(row, row + block.shape[0]), slice(column, column + block.shape[1])
        at_diagonal = row == column and block.shape[1] >= block.shape[0]
        if not (at_diagonal or column >= rows.stop) or columns.stop > self._n:
            raise ValueError(
                f"a block {list(block.shape)} at ({row}, {column}) of {self._n} frames; wanted one "
                "that begins at the diagonal or lies above it"
            )
        counts, values, shown = None, block, block
        defined = self._defined[place]
        if not (defined[rows].all() and defined[columns].all()):
            counts = np.logical_and.outer(defined[rows], defined[columns])
            values, shown = np.where(counts, block, 0.0), np.where(counts, block, np.nan)
        self._add_diagonals(place, row, column, values)
        if self._whole:
            self._write(place, rows, columns, shown, at_diagonal)
        else:
            self._add_cells(place, row, column, values, counts)

    def _add_diagonals(self, place: int, row: int, column: int, values: NDArray[Any]) -> None:
        lags, sums = diagonal_sums(values, column - row)
        self._diagonals[place, lags] += sums
        for part in range(PARTS if self._part else 0):
            first, stop = part * self._part, (part + 1) * self._part
            r = slice(max(first - row, 0), max(min(stop - row, values.shape[0]), 0))
            c = slice(max(first - column, 0), max(min(stop - column, values.shape[1]), 0))
            if r.start < r.stop and c.start < c.stop:
                lags, sums = diagonal_sums(values[r, c], column + c.start - row - r.start)
                self._part_diagonals[place, part, lags] += sums

    def _write(
        self, place: int, rows: slice, columns: slice, block: NDArray[Any], at_diagonal: bool
    ) -> None:
        if at_diagonal:
            n = block.shape[0]
            lower = np.tri(n, k=-1, dtype=bool)
            self.c2[place, rows, rows] = np.where(lower, block[:, :n].T, block[:, :n])
            columns, block = slice(rows.stop, columns.stop), block[:, n:]
        if block.shape[1]:
            self.c2[place, rows, columns] = block
            self.c2[place, columns, rows] = block.T

    def _add_cells(
        self,
        place: int,
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
        chosen = lag >= 0 if counts is None else counts & (lag >= 0)
        if not chosen.all():
            cells, values = cells[chosen], values[chosen]
        cells, size = cells.ravel(), self._sums.shape[1]
        self._sums[place] += np.bincount(cells, values.ravel(), minlength=size)
        self._counts[place] += np.bincount(cells, minlength=size)

    def finish(self) -> TwoTimeMeans:
        """Means of what all blocks gave, and the last of `c2`."""
        n_pairs = pairs_by_lag(self._defined)
        g2 = _mean(self._diagonals, n_pairs)
        in_parts = self._defined[:, : PARTS * self._part]
        in_parts = in_parts.reshape(len(self._seen), PARTS, self._part)
        n_pairs_parts = pairs_by_lag(in_parts)
        parts = _mean(self._part_diagonals, n_pairs_parts)
        empty = (self._good & ~self._defined).sum(axis=1)
        common = (
            g2.T,
            np.moveaxis(parts, 0, -1),
            n_pairs.T,
            np.moveaxis(n_pairs_parts, 0, -1),
            np.where(self._seen, empty, 0),
        )
        if self._whole:
            for place in np.flatnonzero(~self._seen):
                self.c2[place] = np.nan
            return TwoTimeMeans(*common, None)
        means = _mean(self._sums, self._counts).reshape(-1, *self._cells_shape)
        counts = self._counts.reshape(means.shape)
        if self.form[0] == "t1t2":  # the pairs t1 > t2 are the same ones
            upper = np.triu(np.ones(self._cells_shape, bool))
            means = np.where(upper, means, means.transpose(0, 2, 1))
            counts = np.where(upper, counts, counts.transpose(0, 2, 1))
        self.c2[...] = means
        return TwoTimeMeans(*common, counts)


class TwoTimeMeans(NamedTuple):
    """g2 [N, n_bins] and its parts [5, N // 5, n_bins], the pairs of each, and of c2's cells.

    n_empty: [n_bins] good frames without counts in the bin.
    """

    g2: NDArray[np.float64]
    g2_parts: NDArray[np.float64]
    n_pairs: NDArray[np.int64]
    n_pairs_parts: NDArray[np.int64]
    n_empty: NDArray[np.int64]
    c2_pairs: NDArray[np.int64] | None


def twotime_result(
    reduction: TwoTimeReduction,
    selection: FrameSelection,
    labels: BinLabels,
    frame_time: float | None,
    config: Mapping[str, Any],
) -> TwoTimeResult:
    """The result of a selection's blocks.

    Args:
      frame_time: from one frame of the source to the next, in s.
      config: what was asked beside the selection, with "smoothing" and "form".
    """
    means = reduction.finish()
    step = None if frame_time is None else frame_time * selection.stride * selection.average
    return TwoTimeResult(
        c2=reduction.c2,
        g2=means.g2,
        g2_parts=means.g2_parts,
        bins=labels.bins,
        t1=reduction.t1,
        t2=reduction.t2,
        q=labels.q,
        phi=labels.phi,
        n_pixels=labels.n_pixels,
        n_frames=selection.n,
        frame_time=step,
        qmap=labels.qmap,
        overview=None,
        config={**config, **selection.config()},
        n_pairs=means.n_pairs,
        n_pairs_parts=means.n_pairs_parts,
        n_empty=means.n_empty,
        c2_pairs=means.c2_pairs,
    )


def diagonal_sums(block: NDArray[Any], lag: int) -> tuple[slice, NDArray[np.float64]]:
    """The lags from 0 on of a block whose first element has `lag`, and their diagonals' sums."""
    rows, columns = block.shape
    # Written in rows of one length and read in rows that are one longer, each row moves one place
    # to the left of the one before: a diagonal becomes a column.
    flat = np.zeros(rows * (rows + columns))
    flat[:-rows].reshape(rows, -1)[:, rows - 1 :] = block
    sums = flat.reshape(rows, -1).sum(axis=0)[:-1]
    first = lag - (rows - 1)
    return slice(max(first, 0), lag + columns), sums[max(-first, 0) :]


def pairs_by_lag(defined: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[..., N] the number of pairs of defined frames [..., N] at each lag 0 .. N - 1."""
    n = defined.shape[-1]
    pairs = np.empty(defined.shape, np.int64)
    for place in np.ndindex(defined.shape[:-1]):
        of_run = defined[place]
        if of_run.all():
            pairs[place] = np.arange(n, 0, -1)
        else:
            spectrum = np.fft.rfft(of_run.astype(np.float64), 2 * n)
            pairs[place] = np.rint(np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[:n])
    return pairs


def _mean(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[np.float64] = np.where(counts > 0, sums / counts, np.nan)
    return means
