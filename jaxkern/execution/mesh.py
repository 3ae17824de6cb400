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

Entry = int | str | None | tuple[int | str, ...]


class DeviceMesh:
    """Devices in a grid: a ``jax.sharding.Mesh`` with automatic axes, as ``.mesh``.

    Args:
      shape: of the grid; its product is the number of devices that are used.
      axis_names: one for each axis; by default "axis0", "axis1", ...
      devices: which; by default JAX's first ones.

    Raises:
      ValueError: for more devices than there are, sizes below 1, and names that do not fit.
      TypeError: for sizes that are no integers.

    >>> import jaxkern.execution as ex
    >>> ex.DeviceMesh(shape=(1, 1)).axis_names
    ('axis0', 'axis1')
    """

    def __init__(
        self,
        shape: Sequence[int],
        axis_names: Sequence[str] | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        shape = _sizes(shape)
        if axis_names is None:
            axis_names = tuple(f"axis{i}" for i in range(len(shape)))
        if len(axis_names) != len(shape):
            raise ValueError(
                f"DeviceMesh: shape {shape} has {len(shape)} axes and there are "
                f"{len(axis_names)} axis_names"
            )
        if not shape or any(n < 1 for n in shape):
            raise ValueError(f"DeviceMesh: shape is {shape}; wanted sizes of at least 1")
        there = list(jax.devices() if devices is None else devices)
        wanted = math.prod(shape)
        if wanted > len(there):
            raise ValueError(
                f"DeviceMesh: shape {shape} needs {wanted} devices and there are {len(there)}; for "
                "a CPU more of them can be made with jax.config.update('jax_num_cpu_devices', n) "
                "before JAX starts"
            )
        self.mesh: Mesh = jax.make_mesh(
            shape,
            tuple(axis_names),
            axis_types=(AxisType.Auto,) * len(shape),
            devices=there[:wanted],
        )

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Of each axis."""
        return tuple(self.mesh.axis_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Devices along each axis."""
        return tuple(self.mesh.devices.shape)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n}={s}" for n, s in zip(self.axis_names, self.shape, strict=True))
        return f"DeviceMesh({sizes})"


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(shape)
    except TypeError:  # one size
        sizes = (shape,)
    if any(isinstance(n, bool) or not hasattr(n, "__index__") for n in sizes):
        raise TypeError(
            f"DeviceMesh: shape is {shape!r}; wanted an integer for each axis of the grid, as in "
            "(2, 2)"
        )
    return tuple(operator.index(n) for n in sizes)


class PartitionSpec:
    """For each axis of an array the mesh axis that splits it: a number, a name, several, or None.

    >>> import jaxkern.execution as ex
    >>> tuple(ex.PartitionSpec(0, None).resolve(ex.DeviceMesh((1, 1)).mesh))
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


def as_mesh(mesh: Any) -> Mesh:
    """JAX's mesh of either kind."""
    if isinstance(mesh, DeviceMesh):
        return mesh.mesh
    if isinstance(mesh, Mesh):
        return mesh
    raise TypeError(f"mesh is a {type(mesh).__name__}; wanted a DeviceMesh or a jax.sharding.Mesh")


def mesh_sharded(
    fn: Callable[..., Any], mesh: Any, partition_spec: Any, out_spec: Any = None
) -> Callable[..., Any]:
    """A JAX function that runs on a mesh: arguments are split as said, and XLA splits the work.

    It is ``jax.jit`` of the function with sharded arguments, so that its results are those of
    ``fn`` on whole arrays; ``jaxkern``'s kernels run on each device's part of a batch.

    Args:
      fn: a JAX function of arrays.
      mesh: a `DeviceMesh` or a ``jax.sharding.Mesh``.
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
    return _MeshSharded(fn, as_mesh(mesh), partition_spec, out_spec)


class _MeshSharded:
    def __init__(self, fn: Any, mesh: Mesh, spec: Any, out_spec: Any) -> None:
        if not callable(fn):
            raise TypeError(f"mesh_sharded: got {type(fn).__name__}; wanted a function")
        self._mesh = mesh
        self._spec = _resolved(spec, mesh)
        self._out = None if out_spec is None else _resolved(out_spec, mesh)
        functools.update_wrapper(self, fn, updated=())

        def sharded(*args: Any) -> Any:
            result = fn(*args)
            if self._out is None:
                return result
            return jax.tree.map(
                lambda spec, part: jax.tree.map(
                    lambda x: jax.lax.with_sharding_constraint(x, self._sharding(x, spec)), part
                ),
                self._out,
                result,
                is_leaf=_is_spec,
            )

        sharded.__name__ = getattr(fn, "__name__", "sharded")
        self._jitted = jax.jit(sharded)

    def __call__(self, *args: Any) -> Any:
        return self._jitted(*self._placed(args))

    def lower(self, *args: Any) -> Any:
        """As of a ``jax.jit`` function."""
        return self._jitted.lower(*self._placed(args))

    def _placed(self, args: tuple[Any, ...]) -> Any:
        spec = self._spec
        if isinstance(spec, tuple) and not _is_spec(spec) and len(spec) != len(args):
            raise ValueError(
                f"mesh_sharded: partition_spec has {len(spec)} entries and there are {len(args)} "
                "arguments"
            )
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda x: self._put(x, spec), part),
            spec,
            args,
            is_leaf=_is_spec,
        )

    def _put(self, x: Any, spec: JaxSpec) -> Any:
        x = jax.numpy.asarray(x)
        sharding = self._sharding(x, spec)
        if isinstance(x, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(x, sharding)
        return jax.device_put(x, sharding)

    def _sharding(self, x: Any, spec: JaxSpec) -> NamedSharding:
        entries = tuple(spec)[: x.ndim]
        sizes = dict(self._mesh.shape)
        for axis, entry in enumerate(entries):
            names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            count = math.prod(sizes[name] for name in names)
            if x.shape[axis] % count:
                raise ValueError(
                    f"mesh_sharded: axis {axis} of an array of shape {x.shape} cannot be shared "
                    f"equally by {count} devices ({', '.join(names)}); pad it, or leave that axis "
                    "whole"
                )
        return NamedSharding(self._mesh, JaxSpec(*entries))


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
