"""A pipeline made ready to run, and one epoch of it: any batch by its index."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxkern.core.failures import describe_exception, note, notes_of
from jaxkern.core.forking import check_not_forked
from jaxkern.core.keys import epoch_key
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import Continuation, Shard, Span
from jaxkern.pipeline.combining import Combined
from jaxkern.pipeline.feed import Feed
from jaxkern.pipeline.graph import Block, Derivation, Stream, Vertex
from jaxkern.pipeline.native_work import NativeWork, native_work
from jaxkern.pipeline.nodes import Merge, SourceNode, check_batches
from jaxkern.pipeline.program import BatchUnit, Joint, NodeProgram, halves, salt_of
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.flows import Flows
from jaxkern.pipeline.sequential.node import SequentialNode
from jaxkern.pipeline.shared import Shared

#: where code runs that may run in both places: JAX's device, or the CPU in worker threads
Placement = Literal["device", "host"]

_IMAGE_SIDES = (4096, 8192)  # stand-ins for the largest side of images that is not known
_ROWS = 4096  # whose records are found together: a call costs as much as some hundred of them


class Remains(NamedTuple):
    """What is left of an epoch that other shards began.

    Attributes:
      shards: that there were.
      spans: of them, that are left.
    """

    shards: int
    spans: tuple[Span, ...]


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
      cut: the last vertex of all whose batches depend on those before; None where there is none.
      shared: the vertices whose batches several others take.
      remains: what there is of an epoch that other shards began; None for all of it.
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
        self.remains: Remains | None = None
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
            self.streams[vertex] = self._stream_of(vertex)
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

        cuts = {c for v in self.frontier if (c := self.streams[v].cut) is not None}
        self.cut = next(iter(cuts), None)
        sources = (vertex.node for vertex in self.vertices if isinstance(vertex.node, SourceNode))
        self.masks = any(node.source.on_bad_record == "mask" for node in sources)

    def continued(self, remains: Remains | None) -> PipelinePlan:
        """The same plan of what is left of an epoch, or of a whole one; its programs are shared."""
        plan = copy.copy(self)
        plan.remains, plan.streams = remains, {}
        for vertex in self.vertices:
            plan.streams[vertex] = plan._stream_of(vertex)
        return plan

    @property
    def origin(self) -> Stream | None:
        """The last stream that says which record a row is; None where no length is known."""
        last = [v for v in self.vertices if isinstance(v.node, SourceNode | Combined)]
        return self.streams[last[-1]] if last else None

    def _stream_of(self, vertex: Vertex) -> Stream:
        stream = self._whole_stream_of(vertex)
        if self.remains is None or vertex in self._before_combined:
            return stream
        if not isinstance(vertex.node, SourceNode | Combined):
            return stream
        return stream.of(order=Continuation(stream.order, *self.remains))

    def _whole_stream_of(self, vertex: Vertex) -> Stream:
        node, given = vertex.node, [self.streams[v] for v in vertex.inputs]
        if not isinstance(node, SequentialNode):
            if isinstance(node, SourceNode | Combined):
                inside, cut = vertex in self._before_combined, vertex in self._before_cuts
                partial = cut or (inside and node.remainder == "drop")
                stream = node.stream_with(given, "partial" if partial else node.remainder)
                if not inside:  # there a shard of one input may be without records
                    check_batches(stream)
                return stream
            return node.stream(given)
        # What fills no batch is decided behind the last node that may change how many rows there
        # are; before, every row counts.
        stream = dataclasses.replace(node.stream(given), cut=vertex)
        if vertex in self._before_cuts:
            return dataclasses.replace(stream, remainder="partial")
        first = vertex.ordered()[0].node
        wanted = first.remainder if isinstance(first, SourceNode | SequentialNode) else None
        return stream if wanted is None else dataclasses.replace(stream, remainder=wanted)

    @functools.cached_property
    def _before_combined(self) -> set[Vertex]:
        """Where no row may be dropped: that is decided behind."""
        ends = (vertex for vertex in self.vertices if isinstance(vertex.node, Combined))
        return {before for end in ends for before in end.ordered()[:-1]}

    @functools.cached_property
    def _before_cuts(self) -> set[Vertex]:
        cuts = (vertex for vertex in self.vertices if isinstance(vertex.node, SequentialNode))
        return {before for cut in cuts for before in cut.ordered()[:-1]}

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
        if self.cut is not None:
            return None
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

    def first_unit(self) -> BatchUnit:
        """A unit with the usual shapes; reads the first batch where none has been made yet."""
        if self.first is not None:
            return self.first
        once = next((v.node for v in self.vertices if getattr(v.node, "once", False)), None)
        if once is not None:
            raise RuntimeError(
                f"{once.describe()} can be read only once: the shapes are known when an iteration "
                "has made the first batch, or of a stream that a function opens anew"
            )
        with contextlib.closing(Epoch(self, 0)) as epoch:
            if not epoch.pull(0):
                raise ValueError("the epoch has no batch, and its shapes are not known")
            return epoch.unit(0)

    def known_spec(self) -> Data | None:
        """The shapes of a batch as the sources declare them; None where only reading one tells.

        Sizes of images that are not known before their headers are read have a stand-in; where the
        shapes depend on it, they are not known.
        """
        if self.cut is not None:
            return None
        try:
            first, other = (self._spec_of(self.output, side, {}) for side in _IMAGE_SIDES)
        except Exception:  # making the first batch raises it again, with the node's name
            return None
        return first if first == other else None

    def _spec_of(
        self, vertex: Vertex, image_side: int, found: dict[Vertex, Data | None]
    ) -> Data | None:
        if vertex in found:  # branches share arrays, and so the objects of their shapes
            return found[vertex]
        program = self.program(vertex) if vertex in self.compiled else None
        inputs: list[Data] = []
        for before in vertex.inputs if program is None else program.frontier:
            given = self._spec_of(before, image_side, found)
            if given is None:
                return None
            inputs.append(given)
        stream = self.streams[vertex]
        if program is None:
            found[vertex] = vertex.node.block_spec(inputs, stream, image_side)
        else:
            found[vertex] = program.spec(
                Joint.of(inputs), np.zeros((stream.first_rows, 2), np.uint32)
            )
        return found[vertex]

    def spec(self) -> Data:
        """The shapes of a batch; reads the first one where none has been made yet."""
        unit = self.first_unit()
        tail = self.tail
        if tail is None:
            return dict(row.spec_of(unit.joint.batches()[0]))
        return dict(row.spec_of(tail.spec(unit.joint, unit.records)))


class Epoch:
    """One epoch of a plan; its batches can be made in any order, by any threads.

    Behind a `SequentialNode` they are pulled in order before they are made, see `pull`.

    Args:
      start: the first batch.
      place: where the last sequential node goes on; None at the beginning.
      threads, ahead: for what stands before sequential nodes.
      end: the vertex whose batches are asked for; None for the last.
      shard: another one than the plan's.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        number: int,
        start: int = 0,
        place: dict[str, Any] | None = None,
        threads: int = 0,
        ahead: int = 1,
        *,
        end: Vertex | None = None,
        shard: Shard | None = None,
    ) -> None:
        check_not_forked("a pipeline cannot be read")
        self.plan = plan
        self.number = number
        #: the number of batches, or more while it is unknown
        self.batches = plan.stream.batches
        self._threads, self._ahead = threads, ahead
        self._flows = Flows(self, number, threads, ahead)
        self._places: dict[int, dict[str, Any] | None] = {start: place}
        self._opened = False
        #: the batch that is pulled next
        self.next = start
        self._shard = shard
        self._seed = plan.streams[end or plan.output].seed
        if shard is None:
            _ = self.key  # before anybody waits for it; before a mixture no node may need it
        self._streams: dict[Vertex, Stream] = {}
        self._blocks = Shared(keep=16)
        self._shared = Shared(keep=16)
        self._others = Shared(keep=4 * len(plan.vertices))  # of each input, this turn and the next
        self._local = threading.local()

    @functools.cached_property
    def key(self) -> np.ndarray:
        """uint32 [2], the data of the key that the records' keys are folded from."""
        return _key_data(self._seed, self.number)

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
            (vertex, shard, number), lambda: Epoch(self.plan, number, end=vertex, shard=shard)
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

    def pull(self, batch: int) -> bool:
        """Has the sequential node give this batch, for `unit`; False where the epoch has ended.

        In order, by one thread at a time. Where there is no such node it does nothing.
        """
        cut = self.plan.cut
        if cut is None:
            return batch < self.batches
        if not self._opened:
            self._opened = True
            try:
                self._flows.open(cut, self._places[batch])
            except (KeyError, TypeError, ValueError) as error:
                self.batches = batch + 1  # there is nothing behind this error
                if self._places[batch] is None:
                    raise
                raise ValueError(
                    f"{self._places[batch]!r:.80} is no place of {self.plan.names[cut]!r}; wanted "
                    "what get_state() gave"
                ) from error
        if self._flows.pull(cut, batch):
            self._places[batch + 1] = self._flows.place(cut)
            # Fewer are on their way.
            self._places.pop(batch - 2 * (self._threads + self._ahead) - 1000, None)
            self.next = batch + 1
            return True
        self._places[batch] = self._flows.place(cut)  # with what was counted up to the end
        self.batches = batch
        return False

    def place(self, batch: int) -> dict[str, Any] | None:
        """Where the sequential node is before a batch, or the end; see `Flow.place`."""
        return self._places.get(batch)

    def numbered(self, number: int) -> Epoch:
        """Another epoch of the same plan."""
        return Epoch(self.plan, number, threads=self._threads, ahead=self._ahead)

    def feed(self, vertex: Vertex, at: Any) -> Feed:
        """What a sequential vertex reads, from a place on."""
        return self._flows.feed(vertex, self.number, at)

    def resize(self, threads: int) -> None:
        """Goes on with so many threads before sequential nodes."""
        self._threads, self._ahead = threads, max(self._ahead, threads + 2)
        self._flows.resize(threads, self._ahead)

    def close(self) -> None:
        """Ends the threads before sequential nodes; idempotent."""
        self._flows.close()

    def unit(self, batch: int, out: Data | None = None) -> BatchUnit:
        """What a worker hands over for a batch; `out` are arrays that a lone source may fill."""
        try:
            with self.together():
                source, *others = self.plan.frontier
                if out is not None and isinstance(source.node, SourceNode):
                    blocks = [source.node.read(self, source, batch, out)]
                elif out is not None:
                    blocks = [self.block(source, batch, out)]
                else:
                    blocks = [self.block(vertex, batch) for vertex in self.plan.frontier]
        except BaseException as error:
            where = f"in batch {batch} of epoch {self.number}"
            note(error, where)
            if isinstance(error, StopIteration):  # it would end the consumer's loop without a word
                raise RuntimeError(f"{describe_exception(error)} was raised {where}") from error
            raise
        joint = Joint.of([row.on_host(block.data) for block in blocks])
        node = source.node
        fresh = node.source.fresh if isinstance(node, SourceNode) else False
        fresh = node.fresh if isinstance(node, SequentialNode) else fresh
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
        for block in blocks:
            if self.plan.cut is None:
                real = stream.mask_of(stream.rows_of(batch))
            else:
                real = np.asarray(block.data.get("mask", np.ones(len(block.records), bool)))
            valid = block.data.get("valid")
            if valid is not None and np.shape(valid) == real.shape:
                return int((~np.asarray(valid, bool) & real).sum())
        return 0  # a function has dropped the field

    def together(self) -> AbstractContextManager[None]:
        """Blocks that are made within, by this thread, are made once: branches have the same."""
        return _Together(self._local)

    def block(self, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        """One batch at a vertex; of a sequential or combined one perhaps in the arrays `out`."""
        made = getattr(self._local, "made", {})
        if (vertex, batch) not in made:
            try:
                if isinstance(vertex.node, SequentialNode):
                    found = self._flows.take(vertex, batch, out)
                elif isinstance(vertex.node, Combined):
                    found = vertex.node.read(self, vertex, batch, out)
                elif vertex in self.plan.compiled:
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

    def shared_block(self, vertex: Vertex, batch: int, rows: int) -> Block:
        """One batch that several batches behind it are cut from, for so many of its rows."""
        whole = len(self.stream_of(vertex).rows_of(batch))
        block: Block = self._shared.get(
            (vertex, batch), lambda: self.block(vertex, batch), rows, whole
        )
        return block


class _Together:
    # A generator's context manager writes to the exceptions that pass it; some refuse that.
    def __init__(self, local: threading.local) -> None:
        self._local = local

    def __enter__(self) -> None:
        self._local.made = {}

    def __exit__(self, *_: object) -> None:
        self._local.made = {}


@functools.lru_cache(maxsize=256)
def _key_data(seed: int, epoch: int) -> np.ndarray:
    # Once, where an iteration begins: an epoch that is begun again while somebody waits for a batch
    # calls no JAX, which a Ctrl-C inside of one of its calls leaves without a trace in that thread.
    data = np.asarray(jax.random.key_data(epoch_key(seed, epoch)))
    data.flags.writeable = False
    return data
