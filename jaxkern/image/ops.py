"""Ops of the image domain: chains, programs and stages, dense and ragged, and mixing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.axes import nbytes
from jaxkern.core.declaration import Cost
from jaxkern.core.op import Op
from jaxkern.image.chain import twin
from jaxkern.image.chain.plan import ChainPlan, Filter, Layout
from jaxkern.image.program import program_twin
from jaxkern.image.program.program import INTERPOLATIONS, ProgramStep, Step, program_operands
from jaxkern.image.ragged import Ragged
from jaxkern.image.stages import StagesBuilder, StagesPlan, image_stages
from jaxkern.image.stages import ragged_stages as ragged_image_stages

_Struct = jax.ShapeDtypeStruct

# Multiplies and adds per value of a segment's output: one affine, and the taps of two passes.
_FLOPS = {
    **{Filter.NONE: 2, Filter.NEAREST: 2, Filter.BILINEAR: 10, Filter.ANTIALIAS: 18},
    **dict.fromkeys((Filter.BICUBIC, Filter.BICUBIC_LEVELS), 18),
    **dict.fromkeys((Filter.BICUBIC_ANTIALIAS, Filter.BICUBIC_ANTIALIAS_LEVELS), 34),
}


def plan_attributes(plan: ChainPlan, **_: Any) -> dict[str, Any]:
    """Return the attributes of a chain's call: its structure, without any sample's parameters."""
    rows = plan.segments
    return {
        "filter": np.asarray([s.sampling for s in rows], np.int32),
        "size": np.asarray([(s.height, s.width) for s in rows], np.int32).reshape(-1),
        "erasures": np.asarray([s.erasures for s in rows], np.int32),
        "rounding": np.asarray([s.rounding for s in rows], np.int32),
        "layout": np.int32(plan.layout),
    }


def _chain_flops(plan: ChainPlan) -> int:
    return sum(_FLOPS[s.filter] * s.height * s.width * plan.channels for s in plan.segments)


def _chain_cost(plan: ChainPlan, pixels: int) -> Cost:
    return Cost(flops=_chain_flops(plan), bytes=pixels + nbytes(plan.output()))


chain = Op(
    "jaxkern.image_chain",
    version=1,
    abstract=lambda pixels, *parameters, plan: plan.output(),
    impl=twin.image_chain,
    attributes=plan_attributes,
    cost=lambda pixels, *parameters, plan: _chain_cost(
        plan, pixels.size * np.dtype(pixels.dtype).itemsize
    ),
)

ragged_chain = Op(
    "jaxkern.image_chain_ragged",
    version=1,
    abstract=lambda buffer, *parameters, plan, max_height, max_width: plan.output(),
    impl=twin.ragged_chain,
    attributes=plan_attributes,
    # An upper bound: the sizes of images are known at run time only.
    cost=lambda buffer, *parameters, plan, max_height, max_width: _chain_cost(
        plan, max_height * max_width * plan.channels
    ),
)

mix = Op(
    "jaxkern.image_mix",
    version=1,
    abstract=lambda x, partner, lam, box, *, layout: _Struct(x.shape, x.dtype),
    impl=twin.mix,
    attributes=lambda layout: {"layout": np.int32(layout)},
    cost=lambda x, partner, lam, box, *, layout: Cost(
        flops=3 * x.size, bytes=3 * x.size * np.dtype(x.dtype).itemsize
    ),
    aliases={0: 0},
)

# Operations per value for one step of a program; the number is a blend's.
_PROGRAM_FLOPS = 8


def _program_attributes(steps: tuple[ProgramStep, ...], channels: int, **_: Any) -> dict[str, Any]:
    fill = [step.channel_fill(channels) for step in steps]
    return {
        "codes": np.asarray([step.mask for step in steps], np.int32),
        "interpolation": np.asarray(
            [INTERPOLATIONS.index(step.interpolation) for step in steps], np.int32
        ),
        "kernel": np.asarray([step.kernel for step in steps], np.int32).reshape(-1),
        "fill": np.asarray(fill, np.float32).reshape(-1),
    }


program = Op(
    "jaxkern.image_program",
    version=1,
    abstract=lambda images, op, values, *, steps, channels: _Struct(images.shape, images.dtype),
    impl=lambda images, op, values, *, steps, channels: program_twin.image_program(
        images, op, values, steps=steps
    ),
    attributes=_program_attributes,
    cost=lambda images, op, values, *, steps, channels: Cost(
        flops=_PROGRAM_FLOPS * len(steps) * images.size,
        bytes=2 * images.size * np.dtype(images.dtype).itemsize,
    ),
    aliases={0: 0},
)


def stages_attributes(plan: StagesPlan, **_: Any) -> dict[str, Any]:
    """Return the attributes of a call of stages: their structure, without any parameters."""
    chains = [plan_attributes(chain) for chain in plan.chains]
    empty, counts = np.zeros(0, np.int32), [stage.chain for stage in plan.stages]
    joined = {
        name: np.concatenate([empty, *(chain[name] for chain in chains)])
        for name in ("filter", "size", "erasures", "rounding")
    }
    program = _program_attributes(plan.steps, plan.channels)
    program["warp_fill"] = program.pop("fill")
    lengths = {
        "segments": [0 if chain is None else len(chain.segments) for chain in counts],
        "steps": [len(stage.steps) for stage in plan.stages],
        "dtype": [plan.source_dtype if c is None else c.output_dtype for c in counts],
    }
    return {
        **joined,
        **program,
        **{name: np.asarray(values, np.int32) for name, values in lengths.items()},
        "layout": np.int32(plan.chains[-1].layout if chains else Layout.NHWC),
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
    impl=image_stages,
    attributes=stages_attributes,
    cost=lambda pixels, *operands, plan: _stages_cost(plan, pixels.size, nbytes(pixels)),
    platforms=("cpu",),
)

ragged_stages = Op(
    "jaxkern.image_stages_ragged",
    version=1,
    abstract=lambda buffer, *operands, plan, max_height, max_width: plan.output(buffer),
    impl=ragged_image_stages,
    attributes=stages_attributes,
    # An upper bound, as for ragged chains.
    cost=lambda buffer, *operands, plan, max_height, max_width: _stages_cost(
        plan, *[max_height * max_width * plan.channels] * 2
    ),
    platforms=("cpu",),
)


def run_stages(images: Any, builder: StagesBuilder) -> Any:
    """Run stages on pixels [N, H, W, C], or on a `Ragged` batch."""
    # The CPU runs them in one call, even without a chain, since the op of programs works in place,
    # and XLA would first copy a batch that the caller still holds. Other platforms have kernels for
    # a chain and for a program only.
    on_cpu = jax.default_backend() == "cpu"
    for plan, operands in builder.calls(together=on_cpu):
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


def run_mix(x: jax.Array, partner: jax.Array, lam: Any, box: Any, layout: Layout) -> Any:
    """Mix two batches of images with lam f32 [N or 1] and box i32 [N or 1, 4]."""
    return mix(x, partner, lam, box, batch_dims=1, layout=layout)


def run_program(images: jax.Array, steps: Sequence[Step]) -> jax.Array:
    """Run steps in order on images [N, H, W, C] u8 or f32."""
    op, values, fixed = program_operands(steps)
    static = {"steps": fixed, "channels": images.shape[-1]}
    result: jax.Array = program(images, op, values, batch_dims=1, **static)
    return result
