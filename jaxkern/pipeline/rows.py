"""Batches as rows: taking, joining and describing them, for arrays and for Ragged images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.alignment import aligned_array
from jaxkern.image import Ragged
from jaxkern.ring.rows import gather_rows

Data = dict[str, Any]


def is_ragged(value: Any) -> bool:
    """Whether a field is a Ragged batch; a leaf of the trees here."""
    return isinstance(value, Ragged)


def row_count(value: Any) -> int | None:
    """The rows of a field, or None where it has no leading axis."""
    if is_ragged(value):
        return int(value.height.shape[0])
    shape = getattr(value, "shape", ())
    return int(shape[0]) if shape else None


def check_rows(data: Any, rows: int, who: str) -> None:
    """Raises where `data` is no batch of so many rows; `who` returned it."""
    if not isinstance(data, dict) or not data:
        raise TypeError(
            f"{who} returned {'an empty dict' if isinstance(data, dict) else type(data).__name__}; "
            "wanted a dict of fields"
        )
    for path, value in jax.tree_util.tree_flatten_with_path(data, is_leaf=is_ragged)[0]:
        name = jax.tree_util.keystr(path)
        found = row_count(value)
        if found != rows:
            given = described(value) if hasattr(value, "shape") else repr(value)[:80]
            raise ValueError(
                f"{who} returned batch{name} = {given}"
                f"{'' if found is None else f' with {found} rows'}; wanted the {rows} rows of the "
                "batch on its leading axis: a node keeps every record (drop none, add none)"
            )


def on_host(data: Any) -> Any:
    """The same tree with NumPy arrays."""
    return jax.tree.map(np.asarray, data)


def read_only(data: Any) -> Any:
    """The same tree with arrays that cannot be written through."""

    def view(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not value.flags.writeable:
            return value
        value = value.view()
        value.flags.writeable = False
        return value

    return jax.tree.map(view, data)


def canonical(array: np.ndarray) -> np.ndarray:
    """As jnp.asarray would take it: 64-bit types only where JAX has them enabled."""
    return array.astype(canonical_dtype(array.dtype), copy=False)


def canonical_dtype(dtype: np.dtype) -> np.dtype:
    """What JAX makes of a dtype, of any byte order; raises TypeError where it has none."""
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    found: np.dtype = jax.dtypes.canonicalize_dtype(native)
    return found


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy that JAX on the CPU takes as it is, where it would copy one at another address.

    `jax.device_put` takes an aligned array as it is also with ``may_alias=False``.
    """
    copy = aligned_array(array.shape, array.dtype)
    copy[...] = array
    return copy


def images_of(ragged: Ragged, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Images [H, W, C] of a Ragged batch, without a copy."""
    buffer = np.asarray(ragged.buffer)
    offsets, heights, widths = (
        np.asarray(side).tolist() for side in (ragged.offset, ragged.height, ragged.width)
    )
    images = []
    for r in rows:
        shape = (heights[r], widths[r], ragged.channels)
        images.append(buffer[offsets[r] : offsets[r] + math.prod(shape)].reshape(shape))
    return images


def ragged_of(images: Sequence[np.ndarray], max_height: int, max_width: int) -> Ragged:
    """Images as a Ragged batch whose buffer has one of few lengths."""
    return Ragged.from_list(
        images, max_height=max_height, max_width=max_width, buffer_size="rounded"
    )


def joined(parts: Sequence[tuple[Data, Sequence[int] | np.ndarray | slice]]) -> Data:
    """The batch made of rows of batches, in order; NumPy arrays."""

    def join(*values: Any) -> Any:
        if is_ragged(values[0]):
            images: list[np.ndarray] = []
            for value, (_, rows) in zip(values, parts, strict=True):
                picked = np.arange(len(value))[rows]
                images += images_of(value, picked)
            return ragged_of(images, values[0].max_height, values[0].max_width)
        pieces = [np.asarray(v)[rows] for v, (_, rows) in zip(values, parts, strict=True)]
        if len(pieces) == 1 and pieces[0].flags.writeable:
            return pieces[0]
        return np.concatenate(pieces)

    return dict(jax.tree.map(join, *(data for data, _ in parts), is_leaf=is_ragged))


def scattered(
    parts: Sequence[tuple[Data, np.ndarray | slice, np.ndarray]],
    count: int,
    out: Data | None = None,
) -> Data:
    """The batch of so many rows made of (batch, its rows, their places) of batches alike.

    Args:
      out: arrays to fill, where they fit.
    """

    def place(*values: Any) -> Any:
        if is_ragged(values[0]):
            images: list[Any] = [None] * count
            for value, (_, rows, places) in zip(values, parts, strict=True):
                found = images_of(value, np.arange(len(value))[rows])
                for at, image in zip(places.tolist(), found, strict=True):
                    images[at] = image
            return ragged_of(images, values[0].max_height, values[0].max_width)
        first = np.asarray(values[0])
        return gathered(values, np.empty((count, *first.shape[1:]), first.dtype))

    def gathered(values: Sequence[Any], target: np.ndarray) -> np.ndarray:
        return gather_rows([np.asarray(value) for value in values], order, target)

    datas = [data for data, _, _ in parts]
    order, start = np.empty(count, np.int64), 0
    for data, rows, places in parts:
        length = _length(data)
        order[places] = np.arange(start, start + length)[rows]
        start += length
    if out is None or not all(_is_alike(data, out) for data in datas):
        return dict(jax.tree.map(place, *datas, is_leaf=is_ragged))
    for target, *values in zip(jax.tree.leaves(out), *map(jax.tree.leaves, datas), strict=True):
        gathered(values, target)
    return out


def _length(data: Data) -> int:
    """The rows of a batch."""
    found: int = row_count(jax.tree.leaves(data, is_leaf=is_ragged)[0]) or 0
    return found


def _is_alike(one: Data, other: Data) -> bool:
    """Whether batches have the same fields, of the same shapes and dtypes but for the rows."""
    trees: list[Any] = [jax.tree.structure(data) for data in (one, other)]
    return trees[0] == trees[1] and all(
        (a.dtype, a.shape[1:]) == (b.dtype, b.shape[1:])
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def row_of(data: Data, row: int) -> Data:
    """One record of a batch: NumPy arrays without the leading axis."""

    def pick(value: Any) -> Any:
        return images_of(value, [row])[0] if is_ragged(value) else np.asarray(value)[row]

    return dict(jax.tree.map(pick, data, is_leaf=is_ragged))


def spec_of(data: Any) -> Any:
    """The tree of ShapeDtypeStruct of a batch."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)), data
    )


def resized_spec(data: Data, rows: int) -> Data | None:
    """The shapes of a batch of another number of rows; None where it has Ragged images."""
    if any(map(is_ragged, jax.tree.leaves(data, is_leaf=is_ragged))):
        return None  # the length of their buffer depends on the images
    return dict(jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), data))


def described(value: Any) -> str:
    """A field in words: dtype and shape."""
    if is_ragged(value):
        sides = f"up to {value.max_height}x{value.max_width}x{value.channels}"
        return f"Ragged[{row_count(value)}, {sides}, {value.buffer.shape[0]} bytes]"
    return f"{value.dtype}{list(value.shape)}"


def signature(data: Any) -> dict[str, str]:
    """Every leaf's dtype and shape in words, by its name."""
    leaves = jax.tree_util.tree_flatten_with_path(data, is_leaf=is_ragged)[0]
    return {jax.tree_util.keystr(path): described(value) for path, value in leaves}
