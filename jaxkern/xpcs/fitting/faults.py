"""Frames without numbers and angles without signal, found before a fit and left out of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.starting import RowSample


def frames_without_numbers(sample: RowSample) -> NDArray[np.intp]:
    """Frames that are NaN in every sampled row of some angle, as a column.

    Angles without any number are no matter of frames; nor are rows without any, such as those that
    cannot be read.
    """
    numbers = np.isfinite(sample.values)
    columns = np.arange(numbers.shape[2])
    away = sample.good & (sample.rows[:, None] != columns)
    # A frame without numbers that was sampled as a row says nothing of the columns.
    rows = (numbers & away).any(axis=2)
    seen = (rows[:, :, None] & away).any(axis=1)
    found = (numbers & rows[:, :, None] & away).any(axis=1)
    return np.flatnonzero((seen & ~found).any(axis=0))


def listed(frames: Sequence[int], most: int = 10) -> str:
    """The numbers of frames for a message, the first ones of many."""
    more = f" and {len(frames) - most} more" if len(frames) > most else ""
    return ", ".join(map(str, frames[:most])) + more


def angles_without_signal(sample: RowSample) -> NDArray[np.bool_]:
    """[n_phi]: angles with the same number at every sampled point, such as 0 throughout."""
    away = sample.rows[:, None] != np.arange(sample.values.shape[2])
    counts = (sample.good & sample.good[sample.rows][:, None] & away) & np.isfinite(sample.values)
    lowest = np.min(sample.values, axis=(1, 2), where=counts, initial=np.inf)
    highest = np.max(sample.values, axis=(1, 2), where=counts, initial=-np.inf)
    return np.asarray(lowest == highest)
