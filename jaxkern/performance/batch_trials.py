"""A function or a pipeline at any batch size: compiled to read its memory, and run to time it."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxkern.core import memory
from jaxkern.core.axes import axis_size, flat_axes
from jaxkern.core.client import default_device
from jaxkern.core.quantities import format_quantity
from jaxkern.core.timing import call_seconds
from jaxkern.performance.programs import (
    MemoryReport,
    analyze_memory,
    compile_program,
    synthetic_values,
)

if TYPE_CHECKING:
    from jaxkern.pipeline import Pipeline

MAX_RECORDS = 2**31 - 1  # many programs count rows in 32 bits
_DEFAULT_SHARE = 0.9  # of the free memory; the rest is for allocations that XLA does not report
_SYNTHETIC_ROWS = 8


@dataclass(frozen=True, kw_only=True)
class BatchMeasurement:
    """The measurements of one batch size.

    Attributes:
      batch_size: number of records, over all devices that share the batch.
      seconds, spread: time per batch, the median over interleaved rounds, and half the
        interquartile range of these; None if it was not run. ``turns``: number of rounds.
      argument_bytes, output_bytes, temporary_bytes: on one device, as reported by XLA.
      total_bytes: compared with the memory limit; see `get_batch_size_recommendation`.
      compile_seconds: time of tracing and compiling.

    Example:
      >>> from jaxkern import performance
      >>> measured = performance.BatchMeasurement(
      ...     batch_size=64, seconds=0.5, argument_bytes=4096, output_bytes=256,
      ...     temporary_bytes=0, total_bytes=4352, compile_seconds=0.1)
      >>> measured.examples_per_second
      128.0
    """

    batch_size: int
    seconds: float | None = None
    spread: float | None = None
    turns: int = 0
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    total_bytes: int
    compile_seconds: float

    @property
    def examples_per_second(self) -> float | None:
        """Throughput; None if it was not run."""
        return None if self.seconds is None else self.batch_size / self.seconds

    def __str__(self) -> str:
        sizes = self.total_bytes, self.argument_bytes, self.output_bytes, self.temporary_bytes
        total, arguments, outputs, temporaries = (format_quantity(n, "B") for n in sizes)
        return f"{total} (arguments {arguments}, outputs {outputs}, temporaries {temporaries})"


# Runs a number of calls and returns the seconds per call.
TimeCalls = Callable[[int], float]


@dataclass(frozen=True)
class Trial:
    """A function or pipeline that can be compiled and timed at any batch size.

    ``build`` compiles a size; it returns XLA's report, the total bytes to compare with the limit,
    and a function that times the calls. Sizes are multiples of ``multiple``, the number of devices
    that share a batch, up to the ``max_size`` records of the source. ``unbatched_bytes`` of
    arguments are in the memory of a device already.
    """

    build: Callable[[int], tuple[MemoryReport, int, TimeCalls]]
    sharding: Sharding | None = None
    multiple: int = 1
    max_size: int = MAX_RECORDS
    unbatched_bytes: int = 0

    @property
    def device(self) -> Any:
        return _device(self.sharding)

    def default_limit(self) -> int:
        """Return 90% of the free memory of one device, or of this process on the CPU."""
        stats = self.device.memory_stats() or {}
        shared = 1 if self.sharding is None else len(self.sharding.addressable_devices)
        free = memory.available_bytes() // shared
        if "bytes_limit" in stats:
            free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        return int(_DEFAULT_SHARE * free) + self.unbatched_bytes


def _device(sharding: Sharding | None) -> Any:
    devices: Any = [default_device()] if sharding is None else sharding.addressable_devices
    return min(devices, key=lambda device: device.id)


def _device_count(sharding: Sharding | None) -> int:
    """Return the number of devices that the leading axis is split over."""
    if sharding is None:
        return 1
    count, axes = len(sharding.device_set), len(getattr(sharding, "spec", ())) or 1
    return count // sharding.shard_shape((count,) * axes)[0]


def function_trial(
    fn: Callable[..., Any], args: Any, in_axes: Any, sharding: Sharding | None
) -> Trial:
    """Return a trial of a function, with samples of its arguments repeated to the batch size."""
    axes = _batch_axes(args, in_axes)
    samples = jax.tree.leaves(args)
    tree: Any = jax.tree.structure(args)
    for leaf, axis in zip(samples, axes, strict=True):
        if axis is not None and sharding is None:  # use the first sample's
            placed = isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "committed", False)
            sharding = leaf.sharding if placed else None
    leaves = [_values(leaf, axis) for leaf, axis in zip(samples, axes, strict=True)]

    def build(size: int) -> tuple[MemoryReport, int, TimeCalls]:
        specs = tree.unflatten(
            leaf if axis is None else _spec(leaf, axis, size, sharding)
            for leaf, axis in zip(leaves, axes, strict=True)
        )
        program = compile_program(fn, *specs)
        if program.lowered.in_tree != jax.tree.structure((specs, {})):
            raise ValueError("expected no static arguments; bind them with functools.partial")
        donated = [info.donated for info in jax.tree.leaves(program.lowered.args_info)]
        # None for an argument that the program does not use.
        shardings = jax.tree.leaves(
            program.compiled.input_shardings[0], is_leaf=lambda sharding: sharding is None
        )

        def value(index: int) -> Any:
            leaf, axis = leaves[index], axes[index]
            if axis is not None:
                leaf = leaf[(slice(None),) * axis + (np.arange(size) % leaf.shape[axis],)]
            # A donated buffer must not be the caller's own array.
            may_alias = False if donated[index] else None
            return jax.device_put(leaf, shardings[index], may_alias=may_alias)

        def time_calls(calls: int) -> float:
            # The arguments are freed at the end, so only one size occupies memory at a time.
            fixed = {index: value(index) for index, d in enumerate(donated) if not d}

            def fresh() -> Any:
                return tree.unflatten(
                    value(index) if d else fixed[index] for index, d in enumerate(donated)
                )

            return statistics.median(call_seconds(program.compiled, calls=calls, fresh=fresh))

        report = analyze_memory(program.compiled)
        return report, report.peak_bytes, time_calls

    unbatched_bytes = sum(
        shard.data.nbytes
        for leaf, axis in zip(leaves, axes, strict=True)
        if axis is None and isinstance(leaf, jax.Array)
        for shard in leaf.addressable_shards
        if shard.device == _device(sharding)
    )
    return Trial(build, sharding, _device_count(sharding), unbatched_bytes=unbatched_bytes)


def _batch_axes(args: tuple[Any, ...], in_axes: Any) -> list[int | None]:
    """Return the nonnegative batch axis of each leaf, None for unbatched leaves."""
    mismatch = f"in_axes: expected a tree prefix of the {len(args)} arguments, got {in_axes!r}"
    axes = flat_axes(in_axes, args, mismatch)
    rows: dict[int, str] = {}
    for index, (path, leaf) in enumerate(jax.tree.leaves_with_path(args)):
        axis = axes[index]
        if axis is not None:
            name = f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"
            rows.setdefault(axis_size(name, leaf, axis), name)
            axes[index] = axis % len(leaf.shape)
    if len(rows) != 1 or 0 in rows:
        counts = " and ".join(f"{name} has {count} rows" for count, name in rows.items())
        got = counts or "no argument has a batch axis; in_axes=None marks unbatched arguments"
        raise ValueError(f"samples: expected one number of rows above 0, got {got}")
    return axes


def _values(leaf: Any, axis: int | None) -> Any:
    """Return a leaf with values; those of a struct are synthetic."""
    keys = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        shape = list(leaf.shape)
        if axis is None:
            return jax.device_put(synthetic_values(shape, leaf.dtype), leaf.sharding)
        shape[axis] = min(shape[axis], _SYNTHETIC_ROWS)
        leaf = synthetic_values(shape, leaf.dtype)
    return leaf if keys or axis is None else np.asarray(leaf)


def _spec(leaf: Any, axis: int, size: int, sharding: Sharding | None) -> jax.ShapeDtypeStruct:
    """Return a sample's shape with ``size`` rows, sharded like the batch."""
    shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
    if isinstance(sharding, NamedSharding):
        parts = PartitionSpec(*[None] * axis, *sharding.spec[: 1 if axis else len(shape)])
        sharding = NamedSharding(sharding.mesh, parts, memory_kind=sharding.memory_kind)
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def augmentation() -> tuple[Any, tuple[Any, ...]]:
    """Return the fused image chain that ImageNet training uses, and samples of its arguments."""
    from jaxkern import image

    crop, flip = image.RandomResizedCrop(224), image.RandomHorizontalFlip(0.5)
    normalize = image.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    images = np.random.default_rng(0).integers(0, 256, (8, 256, 256, 3), np.uint8)
    return image.Compose([crop, flip, normalize]), (jax.random.split(jax.random.key(0), 8), images)


def pipeline_trial(pipeline: Pipeline) -> Trial:
    """Return a trial of a pipeline, rebuilt for each batch size; it reads from its source."""
    from jaxkern.pipeline.pipeline import Resized

    resized = Resized(pipeline)
    sharding, ahead = resized.sharding, resized.units_ahead
    processes = 1 if sharding is None else jax.process_count()
    multiple = max(_device_count(sharding) // processes, 1)
    # Two batches on an accelerator. On the CPU, the batches in the ring, and a copy of one if there
    # is a sharding.
    batches_in_memory = 2
    if _device(sharding).platform == "cpu":
        batches_in_memory = (ahead or 1) + (sharding is not None)

    def build(size: int) -> tuple[MemoryReport, int, TimeCalls]:
        sized = resized.pipeline(size)
        leaves, compiled = resized.last_program(sized, size)
        unit = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // (processes * multiple)
        report, total = MemoryReport(unit, unit, 0, 0, 0), batches_in_memory * unit
        if compiled is not None:
            report = analyze_memory(compiled)
            total += 2 * report.output_bytes + report.temporary_bytes  # also the next output

        def time_calls(calls: int) -> float:
            # The first batches fill the ring and compile the program; they are not timed.
            # The start of each later epoch is timed.
            with contextlib.closing(_epochs(sized)) as batches:
                for batch in itertools.islice(batches, ahead + 1):
                    jax.block_until_ready(batch)
                calls = max(calls, 2 * resized.workers + 1)  # several workers deliver in bursts
                started = time.perf_counter()
                for batch in itertools.islice(batches, calls):
                    jax.block_until_ready(batch)
                return (time.perf_counter() - started) / calls

        return report, total, time_calls

    return Trial(build, sharding, multiple, resized.records)


def _epochs(pipeline: Pipeline) -> Generator[Any, None, None]:
    while True:
        with contextlib.closing(iter(pipeline)) as epoch:
            yield from epoch
