"""How the parameters of a chain are drawn: transform by transform, each image by its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.integers import to_int32
from jaxkern.image.chain.axis import is_static
from jaxkern.image.chain.plan import MAX_SIZE
from jaxkern.image.compose.batch import canonical
from jaxkern.image.compose.targets import passages, passed_boxes
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms.transform import Transform

Params = tuple[dict[str, Any], ...]


def drawn(transforms: Sequence[Transform], keys: Any, size: Any, objects: Any = ()) -> Params:
    """One dict of [N] arrays a transform, for images of `size`, numbers or [N].

    `objects`: boxes [N, K, 4] (left, top, right, bottom) and whether they are valid.
    """
    found: list[dict[str, Any]] = []
    last = max((k for k, t in enumerate(transforms) if t.needs_boxes), default=-1)
    for place, transform in enumerate(transforms):
        if not transform.parameters:
            found.append({})
        elif transform.per_sample:
            by = objects if transform.needs_boxes else ()
            found.append(_sample_each(transform, keys, place, size, by))
        else:
            found.append(_sample_once(transform, keys, place, size))
        if objects and place < last:
            (passage,) = passages([transform], found[-1:], size)
            objects = passed_boxes(objects[0], objects[1], passage)
        if place + 1 < len(transforms):
            size = transform._size_after(size, found[-1])
    return tuple(found)


def checked_size(size: Any, count: int) -> tuple[Any, Any]:
    if isinstance(size, Ragged):
        size = canonical(size)
        size = (size.height, size.width)
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"size={size!r}; wanted (height, width) or a Ragged batch")
    checked: list[Any] = []
    for name, side in zip(("height", "width"), size, strict=True):
        if isinstance(side, int | np.integer) and not isinstance(side, bool):
            if not 1 <= side <= MAX_SIZE:
                raise ValueError(f"{name}={side}; wanted 1 to 2**24")
            checked.append(int(side))
        elif hasattr(side, "shape") and side.shape == (count,) and side.dtype.kind in "iu":
            checked.append(jnp.asarray(to_int32(side, name)))
        else:
            raise ValueError(f"{name}={side!r}; wanted an integer, or an integer array [{count}]")
    return checked[0], checked[1]


def _sample_each(
    transform: Transform, keys: Any, place: int, size: Any, objects: Any = ()
) -> dict[str, Any]:
    sides = [side for side in size if not is_static(side)]

    def one(key: Any, objects: Any, sides: Any) -> dict[str, Any]:
        given = iter(sides)
        of_image = tuple(side if is_static(side) else next(given) for side in size)
        return transform.sample(jax.random.fold_in(key, place), of_image, *objects)

    return dict(jax.vmap(one)(keys, tuple(objects), sides))


def _sample_once(transform: Transform, keys: Any, place: int, size: Any) -> dict[str, Any]:
    if not is_static(*size):
        raise ValueError(
            f"{transform!r} mixes images of different sizes; resize or crop them to one size first"
        )
    count = keys.shape[0]
    if count == 0:
        return _sample_each(transform, keys, place, size)
    drawn = transform.sample(jax.random.fold_in(keys[0], place), size)
    return {name: jnp.broadcast_to(value, (count,)) for name, value in drawn.items()}
