"""Native calls of the image domain: chains, programs and stages of both, and mixing.

A stage is a fused chain and an image program after it (see csrc/image/stages.h).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.axes import explicit_axes, nbytes, on_batch
from jaxkern.core.op import Cost, Op
from jaxkern.image.chain import twin
from jaxkern.image.chain.plan import ChainPlan, Dtype, Filter, Layout, Operands, Segment
from jaxkern.image.program import program_twin
from jaxkern.image.program.program import (
    INTERPOLATIONS,
    MAX_STEPS,
    ProgramStep,
    Step,
    program_operands,
)
from jaxkern.image.ragged import Ragged

MAX_STAGES = 8  # of one call


@dataclasses.dataclass(frozen=True)
class Stage:
    """A fused chain, which only the first stage may lack, and steps of a program after it."""

    chain: ChainPlan | None
    steps: tuple[ProgramStep, ...] = ()


@dataclasses.dataclass(frozen=True)
class StagesPlan:
    """The structure of a call: static, and the same for all samples."""

    stages: tuple[Stage, ...]
    channels: int
    source_dtype: Dtype

    @property
    def chains(self) -> tuple[ChainPlan, ...]:
        return tuple(stage.chain for stage in self.stages if stage.chain is not None)

    @property
    def steps(self) -> tuple[ProgramStep, ...]:
        return tuple(step for stage in self.stages for step in stage.steps)

    def output(self, source: Any) -> jax.ShapeDtypeStruct:
        """Return shape and dtype of one sample's output; without a chain, the source's."""
        if self.chains:
            return self.chains[-1].output()
        return jax.ShapeDtypeStruct(source.shape, source.dtype)


class StageOperands(NamedTuple):
    """`Operands` of all chains, and of all programs op i32 [N, P] and values f32 [N, P, 8]."""

    geometry: Any
    affine: Any
    fill: Any
    erase_box: Any
    erase_value: Any
    op: Any
    values: Any


Folded = tuple[ChainPlan, Operands]
Call = Folded | tuple[StagesPlan, StageOperands]
# Codes, values and the static part of some steps.
_ProgramOperands = tuple[Any, Any, tuple[ProgramStep, ...]]
_StageParts = tuple[Folded | None, list[_ProgramOperands]]


class StagesBuilder:
    """Collects successive chains and programs on images with the same number of channels."""

    def __init__(self, channels: int, source_dtype: Dtype) -> None:
        self.channels = channels
        self.source_dtype = source_dtype
        self._stages: list[_StageParts] = []

    def chain(self, folded: Folded | None) -> None:
        """Append a chain; None appends nothing."""
        if folded is not None:
            self._stages.append((folded, []))

    def program(
        self, steps: Callable[[dict[str, Any]], Sequence[Step]], params: dict[str, Any]
    ) -> None:
        """Append the steps that a transform makes of its parameters."""
        operands = _step_operands(steps, params)
        if operands[2] and not self._stages:
            self._stages.append((None, []))
        if operands[2]:
            self._stages[-1][1].append(operands)

    def calls(self, fuse: bool) -> list[Call]:
        """Return plans and operands of few calls, or else of a call for each chain and program."""
        starts = range(0, len(self._stages), MAX_STAGES)
        calls = [self._stages[k : k + MAX_STAGES] for k in starts] if fuse else []
        for folded, programs in () if fuse else self._stages:
            calls += [[(folded, [])]] if folded is not None else []
            calls += [[(None, programs)]] if programs else []
        dtype, result = self.source_dtype, []
        for stages in calls:
            result.append(_call(stages, self.channels, dtype))
            for folded, _ in stages:
                dtype = dtype if folded is None else folded[0].output_dtype
        return result


def _call(stages: list[_StageParts], channels: int, source_dtype: Dtype) -> Call:
    """Return the plan of a call, of a single chain a `ChainPlan`, and its operands."""
    chains = [folded[1] for folded, _ in stages if folded is not None]
    programs = [program for _, programs in stages for program in programs]
    first = stages[0][0]
    if not programs and len(stages) == 1 and first is not None:
        return first
    programs = programs or [program_operands(())]  # Chains without a program between them.
    plans = tuple(
        Stage(folded and folded[0], tuple(step for *_, steps in programs for step in steps))
        for folded, programs in stages
    )
    longest = max(len(stage.steps) for stage in plans)
    if longest > MAX_STEPS:
        raise ValueError(f"at most {MAX_STEPS} steps may follow each other, got {longest}")
    op, values, _ = zip(*programs, strict=True)
    arrays = (*zip(*(chains or [_no_chain(channels)]), strict=True), op, values)
    operands = StageOperands(*(_concatenated(parts) for parts in arrays))
    return StagesPlan(plans, channels, source_dtype), operands


def _no_chain(channels: int) -> Operands:
    shapes = ((14,), (2, channels), (channels,), (4,), (channels,))
    types = (np.int32, np.float32, np.float32, np.int32, np.float32)
    return Operands(*(np.zeros((1, 0, *s), t) for s, t in zip(shapes, types, strict=True)))


def _step_operands(
    steps: Callable[[dict[str, Any]], Sequence[Step]], params: dict[str, Any]
) -> _ProgramOperands:
    """Return the operands of steps; their computation is exempt from Explicit mode's rules."""
    traced = [value for value in params.values() if isinstance(value, jax.Array)]
    axes = explicit_axes(traced)
    static: tuple[ProgramStep, ...] = ()

    def operands(params: dict[str, Any]) -> tuple[Any, Any]:
        nonlocal static
        op, values, static = program_operands(steps(params))
        if axes:  # The operands are sharded like the parameters.
            full = traced[0].shape[:1]
            op = jnp.broadcast_to(op, (*full, *op.shape[1:]))
            values = jnp.broadcast_to(values, (*full, *values.shape[1:]))
        return op, values

    return (*on_batch(operands, (2, 3), params), static)


def _concatenated(parts: Sequence[Any]) -> Any:
    """Concatenate arrays [N or 1, rows, ...] along the rows."""
    full = [part for part in parts if part.shape[1] > 0] or list(parts[:1])
    if len(full) == 1:
        return full[0]
    batch = next((part.shape[0] for part in full if part.shape[0] != 1), 1)
    xp = np if all(isinstance(part, np.ndarray) for part in full) else jnp

    def join(*arrays: Any) -> Any:
        return xp.concatenate([xp.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays], axis=1)

    return on_batch(join, full[0].ndim, *full)


def _image_stages(pixels: jax.Array, *operands: jax.Array, plan: StagesPlan) -> jax.Array:
    """Run `plan` on pixels [H, W, C] in pure JAX, with `StageOperands` of one sample."""
    return _run((pixels,), twin.image_chain, operands, plan)


def _ragged_stages(*arrays: jax.Array, plan: StagesPlan, **largest: Any) -> jax.Array:
    """Run `plan`, whose first stage has a chain, with arrays and sizes as of `ragged_chain`."""
    first = functools.partial(twin.ragged_chain, **largest)
    return _run(arrays[:4], first, arrays[4:], plan)


def _run(
    source: tuple[jax.Array, ...], run_chain: Any, operands: Sequence[jax.Array], plan: StagesPlan
) -> jax.Array:
    segment = erasure = step = 0
    for stage in plan.stages:
        chain, steps = stage.chain, len(stage.steps)
        image = source[0]
        if chain is not None:
            segments = slice(segment, segment + len(chain.segments))
            erasures = slice(erasure, erasure + sum(s.erasures for s in chain.segments))
            segment, erasure = segments.stop, erasures.stop
            of_chain = (array[segments] for array in operands[:3])
            of_erasures = (array[erasures] for array in operands[3:5])
            image = run_chain(*source, *of_chain, *of_erasures, plan=chain)
        if steps:
            of_program = (array[step : step + steps] for array in operands[5:])
            image = program_twin.image_program(image, *of_program, steps=stage.steps)
            step += steps
        source, run_chain = (image,), twin.image_chain
    return source[0]


# Multiplies and adds per value of a segment's output: one affine, and the taps of two passes.
_FLOPS = {
    **{Filter.NONE: 2, Filter.NEAREST: 2, Filter.BILINEAR: 10, Filter.ANTIALIAS: 18},
    **dict.fromkeys((Filter.BICUBIC, Filter.BICUBIC_LEVELS), 18),
    **dict.fromkeys((Filter.BICUBIC_ANTIALIAS, Filter.BICUBIC_ANTIALIAS_LEVELS), 34),
}


def _segment_attributes(rows: Sequence[Segment], layout: Layout) -> dict[str, Any]:
    """Return attributes of a call: the structure of its chains, without parameters."""
    return {
        "filter": np.asarray([s.sampling for s in rows], np.int32),
        "size": np.asarray([(s.height, s.width) for s in rows], np.int32).reshape(-1),
        "erasures": np.asarray([s.erasures for s in rows], np.int32),
        "rounding": np.asarray([s.rounding for s in rows], np.int32),
        "layout": np.int32(layout),
    }


def _chain_attributes(plan: ChainPlan, **_: Any) -> dict[str, Any]:
    return _segment_attributes(plan.segments, plan.layout)


def _chain_flops(plan: ChainPlan) -> int:
    return sum(_FLOPS[s.filter] * s.height * s.width * plan.channels for s in plan.segments)


def _chain_cost(plan: ChainPlan, pixels: int) -> Cost:
    return Cost(flops=_chain_flops(plan), bytes=pixels + nbytes(plan.output()))


chain = Op(
    "jaxkern.image_chain",
    version=1,
    abstract=lambda pixels, *parameters, plan: plan.output(),
    impl=twin.image_chain,
    attributes=_chain_attributes,
    cost=lambda pixels, *parameters, plan: _chain_cost(plan, nbytes(pixels)),
)

ragged_chain = Op(
    "jaxkern.image_chain_ragged",
    version=1,
    abstract=lambda buffer, *parameters, plan, **_: plan.output(),
    impl=twin.ragged_chain,
    attributes=_chain_attributes,
    # An upper bound: the sizes of images are known at run time only.
    cost=lambda buffer, *parameters, plan, max_height, max_width: _chain_cost(
        plan, max_height * max_width * plan.channels
    ),
)

mix = Op(
    "jaxkern.image_mix",
    version=1,
    abstract=lambda x, *_, **__: jax.ShapeDtypeStruct(x.shape, x.dtype),
    impl=twin.mix,
    attributes=lambda layout: {"layout": np.int32(layout)},
    cost=lambda x, *_, **__: Cost(flops=3 * x.size, bytes=3 * nbytes(x)),
    aliases={0: 0},
)

# Operations per value for one step of a program; the number is a blend's.
_PROGRAM_FLOPS = 8


def _program_attributes(steps: tuple[ProgramStep, ...], channels: int, **_: Any) -> dict[str, Any]:
    fill = [step.channel_fill(channels) for step in steps]
    interpolation = [INTERPOLATIONS.index(step.interpolation) for step in steps]
    return {
        "codes": np.asarray([step.mask for step in steps], np.int32),
        "interpolation": np.asarray(interpolation, np.int32),
        "kernel": np.asarray([step.kernel for step in steps], np.int32).reshape(-1),
        "fill": np.asarray(fill, np.float32).reshape(-1),
    }


program = Op(
    "jaxkern.image_program",
    version=1,
    abstract=lambda images, *_, **__: jax.ShapeDtypeStruct(images.shape, images.dtype),
    impl=lambda images, op, values, *, steps, channels: program_twin.image_program(
        images, op, values, steps=steps
    ),
    attributes=_program_attributes,
    cost=lambda images, op, values, *, steps, channels: Cost(
        flops=_PROGRAM_FLOPS * len(steps) * images.size, bytes=2 * nbytes(images)
    ),
    aliases={0: 0},
)


def stages_attributes(plan: StagesPlan, **_: Any) -> dict[str, Any]:
    """Return the attributes of a call of stages: their structure, without any parameters."""
    own, chains = [stage.chain for stage in plan.stages], plan.chains
    segments = tuple(segment for chain in chains for segment in chain.segments)
    program = _program_attributes(plan.steps, plan.channels)
    program["warp_fill"] = program.pop("fill")
    lengths = {
        "segments": [0 if chain is None else len(chain.segments) for chain in own],
        "steps": [len(stage.steps) for stage in plan.stages],
        "dtype": [plan.source_dtype if c is None else c.output_dtype for c in own],
    }
    return {
        **_segment_attributes(segments, chains[-1].layout if chains else Layout.NHWC),
        **program,
        **{name: np.asarray(values, np.int32) for name, values in lengths.items()},
    }


def _stages_cost(plan: StagesPlan, values: int, pixels: int) -> Cost:
    """Return the cost for a source of `values` values and `pixels` bytes."""
    chains, flops = plan.chains, 0
    for stage in plan.stages:
        if stage.chain is not None:
            flops += _chain_flops(stage.chain)
            values = math.prod(stage.chain.output().shape)
        flops += _PROGRAM_FLOPS * len(stage.steps) * values
    return Cost(flops=flops, bytes=pixels + (nbytes(chains[-1].output()) if chains else pixels))


stages = Op(
    "jaxkern.image_stages",
    version=1,
    abstract=lambda pixels, *operands, plan: plan.output(pixels),
    impl=_image_stages,
    attributes=stages_attributes,
    cost=lambda pixels, *operands, plan: _stages_cost(plan, pixels.size, nbytes(pixels)),
    platforms=("cpu",),
)

ragged_stages = Op(
    "jaxkern.image_stages_ragged",
    version=1,
    abstract=lambda buffer, *operands, plan, **_: plan.output(buffer),
    impl=_ragged_stages,
    attributes=stages_attributes,
    # An upper bound, as for ragged chains.
    cost=lambda buffer, *operands, plan, max_height, max_width: _stages_cost(
        plan, *[max_height * max_width * plan.channels] * 2
    ),
    platforms=("cpu",),
)


def run_calls(images: Any, calls: Sequence[Call]) -> Any:
    """Run calls on pixels [N, H, W, C], or on a `Ragged` batch."""
    # The CPU runs stages in one call, even without a chain, since the op of programs works in
    # place, and XLA would first copy a batch that the caller still holds. Other platforms have
    # kernels for a chain and for a program only.
    on_cpu = jax.default_backend() == "cpu"
    for plan, operands in calls:
        if isinstance(images, Ragged):
            images = _run_ragged(images, plan, operands)
        elif isinstance(plan, ChainPlan):
            images = chain(jnp.asarray(images), *operands, batch_dims=1, plan=plan)
        elif plan.chains or on_cpu:
            images = stages(jnp.asarray(images), *operands, batch_dims=1, plan=plan)
        else:
            static = {"steps": plan.steps, "channels": plan.channels}
            images = program(jnp.asarray(images), *operands[5:], batch_dims=1, **static)
    return images


def _run_ragged(images: Ragged, plan: ChainPlan | StagesPlan, operands: Sequence[Any]) -> Any:
    """Run one call; the buffer is an operand shared by all samples."""
    call = ragged_chain if isinstance(plan, ChainPlan) else ragged_stages
    static = {"plan": plan, "max_height": images.max_height, "max_width": images.max_width}
    arrays = (images.buffer[None], images.offset, images.height, images.width, *operands)
    return call(*arrays, batch_dims=1, **static)
