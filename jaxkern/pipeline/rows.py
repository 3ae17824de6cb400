"""Batches as rows: select, join and describe them, for arrays and for Ragged images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.image import Ragged
from jaxkern.ring.rows import gather_rows

Data = dict[str, Any]


def is_ragged(value: Any) -> bool:
    """True for a Ragged batch, which this module treats as a leaf of trees."""
    return isinstance(value, Ragged)


def has_ragged(data: Any) -> bool:
    """True if a tree of fields holds Ragged images, whose buffers have no fixed length."""
    return any(map(is_ragged, jax.tree.leaves(data, is_leaf=is_ragged)))


def row_count(value: Any) -> int | None:
    """Return the number of rows of a field; None if it has no leading axis."""
    if is_ragged(value):
        return int(value.height.shape[0])
    shape = getattr(value, "shape", ())
    return int(shape[0]) if shape else None


def check_rows(data: Any, rows: int, who: str) -> None:
    """Raise if `data`, which `who` returned, is not a batch of `rows` rows."""
    if not isinstance(data, dict) or not data:
        kind = "an empty dict" if isinstance(data, dict) else type(data).__name__
        raise TypeError(f"{who} returned {kind}; expected a dict of fields")
    for path, value in jax.tree_util.tree_flatten_with_path(data, is_leaf=is_ragged)[0]:
        count = row_count(value)
        if count != rows:
            name = f"batch{jax.tree_util.keystr(path)}"
            text = described(value) if hasattr(value, "shape") else repr(value)[:80]
            raise ValueError(
                f"{who} returned {name} = {text}{'' if count is None else f' with {count} rows'}; "
                f"expected the {rows} rows of the batch on the leading axis: a node must keep "
                "every record (drop none, add none)"
            )


def on_host(data: Any) -> Any:
    """Return the same tree with NumPy arrays."""
    return jax.tree.map(np.asarray, data)


def read_only(data: Any) -> Any:
    """Return the same tree with read-only views of its arrays."""

    def view(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not value.flags.writeable:
            return value
        value = value.view()
        value.flags.writeable = False
        return value

    return jax.tree.map(view, data)


def canonical(array: np.ndarray) -> np.ndarray:
    """Convert to the dtype that JAX uses: 64-bit types only if JAX has them enabled."""
    return array.astype(canonical_dtype(array.dtype), copy=False)


def canonical_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype that JAX uses for a dtype of any byte order; raise TypeError without one."""
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    result: np.dtype = jax.dtypes.canonicalize_dtype(native)
    return result


def images_of(ragged: Ragged, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Return images [H, W, C] of a Ragged batch, without a copy."""
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
    """Return images as a Ragged batch; its buffer length is rounded up."""
    return Ragged.from_list(
        images, max_height=max_height, max_width=max_width, buffer_size="rounded"
    )


def joined(parts: Sequence[tuple[Data, Sequence[int] | np.ndarray | slice]]) -> Data:
    """Return a batch of the selected rows of several batches, in order, as NumPy arrays."""

    def join(*values: Any) -> Any:
        if is_ragged(values[0]):
            images: list[np.ndarray] = []
            for value, (_, rows) in zip(values, parts, strict=True):
                images += images_of(value, np.arange(len(value))[rows])
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
    """Return a batch of `count` rows, assembled from (batch, rows of it, their positions).

    It uses the arrays `out` if their shapes and dtypes match.
    """

    def place(*values: Any) -> Any:
        if is_ragged(values[0]):
            images: list[Any] = [None] * count
            for value, (_, rows, positions) in zip(values, parts, strict=True):
                selected = images_of(value, np.arange(len(value))[rows])
                for at, image in zip(positions.tolist(), selected, strict=True):
                    images[at] = image
            return ragged_of(images, values[0].max_height, values[0].max_width)
        first = np.asarray(values[0])
        return gathered(values, np.empty((count, *first.shape[1:]), first.dtype))

    def gathered(values: Sequence[Any], target: np.ndarray) -> np.ndarray:
        return gather_rows([np.asarray(value) for value in values], order, target)

    datas = [data for data, _, _ in parts]
    order, start = np.empty(count, np.int64), 0
    for data, rows, positions in parts:
        length = row_count(jax.tree.leaves(data, is_leaf=is_ragged)[0]) or 0
        order[positions] = np.arange(start, start + length)[rows]
        start += length
    if out is None or not all(_same_fields(data, out) for data in datas):
        return dict(jax.tree.map(place, *datas, is_leaf=is_ragged))
    for target, *values in zip(jax.tree.leaves(out), *map(jax.tree.leaves, datas), strict=True):
        gathered(values, target)
    return out


def _same_fields(one: Data, other: Data) -> bool:
    """True if batches have the same fields, with equal dtypes and equal shapes of a row."""
    trees: list[Any] = [jax.tree.structure(data) for data in (one, other)]
    return trees[0] == trees[1] and all(
        (a.dtype, a.shape[1:]) == (b.dtype, b.shape[1:])
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def row_of(data: Data, row: int) -> Data:
    """Return one record of a batch: NumPy arrays without the leading axis."""
    return next(records_of(data, [row]))


def records_of(data: Data, rows: Iterable[int]) -> Iterator[Data]:
    """Yield records of a batch, as `row_of` does, but flatten its tree only once."""
    structure: Any
    leaves, structure = jax.tree.flatten(data, is_leaf=is_ragged)
    pickers = [
        _ragged_row(leaf) if is_ragged(leaf) else np.asarray(leaf).__getitem__ for leaf in leaves
    ]
    for row in rows:
        yield structure.unflatten([pick(row) for pick in pickers])


def _ragged_row(images: Ragged) -> Callable[[int], Any]:
    return lambda row: images_of(images, [row])[0]


def spec_of(data: Any) -> Any:
    """Return the tree of ShapeDtypeStruct of a batch."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)), data
    )


def described(value: Any) -> str:
    """Return the dtype and shape of a field as text."""
    if is_ragged(value):
        sides = f"up to {value.max_height}x{value.max_width}x{value.channels}"
        return f"Ragged[{row_count(value)}, {sides}, {value.buffer.shape[0]} bytes]"
    return f"{value.dtype}{list(value.shape)}"


def signature(data: Any) -> dict[str, str]:
    """Return the dtype and shape of every leaf as text, by name."""
    leaves = jax.tree_util.tree_flatten_with_path(data, is_leaf=is_ragged)[0]
    return {jax.tree_util.keystr(path): described(value) for path, value in leaves}
