"""Selection and correction of measured correlations before a fit: q, phi, frames, diagonal."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxkern.xpcs.files.sources import Source

Array = NDArray[Any]
Correction = Literal["basic", "statistical", "interpolation"]

# Neighbours of the diagonal that a correction uses, in frames.
_REACH = {"basic": 1, "interpolation": 1, "statistical": 3}

_ANGLE_TOLERANCE = 1e-9  # degrees, for the bounds of a range
# Largest difference in degrees between angles of entries with the same direction. Angles are means
# over the pixels of a bin, and each ring has other pixels.
_SAME_DIRECTION = 0.5


def select_phi(phi: ArrayLike, ranges: Iterable[Sequence[float]]) -> Array:
    """Return a mask [n] of the angles that are in any of the ranges, including their bounds.

    A range (low, high) goes from low upwards to high on the circle: (350, 10), (-10, 10) and
    (350, 370) are the same 20 degrees. A range of 360 degrees or more contains every angle.

    Args:
      phi: [n], degrees, modulo 360.
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
        raise ValueError("ranges: expected pairs (low, high) in degrees, got none")
    for pair in pairs:
        if pair.shape != (2,) or not np.isfinite(pair).all():
            raise ValueError(f"ranges: expected pairs (low, high), got {pair.tolist()!r}")
        low, high = (float(bound) for bound in pair)
        width = high - low if high - low >= 360 else (high - low) % 360
        # Add the tolerance first, so that an angle slightly below `low` is not shifted by 360.
        above = (angles - low + _ANGLE_TOLERANCE) % 360
        chosen |= above <= width + 2 * _ANGLE_TOLERANCE
    return chosen


def same_direction(angle: float, others: ArrayLike) -> Array:
    """Return a mask [n] of the other angles that equal this one to half a degree."""
    apart = (np.asarray(others, np.float64) - angle + 180) % 360 - 180
    return np.asarray(np.abs(apart) <= _SAME_DIRECTION)


def select_q(q: ArrayLike, value: float, tolerance: float = 0.1, *, phi: ArrayLike) -> Array:
    """Return a mask [n] of the entries with the q nearest to ``value`` at each angle.

    The q of one ring may differ from angle to angle, as in older APS files. Angles without an entry
    within the tolerance are left out. An entry is replaced by a nearer one of another q whose angle
    is the same to half a degree. Entries of equal q never replace each other.

    Args:
      q: [n], 1/Angstrom.
      value: the requested q.
      tolerance: the largest relative difference between q and ``value``.
      phi: [n], degrees, modulo 360.

    Raises:
      ValueError: q and phi of different lengths, or no q within the tolerance.

    Example:
      >>> from jaxkern import xpcs
      >>> xpcs.select_q([0.004, 0.0053, 0.0055, 0.0058], 0.0054, phi=[0, 0, 90, 90]).tolist()
      [False, True, True, False]
    """
    momenta, angles = np.asarray(q, np.float64), np.asarray(phi, np.float64)
    if momenta.ndim != 1 or momenta.shape != angles.shape:
        raise ValueError(f"q, phi: expected [n] for both, got {momenta.shape} and {angles.shape}")
    distance = np.abs(momenta - value)
    near = np.flatnonzero(distance <= tolerance * abs(value) * (1 + 1e-9))
    if not near.size:
        available = ", ".join(f"{x:.6g}" for x in np.unique(momenta)) or "none"
        raise ValueError(
            f"q: expected {available} 1/Angstrom within {tolerance:.3g} (relative), got {value:.6g}"
        )
    selected = np.zeros(momenta.shape, bool)
    for entry in near[np.argsort(distance[near], kind="stable")]:
        other = np.abs(momenta - momenta[entry]) > 1e-9 * np.abs(momenta[entry])
        selected[entry] = not (selected & other & same_direction(angles[entry], angles)).any()
    return selected


def correct_diagonal(c2: ArrayLike, method: Correction = "basic") -> Array:
    """Return C with the measured diagonal, an artefact, computed from its neighbours.

    Args:
      c2: [..., n, n], n at least 2.
      method: ``"basic"``: the mean of s[i-1] and s[i] with s[i] = (C[i,i+1] + C[i+1,i]) / 2.
        ``"interpolation"``: the mean of C[i-1,i] and C[i+1,i], in the column only, and C[i,i+1] and
        C[i-1,i] in the corners. ``"statistical"``: the median of the row and the column up to 3
        frames from the diagonal. Neighbours that are NaN or outside are left out.

    Raises:
      ValueError: matrices that are not square or have one frame; an unknown method.

    Example:
      >>> from jaxkern import xpcs
      >>> np.diag(xpcs.correct_diagonal([[9.0, 1, 2], [1, 9, 3], [2, 3, 9]])).tolist()
      [1.0, 2.0, 3.0]
    """
    values = np.array(c2, dtype=np.result_type(np.asarray(c2).dtype, np.float16))
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        raise ValueError(f"c2: expected [..., n, n] with n of 2 or more, got {list(values.shape)}")
    k = np.arange(values.shape[-1])
    values[..., k, k] = _diagonal(values, k, 0, method)
    return values


def _diagonal(rows: Array, frames: Array, first: int, method: Correction) -> Array:
    """Return the diagonal [..., f] at some frames [f]; rows [..., m, n] begin with row `first`.

    The rows include those within `_REACH` frames of the frames, as far as they exist.
    """
    if method not in _REACH:
        raise ValueError(f"method: expected one of {', '.join(_REACH)}, got {method!r}")
    n, neighbours = rows.shape[-1], []
    for step in (k for k in range(-_REACH[method], _REACH[method] + 1) if k):
        other = np.clip(frames + step, 0, n - 1)
        pair = rows[..., frames - first, other], rows[..., other - first, frames]
        row, column = (
            np.where(other == frames + step, value.astype(np.float64), np.nan) for value in pair
        )
        one = {"basic": (row + column) / 2, "interpolation": np.where(frames == 0, row, column)}
        neighbours += [row, column] if method == "statistical" else [one[method]]
    average = np.nanmedian if method == "statistical" else np.nanmean
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(Mean of empty|All-NaN) slice", RuntimeWarning)
        return np.asarray(average(np.stack(neighbours), axis=0))


def frame_window(n_t: int, start: int = 1, end: int | None = None) -> tuple[int, int]:
    """Convert frames counted from 1, both ends included, to a half-open range counted from 0.

    Args:
      n_t: number of frames in the data.
      start: the first frame to use.
      end: the last frame to use; None or -1 for the last frame of the data, which also replaces a
        later one, with a warning.

    Raises:
      ValueError: a start outside the data, or a window of fewer than 3 frames.

    Example:
      >>> from jaxkern import xpcs
      >>> xpcs.frame_window(100, 11, 20)
      (10, 20)
    """
    last = n_t if end is None or end == -1 else end
    if last > n_t:
        text = f"end: the data have {n_t} frames, so frame {n_t} replaces frame {last}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        last = n_t
    if start < 1 or not start + 2 <= last:
        raise ValueError(f"start, end: expected 3 frames within 1 to {n_t}, got {start} to {last}")
    return start - 1, last


def frames_to_keep(n_t: int, bad: Iterable[int | Sequence[int]]) -> Array:
    """Return a mask [n_t] u8 that is 0 at bad frames, counted from 1.

    Args:
      n_t: number of frames in the data.
      bad: frames, or pairs (first, last) for ranges that include both ends.

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
            raise ValueError(f"bad: expected frames or pairs from 1 to {n_t}, got {item!r}")
        keep[pair[0] - 1 : pair[1]] = 0
    return keep


class Prepared:
    """View of some angles and frames of a source, with the diagonal corrected.

    Args:
      source: a `Source` [n, n_t, n_t].
      angles: indices into ``source``, or a mask [n]; None for all.
      frames: half-open range of rows, see `frame_window`; None for all.
      diagonal: the method that corrects the diagonal, see `correct_diagonal`, True for
        ``"basic"``, or False.

    Raises:
      ValueError: no angle, or indices or frames outside of the source.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> source = jk.xpcs.as_source(np.ones((3, 8, 8)))
      >>> jk.xpcs.Prepared(source, angles=[0, 2], frames=(2, 8)).load().shape
      (2, 6, 6)
    """

    def __init__(
        self,
        source: Source,
        angles: ArrayLike | None = None,
        frames: tuple[int, int] | None = None,
        diagonal: bool | Correction = True,
    ) -> None:
        n, n_t, _ = source.shape
        chosen = np.arange(n) if angles is None else np.asarray(angles)
        if chosen.dtype == bool:
            if chosen.shape != (n,):
                raise ValueError(f"angles: expected a mask [{n}], got {list(chosen.shape)}")
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or not chosen.size:
            raise ValueError("angles: expected at least one; widen the ranges of q or phi")
        if chosen.min() < 0 or chosen.max() >= n:
            raise ValueError(f"angles: expected indices from 0 to {n - 1}, got {chosen.tolist()}")
        first, stop = (0, n_t) if frames is None else frames
        if not 0 <= first < stop <= n_t:
            raise ValueError(f"frames: expected a range within 0 to {n_t}, got {first} to {stop}")
        self.source = source
        self.angles = chosen
        self.frames = (first, stop)
        self.diagonal: bool | Correction = "basic" if diagonal is True else diagonal
        self.shape = (len(chosen), stop - first, stop - first)
        self.dtype = np.dtype(source.dtype)
        self.symmetric = bool(getattr(source, "symmetric", False))
        self.quantization = getattr(source, "quantization", None)

    def read(self, angle: int, first_row: int, stop_row: int) -> Array:
        """Return rows ``first_row`` to ``stop_row - 1`` of an angle of this view."""
        first, stop = self.frames
        n = stop - first
        if not 0 <= first_row <= stop_row <= n:
            raise IndexError(f"expected rows within 0 to {n}, got {first_row} to {stop_row}")
        method = self.diagonal if n >= 2 and stop_row > first_row else False
        # The rows before and after hold the mirrored neighbours of the diagonal.
        reach = _REACH[method] if isinstance(method, str) else 0
        low, high = max(first_row - reach, 0), min(stop_row + reach, n)
        entry = int(self.angles[angle])
        rows = self.source.read(entry, first + low, first + high)[:, first:stop]
        result = np.array(rows[first_row - low : stop_row - low])
        if isinstance(method, str):
            i = np.arange(first_row, stop_row)
            result[i - first_row, i] = _diagonal(rows, i, low, method)
        return result

    def load(self) -> Array:
        """Read all matrices into memory: [n, n_t, n_t]."""
        return np.stack([self.read(a, 0, self.shape[1]) for a in range(self.shape[0])])
