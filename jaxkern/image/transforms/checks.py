"""Argument checks of the image transforms: what was given, what was wanted, what to do."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.image.chain.plan import MAX_SIZE

INTERPOLATIONS = ("bilinear", "nearest")
RESAMPLINGS = ("bilinear", "nearest", "bicubic")
PADDINGS = ("constant", "edge", "reflect", "symmetric")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _integers(value: Any, name: str, lengths: Sequence[int], wanted: str) -> tuple[int, ...]:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced, but it fixes shapes; give Python integers ({wanted})")
    if _is_integer(value):
        return (int(value),)
    items = value.tolist() if isinstance(value, np.ndarray | jax.Array) else value
    fits = isinstance(items, list | tuple) and len(items) in lengths
    if fits and all(_is_integer(item) for item in items):
        return tuple(int(item) for item in items)
    raise ValueError(f"{name}={value!r}; wanted {wanted}")


def _within_limit(value: Any, name: str, found: Sequence[int], wanted: str) -> None:
    if max(found) > MAX_SIZE:
        raise ValueError(f"{name}={value!r} is above 2**24 pixels; wanted {wanted}, none above it")


def whole(value: Any, name: str, low: int | None = None, high: int | None = None) -> int:
    """A whole number within bounds."""
    bounds = "" if low is None else f" from {low}" if high is None else f" from {low} to {high}"
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced, but it fixes shapes; give a Python integer{bounds}")
    if (
        not _is_integer(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        raise ValueError(f"{name}={value!r}; wanted an integer{bounds}")
    return int(value)


def size_pair(value: Any, name: str = "size") -> tuple[int, int]:
    """A height and a width from 1 to 2**24; one integer is a square."""
    wanted = "a positive integer or (height, width)"
    found = _integers(value, name, (1, 2), wanted)
    if min(found) < 1:
        raise ValueError(f"{name}={value!r} has a size below 1; wanted {wanted}")
    _within_limit(value, name, found, wanted)
    return (found[0], found[-1])


def padding_sides(value: Any, name: str = "padding") -> tuple[int, int, int, int]:
    """Left, top, right, bottom from an integer, (horizontal, vertical), or all four."""
    wanted = "an integer, (horizontal, vertical) or (left, top, right, bottom), none below 0"
    found = _integers(value, name, (1, 2, 4), wanted)
    if min(found) < 0:
        raise ValueError(f"{name}={value!r}; wanted {wanted}; crop with CenterCrop or RandomCrop")
    _within_limit(value, name, found, wanted)
    if len(found) == 4:
        return (found[0], found[1], found[2], found[3])
    return (found[0], found[-1], found[0], found[-1])


def padding_mode(value: Any, fill: Any) -> str:
    """A mode of padding, and that a fill of channels goes with a constant one only."""
    mode = choice(value, "padding_mode", PADDINGS)
    if mode != "constant" and not isinstance(fill, jax.core.Tracer) and np.size(fill) > 1:
        raise ValueError(
            f"padding_mode={mode!r} does not use fill={fill!r}; leave fill out, or give "
            "padding_mode='constant'"
        )
    return mode


def mirrored_padding(
    mode: str, before: tuple[Any, Any], after: tuple[Any, Any], size: tuple[Any, Any], where: str
) -> None:
    """Rejects borders that are wider than the image that they mirror, where both are known."""
    if mode not in ("reflect", "symmetric"):
        return
    for first, last, whole, name in zip(before, after, size, ("height", "width"), strict=True):
        if not all(isinstance(number, int) for number in (first, last, whole)):
            continue
        most = whole - 1 if mode == "reflect" else whole
        if max(first, last) > most:
            raise ValueError(
                f"{where}: padding_mode={mode!r} with a border of {max(first, last)} pixels, but "
                f"the image's {name} is {whole}; wanted at most {most}. Use 'edge', or pad less"
            )


def interval(value: Any, name: str, low: float, open_low: bool) -> tuple[float, float]:
    """Two finite numbers in increasing order, from `low` up."""
    bound = f"above {low:g}" if open_low else f"from {low:g}"
    wanted = f"two finite numbers in increasing order, {bound}"
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray) or len(value) != 2:
        raise ValueError(f"{name}={value!r}; wanted {wanted}")
    first, second = (number(each, name, bound) for each in value)
    good = math.isfinite(first) and math.isfinite(second) and first <= second
    if not good or first < low or (open_low and first <= low):
        raise ValueError(f"{name}={value!r}; wanted {wanted}")
    return (first, second)


def number(value: Any, name: str, bounds: str) -> float:
    """A number; `bounds` are said where it is none, and not checked."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced; give a Python number {bounds}")
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}; wanted a number {bounds}") from None


def probability(value: Any, name: str = "p") -> float:
    """A number from 0 to 1."""
    found = number(value, name, "from 0 to 1")
    if not 0.0 <= found <= 1.0:
        raise ValueError(f"{name}={value!r}; wanted a probability from 0 to 1")
    return found


def positive(value: Any, name: str) -> float:
    """A finite number above 0."""
    found = number(value, name, "above 0")
    if not (math.isfinite(found) and found > 0):
        raise ValueError(f"{name}={value!r}; wanted a finite number above 0")
    return found


def choice(value: Any, name: str, options: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in options:
        raise ValueError(f"{name}={value!r}; wanted one of {', '.join(map(repr, options))}")
    return str(value)


def per_channel(value: Any, name: str) -> Any:
    """One finite number, or one a channel: a tuple of floats, or the traced array itself."""
    wanted = "a number or one number per channel (1, 3 or 4)"
    if isinstance(value, str):
        raise ValueError(f"{name}={value!r}; wanted {wanted}")
    if isinstance(value, jax.core.Tracer):
        if value.ndim > 1 or value.size not in (1, 3, 4):
            raise ValueError(f"{name} has shape {value.shape}; wanted {wanted}")
        return value
    array = np.asarray(value)
    numeric = array.dtype.kind in "iuf" or array.dtype.name == "bfloat16"
    if array.ndim > 1 or array.size not in (1, 3, 4) or not numeric:
        raise ValueError(f"{name}={value!r}; wanted {wanted}")
    found = tuple(float(item) for item in array.reshape(-1))
    if not all(math.isfinite(item) for item in found):
        raise ValueError(f"{name}={value!r} is not finite; wanted {wanted}")
    return found


def concrete_box(
    box: tuple[Any, Any, Any, Any], size: tuple[Any, Any], names: Sequence[str], where: str
) -> None:
    """Rejects boxes that leave the image, where both are known without running anything."""
    if not all(isinstance(number, int | np.ndarray) for number in (*box, *size)):
        return
    for start, length, whole, names_of in (
        (box[0], box[2], size[0], (names[0], names[2])),
        (box[1], box[3], size[1], (names[1], names[3])),
    ):
        wide = (np.asarray(number, np.int64) for number in (start, length, whole))
        start, length, whole = np.broadcast_arrays(*wide)
        bad = (start < 0) | (length < 1) | (start + length > whole)
        if bad.any():
            at = int(np.argmax(bad.reshape(-1)))
            begin, extent = int(start.reshape(-1)[at]), int(length.reshape(-1)[at])
            raise ValueError(
                f"{where}: {names_of[0]}={begin} and {names_of[1]}={extent} of image {at} leave "
                f"the image of {int(whole.reshape(-1)[at])} pixels; wanted {names_of[0]} from 0, "
                f"{names_of[1]} from 1, and their sum within the image"
            )
