"""``roofline_analysis``: the bottleneck of a function or a pipeline, from times and ceilings."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.backend import backend
from jaxkern.core.ceilings import Ceilings
from jaxkern.core.ceilings import ceilings as measure_ceilings
from jaxkern.core.quantities import format_duration, format_quantity
from jaxkern.core.timing import call_seconds
from jaxkern.execution.operator import name_of
from jaxkern.performance.program_cost import OpUse, op_uses, program_cost, without_unused_calls
from jaxkern.performance.programs import compile_program

_CALLS, _SECONDS = 5, 0.2
Bottleneck = Literal["compute", "memory"]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Position of some work under a roofline.

    Attributes:
      flops, bytes: operations and bytes of the work; None if unknown.
      time: duration in seconds.
      intensity: operations per byte; None if either is unknown, infinite if no bytes are moved.
      bottleneck: ``'memory'`` to the left of the ridge point, else ``'compute'``.
      achieved: operations per second, or bytes per second if no operations are known (`unit`).
      ceiling: maximum of ``achieved`` at this intensity.
      efficiency: ``achieved / ceiling``, not clamped: above 1 if data stay in the caches.
      unit: ``"FLOP/s"`` or ``"B/s"``.

    Example:
      >>> from jaxkern import performance
      >>> placement = performance.Placement(
      ...     flops=1e9, bytes=4e9, time=0.5, intensity=0.25, bottleneck="memory",
      ...     achieved=2e9, ceiling=4e9, efficiency=0.5, unit="FLOP/s")
      >>> placement.efficiency == placement.achieved / placement.ceiling
      True
    """

    flops: float | None
    bytes: float | None
    time: float
    intensity: float | None
    bottleneck: Bottleneck
    achieved: float | None
    ceiling: float
    efficiency: float | None
    unit: str


def place(
    flops: float | None, moved: float | None, seconds: float, peak: float, bandwidth: float
) -> Placement:
    """Place work under the roof of ``peak`` (operations/s) and ``bandwidth`` (bytes/s).

    Source: Williams, Waterman and Patterson, "Roofline", Commun. ACM 52 (2009) 65.
    """
    intensity = None
    if flops is not None and moved is not None:
        intensity = flops / moved if moved else math.inf if flops else 0.0
    achieved: float | None
    if flops:
        # If the bytes are unknown, the only known bound is the peak.
        ceiling = peak if intensity is None else min(peak, intensity * bandwidth)
        bottleneck: Bottleneck = "memory" if ceiling < peak else "compute"
        achieved, unit = flops / seconds, "FLOP/s"
    else:
        ceiling, bottleneck, unit = bandwidth, "memory", "B/s"
        achieved = None if moved is None else moved / seconds
    return Placement(
        flops=flops,
        bytes=moved,
        time=seconds,
        intensity=intensity,
        bottleneck=bottleneck,
        achieved=achieved,
        ceiling=ceiling,
        efficiency=None if achieved is None else achieved / ceiling,
        unit=unit,
    )


@dataclass(frozen=True, kw_only=True)
class OpRow(Placement):
    """One op of the program, timed alone.

    The fields of `Placement` cover all ``count`` calls in one run, or one call if it is None.

    Attributes:
      name, shapes: name of the op, and dtypes and shapes of its operands.
      count: calls in the traced program, all branches included; None in a loop of unknown length.
      seconds, share: time of one call, and of all as a fraction of the program's time, if known.
      reason: why the op runs in pure JAX; None if its native kernel runs.
      operands: ``"its own"`` if it was timed on the values of this program (in a loop, on those of
        the first iteration), else ``"synthetic"``.
    """

    name: str
    shapes: tuple[str, ...]
    count: int | None
    seconds: float
    share: float | None
    reason: str | None
    operands: str


@dataclass(frozen=True, kw_only=True)
class Roofline(Placement):
    """The bottleneck of a function or a pipeline on this machine, and its efficiency.

    The fields of `Placement` cover one run, or one batch.

    Attributes:
      name, samples: name of the function or pipeline, and number of samples per run.
      dtype: precision of the peak, ``"f32"`` or ``"f64"``.
      counted: source of operations and bytes, such as ``"XLA and the ops' models"``.
      rows: the ops inside, each timed alone.
      ceilings, devices: the machine's ceilings, and the number of devices that run it.
      times: seconds of every timed run; `time` is their ``statistic``: the median of a function's
        calls, the mean of a pipeline's batches.
      notes: what the figures do not include, and unexpected figures.
    """

    name: str
    samples: int
    dtype: str
    counted: str
    rows: tuple[OpRow, ...]
    ceilings: Ceilings
    devices: int
    times: tuple[float, ...]
    statistic: str
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON; an infinite intensity is the string ``"inf"``."""
        fields = dataclasses.asdict(self)
        for placement in (fields, *fields["rows"]):
            if placement["intensity"] == math.inf:
                placement["intensity"] = "inf"
        return fields

    def __str__(self) -> str:
        rates = self.ceilings.best
        where = f"{self.devices} devices" if self.devices > 1 else self.ceilings.platform
        ridge = rates.flops(self.dtype) / rates.bandwidth
        figures = {
            "time": f"{format_duration(self.time)} ({self.statistic} of {len(self.times)})",
            "operations": format_quantity(self.flops, "FLOP"),
            "bytes": format_quantity(self.bytes, "B"),
            "intensity": f"{_number(self.intensity)} FLOP/B; ridge point at {ridge:.3g}",
            "bottleneck": self.bottleneck,
            "achieved": format_quantity(self.achieved, self.unit),
            "ceiling": format_quantity(self.ceiling, self.unit),
            "efficiency": _percent(self.efficiency),
            "counted by": self.counted,
        }
        lines = [f"roofline of {self.name} on {where} ({self.ceilings.device})", ""]
        lines += [f"  {name:<12}{value}" for name, value in figures.items()]
        if self.rows:
            lines += ["", *self._table()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _table(self) -> list[str]:
        columns: dict[str, list[str]] = {
            "op": [row.name for row in self.rows],
            "calls": ["unknown" if row.count is None else str(row.count) for row in self.rows],
            "per call": [format_duration(row.seconds) for row in self.rows],
            "share": [_percent(row.share) for row in self.rows],
            "FLOP/B": [_number(row.intensity) for row in self.rows],
            "achieved": [format_quantity(row.achieved, row.unit) for row in self.rows],
            "of ceiling": [_percent(row.efficiency) for row in self.rows],
            "bound": [str(row.bottleneck) for row in self.rows],
            "runs": ["in pure JAX" if row.reason else "native" for row in self.rows],
        }
        padded = []
        for name, cells in columns.items():
            width = max(map(len, [name, *cells]))
            padded.append([cell.ljust(width) for cell in [name, *cells]])
        return [("  " + "  ".join(line)).rstrip() for line in zip(*padded, strict=True)]

    def plot(self, path: str | PathLike[str]) -> Path:
        """Draw the roofs, the total and its ops with matplotlib; the suffix is the format."""
        return _draw(self, Path(path))


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.3g}%"


def _draw(roofline: Roofline, path: Path) -> Path:
    try:
        from matplotlib.figure import Figure  # not pyplot, whose state belongs to the user
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'jaxkern-native[cli]'") from error
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes: Any = figure.add_subplot()
    works: list[tuple[str, Placement]] = [("total", roofline)]
    works += [(row.name, row) for row in roofline.rows]
    shown = [(n, w) for n, w in works if w.flops and w.intensity and math.isfinite(w.intensity)]
    missing = [name for name, work in works if (name, work) not in shown]
    # Devices of a CPU share its cores and memory.
    scale = 1 if roofline.ceilings.platform == "cpu" else roofline.devices
    rates = roofline.ceilings.best
    ridge = rates.flops(roofline.dtype) / rates.bandwidth
    intensities = [ridge, *(work.intensity or ridge for _, work in shown)]
    low, high = min(intensities) / 10, max(intensities) * 10
    for dtype, style in (("f32", "-"), ("f64", "--")):
        peak, bandwidth = rates.flops(dtype) * scale, rates.bandwidth * scale
        edges = [low, peak / bandwidth, max(high, 2 * peak / bandwidth)]
        roof = [min(peak, x * bandwidth) / 1e9 for x in edges]
        label = f"{dtype}: {peak / 1e9:.3g} GFLOP/s, {bandwidth / 1e9:.3g} GB/s"
        axes.plot(edges, roof, "k" + style, linewidth=1.2, label=label)
    for name, work in shown:
        marker, size = ("o", 9) if work is roofline else ("s", 6)
        label = f"{roofline.name if work is roofline else name}: {_percent(work.efficiency)}"
        rate = (work.achieved or math.nan) / 1e9
        axes.plot(work.intensity, rate, marker, markersize=size, label=label)
    omitted = f" (not shown, because unknown: {', '.join(missing)})" if missing else ""
    axes.set(xscale="log", yscale="log", xlabel=f"operations per byte{omitted}")
    axes.set(ylabel="GFLOP/s", title=roofline.ceilings.device)
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    return path


def roofline_analysis(
    fn_or_pipeline: Callable[..., Any] | Iterable[Any],
    *args: Any,
    flops_per_sample: float | None = None,
    bytes_per_sample: float | None = None,
    samples: int | None = None,
    num_batches: int = 50,
    ceilings: Ceilings | None = None,
) -> Roofline:
    """Time a function or a pipeline and compare it with the ceilings of this machine.

    A function is compiled by ``jax.jit`` unless it is jitted. Its operations and bytes come from
    XLA's cost analysis and the cost models of native ops; a figure that a while loop makes unknown
    is None. Each op is also timed alone. A pipeline, or any other iterable of batches (pytrees of
    arrays with the samples along their first axis), is measured by what it delivers.

    Args:
      fn_or_pipeline: function of arrays, or iterable of batches.
      *args: arguments of the function: pytrees of arrays and numbers.
      flops_per_sample, bytes_per_sample: figures to use instead of the counted ones.
      samples: number of samples in one call of the function; by default the size of the first axis
        of its first array, or 1 without one.
      num_batches: maximum number of timed batches of a pipeline, after one that is not timed.
      ceilings: ceilings to use instead of this machine's.

    Returns:
      A `Roofline`: ``.intensity .bottleneck .achieved .ceiling .efficiency .time``, a row for each
      op, ``.plot(path)``, and a readable ``str``.

    Raises:
      TypeError, ValueError: for an invalid argument, a function that cannot be jitted, or a
        pipeline without batches or arrays.
      RuntimeError: if the machine cannot be probed.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxkern.performance
      >>> a = jnp.ones((256, 256))
      >>> result = jaxkern.performance.roofline_analysis(jnp.dot, a, a)
      >>> result.flops == 2 * 256**3
      True
    """
    per_sample = (flops_per_sample, bytes_per_sample)
    for name, value in (("flops", flops_per_sample), ("bytes", bytes_per_sample)):
        if value is not None:
            check_number(f"{name}_per_sample", value, 0)
    if samples is not None:
        samples = check_integer("samples", samples, 1)
    num_batches = check_integer("num_batches", num_batches, 1)
    if ceilings is not None and not isinstance(ceilings, Ceilings):
        raise TypeError(f"ceilings: expected Ceilings or None, got {type(ceilings).__name__}")
    if callable(fn_or_pipeline):
        return _analyze_function(fn_or_pipeline, args, per_sample, samples, ceilings)
    if not hasattr(fn_or_pipeline, "__iter__"):
        got = type(fn_or_pipeline).__name__
        raise TypeError(f"fn_or_pipeline: expected a function or an iterable of batches, got {got}")
    if args:
        raise TypeError("args: expected no arguments with a pipeline")
    return _analyze_batches(fn_or_pipeline, per_sample, num_batches, ceilings)


def _analyze_function(
    fn: Callable[..., Any],
    args: Sequence[Any],
    per_sample: tuple[float | None, float | None],
    samples: int | None,
    ceilings: Ceilings | None,
) -> Roofline:
    program = compile_program(fn, *args)
    devices = program.devices
    # A device of another process can be probed only there.
    local = [d for d in devices if d.process_index == jax.process_index()]
    roof = measure_ceilings((local or devices)[0]) if ceilings is None else ceilings
    traced = without_unused_calls(program.traced.jaxpr)
    cost = program_cost(traced, program, roof.platform)
    # Devices of a CPU share its cores and memory.
    scale = 1 if roof.platform == "cpu" else len(devices)
    peak, bandwidth = roof.best.flops(cost.dtype) * scale, roof.best.bandwidth * scale
    count = _count_samples(args) if samples is None else samples
    flops = cost.flops if per_sample[0] is None else per_sample[0] * count
    moved = cost.bytes if per_sample[1] is None else per_sample[1] * count

    def copies() -> Any:
        return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, args)

    donated = any(info.donated for info in jax.tree.leaves(program.lowered.args_info))
    fresh = copies if donated else None
    seconds = call_seconds(program.function, *args, calls=_CALLS, seconds=_SECONDS, fresh=fresh)
    placement = place(flops, moved, statistics.median(seconds), peak, bandwidth)
    # Static arguments of a jitted function are not operands of the program.
    leaves = jax.tree.leaves(args)
    uses = op_uses(traced, leaves if len(leaves) == len(traced.jaxpr.invars) else None)
    rows = [_row(use, roof.platform, peak, bandwidth, placement.time) for use in uses]
    return Roofline(
        name=name_of(fn),
        **vars(placement),
        samples=count,
        dtype=cost.dtype,
        counted=_describe_counts(any(row.reason is None for row in rows), *per_sample),
        rows=tuple(sorted(rows, key=lambda row: -(row.share or 0.0))),
        ceilings=roof,
        devices=len(devices),
        times=tuple(seconds),
        statistic="median",
        notes=(
            *(cost.notes if None in per_sample else ()),
            *_explain_efficiency(placement, roof),
            *roof.notes,
        ),
    )


def _count_samples(args: Sequence[Any]) -> int:
    shapes = (np.shape(leaf) for leaf in jax.tree.leaves(args))
    return next((int(shape[0]) for shape in shapes if shape), 1)


def _describe_counts(has_native_ops: bool, flops: float | None, moved: float | None) -> str:
    if flops is not None and moved is not None:
        return "the caller, per sample"
    source = "XLA and the ops' models" if has_native_ops else "XLA"
    if flops is None and moved is None:
        return source
    caller, rest = ("operations", "bytes") if flops is not None else ("bytes", "operations")
    return f"{caller}: the caller, per sample; {rest}: {source}"


def _explain_efficiency(placement: Placement, roof: Ceilings) -> list[str]:
    if placement.efficiency is None or placement.efficiency <= 1:
        return []
    cache = "" if roof.cache_bytes is None else f" (of {roof.cache_bytes / 2**20:.3g} MiB)"
    reason = (
        f"the bandwidth was measured in main memory; the data were in a cache{cache}, or XLA "
        "counts bytes that fused operations do not move"
    )
    if placement.bottleneck == "compute":
        reason = (
            "the peak was measured with multiply-adds in this precision; a matrix unit, a narrower "
            "type or a compiler that removes work can be faster"
        )
    return [f"above the ceiling: {reason}"]


def _row(use: OpUse, platform: str, peak: float, bandwidth: float, total: float) -> OpRow:
    """Time one op of the program alone."""
    call = use.call

    def run(*operands: Any) -> Any:
        return call.op(*operands, batch_dims=call.batch_dims, **call.static)

    chosen: Any = call.backend
    with backend(chosen):
        times = call_seconds(jax.jit(run), *use.operands, calls=_CALLS, seconds=_SECONDS / 2)
    seconds, factor = statistics.median(times), call.count or 1
    flops, moved = (None if v is None else v * factor for v in call.cost)
    return OpRow(
        name=call.op.name,
        shapes=tuple(f"{x.dtype}{list(x.shape)}" for x in call.operands),
        count=call.count,
        seconds=seconds,
        share=None if call.count is None else call.count * seconds / total,
        **vars(place(flops, moved, seconds * factor, peak, bandwidth)),
        reason=call.problem(platform),
        operands="its own" if use.is_own else "synthetic",
    )


def _analyze_batches(
    pipeline: Any,
    per_sample: tuple[float | None, float | None],
    num_batches: int,
    ceilings: Ceilings | None,
) -> Roofline:
    """Time batches. The first one is not timed, because it starts workers and compiles."""
    seconds: list[float] = []
    samples = delivered = 0
    on_host = True
    started = math.inf
    for batch in itertools.islice(pipeline, num_batches + 1):
        leaves = jax.tree.leaves(jax.block_until_ready(batch))
        if started < math.inf:
            seconds.append(time.perf_counter() - started)
            samples += _count_samples(leaves)
            delivered += sum(int(getattr(x, "nbytes", 0)) for x in leaves)
        devices = {d.platform for x in leaves if isinstance(x, jax.Array) for d in x.devices()}
        on_host &= devices <= {"cpu"}
        started = time.perf_counter()
    if not seconds:
        raise ValueError("expected at least 2 batches, because the first is not timed, got fewer")
    flops_each, bytes_each = per_sample
    if not delivered and bytes_each is None:
        raise ValueError("expected batches with arrays, got no arrays; pass bytes_per_sample")
    cpu = jax.local_devices(backend="cpu")[0]
    roof = measure_ceilings(cpu) if ceilings is None else ceilings
    mean_samples = samples / len(seconds)
    flops = None if flops_each is None else flops_each * mean_samples
    moved = delivered / len(seconds) if bytes_each is None else bytes_each * mean_samples
    mean = statistics.fmean(seconds)
    placement = place(flops, moved, mean, roof.best.fma_f32, roof.best.bandwidth)
    notes = []
    if flops_each is None:
        notes.append(
            "a pipeline does not report its operations, so achieved and ceiling are bytes per "
            "second; pass flops_per_sample to get its intensity"
        )
    if bytes_each is None:
        notes.append("only delivered bytes are counted, not those of reading and decoding")
    if not on_host:
        notes.append("the ceilings are for the host, which creates the batches")
    return Roofline(
        name=type(pipeline).__name__,
        **vars(placement),
        samples=max(1, round(mean_samples)),
        dtype="f32",
        counted="delivered samples and bytes" if bytes_each is None else "the caller, per sample",
        rows=(),
        ceilings=roof,
        devices=1,
        times=tuple(seconds),
        statistic="mean",
        notes=(*notes, *_explain_efficiency(placement, roof), *roof.notes),
    )
