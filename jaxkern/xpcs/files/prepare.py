"""Choice and correction of measured correlations before a fit: q, phi, frames, diagonal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxkern.xpcs.files.sources import Source

Array = NDArray[Any]

# Angles that differ by less are on a range's bound (degrees).
_ANGLE_TOLERANCE = 1e-9
# Entries of two rings whose angles differ by less look in the same direction (degrees): angles are
# means over the pixels of a bin, which are others in each ring.
_SAME_DIRECTION = 0.5


def select_phi(phi: ArrayLike, ranges: Iterable[Sequence[float]]) -> Array:
    """Which angles lie in any of the ranges, bounds included: [n] bool.

    A range (low, high) runs from low upwards to high on the circle, so that (350, 10), (-10, 10)
    and (350, 370) are the same 20 degrees. One of 360 degrees or more takes every angle.

    Args:
      phi: [n], degrees, any turn.
      ranges: pairs (low, high) in degrees.

    Raises:
      ValueError: a range that is not a pair of finite numbers, or no range at all.

    Example:
      >>> from jaxkern import xpcs
      >>> xpcs.select_phi([-5, 5, 90, 355], [(350, 2)]).tolist()
      [True, False, False, True]
    """
    angles = np.asarray(phi, np.float64)
    chosen = np.zeros(angles.shape, bool)
    pairs = [np.asarray(pair, np.float64) for pair in ranges]
    if not pairs:
        raise ValueError("no range of angles is given; wanted pairs (low, high) in degrees")
    for pair in pairs:
        if pair.shape != (2,) or not np.isfinite(pair).all():
            raise ValueError(f"range {pair.tolist()!r} is not a pair (low, high) in degrees")
        low, high = (float(bound) for bound in pair)
        width = high - low if high - low >= 360 else (high - low) % 360
        # Shifted by the tolerance first, so that an angle a rounding below `low` is not a turn off.
        above = (angles - low + _ANGLE_TOLERANCE) % 360
        chosen |= above <= width + 2 * _ANGLE_TOLERANCE
    return chosen


def same_direction(angle: float, others: ArrayLike) -> Array:
    """Which of the other angles are the same direction as this one, to half a degree: [n] bool."""
    apart = (np.asarray(others, np.float64) - angle + 180) % 360 - 180
    return np.asarray(np.abs(apart) <= _SAME_DIRECTION)


def select_q(q: ArrayLike, value: float, tolerance: float = 0.1, *, phi: ArrayLike) -> Array:
    """At each angle the entry with the q nearest to ``value``: [n] bool.

    The q of one ring may differ from angle to angle, as in older APS files. Angles without an entry
    near enough are left out. An entry gives way to a nearer one of another q whose angle is the
    same to half a degree; entries of equal q never give way to each other.

    Args:
      q: [n], 1/Angstrom.
      value: the q that is wanted.
      tolerance: the most that q may differ from ``value``, as a part of it.
      phi: [n], degrees, any turn.

    Raises:
      ValueError: q and phi of different lengths, or no q within the tolerance; the message lists
        those that are there.

    Example:
      >>> from jaxkern import xpcs
      >>> xpcs.select_q([0.004, 0.0053, 0.0055, 0.0058], 0.0054, phi=[0, 0, 90, 90]).tolist()
      [False, True, True, False]
    """
    momenta, angles = np.asarray(q, np.float64), np.asarray(phi, np.float64)
    if momenta.ndim != 1 or momenta.shape != angles.shape:
        raise ValueError(
            f"q has the shape {momenta.shape} and phi {angles.shape}; wanted [n] for both"
        )
    distance = np.abs(momenta - value)
    near = np.flatnonzero(distance <= tolerance * abs(value) * (1 + 1e-9))
    if not near.size:
        there = ", ".join(f"{x:.6g}" for x in np.unique(momenta)) or "none"
        raise ValueError(
            f"no q within {tolerance:.3g} of {value:.6g} 1/Angstrom (relative); there are {there}"
        )
    taken = np.zeros(momenta.shape, bool)
    for entry in near[np.argsort(distance[near], kind="stable")]:
        other = np.abs(momenta - momenta[entry]) > 1e-9 * np.abs(momenta[entry])
        taken[entry] = not (taken & other & same_direction(angles[entry], angles)).any()
    return taken


def correct_diagonal(c2: ArrayLike) -> Array:
    """Replaces the measured diagonal, an artefact, by its neighbours' mean: a new [..., n, n].

    d[i] becomes the mean of s[i-1] and s[i] (of the one that exists at the edges, or is a number)
    where s[i] = (C[i,i+1] + C[i+1,i]) / 2.

    Args:
      c2: [..., n, n], n at least 2.

    Raises:
      ValueError: matrices that are not square or of one frame.

    Example:
      >>> from jaxkern import xpcs
      >>> np.diag(xpcs.correct_diagonal([[9.0, 1, 2], [1, 9, 3], [2, 3, 9]])).tolist()
      [1.0, 2.0, 3.0]
    """
    values = np.array(c2, dtype=np.result_type(np.asarray(c2).dtype, np.float16))
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        raise ValueError(f"c2 is {list(values.shape)}; wanted [..., n, n] with n of 2 or more")
    side = (
        np.diagonal(values, 1, -2, -1).astype(np.float64)
        + np.diagonal(values, -1, -2, -1).astype(np.float64)
    ) / 2
    k = np.arange(values.shape[-1])
    values[..., k, k] = _between(side)
    return values


def _between(side: Array) -> Array:
    """The diagonal [..., n] that belongs to the side values [..., n-1]."""
    edge = np.full_like(side[..., :1], np.nan)
    before, after = np.concatenate([edge, side], -1), np.concatenate([side, edge], -1)
    mean = (before + after) / 2
    return np.where(np.isnan(before), after, np.where(np.isnan(after), before, mean))


def frame_window(n_t: int, start: int = 1, end: int | None = None) -> tuple[int, int]:
    """Frames counted from 1, both ends included, as a half-open range of rows counted from 0.

    Args:
      n_t: frames in the data.
      start: the first frame that is used.
      end: the last one; None or -1: the last there is.

    Raises:
      ValueError: a window outside the data or of fewer than 3 frames.

    Example:
      >>> from jaxkern import xpcs
      >>> xpcs.frame_window(100, 11, 20)
      (10, 20)
    """
    last = n_t if end is None or end == -1 else end
    if start < 1 or not start + 2 <= last <= n_t:
        raise ValueError(
            f"frames {start} to {last} of {n_t}; wanted 1 <= start, end <= {n_t} and 3 frames or "
            "more between them (frames count from 1)"
        )
    return start - 1, last


def frames_to_keep(n_t: int, bad: Iterable[int | Sequence[int]]) -> Array:
    """A mask [n_t] u8 that is 0 at bad frames (counted from 1); a pair is a range, ends included.

    Raises:
      ValueError: a frame that the data do not have.

    Example:
      >>> from jaxkern import xpcs
      >>> xpcs.frames_to_keep(6, [1, (4, 5)]).tolist()
      [0, 1, 1, 0, 0, 1]
    """
    keep = np.ones(n_t, np.uint8)
    for item in bad:
        pair = [item, item] if isinstance(item, int | np.integer) else [int(x) for x in item]
        if len(pair) != 2 or not 1 <= pair[0] <= pair[1] <= n_t:
            raise ValueError(
                f"bad frame {item!r}; wanted a frame of 1 to {n_t}, or a pair (first, last)"
            )
        keep[pair[0] - 1 : pair[1]] = 0
    return keep


class Prepared:
    """A source that shows some angles and frames of another, with the diagonal corrected.

    Args:
      source: what has ``shape`` [n, n_t, n_t], ``dtype`` and ``read(angle, first_row, stop_row)``.
      angles: positions in ``source``, or a mask [n]; None: all.
      frames: half-open range of rows, as `frame_window` gives; None: all.
      diagonal: whether to correct the diagonal, see `correct_diagonal`.

    Raises:
      ValueError: no angle chosen, positions or frames outside the source.
    """

    def __init__(
        self,
        source: Source,
        angles: ArrayLike | None = None,
        frames: tuple[int, int] | None = None,
        diagonal: bool = True,
    ) -> None:
        n, n_t, _ = source.shape
        chosen = np.arange(n) if angles is None else np.asarray(angles)
        if chosen.dtype == bool:
            if chosen.shape != (n,):
                raise ValueError(f"the mask of angles is {list(chosen.shape)}; wanted [{n}]")
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or not chosen.size:
            raise ValueError("no angle is chosen; widen the ranges of q or phi")
        if chosen.min() < 0 or chosen.max() >= n:
            raise ValueError(f"angles {chosen.tolist()} of a source that has {n}")
        first, stop = (0, n_t) if frames is None else frames
        if not 0 <= first < stop <= n_t:
            raise ValueError(f"frames {first} to {stop} of a source that has {n_t}")
        self.source = source
        self.angles = chosen
        self.frames = (first, stop)
        self.diagonal = diagonal
        self.shape = (len(chosen), stop - first, stop - first)
        self.dtype = np.dtype(source.dtype)
        self.symmetric = bool(getattr(source, "symmetric", False))
        self.quantization = getattr(source, "quantization", None)

    def read(self, angle: int, first_row: int, stop_row: int) -> Array:
        """Rows ``first_row`` to ``stop_row`` of angle ``angle``, counted among the shown ones."""
        first, stop = self.frames
        n = stop - first
        if not 0 <= first_row <= stop_row <= n:
            raise IndexError(f"rows {first_row} to {stop_row} of a matrix of {n} rows")
        # The row before and the one after hold the mirrored neighbours of the diagonal.
        low, high = max(first_row - 1, 0), min(stop_row + 1, n)
        if not self.diagonal or n < 2:
            low, high = first_row, stop_row
        entry = int(self.angles[angle])
        rows = self.source.read(entry, first + low, first + high)[:, first:stop]
        shown = np.array(rows[first_row - low : stop_row - low])
        if self.diagonal and n >= 2 and stop_row > first_row:
            k = np.arange(low, high - 1)
            side = (
                rows[k - low, k + 1].astype(np.float64) + rows[k + 1 - low, k].astype(np.float64)
            ) / 2
            i = np.arange(first_row, stop_row)
            shown[i - first_row, i] = _between(side)[i - low]
        return shown

    def load(self) -> Array:
        """Everything, in memory: [n, n_t, n_t]."""
        return np.stack([self.read(a, 0, self.shape[1]) for a in range(self.shape[0])])
