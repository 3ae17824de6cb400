"""A pipeline made ready to run, and one epoch of it: any batch by its index."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.core.failures import described, note, notes_of
from jaxkern.core.keys import epoch_key
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import Shard
from jaxkern.pipeline.graph import Block, Derivation, Stream, Vertex
from jaxkern.pipeline.native_work import NativeWork, native_work
from jaxkern.pipeline.nodes import Merge, SourceNode
from jaxkern.pipeline.program import BatchUnit, Joint, NodeProgram, halves, salt_of
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.shared import Shared

#: where code runs that may run in both places: JAX's device, or the CPU in worker threads
Placement = Literal["device", "host"]

_ROWS = 4096  # whose records are found together: a call costs as much as some hundred of them


class PipelinePlan:
    """What is known of a pipeline before it runs.

    Args:
      output: the last vertex.
      placement: where the vertices that leave it open run.

    Attributes:
      placement: as given; None where no vertex leaves it open.
      output: the last vertex.
      vertices: all, inputs first.
      names: of the vertices; unique.
      streams: behind the vertices.
      compiled: the vertices that are JAX code, and where it runs.
      masks: whether a source has a field "valid" for records that it cannot read.
      shared: the vertices whose batches several others take.
      first: the shapes of the first full unit that was made; the others are expected to look alike.
    """

    def __init__(self, output: Vertex, placement: Placement = "device") -> None:
        self.output = output
        self.placement: Placement | None = None
        self.vertices = output.ordered()
        self.lock = threading.Lock()
        self.names: dict[Vertex, str] = {}
        self.streams: dict[Vertex, Stream] = {}
        self.compiled: dict[Vertex, str] = {}
        self.first: BatchUnit | None = None
        taken = Counter(before for vertex in self.vertices for before in vertex.inputs)
        self.shared = {vertex for vertex, times in taken.items() if times > 1}
        self._derivations: dict[Vertex, Derivation] = {}
        self._programs: dict[Vertex, NodeProgram] = {}
        times: Counter[str] = Counter()
        draws: Counter[str | None] = Counter()
        for vertex in self.vertices:
            node = vertex.node
            times[node.name] += 1
            again = times[node.name]
            self.names[vertex] = node.name if again == 1 else f"{node.name}#{again}"
            node.check_place(vertex.ordered()[:-1])
            self.streams[vertex] = node.stream([self.streams[v] for v in vertex.inputs])
            where = node.compiled_for
            if where == "auto":
                where = self.placement = placement
            if isinstance(node, Merge) and "device" in map(self.compiled.get, vertex.inputs):
                where = "device"
            if where is not None:
                self.compiled[vertex] = where
            if node.stochastic:
                if salt := salt_of(node.stream_name, draws[node.stream_name]):
                    self._derivations[vertex] = salt
                draws[node.stream_name] += 1

        sources = (vertex.node for vertex in self.vertices if isinstance(vertex.node, SourceNode))
        self.masks = any(node.source.on_bad_record == "mask" for node in sources)

    @property
    def stream(self) -> Stream:
        """What the pipeline yields."""
        return self.streams[self.output]

    @property
    def tail(self) -> NodeProgram | None:
        """The program that ends the pipeline, which runs where batches are delivered."""
        on_device = self.compiled.get(self.output) == "device"
        return self.program(self.output) if on_device else None

    @property
    def frontier(self) -> tuple[Vertex, ...]:
        """The vertices whose batches worker threads make."""
        tail = self.tail
        return (self.output,) if tail is None else tail.frontier

    @functools.cached_property
    def native(self) -> NativeWork | None:
        """What native threads make in the place of worker threads, where they can."""
        return native_work(self.frontier, self.compiled, self._derivations)

    def program(self, vertex: Vertex) -> NodeProgram:
        """The program that ends in a JAX vertex."""
        with self.lock:
            if vertex not in self._programs:
                self._programs[vertex] = NodeProgram(
                    vertex, self.compiled, self.names, self._derivations
                )
            return self._programs[vertex]

    @property
    def programs(self) -> list[NodeProgram]:
        """Those made so far."""
        with self.lock:
            return list(self._programs.values())

    def learn(self, unit: BatchUnit) -> None:
        """Keeps the shapes of the first full unit."""
        if self.first is None and len(unit.records) == min(
            self.stream.batch_size, self.stream.rows
        ):
            specs = unit.joint._replace(leaves=row.spec_of(unit.joint.leaves))
            self.first = BatchUnit(specs, unit.records)

    def spec(self) -> Data:
        """The shapes of a batch; reads the first one where none has been made yet."""
        unit = self.first or Epoch(self, 0).unit(0)
        tail = self.tail
        if tail is None:
            return dict(row.spec_of(unit.joint.batches()[0]))
        return dict(row.spec_of(tail.spec(unit.joint, unit.records)))


class Epoch:
    """One epoch of a plan; its batches can be made in any order, by any threads."""

    def __init__(
        self, plan: PipelinePlan, number: int, end: Vertex | None = None, shard: Shard | None = None
    ) -> None:
        self.plan = plan
        self.number = number
        self._shard = shard
        key = epoch_key(plan.streams[end or plan.output].seed, number)
        #: uint32 [2], the data of the key that the records' keys are folded from
        self.key = np.asarray(jax.random.key_data(key))
        self._streams: dict[Vertex, Stream] = {}
        self._blocks = Shared(keep=16)
        self._shared = Shared(keep=16)
        self._others = Shared(keep=16)
        self._local = threading.local()

    def name_of(self, vertex: Vertex) -> str:
        """A vertex's name."""
        return self.plan.names[vertex]

    def stream_of(self, vertex: Vertex) -> Stream:
        """The stream behind a vertex."""
        if self._shard is None:
            return self.plan.streams[vertex]
        if vertex not in self._streams:
            self._streams[vertex] = self.plan.streams[vertex].of(self._shard)
        return self._streams[vertex]

    def at(self, vertex: Vertex, shard: Shard, number: int) -> Epoch:
        """An epoch of what stands before a vertex, perhaps another one and of another shard."""
        found: Epoch = self._others.get(
            (vertex, shard, number), lambda: Epoch(self.plan, number, vertex, shard)
        )
        return found

    def records(self, stream: Stream, rows: range) -> np.ndarray:
        """The records int64 [N] of rows; those past the end repeat the last."""
        parts = []
        for block in range(rows.start // _ROWS, (rows.stop - 1) // _ROWS + 1):
            first = block * _ROWS
            key = stream.order, stream.shard, stream.real_rows, block
            found = self._blocks.get(key, lambda first=first: self._records(stream, first))
            parts.append(found[max(rows.start - first, 0) : rows.stop - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _records(self, stream: Stream, first: int) -> np.ndarray:
        shard, rows = stream.read_rows(range(first, first + _ROWS))
        return stream.order.records(shard, self.number, rows)

    def unit(self, batch: int, out: Data | None = None) -> BatchUnit:
        """What a worker hands over for a batch; `out` are arrays that a lone source may fill."""
        try:
            with self.together():
                source, *others = self.plan.frontier
                if out is not None and isinstance(source.node, SourceNode):
                    blocks = [source.node.read(self, source, batch, out)]
                else:
                    blocks = [self.block(vertex, batch) for vertex in self.plan.frontier]
        except BaseException as error:
            where = f"in batch {batch} of epoch {self.number}"
            note(error, where)
            if isinstance(error, StopIteration):  # it would end the consumer's loop without a word
                raise RuntimeError(f"{described(error)} was raised {where}") from error
            raise
        joint = Joint.of([row.on_host(block.data) for block in blocks])
        fresh = isinstance(source.node, SourceNode) and source.node.source.fresh
        unit = BatchUnit(
            joint,
            halves(blocks[0].records),
            fresh and out is None and not others,
            self._bad(batch, blocks) if self.plan.masks else 0,
        )
        self.plan.learn(unit)
        return unit

    def _bad(self, batch: int, blocks: Sequence[Block]) -> int:
        """How many rows say that their record could not be read; padding does not count."""
        stream = self.plan.stream
        real = stream.mask_of(stream.rows_of(batch))
        for block in blocks:
            valid = block.data.get("valid")
            if valid is not None and np.shape(valid) == real.shape:
                return int((~np.asarray(valid, bool) & real).sum())
        return 0  # a function has dropped the field

    def together(self) -> AbstractContextManager[None]:
        """Blocks that are made within, by this thread, are made once: branches have the same."""
        return _Together(self._local)

    def block(self, vertex: Vertex, batch: int) -> Block:
        """One batch at a vertex."""
        made = getattr(self._local, "made", {})
        if (vertex, batch) not in made:
            try:
                if vertex in self.plan.compiled:
                    found = self.plan.program(vertex).block(self, batch)
                else:
                    found = vertex.node.block(self, vertex, batch)
            except BaseException as error:
                if not any(text.startswith("in node ") for text in notes_of(error)):
                    note(error, "in node {!r} of the pipeline", self.plan.names[vertex])
                raise
            if vertex in self.plan.shared:  # no branch may change what another one reads
                found = found._replace(data=row.read_only(found.data))
            made[vertex, batch] = found
        block: Block = made[vertex, batch]
        return block

    def shared_block(self, vertex: Vertex, batch: int) -> Block:
        """One batch that several batches behind it are cut from."""
        block: Block = self._shared.get((vertex, batch), lambda: self.block(vertex, batch))
        return block


class _Together:
    # A generator's context manager writes to the exceptions that pass it; some refuse that.
    def __init__(self, local: threading.local) -> None:
        self._local = local

    def __enter__(self) -> None:
        self._local.made = {}

    def __exit__(self, *_: object) -> None:
        self._local.made = {}
