"""The units of an epoch, made by native threads: the work of `native_work`, in a ring's slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxkern.core.backend import current_backend
from jaxkern.core.failures import note
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.epoch import Epoch
from jaxkern.pipeline.graph import Vertex
from jaxkern.pipeline.native_work import NativeWork
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.program import BatchUnit, Joint, halves
from jaxkern.pipeline.sources.source import BatchSource
from jaxkern.ring import Assembly, ProducerError, RingStats, SlotMemory

_RECORDS = 1024  # whose numbers are handed to the threads together


class NativeBatches:
    """The units of an epoch, made by native threads; stands in the place of `Workers`.

    Args:
      work: of the plan of `epoch`.
      epoch: what to make.
      batches: which.
      threads: their number; no more than the kernels may use.
      capacity: of the ring.
      device, memory: as for `Ring`.
    """

    def __init__(
        self,
        work: NativeWork,
        epoch: Epoch,
        batches: range,
        threads: int,
        capacity: int,
        device: Any,
        memory: SlotMemory,
    ) -> None:
        self._epoch, self._masks, self._beside = epoch, work.masks, work.beside
        self._left = work.arrays.keys() - work.producers.keys()
        self._stream = stream = epoch.plan.streams[work.source]
        assert isinstance(work.source.node, SourceNode)
        self._reader = work.source.node.source
        producers = {
            field: producer.at(stream.seed, epoch.number)
            for field, producer in work.producers.items()
        }
        self._assembly = Assembly(
            work.arrays,
            _orders(epoch, batches, work.source),
            stream.batch_size,
            capacity=capacity,
            workers=min(threads, num_threads()),
            remainder="partial",
            producers=producers,
            valid="valid" if work.masks else None,
            start=batches.start,
            rows_of=_source_of(work.source).rows_of,
            device=device,
            memory=memory,
        )
        self.ring = self._assembly.ring

    def outcome(self, timeout: float | None = None) -> tuple[int, BaseException | None, Any]:
        """The next unit, or the error in its place; see `Ring.take`."""
        index, error, data = self._assembly.take(timeout)
        if isinstance(error, ProducerError) and error.record is not None:
            if name := self._reader.name_of(error.record):
                note(error, "while reading record {} of {!r}: {}", error.record, self._reader, name)
        return index, error, None if error is not None else self._unit(index, data)

    def _unit(self, index: int, data: dict[str, Any]) -> BatchUnit:
        rows = self._stream.rows_of(index)
        mask = self._stream.mask_of(rows)
        if self._stream.remainder == "pad":
            data["mask"] = mask
        records = self._epoch.records(self._stream, rows)
        bad = 0
        if self._masks and not (valid := np.asarray(data["valid"])).all():
            bad = int((~valid & mask).sum())
            self._reader.note_masked(records[~valid])
        numbers = halves(records)
        if self._beside is not None:
            left = Joint.of([{name: data[name] for name in self._left}])
            data |= self._beside(left, numbers, self._epoch.key)
        unit = BatchUnit(Joint.of([data]), numbers, bad=bad)
        self._epoch.plan.learn(unit)
        return unit

    def stats(self) -> RingStats:
        """Of the ring."""
        return self.ring.stats()

    def close(self) -> None:
        """Ends the threads; idempotent."""
        self._assembly.close()


def native_batches(epoch: Epoch, *args: Any) -> NativeBatches | None:
    """`NativeBatches` with these arguments, where native threads can make the plan's batches."""
    work = epoch.plan.native
    if work is None or current_backend() == "jax":
        return None
    return NativeBatches(work, epoch, *args)


def _orders(epoch: Epoch, batches: range, vertex: Vertex) -> Iterator[np.ndarray]:
    """The records of batches, some together; raises in the place of one that must not be read."""
    stream = epoch.plan.stream
    source = _source_of(vertex)
    step = max(1, _RECORDS // stream.batch_size)
    for first in range(batches.start, batches.stop, step):
        last = min(first + step, batches.stop) - 1
        rows = range(stream.rows_of(first).start, stream.rows_of(last).stop)
        records = epoch.records(stream, rows)
        try:
            source.check(records)
        except Exception:
            for batch in range(first, last + 1):
                here = stream.rows_of(batch)
                part = records[here.start - rows.start : here.stop - rows.start]
                try:
                    source.check(part)
                except Exception as error:
                    note(error, "in batch {} of epoch {}", batch, epoch.number)
                    raise
                yield part
        else:
            yield records


def _source_of(vertex: Vertex) -> BatchSource:
    assert isinstance(vertex.node, SourceNode)
    return vertex.node.source
