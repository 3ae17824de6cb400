"""A list of transforms as one augmentation: sampled per record, applied in one fused call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.explicit import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.core.integers import to_int32
from jaxkern.image import checks, ops
from jaxkern.image.axis import is_static
from jaxkern.image.batch import (
    canonical,
    checked_images,
    checked_labels,
    checked_parameters,
    is_single_key,
)
from jaxkern.image.fold import ChainBuilder
from jaxkern.image.plan import MAX_SIZE, Dtype, Layout, dtype_code
from jaxkern.image.program import Step
from jaxkern.image.ragged import Ragged
from jaxkern.image.transform import Stage, Transform
from jaxkern.image.values import Normalize, ToDtype

Params = tuple[dict[str, Any], ...]
_Steps = list[tuple[Transform, dict[str, Any]]]


class Compose:
    """Applies transforms in order to batches [N, H, W, C] (or `Ragged`), fused where possible.

    Values: u8 images are levels 0..255 until a ToDtype(float, scale=True), a Normalize or a float
    output makes them x / 255 (`scale=False` keeps the levels in the last two cases). Pad, crop
    and erase constants are in the value space at their place in the chain. Between transforms
    values are float32 and are rounded only by ToDtype(uint8) and by a uint8 output; u8 levels also
    before and after each colour and warp, as torchvision rounds them.

    Args:
      transforms: the transforms, at least one.
      dtype: of the output: uint8, float16, bfloat16 or float32. None: what the last ToDtype says;
        else float32 where a Normalize meets u8 images; else the images' own dtype.
      layout: of the output, "NHWC" or "NCHW".
      scale: whether u8 levels become x / 255 where a float image is implied.
    Raises: TypeError for what is no transform or dtype; ValueError for an empty list or layout.

    >>> import numpy as np
    >>> from jaxkern.image import CenterCrop, Compose, Normalize
    >>> images = np.zeros((2, 32, 32, 3), np.uint8)
    >>> Compose([CenterCrop(24), Normalize(0.5, 0.5)]).apply(images, ({}, {})).shape
    (2, 24, 24, 3)
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        dtype: Any = None,
        layout: str = "NHWC",
        scale: bool = True,
    ) -> None:
        if isinstance(transforms, Transform) or not isinstance(transforms, Iterable):
            raise TypeError(f"transforms is {transforms!r}; wanted a list of transforms")
        self.transforms = tuple(transforms)
        for place, transform in enumerate(self.transforms):
            if not isinstance(transform, Transform):
                raise TypeError(
                    f"transforms[{place}] is {transform!r}; wanted a transform of jaxkern.image"
                )
        if not self.transforms:
            raise ValueError("transforms is empty; wanted at least one transform")
        self.dtype = None if dtype is None else ToDtype(dtype).dtype
        self.layout = checks.choice(layout, "layout", ("NHWC", "NCHW"))
        self.scale = bool(scale)

    def __repr__(self) -> str:
        listed = "".join(f"\n  {transform!r}," for transform in self.transforms)
        dtype = None if self.dtype is None else self.dtype.name
        return f"Compose([{listed}\n], dtype={dtype}, layout={self.layout!r}, scale={self.scale})"

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of the output, or None where it depends on the images."""
        height, width = self._sizes((None, None))[-1]
        if height is None or width is None:
            return None
        return int(height), int(width)

    def eval(self) -> Compose:
        """The same chain without randomness.

        RandomResizedCrop becomes a resize of the shorter side to size * 256 / 224 and a central
        crop, RandomCrop a central crop; flips, erasing and mixing are dropped.

        >>> from jaxkern.image import Compose, RandomHorizontalFlip, RandomResizedCrop
        >>> Compose([RandomResizedCrop(224), RandomHorizontalFlip()]).eval().output_size
        (224, 224)
        """
        kept = [step for transform in self.transforms for step in transform.eval()]
        return Compose(kept or [_Identity()], self.dtype, self.layout, self.scale)

    def sample(self, keys: Any, size: Any) -> Params:
        """Draws each image's parameters: a tuple of one dict of [N] arrays a transform.

        What an image gets depends on its key and the transform's position only (mixing apart:
        without per_sample it draws once, from the first key).

        Args:
          keys: [N] keys, new-style or uint32 [N, 2]; see jaxkern.random.record_keys.
          size: (height, width) as ints or as int32 arrays [N], or a `Ragged` batch.
        Raises: TypeError for what is no key array; ValueError for a single key or bad sizes.

        >>> import jax
        >>> from jaxkern.image import Compose, RandomHorizontalFlip
        >>> keys = jax.random.split(jax.random.key(0), 4)
        >>> Compose([RandomHorizontalFlip()]).sample(keys, (8, 8))[0]["flip"].shape
        (4,)
        """
        if is_single_key(keys):
            raise ValueError("keys holds one key; wanted one per image: jax.random.split(key, N)")
        height, width = _checked_size(size, keys.shape[0])
        arrays = (keys, *(side for side in (height, width) if not is_static(side)))

        def draw(keys: Any, *sides: Any) -> Params:
            given = iter(sides)
            start = (side if is_static(side) else next(given) for side in (height, width))
            return self._drawn(keys, tuple(start))

        # XLA places what is inside: vmap and single keys need not follow Explicit mode's rules.
        draw = in_auto_mode(draw, batch_sharding(arrays, 1), explicit_axes(arrays))
        return tuple(draw(*arrays))

    def _drawn(self, keys: Any, start: Any) -> Params:
        drawn: list[dict[str, Any]] = []
        for place, (transform, at) in enumerate(
            zip(self.transforms, self._sizes(start), strict=False)
        ):
            if not transform.parameters:
                drawn.append({})
            else:
                sampled = _sample_each if transform.per_sample else _sample_once
                drawn.append(sampled(transform, keys, place, at))
        return tuple(drawn)

    def apply(self, images: Any, params: Params | None = None, labels: Any = None) -> Any:
        """Applies the chain with given parameters; deterministic.

        Args:
          images: [N, H, W, C] u8, f16, bf16 or f32 with C = 1, 3 or 4; or a `Ragged` batch.
          params: as from `sample`; a Python or NumPy scalar stands for all images. None where no
            transform has parameters, as after `eval()`.
          labels: one-hot float [N, classes], or None.
        Returns:
          The images [N, h, w, C] (NCHW: [N, C, h, w]); with labels a pair (images, soft labels),
          where labels are as given if the chain does not mix.
        Raises: TypeError or ValueError that names the argument, at trace time.

        >>> import numpy as np
        >>> from jaxkern.image import Compose, RandomHorizontalFlip
        >>> images = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
        >>> Compose([RandomHorizontalFlip()]).apply(images, ({"flip": True},)).tolist()
        [[[[1], [0]], [[3], [2]]]]
        """
        images = canonical(images)
        batch = checked_images(images)
        steps = list(
            zip(
                self.transforms,
                checked_parameters(self.transforms, params, batch.images),
                strict=True,
            )
        )
        if labels is not None:
            labels = checked_labels(labels, batch.images)
        output_dtype = self._output_dtype(batch.dtype)
        layout = Layout[self.layout]
        chain = ChainBuilder(batch.height, batch.width, batch.channels, batch.dtype, self.scale)
        groups = _grouped(_linear_first(_spread(steps, chain.size)))
        pixels = images
        for place, (fused, stage, between) in enumerate(groups):
            last = place == len(groups) - 1
            for transform, given in fused:
                transform._fold(chain, given)
            if stage == "program":
                folded = chain.finish_rounded()
            else:
                folded = chain.finish(output_dtype, layout) if last else chain.finish_open()
            if folded is not None:
                plan, operands = folded
                pixels = _run(pixels, operands, plan)
            if stage == "program":
                pixels = _run_programs(between, pixels, chain.size)
                chain = chain.following(int(pixels.shape[-1]), chain.rounded_dtype)
                continue
            group_layout = layout if last else Layout.NHWC
            size = chain.size
            for transform, given in between:
                pixels, labels = _mix(transform, given, pixels, labels, size, group_layout)
            if not last:
                chain = chain.following(chain.channels, Dtype.F32)
        pixels = pixels if isinstance(pixels, jax.Array) else jnp.asarray(pixels)
        return pixels if labels is None else (pixels, labels)

    def __call__(self, key_or_keys: Any, images: Any, labels: Any = None) -> Any:
        """Samples, then applies; one key is split over the batch, [N] keys are used as they are.

        >>> import jax
        >>> import numpy as np
        >>> from jaxkern.image import Compose, RandomCrop
        >>> images = np.zeros((2, 8, 8, 3), np.uint8)
        >>> Compose([RandomCrop(4)])(jax.random.key(0), images).shape
        (2, 4, 4, 3)
        """
        images = canonical(images)
        batch = checked_images(images)
        keys = key_or_keys
        if is_single_key(keys):
            keys = jax.random.split(keys, batch.images)
        elif keys.shape[0] != batch.images:
            raise ValueError(f"keys holds {keys.shape[0]} keys and the batch {batch.images} images")
        return self.apply(images, self.sample(keys, (batch.height, batch.width)), labels)

    def _sizes(self, size: Any) -> list[Any]:
        """The size before each transform, and after the last."""
        sizes = [size]
        for transform in self.transforms:
            sizes.append(transform.output_size(sizes[-1]))
        return sizes

    def _output_dtype(self, source: Dtype) -> Dtype:
        result: Dtype | None = source if self.dtype is None else dtype_code(self.dtype)
        if self.dtype is None:
            for transform in self.transforms:
                if isinstance(transform, ToDtype):
                    result = dtype_code(transform.dtype)
                elif isinstance(transform, Normalize) and result is Dtype.U8:
                    result = Dtype.F32
        assert result is not None
        return result


class _Identity(Transform):
    """Changes nothing; what is left of a chain that was all random."""

    def __repr__(self) -> str:
        return "Identity()"

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        pass


def _checked_size(size: Any, count: int) -> tuple[Any, Any]:
    if isinstance(size, Ragged):
        size = canonical(size)
        size = (size.height, size.width)
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"size={size!r}; wanted (height, width) or a Ragged batch")
    checked: list[Any] = []
    for name, side in zip(("height", "width"), size, strict=True):
        if isinstance(side, int | np.integer) and not isinstance(side, bool):
            if not 1 <= side <= MAX_SIZE:
                raise ValueError(f"{name}={side}; wanted 1 to 2**24")
            checked.append(int(side))
        elif hasattr(side, "shape") and side.shape == (count,) and side.dtype.kind in "iu":
            checked.append(jnp.asarray(to_int32(side, name)))
        else:
            raise ValueError(f"{name}={side!r}; wanted an integer, or an integer array [{count}]")
    return checked[0], checked[1]


def _sample_each(transform: Transform, keys: Any, place: int, size: Any) -> dict[str, Any]:
    def one(key: Any, *sides: Any) -> dict[str, Any]:
        return transform.sample(jax.random.fold_in(key, place), sides)

    axes = tuple(None if is_static(side) else 0 for side in size)
    if all(axis is None for axis in axes):
        return dict(jax.vmap(lambda key: one(key, *size))(keys))
    return dict(jax.vmap(one, (0, *axes))(keys, *size))


def _sample_once(transform: Transform, keys: Any, place: int, size: Any) -> dict[str, Any]:
    if not is_static(*size):
        raise ValueError(
            f"{transform!r} mixes images of different sizes; resize or crop them to one size first"
        )
    count = keys.shape[0]
    if count == 0:
        return _sample_each(transform, keys, place, size)
    drawn = transform.sample(jax.random.fold_in(keys[0], place), size)
    return {name: jnp.broadcast_to(value, (count,)) for name, value in drawn.items()}


def _spread(steps: _Steps, size: Any) -> _Steps:
    """What each transform is made of; `size` is that before the first."""
    if all(type(transform)._spread is Transform._spread for transform, _ in steps):
        return steps
    spread: _Steps = []
    for transform, given in steps:
        spread += transform._spread(given, size)
        size = transform.output_size(size)
    return spread


def _linear_first(steps: _Steps) -> _Steps:
    """Moves Normalize and ToDtype(float) before mixes, with which they commute."""
    ordered: _Steps = []
    for step in steps:
        place = len(ordered)
        while step[0].linear and place > 0 and ordered[place - 1][0].stage == "batch":
            place -= 1
        ordered.insert(place, step)
    return ordered


def _grouped(steps: _Steps) -> list[tuple[_Steps, Stage, _Steps]]:
    """The transforms of one fused chain, then those of one other stage that follow it.

    The last group ends in a chain, or in mixes of its output.
    """
    groups: list[tuple[_Steps, Stage, _Steps]] = [([], "image", [])]
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


def _run(images: Any, operands: Any, plan: Any) -> Any:
    if not isinstance(images, Ragged):
        return ops.run_chain(jnp.asarray(images), operands, plan)
    return ops.run_ragged(images, operands, plan)


def _run_programs(steps: _Steps, pixels: Any, size: tuple[int, int]) -> jax.Array:
    """Neighbouring programs in one call, but where the number of channels changes."""
    pixels = jnp.asarray(pixels)
    waiting: list[Step] = []
    for transform, given in steps:
        waiting += transform._program(given, size)
        channels = transform._channels(int(pixels.shape[-1]))
        if channels != pixels.shape[-1]:
            pixels, waiting = ops.run_program(pixels, waiting), []
            if channels == 1:
                pixels = pixels[..., :1]
            else:
                pixels = jnp.broadcast_to(pixels, (*pixels.shape[:-1], channels))
    return ops.run_program(pixels, waiting)


def _mix(
    transform: Transform,
    params: dict[str, Any],
    pixels: Any,
    labels: Any,
    size: tuple[Any, Any],
    layout: Layout,
) -> tuple[Any, Any]:
    lam, box, share = transform._mixture(params, size)
    pixels = jnp.asarray(pixels)
    pixels = ops.run_mix(pixels, _partner(pixels), lam, box, layout)
    if labels is not None:
        share = jnp.asarray(share, labels.dtype)[:, None]
        labels = share * labels + (1 - share) * _partner(labels)
    return pixels, labels


def _partner(values: Any) -> Any:
    """The batch rolled by one: between shards, whose last sample goes to the next one."""
    roll = in_auto_mode(
        lambda x: jnp.roll(x, 1, axis=0), jax.typeof(values).sharding, explicit_axes([values])
    )
    return roll(values)
