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

from jaxkern import image
from jaxkern.core import memory
from jaxkern.core.axes import flat_axes, rows_on
from jaxkern.core.client import default_device
from jaxkern.core.programs import compile_program, memory_analysis
from jaxkern.core.quantities import scaled
from jaxkern.core.timing import call_seconds
from jaxkern.pipeline.pipeline import Pipeline
from jaxkern.pipeline.resizing import Resized

# Rows that are made up for an argument of which only the shape is known.
_MADE_UP_ROWS = 8
# What is left free of the memory that is available by default, for what a program needs besides.
_DEFAULT_SHARE = 0.9
# Outputs of a pipeline that exist at a time: the consumer's, and the one that is made meanwhile.
_OUTPUTS = 2


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
        parts = (
            f"{name} {scaled(size, 'B')}"
            for name, size in (
                ("arguments", self.argument_bytes),
                ("outputs", self.output_bytes),
                ("temporaries", self.temporary_bytes),
            )
        )
        return f"{scaled(self.total_bytes, 'B')} ({', '.join(parts)})"


class _Trial:
    """Something that can be compiled and timed at any batch size.

    Attributes:
      multiple: sizes are multiples of it: the devices that share a batch.
      most: the largest size that there are records for; None: any.
    """

    multiple: int
    most: int | None = None

    def __init__(self, sharding: jax.sharding.Sharding | None) -> None:
        self.sharding = sharding

    @property
    def device(self) -> jax.Device:
        """One of those that it runs on."""
        if self.sharding is None:
            return default_device()
        devices: list[Any] = list(self.sharding.addressable_devices)
        return min(devices, key=lambda device: device.id)

    def default_limit(self) -> int:
        """Bytes of one device that it may use: nine tenths of what is free.

        By the device's own figures, where it has any; else devices share the memory of this
        process.
        """
        stats = self.device.memory_stats() or {}
        if "bytes_limit" in stats:
            free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        else:
            free = memory.available_bytes()
            free //= 1 if self.sharding is None else len(self.sharding.addressable_devices)
        return int(_DEFAULT_SHARE * free)


class FunctionTrial(_Trial):
    """A JAX function, called with samples of its arguments cut or repeated to a batch size.

    Args:
      fn: jitted or not.
      args: what it is called with: pytrees of arrays or ``jax.ShapeDtypeStruct``.
      in_axes: as in ``jax.vmap``: where the batch axis is; None for what has none.
      sharding: of the batch axis; None: as the first sample that has one.
    Raises: ValueError where a sample has no batch axis, or the samples differ in their rows.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        in_axes: Any,
        sharding: jax.sharding.Sharding | None,
    ) -> None:
        self._fn: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
        leaves = jax.tree.leaves(args)
        self._tree: Any = jax.tree.structure(args)
        self._axes = _batch_axes(args, in_axes)
        super().__init__(_sharding_of(leaves, self._axes) if sharding is None else sharding)
        self._leaves = list(map(self._sample, leaves, self._axes))
        self.multiple = batch_devices(self.sharding)
        self._compiled: dict[int, Any] = {}
        self._donated: list[bool] = []

    def default_limit(self) -> int:
        """Besides that, what its own arguments hold."""
        held: int = sum(
            shard.data.nbytes
            for leaf, axis in zip(self._leaves, self._axes, strict=True)
            if axis is None and isinstance(leaf, jax.Array)
            for shard in leaf.addressable_shards
            if shard.device == self.device
        )
        return held + super().default_limit()

    def compile(self, size: int) -> BatchMeasurement:
        """Compiles for a size without running it."""
        started = time.perf_counter()
        specs = [self._spec(x, a, size) for x, a in zip(self._leaves, self._axes, strict=True)]
        args = self._tree.unflatten(specs)
        built = compile_program(self._fn, *args)
        if built.lowered.in_tree != jax.tree.structure((args, {})):
            raise ValueError(
                "the function has static arguments; wanted one that takes arrays only: close over "
                "the static ones, as in functools.partial(fn, mode='train')"
            )
        self._compiled[size] = built.compiled
        self._donated = [info.donated for info in jax.tree.leaves(built.lowered.args_info)]
        found = memory_analysis(built.compiled)
        given, made = found.argument_size_in_bytes, found.output_size_in_bytes
        return BatchMeasurement(
            batch_size=size,
            argument_bytes=given,
            output_bytes=made,
            temporary_bytes=found.temp_size_in_bytes,
            total_bytes=given + made + found.temp_size_in_bytes - found.alias_size_in_bytes,
            compile_seconds=time.perf_counter() - started,
        )

    def turn(self, size: int, calls: int) -> float:
        """Seconds per call, from its dispatch to its result: the median, behind one untimed."""
        # Arguments live for one turn only, so that no two sizes hold memory at a time.
        kept = [None if d else self._leaf(place, size) for place, d in enumerate(self._donated)]

        def fresh() -> Any:
            return self._tree.unflatten(
                self._leaf(place, size) if donated else kept[place]
                for place, donated in enumerate(self._donated)
            )

        return statistics.median(call_seconds(self._compiled[size], calls=calls, fresh=fresh))

    def _sample(self, leaf: Any, axis: int | None) -> Any:
        """A leaf with values; one that is shared by the batch is where the batch is."""
        if isinstance(leaf, jax.ShapeDtypeStruct):
            leaf = _made_up(leaf, axis)
        if axis is not None:
            return leaf if _holds_keys(leaf) else np.asarray(leaf)
        placed = isinstance(leaf, jax.Array) and leaf.committed
        if placed or not hasattr(leaf, "shape") or self.sharding is None:
            return leaf
        whole = self.sharding
        if isinstance(whole, jax.sharding.NamedSharding):
            whole = jax.sharding.NamedSharding(whole.mesh, jax.sharding.PartitionSpec())
        return jax.device_put(leaf, whole)

    def _spec(self, leaf: Any, axis: int | None, size: int) -> Any:
        if axis is None:
            return leaf
        shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._placed(axis, len(shape)))

    def _leaf(self, place: int, size: int) -> Any:
        leaf, axis = self._leaves[place], self._axes[place]
        if axis is None:
            # The caller's own array must outlive a call that takes it for its result.
            return leaf.copy() if self._donated[place] and hasattr(leaf, "copy") else leaf
        rows = np.arange(size) % leaf.shape[axis]
        values = leaf[(slice(None),) * axis + (rows,)]
        return jax.device_put(values, self._placed(axis, len(leaf.shape)))

    def _placed(self, axis: int, ndim: int) -> jax.sharding.Sharding | None:
        if not isinstance(self.sharding, jax.sharding.NamedSharding):
            return self.sharding
        kept = self.sharding.spec[: 1 if axis else ndim]
        return jax.sharding.NamedSharding(
            self.sharding.mesh,
            jax.sharding.PartitionSpec(*[None] * axis, *kept),
            memory_kind=self.sharding.memory_kind,
        )


class PipelineTrial(_Trial):
    """A pipeline, built again for each batch size; reads from its source.

    Its own memory is what a ring of units for the last program holds (on the CPU, where those are
    the program's arguments too; otherwise two of them are on the device), two outputs, and the
    program's temporaries.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._resized = Resized(pipeline)
        self._pipelines: dict[int, Pipeline] = {}
        super().__init__(self._resized.sharding)
        self._processes = 1 if self.sharding is None else jax.process_count()
        self.multiple = max(batch_devices(self.sharding) // self._processes, 1)
        self.most = self._resized.records

    def compile(self, size: int) -> BatchMeasurement:
        """Compiles the last program for a size without running it."""
        self._pipelines[size] = self._resized.pipeline(size)
        started = time.perf_counter()
        leaves, compiled = self._resized.last_program(self._pipelines[size], size)
        seconds = time.perf_counter() - started
        unit = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        unit //= self._processes * (1 if self.sharding is None else self.multiple)
        held = self._resized.units_ahead or 1
        if self.device.platform != "cpu":
            held = 2
        elif self.sharding is not None:
            held += 1  # a ring's array is copied to the devices
        given, made, temporary, outputs = unit, unit, 0, 0
        if compiled is not None:
            found = memory_analysis(compiled)
            given, made = found.argument_size_in_bytes, found.output_size_in_bytes
            temporary, outputs = found.temp_size_in_bytes, _OUTPUTS * made
        return BatchMeasurement(
            batch_size=size,
            argument_bytes=given,
            output_bytes=made,
            temporary_bytes=temporary,
            total_bytes=held * unit + outputs + temporary,
            compile_seconds=seconds,
        )

    def turn(self, size: int, calls: int) -> float:
        """Seconds per batch as they are delivered, by a consumer that waits for each one.

        The first batches, for which the ring is filled and the program compiled, do not count. An
        epoch that ends is followed by the next one, whose beginning does.
        """
        ahead, workers = self._resized.units_ahead, self._resized.workers
        with contextlib.closing(_delivered(self._pipelines[size])) as batches:
            for batch in itertools.islice(batches, ahead + 1):
                jax.block_until_ready(batch)
            calls = max(calls, 2 * workers + 1)  # several workers deliver in bursts
            started = time.perf_counter()
            for batch in itertools.islice(batches, calls):
                jax.block_until_ready(batch)
            return (time.perf_counter() - started) / calls


def _delivered(pipeline: Pipeline) -> Generator[Any, None, None]:
    while True:
        with contextlib.closing(iter(pipeline)) as epoch:
            yield from epoch


def augmentation() -> tuple[Any, tuple[Any, ...]]:
    """The fused op as training on ImageNet uses it, and what it takes."""
    augment = image.Compose(
        [
            image.RandomResizedCrop(224),
            image.RandomHorizontalFlip(0.5),
            image.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    images = np.random.default_rng(0).integers(0, 256, (8, 256, 256, 3), np.uint8)
    return augment, (jax.random.split(jax.random.key(0), 8), images)


def batch_devices(sharding: jax.sharding.Sharding | None) -> int:
    """Over how many devices the leading axis is spread."""
    if not isinstance(sharding, jax.sharding.NamedSharding) or not sharding.spec:
        return 1
    names = sharding.spec[0]
    names = () if names is None else names if isinstance(names, tuple) else (names,)
    count = 1
    for name in names:
        count *= sharding.mesh.shape[name]
    return count


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
            rows.setdefault(rows_on(name, leaf, axis), name)
            axes[at] = axis % len(leaf.shape)
    more = "; in_axes says what has no batch axis: in_axes=(None, 0) for fn(params, batch)"
    if not rows:
        raise ValueError(
            "no argument has a batch axis; wanted samples of the function's arguments behind it"
            + more
        )
    if len(rows) > 1 or 0 in rows:
        found = " and ".join(f"{name} has {count} rows" for count, name in rows.items())
        raise ValueError(f"{found}; wanted equally many in every sample, at least one{more}")
    return axes


def _made_up(struct: jax.ShapeDtypeStruct, axis: int | None) -> Any:
    """Values of a shape: floats from 0 to 1, and zeros, which are valid wherever indices are."""
    shape = list(struct.shape)
    if axis is not None:
        shape[axis] = min(shape[axis], _MADE_UP_ROWS)
    if _holds_keys(struct):
        keys = jax.random.split(jax.random.key(0), tuple(shape))
        if keys.dtype != struct.dtype:
            raise TypeError(
                f"a sample is {struct}; wanted an array of such keys, which have a seed"
            )
        return keys
    dtype = np.dtype(struct.dtype)
    if jnp.issubdtype(dtype, np.inexact):
        values: Any = np.random.default_rng(0).random(shape, np.float32).astype(dtype)
    else:
        values = np.zeros(shape, dtype)
    return values if axis is not None else jax.device_put(values, struct.sharding)


def _holds_keys(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _sharding_of(leaves: list[Any], axes: list[int | None]) -> jax.sharding.Sharding | None:
    for leaf, axis in zip(leaves, axes, strict=True):
        placed = isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "committed", False)
        if axis is not None and placed and leaf.sharding is not None:
            found: jax.sharding.Sharding = leaf.sharding
            return found
    return None
