"""`pipeline_parallel`: stages on the devices of a mesh that process microbatches (GPipe)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from jaxkern.core.arguments import check_integer
from jaxkern.execution.jit import jit
from jaxkern.execution.mesh import check_mesh


def pipeline_parallel(
    stages: Sequence[Callable[[Any], Any]],
    mesh: Any,
    num_microbatches: int,
    *,
    axis: int | str = 0,
) -> PipelineParallel:
    """Run a chain of stages, each on its own device, on the microbatches of a batch.

    Device s processes microbatch m at tick s + m and sends the result to the next device. With S
    stages, M microbatches take M + S - 1 ticks, so devices are idle for (S - 1) / (M + S - 1) of
    the time. A device holds only the floating-point parameters of its stages. Huang et al.,
    "GPipe", NeurIPS 2019.

    Args:
      stages: functions of a float array [n, ...] that return one; shapes may differ between stages.
        A stage processes the records of a batch independently. The leaves of a stage that is a
        pytree (`Operator`, equinox module, ``jax.tree_util.Partial``) are its parameters.
      mesh: a `DeviceMesh` or ``jax.sharding.Mesh``; the size of its axis ``axis`` divides the
        number of stages, and consecutive stages share a device.
      num_microbatches: number of equal parts of the first axis of a batch.
      axis: number or name of the mesh axis; the work is replicated along all others.

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
    >>> loss = lambda stages, x: run.apply(stages, x).sum()
    >>> [g.args[0].item() for g in jax.grad(loss)([scale(2), scale(3)], jnp.ones((4, 1)))]
    [12.0, 8.0]
    """
    return PipelineParallel(stages, mesh, num_microbatches, axis)


class PipelineParallel:
    """A chain of stages; the result of `pipeline_parallel`."""

    def __init__(
        self, stages: Sequence[Any], mesh: Any, num_microbatches: int, axis: int | str
    ) -> None:
        self._stages = list(stages)
        self._mesh = check_mesh(mesh)
        names = self._mesh.axis_names
        self._axis: str = names[axis] if isinstance(axis, int) else axis
        if self._axis not in names:
            raise ValueError(f"axis: expected one of {', '.join(names)}, got {axis!r}")
        self._devices = int(self._mesh.shape[self._axis])
        if not self._stages or len(self._stages) % self._devices:
            raise ValueError(
                f"pipeline_parallel: {len(self._stages)} stages cannot be divided evenly between "
                f"the {self._devices} devices of mesh axis {self._axis!r}"
            )
        self._count = check_integer("num_microbatches", num_microbatches, 1)
        self._jitted: Callable[..., Any] = jit(lambda stages, batch: self._run(stages, batch))

    def __call__(self, batch: Any) -> jax.Array:
        return self.apply(self._stages, batch)

    def apply(self, stages: Sequence[Any], batch: Any) -> jax.Array:
        """Run other stages, which have the structure of the original ones."""
        result: jax.Array = self._jitted(list(stages), jnp.asarray(batch))
        return result

    def _run(self, stages: list[Any], batch: jax.Array) -> jax.Array:
        rows = batch.shape[0] if batch.ndim else 0
        if rows == 0 or rows % self._count:
            raise ValueError(
                f"pipeline_parallel: a batch of shape {batch.shape} cannot be divided into "
                f"{self._count} equal microbatches"
            )
        each = len(stages) // self._devices
        groups = [stages[i : i + each] for i in range(0, len(stages), each)]
        shapes = [jax.ShapeDtypeStruct((rows // self._count, *batch.shape[1:]), batch.dtype)]
        for group in groups:
            shapes.append(_result_shape(group, shapes[-1]))
        # Devices exchange flat arrays of one size and dtype.
        dtype = jnp.result_type(*(s.dtype for s in shapes))
        width = max(math.prod(s.shape) for s in shapes)
        parameters, constants, restore = _pack(groups)

        def flatten(x: jax.Array) -> jax.Array:
            return jnp.pad(x.ravel().astype(dtype), (0, width - x.size))

        def unflatten(flat: jax.Array, like: Any) -> jax.Array:
            return flat[: math.prod(like.shape)].reshape(like.shape).astype(like.dtype)

        def branch(number: int) -> Callable[..., jax.Array]:
            def run(vector: Any, constants: Any, flat: jax.Array) -> jax.Array:
                x = unflatten(flat, shapes[number])
                for fn in restore[number](vector, constants[number]):
                    x = fn(x)
                return flatten(x)

            return run

        branches = [branch(number) for number in range(self._devices)]

        def on_device(vectors: Any, constants: Any, inputs: jax.Array) -> jax.Array:
            return self._schedule(branches, vectors[0], constants, inputs)

        inputs = jax.vmap(flatten)(batch.reshape((self._count, *shapes[0].shape)))
        split, replicated = PartitionSpec(self._axis), PartitionSpec()
        outputs = jax.shard_map(
            on_device,
            mesh=self._mesh,
            in_specs=(split, replicated, replicated),
            out_specs=split,
        )(parameters, constants, inputs)
        # Each device returns a row per microbatch; the last device has the results.
        outputs = outputs.reshape(self._devices, self._count, width)[-1]
        results = jax.vmap(lambda flat: unflatten(flat, shapes[-1]))(outputs)
        return jnp.reshape(results, (rows, *shapes[-1].shape[1:]))

    def _schedule(
        self, branches: Sequence[Any], vector: Any, constants: Any, inputs: jax.Array
    ) -> jax.Array:
        """Process the microbatches on one device, tick by tick."""
        stage = lax.axis_index(self._axis)
        last = self._devices - 1
        neighbours = [(i, i + 1) for i in range(last)]
        inputs = lax.pcast(inputs, (self._axis,), to="varying")
        constants = jax.tree.map(lambda x: lax.pcast(x, (self._axis,), to="varying"), constants)

        def work(received: jax.Array, index: jax.Array) -> jax.Array:
            first = lax.dynamic_index_in_dim(inputs, index, keepdims=False)
            x = jnp.where(stage == 0, first, received)
            result: jax.Array = lax.switch(stage, branches, vector, constants, x)
            return result

        def tick(received: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
            index = time - stage
            # An idle device does not call its stage: the derivative at padding could be infinite.
            result = lax.cond(
                (index >= 0) & (index < self._count),
                work,
                lambda received, index: jnp.zeros_like(received),
                received,
                jnp.clip(index, 0, self._count - 1),
            )
            sent = lax.ppermute(result, self._axis, neighbours) if last else result
            return sent, result

        zeros = jnp.zeros(inputs.shape[1:], inputs.dtype)
        start = lax.pcast(zeros, (self._axis,), to="varying")
        _, results = lax.scan(tick, start, jnp.arange(self._count + last))
        # A device has the result of microbatch m at tick m + stage.
        own: jax.Array = lax.dynamic_slice_in_dim(results, stage, self._count)
        return own


def _result_shape(group: Sequence[Any], argument: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    def chain(x: Any) -> Any:
        for fn in group:
            x = fn(x)
        return x

    result = jax.eval_shape(chain, argument)
    if isinstance(result, jax.ShapeDtypeStruct) and jnp.issubdtype(result.dtype, jnp.floating):
        return result
    raise TypeError(f"pipeline_parallel: expected a float array from each stage, got {result}")


def _pack(groups: Sequence[Sequence[Any]]) -> tuple[jax.Array, list[Any], list[Any]]:
    """Pack float parameters into an array [groups, size], which a mesh can split.

    Returns:
      packed: the array; row k has the float parameters of group k.
      constants: the other numbers and arrays of each group, which are replicated.
      restore: for each group, a function of its row and constants that returns the stages.
    """
    vectors, constants, restore = [], [], []
    for group in groups:
        leaves, tree = jax.tree.flatten(list(group))
        numbers = {i: jnp.asarray(x) for i, x in enumerate(leaves) if _is_number(x)}
        floats = {i: x for i, x in numbers.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        vector, unravel = ravel_pytree(floats)

        def unpack(
            row: Any, others: Any, leaves: Any = leaves, tree: Any = tree,
            size: int = vector.size, unravel: Any = unravel,
        ) -> Any:  # fmt: skip
            values = dict(enumerate(leaves)) | others | unravel(row[:size])
            return jax.tree.unflatten(tree, values.values())

        vectors.append(vector)
        constants.append({i: x for i, x in numbers.items() if i not in floats})
        restore.append(unpack)
    width = max(vector.size for vector in vectors)
    dtype = jnp.result_type(*vectors)
    rows = [jnp.pad(vector.astype(dtype), (0, width - vector.size)) for vector in vectors]
    return jnp.stack(rows), constants, restore


def _is_number(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))
