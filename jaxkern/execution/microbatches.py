"""`pipeline_parallel`: stages on the devices of a mesh, fed with microbatches (GPipe)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from jaxkern.core.arguments import check_integer
from jaxkern.execution.jit import jit
from jaxkern.execution.mesh import checked_mesh


def pipeline_parallel(
    stages: Sequence[Callable[[Any], Any]],
    mesh: Any,
    num_microbatches: int,
    *,
    axis: int | str = 0,
) -> PipelineParallel:
    """Runs a chain of stages with each one on a device of its own, on parts of a batch in turn.

    Device s works on microbatch m at tick s + m and hands its result to its neighbour, so that
    after ``stages - 1`` ticks all devices work, and M microbatches take M + stages - 1 ticks: of
    the devices' time, (stages - 1) / (M + stages - 1) is idle. Each device holds the parameters of
    its own stages and no others while it runs. Huang et al., "GPipe", NeurIPS 2019.

    Args:
      stages: functions of a float array [n, ...] to one [n, ...]; shapes may differ between stages.
        A stage treats the records of a batch independently. Parameters are the leaves of a stage
        that is a pytree: an `Operator`, an equinox module, ``jax.tree_util.Partial(fn, params)``.
      mesh: a `DeviceMesh` or ``jax.sharding.Mesh``; its axis ``axis`` has as many devices as there
        are stages, or divides their number: then neighbouring stages share a device.
      num_microbatches: into which the first axis of a batch is divided equally.
      axis: of the mesh, by number or name; along all others the work is replicated.

    Returns:
      A function of a batch, equal to the stages called in turn, with its derivatives; its
      ``apply(stages, batch)`` is a function of the parameters too.

    Raises:
      ValueError: for numbers that do not divide.
      TypeError: for results that are no float array.

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
    """What `pipeline_parallel` returns."""

    def __init__(
        self, stages: Sequence[Any], mesh: Any, num_microbatches: int, axis: int | str
    ) -> None:
        self._stages = list(stages)
        self._mesh = checked_mesh(mesh)
        names = self._mesh.axis_names
        self._axis: str = names[axis] if isinstance(axis, int) else axis
        if self._axis not in names:
            raise ValueError(f"axis is {axis!r}; the mesh has the axes {', '.join(names)}")
        self._devices = int(self._mesh.shape[self._axis])
        if not self._stages or len(self._stages) % self._devices:
            raise ValueError(
                f"pipeline_parallel: {len(self._stages)} stages cannot be shared equally by the "
                f"{self._devices} devices of mesh axis {self._axis!r}"
            )
        self._count = check_integer("num_microbatches", num_microbatches, 1)
        self._jitted: Callable[..., Any] = jit(lambda stages, batch: self._run(stages, batch))

    def __call__(self, batch: Any) -> jax.Array:
        return self.apply(self._stages, batch)

    def apply(self, stages: Sequence[Any], batch: Any) -> jax.Array:
        """The result of these stages, which have the structure of the first ones."""
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
        micro = jax.ShapeDtypeStruct((rows // self._count, *batch.shape[1:]), batch.dtype)
        shapes = [micro]
        for group in groups:
            shapes.append(_float_result(group, shapes[-1]))
        wire = jnp.result_type(*(s.dtype for s in shapes))
        width = max(math.prod(s.shape) for s in shapes)
        packed, unpack = _packed_parameters(groups)

        def branch(stage: int) -> Callable[[Any, jax.Array], jax.Array]:
            def run(mine: Any, flat: jax.Array) -> jax.Array:
                x = _unflat(flat, shapes[stage])
                for fn in unpack(stage, mine):
                    x = fn(x)
                return _flat(x, width, wire)

            return run

        branches = [branch(stage) for stage in range(self._devices)]

        def on_device(mine: Any, inputs: jax.Array) -> jax.Array:
            return self._schedule(branches, jax.tree.map(lambda x: x[0], mine), inputs)

        inputs = batch.reshape((self._count, *micro.shape))
        inputs = jax.vmap(lambda x: _flat(x, width, wire))(inputs)
        outputs = jax.shard_map(
            on_device,
            mesh=self._mesh,
            in_specs=(PartitionSpec(self._axis), PartitionSpec()),
            out_specs=PartitionSpec(self._axis),
        )(packed, inputs)
        # Every device has a row for each microbatch; those of the last one are the result.
        outputs = outputs.reshape(self._devices, self._count, width)[-1]
        result = jax.vmap(lambda flat: _unflat(flat, shapes[-1]))(outputs)
        whole: jax.Array = jnp.reshape(result, (rows, *shapes[-1].shape[1:]))
        return whole

    def _schedule(
        self, branches: Sequence[Callable[[Any, jax.Array], jax.Array]], mine: Any, inputs: Any
    ) -> jax.Array:
        """What one device does, tick by tick."""
        stage = lax.axis_index(self._axis)
        last = self._devices - 1
        neighbours = [(i, i + 1) for i in range(last)]
        inputs = lax.pcast(inputs, (self._axis,), to="varying")
        width = inputs.shape[1]

        def work(received: jax.Array, at: jax.Array) -> jax.Array:
            first = lax.dynamic_index_in_dim(inputs, at, keepdims=False)
            x = jnp.where(stage == 0, first, received)
            result: jax.Array = lax.switch(stage, branches, mine, x)
            return result

        def tick(received: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
            at = time - stage
            # Outside its microbatches a device computes nothing, so that a stage never sees
            # values which are not data: their derivatives could be infinite.
            result = lax.cond(
                (at >= 0) & (at < self._count),
                work,
                lambda received, at: jnp.zeros_like(received),
                received,
                jnp.clip(at, 0, self._count - 1),
            )
            handed = lax.ppermute(result, self._axis, neighbours) if last else result
            return handed, result

        nothing = lax.pcast(jnp.zeros((width,), inputs.dtype), (self._axis,), to="varying")
        _, results = lax.scan(tick, nothing, jnp.arange(self._count + last))
        # A device has the result of microbatch m at tick m + stage.
        mine_only: jax.Array = lax.dynamic_slice_in_dim(results, stage, self._count)
        return mine_only


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))


def _float_result(group: Sequence[Any], given: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    def chain(x: Any) -> Any:
        for fn in group:
            x = fn(x)
        return x

    result = jax.eval_shape(chain, given)
    leaf = result if isinstance(result, jax.ShapeDtypeStruct) else None
    if leaf is None or not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise TypeError(f"pipeline_parallel: a stage returns {result}; wanted one float array")
    return leaf


def _flat(x: jax.Array, width: int, dtype: Any) -> jax.Array:
    x = x.ravel().astype(dtype)
    return jnp.pad(x, (0, width - x.size))


def _unflat(flat: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    return flat[: math.prod(like.shape)].reshape(like.shape).astype(like.dtype)


def _packed_parameters(
    groups: Sequence[Sequence[Any]],
) -> tuple[dict[str, jax.Array], Callable[[int, dict[str, jax.Array]], list[Any]]]:
    """Parameters of all groups as one array [groups, size] for each dtype, and the way back.

    So a mesh can split them whatever their shapes are: each group is padded to the largest.
    """
    split = []
    for group in groups:
        leaves, tree = jax.tree.flatten(list(group))
        alike: dict[str, dict[int, Any]] = {}
        for place, leaf in enumerate(leaves):
            if _is_number(leaf):
                alike.setdefault(str(jnp.asarray(leaf).dtype), {})[place] = leaf
        vectors = {dtype: ravel_pytree(numbers) for dtype, numbers in alike.items()}
        split.append((leaves, tree, vectors))
    packed = {}
    for dtype in sorted({dtype for *_, vectors in split for dtype in vectors}):
        rows = [
            vectors[dtype][0] if dtype in vectors else jnp.zeros(0, dtype) for *_, vectors in split
        ]
        width = max(row.size for row in rows)
        packed[dtype] = jnp.stack([jnp.pad(row, (0, width - row.size)) for row in rows])

    def unpack(group: int, mine: dict[str, jax.Array]) -> list[Any]:
        leaves, tree, vectors = split[group]
        restored = dict(enumerate(leaves))
        for dtype, (vector, numbers) in vectors.items():
            restored |= numbers(mine[dtype][: vector.size])
        found: list[Any] = jax.tree.unflatten(tree, restored.values())
        return found

    return packed, unpack
