"""A function of batches at any batch size: its arguments, its memory, and its time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core import memory
from jaxkern.core.axes import flat_axes
from jaxkern.core.programs import memory_analysis
from jaxkern.pipeline.batch_search import Footprint
from jaxkern.pipeline.placement import default_device

# Rows that are made up for an argument of which only the shape is known.
_MADE_UP_ROWS = 8
# What is left free of the memory that is available by default, for what a program needs besides.
_DEFAULT_SHARE = 0.9


class FunctionTrial:
    """A JAX function, called with samples of its arguments cut or repeated to a batch size.

    Args:
      fn: jitted or not.
      args: what it is called with: pytrees of arrays or ``jax.ShapeDtypeStruct``.
      in_axes: as in ``jax.vmap``: where the batch axis is; None for what has none.
      sharding: of the batch axis; None: as the first sample that has one.
    Raises: ValueError where a sample has no batch axis, or the samples differ in their rows.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        in_axes: Any,
        sharding: jax.sharding.Sharding | None,
    ) -> None:
        self._fn: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
        paths, tree = jax.tree_util.tree_flatten_with_path(args)
        self._tree: Any = tree
        self._leaves = [leaf for _, leaf in paths]
        wanted = (
            f"in_axes is {in_axes!r}; wanted an axis or None for each of the {len(args)} arguments "
            "(or a prefix of their trees), or one for all"
        )
        self._axes = flat_axes(in_axes, args, wanted)
        names = [_name(path) for path, _ in paths]
        _check_rows(names, self._leaves, self._axes)
        self._sharding = _found_sharding(self._leaves, self._axes) if sharding is None else sharding
        for place, (name, leaf) in enumerate(zip(names, self._leaves, strict=True)):
            self._leaves[place] = self._sample(name, leaf, self._axes[place])
        self.multiple = batch_devices(self._sharding)
        self.most: int | None = None
        self._compiled: dict[int, Any] = {}
        self._donated: list[bool] = []

    @property
    def device(self) -> jax.Device:
        """One of those that it runs on."""
        if self._sharding is None:
            return default_device()
        devices: list[Any] = list(self._sharding.addressable_devices)
        return min(devices, key=lambda device: device.id)

    def default_limit(self) -> int:
        """Bytes of one device that it may use: what is free, and what its own arguments hold."""
        devices = 1 if self._sharding is None else len(self._sharding.addressable_devices)
        held = 0
        for leaf, axis in zip(self._leaves, self._axes, strict=True):
            if axis is None and isinstance(leaf, jax.Array):
                shards = leaf.addressable_shards
                held += sum(s.data.nbytes for s in shards if s.device == self.device)
        return held + free_bytes(self.device, devices)

    def compile(self, size: int) -> Footprint:
        """Compiles for a size without running it."""
        started = time.perf_counter()
        lowered = self._fn.lower(*self._tree.unflatten(self._specs(size)))
        given = jax.tree.structure((self._tree.unflatten(self._leaves), {}))
        if lowered.in_tree != given:
            raise ValueError(
                "the function has static arguments; wanted one that takes arrays only: close over "
                "the static ones, as in functools.partial(fn, mode='train')"
            )
        compiled = lowered.compile()
        seconds = time.perf_counter() - started
        self._compiled[size] = compiled
        self._donated = [info.donated for info in jax.tree.leaves(lowered.args_info)]
        found = memory_analysis(compiled)
        total = found.argument_size_in_bytes + found.output_size_in_bytes
        total += found.temp_size_in_bytes - found.alias_size_in_bytes
        return Footprint(
            found.argument_size_in_bytes,
            found.output_size_in_bytes,
            found.temp_size_in_bytes,
            total,
            seconds,
        )

    def turn(self, size: int, calls: int) -> float:
        """Seconds per call, from its dispatch to its result: the median."""
        # Arguments live for one turn only, so that no two sizes hold memory at a time.
        leaves = [self._leaf(place, size) for place in range(len(self._leaves))]
        times = []
        for call in range(calls + 1):
            if call > 0 and any(self._donated):
                for place, donated in enumerate(self._donated):
                    if donated:
                        leaves[place] = self._leaf(place, size)
            args = jax.block_until_ready(self._tree.unflatten(leaves))
            started = time.perf_counter()
            result = jax.block_until_ready(self._compiled[size](*args))
            times.append(time.perf_counter() - started)
            del args, result
        return statistics.median(times[1:])

    def _sample(self, name: str, leaf: Any, axis: int | None) -> Any:
        """A leaf with values; one that is shared by the batch is where the batch is."""
        if isinstance(leaf, jax.ShapeDtypeStruct):
            leaf = _made_up(name, leaf, axis)
        if axis is not None:
            return leaf if _holds_keys(leaf) else np.asarray(leaf)
        placed = isinstance(leaf, jax.Array) and leaf.committed
        if placed or not hasattr(leaf, "shape") or self._sharding is None:
            return leaf
        return jax.device_put(leaf, self._replicated())

    def _replicated(self) -> jax.sharding.Sharding | None:
        if isinstance(self._sharding, jax.sharding.NamedSharding):
            return jax.sharding.NamedSharding(self._sharding.mesh, jax.sharding.PartitionSpec())
        return self._sharding

    def _specs(self, size: int) -> list[Any]:
        specs = []
        for leaf, axis in zip(self._leaves, self._axes, strict=True):
            if axis is None:
                specs.append(leaf)
                continue
            shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
            placed = self._placed(axis, len(shape))
            specs.append(jax.ShapeDtypeStruct(shape, dtype, sharding=placed))
        return specs

    def _leaf(self, place: int, size: int) -> Any:
        leaf, axis = self._leaves[place], self._axes[place]
        if axis is None:
            # The caller's own array must outlive a call that takes it for its result.
            return leaf.copy() if self._donated[place] and hasattr(leaf, "copy") else leaf
        rows = np.arange(size) % leaf.shape[axis]
        where = (slice(None),) * axis + (rows,)
        if _holds_keys(leaf):
            data: Any = np.asarray(jax.random.key_data(leaf))[where]
            values: Any = jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        else:
            values = leaf[where]
        return jax.device_put(values, self._placed(axis, len(leaf.shape)))

    def _placed(self, axis: int, ndim: int) -> jax.sharding.Sharding | None:
        sharding = self._sharding
        if not isinstance(sharding, jax.sharding.NamedSharding):
            return sharding
        spec = [None] * axis + list(sharding.spec[:1])
        if axis == 0:
            spec = list(sharding.spec[:ndim])
        return jax.sharding.NamedSharding(
            sharding.mesh, jax.sharding.PartitionSpec(*spec), memory_kind=sharding.memory_kind
        )


def free_bytes(device: jax.Device, devices: int) -> int:
    """Bytes that a program may take on a device: nine tenths of what is free.

    Args:
      device: its own figures, where it has any; else it shares the memory of this process.
      devices: how many share that.
    """
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    else:
        free = memory.available_bytes() // devices
    return int(_DEFAULT_SHARE * free)


def batch_devices(sharding: jax.sharding.Sharding | None) -> int:
    """Over how many devices the leading axis is spread."""
    if not isinstance(sharding, jax.sharding.NamedSharding) or not sharding.spec:
        return 1
    names = sharding.spec[0]
    names = () if names is None else names if isinstance(names, tuple) else (names,)
    count = 1
    for name in names:
        count *= sharding.mesh.shape[name]
    return count


def _name(path: tuple[Any, ...]) -> str:
    return f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"


def _check_rows(names: list[str], leaves: list[Any], axes: list[int | None]) -> None:
    more = "; in_axes says what has no batch axis: in_axes=(None, 0) for fn(params, batch)"
    first: tuple[str, int] | None = None
    for place, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        axis = axes[place]
        if axis is None:
            continue
        shape = getattr(leaf, "shape", None)
        if shape is None:
            raise TypeError(f"{name} is {leaf!r:.60}; wanted an array with a batch axis{more}")
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"{name} has shape {shape}; wanted a batch axis {axis}{more}")
        axes[place] = axis = axis % len(shape)
        rows = shape[axis]
        if rows == 0:
            raise ValueError(f"{name} has shape {shape}; wanted at least one row on axis {axis}")
        if first is None:
            first = (name, rows)
        elif rows != first[1]:
            raise ValueError(
                f"{name} has {rows} rows on axis {axis} and {first[0]} {first[1]}; wanted equally "
                f"many in every sample{more}"
            )
    if first is None:
        raise ValueError(
            "no argument has a batch axis; wanted samples of the function's arguments behind it, "
            "as in get_batch_size_recommendation(fn, params, batch, in_axes=(None, 0))"
        )


def _made_up(name: str, struct: jax.ShapeDtypeStruct, axis: int | None) -> Any:
    """Values of a shape: floats from 0 to 1, and zeros, which are valid wherever indices are."""
    shape = list(struct.shape)
    if axis is not None:
        shape[axis] = min(shape[axis], _MADE_UP_ROWS)
    if _holds_keys(struct):
        keys = jax.random.split(jax.random.key(0), tuple(shape))
        if keys.dtype != struct.dtype:
            raise TypeError(f"{name} is {struct}; wanted an array of such keys, which have a seed")
        return keys
    dtype = np.dtype(struct.dtype)
    if jnp.issubdtype(dtype, np.inexact):
        values: Any = np.random.default_rng(0).random(shape, np.float32).astype(dtype)
    else:
        values = np.zeros(shape, dtype)
    if axis is not None:
        return values
    return jax.device_put(values, struct.sharding)


def _holds_keys(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _found_sharding(leaves: list[Any], axes: list[int | None]) -> jax.sharding.Sharding | None:
    for leaf, axis in zip(leaves, axes, strict=True):
        placed = isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "committed", False)
        if axis is not None and placed and leaf.sharding is not None:
            found: jax.sharding.Sharding = leaf.sharding
            return found
    return None
