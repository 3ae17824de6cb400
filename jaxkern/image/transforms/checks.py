"""Checks of the fields of transforms; messages are "name: expected ..., got ..."."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import as_int, check_integer
from jaxkern.image.chain.axis import Box, Size
from jaxkern.image.chain.plan import MAX_SIZE

Check = Callable[[Any, str], Any]  # (value, name) -> the value to store


def checked(check: Check, default: Any = dataclasses.MISSING) -> Any:
    """Return a dataclass field whose value is replaced by `check(value, name)`."""
    return dataclasses.field(default=default, metadata={"check": check})


def unexpected(name: str, expected: str, value: Any) -> str:
    return f"{name}: expected {expected}, got {value!r}"


def flag(value: Any, name: str) -> bool:
    return bool(value)


def optional(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def integer(low: int, high: int = 2**63 - 1) -> Check:
    return lambda value, name: check_integer(name, value, low, high)


def choice(*options: Any) -> Check:
    def check(value: Any, name: str) -> Any:
        if value not in options:
            raise ValueError(unexpected(name, f"one of {', '.join(map(repr, options))}", value))
        return options[options.index(value)]

    return check


warping = choice("bilinear", "nearest")
resampling = choice("bilinear", "nearest", "bicubic")
padding_mode = choice("constant", "edge", "reflect", "symmetric")


def _integers(value: Any, name: str, lengths: Sequence[int], low: int, expected: str) -> list[int]:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected Python integers, since it sets shapes, got {value}")
    single = as_int(value)
    items = value.tolist() if isinstance(value, np.ndarray | jax.Array) else value
    if single is not None:
        items = [single] * lengths[0]
    elif not isinstance(items, list | tuple) or len(items) not in lengths:
        raise ValueError(unexpected(name, expected, value))
    sides = [side for side in map(as_int, items) if side is not None and low <= side <= MAX_SIZE]
    if len(sides) < len(items):
        raise ValueError(unexpected(name, expected, value))
    return sides


def size_pair(value: Any, name: str) -> tuple[int, int]:
    """Check a height and a width from 1 to 2**24; one integer is a square."""
    sides = _integers(value, name, (1, 2), 1, "an integer or (height, width), from 1 to 2**24")
    return (sides[0], sides[-1])


def padding_sides(value: Any, name: str) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of an integer, (horizontal, vertical), or all four."""
    expected = (
        "an integer, (horizontal, vertical) or (left, top, right, bottom), from 0 to 2**24 "
        "(CenterCrop and RandomCrop crop)"
    )
    sides = _integers(value, name, (1, 2, 4), 0, expected)
    left, top, right, bottom = sides if len(sides) == 4 else (sides[0], sides[-1]) * 2
    return left, top, right, bottom


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


def _range(low: float, high: float, open_low: bool) -> tuple[str, Callable[[float], bool]]:
    """Return a description of a range, and a function that tells if a finite number is in it."""
    if low == -math.inf:
        bounds = "of any size" if high == math.inf else f"up to {high:g}"
    else:
        lower = f"above {low:g}" if open_low else f"from {low:g}"
        bounds = lower if high == math.inf else f"{lower} to {high:g}"

    def inside(value: float) -> bool:
        return low <= value <= high and math.isfinite(value) and not (open_low and value == low)

    return bounds, inside


def sequence(
    *lengths: int,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    ordered: bool = True,
    single: Callable[[float], tuple[float, ...]] | None = None,
) -> Check:
    """Return a check of finite numbers, in increasing pairs if `ordered`; `single` is for one."""
    bounds, inside = _range(low, high, open_low)
    expected = f"{' or '.join(map(str, lengths))} {'increasing ' * ordered}finite numbers {bounds}"

    def check(value: Any, name: str) -> tuple[float, ...]:
        alone = isinstance(value, numbers.Real) and single and not isinstance(value, bool)
        if not alone and (isinstance(value, str) or not isinstance(value, Sequence | np.ndarray)):
            raise TypeError(unexpected(name, expected, value))
        items = tuple(number(each, name, bounds) for each in ([value] if alone else value))
        if single is not None and len(items) == 1 and (alone or 1 in lengths):
            items = single(items[0])
        unordered = ordered and any(a > b for a, b in zip(items[::2], items[1::2], strict=False))
        if len(items) not in lengths or unordered or not all(map(inside, items)):
            raise ValueError(unexpected(name, expected, value))
        return items

    return check


positive_interval = sequence(2, low=0.0, open_low=True)


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


def bounded(low: float, high: float = math.inf, open_low: bool = False) -> Check:
    bounds, inside = _range(low, high, open_low)

    def check(value: Any, name: str) -> float:
        result = number(value, name, bounds)
        if not inside(result):
            raise ValueError(unexpected(name, f"a finite number {bounds}", value))
        return result

    return check


finite = bounded(-math.inf)
probability = bounded(0.0, 1.0)
positive = bounded(0.0, open_low=True)


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


def static_fill(value: Any, name: str) -> tuple[float, ...] | None:
    """Check the fill of a warp: numbers per channel, or None."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: expected numbers or None, since it is static, got a traced array")
    return None if value is None else per_channel(value, name)


def check_box(box: Box, size: Size, names: Sequence[str], where: str) -> None:
    """Reject boxes that leave the image, if both are known at trace time."""
    if not all(isinstance(number, int | np.ndarray) for number in (*box, *size)):
        return
    for k in range(2):
        arrays = (np.asarray(number, np.int64) for number in (box[k], box[k + 2], size[k]))
        start, length, side = (array.reshape(-1) for array in np.broadcast_arrays(*arrays))
        invalid = (start < 0) | (length < 1) | (start + length > side)
        if invalid.any():
            n = int(np.argmax(invalid))
            first, second = names[k], names[k + 2]
            raise ValueError(
                f"{where}: expected {first} from 0 and {second} from 1 with a sum up to "
                f"{side[n]}, the size of image {n}, got {first}={start[n]} and {second}={length[n]}"
            )
