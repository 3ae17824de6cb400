"""``roofline_analysis``: what bounds a function or a pipeline, from measured times and ceilings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.backend import backend
from jaxkern.core.calls import OpCall
from jaxkern.core.ceilings import Ceilings, ceilings
from jaxkern.core.timing import call_seconds
from jaxkern.performance.operands import call_operands, made_up_operands
from jaxkern.performance.program_cost import ProgramCost, program_cost, program_devices
from jaxkern.performance.roofline_result import OpRow, Placement, Roofline, place

_CALLS, _SECONDS = 5, 0.2


def roofline_analysis(
    fn_or_pipeline: Callable[..., Any] | Iterable[Any],
    *args: Any,
    flops_per_sample: float | None = None,
    bytes_per_sample: float | None = None,
    samples: int | None = None,
    num_batches: int = 50,
    ceilings: Ceilings | None = None,
) -> Roofline:
    """Times a function or a pipeline and sets it against what this machine can do at best.

    A function is compiled by ``jax.jit``, unless it already is jitted. Its operations and bytes are
    those of XLA's cost analysis, bodies of scans multiplied by their lengths, and the models of the
    ops that run natively, whose work XLA does not know, for each call that the compiled program
    makes. Each op is also timed alone. A while loop runs an unknown number of times, and what is
    unknown is None.

    A pipeline, or any other iterable of batches (pytrees of arrays with the samples along their
    first axis), is measured by the samples and bytes that it delivers.

    The ceilings are measured once a machine by native probes, in under 5 s, and kept on disk.

    Args:
      fn_or_pipeline: a function of arrays, or an iterable of batches.
      args: of the function: pytrees of arrays and numbers.
      flops_per_sample: takes the place of the counted operations, per sample.
      bytes_per_sample: takes the place of the counted bytes, per sample.
      samples: that one call of the function handles: by default the size of the first axis of its
        first array (1 where there is none).
      num_batches: of a pipeline that are timed at most, after one that is not.
      ceilings: instead of this machine's.

    Returns:
      A `Roofline`: ``.intensity .bottleneck .achieved .ceiling .efficiency .time``, rows for the
      ops, ``.plot(path)``, and a readable ``str``.

    Raises:
      TypeError: for what is neither, an argument that is no array, a function that cannot be
        jitted, or ceilings that are none.
      ValueError: for a figure below 0, or a pipeline without batches or without arrays.
      RuntimeError: where the machine cannot be probed.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxkern.performance
      >>> a = jnp.ones((256, 256))
      >>> result = jaxkern.performance.roofline_analysis(jnp.dot, a, a)
      >>> result.flops == 2 * 256**3
      True
    """
    given = {"flops_per_sample": flops_per_sample, "bytes_per_sample": bytes_per_sample}
    for name, value in given.items():
        if value is not None:
            check_number(name, value, 0)
    if samples is not None:
        samples = check_integer("samples", samples, 1)
    num_batches = check_integer("num_batches", num_batches, 1)
    if ceilings is not None and not isinstance(ceilings, Ceilings):
        raise TypeError(
            f"ceilings is a {type(ceilings).__name__}; wanted what jaxkern.performance.ceilings() "
            "returns, or None"
        )
    if callable(fn_or_pipeline):
        return _of_function(
            fn_or_pipeline, args, flops_per_sample, bytes_per_sample, samples, ceilings
        )
    if hasattr(fn_or_pipeline, "__iter__"):
        if args:
            raise TypeError("a pipeline takes no arguments; give them with a function of arrays")
        return _of_batches(
            fn_or_pipeline, flops_per_sample, bytes_per_sample, num_batches, ceilings
        )
    raise TypeError(
        f"fn_or_pipeline is a {type(fn_or_pipeline).__name__}; wanted a function of arrays or an "
        "iterable of batches"
    )


def _of_function(
    fn: Callable[..., Any],
    args: Sequence[Any],
    flops_per_sample: float | None,
    bytes_per_sample: float | None,
    samples: int | None,
    given: Ceilings | None,
) -> Roofline:
    name = _name(fn)
    lowered, program = _traced(fn, args, name)
    compiled = lowered.compile()
    devices = program_devices(compiled)
    # On a cluster others belong to other processes, which alone can probe them.
    here = [d for d in devices if d.process_index == jax.process_index()]
    roof = _machine(given, (here or devices)[0])
    cost = program_cost(program, compiled, roof.platform, len(devices))
    shared = 1 if roof.platform == "cpu" else len(devices)  # devices of a CPU share it
    peak, bandwidth = roof.best.flops(cost.dtype) * shared, roof.best.bandwidth * shared
    count = _samples(args) if samples is None else samples
    flops = cost.flops if flops_per_sample is None else flops_per_sample * count
    moved = cost.bytes if bytes_per_sample is None else bytes_per_sample * count
    seconds = _timed(fn, args, lowered)
    placement = place(flops, moved, statistics.median(seconds), peak, bandwidth)
    # Static arguments of a function that is already jitted are no operands of the program.
    leaves = jax.tree.leaves(args)
    fits = len(leaves) == len(program.jaxpr.invars)
    rows = _rows(cost, program, leaves if fits else None, roof, peak, bandwidth, placement.time)
    notes = [] if flops_per_sample is not None and bytes_per_sample is not None else cost.notes
    return Roofline(
        name=name,
        **vars(placement),
        samples=count,
        dtype=cost.dtype,
        counted=_counted(cost, flops_per_sample, bytes_per_sample),
        rows=rows,
        ceilings=roof,
        devices=len(devices),
        times=tuple(seconds),
        statistic="median",
        notes=(*notes, *_remarks(placement, roof), *roof.notes),
    )


def _traced(fn: Callable[..., Any], args: Sequence[Any], name: str) -> tuple[Any, Any]:
    jitted: Any = fn
    if not hasattr(fn, "trace"):
        _refuse_other_than_arrays(args, name)
        jitted = jax.jit(fn)
    try:
        traced = jitted.trace(*args)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise TypeError(
            f"{name} cannot be jitted, and a roofline is of one compiled program: "
            f"{str(error).splitlines()[0]}; branch with jax.lax.cond or jnp.where, and keep NumPy, "
            "files and printing out of it"
        ) from error
    except TypeError:
        # A jitted function may take anything as a static argument, so that JAX is asked first.
        _refuse_other_than_arrays(args, name)
        raise
    return traced.lower(), traced.jaxpr


def _refuse_other_than_arrays(args: Sequence[Any], name: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tuple(args)):
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
            raise TypeError(
                f"args{jax.tree_util.keystr(path)} of {name} is a {type(leaf).__name__}; wanted "
                "arrays and numbers: bind anything else with functools.partial, or jit the "
                "function with static_argnums"
            )


def _name(fn: Callable[..., Any]) -> str:
    inner = getattr(fn, "func", fn)  # of a functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def _machine(given: Ceilings | None, device: jax.Device) -> Ceilings:
    return ceilings(device) if given is None else given


def _samples(args: Sequence[Any]) -> int:
    for leaf in jax.tree.leaves(args):
        shape = np.shape(leaf)
        if shape:
            return int(shape[0])
    return 1


def _timed(fn: Callable[..., Any], args: Sequence[Any], lowered: Any) -> list[float]:
    run: Any = fn if hasattr(fn, "trace") else jax.jit(fn)
    donated = any(info.donated for info in jax.tree.leaves(lowered.args_info))

    def copies() -> Any:
        return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, args)

    fresh = copies if donated else None
    return call_seconds(run, *args, calls=_CALLS, seconds=_SECONDS, fresh=fresh)


def _counted(cost: ProgramCost, flops: float | None, moved: float | None) -> str:
    if flops is not None and moved is not None:
        return "the caller, per sample"
    by = "XLA and the ops' models" if cost.op_bytes != 0 or cost.op_flops != 0 else "XLA"
    if flops is None and moved is None:
        return by
    mine, rest = ("operations", "bytes") if flops is not None else ("bytes", "operations")
    return f"{mine}: the caller, per sample; {rest}: {by}"


def _remarks(placement: Placement, roof: Ceilings) -> list[str]:
    if placement.efficiency is None or placement.efficiency <= 1:
        return []
    if placement.bottleneck == "compute":
        return [
            "above the ceiling: the peak is that of multiply-adds in this precision, and a matrix "
            "unit, a narrower type or a compiler that leaves work out can be faster"
        ]
    cache = "" if roof.cache_bytes is None else f" (of {roof.cache_bytes / 2**20:.3g} MiB)"
    return [
        f"above the ceiling: that is of data in memory, and these were in a cache{cache}, or XLA "
        "counts bytes that fused operations never moved"
    ]


def _rows(
    cost: ProgramCost,
    program: Any,
    leaves: Sequence[Any] | None,
    roof: Ceilings,
    peak: float,
    bandwidth: float,
    whole: float,
) -> tuple[OpRow, ...]:
    """Every different call of an op that the compiled program makes, timed alone."""
    if not cost.uses:
        return ()
    own = [None] * len(cost.calls) if leaves is None else list(call_operands(program, leaves))
    rows = []
    for use in cost.uses:
        call, total = use.call, use.count
        operands = next((own[at] for at in use.members if own[at] is not None), None)
        seconds = _op_seconds(call, made_up_operands(call) if operands is None else operands)
        # An op in a branch that does not count still has its place.
        factor = total or 1
        flops, moved = (None if v is None else v * factor for v in call.cost)
        here = place(flops, moved, seconds * factor, peak, bandwidth)
        rows.append(
            OpRow(
                name=call.op.name,
                shapes=tuple(f"{x.dtype}{list(x.shape)}" for x in call.operands),
                count=total,
                seconds=seconds,
                share=None if total is None else total * seconds / whole,
                **vars(here),
                reason=call.problem(roof.platform),
                operands="made up" if operands is None else "its own",
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.share or 0.0)))


def _op_seconds(call: OpCall, operands: Sequence[Any]) -> float:
    def run(*xs: Any) -> Any:
        return call.op(*xs, batch_dims=call.batch_dims, **call.static)

    chosen: Any = call.backend
    with backend(chosen):
        return statistics.median(
            call_seconds(jax.jit(run), *operands, calls=_CALLS, seconds=_SECONDS / 2)
        )


def _of_batches(
    pipeline: Any,
    flops_per_sample: float | None,
    bytes_per_sample: float | None,
    num_batches: int,
    given: Ceilings | None,
) -> Roofline:
    """A run is one batch; the first is not timed, since it starts workers and compiles."""
    iterator = iter(pipeline)
    seconds: list[float] = []
    samples = delivered = 0
    place_of: jax.Device | None = None
    begun = None
    for number, batch in enumerate(iterator):
        leaves = jax.tree.leaves(jax.block_until_ready(batch))
        ended = time.perf_counter()
        if begun is not None:
            seconds.append(ended - begun)
            samples += _samples([leaves])
            delivered += sum(int(getattr(x, "nbytes", 0)) for x in leaves)
        elif place_of is None:
            place_of = next(
                (d for x in leaves if isinstance(x, jax.Array) for d in x.devices()), None
            )
        if number == num_batches:
            break
        begun = time.perf_counter()
    if not seconds:
        raise ValueError(
            "the pipeline delivered fewer than 2 batches, of which the first is not timed; wanted "
            "at least 2"
        )
    if not delivered and bytes_per_sample is None:
        raise ValueError(
            "the pipeline's batches hold no arrays, so that their bytes are not known; wanted "
            "arrays, or bytes_per_sample"
        )
    roof = _machine(given, jax.local_devices(backend="cpu")[0])
    runs = len(seconds)
    flops = None if flops_per_sample is None else flops_per_sample * samples / runs
    moved = delivered / runs if bytes_per_sample is None else bytes_per_sample * samples / runs
    mean = statistics.fmean(seconds)
    placement = place(flops, moved, mean, roof.best.fma_f32, roof.best.bandwidth)
    notes = []
    if flops_per_sample is None:
        notes.append(
            "a pipeline does not tell its operations: achieved and ceiling are bytes a second; "
            "give flops_per_sample for its intensity"
        )
    if bytes_per_sample is None:
        notes.append("bytes are those delivered; reading and decoding move others, uncounted")
    if place_of is not None and place_of.platform != "cpu":
        notes.append("the ceilings are the host's, which makes the batches")
    return Roofline(
        name=type(pipeline).__name__,
        **vars(placement),
        samples=max(1, round(samples / runs)),
        dtype="f32",
        counted="delivered samples and bytes"
        if bytes_per_sample is None
        else "the caller, per sample",
        rows=(),
        ceilings=roof,
        devices=1,
        times=tuple(seconds),
        statistic="mean",
        notes=(*notes, *_remarks(placement, roof), *roof.notes),
    )
