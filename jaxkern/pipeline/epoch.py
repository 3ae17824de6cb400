"""One epoch of a pipeline: blocks by index, and the work items that engines make from them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.caches import LruCache
from jaxkern.core.failures import describe_exception, is_interrupt, note, notes_of
from jaxkern.core.forking import check_not_forked
from jaxkern.core.keys import epoch_key
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import Order, Part, Shard
from jaxkern.pipeline.engine import Engine, Item, ItemSource
from jaxkern.pipeline.nodes import RECORDS_PER_CALL, BatchLayout, Block, SourceNode, Vertex
from jaxkern.pipeline.plan import PipelinePlan, WorkItem
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import DeferredBlock, Flow
from jaxkern.ring import Assembly, ProducerError, RingStats, SlotMemory

#: number of rows whose order is computed together; the overhead equals that of a few hundred rows
_BLOCK_ROWS = 4096
_SHARED_BLOCKS = 16
#: bytes of a batch whose rows one native thread copies faster than a second one wakes up
_SMALL_BATCH = 1 << 18


class Epoch:
    """One epoch of a plan; any thread can make any block that is not after a sequential node.

    `threads` and `ahead` configure the engines upstream of sequential nodes. `end` is the vertex
    whose batches are requested; by default the last one. `shard` overrides the plan's shard.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        number: int,
        threads: int = 0,
        ahead: int = 1,
        *,
        end: Vertex | None = None,
        shard: Shard | None = None,
    ) -> None:
        check_not_forked("a pipeline cannot be read")
        end = end or plan.output
        self.plan, self.number = plan, number
        self.threads, self.ahead = threads, ahead
        self._seed = plan.layouts[end].seed
        self.layouts = plan.layouts
        if shard is not None:
            self.layouts = {
                vertex: dataclasses.replace(plan.layouts[vertex], shard=shard)
                for vertex in end.ordered()
            }
        # Each input of a mixture needs its current and its next epoch.
        self._inputs: LruCache[Epoch] = LruCache(4 * len(plan.vertices))
        self._shared: dict[tuple[Vertex, int], _SharedBlock] = {}
        self._lock, self._order_lock = threading.Lock(), threading.Lock()

    @functools.cached_property
    def key(self) -> np.ndarray:
        """uint32 [2], key data of the epoch; the records' keys are folded from it."""
        return _key_data(self._seed, self.number)  # lazy: inputs of mixtures may not need it

    def at(self, vertex: Vertex, shard: Shard, number: int) -> Epoch:
        """Return the epoch of an input of a mixture, which may have another number and shard."""
        key = vertex, shard, number
        epoch = self._inputs.get(key)
        if epoch is None:
            epoch = Epoch(self.plan, number, end=vertex, shard=shard)
            self._inputs.put(key, epoch)
            epoch = self._inputs.get(key) or epoch  # another thread may have been first
        return epoch

    def records(self, layout: BatchLayout, rows: range) -> np.ndarray:
        """Return the records int64 [N] of rows; rows past the end repeat the last."""
        pieces = []
        for first, block in self._row_blocks(_record_ids, layout, rows):
            pieces.append(block[max(rows.start - first, 0) : rows.stop - first])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def parts(self, layout: BatchLayout, rows: range) -> Iterator[Part]:
        """Yield the parts of rows, see `Order.parts`; rows past the end repeat the last."""
        if min(order.rows_in(layout.shard) for order in layout.order.inputs) < _BLOCK_ROWS // 64:
            shard, numbers = layout.read_rows(rows)  # a block would have many parts
            yield from layout.order.parts(shard, self.number, numbers)
            return
        for first, block in self._row_blocks(_parts, layout, rows):
            for part in block:
                bounds = rows.start - first, rows.stop - first
                begin, end = part.positions.searchsorted(bounds).tolist()
                if begin < end:
                    positions = part.positions[begin:end] + (first - rows.start)
                    yield part._replace(rows=part.rows[begin:end], positions=positions)

    def _row_blocks(self, compute: Any, layout: BatchLayout, rows: range) -> Iterator[Any]:
        """Yield (first row, result of `compute`) of the blocks of rows that contain `rows`."""
        for block in range(rows.start // _BLOCK_ROWS, (rows.stop - 1) // _BLOCK_ROWS + 1):
            with self._order_lock:  # only one thread computes it
                result = compute(layout.order, layout.shard, self.number, block)
            yield block * _BLOCK_ROWS, result

    def shared_block(self, vertex: Vertex, batch: int, rows: int) -> Block:
        """Return a batch from which several later batches are cut; the first thread makes it.

        It is dropped after all its rows were requested; this call requests `rows` of them.
        """
        with self._lock:
            shared = self._shared.pop((vertex, batch), None) or _SharedBlock()
            shared.used += rows
            if shared.used < len(self.layouts[vertex].rows_of(batch)):
                self._shared[vertex, batch] = shared  # the last one is the most recently used
            while len(self._shared) > _SHARED_BLOCKS:
                del self._shared[next(iter(self._shared))]
        with shared.lock:
            if shared.block is None:
                shared.block = self.unmodified(vertex, Blocks(self).block(vertex, batch))
            return shared.block

    def unmodified(self, vertex: Vertex, block: Block) -> Block:
        """Return a block whose arrays the vertex will not modify for a later block."""
        if vertex.node.fresh or vertex.node.sequential or vertex in self.plan.compiled:
            return block
        return block._replace(data=jax.tree.map(np.array, block.data))

    def open_flow(self, vertex: Vertex, position: Any) -> Flow:
        """Return the batches of a sequential vertex from a position on.

        Raises: ValueError if it is not a position of the node.
        """
        node: Any = vertex.node
        try:
            flow: Flow = node.flow(node, self, vertex, position or {})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if position is None:
                raise
            raise ValueError(
                f"the position of {self.plan.names[vertex]!r} is {position!r:.80}; expected the "
                "one that get_state() returned"
            ) from error
        return flow

    def open_upstream(self, vertex: Vertex, position: Any) -> Engine:
        """Return the engine of the input of a sequential vertex, from a position on."""
        return Engine(_UpstreamRows(self, vertex, position), self.threads, self.ahead)


class Blocks:
    """The blocks of an epoch, each made once, so that branches share arrays; not thread-safe.

    `pulled` makes the next block of the last sequential node, or is its error.
    """

    def __init__(self, epoch: Epoch, pulled: DeferredBlock | BaseException | None = None):
        self.epoch = epoch
        self._pulled = pulled
        self._made: dict[tuple[Vertex, int], Block] = {}

    def block(self, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        """Return one batch at a vertex; it may use the arrays `out`."""
        made = self._made.get((vertex, batch))
        if made is not None:
            return made
        plan = self.epoch.plan
        try:
            if vertex.node.sequential:
                if not callable(self._pulled):
                    assert self._pulled is not None
                    raise self._pulled
                block = self._pulled(out)
            elif vertex in plan.compiled:
                block = self._program_block(vertex, batch)
            else:
                block = vertex.node.block(self, vertex, batch, out)
        except BaseException as error:
            if not any(text.startswith("in node ") for text in notes_of(error)):
                note(error, "in node {!r} of the pipeline", plan.names[vertex])
            raise
        if vertex in plan.shared:  # a branch must not modify arrays that another one reads
            block = block._replace(data=row.read_only(block.data))
        self._made[vertex, batch] = block
        return block

    def _program_block(self, vertex: Vertex, batch: int) -> Block:
        program = self.epoch.plan.program(vertex)
        blocks = [self.block(upstream, batch) for upstream in program.inputs]
        records = blocks[0].records
        if program.where == "device":
            item = WorkItem.of([block.data for block in blocks], records)
            return Block(program(item, self.epoch.key), records)
        item = WorkItem.of([row.on_host(block.data) for block in blocks], records)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            data = program(item, self.epoch.key)
        return Block(row.on_host(data), records)


class _SharedBlock:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.used = 0  # number of requested rows
        self.block: Block | None = None


class _Section(ItemSource):
    """The batches of several vertices, made together and in order, from batch `index` on.

    If a sequential node precedes the vertices, its flow determines the items, from `position` on.
    """

    def __init__(
        self, epoch: Epoch, vertices: Sequence[Vertex], index: int = 0, position: Any = None
    ) -> None:
        self._epoch, self._vertices, self.index = epoch, vertices, index
        layout = epoch.layouts[vertices[0]]  # equal for all of them, see `Merge`
        self._batches, self._sequential = layout.batches, layout.last_sequential
        self._flow: Flow | None = None
        if self._sequential is not None:
            self._flow = epoch.open_flow(self._sequential, position)

    @property
    def position(self) -> Any:
        return self.index if self._flow is None else self._flow.position

    def claim(self) -> tuple[int, Any] | None:
        block: Any = None
        if self._flow is None:
            if self.index >= self._batches:
                return None
        else:
            try:
                block = self._flow.next()
            except BaseException as error:
                if is_interrupt(error):
                    raise
                assert self._sequential is not None
                name = self._epoch.plan.names[self._sequential]
                note(error, "in node {!r} of the pipeline", name)
                block = error
            if block is None:
                return None
        self.index += 1
        return self.index - 1, block

    def resize(self, threads: int) -> None:
        if self._flow is not None:
            self._flow.resize(threads)

    def stop(self) -> None:
        if self._flow is not None:
            self._flow.close()


class _UpstreamRows(_Section):
    """The output of a sequential node for the blocks before it, which its flow reads."""

    def __init__(self, epoch: Epoch, vertex: Vertex, position: Any) -> None:
        (upstream,) = vertex.inputs
        index = 0
        if epoch.layouts[upstream].last_sequential is None and position is not None:
            index = int(position)
        super().__init__(epoch, (upstream,), index, position)
        self._node: Any = vertex.node
        self._name = epoch.plan.names[vertex]

    def make(self, claim: tuple[int, Any], slot: Any) -> Any:
        index, pulled = claim
        block = Blocks(self._epoch, pulled).block(self._vertices[0], index)
        block = self._epoch.unmodified(self._vertices[0], block)
        try:
            return self._node.rows(Block(row.on_host(block.data), block.records))
        except BaseException as error:
            note(error, "in node {!r} of the pipeline", self._name)
            raise


class WorkItems(_Section):
    """The work items of an epoch from a batch on, for the engine of an iteration."""

    def __init__(self, epoch: Epoch, index: int = 0, position: Any = None) -> None:
        super().__init__(epoch, epoch.plan.inputs, index, position)
        self._plan = epoch.plan
        self._fills_slots = len(self._vertices) == 1 and self._vertices[0].node.fills_slots

    def make(self, claim: tuple[int, Any], slot: Any) -> WorkItem:
        index, pulled = claim
        # Slots do not hold Ragged images, whose buffers have no fixed length.
        usual = self._plan.first if slot and slot["leaves"] else None
        out = None
        if usual is not None and self._fills_slots:
            rows = self._epoch.layouts[self._vertices[0]].rows_of(index)
            if self._sequential is not None or len(rows) == len(usual.records):
                (out,) = usual._replace(leaves=slot["leaves"]).batches()
        item = self._item(index, pulled, out)
        if usual is not None and item.is_like(usual):
            return item.fill(slot)
        # A later batch would overwrite the data that a source wrote to the slot. The copy that JAX
        # needs is made here, not in the thread that waits for the item.
        return item if slot is None else item.with_owned_buffers()

    def _item(self, index: int, pulled: Any, out: Data | None) -> WorkItem:
        epoch = self._epoch
        made = Blocks(epoch, pulled)
        try:
            blocks = [made.block(vertex, index, out) for vertex in self._vertices]
        except BaseException as error:
            where = f"in batch {index} of epoch {epoch.number}"
            note(error, where)
            if isinstance(error, StopIteration):  # it would silently end the consumer's loop
                raise RuntimeError(f"{describe_exception(error)} was raised {where}") from error
            raise
        item = WorkItem.of(
            [row.on_host(block.data) for block in blocks],
            blocks[0].records,
            owned=len(blocks) == 1 and out is None and self._vertices[0].node.fresh,
            bad=self._bad_records(index, blocks) if self._plan.masks else 0,
        )
        self._plan.learn(item)
        return item

    def _bad_records(self, index: int, blocks: Sequence[Block]) -> int:
        """Count the rows, without padding, whose record could not be read."""
        layout = self._plan.layout
        for block in blocks:
            if self._sequential is None:
                real = layout.mask_of(layout.rows_of(index))
            else:
                real = np.asarray(block.data.get("mask", np.ones(len(block.records), bool)))
            valid = block.data.get("valid")
            if valid is not None and np.shape(valid) == real.shape:
                return int((~np.asarray(valid, bool) & real).sum())
        return 0  # a function has removed the field


class NativeEngine:
    """An engine whose work items native threads make, from batch `start` on; see `Engine`.

    It uses at most as many threads as the kernels.
    """

    def __init__(
        self, epoch: Epoch, start: int, threads: int, capacity: int, device: Any, memory: SlotMemory
    ) -> None:
        work = epoch.plan.native
        assert work is not None
        assert isinstance(work.source.node, SourceNode)
        self.capacity = capacity
        self._epoch, self._work = epoch, work
        self._layout = layout = epoch.plan.layouts[work.source]
        self._reader = work.source.node.source
        pending = epoch.plan.final_program or work.masks or work.residual or device
        self._finished = pending is None or pending is False
        first = epoch.plan.first
        large = bool(work.producers) or first is None or first.nbytes >= _SMALL_BATCH
        self._assembly = Assembly(
            work.arrays,
            self._orders(start),
            layout.batch_size,
            capacity=capacity,
            workers=min(threads, work.most_threads) if large else 1,
            remainder="partial",
            producers={k: p.at(layout.seed, epoch.number) for k, p in work.producers.items()},
            valid="valid" if work.masks else None,
            start=start,
            rows_of=self._reader.rows_of,
            device=device,
            memory=memory,
        )

    def next(self, timeout: float | None = None) -> Item | None:
        """Return the next item; None after the last one, or after `_orders` raised an error."""
        try:
            index, error, data = self._assembly.take(timeout)
        except StopIteration:
            return None
        if isinstance(error, ProducerError) and error.record is not None:
            if name := self._reader.name_of(error.record):
                note(error, "while reading record {} of {!r}: {}", error.record, self._reader, name)
        value = None if error is not None else self._item(index, data)
        return Item(value, error, index, index + 1)

    def _item(self, index: int, data: dict[str, Any]) -> WorkItem | Data:
        """Return the work item, or the batch if nothing remains to be done with it."""
        work, rows = self._work, self._layout.rows_of(index)
        if self._layout.remainder == "pad":
            data["mask"] = self._layout.mask_of(rows)
        plan, bad = self._epoch.plan, 0
        if self._finished and plan.first is not None:  # the shortest way, for small batches
            return data
        records = self._epoch.records(self._layout, rows)
        if work.masks and not (valid := np.asarray(data["valid"])).all():
            bad = int((~valid & self._layout.mask_of(rows)).sum())
            self._reader.note_masked(records[~valid])
        if work.residual is not None:
            names = work.arrays.keys() - work.producers.keys()
            other = WorkItem.of([{name: data[name] for name in names}], records)
            data |= work.residual(other, self._epoch.key)
        item = WorkItem.of([data], records, owned=True, bad=bad)
        plan.learn(item)
        return item

    def _orders(self, start: int) -> Iterator[np.ndarray]:
        """Yield the records of several batches at a time.

        Raises the exception of `check` instead of yielding a batch with a record that must not be
        read.
        """
        layout, check = self._layout, self._reader.check
        step = max(1, RECORDS_PER_CALL // layout.batch_size)
        for first in range(start, layout.batches, step):
            batches = range(first, min(first + step, layout.batches))
            rows = [layout.rows_of(batch) for batch in batches]
            records = self._epoch.records(layout, range(rows[0].start, rows[-1].stop))
            try:
                check(records)
            except Exception:
                for batch, part in zip(batches, rows, strict=True):
                    ids = records[part.start - rows[0].start : part.stop - rows[0].start]
                    try:
                        check(ids)
                    except Exception as error:
                        note(error, "in batch {} of epoch {}", batch, self._epoch.number)
                        raise
                    yield ids
            else:
                yield records

    def stats(self) -> RingStats:
        """Return the statistics of the ring."""
        return self._assembly.stats()

    def close(self) -> None:
        """End the threads; idempotent."""
        self._assembly.close()


def first_item(plan: PipelinePlan) -> WorkItem:
    """Return a work item of a full batch; read the first batch if necessary."""
    if plan.first is not None:
        return plan.first
    once = next((vertex.node for vertex in plan.vertices if vertex.node.once), None)
    if once is not None:
        raise RuntimeError(
            f"{once.describe()} can be read only once: its shapes are unknown before an iteration "
            "has made the first batch; pass from_stream a function that opens it again"
        )
    with contextlib.closing(Engine(WorkItems(Epoch(plan, 0)), 0, 1)) as engine:
        item = engine.next()
    if item is None:
        raise ValueError("the shapes of batches are unknown: the epoch has no batch")
    if item.error is not None:
        raise item.error
    return item.value


@functools.lru_cache(maxsize=256)
def _key_data(seed: int, epoch: int) -> np.ndarray:
    data = np.asarray(jax.random.key_data(epoch_key(seed, epoch)))
    data.flags.writeable = False
    return data


@functools.lru_cache(maxsize=64)
def _record_ids(order: Order, shard: Shard, epoch: int, block: int) -> np.ndarray:
    shard, rows = _block_rows(order, shard, block)
    records = order.records(shard, epoch, rows)
    records.flags.writeable = False
    return records


@functools.lru_cache(maxsize=64)
def _parts(order: Order, shard: Shard, epoch: int, block: int) -> list[Part]:
    shard, rows = _block_rows(order, shard, block)
    return [*order.parts(shard, epoch, rows)]


def _block_rows(order: Order, shard: Shard, block: int) -> tuple[Shard, np.ndarray]:
    layout = BatchLayout(1, "partial", 0, False, shard, order)
    return layout.read_rows(range(block * _BLOCK_ROWS, (block + 1) * _BLOCK_ROWS))
