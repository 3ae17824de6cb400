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
#: tree of the fields of a batch, and the dtype and shape of a row, or the limits of Ragged images,
#: for each leaf
Fields = tuple[Any, list[Any]]


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
    if all(row_count(value) == rows for value in jax.tree.leaves(data, is_leaf=is_ragged)):
        return
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


def on_host(data: Data) -> Data:
    """Return the same fields as NumPy arrays, in a new dict."""
    return {
        name: value if type(value) is np.ndarray else jax.tree.map(np.asarray, value)
        for name, value in data.items()
    }


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
    return jax.dtypes.canonicalize_dtype(native)


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


def joined(
    parts: Sequence[tuple[Data, np.ndarray | slice]],
    positions: Sequence[np.ndarray] | None = None,
    out: Data | None = None,
    check: Callable[[Sequence[Fields]], None] | None = None,
) -> Data:
    """Return a batch of the selected rows of several batches as NumPy arrays.

    The rows are in order, or those of each part at its `positions`. The arrays `out` are used if
    their fields and number of rows are equal. The rows of a single slice may be a view. `check`
    raises an error if the fields of the parts differ.
    """
    in_order = positions is None and all(isinstance(rows, slice) for _, rows in parts)
    if in_order and len(parts) == 1 and not has_ragged(parts[0][0]):
        arrays = jax.tree.map(lambda values: np.asarray(values)[parts[0][1]], parts[0][0])
        return dict(jax.tree.map(lambda x: x if x.flags.writeable else x.copy(), arrays))
    leaves, fields = zip(*(flattened(data) for data, _ in parts), strict=True)
    if check is not None:
        check(fields)
    elif any(tree != fields[0][0] for tree, _ in fields):
        raise ValueError(f"fields differ between batches: {[str(tree) for tree, _ in fields]}")
    selected, start = [], 0
    for (_, rows), values in zip(parts, leaves, strict=True):
        count = row_count(values[0]) or 0
        selected.append(start + (np.arange(count)[rows] if isinstance(rows, slice) else rows))
        start += count
    order = np.concatenate(selected)
    if positions is not None:
        order[np.concatenate(positions)] = order.copy()

    def join(values: Sequence[Any], target: np.ndarray | None) -> Any:
        if is_ragged(values[0]):
            images = [image for value in values for image in images_of(value, range(len(value)))]
            chosen = [images[row] for row in order.tolist()]
            return ragged_of(chosen, values[0].max_height, values[0].max_width)
        arrays = [np.asarray(value) for value in values]
        if target is None:
            target = np.empty((len(order), *arrays[0].shape[1:]), arrays[0].dtype)
        if in_order:
            pieces = [array[rows] for array, (_, rows) in zip(arrays, parts, strict=True)]
            return np.concatenate(pieces, out=target)
        return gather_rows(arrays, order, target)

    targets: list[Any] = [None] * len(leaves[0])
    if out is not None:
        arrays, kinds = flattened(out)
        if {len(array) for array in arrays} == {len(order)} and all(f == kinds for f in fields):
            targets = arrays
    tree: Any = fields[0][0]
    return dict(tree.unflatten(list(map(join, zip(*leaves, strict=True), targets))))


def flattened(data: Data) -> tuple[list[Any], Fields]:
    """Return the leaves of a batch, and its fields: their tree, and the kind of each leaf."""
    leaves, tree = jax.tree.flatten(data, is_leaf=is_ragged)
    kinds = [
        (v.max_height, v.max_width, v.channels) if is_ragged(v) else (v.dtype, v.shape[1:])
        for v in leaves
    ]
    return leaves, (tree, kinds)


def fields_of(data: Data) -> Fields:
    """Return the fields of a batch."""
    return flattened(data)[1]


def differences(one: Fields, other: Fields) -> list[tuple[str, str, str]]:
    """Return (name, kind in `one`, kind in `other`) of the fields that differ for JAX."""
    a, b = _kinds(one), _kinds(other)
    names = sorted({*a, *b})
    pairs = [(name, a.get(name, "absent"), b.get(name, "absent")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _kinds(fields: Fields) -> dict[str, str]:
    tree, kinds = fields
    texts = []
    for kind in kinds:
        if len(kind) == 3:
            texts.append("Ragged[N, up to {}x{}x{}]".format(*kind))
        else:
            texts.append(f"{canonical_dtype(kind[0])}[{', '.join(map(str, ('N', *kind[1])))}]")
    paths = jax.tree_util.tree_flatten_with_path(tree.unflatten(texts))[0]
    return {jax.tree_util.keystr(path): text for path, text in paths}


def with_mask(data: Data, mask: np.ndarray) -> Data:
    """Return a batch with the field "mask" of padded epochs; raise ValueError if it has one."""
    if "mask" in data:
        raise ValueError("the batch has a field 'mask', which pad_remainder=True adds; rename it")
    return {**data, "mask": mask}


def without_mask(data: Data) -> Data:
    """Return the fields without "mask"."""
    return {name: value for name, value in data.items() if name != "mask"}


def row_of(data: Data, row: int) -> Data:
    """Return one record of a batch: NumPy arrays without the leading axis."""
    return next(records_of(data, [row]))


def records_of(data: Data, rows: Iterable[int]) -> Iterator[Data]:
    """Yield records of a batch, as `row_of` does, but flatten its tree only once."""
    structure: Any
    leaves, structure = jax.tree.flatten(data, is_leaf=is_ragged)
    pickers: list[Callable[[int], Any]] = [
        images_of(leaf, range(len(leaf))).__getitem__
        if is_ragged(leaf)
        else np.asarray(leaf).__getitem__
        for leaf in leaves
    ]
    for row in rows:
        yield structure.unflatten([pick(row) for pick in pickers])


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
