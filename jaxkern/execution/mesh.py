"""`DeviceMesh`, `PartitionSpec` and `mesh_sharded`: meshes and shardings with short names."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as JaxSpec

from jaxkern.execution.jit import JitFunction, JITOptions
from jaxkern.execution.operator import callable_tree


def DeviceMesh(
    shape: int | Sequence[int],
    axis_names: Sequence[str] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Return a ``jax.sharding.Mesh`` with automatic axes.

    Args:
      shape: number of devices along each axis; one size may be -1, for all remaining devices.
      axis_names: one name per axis; default "axis0", "axis1", ...
      devices: devices to use, in order; by default the first of JAX's devices.

    Raises:
      ValueError: for more devices than there are, and for sizes or names that do not fit.
      TypeError: for sizes that are not integers.

    >>> import jaxkern.execution as ex
    >>> ex.DeviceMesh(shape=(1, 1)).axis_names
    ('axis0', 'axis1')
    """
    available = list(jax.devices() if devices is None else devices)
    sizes = list(shape) if hasattr(shape, "__iter__") else [shape]
    if any(isinstance(n, bool) or not hasattr(n, "__index__") for n in sizes):
        raise TypeError(f"DeviceMesh: shape: expected integers such as (2, 2), got {shape!r}")
    sizes = [operator.index(n) for n in sizes]
    if sizes.count(-1) == 1 and min(n for n in [*sizes, 1] if n != -1) > 0:
        sizes[sizes.index(-1)] = len(available) // math.prod(n for n in sizes if n != -1)
    if not sizes or min(sizes) < 1 or math.prod(sizes) > len(available):
        raise ValueError(
            f"DeviceMesh: shape: expected positive sizes, or one -1, for {len(available)} devices, "
            f"got {shape!r}; on a CPU, set jax.config.update('jax_num_cpu_devices', n) before JAX "
            "starts"
        )
    names = [f"axis{i}" for i in range(len(sizes))] if axis_names is None else list(axis_names)
    if len(names) != len(sizes):
        raise ValueError(f"DeviceMesh: shape {sizes} needs {len(sizes)} axis_names, got {names}")
    types = (AxisType.Auto,) * len(sizes)
    used = available[: math.prod(sizes)]
    return jax.make_mesh(tuple(sizes), tuple(names), axis_types=types, devices=used)


class PartitionSpec:
    """The mesh axis that splits each axis of an array: a number, a name, a tuple of them, or None.

    >>> import jaxkern.execution as ex
    >>> tuple(ex.PartitionSpec(0, None).resolve(ex.DeviceMesh((1, 1))))
    ('axis0', None)
    """

    def __init__(self, *entries: int | str | tuple[int | str, ...] | None) -> None:
        self.entries = entries

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(repr, self.entries))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def resolve(self, mesh: Mesh) -> JaxSpec:
        """Return JAX's specification for a mesh; ValueError for an axis that it does not have."""
        names = mesh.axis_names

        def name(entry: Any) -> Any:
            if isinstance(entry, tuple):
                return tuple(map(name, entry))
            is_number = isinstance(entry, int) and not isinstance(entry, bool)
            if is_number and 0 <= entry < len(names):
                return names[entry]
            if entry is None or entry in names:
                return entry
            axes = ", ".join(f"{i} or {axis!r}" for i, axis in enumerate(names))
            raise ValueError(f"{self}: expected an axis of the mesh ({axes}), got {entry!r}")

        return JaxSpec(*map(name, self.entries))


def check_mesh(mesh: Any) -> Mesh:
    """Return a mesh; TypeError for anything else."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a DeviceMesh, got {type(mesh).__name__}")
    return mesh


def mesh_sharded(
    fn: Callable[..., Any], mesh: Any, partition_spec: Any, out_spec: Any = None
) -> Callable[..., Any]:
    """Compile a JAX function to run on a mesh, with its arguments sharded over the devices.

    It is ``jax.jit`` with sharded arguments, so results equal those of ``fn`` on unsharded arrays.
    Kernels of ``jaxkern`` run on each device's part of a batch.

    Args:
      fn: a JAX function of arrays.
      mesh: a `DeviceMesh`, or any ``jax.sharding.Mesh``.
      partition_spec: a `PartitionSpec`, or JAX's, for all arrays of all arguments; or a tuple with
        one specification, or a tree of them, per argument. Entries beyond an
        array's axes are ignored.
      out_spec: the shardings of the results, in the same way; None lets XLA choose.

    Returns:
      The function, with ``lower(*args)`` as of ``jax.jit``. Other transformations apply to it.

    Raises:
      ValueError: for mesh axes that do not exist, and for sizes that devices cannot share evenly.

    >>> import jax.numpy as jnp, jaxkern.execution as ex
    >>> double = ex.mesh_sharded(lambda x: 2 * x, ex.DeviceMesh((1, 1)), ex.PartitionSpec(0, 1))
    >>> double(jnp.ones((2, 2))).tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """
    mesh = check_mesh(mesh)
    spec = _resolve(partition_spec, mesh)
    out = None if out_spec is None else _resolve(out_spec, mesh)

    def sharded(fn: Any, *args: Any) -> Any:
        result = fn(*args)
        return result if out is None else _shard(result, out, mesh)

    jitted = JitFunction(sharded, JITOptions(), getattr(fn, "__name__", None))
    # The arrays of an operator are operands, so that the next call uses changed ones.
    function = callable_tree(fn)

    def shard(args: tuple[Any, ...]) -> Any:
        if isinstance(spec, tuple) and not _is_spec(spec) and len(spec) != len(args):
            raise ValueError(
                f"mesh_sharded: partition_spec has {len(spec)} entries for {len(args)} arguments"
            )
        return _shard(args, spec, mesh)

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return jitted.call(function, *shard(args))

    call.lower = lambda *args: jitted.lower(function, *shard(args))  # type: ignore[attr-defined]
    return call


def _shard(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """Shard the arrays of a tree; the tree of specifications is a prefix of it."""

    def put(x: Any, spec: JaxSpec) -> Any:
        x = jax.numpy.asarray(x)
        sharding = NamedSharding(mesh, JaxSpec(*tuple(spec)[: x.ndim]))
        if isinstance(x, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(x, sharding)
        return jax.device_put(x, sharding)

    def put_all(spec: Any, part: Any) -> Any:
        return jax.tree.map(lambda x: put(x, spec), part)

    return jax.tree.map(put_all, specs, tree, is_leaf=_is_spec)


def _is_spec(value: Any) -> bool:
    return isinstance(value, (JaxSpec, PartitionSpec))


def _resolve(tree: Any, mesh: Mesh) -> Any:
    def resolve(spec: Any) -> JaxSpec:
        if not _is_spec(spec):
            raise TypeError(
                "partition_spec: expected PartitionSpec(...), or a tuple or tree of them, got "
                f"{type(spec).__name__}"
            )
        return PartitionSpec(*getattr(spec, "entries", spec)).resolve(mesh)

    return jax.tree.map(resolve, tree, is_leaf=_is_spec)
