"""The image domain's ops, declared: a chain over dense or ragged images, and mixing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.cost import Cost
from jaxkern.core.op import Op
from jaxkern.image import pillow, program_twin, twin
from jaxkern.image.plan import ChainPlan, Filter, Layout, Operands
from jaxkern.image.program import INTERPOLATIONS, ProgramStep, Step, program_operands

_Struct = jax.ShapeDtypeStruct

# Multiplies and adds a value of a segment's output: one affine, and the taps of two passes.
_FLOPS = {Filter.NONE: 2, Filter.NEAREST: 2, Filter.BILINEAR: 10, Filter.ANTIALIAS: 18}


def plan_attributes(plan: ChainPlan, **_: Any) -> dict[str, Any]:
    """The attributes of a chain's call: its structure, nothing of a sample."""
    rows = plan.segments
    return {
        "filter": np.asarray([s.filter for s in rows], np.int32),
        "size": np.asarray([(s.height, s.width) for s in rows], np.int32).reshape(-1),
        "erasures": np.asarray([s.erasures for s in rows], np.int32),
        "rounding": np.asarray([s.rounding for s in rows], np.int32),
        "layout": np.int32(plan.layout),
    }


def _chain_cost(plan: ChainPlan, pixels: int) -> Cost:
    values = [s.height * s.width * plan.channels for s in plan.segments]
    flops = sum(_FLOPS[s.filter] * n for s, n in zip(plan.segments, values, strict=True))
    item = np.dtype(plan.output().dtype).itemsize
    return Cost(flops=flops, bytes=pixels + values[-1] * item)


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
    # At most: how much of an image is there is known at run time only.
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

# Values that an operation of a program takes for each of the image's: of the order of a blend.
_PROGRAM_FLOPS = 8


def _program_attributes(steps: tuple[ProgramStep, ...], channels: int, **_: Any) -> dict[str, Any]:
    fill = [step.fill_of(channels) for step in steps]
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

decode_jpeg = Op(
    "jaxkern.image_decode_jpeg",
    version=1,
    abstract=lambda buffer, begin, end, *, height, width, channels, **_: (
        _Struct((height, width, channels), np.uint8),
        _Struct((2,), np.int32),
    ),
    impl=pillow.decode_jpeg,
    attributes=lambda max_pixels, denominator, mask, **_: {
        "max_pixels": np.int64(max_pixels),
        "denominator": np.int32(denominator),
        "mask": np.bool_(mask),
    },
    # How many bytes an image has is known at run time only.
    cost=lambda buffer, begin, end, *, height, width, channels, **_: Cost(
        flops=None, bytes=height * width * channels
    ),
    platforms=("cpu",),
)


def run_chain(pixels: jax.Array, operands: Operands, plan: ChainPlan) -> Any:
    """Runs a plan over pixels [N, H, W, C]."""
    return chain(pixels, *operands, batch_dims=1, plan=plan)


def run_ragged(images: Any, operands: Operands, plan: ChainPlan) -> Any:
    """Runs a plan over a `Ragged` batch; its buffer is one operand for all samples."""
    return ragged_chain(
        images.buffer[None],
        images.offset,
        images.height,
        images.width,
        *operands,
        batch_dims=1,
        plan=plan,
        max_height=images.max_height,
        max_width=images.max_width,
    )


def run_mix(x: jax.Array, partner: jax.Array, lam: Any, box: Any, layout: Layout) -> Any:
    """Mixes two batches of images, lam f32 [N or 1] and box i32 [N or 1, 4]."""
    return mix(x, partner, lam, box, batch_dims=1, layout=layout)


def run_program(images: jax.Array, steps: Sequence[Step]) -> jax.Array:
    """Runs operations one after the other on images [N, H, W, C] u8 or f32."""
    if not steps:
        return images
    op, values, static = program_operands(steps)
    result: jax.Array = program(
        images, op, values, batch_dims=1, steps=static, channels=images.shape[-1]
    )
    return result
