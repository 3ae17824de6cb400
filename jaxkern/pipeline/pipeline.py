"""Pipelines: a source, and the nodes that its batches go through."""

from __future__ import annotations

import copy
import functools
from typing import Any, Literal, overload

import jax

from jaxkern.core.arguments import check_integer
from jaxkern.image import Compose
from jaxkern.pipeline.combining import Repeat, Take
from jaxkern.pipeline.element import ElementOperator
from jaxkern.pipeline.epoch import PipelinePlan, Placement
from jaxkern.pipeline.explanation import Explanation, Overview, explain, overview
from jaxkern.pipeline.graph import PipelineNode, Remainder, Vertex
from jaxkern.pipeline.iteration import IterationOptions, PipelineIterator
from jaxkern.pipeline.nodes import HostNode, Merge, SourceNode
from jaxkern.pipeline.operators import OperatorNode
from jaxkern.pipeline.placement import cpu_device
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.streaming import StreamNode
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.timing import batch_seconds
from jaxkern.pipeline.tuning import Auto, Tuning
from jaxkern.pipeline.workers import holds_ragged
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
    """A pipeline that yields a source's records in batches, as dicts of ``jax.Array``.

    Every epoch holds every record once, over all shards together, in an order that (seed, epoch)
    decides and that takes no memory; see docs/pipelines.md.

    Args:
      source: field -> array [N, ...] or path of an ``.npy`` file; or anything with ``len`` and
        ``[i]`` that gives dicts, as Grain's sources; or an `ArraySource`, `HDF5Source`,
        `ImageFolder` or `Subset` of `jaxkern.pipeline`, or a `BatchSource` of one's own.
      batch_size: records of a batch, of this shard.
      shuffle: whether the order differs from the source's, and from epoch to epoch.
      seed: of the order and of everything random behind it; an integer.
      num_workers: threads that make batches; 0 makes each batch when it is asked for. The batches
        do not depend on it. "auto" begins with 2 and takes more while the consumer waits, cores
        are free and batches come faster for it; ``stats()`` of the iterator tells.
      prefetch_size: batches that are made ahead at most; "auto" likewise, within the memory.
      drop_remainder: whether records that fill no batch are left out of the epoch. Otherwise the
        last batch is smaller.
      shard: (index, count): this pipeline reads every count-th record of the order. None: JAX's
        process index and count.
      pad_remainder: whether the last batch is filled up instead, by repeating the last record; a
        field "mask" (bool [batch_size]) says which rows are real, in every batch.
      sharding: a NamedSharding over the devices of all processes whose first axis is the batch's;
        batches come out as global arrays of batch_size * count records, and all processes get
        equally many, so that the remainder must be dropped or padded.
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
        raise ValueError(f"the source {reader!r} is empty; wanted at least one record")
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
    """A pipeline that yields the records of an iterable in batches, as dicts of ``jax.Array``.

    Records are dicts of arrays; how many there are is known at the end: ``len(pipeline)`` raises.
    A thread of its own reads them, as far ahead as `prefetch_size` batches; a generator is closed
    in it when the iteration ends. The number of a record, which what is drawn for it behind
    belongs to, is its position in the stream; see docs/streams.md.

    Args:
      stream: a function without arguments that returns an iterable, or an iterable; it is iterated
        anew for each epoch. An iterator, such as a generator, can be read in one epoch only. Where
        it has ``set_epoch``, that is called with the epoch's number before.
      shuffle_buffer: about how many records wait in memory so that their order can change: each is
        delayed by up to twice as many places, as (seed, epoch, position) decide. 0 keeps the order.
      resume: "auto" goes on by the stream's own ``get_state`` and ``set_state`` (or ``state_dict``
        and ``load_state_dict``) where it, or its iterator, has them; otherwise, and with "count",
        a resumed pipeline reads the stream from its beginning and skips what had come.
      shard: (index, count): this pipeline takes every count-th record of the stream.
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
    if resume not in ("auto", "count"):
        raise ValueError(f"resume is {resume!r}; wanted 'auto' or 'count'")
    node = StreamNode(stream, batch_size, shuffle_buffer, seed, remainder, _shard(shard), resume)
    return Pipeline(Vertex(node), options)


def _options(
    num_workers: int | Auto,
    prefetch_size: int | Auto,
    sharding: jax.sharding.NamedSharding | None,
) -> IterationOptions:
    if num_workers != "auto":
        num_workers = check_integer("num_workers", num_workers, 0, more='; or "auto"')
    if prefetch_size != "auto":
        more = '; or "auto"; num_workers=0 is a pipeline without prefetching'
        prefetch_size = check_integer("prefetch_size", prefetch_size, 1, more=more)
    if sharding is not None and not isinstance(sharding, jax.sharding.NamedSharding):
        raise TypeError(f"sharding is {sharding!r}; wanted a jax.sharding.NamedSharding")
    return IterationOptions(num_workers, prefetch_size, sharding)


def _remainder(drop: bool, pad: bool, sharding: jax.sharding.NamedSharding | None) -> Remainder:
    if drop and pad:
        raise ValueError("drop_remainder and pad_remainder are both True; wanted one of them")
    if sharding is not None and not (drop or pad):
        raise ValueError(
            "sharding needs equally many rows in all processes, and the last batch may be "
            "smaller; add drop_remainder=True or pad_remainder=True"
        )
    return "drop" if drop else "pad" if pad else "partial"


def _shard(shard: tuple[int, int] | None) -> tuple[int, int] | None:
    if shard is None:
        return None
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise ValueError(f"shard is {shard!r}; wanted (index, count)")
    index, count = (check_integer(f"shard[{i}]", n, i) for i, n in enumerate(shard))
    if index >= count:
        raise ValueError(f"shard is {shard}; wanted (index, count) with index below count")
    return index, count


class Pipeline:
    """Batches from a source through nodes; made by `from_source` and continued by ``>>``.

    ``pipe >> node`` adds an `OperatorNode`, `Probabilistic`, `Conditional`, `Rebatch` or `Cache`,
    or a Python function of a batch of NumPy arrays, which runs in the worker threads. ``a & b``
    merges two branches of the same records: a batch with the fields of both. Neither changes the
    pipelines that it is given.

    Iterating is one epoch; the next iteration is the next epoch.

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
        self._ready: PipelinePlan | None = None
        self._decided = False  # whether it is known where a Compose runs that is left open
        self._on_host_only = False  # whether it can run nowhere else

    def __rshift__(self, node: Any) -> Pipeline:
        if isinstance(node, ElementOperator | Compose):
            node = OperatorNode(node)
        if isinstance(node, Pipeline):
            raise TypeError("pipeline >> pipeline: wanted a node; merge branches with &")
        if isinstance(node, type) or not (isinstance(node, PipelineNode) or callable(node)):
            raise TypeError(
                f"{node!r:.80} is no node; wanted OperatorNode(op), a Python function of a batch, "
                "or a node of jaxkern.pipeline such as Rebatch(n), Filter(fn) or Pack(length)"
            )
        if not isinstance(node, PipelineNode):
            node = HostNode(node)
        if isinstance(node, Repeat | Take):
            return Pipeline(node.arranged_behind(self._output), self._options)
        node = node.behind(self._output)
        return Pipeline(Vertex(node, (self._output,)), self._options)

    def __and__(self, other: Any) -> Pipeline:
        if not isinstance(other, Pipeline):
            return NotImplemented
        if other._options != self._options:
            raise ValueError(
                f"the branches have {self._options} and {other._options}; wanted the same workers, "
                "prefetching and sharding"
            )
        return Pipeline(Vertex(Merge(), (self._output, other._output)), self._options)

    def __iter__(self) -> PipelineIterator:
        self._decide()
        epoch = self._epoch
        self._epoch += 1
        return self._iterator(self._plan, epoch)

    def _iterator(self, plan: PipelinePlan, epoch: int) -> PipelineIterator:
        return PipelineIterator(
            plan, epoch, self._options, self._resumed, self._replan, self._tuning, self._memory
        )

    def __len__(self) -> int:
        """The batches of an epoch. Raises: TypeError where only the end of the epoch tells."""
        plan = self._outline
        if not plan.stream.known:
            first = next(name for v, name in plan.names.items() if plan.streams[v].cut is v)
            raise TypeError(
                f"this pipeline has no length: how many rows come out of {first!r} is known at the "
                "end of an epoch only; iterate to it"
            )
        return plan.stream.batches

    def __bool__(self) -> bool:
        return True

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next iteration is; can be set."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epoch = check_integer("epoch", number, 0)

    def with_seed(self, seed: int) -> Pipeline:
        """The same pipeline with another seed, from epoch 0; this one stays as it is.

        >>> import jaxkern as jk
        >>> pipe = jk.from_source({"x": list(range(100))}, batch_size=100, shuffle=True, seed=1)
        >>> first, other = (next(iter(pipe.with_seed(s)))["x"].tolist() for s in (1, 2))
        >>> first == next(iter(pipe))["x"].tolist(), first == other
        (True, False)
        """
        seed = check_integer("seed", seed, -(2**63))
        made: dict[Vertex, Vertex] = {}
        for vertex in self._output.ordered():
            node = vertex.node
            if isinstance(node, SourceNode):
                node = node.with_seed(seed)
            elif hasattr(node, "seed"):
                node = copy.copy(node)
                node.seed = seed
            made[vertex] = Vertex(node, tuple(made[before] for before in vertex.inputs))
        return Pipeline(made[self._output], self._options)

    @property
    def element_spec(self) -> Data:
        """The fields of a full batch as ``jax.ShapeDtypeStruct``, of this process's part.

        Where the shapes follow from those of arrays and from a Compose on encoded images, no data
        are read. Otherwise, as where a Python function decides, the first batch is, unless one has
        been made already.
        """
        known = self._outline.known_spec() if self._outline.first is None else None
        return self._plan.spec() if known is None else known

    @property
    def compilations(self) -> dict[str, int]:
        """How often each program of the pipeline was compiled, by the names of its nodes."""
        return {program.name: program.compilations for program in self._outline.programs}

    @overload
    def explain(self, record_id: None = None, epoch: int = 0) -> Overview: ...

    @overload
    def explain(self, record_id: int, epoch: int = 0) -> Explanation: ...

    def explain(self, record_id: int | None = None, epoch: int = 0) -> Explanation | Overview:
        """Where each node runs; or one record's way through the pipeline in an epoch.

        Without a record: a Compose that is not told to run on the device or the host is timed in
        both places, with the batches of an epoch and the pipeline's own workers, for some seconds;
        from then on it runs where batches came faster, except that native threads keep what they
        can do on the CPU, however busy it was meanwhile. Iterating does the same by itself where
        the device is not the CPU and there is one process. What a GPU and the CPU compute may
        differ in the last bits, so that a state names the place, and a resumed pipeline takes it
        from there; say ``on=`` for bits that no timing decides.

        With a record: it is replayed in its own batch and shown behind every node, so that the last
        stage holds what an iteration yields; behind a node that drops, adds or joins records it is
        not followed. JAX nodes are compiled one by one for the stages
        between.

        Raises: ValueError for a record that the source or this shard does not have, or that the
          epoch drops.

        >>> import jaxkern as jk
        >>> pipe = jk.from_source({"x": [1, 2, 3]}, 2) >> (lambda batch: {"y": batch["x"] + 1})
        >>> pipe.explain(2).stages[-1].fields["y"].tolist()
        4
        """
        if record_id is None:
            self._settle()
            is_open = self._plan.placement is not None and not self._on_host_only
            is_open &= not isinstance(self._plan.vertices[0].node, StreamNode)
            seconds = self._measure() if is_open and jax.process_count() == 1 else {}
            return overview(self._plan, seconds, self._tuning.workers)
        return explain(
            self._plan, check_integer("record_id", record_id, 0), check_integer("epoch", epoch, 0)
        )

    def __repr__(self) -> str:
        parts = [vertex.node.summary() for vertex in self._output.ordered()]
        return f"Pipeline({' >> '.join(parts)})"

    @property
    def _seed(self) -> int:
        """Of the first source."""
        seeds = (v.node.seed for v in self._output.ordered() if isinstance(v.node, SourceNode))
        return next(seeds, 0)

    @property
    def _records(self) -> int:
        """Records of an epoch, over all shards."""
        return self._outline.stream.order.rows_in((0, 1))

    @property
    def _outline(self) -> PipelinePlan:
        """A plan for what does not depend on where a Compose runs; making it reads no data."""
        return self._undecided if self._ready is None else self._ready

    @functools.cached_property
    def _undecided(self) -> PipelinePlan:
        plan = PipelinePlan(self._output, "host")
        if plan.cut is not None and self._options.sharding is not None and jax.process_count() > 1:
            raise ValueError(
                f"{plan.names[plan.cut]!r} gives each process as many batches as its records "
                "make, and over a mesh of several processes all need equally many: filter and "
                "cut the records before, into a source with a length"
            )
        return plan

    @property
    def _plan(self) -> PipelinePlan:
        """The plan of iterations. Where native threads can run a Compose, headers of images say."""
        if self._ready is None:
            self._ready = self._undecided
            # Several processes would each measure something else, and a stream is read in order.
            streamed = isinstance(self._ready.vertices[0].node, StreamNode)
            self._decided = self._platform == "cpu" or jax.process_count() > 1 or streamed
            if self._ready.placement is not None and not self._native_keep(self._ready):
                self._ready = PipelinePlan(self._output, "device")
        return self._ready

    def _native_keep(self, host: PipelinePlan) -> bool:
        """On the CPU both places give the same bits, and native threads save a pass over the
        images: no timing, which other work can upset, takes it from them."""
        return self._platform == "cpu" and host.native is not None

    @property
    def _platform(self) -> str:
        sharding = self._options.sharding
        if sharding is None:
            return jax.default_backend()
        return str(sharding.mesh.devices.flat[0].platform)

    def _decide(self) -> None:
        """Settles where a Compose runs that is left open, if that is still to be measured."""
        self._settle()
        if self._plan.placement is None or self._decided:
            return
        try:
            self._measure()
        except Exception:  # what a batch raises comes in its place, when that is iterated
            self._decided = True

    def _settle(self) -> None:
        """Over a mesh images must have one size: a Compose that is left open gives it on the host.

        Reads the first batch, where a mesh and such a Compose are given and none has been made yet.
        """
        plan = self._plan
        open_over_mesh = self._options.sharding is not None and plan.placement == "device"
        if not open_over_mesh or cpu_device() is None:
            return
        try:
            ragged = holds_ragged(plan.first_unit().joint)
        except Exception:  # it comes in its place; on the host the others can be made in any case
            ragged = True
        if ragged:
            self._on_host_only = True
            self._replan("host")

    def _measure(self) -> dict[Placement, float]:
        """Seconds of a batch in each place, one of which is the pipeline's from now on."""
        plans: dict[Placement, PipelinePlan] = {"device": PipelinePlan(self._output, "device")}
        if cpu_device() is not None:
            plans["host"] = PipelinePlan(self._output, "host")
        seconds = batch_seconds({k: functools.partial(self._iterator, p) for k, p in plans.items()})
        kept = "host" in plans and self._native_keep(plans["host"])
        self._ready = plans["host" if kept else min(plans, key=lambda place: seconds[place])]
        self._decided = True
        return seconds

    def _resumed(self, epoch: int) -> None:
        self._epoch = epoch + 1

    def _replan(self, placement: Placement) -> PipelinePlan:
        if self._on_host_only:  # also where a state says that it was the device, without a mesh
            placement = "host"
        self._ready, self._decided = PipelinePlan(self._output, placement), True
        return self._ready
