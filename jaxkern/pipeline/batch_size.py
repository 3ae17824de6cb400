"""The batch size to use, found by compiling and timing some."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxkern import image
from jaxkern.core.arguments import real_number
from jaxkern.core.progress import ProgressBar
from jaxkern.pipeline.batch_delivery import PipelineTrial
from jaxkern.pipeline.batch_search import (
    BatchMeasurement,
    Search,
    shown_bytes,
    shown_rate,
)
from jaxkern.pipeline.batch_trial import FunctionTrial
from jaxkern.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class BatchSizeRecommendation:
    """What `jaxkern.get_batch_size_recommendation` found; ``str`` shows it as a table.

    Attributes:
      optimal_batch_size: the smallest size whose throughput is within noise of the best measured.
      min_batch_size: the smallest size with at least 80% of the best throughput.
      max_batch_size: the largest size known to fit the limit: compiled, and its bytes read.
      reasons: sentences with the figures behind them.
      measurements: `BatchMeasurement` of each size, in order.
      memory_limit: bytes of one device.
      device: what it ran on.
    """

    optimal_batch_size: int
    min_batch_size: int
    max_batch_size: int
    reasons: tuple[str, ...]
    measurements: tuple[BatchMeasurement, ...]
    memory_limit: int
    device: str

    def __str__(self) -> str:
        lines = [
            f"batch size {self.optimal_batch_size} (from {self.min_batch_size} to "
            f"{self.max_batch_size}) on {self.device}",
            f"{'size':>10} {'ms a batch':>18} {'examples':>12} {'memory':>10} {'compiled in':>12}",
        ]
        for m in self.measurements:
            took, rate = "not run" if m.total_bytes <= self.memory_limit else "too large", ""
            if m.seconds is not None and m.spread is not None:
                took = f"{1e3 * m.seconds:.4g} +- {1e3 * m.spread:.2g}"
                rate = shown_rate(m.batch_size / m.seconds)
            lines.append(
                f"{m.batch_size:>10} {took:>18} {rate:>12} {shown_bytes(m.total_bytes):>10} "
                f"{m.compile_seconds:>10.2f} s"
            )
        return "\n".join([*lines, *self.reasons])

    def plot(self, path: str | Path, *, dpi: int = 120) -> Path:
        """Throughput and memory over the batch size, as a PNG; needs matplotlib."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        rates = figure.subplots()
        ran = [(m.batch_size, m.seconds) for m in self.measurements if m.seconds is not None]
        rates.plot([n for n, _ in ran], [n / took for n, took in ran], "o-", color="C0")
        rates.axvline(self.optimal_batch_size, color="C0", lw=0.8, ls=":")
        rates.set_xscale("log", base=2)
        rates.set_ylim(bottom=0)
        rates.set_xlabel("batch size (dotted: recommended)")
        rates.set_ylabel("examples per second", color="C0")
        used = rates.twinx()
        used.plot(
            [m.batch_size for m in self.measurements],
            [m.total_bytes / 2**20 for m in self.measurements],
            "s--",
            color="C1",
        )
        used.axhline(self.memory_limit / 2**20, color="C1", lw=0.8, ls=":")
        used.set_yscale("log")
        used.set_ylabel("memory of one device (MiB; dotted: limit)", color="C1")
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
        return path


def get_batch_size_recommendation(
    fn_or_pipeline: Callable[..., Any] | Pipeline | None = None,
    *args: Any,
    in_axes: Any = 0,
    sizes: Sequence[int] | None = None,
    memory_limit: int | None = None,
    seconds: float = 20.0,
    sharding: jax.sharding.Sharding | None = None,
    progress: bool = True,
) -> BatchSizeRecommendation:
    """Measures which batch size to use, on the devices at hand.

    Sizes double from 1 (with a sharding: from its number of devices) while that brings throughput
    and there are memory and time. Each is compiled, XLA's ``memory_analysis()`` read, and all are
    timed in interleaved rounds. The largest size that fits comes from the line through the bytes
    of known sizes, and is then compiled itself, so that no figure is extrapolated.

    A function's call is timed from its dispatch until its result is there, and takes the bytes of
    its arguments, outputs (where they do not overwrite donated arguments) and temporaries.
    A pipeline is built again with other batch sizes (of its last `Rebatch`, where it has one) and
    timed as it delivers, source and workers included. It takes the bytes of its ring, of two
    outputs and of the temporaries of its last program; what sources, Python functions and programs
    on the host take besides is not seen.

    Args:
      fn_or_pipeline: a function of batches, jitted or not; a `Pipeline`; or None for the fused
        augmentation: RandomResizedCrop(224), flip and Normalize of u8 images 256x256x3.
      args: samples of the function's arguments, as for calling it: pytrees of arrays, whose rows
        are repeated or cut to the size that is tried, or of ``jax.ShapeDtypeStruct``, in whose
        place come floats from 0 to 1, and zeros of other dtypes. Donated ones are copied before.
      in_axes: where their batch axes are, as in ``jax.vmap``; None for what has none.
      sizes: to time, instead of doubling.
      memory_limit: bytes that one device may hold. None: 90% of what is free on it, by its own
        figures or, on the CPU, within the limits of this process (see
        ``JAXKERN_MEMORY_LIMIT``), plus what unbatched arguments hold already.
      seconds: for all of it. No size is begun that would not be done in time, except those of
        `sizes`; a compilation that has begun is waited for, and three of them are done in any case
        to find the largest size that fits.
      sharding: of a function's batches; None: the samples' own. A pipeline has its own.
      progress: whether to show a bar on stderr.

    Returns:
      sizes, reasons and measurements; ``print`` shows them.

    Raises:
      TypeError, ValueError: naming the argument.
      Exception: what the function itself raises for the smallest size. Larger sizes that fail are
        taken as too large, and `reasons` tells why.

    >>> import jax, jax.numpy as jnp
    >>> import jaxkern as jk
    >>> step = jax.jit(lambda w, x: jnp.tanh(x @ w).sum())
    >>> w = jnp.ones((64, 64))
    >>> batch = jax.ShapeDtypeStruct((1, 64), jnp.float32)
    >>> found = jk.get_batch_size_recommendation(
    ...     step, w, batch, in_axes=(None, 0), memory_limit=1 << 20, seconds=2.0)
    >>> found.min_batch_size <= found.optimal_batch_size <= found.max_batch_size
    True
    """
    if real_number("seconds", seconds, 0) == 0:
        raise ValueError(f"seconds is {seconds!r}; wanted a number above 0")
    if memory_limit is not None and not isinstance(memory_limit, (int, float)):
        raise TypeError(
            f"memory_limit is {memory_limit!r}; wanted a number of bytes, as 2**30, or None"
        )
    if memory_limit is not None and not 0 < memory_limit < math.inf:
        raise ValueError(f"memory_limit is {memory_limit!r}; wanted bytes, above 0, or None")
    trial = _trial(fn_or_pipeline, args, in_axes, sharding)
    limit = int(trial.default_limit() if memory_limit is None else memory_limit)
    with ProgressBar(progress, "batch size", "round") as bar:
        found = Search(trial, limit, seconds, _checked(sizes, trial), bar).run()
    device = trial.device
    where = f"{device.device_kind} ({device.platform})"
    if trial.multiple > 1:
        where = f"{trial.multiple} x {where}"
    return BatchSizeRecommendation(*found, limit, where)


def _trial(
    subject: Any, args: tuple[Any, ...], in_axes: Any, sharding: jax.sharding.Sharding | None
) -> FunctionTrial | PipelineTrial:
    if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
        raise TypeError(f"sharding is {sharding!r}; wanted a jax.sharding.Sharding or None")
    if isinstance(subject, Pipeline):
        if args or sharding is not None:
            raise TypeError(
                "a pipeline came with samples or a sharding; wanted it alone: its source gives the "
                "records, and from_source(sharding=...) spreads them"
            )
        return PipelineTrial(subject)
    if subject is None:
        if args:
            raise TypeError("samples came without a function; wanted fn, *samples")
        subject, args, in_axes = *_augmentation(), 0
    if not callable(subject):
        raise TypeError(f"{subject!r:.80} is no function; wanted one, a Pipeline, or None")
    return FunctionTrial(subject, args, in_axes, sharding)


def _augmentation() -> tuple[Any, tuple[Any, ...]]:
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


def _checked(sizes: Sequence[int] | None, trial: FunctionTrial | PipelineTrial) -> list[int] | None:
    if sizes is None:
        return None
    listed = sorted(set(sizes))
    multiple, most = trial.multiple, trial.most
    for size in listed:
        if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1 or size % multiple:
            more = "" if multiple == 1 else f", multiples of the {multiple} devices"
            raise ValueError(f"sizes has {size!r}; wanted integers from 1{more}")
    if not listed:
        raise ValueError("sizes is empty; wanted at least one batch size, or None")
    if most is not None and listed[0] > most:
        raise ValueError(f"sizes begins with {listed[0]}, and there are only {most} records")
    return [int(size) for size in listed]
