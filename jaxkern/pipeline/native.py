"""Batches that native threads make: rows of arrays, and an image chain on them, in the slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.core.threads import num_threads
from jaxkern.image import ChainProducer, Compose
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.graph import Vertex
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.program import BatchUnit, Joint, halves
from jaxkern.ring import Assembly, RingStats

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch, PipelinePlan

_RECORDS = 1024  # whose numbers are handed to the threads together


class NativeWork(NamedTuple):
    """What native threads can do of a plan: all that its worker threads would.

    Attributes:
      source: the only vertex that reads records.
      arrays: field -> array [records, ...].
      producers: field -> what makes its records of rows, for epoch 0; the other fields are copied.
    """

    source: Vertex
    arrays: Mapping[str, np.ndarray]
    producers: dict[str, ChainProducer]


def native_work(plan: PipelinePlan) -> NativeWork | None:
    """What native threads make of a plan; None where its batches need Python or a JAX program.

    They can gather the rows of arrays, and run one `Compose` on one of the fields.
    """
    if len(plan.frontier) != 1 or registry.module("cpu") is None:
        return None
    (last,) = plan.frontier
    if isinstance(last.node, SourceNode):
        arrays = _row_arrays(last.node)
        return None if arrays is None else NativeWork(last, arrays, {})
    source, chain = last.inputs[0], getattr(last.node, "chain", None)
    if not isinstance(source.node, SourceNode):
        return None
    arrays = _row_arrays(source.node)
    if arrays is None or chain is None or plan.compiled.get(last) != "host":
        return None
    aug, field = chain
    if type(aug) is not Compose:  # a subclass may have its own way
        return None
    if field not in arrays or not arrays[field].flags.aligned:
        return None
    try:
        producer = ChainProducer(
            aug,
            jax.ShapeDtypeStruct(arrays[field].shape[1:], arrays[field].dtype),
            seed=plan.stream.seed,
            derive=plan.derivation(last),
        )
    except (TypeError, ValueError):  # mixes images, or takes no such images: the program says so
        return None
    return NativeWork(source, arrays, {field: producer})


class NativeBatches:
    """The units of an epoch, made by native threads; stands in the place of `Workers`.

    Args:
      work: of the plan of `epoch`.
      epoch: what to make.
      batches: which.
      threads: their number; no more than the kernels may use.
      capacity: of the ring.
      device: as for `Ring`.
    """

    def __init__(
        self,
        work: NativeWork,
        epoch: Epoch,
        batches: range,
        threads: int,
        capacity: int,
        device: Any,
    ) -> None:
        self._epoch = epoch
        self._stream = stream = epoch.plan.streams[work.source]
        producers = {
            field: producer.at(stream.seed, epoch.number)
            for field, producer in work.producers.items()
        }
        self._assembly = Assembly(
            work.arrays,
            _orders(epoch, batches),
            stream.batch_size,
            capacity=capacity,
            workers=min(threads, num_threads()),
            remainder="partial",
            producers=producers,
            start=batches.start,
            device=device,
        )
        self.ring = self._assembly.ring

    def outcome(self, timeout: float | None = None) -> tuple[int, BaseException | None, Any]:
        """The next unit, or the error in its place; see `Ring._outcome`."""
        return self._assembly._outcome(timeout, self._unit)

    def _unit(self, index: int, data: dict[str, Any]) -> BatchUnit:
        rows = self._stream.rows_of(index)
        if self._stream.remainder == "pad":
            data["mask"] = self._stream.mask_of(rows)
        unit = BatchUnit(Joint.of([data]), halves(self._epoch.records(self._stream, rows)))
        if self._epoch.plan.first is None and len(rows) == self._stream.batch_size:
            specs = row.spec_of(unit.joint.leaves)
            self._epoch.plan.first = unit._replace(joint=unit.joint._replace(leaves=specs))
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


def _orders(epoch: Epoch, batches: range) -> Iterator[np.ndarray]:
    stream = epoch.plan.stream
    step = max(1, _RECORDS // stream.batch_size)
    for first in range(batches.start, batches.stop, step):
        last = min(first + step, batches.stop) - 1
        rows = range(stream.rows_of(first).start, stream.rows_of(last).stop)
        yield epoch.records(stream, rows)


def _row_arrays(node: SourceNode) -> Mapping[str, np.ndarray] | None:
    arrays = node.source.row_arrays()
    if arrays is None or (node.remainder == "pad" and "mask" in arrays):
        return None
    for array in arrays.values():
        if not array.dtype.isnative or (array.size and not array[0].flags.c_contiguous):
            return None
    return arrays
