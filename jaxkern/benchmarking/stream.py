"""``PipelineBenchmark``: how fast an iterable of batches delivers them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxkern.benchmarking.environment import environment
from jaxkern.benchmarking.measurement import Measurement
from jaxkern.benchmarking.resources import ResourceMeter
from jaxkern.benchmarking.samples import Samples
from jaxkern.benchmarking.utilization import DeviceSampler
from jaxkern.core.arguments import check_integer
from jaxkern.core.quantities import format_duration


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineResult(Measurement):
    """What `PipelineBenchmark.run` found; each is also ``result["examples_per_second"]`` and so on.

    Attributes:
      examples: in the batches that were measured.
      duration_seconds: of all measured batches together.
      epochs: how often the stream was begun, the warm-up's included.
      device_utilization: per cent of the time in which a device computed, by device, where its
        driver reports it; None otherwise, and ``utilization_note`` says why.
    """

    examples: int
    duration_seconds: float
    epochs: int
    device_utilization: dict[str, float] | None
    utilization_note: str

    @property
    def batches(self) -> int:
        return len(self.samples)

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.duration_seconds

    @property
    def batches_per_second(self) -> float:
        return self.batches / self.duration_seconds

    @property
    def p50(self) -> float:
        """Seconds between two batches, as all percentiles here."""
        return self.samples.percentile(50)

    @property
    def p95(self) -> float:
        return self.samples.percentile(95)

    @property
    def p99(self) -> float:
        return self.samples.percentile(99)

    def figures(self) -> dict[str, Any]:
        names = (
            "examples_per_second",
            "batches_per_second",
            "duration_seconds",
            "examples",
            "batches",
            "epochs",
            "p50",
            "p95",
            "p99",
            "device_utilization",
            "utilization_note",
        )
        return {**super().figures(), **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        busy = self.utilization_note
        if self.device_utilization is not None:
            busy = ", ".join(f"{n} {p:.0f}%" for n, p in self.device_utilization.items())
        return (
            f"{self.name}: {self.examples_per_second:,.0f} examples/s, "
            f"{self.batches_per_second:,.1f} batches/s over {self.batches} batches in "
            f"{format_duration(self.duration_seconds)}\n"
            f"  a batch: median {format_duration(self.p50)}, p90 {format_duration(self.p90)}, "
            f"p95 {format_duration(self.p95)}, p99 {format_duration(self.p99)}, max "
            f"{format_duration(self.max)}\n"
            f"  {self.resources}\n"
            f"  device utilization: {busy}"
        )


class PipelineBenchmark:
    """Measures an iterable of batches; nothing is done with them, so that only it is measured.

    Args:
      data_stream: a pipeline of jaxkern, any iterable of pytrees of arrays, or a function of a seed
        that returns one. When it ends too early it is iterated again.
      num_batches: to measure.
      warmup_batches: before them, which compile, fill queues and touch memory.
      examples: of a batch; by default the length of its arrays' first axis, in which all must agree
        that have one.

    Raises:
      TypeError, ValueError: bad input, here or in `run`.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> pipe = jk.from_source({"x": np.zeros((64, 8))}, batch_size=16, shuffle=True)
      >>> bench = jk.benchmarking.PipelineBenchmark(pipe, num_batches=6, warmup_batches=2)
      >>> results = bench.run(pipeline_seed=42)
      >>> results.batches, results["examples"], results.epochs
      (6, 96, 2)
    """

    def __init__(
        self,
        data_stream: Any,
        num_batches: int = 50,
        warmup_batches: int = 5,
        *,
        examples: Callable[[Any], int] | None = None,
        name: str | None = None,
    ) -> None:
        if not (hasattr(data_stream, "__iter__") or callable(data_stream)):
            raise TypeError(
                f"data_stream is {data_stream!r:.80}; wanted an iterable of batches, or a function "
                "of a seed that returns one"
            )
        self._stream = data_stream
        self._batches = check_integer("num_batches", num_batches, 1)
        self._warmup = check_integer("warmup_batches", warmup_batches, 0)
        self._examples = examples or _leading
        self._name = name or type(data_stream).__name__

    def run(self, pipeline_seed: int | None = None) -> PipelineResult:
        """Iterates and measures; with a seed, the stream's order and draws are that seed's."""
        feed = _Restarting(_seeded(self._stream, pipeline_seed))
        first: Any = None
        for _ in range(self._warmup):
            first = jax.block_until_ready(feed.next())
        times, counted = [], 0
        with DeviceSampler() as sampler, ResourceMeter() as meter:
            began = before = time.perf_counter()
            for _ in range(self._batches):
                batch = jax.block_until_ready(feed.next())
                now = time.perf_counter()
                times.append(now - before)
                before = now
                counted += self._examples(batch)
                first = batch if first is None else first
            total = before - began
        return PipelineResult(
            name=self._name,
            kind="batch",
            samples=Samples(tuple(times)),
            environment=environment(),
            dimensions={"batch": _spec(first), "seed": pipeline_seed},
            methodology=(
                f"{self._batches} batches after {self._warmup} of warm-up, each until its arrays "
                "were ready; nothing is done with them.",
            ),
            resources=meter.used,
            examples=counted,
            duration_seconds=total,
            epochs=feed.epochs,
            device_utilization=sampler.utilization,
            utilization_note=sampler.note,
        )


class _Restarting:
    """Batch after batch, from the stream's beginning again where it ends."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.epochs = stream, 1
        self._iterator: Iterator[Any] = iter(stream)
        self._delivered = 0

    def next(self) -> Any:
        while True:
            try:
                batch = next(self._iterator)
            except StopIteration:
                if self._delivered == 0 or iter(self._stream) is self._iterator:
                    raise ValueError(
                        f"the stream ended after {self._delivered} batches and cannot begin again; "
                        "wanted one that is iterated anew (no iterator or generator), or fewer "
                        "batches"
                    ) from None
                self._iterator, self._delivered = iter(self._stream), 0
                self.epochs += 1
                continue
            self._delivered += 1
            return batch


def _seeded(stream: Any, seed: int | None) -> Any:
    if hasattr(stream, "with_seed"):
        return stream if seed is None else stream.with_seed(seed)
    if not hasattr(stream, "__iter__"):
        made = stream(0 if seed is None else seed)
        if not hasattr(made, "__iter__"):
            raise TypeError(f"data_stream(seed) returned {made!r:.80}; wanted an iterable")
        return made
    if seed is not None:
        raise ValueError(
            f"pipeline_seed is {seed}, and a {type(stream).__name__} has no with_seed(seed): pass "
            "a function of the seed that returns the stream, or leave pipeline_seed out"
        )
    return stream


def _leading(batch: Any) -> int:
    sizes = {
        jax.tree_util.keystr(path): np.shape(leaf)[0]
        for path, leaf in jax.tree.leaves_with_path(batch)
        if np.ndim(leaf) > 0
    }
    if len(set(sizes.values())) != 1:
        raise ValueError(
            f"the first axes of a batch's arrays have the sizes {sizes or 'of none'}; wanted one "
            "size, or examples=, a function that tells how many examples a batch has"
        )
    return int(next(iter(sizes.values())))


def _spec(batch: Any) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path) or "batch": f"{getattr(leaf, 'dtype', type(leaf).__name__)}"
        f"{list(np.shape(leaf))}"
        for path, leaf in jax.tree.leaves_with_path(batch)
    }
