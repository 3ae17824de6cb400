"""``profile_fn`` times a function and its compilation, ``PipelineBenchmark`` batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from jaxkern.benchmarking.measurement import Measurement, ResourceMeter, Samples, environment
from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.timing import CompileClock, call_seconds
from jaxkern.execution.jit import JitFunction
from jaxkern.execution.operator import name_of

MAX_CALLS = 10_000


def profile_fn(
    fn: Callable[..., Any],
    *args: Any,
    calls: int = 30,
    seconds: float = 0.2,
    warmup: int = 2,
    name: str | None = None,
) -> Measurement:
    """Time the calls of a function until their results are ready, and its compilation separately.

    Arguments that a jitted function donates are copied before each call, outside the measured time.

    Args:
      fn: function to time, unchanged: wrap it in ``jax.jit`` to time its compiled form.
      *args: its arguments, pytrees.
      calls, seconds: minimum number of timed calls, and their total time (up to 10,000 calls).
      warmup: number of untimed calls after the one that compiles.
      name: name of the measurement; by default the function's.

    Returns:
      ``.median``, ``.mean``, ``.std``, ``.min``, ``.max``, ``.p90`` in seconds, also as
      ``measured["median"]``; ``.compile_seconds``, the time of tracing, lowering and compiling;
      ``.first_call_seconds``, the time of the entire first call; and ``.resources``.

    Raises:
      TypeError: if ``fn`` is not callable, or is jitted and cannot be traced with these arguments.
      ValueError: if a jitted function inside ``fn`` donates an argument, or an option is invalid.

    Example:
      >>> import jax, jax.numpy as jnp, jaxkern as jk
      >>> measured = jk.benchmarking.profile_fn(jax.jit(jnp.sin), jnp.ones(1000))
      >>> measured.min <= measured.median <= measured["p90"] <= measured.max
      True
    """
    calls, warmup = check_integer("calls", calls, 1), check_integer("warmup", warmup, 0)
    seconds = check_number("seconds", seconds, 0)
    with CompileClock() as clock:
        started = time.perf_counter()
        callee = Callee(fn, args)
        callee()
        first = time.perf_counter() - started
    for _ in range(warmup):
        callee()
    with ResourceMeter() as meter:
        times = callee.seconds(calls, seconds)
    copied = " Donated arguments were copied before each call." if callee.donated else ""
    return Measurement(
        name=name or name_of(fn),
        kind="call",
        seconds=tuple(times),
        environment=environment(),
        dimensions=describe_arrays(args, "args"),
        methodology=(
            f"{len(times)} calls after one that compiles and {warmup} for warm-up, each until its "
            f"results were ready.{copied}",
        ),
        resources=meter.used,
        extra={"compile_seconds": clock.seconds, "first_call_seconds": first},
    )


class Callee:
    """``fn(*args)`` that copies donated arrays before each call, so that ``args`` stay valid."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not callable(fn):
            raise TypeError(f"fn: expected a function, got {fn!r:.80}")
        self.fn, self.args = fn, args
        jitted = hasattr(fn, "lower") and not isinstance(fn, JitFunction)
        self.donated = _donated_by_jax(fn, args) if jitted else set()

    def fresh(self) -> tuple[Any, ...]:
        """Return arguments for one call, in which donated arrays are copies."""
        return jax.tree.map_with_path(
            lambda path, x: jnp.copy(x) if keystr(path) in self.donated else x, self.args
        )

    def __call__(self) -> Any:
        """Call once and wait for the result; detect a donation inside ``fn``."""
        result = jax.block_until_ready(self.fn(*self.fresh()))
        for path, leaf in jax.tree.leaves_with_path(self.args):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise ValueError(
                    f"args{keystr(path)} was deleted by the first call of {name_of(self.fn)}: a "
                    "jitted function inside it donates the array; pass that function itself"
                )
        return result

    def seconds(self, calls: int = 1, total: float = 0.0) -> list[float]:
        """Return the time of each call, without copies of donated arguments."""
        fresh = self.fresh if self.donated else None
        options: Any = {"calls": calls, "seconds": total, "warmup": 0, "most": MAX_CALLS}
        return call_seconds(self.fn, *self.args, fresh=fresh, **options)

    def mean_seconds(self, calls: int, back_to_back: bool) -> float:
        """Return the mean time of calls, waiting after each call or only after the last."""
        if not back_to_back:
            return sum(self.seconds(calls)) / calls
        started = time.perf_counter()
        for _ in range(calls):
            result = self.fn(*self.args)
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / calls


def _donated_by_jax(fn: Any, args: tuple[Any, ...]) -> set[str]:
    """Return the paths in ``args`` that a function of ``jax.jit`` donates."""
    infos, _ = fn.lower(*args).args_info
    donated = {keystr(path) for path, info in jax.tree.leaves_with_path(infos) if info.donated}
    if donated and len(infos) < len(args):
        # JAX omits static arguments, which shifts the paths of the others: copy all arrays.
        leaves = jax.tree.leaves_with_path(args)
        return {keystr(path) for path, leaf in leaves if isinstance(leaf, jax.Array)}
    return donated


def describe_arrays(tree: Any, name: str = "") -> dict[str, str]:
    """Return dtype and shape of the arrays in a tree: ``{"args[0]": "float32[1000]"}``."""
    return {
        f"{name}{keystr(path)}" or "batch": f"{leaf.dtype}{list(np.shape(leaf))}"
        for path, leaf in jax.tree.leaves_with_path(tree)
        if hasattr(leaf, "dtype")
    }


# Batches ------------------------------------------------------------------------------------------


class PipelineBenchmark:
    """Benchmark of an iterable of batches. The batches are not used, so only the iterable counts.

    Args:
      data_stream: pipeline of jaxkern, iterable of pytrees of arrays, or function of a seed that
        returns one. It is iterated again if it ends too early.
      num_batches, warmup_batches: number of measured batches, and of those before, which compile
        programs and fill queues.
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

    def run(self, pipeline_seed: int | None = None) -> Measurement:
        """Iterate and measure; a seed determines the stream's order and random draws.

        Further figures of the result are ``examples_per_second`` and ``batches_per_second``;
        ``batches``, ``examples`` and ``duration_seconds`` of the measured batches; ``epochs``,
        which includes the warm-up; and ``p50``, ``p95`` and ``p99`` of the seconds per batch.
        """
        epochs: list[int] = []
        batches = _endless(_with_seed(self._stream, pipeline_seed), epochs)
        for _ in range(self._warmup):
            jax.block_until_ready(next(batches))
        times, examples = [], 0
        with ResourceMeter() as meter:
            started = before = time.perf_counter()
            for batch in itertools.islice(batches, self._batches):
                jax.block_until_ready(batch)
                now = time.perf_counter()
                times.append(now - before)
                before = now
                examples += self._examples(batch)
            total = before - started
        samples = Samples(tuple(times))
        return Measurement(
            name=self._name,
            kind="batch",
            seconds=samples.seconds,
            environment=environment(),
            dimensions={"batch": describe_arrays(batch), "seed": pipeline_seed},
            methodology=(
                f"{self._batches} batches after {self._warmup} for warm-up, each until its arrays "
                "were ready; the batches are not used.",
            ),
            resources=meter.used,
            extra={
                "examples_per_second": examples / total,
                "batches_per_second": self._batches / total,
                "batches": self._batches,
                "examples": int(examples),
                "duration_seconds": total,
                "epochs": len(epochs),
                **{f"p{q}": samples.percentile(q) for q in (50, 95, 99)},
            },
        )


def _endless(stream: Any, epochs: list[int]) -> Iterator[Any]:
    """Yield the batches of a stream that starts again at its end, and append to ``epochs``."""
    iterator = iter(stream)
    while True:
        epochs.append(0)
        for batch in iterator:
            epochs[-1] += 1
            yield batch
        finished, iterator = iterator, iter(stream)
        if not epochs[-1] or iterator is finished:
            raise ValueError(
                f"the stream ended after {epochs[-1]} batches and cannot start again; pass an "
                "iterable, or measure fewer batches"
            )


def _with_seed(stream: Any, seed: int | None) -> Any:
    if hasattr(stream, "with_seed"):
        return stream if seed is None else stream.with_seed(seed)
    if not hasattr(stream, "__iter__"):
        result = stream(0 if seed is None else seed)
        if hasattr(result, "__iter__"):
            return result
        raise TypeError(f"data_stream(seed): expected an iterable, got {result!r:.80}")
    if seed is not None:
        kind = type(stream).__name__
        raise ValueError(f"pipeline_seed: a {kind} has no seed; pass a function of the seed")
    return stream


def _leading_size(batch: Any) -> int:
    sizes = {np.shape(leaf)[0] for leaf in jax.tree.leaves(batch) if np.ndim(leaf)}
    if len(sizes) != 1:
        raise ValueError(f"expected one size of the first axis, got {sizes}; pass examples=")
    return int(sizes.pop())
