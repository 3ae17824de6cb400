"""Splits a list of transforms into passes over a batch: native calls, and JAX code between them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.core.axes import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.image import ops
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Dtype, Layout
from jaxkern.image.stages import StagesBuilder
from jaxkern.image.transforms.transform import Kind, Transform

Steps = list[tuple[Transform, dict[str, Any]]]


@dataclasses.dataclass
class BatchPass:
    """One native call on a batch, and the JAX code that follows it.

    `size` and `layout` are those after the call; then follow a change of the number of channels,
    `functions` (transforms of the kind "jax") or `mixes` (of the kind "batch").
    """

    stages: StagesBuilder
    size: tuple[Any, Any]
    layout: Layout = Layout.NHWC
    channels: int | None = None
    functions: Steps = dataclasses.field(default_factory=list)
    mixes: Steps = dataclasses.field(default_factory=list)

    def run(self, pixels: Any, labels: Any, frames: int) -> tuple[Any, Any]:
        """Return the new images and labels; each clip has `frames` consecutive images."""
        pixels = ops.run_stages(pixels, self.stages)
        if self.channels is not None:
            pixels = _with_channels(jnp.asarray(pixels), self.channels)
        for transform, params in self.functions:
            pixels = _map_images(transform, params, jnp.asarray(pixels))
        for transform, params in self.mixes:
            pixels, labels = _mix(transform, params, pixels, labels, self.size, self.layout, frames)
        return pixels, labels


def passes(steps: Steps, chain: ChainBuilder, dtype: Dtype, layout: Layout) -> Iterator[BatchPass]:
    """Yield the passes of transforms; `dtype` and `layout` are those of the last pass's output."""
    groups = _group(_linear_first(_expand(steps, chain.size)))
    stages = StagesBuilder(chain.channels, chain.source_dtype)
    for index, (fused, kind, others) in enumerate(groups):
        last = index == len(groups) - 1
        for transform, params in fused:
            transform.fold(chain, params)
        if kind in ("program", "jax"):
            stages.chain(chain.finish_rounded())
            rounded, channels, size = chain.rounded_dtype, chain.channels, chain.size
            if kind == "jax":
                yield BatchPass(stages, size, functions=others)
                stages, others = StagesBuilder(channels, rounded), []
            for transform, params in others:
                stages.program(functools.partial(transform.program, size=size), params)
                if transform.output_channels(channels) != channels:
                    channels = transform.output_channels(channels)
                    yield BatchPass(stages, size, channels=channels)
                    stages = StagesBuilder(channels, rounded)
            chain = chain.following(channels, rounded)
            continue
        order = layout if last else Layout.NHWC
        stages.chain(chain.finish(dtype, order) if last else chain.finish_open())
        yield BatchPass(stages, chain.size, order, mixes=others)
        if not last:
            chain = chain.following(chain.channels, Dtype.F32)
            stages = StagesBuilder(chain.channels, Dtype.F32)


def _expand(steps: Steps, size: Any) -> Steps:
    """Replace each transform by its parts; `size` is that before the first one."""
    if all(type(transform).parts is Transform.parts for transform, _ in steps):
        return steps
    expanded: Steps = []
    for transform, params in steps:
        expanded += transform.parts(params, size)
        size = transform.size_after(size, params)
    return expanded


def _linear_first(steps: Steps) -> Steps:
    """Move Normalize and ToDtype(float) before mixes, with which they commute."""
    ordered: Steps = []
    for step in steps:
        index = len(ordered)
        while step[0].linear and index > 0 and ordered[index - 1][0].kind == "batch":
            index -= 1
        ordered.insert(index, step)
    return ordered


def _group(steps: Steps) -> list[tuple[Steps, Kind, Steps]]:
    """Group each fused chain with transforms of another kind; the last ends with chain or mixes."""
    groups: list[tuple[Steps, Kind, Steps]] = [([], "chain", [])]
    for step in steps:
        fused, kind, others = groups[-1]
        if step[0].kind == "chain" and kind == "chain":
            fused.append(step)
        elif step[0].kind == "chain":
            groups.append(([step], "chain", []))
        elif kind in ("chain", step[0].kind):
            groups[-1] = (fused, step[0].kind, [*others, step])
        else:
            groups.append(([], step[0].kind, [step]))
    if groups[-1][1] in ("program", "jax"):
        groups.append(([], "chain", []))
    return groups


def _with_channels(pixels: jax.Array, channels: int) -> jax.Array:
    if channels == 1:
        return pixels[..., :1]
    return jnp.broadcast_to(pixels, (*pixels.shape[:-1], channels))


def _map_images(transform: Transform, params: dict[str, Any], pixels: jax.Array) -> jax.Array:
    """Map the JAX function of a transform over images [N, H, W, C] u8 or f32."""
    levels = pixels.dtype == jnp.uint8
    arrays = {name: jnp.asarray(value) for name, value in params.items()}
    # A number, or an array [1, ...], is shared by all images.
    shared = {name for name, x in arrays.items() if x.ndim == 0 or x.shape[0] != len(pixels)}
    arrays = {name: x[0] if name in shared and x.ndim else x for name, x in arrays.items()}
    axes = {name: None if name in shared else 0 for name in arrays}

    def one(image: jax.Array, of_image: dict[str, Any]) -> jax.Array:
        unit = image.astype(jnp.float32) / 255.0 if levels else image
        result = jnp.asarray(transform.transform(unit, of_image))
        if result.shape != image.shape:
            raise ValueError(
                f"{transform!r}.transform: expected shape {image.shape}, got {result.shape}"
            )
        if levels:
            positive = jnp.where(result > 0.0, result, 0.0)  # NaN becomes 0
            return jnp.round(jnp.minimum(positive, 1.0) * 255.0).astype(jnp.uint8)
        return result.astype(jnp.float32)

    values = [pixels, *arrays.values()]
    function = jax.vmap(one, in_axes=(0, axes))
    spec = batch_sharding(values, pixels.ndim)
    result: jax.Array = in_auto_mode(function, spec, explicit_axes(values))(pixels, arrays)
    return result


def _mix(
    transform: Transform,
    params: dict[str, Any],
    pixels: Any,
    labels: Any,
    size: tuple[Any, Any],
    layout: Layout,
    frames: int,
) -> tuple[Any, Any]:
    lam, box, share = transform.mixture(params, size)
    pixels = jnp.asarray(pixels)
    pixels = ops.run_mix(pixels, _roll(pixels, frames), lam, box, layout)
    if labels is not None:
        share = jnp.asarray(share, labels.dtype)[::frames, None]
        labels = share * labels + (1 - share) * _roll(labels, 1)
    return pixels, labels


def _roll(values: Any, count: int) -> Any:
    """Roll the global batch by `count` samples, also across shards."""
    roll = in_auto_mode(
        lambda x: jnp.roll(x, count, axis=0), jax.typeof(values).sharding, explicit_axes([values])
    )
    return roll(values)
