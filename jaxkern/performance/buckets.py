"""Varying sizes rounded up to a few, so that a function is compiled for those few only."""

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
    """The sizes that arrays are padded to.

    Args:
      sizes: rising; None: geometric, ``start * growth**k`` rounded up to a multiple of ``start``.
      start: the least size of geometric buckets.
      growth: their ratio, above 1. Between sizes ``start`` and ``n`` there are at most
        ``2 + log(n / start) / log(growth)`` buckets, and padding is less than a factor ``growth``
        plus ``start``.

    Raises:
      ValueError: for sizes that do not rise or are below 1, a start below 1 or a growth up to 1.

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
            rising = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
            if not self.sizes or self.sizes[0] < 1 or not rising:
                raise ValueError(f"buckets is {sizes!r}; wanted rising sizes of 1 or more")
        elif start < 1 or not growth > 1 or not math.isfinite(growth):
            raise ValueError(
                f"start is {start} and growth {growth}; wanted 1 or more, and more than 1"
            )

    def size(self, n: int) -> int:
        """The bucket of a size: the least that holds it.

        Raises: ValueError when the size is beyond the largest bucket.
        """
        if self.sizes is not None:
            place = bisect.bisect_left(self.sizes, n)
            if place == len(self.sizes):
                raise ValueError(
                    f"size {n} is beyond the largest bucket, {self.sizes[-1]}; wanted a larger "
                    "bucket, or a batch cut into parts"
                )
            return self.sizes[place]
        wanted, k = self.start, 0
        while wanted < n:
            k += 1
            grown = math.ceil(self.start * self.growth**k / self.start) * self.start
            wanted = max(grown, wanted + self.start)
        return wanted


def pad_to(x: Any, size: int, axis: int = 0, value: Any = 0) -> Any:
    """An array padded behind its end; NumPy's stay on the host, so that they cost no compilation.

    Args:
      x: an array with ``size`` or fewer rows on ``axis``.

    Raises:
      ValueError: when it has more.
    """
    rows = x.shape[axis]
    if rows > size:
        raise ValueError(f"the array has {rows} rows on axis {axis}; wanted {size} or fewer")
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
    """``fn`` jitted for a few sizes: arguments are padded, a mask passed, results cut back.

    Called with arrays of any number of rows n, it compiles once for each bucket that occurs (for
    each dtype and shape of the rest): at most ``len(buckets)`` times, or
    ``2 + log2(n_max / 16)`` with the default ones. Padding is done on the host, where an
    operation for each new size would otherwise be compiled: arrays of a device are brought there
    when they must be padded (free on the CPU); give NumPy arrays to accelerators.

    The function must use the mask where rows meet (sums, means, softmax): padded rows hold
    ``pad_value``.

    Args:
      fn: ``fn(*args, mask=mask)``, mask being a bool array [bucket], True for the rows that were
        given. Jitted or not.
      axis: of the rows in each array of the arguments.
      in_axes: as in ``jax.vmap``: a tree prefix of the arguments with an axis or None (not
        padded); None for ``axis`` everywhere.
      out_axes: the same for the results: None for those without rows, such as sums.
      buckets: sizes, or a `Buckets`; None for geometric ones (16, 32, 64 ...).
      pad_value: of the rows that are added.
      mask_argument: the keyword of the mask; None for a function that takes none.

    Returns:
      A function; its ``buckets`` and its jitted ``padded`` are attributes.

    Raises:
      ValueError: when the arrays differ in their rows, have none, or are beyond the last bucket.

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
        axes = _flat(axis if in_axes is None else in_axes, args, "in_axes")
        rows = _rows(args, axes)
        size = chosen.size(rows)
        for place, (leaf, along) in enumerate(zip(leaves, axes, strict=True)):
            if along is not None and size != rows:
                leaves[place] = pad_to(_host(leaf), size, along, pad_value)
        if mask_argument is not None:
            kwargs[mask_argument] = np.arange(size) < rows
        result = padded(*jax.tree.unflatten(tree, leaves), **kwargs)
        if size == rows:
            return result
        values, out_tree = jax.tree.flatten(result)
        cuts = _flat(out_axes, result, "out_axes")
        return jax.tree.unflatten(
            out_tree, [_cut(x, a, rows, size) for x, a in zip(values, cuts, strict=True)]
        )

    bucketed.buckets = chosen  # type: ignore[attr-defined]
    bucketed.padded = padded  # type: ignore[attr-defined]
    return bucketed


def _host(leaf: Any) -> Any:
    """Padding in JAX is a program for each size; in NumPy it is none."""
    if isinstance(leaf, jax.core.Tracer):
        return leaf
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    return np.asarray(leaf)


def _cut(x: Any, axis: int | None, rows: int, size: int) -> Any:
    if axis is None:
        return x
    shape = jnp.shape(x)
    if not -len(shape) <= axis < len(shape) or shape[axis] != size:
        raise ValueError(
            f"a result has shape {shape}; wanted {size} rows on axis {axis}, or None in out_axes "
            "for a result without rows"
        )
    where = (slice(None),) * (axis % len(shape)) + (slice(rows),)
    if isinstance(x, jax.core.Tracer) or len(getattr(x, "devices", lambda: [0])()) > 1:
        return x[where]
    # Slicing in JAX would be a program for each size.
    place = x.sharding if getattr(x, "committed", False) else None
    return jax.device_put(np.asarray(x)[where], place)


def _flat(axes: Any, tree: Any, name: str) -> list[int | None]:
    return flat_axes(
        axes,
        tree,
        f"{name} is {axes!r}; wanted an axis or None for each argument or result (or a prefix of "
        "their trees)",
    )


def _rows(args: Any, axes: list[int | None]) -> int:
    sizes: dict[int, str] = {}
    for (path, leaf), axis in zip(jax.tree.leaves_with_path(args), axes, strict=True):
        if axis is not None:
            name = f"args{jax.tree_util.keystr(path)}"
            sizes.setdefault(axis_size(name, leaf, axis), name)
    if len(sizes) != 1:
        found = ", ".join(f"{name}: {size}" for size, name in sizes.items()) or "no array"
        raise ValueError(f"rows: {found}; wanted the same number in each array with rows")
    return next(iter(sizes))
