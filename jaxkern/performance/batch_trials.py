"""A function or a pipeline at any batch size: compiled for its bytes, and run for its time."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxkern import image
from jaxkern.core import memory
from jaxkern.core.axes import axis_size, flat_axes
from jaxkern.core.client import default_device
from jaxkern.core.programs import compile_program, memory_analysis
from jaxkern.core.quantities import format_quantity
from jaxkern.core.timing import call_seconds
from jaxkern.pipeline import Pipeline
from jaxkern.pipeline.resizing import Resized

MOST_RECORDS = 2**31 - 1  # rows are counted in 32 bits by many programs
_DEFAULT_SHARE = 0.9  # of the free memory; the rest is for what a program needs besides
_MADE_UP_ROWS = 8


@dataclass(frozen=True, kw_only=True)
class BatchMeasurement:
    """What was measured at one batch size.

    Attributes:
      batch_size: records, over all devices that share the batch.
      seconds: per batch, the median over interleaved turns; None where it was compiled and not run.
      spread: half the distance between the quartiles of the turns, in seconds.
      turns: how many.
      argument_bytes, output_bytes, temporary_bytes: on one device, as XLA reports them.
      total_bytes: what is compared with the memory limit; see `get_batch_size_recommendation`.
      compile_seconds: tracing and compiling, once.
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
        """Throughput; None where it was not run."""
        return None if self.seconds is None else self.batch_size / self.seconds

    def __str__(self) -> str:
        return (
            f"{format_quantity(self.total_bytes, 'B')} (arguments "
            f"{format_quantity(self.argument_bytes, 'B')}, "
            f"outputs {format_quantity(self.output_bytes, 'B')}, "
            f"temporaries {format_quantity(self.temporary_bytes, 'B')})"
        )


@dataclass(frozen=True)
class Trial:
    """Something that can be compiled and timed at any batch size.

    Attributes:
      build: compiles it for a size; gives its bytes, and what times so many calls: seconds of one.
      sharding: of its batches.
      multiple: sizes are multiples of it: the devices that share a batch.
      most: the largest size that there are records for.
      held: bytes of its own that one device holds already.
    """

    build: Callable[[int], tuple[BatchMeasurement, Callable[[int], float]]]
    sharding: jax.sharding.Sharding | None = None
    multiple: int = 1
    most: int = MOST_RECORDS
    held: int = 0

    @property
    def device(self) -> Any:
        """One of those that a batch is on."""
        return _device(self.sharding)

    def default_limit(self) -> int:
        """Most of what is free on one device: by its own figures, or of this process."""
        stats = self.device.memory_stats() or {}
        if "bytes_limit" in stats:
            free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        else:
            shared = 1 if self.sharding is None else len(self.sharding.addressable_devices)
            free = memory.available_bytes() // shared
        return int(_DEFAULT_SHARE * free) + self.held


def _device(sharding: jax.sharding.Sharding | None) -> Any:
    devices: Any = [default_device()] if sharding is None else sharding.addressable_devices
    return min(devices, key=lambda device: device.id)


def _devices(sharding: jax.sharding.Sharding | None) -> int:
    """Over how many devices the leading axis is spread."""
    if sharding is None:
        return 1
    count, axes = len(sharding.device_set), len(getattr(sharding, "spec", ())) or 1
    return count // sharding.shard_shape((count,) * axes)[0]


def function_trial(
    fn: Callable[..., Any], args: Any, in_axes: Any, sharding: jax.sharding.Sharding | None
) -> Trial:
    """A function, called with samples of its arguments cut or repeated to a batch size."""
    axes = _batch_axes(args, in_axes)
    given = jax.tree.leaves(args)
    tree: Any = jax.tree.structure(args)
    for leaf, axis in zip(given, axes, strict=True):
        if axis is not None and sharding is None:  # that of the first sample that has one
            placed = isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "committed", False)
            sharding = leaf.sharding if placed else None
    leaves = [_sample(leaf, axis) for leaf, axis in zip(given, axes, strict=True)]

    def build(size: int) -> tuple[BatchMeasurement, Callable[[int], float]]:
        started = time.perf_counter()
        pairs = zip(leaves, axes, strict=True)
        specs = tree.unflatten(
            leaf if axis is None else _spec(leaf, axis, size, sharding) for leaf, axis in pairs
        )
        built = compile_program(fn, *specs)
        if built.lowered.in_tree != jax.tree.structure((specs, {})):
            raise ValueError(
                "the function has static arguments; wanted one that takes arrays only: close over "
                "the static ones, as in functools.partial(fn, mode='train')"
            )
        donated = [info.donated for info in jax.tree.leaves(built.lowered.args_info)]
        # None where the program does not use an argument.
        wanted, _ = built.compiled.input_shardings
        placed = jax.tree.leaves(wanted, is_leaf=lambda place: place is None)

        def value(at: int) -> Any:
            leaf, axis = leaves[at], axes[at]
            if axis is not None:
                leaf = leaf[(slice(None),) * axis + (np.arange(size) % leaf.shape[axis],)]
            # The caller's own array must outlive a call that takes it for its result.
            return jax.device_put(leaf, placed[at], may_alias=False if donated[at] else None)

        def turn(calls: int) -> float:
            # Arguments live for one turn only, so that no two sizes hold memory at a time.
            kept = [None if d else value(at) for at, d in enumerate(donated)]

            def fresh() -> Any:
                return tree.unflatten(value(at) if d else kept[at] for at, d in enumerate(donated))

            return statistics.median(call_seconds(built.compiled, calls=calls, fresh=fresh))

        found = memory_analysis(built.compiled)
        taken, made = found.argument_size_in_bytes, found.output_size_in_bytes
        measurement = BatchMeasurement(
            batch_size=size,
            argument_bytes=taken,
            output_bytes=made,
            temporary_bytes=found.temp_size_in_bytes,
            total_bytes=taken + made + found.temp_size_in_bytes - found.alias_size_in_bytes,
            compile_seconds=time.perf_counter() - started,
        )
        return measurement, turn

    held = sum(
        shard.data.nbytes
        for leaf, axis in zip(leaves, axes, strict=True)
        if axis is None and isinstance(leaf, jax.Array)
        for shard in leaf.addressable_shards
        if shard.device == _device(sharding)
    )
    return Trial(build, sharding, _devices(sharding), held=held)


def _batch_axes(args: tuple[Any, ...], in_axes: Any) -> list[int | None]:
    """The batch axis of each leaf, from 0 on; None for what has none."""
    wanted = (
        f"in_axes is {in_axes!r}; wanted an axis or None for each of the {len(args)} arguments "
        "(or a prefix of their trees), or one for all"
    )
    axes = flat_axes(in_axes, args, wanted)
    rows: dict[int, str] = {}
    for at, (path, leaf) in enumerate(jax.tree.leaves_with_path(args)):
        axis = axes[at]
        if axis is not None:
            name = f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"
            rows.setdefault(axis_size(name, leaf, axis), name)
            axes[at] = axis % len(leaf.shape)
    if len(rows) != 1 or 0 in rows:
        found = " and ".join(f"{name} has {count} rows" for count, name in rows.items())
        raise ValueError(
            f"{found or 'no argument has a batch axis'}; wanted samples of the function's "
            "arguments behind it, with equally many rows, at least one; in_axes says what has no "
            "batch axis: in_axes=(None, 0) for fn(params, batch)"
        )
    return axes


def _sample(leaf: Any, axis: int | None) -> Any:
    """A leaf with values: in place of a struct floats from 0 to 1, and zeros, valid as indices."""
    keys = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        shape = list(leaf.shape)
        if axis is not None:
            shape[axis] = min(shape[axis], _MADE_UP_ROWS)
        values: Any = jax.lax.full(shape, 0, leaf.dtype) if keys else np.zeros(shape, leaf.dtype)
        if jnp.issubdtype(leaf.dtype, np.inexact):
            values = np.random.default_rng(0).random(shape, np.float32).astype(leaf.dtype)
        leaf = values if axis is not None else jax.device_put(values, leaf.sharding)
    return leaf if keys or axis is None else np.asarray(leaf)


def _spec(
    leaf: Any, axis: int, size: int, sharding: jax.sharding.Sharding | None
) -> jax.ShapeDtypeStruct:
    """A sample's shape with as many rows as the batch, spread as that is."""
    shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
    if isinstance(sharding, NamedSharding):
        parts = PartitionSpec(*[None] * axis, *sharding.spec[: 1 if axis else len(shape)])
        sharding = NamedSharding(sharding.mesh, parts, memory_kind=sharding.memory_kind)
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def augmentation() -> tuple[Any, tuple[Any, ...]]:
    """The fused op as training on ImageNet uses it, and what it takes."""
    crop, flip = image.RandomResizedCrop(224), image.RandomHorizontalFlip(0.5)
    normalize = image.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    images = np.random.default_rng(0).integers(0, 256, (8, 256, 256, 3), np.uint8)
    return image.Compose([crop, flip, normalize]), (jax.random.split(jax.random.key(0), 8), images)


def pipeline_trial(pipeline: Pipeline) -> Trial:
    """A pipeline, built again for each batch size; reads from its source."""
    resized = Resized(pipeline)
    sharding, ahead = resized.sharding, resized.units_ahead
    processes = 1 if sharding is None else jax.process_count()
    multiple = max(_devices(sharding) // processes, 1)
    held = 2  # units on the device; on the CPU the ring's, which with a sharding are copied
    if _device(sharding).platform == "cpu":
        held = (ahead or 1) + (sharding is not None)

    def build(size: int) -> tuple[BatchMeasurement, Callable[[int], float]]:
        sized = resized.pipeline(size)
        started = time.perf_counter()
        leaves, compiled = resized.last_program(sized, size)
        seconds = time.perf_counter() - started
        unit = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // (processes * multiple)
        given, made, temporary, outputs = unit, unit, 0, 0
        if compiled is not None:
            found = memory_analysis(compiled)
            given, made = found.argument_size_in_bytes, found.output_size_in_bytes
            # Two outputs exist at a time: the consumer's, and the one that is made meanwhile.
            temporary, outputs = found.temp_size_in_bytes, 2 * made
        measurement = BatchMeasurement(
            batch_size=size,
            argument_bytes=given,
            output_bytes=made,
            temporary_bytes=temporary,
            total_bytes=held * unit + outputs + temporary,
            compile_seconds=seconds,
        )

        def turn(calls: int) -> float:
            # The first batches, for which the ring is filled and the program compiled, do not
            # count; the beginning of a further epoch does.
            with contextlib.closing(_delivered(sized)) as batches:
                for batch in itertools.islice(batches, ahead + 1):
                    jax.block_until_ready(batch)
                calls = max(calls, 2 * resized.workers + 1)  # several workers deliver in bursts
                started = time.perf_counter()
                for batch in itertools.islice(batches, calls):
                    jax.block_until_ready(batch)
                return (time.perf_counter() - started) / calls

        return measurement, turn

    return Trial(build, sharding, multiple, resized.records)


def _delivered(pipeline: Pipeline) -> Generator[Any, None, None]:
    while True:
        with contextlib.closing(iter(pipeline)) as epoch:
            yield from epoch
