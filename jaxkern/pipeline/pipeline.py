"""Pipelines: a source, and nodes that process its batches."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, Literal, overload

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.image import Compose
from jaxkern.pipeline.epoch import Epoch, first_item
from jaxkern.pipeline.explanation import Explanation, Overview, explain, overview
from jaxkern.pipeline.iteration import IterationOptions, PipelineIterator, leading_axes
from jaxkern.pipeline.nodes import HostNode, Merge, PipelineNode, Remainder, SourceNode, Vertex
from jaxkern.pipeline.operators import ElementOperator, OperatorNode
from jaxkern.pipeline.plan import PipelinePlan
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.source import check_choice
from jaxkern.pipeline.streaming import StreamNode
from jaxkern.pipeline.tuning import Auto, Tuning
from jaxkern.ring import SlotMemory


def from_source(
    source: Any,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    num_workers: int | Auto = 2,
    prefetch_size: int | Auto = 4,
    drop_remainder: bool = False,
    shard: tuple[int, int] | None = None,
    *,
    pad_remainder: bool = False,
    sharding: jax.sharding.NamedSharding | None = None,
) -> Pipeline:
    """Return a pipeline that yields a source's records in batches, as dicts of ``jax.Array``.

    Every epoch contains every record once, over all shards together. The order depends on (seed,
    epoch) and is not stored in memory; see docs/explanation/epochs-and-resume.md.

    Args:
      source: field -> array [N, ...] or path of an ``.npy`` file; or paths of a data set; or
        URLs of packed or Parquet files (`cached` downloads others); or anything with ``len`` and
        ``[i]`` that returns dicts, such as Grain's sources; or an `ArraySource`, `HDF5Source`,
        `ImageFolder` or `Subset` of `jaxkern.pipeline`, or a `BatchSource` of your own.
      batch_size: records per batch of this shard.
      shuffle: True for a random order, different in each epoch; False for the order of the source.
      seed: integer seed of the order and of all random draws of the nodes.
      num_workers: number of threads that make batches; 0 makes each batch when it is requested. The
        batches do not depend on it. "auto" adds threads while that is faster, see
        docs/explanation/threads.md.
      prefetch_size: maximum number of batches that are made ahead, or "auto".
      drop_remainder: True to omit the records that do not fill a batch. Otherwise the last batch is
        smaller.
      shard: (index, count): this pipeline reads every count-th record of the order. None: JAX's
        process index and count.
      pad_remainder: True to fill the last batch by repeating the last record; a field "mask"
        (bool [batch_size]) of every batch marks the real rows.
      sharding: a NamedSharding over the devices of all processes whose first axis is the batch
        axis; batches are global arrays of batch_size * count records. All processes yield the same
        number of batches, so the remainder must be dropped or padded.
    Raises: TypeError or ValueError that names the argument.

    >>> import numpy as np
    >>> import jaxkern as jk
    >>> pipe = jk.from_source({"x": np.arange(5)}, batch_size=2, shuffle=True, seed=1)
    >>> sorted(int(x) for batch in pipe for x in batch["x"])
    [0, 1, 2, 3, 4]
    """
    batch_size = check_integer("batch_size", batch_size, 1)
    options = _options(num_workers, prefetch_size, sharding)
    seed = check_integer("seed", seed, -(2**63))
    remainder = _remainder(drop_remainder, pad_remainder, sharding)
    shard = _shard(shard)
    reader = as_source(source)
    if len(reader) == 0:
        raise ValueError(f"the source {reader!r} is empty; expected at least one record")
    node = SourceNode(reader, batch_size, bool(shuffle), seed, remainder, shard)
    return Pipeline(Vertex(node), options)


def from_stream(
    stream: Any,
    batch_size: int,
    shuffle_buffer: int = 0,
    seed: int = 0,
    num_workers: int | Auto = 2,
    prefetch_size: int | Auto = 4,
    drop_remainder: bool = False,
    shard: tuple[int, int] | None = None,
    *,
    resume: Literal["auto", "count"] = "auto",
    pad_remainder: bool = False,
    sharding: jax.sharding.NamedSharding | None = None,
) -> Pipeline:
    """Return a pipeline that yields the records of an iterable, as dicts of ``jax.Array``.

    Records are dicts of arrays. Their number is unknown before the end, so ``len(pipeline)``
    raises. A thread reads them, at most `prefetch_size` batches ahead. The id of a record, which
    determines its random draws, is its position in the stream: see
    docs/how-to/filter-and-stream.md.

    Args:
      stream: a function without arguments that returns an iterable, or an iterable; it is iterated
        again for each epoch. An iterator, such as a generator, can be read in one epoch only. If
        the iterable has ``set_epoch``, it is called with the epoch number before each epoch.
      shuffle_buffer: approximate number of records in the shuffle buffer. Each record is delayed by
        up to twice this number of positions, depending on (seed, epoch, position). 0 disables
        shuffling.
      resume: "auto" resumes by the stream's own ``get_state`` and ``set_state`` (or ``state_dict``
        and ``load_state_dict``) if it, or its iterator, has them; otherwise, and with "count", a
        resumed pipeline reads the stream from its beginning and skips the delivered records.
      shard: (index, count): this pipeline reads every count-th record of the stream.
      batch_size, seed, num_workers, prefetch_size, drop_remainder, pad_remainder, sharding: as for
        `from_source`.
    Raises: TypeError or ValueError that names the argument; while iterating, RuntimeError for a
    second epoch of an iterator.

    >>> import jaxkern as jk
    >>> def squares():
    ...     for n in range(5):
    ...         yield {"n": n, "square": n * n}
    >>> [batch["square"].tolist() for batch in jk.from_stream(squares, batch_size=2)]
    [[0, 1], [4, 9], [16]]
    """
    batch_size = check_integer("batch_size", batch_size, 1)
    shuffle_buffer = check_integer("shuffle_buffer", shuffle_buffer, 0, 2**40)
    options = _options(num_workers, prefetch_size, sharding)
    seed = check_integer("seed", seed, -(2**63))
    remainder = _remainder(drop_remainder, pad_remainder, sharding)
    check_choice("resume", resume, "auto", "count")
    node = StreamNode(stream, batch_size, shuffle_buffer, seed, remainder, _shard(shard), resume)
    return Pipeline(Vertex(node), options)


def _options(num_workers: int | Auto, prefetch_size: int | Auto, sharding: Any) -> IterationOptions:
    if num_workers != "auto":
        num_workers = check_integer("num_workers", num_workers, 0, more='; or "auto"')
    if prefetch_size != "auto":
        more = '; or "auto"; num_workers=0 is a pipeline without prefetching'
        prefetch_size = check_integer("prefetch_size", prefetch_size, 1, more=more)
    if sharding is not None and not isinstance(sharding, jax.sharding.NamedSharding):
        raise TypeError(f"sharding is {sharding!r}; expected a jax.sharding.NamedSharding")
    return IterationOptions(num_workers, prefetch_size, sharding)


def _remainder(drop: bool, pad: bool, sharding: Any) -> Remainder:
    if drop and pad:
        raise ValueError("drop_remainder and pad_remainder are both True; expected one of them")
    if sharding is not None and not (drop or pad):
        raise ValueError("sharding needs drop_remainder=True or pad_remainder=True")
    return "drop" if drop else "pad" if pad else "partial"


def _shard(shard: tuple[int, int] | None) -> tuple[int, int] | None:
    if shard is None:
        return None
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise ValueError(f"shard is {shard!r}; expected (index, count)")
    index, count = (check_integer(f"shard[{i}]", n, i) for i, n in enumerate(shard))
    if index >= count:
        raise ValueError(f"shard is {shard}; expected (index, count) with index below count")
    return index, count


class Pipeline:
    """Batches from a source through nodes; made by `from_source` and continued by ``>>``.

    ``pipe >> node`` adds an `OperatorNode`, `Probabilistic`, `Conditional`, `Rebatch` or `Cache`,
    or a Python function of a batch of NumPy arrays, which worker threads call. ``a & b`` merges two
    branches of the same records into batches with the fields of both. Neither operator modifies its
    operands.

    Each iteration yields one epoch; the next iteration yields the next epoch.

    >>> import jaxkern as jk
    >>> base = jk.from_source({"x": [1, 2, 3]}, batch_size=2)
    >>> double = lambda batch: {"double": 2 * batch["x"]}
    >>> pipe = base & base >> double
    >>> [{name: x.tolist() for name, x in batch.items()} for batch in pipe]
    [{'double': [2, 4], 'x': [1, 2]}, {'double': [6], 'x': [3]}]
    """

    def __init__(self, output: Vertex, options: IterationOptions) -> None:
        self._output = output
        self._options = options
        self._tuning = Tuning(options.num_workers, options.prefetch_size)
        self._memory = SlotMemory()
        self._epoch = 0

    def __rshift__(self, node: Any) -> Pipeline:
        if isinstance(node, ElementOperator | Compose):
            node = OperatorNode(node)
        if isinstance(node, Pipeline):
            raise TypeError("pipeline >> pipeline: expected a node; merge branches with &")
        if isinstance(node, type) or not (isinstance(node, PipelineNode) or callable(node)):
            raise TypeError(
                f"{node!r:.80} is not a node; expected OperatorNode(op), a Python function of a "
                "batch, or a node of jaxkern.pipeline such as Rebatch(n)"
            )
        if not isinstance(node, PipelineNode):
            node = HostNode(node)
        return Pipeline(node.after(self._output), self._options)

    def __and__(self, other: Any) -> Pipeline:
        if not isinstance(other, Pipeline):
            return NotImplemented
        if other._options != self._options:
            raise ValueError(
                f"the branches have {self._options} and {other._options}; expected the same "
                "workers, prefetching and sharding"
            )
        return Pipeline(Vertex(Merge(), (self._output, other._output)), self._options)

    def __iter__(self) -> PipelineIterator:
        plan, epoch = self._plan, self._epoch
        self._epoch += 1
        return PipelineIterator(
            plan, epoch, self._options, self._set_resumed, self._tuning, self._memory
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch; raise TypeError if it is unknown."""
        plan = self._host_plan
        if not plan.layout.known:
            first = next(plan.names[vertex] for vertex in plan.vertices if vertex.node.sequential)
            raise TypeError(f"no length: the rows of {first!r} are unknown until the epoch ends")
        return plan.layout.batches

    def __bool__(self) -> bool:
        return True

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration yields; can be set."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epoch = check_integer("epoch", number, 0)

    def with_seed(self, seed: int) -> Pipeline:
        """Return a copy of the pipeline with another seed, at epoch 0.

        >>> import jaxkern as jk
        >>> pipe = jk.from_source({"x": list(range(100))}, batch_size=100, shuffle=True, seed=1)
        >>> first, other = (next(iter(pipe.with_seed(s)))["x"].tolist() for s in (1, 2))
        >>> first == next(iter(pipe))["x"].tolist(), first == other
        (True, False)
        """
        seed = check_integer("seed", seed, -(2**63))
        copies: dict[Vertex, Vertex] = {}
        for vertex in self._output.ordered():
            inputs = tuple(copies[upstream] for upstream in vertex.inputs)
            copies[vertex] = Vertex(vertex.node.with_seed(seed), inputs)
        return Pipeline(copies[self._output], self._options)

    def with_workers(self, num_workers: int) -> Pipeline:
        """Return a copy of the pipeline with another number of workers, at epoch 0.

        With 0 the iterating thread makes the batches, which is useful for debugging; the batches
        are the same.

        >>> import jaxkern as jk
        >>> pipe = jk.from_source({"x": [1, 2, 3]}, batch_size=2) >> jk.pipeline.Cache()
        >>> [batch["x"].tolist() for batch in pipe.with_workers(0)]
        [[1, 2], [3]]
        """
        num_workers = check_integer("num_workers", num_workers, 0)
        return Pipeline(self._output, dataclasses.replace(self._options, num_workers=num_workers))

    @property
    def element_spec(self) -> Data:
        """The fields of this process's part of a full batch as ``jax.ShapeDtypeStruct``.

        The first batch is read if the shapes cannot be derived from those of arrays and operators.
        """
        plan = self._host_plan
        spec = plan.known_spec() if plan.first is None else None
        return self._plan.spec_after(first_item(self._plan)) if spec is None else spec

    @property
    def compilations(self) -> dict[str, int]:
        """Number of compilations of each program of the pipeline, by the names of its nodes."""
        plans = [vars(self).get(name) for name in ("_host_plan", "_plan")]
        return {name: n for plan in plans if plan for name, n in plan.compilations.items()}

    @overload
    def explain(self, record_id: None = None, epoch: int = 0) -> Overview: ...

    @overload
    def explain(self, record_id: int, epoch: int = 0) -> Explanation: ...

    def explain(self, record_id: int | None = None, epoch: int = 0) -> Explanation | Overview:
        """Return where each node runs, or the effect of each node on one record of an epoch.

        Without a record: a Compose with neither ``on="device"`` nor ``on="host"`` runs in native
        threads if they can run all of it, else on the device if JAX has an accelerator, else on the
        host. Images of different sizes must be resized to one size on the host to be sharded over a
        mesh. Results of a GPU and a CPU may differ in the last bits: use ``on=`` for results that
        do not depend on the machine.

        With a record: its batch is computed again, and the record is returned after every node; the
        last stage is what an iteration yields. Nodes that drop, add or join records end the list.

        Raises: ValueError if the source or this shard does not have the record, or the epoch drops
        it.

        >>> import jaxkern as jk
        >>> pipe = jk.from_source({"x": [1, 2, 3]}, 2) >> (lambda batch: {"y": batch["x"] + 1})
        >>> pipe.explain(2).stages[-1].fields["y"].tolist()
        4
        """
        if record_id is None:
            return overview(self._plan, self._tuning.workers)
        return explain(
            self._plan, check_integer("record_id", record_id, 0), check_integer("epoch", epoch, 0)
        )

    def __repr__(self) -> str:
        parts = [vertex.node.summary() for vertex in self._output.ordered()]
        return f"Pipeline({' >> '.join(parts)})"

    @property
    def _records(self) -> int:
        """Number of records of an epoch, over all shards."""
        return self._host_plan.layout.order.rows_in((0, 1))

    @functools.cached_property
    def _host_plan(self) -> PipelinePlan:
        """The plan with a Compose with ``on="auto"`` on the host; creating it reads no data."""
        plan = PipelinePlan(self._output, "host")
        last = plan.last_sequential
        if last is not None and self._options.sharding is not None and jax.process_count() > 1:
            raise ValueError(
                f"the number of batches of {plan.names[last]!r} depends on the process; over a "
                "mesh of several processes use a source with a length"
            )
        return plan

    @functools.cached_property
    def _plan(self) -> PipelinePlan:
        """The plan of iterations; creating it may read image headers to choose native threads."""
        host, sharding = self._host_plan, self._options.sharding
        # The rule: native threads, else the device if there is an accelerator, else the host.
        if host.placement is None or host.native is not None or platform_of(sharding) == "cpu":
            return host
        device = PipelinePlan(self._output, "device")
        if sharding is None:
            return device
        try:
            jax.local_devices(backend="cpu")
        except RuntimeError:  # JAX runs without a CPU device (``JAX_PLATFORMS=cuda``)
            return device
        try:
            # Images of different sizes, as in the first batch, cannot be sharded over a mesh.
            return host if first_item(device).ragged else device
        except Exception:  # raised when the batch is requested; the host can make the other batches
            return host

    def _set_resumed(self, epoch: int) -> None:
        self._epoch = epoch + 1


def platform_of(sharding: jax.sharding.NamedSharding | None) -> str:
    """Return the platform of the devices of the batches, such as "cpu" or "gpu"."""
    if sharding is None:
        return jax.default_backend()
    return str(sharding.mesh.devices.flat[0].platform)


class Resized:
    """Variants of a pipeline that differ only in the batch size; they share its caches."""

    def __init__(self, pipeline: Pipeline) -> None:
        plan, options, tuning = pipeline._plan, pipeline._options, pipeline._tuning
        self._pipeline = pipeline
        self.sharding, self.workers = options.sharding, tuning.workers
        #: maximum number of batches that the workers make ahead
        self.units_ahead = tuning.ahead if tuning.workers else 0
        #: number of records of an epoch, for this process
        self.records = max(plan.layout.order.total // plan.layout.shard[1], 1)

    def pipeline(self, size: int) -> Pipeline:
        """Return the pipeline with another batch size, and without a smaller last batch.

        It changes the batch size of the source, or of the last node that sets it.
        """
        built: dict[tuple[Vertex, bool], Vertex] = {}

        def rebuild(vertex: Vertex, decides: bool) -> Vertex:
            if (vertex, decides) not in built:
                node = copy.copy(vertex.node)
                if node.remainder == "partial":
                    node.remainder = "drop"
                above = decides and node.batch_size is None
                if node.batch_size is not None and decides:
                    node.batch_size = size
                    # The inputs of a mixture must have its batch size.
                    above = node.has_order and not node.keeps_remainder
                inputs = tuple(rebuild(upstream, above) for upstream in vertex.inputs)
                built[vertex, decides] = Vertex(node, inputs)
            return built[vertex, decides]

        return Pipeline(rebuild(self._pipeline._output, True), self._pipeline._options)

    def last_program(self, pipeline: Pipeline, size: int) -> tuple[list[Any], Any]:
        """Return the shapes of a work item of all processes, and its compiled program or None.

        Reads one batch if none has been made yet.
        """
        plan, sharding = pipeline._plan, self.sharding
        item = first_item(self._pipeline._plan)
        processes = 1 if sharding is None else jax.process_count()

        def spec(leaf: Any, divided: int) -> jax.ShapeDtypeStruct:
            # The buffer of Ragged images grows with their number.
            rows = leaf.shape[0] * size // len(item.records) * processes
            # With the sharding of the batches, so that the compiled program fits the first batch.
            placed = None if sharding is None else leading_axes(sharding, divided)
            return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=placed)

        leaves = [spec(leaf, len(leaf.shape)) for leaf in item.leaves]
        if plan.final_program is None:
            return leaves, None
        records = spec(np.empty(item.records.shape, item.records.dtype), divided=1)
        item = item._replace(leaves=leaves, records=records)
        return leaves, plan.final_program.compiled(item, Epoch(plan, 0).key)
