"""A pipeline at any batch size: its program's memory, and the batches it delivers."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from jaxkern.core.programs import memory_analysis
from jaxkern.pipeline.batch_search import Footprint
from jaxkern.pipeline.batch_trial import batch_devices, free_bytes
from jaxkern.pipeline.epoch import Epoch
from jaxkern.pipeline.graph import Vertex
from jaxkern.pipeline.nodes import Rebatch, SourceNode
from jaxkern.pipeline.pipeline import Pipeline
from jaxkern.pipeline.placement import default_device
from jaxkern.pipeline.program import Unit
from jaxkern.pipeline.rows import Data

# Outputs that exist at a time: the consumer's, and the one that is made meanwhile.
_OUTPUTS = 2


class PipelineTrial:
    """A pipeline, built again for each batch size; reads from its source.

    Its own memory is what a ring of units for the last program holds (on the CPU, where those are
    the program's arguments too; otherwise two of them are on the device), two outputs, and the
    program's temporaries.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        pipeline._decide()
        self._given = pipeline
        self._options = pipeline._options
        self._pipelines: dict[int, Pipeline] = {}
        self._unit: Unit | None = None
        stream = pipeline._plan.stream
        self._processes = jax.process_count() if self._options.sharding is not None else 1
        spread = batch_devices(self._options.sharding)
        self.multiple = max(spread // self._processes, 1)
        self.most: int | None = max(stream.records // stream.shard[1], 1)

    @property
    def device(self) -> jax.Device:
        """One of those that batches come to."""
        if self._options.sharding is None:
            return default_device()
        devices: list[Any] = list(self._options.sharding.addressable_devices)
        return min(devices, key=lambda device: device.id)

    def default_limit(self) -> int:
        """Bytes of one device that it may use."""
        sharding = self._options.sharding
        return free_bytes(self.device, 1 if sharding is None else len(sharding.addressable_devices))

    def compile(self, size: int) -> Footprint:
        """Compiles the last program for a size without running it."""
        pipeline = self._pipelines.setdefault(size, resized(self._given, size))
        plan = pipeline._plan
        if self._unit is None:
            Epoch(plan, 0).unit(0)
            self._unit = plan.first
        assert self._unit is not None
        leaves, records = self._specs(size)
        devices = 1 if self._options.sharding is None else self.multiple
        unit = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        unit //= self._processes * devices
        given, made, temporary, seconds = unit, unit, 0, 0.0
        if plan.tail is not None:
            started = time.perf_counter()
            joint = self._unit.joint._replace(leaves=leaves)
            found = memory_analysis(plan.tail.compiled(joint, records, Epoch(plan, 0).key))
            seconds = time.perf_counter() - started
            given, made = found.argument_size_in_bytes, found.output_size_in_bytes
            temporary = found.temp_size_in_bytes
        workers = self._options.num_workers
        held = 1 if workers == 0 else self._options.prefetch_size
        if self.device.platform != "cpu":
            held = 2
        elif self._options.sharding is not None:
            held += 1  # a ring's array is copied to the devices
        outputs = 0 if plan.tail is None else _OUTPUTS * made
        return Footprint(given, made, temporary, held * unit + outputs + temporary, seconds)

    def turn(self, size: int, calls: int) -> float:
        """Seconds per batch as they are delivered, by a consumer that waits for each one.

        The first batches, for which the ring is filled and the program compiled, do not count. An
        epoch that ends is followed by the next one, whose beginning does.
        """
        workers = self._options.num_workers
        waiting = self._options.prefetch_size if workers else 0
        batches = _delivered(self._pipelines[size])
        try:
            for _ in range(waiting + 1):
                jax.block_until_ready(next(batches))
            # Several workers deliver in bursts.
            calls = max(calls, 2 * workers + 1)
            started = time.perf_counter()
            for _ in range(calls):
                jax.block_until_ready(next(batches))
            return (time.perf_counter() - started) / calls
        finally:
            batches.close()

    def _specs(self, size: int) -> tuple[list[Any], Any]:
        """Shapes of what the last program takes: those of the unit that was made, for a size."""
        assert self._unit is not None
        sharding, count = self._options.sharding, self._processes
        known = len(self._unit.records)

        def spec(leaf: Any, divided: int | None = None) -> jax.ShapeDtypeStruct:
            # The buffer of Ragged images grows with them.
            rows = leaf.shape[0] * size // known * count
            # As batches come, so that the first one finds its program compiled.
            placed: jax.sharding.Sharding | None = None
            if sharding is not None:
                axes = leaf.ndim if divided is None else divided
                kept = jax.sharding.PartitionSpec(*sharding.spec[:axes])
                placed = jax.sharding.NamedSharding(
                    sharding.mesh, kept, memory_kind=sharding.memory_kind
                )
            return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=placed)

        return [spec(leaf) for leaf in self._unit.joint.leaves], spec(
            np.empty(self._unit.records.shape, self._unit.records.dtype), divided=1
        )


def resized(pipeline: Pipeline, size: int) -> Pipeline:
    """The pipeline with batches of another size, without a smaller last one.

    The source's batch size changes, or that of the last `Rebatch`, which keeps what is before it.
    Caches are shared with the pipeline that is given, and a Compose that is left open runs where it
    does there.
    """
    built: dict[tuple[Vertex, bool], Vertex] = {}

    def again(vertex: Vertex, decides: bool) -> Vertex:
        if (vertex, decides) not in built:
            node: Any = vertex.node
            if isinstance(node, SourceNode | Rebatch):
                node = copy.copy(node)
                if decides:
                    node.batch_size = size
            if isinstance(node, SourceNode) and node.remainder == "partial":
                node.remainder = "drop"
            above = decides and not isinstance(node, Rebatch)
            inputs = tuple(again(before, above) for before in vertex.inputs)
            built[vertex, decides] = Vertex(node, inputs, vertex.storage)
        return built[vertex, decides]

    made = Pipeline(again(pipeline._output, True), pipeline._options)
    if pipeline._plan.placement is not None:
        made._replan(pipeline._plan.placement)
    return made


def _delivered(pipeline: Pipeline) -> Generator[Data, None, None]:
    for _ in itertools.count():
        epoch = iter(pipeline)
        try:
            yield from epoch
        finally:
            epoch.close()
