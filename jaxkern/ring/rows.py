"""Rows of several arrays, in any order, as one array: each is copied once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxkern.core import registry


def byte_rows(array: np.ndarray) -> np.ndarray:
    """View uint8 [N, bytes of a row] of an array [N, ...] whose rows have no gaps."""
    return array.reshape(len(array), math.prod(array.shape[1:])).view(np.uint8)


def gather_rows(arrays: Sequence[np.ndarray], rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Rows of arrays that are thought one behind the other, written to `out`, which it returns.

    Native code copies them without the interpreter's lock, where no value is to be converted.

    Args:
      arrays: [n_k, ...], alike but for their lengths.
      rows: integers [N].
      out: [N, ...].
    Raises: IndexError for a row that is not there.

    >>> parts = [np.array([[1, 2], [3, 4]]), np.array([[5, 6]])]
    >>> gather_rows(parts, np.array([2, 0, 2]), np.empty((3, 2), int)).tolist()
    [[5, 6], [1, 2], [5, 6]]
    """
    library = registry.module("cpu")
    if library is not None and _is_copied(arrays, out):
        parts = [byte_rows(array) for array in arrays]
        flat = out.reshape(-1).view(np.uint8)
        library.gather_rows(parts, np.ascontiguousarray(rows, np.int64), flat)
        return out
    ends = np.cumsum([len(array) for array in arrays])
    if rows.size and not (rows.min() >= 0 and rows.max() < ends[-1]):
        raise IndexError(f"rows {rows.min()} to {rows.max()} of {ends[-1]}")
    which = np.searchsorted(ends, rows, side="right")
    for number in np.flatnonzero(np.bincount(which)).tolist():
        places = np.flatnonzero(which == number)
        array = arrays[number]
        out[places] = array[rows[places] - (ends[number] - len(array))]
    return out


def _is_copied(arrays: Sequence[np.ndarray], out: np.ndarray) -> bool:
    """Whether rows become those of `out` byte by byte."""
    return (
        out.flags.c_contiguous
        and out.flags.writeable
        and not out.dtype.hasobject
        and all(
            array.dtype == out.dtype
            and array.shape[1:] == out.shape[1:]
            and array[:1].flags.c_contiguous
            for array in arrays
        )
    )
