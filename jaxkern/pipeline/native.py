"""The native backend of the engine: rows of arrays, and the record producers of a node."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.failures import note
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.engine import Item
from jaxkern.pipeline.graph import RECORDS_PER_CALL, KeyDerivation, Vertex
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.operators import SeededProducer
from jaxkern.pipeline.program import DedupedLeaves, NodeProgram, WorkItem, split_uint64
from jaxkern.ring import Assembly, ProducerError, RingStats, RowParts, SlotMemory

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch


class NativeWork(NamedTuple):
    """The work that native threads do instead of worker threads."""

    source: Vertex  # the only one that reads records
    arrays: Mapping[str, np.ndarray | RowParts]  # of encoded images, where they are stored
    producers: dict[str, SeededProducer]  # of fields; the other fields are copied
    masks: bool = False  # a field "valid" says which records the producers could make
    residual: NodeProgram | None = None  # of the other fields, when a batch is delivered


def native_work(
    inputs: Sequence[Vertex],
    compiled: Mapping[Vertex, str],
    derivations: Mapping[Vertex, KeyDerivation],
) -> NativeWork | None:
    """Return the native work of a plan; None if its batches need Python or a JAX program."""
    if len(inputs) != 1 or registry.module("cpu") is None:
        return None
    (last,) = inputs
    source = last if isinstance(last.node, SourceNode) else last.inputs[0]
    if not isinstance(source.node, SourceNode):
        return None
    if last is not source and not (last.node.native and compiled.get(last) == "host"):
        return None  # before image headers are read
    reader = source.node.source
    parts, encoded = _row_parts(source.node), reader.encoded_images()
    if parts is None or not (parts[0] or encoded):
        return None
    arrays: dict[str, np.ndarray | RowParts] = {**parts[0]}
    if len(parts) > 1:
        arrays = {name: RowParts(tuple(part[name] for part in parts)) for name in parts[0]}
    masks = reader.on_bad_record == "mask"
    if last is source:
        return None if encoded or masks else NativeWork(source, arrays, {})
    fields: dict[str, jax.ShapeDtypeStruct] = {
        name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for name, array in parts[0].items()
    }
    node: Any = last.node
    producers = node.op.record_producer({**fields, **encoded}, derivations.get(last))
    # Only producers decode.
    if producers is None or encoded.keys() - producers.keys() or (masks and not encoded):
        return None
    if not all(part[k].flags.aligned for part in parts for k in producers.keys() & part.keys()):
        return None
    arrays |= {name: images.place for name, images in encoded.items()}
    residual, op = None, node.op.residual(fields)
    if op is not None:
        node = copy.copy(node)
        node.op = op
        vertex = Vertex(node, (source,))
        keys = {vertex: derivations[last]} if last in derivations else {}
        names = {source: source.node.name, vertex: node.name}
        residual = NodeProgram(vertex, {vertex: "host"}, names, keys)
    return NativeWork(source, arrays, producers, masks, residual)


def _row_parts(node: SourceNode) -> Sequence[Mapping[str, np.ndarray]] | None:
    parts = node.source.row_parts()
    if parts is None or (node.remainder == "pad" and any("mask" in part for part in parts)):
        return None
    for part in parts:
        for array in part.values():
            if not array.dtype.isnative or (array.size and not array[:1].flags.c_contiguous):
                return None
    kinds = [{k: (a.dtype, a.shape[1:]) for k, a in part.items()} for part in parts]
    return parts if all(kind == kinds[0] for kind in kinds) else None  # reading them raises


class NativeEngine:
    """An engine whose work items native threads make, from batch `start` on, see `Engine`; at most
    as many threads as the kernels use."""

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
        self._assembly = Assembly(
            work.arrays,
            self._orders(start),
            layout.batch_size,
            capacity=capacity,
            workers=min(threads, num_threads()),
            remainder="partial",
            producers={k: p.at(layout.seed, epoch.number) for k, p in work.producers.items()},
            valid="valid" if work.masks else None,
            start=start,
            rows_of=self._reader.rows_of,
            device=device,
            memory=memory,
        )

    def next(self, timeout: float | None = None) -> Item | None:
        """Return the next item; None after the last one, or after an error of the order."""
        try:
            index, error, data = self._assembly.take(timeout)
        except StopIteration:
            return None
        if isinstance(error, ProducerError) and error.record is not None:
            if name := self._reader.name_of(error.record):
                note(error, "while reading record {} of {!r}: {}", error.record, self._reader, name)
        value = None if error is not None else self._item(index, data)
        return Item(value, error, index, index + 1)

    def _item(self, index: int, data: dict[str, Any]) -> WorkItem:
        work, rows = self._work, self._layout.rows_of(index)
        mask = self._layout.mask_of(rows)
        if self._layout.remainder == "pad":
            data["mask"] = mask
        records = self._epoch.records(self._layout, rows)
        bad = 0
        if work.masks and not (valid := np.asarray(data["valid"])).all():
            bad = int((~valid & mask).sum())
            self._reader.note_masked(records[~valid])
        ids = split_uint64(records)
        if work.residual is not None:
            names = work.arrays.keys() - work.producers.keys()
            other = DedupedLeaves.of([{name: data[name] for name in names}])
            data |= work.residual(other, ids, self._epoch.key)
        item = WorkItem(DedupedLeaves.of([data]), ids, bad=bad)
        self._epoch.plan.learn(item)
        return item

    def _orders(self, start: int) -> Iterator[np.ndarray]:
        """Yield the records of batches, some together; raise instead of a batch with a record that
        must not be read."""
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
