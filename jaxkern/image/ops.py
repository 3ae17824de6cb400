"""The image domain's ops: each runs one call over a batch of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxkern.image import twin
from jaxkern.image.plan import Layout, Operands, Plan


def _call(function: Callable[..., Any], operands: tuple[Any, ...], **static: Any) -> Any:
    """Maps a one-sample function over batches; an operand with batch size 1 is shared."""
    sizes = {operand.shape[0] for operand in operands}
    batch = next((size for size in sizes if size != 1), 1)
    axes = tuple(None if operand.shape[0] != batch else 0 for operand in operands)
    operands = tuple(
        operand[0] if axis is None else operand
        for operand, axis in zip(operands, axes, strict=True)
    )
    return jax.vmap(lambda *sample: function(*sample, **static), axes)(*operands)


def image_chain(pixels: jax.Array, operands: Operands, plan: Plan) -> jax.Array:
    """Runs a plan over pixels [N, H, W, C]."""
    return _call(twin.image_chain, (pixels, *operands), plan=plan)


def ragged_chain(
    buffer: Any,
    offset: Any,
    height: Any,
    width: Any,
    operands: Operands,
    plan: Plan,
    max_height: int,
    max_width: int,
) -> jax.Array:
    """Runs a plan over the N images that lie in a flat buffer u8 [B]."""
    return _call(
        twin.ragged_chain,
        (buffer[None], offset, height, width, *operands),
        plan=plan,
        max_height=max_height,
        max_width=max_width,
    )


def mix(x: jax.Array, partner: jax.Array, lam: Any, box: Any, layout: Layout) -> jax.Array:
    """Mixes two batches of images, lam f32 [N or 1] and box i32 [N or 1, 4]."""
    return _call(twin.mix, (x, partner, lam, box), layout=layout)
