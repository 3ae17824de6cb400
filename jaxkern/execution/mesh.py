"""`DeviceMesh`, `PartitionSpec` and `mesh_sharded`: short names for what JAX has."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as JaxSpec

from jaxkern.execution.jit import Jitted
from jaxkern.execution.jit_options import JITOptions
from jaxkern.execution.operator import callable_tree

Entry = int | str | None | tuple[int | str, ...]


def DeviceMesh(
    shape: int | Sequence[int],
    axis_names: Sequence[str] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Devices in a grid: a ``jax.sharding.Mesh`` with automatic axes.

    Args:
      shape: of the grid; its product is the number of devices that are used. One size may be -1,
        for as many as the others leave.
      axis_names: one for each axis; by default "axis0", "axis1", ...
      devices: which; by default JAX's first ones.

    Raises:
      ValueError: for more devices than there are, other sizes below 1, and names that do not fit.
      TypeError: for sizes that are no integers.

    >>> import jaxkern.execution as ex
    >>> ex.DeviceMesh(shape=(1, 1)).axis_names
    ('axis0', 'axis1')
    """
    there = list(jax.devices() if devices is None else devices)
    sizes = _sizes(shape, len(there))
    names = [f"axis{i}" for i in range(len(sizes))] if axis_names is None else list(axis_names)
    if len(names) != len(sizes):
        raise ValueError(
            f"DeviceMesh: shape {sizes} has {len(sizes)} axes and there are {len(names)} axis_names"
        )
    wanted = math.prod(sizes)
    if wanted > len(there):
        raise ValueError(
            f"DeviceMesh: shape {sizes} needs {wanted} devices and there are {len(there)}; for a "
            "CPU more of them can be made with jax.config.update('jax_num_cpu_devices', n) before "
            "JAX starts"
        )
    types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(sizes, tuple(names), axis_types=types, devices=there[:wanted])


def _sizes(shape: Any, there: int) -> tuple[int, ...]:
    given = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
    if any(isinstance(n, bool) or not hasattr(n, "__index__") for n in given):
        raise TypeError(
            f"DeviceMesh: shape is {shape!r}; wanted an integer for each axis of the grid, as in "
            "(2, 2)"
        )
    sizes = tuple(operator.index(n) for n in given)
    known = [n for n in sizes if n != -1]
    rest = there // math.prod(known) if all(n > 0 for n in known) else 0
    found = tuple(rest if n == -1 else n for n in sizes)
    if not sizes or len(sizes) - len(known) > 1 or min(found) < 1:
        raise ValueError(
            f"DeviceMesh: shape is {sizes} for {there} devices; wanted sizes of at least 1, or one "
            "-1 for the devices that the others leave"
        )
    return found


class PartitionSpec:
    """For each axis of an array the mesh axis that splits it: a number, a name, several, or None.

    >>> import jaxkern.execution as ex
    >>> tuple(ex.PartitionSpec(0, None).resolve(ex.DeviceMesh((1, 1))))
    ('axis0', None)
    """

    def __init__(self, *entries: Entry) -> None:
        self.entries = entries

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(repr, self.entries))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def resolve(self, mesh: Mesh) -> JaxSpec:
        """JAX's own specification on a mesh; ValueError for an axis that it does not have."""
        return JaxSpec(*(self._named(entry, mesh) for entry in self.entries))

    def _named(self, entry: Any, mesh: Mesh) -> Any:
        if entry is None:
            return None
        if isinstance(entry, tuple):
            return tuple(self._named(part, mesh) for part in entry)
        names = mesh.axis_names
        if isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < len(names):
            return names[entry]
        if entry in names:
            return entry
        raise ValueError(
            f"{self} names the mesh axis {entry!r}; the mesh has {len(names)} axes: "
            + ", ".join(f"{i} or {name!r}" for i, name in enumerate(names))
        )


def checked_mesh(mesh: Any) -> Mesh:
    """A mesh, or a TypeError that says what is wanted."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is a {type(mesh).__name__}; wanted a DeviceMesh of devices")
    return mesh


def mesh_sharded(
    fn: Callable[..., Any], mesh: Any, partition_spec: Any, out_spec: Any = None
) -> Callable[..., Any]:
    """A JAX function that runs on a mesh: arguments are split as said, and XLA splits the work.

    It is ``jax.jit`` of the function with sharded arguments, so that its results are those of
    ``fn`` on whole arrays; ``jaxkern``'s kernels run on each device's part of a batch.

    Args:
      fn: a JAX function of arrays.
      mesh: a `DeviceMesh`, or any ``jax.sharding.Mesh``.
      partition_spec: a `PartitionSpec` or JAX's, for all arrays of all arguments; or a tuple with
        one, or a tree of them, for each argument. An array of fewer axes takes as many entries as
        it has axes.
      out_spec: how results are split, in the same way; None leaves it to XLA.

    Returns:
      The function, under other transformations of JAX too; ``lower(*args)`` is that of ``jax.jit``.

    Raises:
      ValueError: for mesh axes that do not exist, and for sizes that devices cannot share equally.

    >>> import jax.numpy as jnp, jaxkern.execution as ex
    >>> double = ex.mesh_sharded(lambda x: 2 * x, ex.DeviceMesh((1, 1)), ex.PartitionSpec(0, 1))
    >>> double(jnp.ones((2, 2))).tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """
    if not callable(fn):
        raise TypeError(f"mesh_sharded: got {type(fn).__name__}; wanted a function")
    mesh = checked_mesh(mesh)
    spec = _resolved(partition_spec, mesh)
    out = None if out_spec is None else _resolved(out_spec, mesh)

    def sharded(whole: Any, *args: Any) -> Any:
        result = whole(*args)
        return result if out is None else _placed(result, out, mesh)

    # With the arrays of an operator as operands, so that changed ones are seen.
    jitted = Jitted(sharded, JITOptions(), getattr(fn, "__name__", None))
    whole = callable_tree(fn)

    def prepared(args: tuple[Any, ...]) -> Any:
        if isinstance(spec, tuple) and not _is_spec(spec) and len(spec) != len(args):
            raise ValueError(
                f"mesh_sharded: partition_spec has {len(spec)} entries and there are {len(args)} "
                "arguments"
            )
        return _placed(args, spec, mesh)

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return jitted.call(whole, *prepared(args))

    call.lower = lambda *args: jitted.lowered(whole, *prepared(args))  # type: ignore[attr-defined]
    return call


def _placed(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """The arrays of a tree, split by a tree of specifications that is a prefix of it."""

    def put(x: Any, spec: JaxSpec) -> Any:
        x = jax.numpy.asarray(x)
        sharding = NamedSharding(mesh, JaxSpec(*tuple(spec)[: x.ndim]))
        if isinstance(x, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(x, sharding)
        return jax.device_put(x, sharding)

    return jax.tree.map(
        lambda spec, part: jax.tree.map(lambda x: put(x, spec), part),
        specs,
        tree,
        is_leaf=_is_spec,
    )


def _is_spec(value: Any) -> bool:
    return isinstance(value, (JaxSpec, PartitionSpec))


def _resolved(tree: Any, mesh: Mesh) -> Any:
    def one(spec: Any) -> JaxSpec:
        if isinstance(spec, JaxSpec):
            spec = PartitionSpec(*spec)
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"partition_spec has a {type(spec).__name__}; wanted PartitionSpec(...), or a "
                "tuple or tree of them"
            )
        return spec.resolve(mesh)

    return jax.tree.map(one, tree, is_leaf=_is_spec)
