"""Padding of varying sizes to a few bucket sizes, so that a function is compiled only for those."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.axes import axis_size, flat_axes


class Buckets:
    """Sizes that arrays are padded to.

    Args:
      sizes: increasing sizes; None for geometric ones, ``start * growth**k`` rounded up to a
        multiple of ``start``.
      start: smallest size of geometric buckets.
      growth: ratio of successive sizes, above 1. There are at most
        ``2 + log(n / start) / log(growth)`` buckets for sizes up to ``n``.

    Raises:
      ValueError: if the sizes do not increase or are below 1, ``start`` is below 1, or ``growth``
        is not a finite number above 1.

    Example:
      >>> from jaxkern import performance
      >>> buckets = performance.Buckets()
      >>> [buckets.size(n) for n in (1, 16, 17, 100, 1000)]
      [16, 16, 32, 128, 1024]
    """

    def __init__(
        self, sizes: Sequence[int] | None = None, *, start: int = 16, growth: float = 2.0
    ) -> None:
        self.sizes = None if sizes is None else tuple(int(n) for n in sizes)
        self.start, self.growth = start, growth
        if self.sizes is not None:
            increasing = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
            if not self.sizes or self.sizes[0] < 1 or not increasing:
                raise ValueError(f"buckets: expected increasing sizes of at least 1, got {sizes!r}")
        elif start < 1 or not growth > 1 or not math.isfinite(growth):
            raise ValueError(
                f"expected start >= 1 and a finite growth > 1, got start {start} and growth "
                f"{growth}"
            )

    def size(self, n: int) -> int:
        """Return the smallest bucket of at least ``n``.

        Raises:
          ValueError: if ``n`` exceeds the largest bucket.
        """
        if self.sizes is not None:
            index = bisect.bisect_left(self.sizes, n)
            if index == len(self.sizes):
                raise ValueError(
                    f"size {n} exceeds the largest bucket, {self.sizes[-1]}; add a larger bucket "
                    "or split the batch"
                )
            return self.sizes[index]
        size, k = self.start, 0
        while size < n:
            k += 1
            grown = math.ceil(self.start * self.growth**k / self.start) * self.start
            size = max(grown, size + self.start)
        return size


def pad_to(x: Any, size: int, axis: int = 0, value: Any = 0) -> Any:
    """Pad an array at its end; a NumPy array stays on the host and needs no compilation.

    Args:
      x: array with at most ``size`` rows on ``axis``.

    Raises:
      ValueError: if it has more rows.
    """
    rows = x.shape[axis]
    if rows > size:
        raise ValueError(f"expected at most {size} rows on axis {axis}, got {rows}")
    if rows == size:
        return x
    if isinstance(x, np.ndarray):
        shape = list(x.shape)
        shape[axis] = size
        padded = np.full(shape, value, x.dtype)
        padded[(slice(None),) * (axis % x.ndim) + (slice(rows),)] = x
        return padded
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - rows)
    return jnp.pad(x, widths, constant_values=value)


def bucket_shapes(
    fn: Callable[..., Any],
    *,
    axis: int = 0,
    in_axes: Any = None,
    out_axes: Any = 0,
    buckets: Sequence[int] | Buckets | None = None,
    pad_value: Any = 0,
    mask_argument: str | None = "mask",
) -> Callable[..., Any]:
    """Jit ``fn`` for a few sizes: pad its arguments, pass a mask, and slice its results.

    The result accepts arrays with any number of rows and compiles once for each bucket that occurs
    (for each dtype and shape of the other axes). Padding is done on the host, where it needs no
    compilation. JAX arrays are copied to the host if they need padding, so pass NumPy arrays when
    running on an accelerator.

    The function must apply the mask wherever rows are combined (sums, means, softmax), because
    padded rows hold ``pad_value``.

    Args:
      fn: function ``fn(*args, mask=mask)``, jitted or not. The mask is a bool array [bucket] that
        is True for the original rows.
      axis: axis of the rows in every array argument.
      in_axes: axes as in ``jax.vmap``, a tree prefix of the arguments with an axis or None (not
        padded); None for ``axis`` everywhere.
      out_axes: the same for the results; None for results without rows, such as sums.
      buckets: sizes, or a `Buckets`; None for 16, 32, 64 and so on.
      pad_value: value of the added rows.
      mask_argument: keyword of the mask; None for a function without a mask.

    Returns:
      A function with the attributes ``buckets`` and ``padded`` (the jitted function).

    Raises:
      ValueError: if the arrays differ in their numbers of rows, have none, or exceed the largest
        bucket.

    Example:
      >>> import jax.numpy as jnp, numpy as np
      >>> from jaxkern import performance
      >>> def mean(x, *, mask):
      ...     return jnp.sum(jnp.where(mask, x, 0)) / mask.sum()
      >>> mean = performance.bucket_shapes(mean, out_axes=None)
      >>> [float(mean(np.arange(n, dtype=np.float32))) for n in (3, 5, 16)]
      [1.0, 2.0, 7.5]
    """
    chosen = buckets if isinstance(buckets, Buckets) else Buckets(buckets)
    padded: Any = fn if hasattr(fn, "lower") else jax.jit(fn)

    @functools.wraps(fn)
    def bucketed(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        axes = _flat_axes("in_axes", axis if in_axes is None else in_axes, args)
        rows = _count_rows(args, axes)
        size = chosen.size(rows)
        for index, (leaf, leaf_axis) in enumerate(zip(leaves, axes, strict=True)):
            if leaf_axis is not None and size != rows:
                leaves[index] = pad_to(_to_host(leaf), size, leaf_axis, pad_value)
        if mask_argument is not None:
            kwargs[mask_argument] = np.arange(size) < rows
        result = padded(*jax.tree.unflatten(tree, leaves), **kwargs)
        if size == rows:
            return result
        values, out_tree = jax.tree.flatten(result)
        cuts = _flat_axes("out_axes", out_axes, result)
        return jax.tree.unflatten(
            out_tree, [_slice(x, a, rows, size) for x, a in zip(values, cuts, strict=True)]
        )

    bucketed.buckets = chosen  # type: ignore[attr-defined]
    bucketed.padded = padded  # type: ignore[attr-defined]
    return bucketed


def _to_host(leaf: Any) -> Any:
    """Convert to NumPy where possible: padding in JAX would compile a program for each size."""
    keys = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return leaf if keys or isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)


def _slice(x: Any, axis: int | None, rows: int, size: int) -> Any:
    if axis is None:
        return x
    shape = jnp.shape(x)
    if not -len(shape) <= axis < len(shape) or shape[axis] != size:
        raise ValueError(
            f"out_axes: expected a result with {size} rows on axis {axis}, got shape {shape}; use "
            "None for a result without rows"
        )
    index = (slice(None),) * (axis % len(shape)) + (slice(rows),)
    if isinstance(x, jax.core.Tracer) or len(getattr(x, "devices", lambda: [0])()) > 1:
        return x[index]
    # Slicing in JAX would compile a program for each size.
    sharding = x.sharding if getattr(x, "committed", False) else None
    return jax.device_put(np.asarray(x)[index], sharding)


def _flat_axes(name: str, axes: Any, tree: Any) -> list[int | None]:
    return flat_axes(
        axes,
        tree,
        f"{name}: expected an axis or None for each argument or result (or a tree prefix), got "
        f"{axes!r}",
    )


def _count_rows(args: Any, axes: list[int | None]) -> int:
    names: dict[int, str] = {}
    for (path, leaf), axis in zip(jax.tree.leaves_with_path(args), axes, strict=True):
        if axis is not None:
            name = f"args{jax.tree_util.keystr(path)}"
            names.setdefault(axis_size(name, leaf, axis), name)
    if len(names) != 1:
        counts = ", ".join(f"{name}: {rows}" for rows, name in names.items()) or "no array"
        raise ValueError(f"expected the same number of rows in each array, got {counts}")
    return next(iter(names))
