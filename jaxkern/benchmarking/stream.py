"""``PipelineBenchmark``: the rate at which an iterable delivers batches."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxkern.benchmarking.environment import environment
from jaxkern.benchmarking.measurement import Measurement, ResourceMeter
from jaxkern.core.arguments import check_integer
from jaxkern.core.quantities import format_duration


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineResult(Measurement):
    """The result of `PipelineBenchmark.run`; figures are also items: ``result["p99"]``.

    Attributes:
      examples: number of examples in the measured batches.
      duration_seconds: total time of the measured batches.
      epochs: number of epochs started, including the warm-up.
    """

    examples: int
    duration_seconds: float
    epochs: int

    @property
    def batches(self) -> int:
        return len(self)

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.duration_seconds

    @property
    def batches_per_second(self) -> float:
        return self.batches / self.duration_seconds

    @property
    def p50(self) -> float:
        """Median of the seconds between two batches."""
        return self.percentile(50)

    @property
    def p95(self) -> float:
        return self.percentile(95)

    @property
    def p99(self) -> float:
        return self.percentile(99)

    def figures(self) -> dict[str, Any]:
        names = ["examples_per_second", "batches_per_second", "batches", "p50", "p95", "p99"]
        names += ["examples", "duration_seconds", "epochs"]
        return {**super().figures(), **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        times = (f"{name} {format_duration(self[name])}" for name in ("p90", "p95", "p99", "max"))
        return (
            f"{self.name}: {self.examples_per_second:,.0f} examples/s, "
            f"{self.batches_per_second:,.1f} batches/s over {self.batches} batches in "
            f"{format_duration(self.duration_seconds)}\n"
            f"  per batch: median {format_duration(self.p50)}, {', '.join(times)}\n"
            f"  {self.resources}"
        )


class PipelineBenchmark:
    """Benchmark of an iterable of batches. The batches are not used, so only the iterable counts.

    Args:
      data_stream: pipeline of jaxkern, iterable of pytrees of arrays, or function of a seed that
        returns one. It is iterated again if it ends too early.
      num_batches: number of measured batches.
      warmup_batches: number of batches before, which compile programs and fill queues.
      examples: function that returns the number of examples in a batch; by default the length of
        the first axis of its arrays, which must agree.
      name: name of the result; by default the type of ``data_stream``.

    Raises:
      TypeError, ValueError: for an invalid argument, here or in `run`.

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
            expected = "an iterable of batches, or a function of a seed that returns one"
            raise TypeError(f"data_stream: expected {expected}, got {data_stream!r:.80}")
        self._stream = data_stream
        self._batches = check_integer("num_batches", num_batches, 1)
        self._warmup = check_integer("warmup_batches", warmup_batches, 0)
        self._examples = examples or _leading_size
        self._name = name or type(data_stream).__name__

    def run(self, pipeline_seed: int | None = None) -> PipelineResult:
        """Iterate and measure; a seed determines the stream's order and random draws."""
        feed = _RestartingIterator(_with_seed(self._stream, pipeline_seed))
        first: Any = None
        for _ in range(self._warmup):
            first = jax.block_until_ready(feed.next())
        times, examples = [], 0
        with ResourceMeter() as meter:
            started = before = time.perf_counter()
            for _ in range(self._batches):
                batch = jax.block_until_ready(feed.next())
                now = time.perf_counter()
                times.append(now - before)
                before = now
                examples += self._examples(batch)
                first = batch if first is None else first
            total = before - started
        return PipelineResult(
            name=self._name,
            kind="batch",
            seconds=tuple(times),
            environment=environment(),
            dimensions={"batch": _describe(first), "seed": pipeline_seed},
            methodology=(
                f"{self._batches} batches after {self._warmup} for warm-up, each until its arrays "
                "were ready; the batches are not used.",
            ),
            resources=meter.used,
            examples=examples,
            duration_seconds=total,
            epochs=feed.epochs,
        )


class _RestartingIterator:
    """Iterator over a stream that starts again at its end."""

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
                        f"the stream ended after {self._delivered} batches and cannot start again; "
                        "pass an iterable, or measure fewer batches"
                    ) from None
                self._iterator, self._delivered = iter(self._stream), 0
                self.epochs += 1
                continue
            self._delivered += 1
            return batch


def _with_seed(stream: Any, seed: int | None) -> Any:
    if hasattr(stream, "with_seed"):
        return stream if seed is None else stream.with_seed(seed)
    if not hasattr(stream, "__iter__"):
        result = stream(0 if seed is None else seed)
        if not hasattr(result, "__iter__"):
            raise TypeError(f"data_stream(seed): expected an iterable, got {result!r:.80}")
        return result
    if seed is not None:
        kind = type(stream).__name__
        raise ValueError(f"pipeline_seed: a {kind} has no seed; pass a function of the seed")
    return stream


def _leading_size(batch: Any) -> int:
    sizes = {
        jax.tree_util.keystr(path): np.shape(leaf)[0]
        for path, leaf in jax.tree.leaves_with_path(batch)
        if np.ndim(leaf) > 0
    }
    if len(set(sizes.values())) != 1:
        raise ValueError(f"expected one size of the first axis, got {sizes}; pass examples=")
    return int(next(iter(sizes.values())))


def _describe(batch: Any) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path) or "batch": f"{getattr(leaf, 'dtype', type(leaf).__name__)}"
        f"{list(np.shape(leaf))}"
        for path, leaf in jax.tree.leaves_with_path(batch)
    }
