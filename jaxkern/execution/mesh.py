"""Meshes: `DeviceMesh`, `mesh_sharded`, and `pipeline_parallel` (GPipe)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as JaxSpec

from jaxkern.core.arguments import check_integer
from jaxkern.execution.jit import JitFunction, JITOptions


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

    >>> import jaxkern.execution as ex
    >>> ex.DeviceMesh(shape=(1, 1)).axis_names
    ('axis0', 'axis1')
    """
    available = list(jax.devices() if devices is None else devices)
    sizes = list(shape) if hasattr(shape, "__iter__") else [shape]
    sizes = [check_integer("DeviceMesh: shape", n, -1) for n in sizes]
    if -1 in sizes:
        rest = abs(math.prod(sizes))
        sizes[sizes.index(-1)] = len(available) // rest if rest else 0
    if not sizes or min(sizes) < 1 or math.prod(sizes) > len(available):
        raise ValueError(
            f"DeviceMesh: shape: expected positive sizes, or one -1, for {len(available)} devices, "
            f"got {shape!r}"
        )
    names = [f"axis{i}" for i in range(len(sizes))] if axis_names is None else axis_names
    types = (AxisType.Auto,) * len(sizes)
    used = available[: math.prod(sizes)]
    return jax.make_mesh(tuple(sizes), tuple(names), axis_types=types, devices=used)


@dataclasses.dataclass(frozen=True, init=False)
class PartitionSpec:
    """The mesh axis that splits each axis of an array: a number, a name, a tuple of them, or None.

    >>> import jaxkern.execution as ex
    >>> ex.PartitionSpec(0, None).resolve(ex.DeviceMesh((1, 1))).spec
    P('axis0', None)
    """

    entries: tuple[int | str | tuple[int | str, ...] | None, ...]

    def __init__(self, *entries: int | str | tuple[int | str, ...] | None) -> None:
        object.__setattr__(self, "entries", entries)

    def resolve(self, mesh: Mesh) -> NamedSharding:
        """Return JAX's sharding on a mesh; ValueError for an axis that the mesh does not have."""
        if not isinstance(mesh, Mesh):
            raise TypeError(f"mesh: expected a DeviceMesh, got {type(mesh).__name__}")
        names = dict(enumerate(mesh.axis_names))

        def name(entry: Any) -> Any:
            if isinstance(entry, tuple):
                return tuple(map(name, entry))
            return names.get(entry, entry) if type(entry) is int else entry

        return NamedSharding(mesh, JaxSpec(*map(name, self.entries)))


def mesh_sharded(fn: Callable[..., Any], mesh: Any, partition_spec: Any) -> Callable[..., Any]:
    """Compile a JAX function to run on a mesh, with its arguments sharded over the devices.

    Args:
      fn: a JAX function of arrays.
      mesh: a `DeviceMesh`, or any ``jax.sharding.Mesh``.
      partition_spec: a `PartitionSpec`, or JAX's, for all arrays of all arguments; or a tuple with
        one, or a tree of them, per argument. Entries beyond an array's axes are ignored.

    Returns:
      The function, with ``lower(*args)`` as of ``jax.jit``. XLA chooses the shardings of results.

    Raises:
      ValueError: for mesh axes that do not exist, and for sizes that devices cannot share evenly.

    >>> import jax.numpy as jnp, jaxkern.execution as ex
    >>> double = ex.mesh_sharded(lambda x: 2 * x, ex.DeviceMesh((1, 1)), ex.PartitionSpec(0, 1))
    >>> double(jnp.ones((2, 2))).tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """
    shardings = jax.tree.map(functools.partial(_resolve, mesh), partition_spec)
    jitted = JitFunction(fn, JITOptions())

    def place(args: tuple[Any, ...]) -> Any:
        return jax.tree.map(_put, args, jax.tree.broadcast(shardings, args))

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return jitted.call(*place(args))

    call.lower = lambda *args: jitted.lower(*place(args))  # type: ignore[attr-defined]
    return call


def _resolve(mesh: Mesh, spec: Any) -> NamedSharding:
    if isinstance(spec, JaxSpec):
        spec = PartitionSpec(*spec)
    if not isinstance(spec, PartitionSpec):
        name = type(spec).__name__
        raise TypeError(f"partition_spec: expected a tree of PartitionSpec(...), got {name}")
    return spec.resolve(mesh)


def _put(x: Any, sharding: NamedSharding) -> Any:
    spec = JaxSpec(*sharding.spec[: np.ndim(x)])
    return jax.device_put(x, NamedSharding(sharding.mesh, spec))


def pipeline_parallel(
    stages: Sequence[Callable[[Any], Any]], mesh: Any, num_microbatches: int, *, axis: int | str = 0
) -> PipelineParallel:
    """Run a chain of stages, each on its own device, on the microbatches of a batch.

    With S stages, M microbatches take M + S - 1 ticks; a device is idle for S - 1 of them. Each
    device holds only its own float parameters. (Huang et al., "GPipe", NeurIPS 2019.)

    Args:
      stages: functions of a float array [n, ...] that return one, record by record; shapes may
        differ. The leaves of a stage that is a pytree are its parameters.
      mesh: a `DeviceMesh` or ``jax.sharding.Mesh``.
      num_microbatches: number of equal parts of the first axis of a batch.
      axis: number or name of the mesh axis, whose size divides the number of stages.

    Returns:
      A differentiable function of a batch, equal to calling the stages in turn; its
      ``apply(stages, batch)`` is a function of the parameters too.

    Raises:
      ValueError: for numbers that do not divide evenly.
      TypeError: for a stage that does not return a float array.

    >>> import jax, jax.numpy as jnp, jaxkern.execution as ex
    >>> scale = lambda w: jax.tree_util.Partial(lambda w, x: w * x, jnp.float32(w))
    >>> run = ex.pipeline_parallel([scale(2), scale(3)], ex.DeviceMesh((2,)), num_microbatches=2)
    >>> run(jnp.ones((4, 1))).ravel().tolist()
    [6.0, 6.0, 6.0, 6.0]
    """
    return PipelineParallel(stages, mesh, num_microbatches, axis)


class PipelineParallel:
    """A chain of stages; the result of `pipeline_parallel`."""

    def __init__(self, stages: Sequence[Any], mesh: Any, num_microbatches: int, axis: Any) -> None:
        self._stages, self._mesh = list(stages), mesh
        (self._axis,) = PartitionSpec(axis).resolve(mesh).spec
        self._devices = int(mesh.shape[self._axis])
        if not self._stages or len(self._stages) % self._devices:
            raise ValueError(
                f"pipeline_parallel: {len(self._stages)} stages cannot be divided evenly between "
                f"the {self._devices} devices of mesh axis {self._axis!r}"
            )
        self._count = check_integer("num_microbatches", num_microbatches, 1)
        self._jitted = JitFunction(self._run, JITOptions())

    def __call__(self, batch: Any) -> jax.Array:
        return self.apply(self._stages, batch)

    def apply(self, stages: Sequence[Any], batch: Any) -> jax.Array:
        """Run other stages, which have the structure of the original ones."""
        return self._jitted(list(stages), jnp.asarray(batch))

    def _run(self, stages: list[Any], batch: jax.Array) -> jax.Array:
        records = batch.shape[0] if batch.ndim else 0
        if records == 0 or records % self._count:
            raise ValueError(
                f"pipeline_parallel: a batch of shape {batch.shape} cannot be divided into "
                f"{self._count} equal microbatches"
            )
        each = len(stages) // self._devices
        groups = [stages[i : i + each] for i in range(0, len(stages), each)]
        shapes = [jax.ShapeDtypeStruct((records // self._count, *batch.shape[1:]), batch.dtype)]
        for group in groups:
            shapes.append(_result_shape(group, shapes[-1]))
        # Devices exchange flat arrays of one size and dtype.
        dtype = jnp.result_type(*(s.dtype for s in shapes))
        width = max(s.size for s in shapes)
        parameters, constants, restore = _pack(groups)

        def flatten(x: jax.Array) -> jax.Array:
            return jnp.pad(x.ravel().astype(dtype), (0, width - x.size))

        def unflatten(flat: jax.Array, like: Any) -> jax.Array:
            return flat[: like.size].reshape(like.shape).astype(like.dtype)

        def branch(number: int, vector: Any, constants: Any, flat: jax.Array) -> jax.Array:
            group = restore[number](vector, constants[number])
            return flatten(_chain(group, unflatten(flat, shapes[number])))

        branches = [functools.partial(branch, number) for number in range(self._devices)]

        def on_device(vectors: Any, constants: Any, inputs: jax.Array) -> jax.Array:
            return self._schedule(branches, vectors[0], constants, inputs)

        inputs = jax.vmap(flatten)(batch.reshape((self._count, *shapes[0].shape)))
        split, replicated = JaxSpec(self._axis), JaxSpec()
        outputs = jax.shard_map(
            on_device, mesh=self._mesh, in_specs=(split, replicated, replicated), out_specs=split
        )(parameters, constants, inputs)
        # Each device returns a row per microbatch; the last device has the results.
        outputs = outputs.reshape(self._devices, self._count, width)[-1]
        results = jax.vmap(lambda flat: unflatten(flat, shapes[-1]))(outputs)
        return jnp.reshape(results, (records, *shapes[-1].shape[1:]))

    def _schedule(
        self, branches: Sequence[Any], vector: Any, constants: Any, inputs: jax.Array
    ) -> jax.Array:
        """Process the microbatches on one device, tick by tick."""
        stage = lax.axis_index(self._axis)
        neighbours = [(i, i + 1) for i in range(self._devices - 1)]

        def varying(x: Any) -> Any:
            return lax.pcast(x, (self._axis,), to="varying")

        inputs, constants = jax.tree.map(varying, (inputs, constants))

        # An idle device does not call its stage: the derivative at padding could be infinite.
        def idle(vector: Any, constants: Any, flat: jax.Array) -> jax.Array:
            return jnp.zeros_like(flat)

        def tick(received: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
            index = time - stage
            first = lax.dynamic_index_in_dim(inputs, index, keepdims=False)
            x = jnp.where(stage == 0, first, received)
            number = jnp.where((index >= 0) & (index < self._count), stage, self._devices)
            result: jax.Array = lax.switch(number, [*branches, idle], vector, constants, x)
            return lax.ppermute(result, self._axis, neighbours), result

        ticks = jnp.arange(self._count + self._devices - 1)
        _, results = lax.scan(tick, jnp.zeros_like(inputs[0]), ticks)
        # A device has the result of microbatch m at tick m + stage.
        return lax.dynamic_slice_in_dim(results, stage, self._count)


def _chain(group: Sequence[Any], x: Any) -> Any:
    return functools.reduce(lambda x, fn: fn(x), group, x)


def _result_shape(group: Sequence[Any], argument: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    result = jax.eval_shape(functools.partial(_chain, group), argument)
    if isinstance(result, jax.ShapeDtypeStruct) and jnp.issubdtype(result.dtype, jnp.floating):
        return result
    raise TypeError(f"pipeline_parallel: expected a float array from each stage, got {result}")


def _pack(groups: Sequence[Sequence[Any]]) -> tuple[jax.Array, list[Any], list[Any]]:
    """Pack float parameters into an array [groups, size]; also return the rest and unpackers."""
    vectors, constants, restore = [], [], []
    for group in groups:
        leaves, tree = jax.tree.flatten(list(group))
        arrays = {i: x for i, x in enumerate(leaves) if hasattr(x, "dtype")}
        floats = {i: x for i, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        vector, unravel = ravel_pytree(floats)

        def unpack(
            row: Any, others: Any, leaves: Any = leaves, tree: Any = tree,
            size: int = vector.size, unravel: Any = unravel,
        ) -> Any:  # fmt: skip
            values = dict(enumerate(leaves)) | others | unravel(row[:size])
            return jax.tree.unflatten(tree, values.values())

        vectors.append(vector)
        constants.append({i: x for i, x in arrays.items() if i not in floats})
        restore.append(unpack)
    width = max(vector.size for vector in vectors)
    dtype = jnp.result_type(*vectors)
    rows = [jnp.pad(vector.astype(dtype), (0, width - vector.size)) for vector in vectors]
    return jnp.stack(rows), constants, restore
