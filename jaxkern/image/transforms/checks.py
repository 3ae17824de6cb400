"""Argument checks of the image transforms; messages are "name: expected ..., got ..."."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import as_int
from jaxkern.image.chain.plan import MAX_SIZE

INTERPOLATIONS = ("bilinear", "nearest")
RESAMPLINGS = ("bilinear", "nearest", "bicubic")
PADDINGS = ("constant", "edge", "reflect", "symmetric")


def unexpected(name: str, expected: str, value: Any) -> str:
    """Return the message for an invalid argument."""
    return f"{name}: expected {expected}, got {value!r}"


def _integers(
    value: Any, name: str, lengths: Sequence[int], low: int, expected: str
) -> tuple[int, ...]:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected Python integers, since it sets shapes, got {value}")
    single = as_int(value)
    items = value.tolist() if isinstance(value, np.ndarray | jax.Array) else value
    if single is not None:
        items = [single] * lengths[0]
    elif not isinstance(items, list | tuple) or len(items) not in lengths:
        raise ValueError(unexpected(name, expected, value))
    sides = [as_int(item) for item in items]
    if not all(side is not None and low <= side <= MAX_SIZE for side in sides):
        raise ValueError(unexpected(name, expected, value))
    return tuple(side for side in sides if side is not None)


def size_pair(value: Any, name: str = "size") -> tuple[int, int]:
    """Check a height and a width from 1 to 2**24; one integer is a square."""
    sides = _integers(value, name, (1, 2), 1, "an integer or (height, width), from 1 to 2**24")
    return (sides[0], sides[-1])


def padding_sides(value: Any, name: str = "padding") -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of an integer, (horizontal, vertical), or all four."""
    expected = (
        "an integer, (horizontal, vertical) or (left, top, right, bottom), from 0 to 2**24 "
        "(CenterCrop and RandomCrop crop)"
    )
    sides = _integers(value, name, (1, 2, 4), 0, expected)
    if len(sides) == 4:
        return (sides[0], sides[1], sides[2], sides[3])
    return (sides[0], sides[-1], sides[0], sides[-1])


def padding_mode(value: Any, fill: Any) -> str:
    """Check a padding mode; only a constant one allows a fill with one value per channel."""
    mode = choice(value, "padding_mode", PADDINGS)
    if mode != "constant" and not isinstance(fill, jax.core.Tracer) and np.size(fill) > 1:
        raise ValueError(f"padding_mode: expected 'constant' with fill={fill!r}, got {mode!r}")
    return mode


def check_mirrored_padding(
    mode: str, before: tuple[Any, Any], after: tuple[Any, Any], size: tuple[Any, Any], where: str
) -> None:
    """Reject borders wider than the image that they mirror, if both are known."""
    if mode not in ("reflect", "symmetric"):
        return
    for first, last, side, name in zip(before, after, size, ("height", "width"), strict=True):
        if not all(isinstance(number, int) for number in (first, last, side)):
            continue
        limit = side - 1 if mode == "reflect" else side
        if max(first, last) > limit:
            raise ValueError(
                f"{where}: expected a border of at most {limit} pixels for padding_mode={mode!r} "
                f"and an image {name} of {side}, got {max(first, last)}"
            )


def interval(value: Any, name: str, low: float, open_low: bool) -> tuple[float, float]:
    """Check two finite numbers in increasing order, from `low`."""
    bound = f"above {low:g}" if open_low else f"from {low:g}"
    message = unexpected(name, f"two finite numbers in increasing order, {bound}", value)
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray) or len(value) != 2:
        raise ValueError(message)
    first, second = (number(each, name, bound) for each in value)
    finite = math.isfinite(first) and math.isfinite(second) and first <= second
    if not finite or first < low or (open_low and first <= low):
        raise ValueError(message)
    return (first, second)


def number(value: Any, name: str, bounds: str) -> float:
    """Check a number; `bounds` describe it in the message and are not checked."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected a Python number {bounds}, got {value}")
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(unexpected(name, f"a number {bounds}", value)) from None


def probability(value: Any, name: str = "p") -> float:
    """Check a number from 0 to 1."""
    result = number(value, name, "from 0 to 1")
    if not 0.0 <= result <= 1.0:
        raise ValueError(unexpected(name, "a probability from 0 to 1", value))
    return result


def positive(value: Any, name: str) -> float:
    """Check a finite number above 0."""
    result = number(value, name, "above 0")
    if not (math.isfinite(result) and result > 0):
        raise ValueError(unexpected(name, "a finite number above 0", value))
    return result


def choice(value: Any, name: str, options: tuple[str, ...]) -> str:
    """Check that a word is one of the options."""
    if value not in options:
        raise ValueError(unexpected(name, f"one of {', '.join(map(repr, options))}", value))
    return str(value)


def per_channel(value: Any, name: str) -> Any:
    """Return one finite number, or one per channel, as a tuple; traced arrays are unchanged."""
    expected = "a finite number or one per channel (1, 3 or 4)"
    if isinstance(value, jax.core.Tracer):
        if value.ndim > 1 or value.size not in (1, 3, 4):
            raise ValueError(f"{name}: expected {expected}, got shape {value.shape}")
        return value
    array = np.asarray(value)
    numeric = array.dtype.kind in "iuf" or array.dtype.name == "bfloat16"
    if array.ndim > 1 or array.size not in (1, 3, 4) or not numeric:
        raise ValueError(unexpected(name, expected, value))
    values = tuple(float(item) for item in array.reshape(-1))
    if not all(math.isfinite(item) for item in values):
        raise ValueError(unexpected(name, expected, value))
    return values


def check_box(
    box: tuple[Any, Any, Any, Any], size: tuple[Any, Any], names: Sequence[str], where: str
) -> None:
    """Reject boxes that leave the image, if both are known at trace time."""
    if not all(isinstance(number, int | np.ndarray) for number in (*box, *size)):
        return
    for start, length, side, (first, second) in (
        (box[0], box[2], size[0], (names[0], names[2])),
        (box[1], box[3], size[1], (names[1], names[3])),
    ):
        arrays = (np.asarray(number, np.int64) for number in (start, length, side))
        start, length, side = (array.reshape(-1) for array in np.broadcast_arrays(*arrays))
        invalid = (start < 0) | (length < 1) | (start + length > side)
        if invalid.any():
            n = int(np.argmax(invalid))
            raise ValueError(
                f"{where}: expected {first} from 0 and {second} from 1 with a sum up to "
                f"{side[n]}, the size of image {n}, got {first}={start[n]} and {second}={length[n]}"
            )
