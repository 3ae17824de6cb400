"""A chain of transforms in passes over a batch: what one native call does, and what follows it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.core.explicit import explicit_axes, in_auto_mode
from jaxkern.image import ops
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Dtype, Layout
from jaxkern.image.stages import StagesBuilder
from jaxkern.image.transforms.transform import Stage, Transform

Steps = list[tuple[Transform, dict[str, Any]]]


@dataclasses.dataclass
class BatchPass:
    """What one native call does to a batch, and what is done to it then.

    Attributes:
      size, layout: of the images behind it.
      channels: to which it is narrowed or widened, None: as it is.
      mixes: of the batch.
    """

    stages: StagesBuilder
    size: tuple[Any, Any]
    layout: Layout = Layout.NHWC
    channels: int | None = None
    mixes: Sequence[tuple[Transform, dict[str, Any]]] = ()

    def run(self, pixels: Any, labels: Any, frames: int) -> tuple[Any, Any]:
        """The images behind it, and their labels; `frames` of them belong together."""
        pixels = ops.run_stages(pixels, self.stages)
        if self.channels is not None:
            pixels = _with_channels(jnp.asarray(pixels), self.channels)
        for transform, given in self.mixes:
            pixels, labels = _mix(transform, given, pixels, labels, self.size, self.layout, frames)
        return pixels, labels


def passes(steps: Steps, chain: ChainBuilder, dtype: Dtype, layout: Layout) -> Iterator[BatchPass]:
    """Transforms with their parameters, on images that `chain` begins with.

    `dtype` and `layout` are those of the last pass's output.
    """
    groups = _grouped(_linear_first(_spread(steps, chain.size)))
    stages = StagesBuilder(chain.channels, chain.source_dtype)
    for place, (fused, stage, between) in enumerate(groups):
        last = place == len(groups) - 1
        for transform, given in fused:
            transform._fold(chain, given)
        if stage == "program":
            stages.chain(chain.finish_rounded())
            made, channels, size = chain.rounded_dtype, chain.channels, chain.size
            for transform, given in between:
                stages.program(functools.partial(transform._program, size=size), given)
                if transform._channels(channels) != channels:
                    channels = transform._channels(channels)
                    yield BatchPass(stages, size, channels=channels)
                    stages = StagesBuilder(channels, made)
            chain = chain.following(channels, made)
            continue
        order = layout if last else Layout.NHWC
        stages.chain(chain.finish(dtype, order) if last else chain.finish_open())
        yield BatchPass(stages, chain.size, order, mixes=between)
        if not last:
            chain = chain.following(chain.channels, Dtype.F32)
            stages = StagesBuilder(chain.channels, Dtype.F32)


def _spread(steps: Steps, size: Any) -> Steps:
    """What each transform is made of; `size` is that before the first."""
    if all(type(transform)._spread is Transform._spread for transform, _ in steps):
        return steps
    spread: Steps = []
    for transform, given in steps:
        spread += transform._spread(given, size)
        size = transform._size_after(size, given)
    return spread


def _linear_first(steps: Steps) -> Steps:
    """Moves Normalize and ToDtype(float) before mixes, with which they commute."""
    ordered: Steps = []
    for step in steps:
        place = len(ordered)
        while step[0].linear and place > 0 and ordered[place - 1][0].stage == "batch":
            place -= 1
        ordered.insert(place, step)
    return ordered


def _grouped(steps: Steps) -> list[tuple[Steps, Stage, Steps]]:
    """The transforms of one fused chain, then those of one other stage that follow it.

    The last group ends in a chain, or in mixes of its output.
    """
    groups: list[tuple[Steps, Stage, Steps]] = [([], "image", [])]
    for step in steps:
        fused, stage, between = groups[-1]
        if step[0].stage == "image" and stage == "image":
            fused.append(step)
        elif step[0].stage == "image":
            groups.append(([step], "image", []))
        elif stage in ("image", step[0].stage):
            groups[-1] = (fused, step[0].stage, [*between, step])
        else:
            groups.append(([], step[0].stage, [step]))
    if groups[-1][1] == "program":
        groups.append(([], "image", []))
    return groups


def _with_channels(pixels: jax.Array, channels: int) -> jax.Array:
    if channels == 1:
        return pixels[..., :1]
    return jnp.broadcast_to(pixels, (*pixels.shape[:-1], channels))


def _mix(
    transform: Transform,
    params: dict[str, Any],
    pixels: Any,
    labels: Any,
    size: tuple[Any, Any],
    layout: Layout,
    frames: int,
) -> tuple[Any, Any]:
    lam, box, share = transform._mixture(params, size)
    pixels = jnp.asarray(pixels)
    pixels = ops.run_mix(pixels, _partner(pixels, frames), lam, box, layout)
    if labels is not None:
        share = jnp.asarray(share, labels.dtype)[::frames, None]
        labels = share * labels + (1 - share) * _partner(labels, 1)
    return pixels, labels


def _partner(values: Any, count: int) -> Any:
    """The batch rolled by one sample of so many: between shards, its last one to the next one."""
    roll = in_auto_mode(
        lambda x: jnp.roll(x, count, axis=0), jax.typeof(values).sharding, explicit_axes([values])
    )
    return roll(values)
