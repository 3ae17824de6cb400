"""A list of transforms as one augmentation: parameters are sampled per image, then applied."""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core import compat
from jaxkern.core.arguments import check_integer, to_integers
from jaxkern.core.axes import on_batch
from jaxkern.image import ops
from jaxkern.image.chain.axis import is_static
from jaxkern.image.chain.fold import ChainBuilder, sizes_differ
from jaxkern.image.chain.plan import MAX_SIZE, Dtype, Layout, checked_dtype
from jaxkern.image.compose.batch import (
    canonicalize,
    checked_images,
    checked_labels,
    checked_parameters,
    float_to_uint16,
    frame_parameters,
    is_single_key,
    is_uint16,
    split_clips,
    uint16_to_float,
)
from jaxkern.image.compose.targets import (
    FIELDS,
    applied_transforms,
    apply_to_fields,
    batch_count,
    boxes_after,
    check_fields,
    checked_boxes,
    checked_formats,
)
from jaxkern.image.parameters.per_image import per_image
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.transform import Kind, Params, Parts, Transform, check_transforms
from jaxkern.image.transforms.values import Normalize, ToDtype

Draws = tuple[Params, ...]  # of each transform of a chain


class BatchPass(NamedTuple):
    """Native calls on a batch, the layout after them, and JAX code that follows them.

    `mixes` has the results of `Transform.mixture`.
    """

    calls: list[ops.Call]
    layout: Layout = Layout.NHWC
    channels: int | None = None
    functions: Sequence[tuple[Transform, Params]] = ()
    mixes: Sequence[tuple[Any, Any, Any]] = ()

    def run(self, pixels: Any, labels: Any, frames: int) -> tuple[Any, Any]:
        pixels = ops.run_calls(pixels, self.calls)
        if self.channels == 1:
            pixels = jnp.asarray(pixels)[..., :1]
        elif self.channels is not None:
            pixels = jnp.broadcast_to(pixels, (*pixels.shape[:-1], self.channels))
        for transform, params in self.functions:
            pixels = _map_images(transform, params, jnp.asarray(pixels))
        for lam, box, share in self.mixes:
            pixels = jnp.asarray(pixels)
            partner = _rolled(pixels, frames)
            pixels = ops.mix(pixels, partner, lam, box, batch_dims=1, layout=self.layout)
            if labels is not None:
                share = jnp.asarray(share, labels.dtype)[::frames, None]
                labels = share * labels + (1 - share) * _rolled(labels, 1)
        return pixels, labels


def _rolled(values: jax.Array, count: int) -> Any:
    """Roll the global batch by `count` samples, also across shards."""
    return on_batch(lambda x: jnp.roll(x, count, axis=0), values.ndim, values)


def passes(aug: Compose, steps: Parts, chain: ChainBuilder, fuse: bool) -> Iterator[BatchPass]:
    """Yield the passes of transforms with their parameters over the images of `chain`.

    With `fuse`, stages are combined into one call, for the CPU.
    """
    dtype, layout = aug.output_dtype(chain.source_dtype), Layout[aug.layout]
    groups = _group(_linear_first(_expand(steps, chain.size)))
    stages = ops.StagesBuilder(chain.channels, chain.source_dtype)
    for index, (fused, kind, others) in enumerate(groups):
        last = index == len(groups) - 1
        for transform, params in fused:
            transform.fold(chain, params)
        if kind in ("program", "jax"):
            if not is_static(*chain.size):
                raise sizes_differ("a transform")
            rounded = Dtype.U8 if chain.levels else Dtype.F32
            stages.chain(chain.finish(rounded))
            channels, size = chain.channels, chain.size
            if kind == "jax":
                yield BatchPass(stages.calls(fuse), functions=others)
                stages, others = ops.StagesBuilder(channels, rounded), []
            for transform, params in others:
                stages.program(functools.partial(transform.program, size=size), params)
                if transform.output_channels(channels) != channels:
                    channels = transform.output_channels(channels)
                    yield BatchPass(stages.calls(fuse), channels=channels)
                    stages = ops.StagesBuilder(channels, rounded)
            chain = chain.following(channels, rounded)
            continue
        if last:
            stages.chain(chain.finish(dtype, layout))
            yield BatchPass(stages.calls(fuse), layout, mixes=_mixtures(others, chain.size))
            return
        levels = chain.levels  # The next chain reads levels as float32.
        stages.chain(chain.finish(Dtype.F32, scale=False))
        yield BatchPass(stages.calls(fuse), mixes=_mixtures(others, chain.size))
        chain = chain.following(chain.channels, Dtype.F32)
        chain.levels = levels
        stages = ops.StagesBuilder(chain.channels, Dtype.F32)


def _mixtures(steps: Parts, size: Any) -> list[tuple[Any, Any, Any]]:
    return [transform.mixture(params, size) for transform, params in steps]


def _expand(steps: Parts, size: Any) -> Parts:
    """Replace each transform by its parts; `size` is that before the first one."""
    if all(type(transform).parts is Transform.parts for transform, _ in steps):
        return steps
    expanded: Parts = []
    for transform, params in steps:
        expanded += transform.parts(params, size)
        size = transform.size_after(size, params)
    return expanded


def _linear_first(steps: Parts) -> Parts:
    """Move Normalize and ToDtype(float) before mixes, with which they commute."""
    ordered: Parts = []
    for step in steps:
        index = len(ordered)
        while step[0].linear and index > 0 and ordered[index - 1][0].kind == "batch":
            index -= 1
        ordered.insert(index, step)
    return ordered


def _group(steps: Parts) -> list[tuple[Parts, Kind, Parts]]:
    """Group each fused chain with transforms of another kind; the last ends with chain or mixes."""
    groups: list[tuple[Parts, Kind, Parts]] = [([], "chain", [])]
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


def _map_images(transform: Transform, params: Params, pixels: jax.Array) -> jax.Array:
    """Map the JAX function of a transform over images [N, H, W, C] u8 or f32."""
    levels = pixels.dtype == jnp.uint8
    arrays = {name: jnp.asarray(value) for name, value in params.items()}
    # A number, or an array [1, ...], is shared by all images.
    shared = {name for name, x in arrays.items() if x.ndim == 0 or x.shape[0] != len(pixels)}
    arrays = {name: x[0] if name in shared and x.ndim else x for name, x in arrays.items()}
    axes = {name: None if name in shared else 0 for name in arrays}

    def one(image: jax.Array, of_image: Params) -> jax.Array:
        unit = image.astype(jnp.float32) / 255.0 if levels else image
        result = jnp.asarray(transform.transform(unit, of_image))
        if result.shape != image.shape:
            raise ValueError(f"{transform!r}: expected shape {image.shape}, got {result.shape}")
        if levels:
            positive = jnp.where(result > 0.0, result, 0.0)  # NaN becomes 0
            return jnp.round(jnp.minimum(positive, 1.0) * 255.0).astype(jnp.uint8)
        return result.astype(jnp.float32)

    return on_batch(jax.vmap(one, in_axes=(0, axes)), pixels.ndim, pixels, arrays)


def _sample(transforms: Sequence[Transform], keys: Any, boxes: Any, size: Any) -> Draws:
    """Draw a dict of [N] arrays per transform; `boxes` are corners [N, K, 4] and their validity.

    The dicts of transforms that draw once for a batch are empty.
    """
    params: list[Params] = []
    last = max((k for k, t in enumerate(transforms) if t.needs_boxes), default=-1)
    for index, transform in enumerate(transforms):
        own_boxes = boxes if transform.needs_boxes else ()
        own = _is_drawn_per_image(transform, keys.shape[0])
        params.append(_sample_transform(transform, keys, index, size, own_boxes) if own else {})
        if boxes and index < last:
            (applied,) = applied_transforms([transform], params[-1:], size)
            boxes = boxes_after(boxes[0], boxes[1], applied)
        if index + 1 < len(transforms):
            size = transform.size_after(size, params[-1])
    return tuple(params)


def _full(params: Params, count: int) -> Params:
    """Return arrays [N, ...] of arrays [N or 1, ...]."""
    return {
        name: x if x.shape[0] == count else jnp.broadcast_to(x, (count, *x.shape[1:]))
        for name, x in params.items()
    }


def _is_drawn_per_image(transform: Transform, count: int) -> bool:
    return bool(transform.parameters) and (transform.per_sample or count == 0)


def _sample_transform(transform: Transform, keys: Any, index: int, size: Any, boxes: Any) -> Params:
    def one(key: Any, boxes: Any, size: Any) -> Params:
        return transform.sample(jax.random.fold_in(key, index), size, *boxes)

    axes = (0, 0, tuple(None if is_static(side) else 0 for side in size))
    return dict(jax.vmap(one, in_axes=axes)(keys, tuple(boxes), tuple(size)))


def _sample_batch(transforms: Sequence[Transform], keys: Any, size: Any) -> Draws:
    """Draw the parameters of transforms that draw once for a batch, from its first key."""
    count, params, sizes = keys.shape[0], [], [size]
    for transform in transforms[:-1]:
        sizes.append(transform.output_size(sizes[-1]))
    for index, transform in enumerate(transforms):
        drawn: Params = {}
        if transform.parameters and not _is_drawn_per_image(transform, count):
            if not is_static(*sizes[index]):
                raise sizes_differ(repr(transform))
            draw = functools.partial(_sample_transform, transform)
            first = _map_keys(lambda keys: draw(keys, index, sizes[index], ()), keys[:1])  # noqa: B023
            drawn = {name: jnp.broadcast_to(x[:1], (count,)) for name, x in first.items()}
        params.append(drawn)
    return tuple(params)


def _map_keys(fn: Callable[..., Any], keys: Any, *args: Any) -> Any:
    """Return ``per_image(fn, keys, *args)``; arrays of keys are passed as their words."""
    typed = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    if not typed:
        return per_image(fn, keys, *args)
    impl = jax.random.key_impl(keys)

    def of_words(words: Any, *args: Any) -> Any:
        return fn(jax.random.wrap_key_data(words, impl=impl), *args)

    return per_image(of_words, jax.random.key_data(keys), *args)


def _checked_size(size: Any, count: int) -> tuple[Any, ...]:
    if isinstance(size, Ragged):
        size = canonicalize(size)
        size = (size.height, size.width)
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"size: expected (height, width) or a Ragged batch, got {size!r}")
    sides: list[Any] = []
    for name, side in zip(("height", "width"), size, strict=True):
        if hasattr(side, "shape") and side.shape == (count,) and side.dtype.kind in "iu":
            sides.append(jnp.asarray(to_integers(side, name)))
        else:
            sides.append(check_integer(name, side, 1, MAX_SIZE, f", or integers [{count}]"))
    return tuple(sides)


class Compose:
    """Applies transforms in order to batches [N, H, W, C] (or `Ragged`), fused where possible.

    Values: uint8 images are levels 0..255 until a ToDtype(float, scale=True), a Normalize or a
    float output converts them to x / 255 (`scale=False` keeps the levels in the last two cases).
    Constants to pad, crop and erase are in the value space at their position in the chain. Between
    transforms values are float32. They are rounded only by ToDtype(uint8) and a uint8 output;
    uint8 levels also before and after each colour, warp and JAX function, as in torchvision.

    Args:
      transforms: the transforms, at least one.
      dtype: dtype of the output: uint8, uint16, float16, bfloat16 or float32. None uses the dtype
        of the last ToDtype; else float32 if uint8 or uint16 images are normalized; else the
        dtype of the images.
      layout: layout of the output, "NHWC" or "NCHW".
      scale: convert levels to x / 255 where a float image is implied.
      boxes: format of boxes: "xyxy", "xywh" or "cxcywh".
      keypoints: "torchvision", whose flips map x to W - 1 - x and whose other transforms treat x as
        a distance from the edge; or "centers", where integers are pixel centres everywhere.
      mask_fill: label of mask pixels outside the original mask.
    Raises: TypeError for invalid transforms and dtypes; ValueError for an empty list, unknown
    formats and an invalid fill.

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
        *,
        boxes: str = "xyxy",
        keypoints: str = "torchvision",
        mask_fill: float = 0,
    ) -> None:
        self.transforms = check_transforms(transforms)
        names_uint16 = isinstance(dtype, type | np.dtype | str) and dtype in (np.uint16, "uint16")
        self.dtype: np.dtype[Any] | None = np.dtype(np.uint16)
        if not names_uint16:
            self.dtype = None if dtype is None else ToDtype(dtype).dtype
        self.layout = checks.choice("NHWC", "NCHW")(layout, "layout")
        self.scale = bool(scale)
        self.targets = checked_formats(boxes, keypoints, mask_fill)

    def __repr__(self) -> str:
        listed = "".join(f"\n  {transform!r}," for transform in self.transforms)
        dtype = None if self.dtype is None else self.dtype.name
        named = {"dtype": dtype, "layout": self.layout, "scale": self.scale}
        named |= self.targets._asdict()
        return f"Compose([{listed}\n], {', '.join(f'{k}={v!r}' for k, v in named.items())})"

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of the output, or None if it depends on the images."""
        height, width = self.sizes((None, None))[-1]
        return None if height is None or width is None else (int(height), int(width))

    def eval(self) -> Compose:
        """Return the same chain without randomness.

        RandomResizedCrop becomes a resize of the shorter side to size * 256 / 224 and a central
        crop, RandomCrop a central crop; flips, erasing and mixing are dropped.

        >>> from jaxkern.image import Compose, RandomHorizontalFlip, RandomResizedCrop
        >>> Compose([RandomResizedCrop(224), RandomHorizontalFlip()]).eval().output_size
        (224, 224)
        """
        remaining = [step for transform in self.transforms for step in transform.eval()]
        return Compose(
            remaining or [Identity()], self.dtype, self.layout, self.scale, **self.targets._asdict()
        )

    def sample(self, keys: Any, size: Any, boxes: Any = None, boxes_valid: Any = None) -> Draws:
        """Draw each image's parameters: a tuple of one dict of [N] arrays per transform.

        The draws of an image depend only on its key and the transform's position. The exception is
        mixing without per_sample, which draws once from the first key.

        Args:
          keys: [N] keys, new-style or uint32 [N, 2]; see jaxkern.random.record_keys.
          size: (height, width) as ints or as int32 arrays [N], or a `Ragged` batch.
          boxes: [N, K, 4] in the chain's format, and boxes_valid [N, K], for a chain that needs
            them to draw: one with a RandomIoUCrop.
        Raises: TypeError for invalid key arrays; ValueError for a single key, invalid sizes, and
        missing boxes.

        >>> import jax
        >>> from jaxkern.image import Compose, RandomHorizontalFlip
        >>> keys = jax.random.split(jax.random.key(0), 4)
        >>> Compose([RandomHorizontalFlip()]).sample(keys, (8, 8))[0]["flip"].shape
        (4,)
        """
        if is_single_key(keys):
            raise ValueError("keys: expected one key per image, jax.random.split(key, N), got one")
        size = _checked_size(size, keys.shape[0])
        objects: tuple[Any, ...] = ()
        if boxes is not None and any(transform.needs_boxes for transform in self.transforms):
            objects = checked_boxes(boxes, boxes_valid, keys.shape[0], self.targets.boxes)
        transforms = self.transforms

        def draw(keys: Any, objects: Any, size: Any) -> Draws:
            own = _map_keys(functools.partial(_sample, transforms), keys, objects, size)
            own = [_full(params, keys.shape[0]) for params in own]
            of_batch = _sample_batch(transforms, keys, size)
            return tuple(a | b for a, b in zip(own, of_batch, strict=True))

        return tuple(on_batch(draw, 1, keys, objects, size))

    def apply(self, images: Any, params: Draws | None = None, labels: Any = None) -> Any:
        """Apply the chain with the given parameters; deterministic.

        Args:
          images: [N, H, W, C] u8, u16, f16, bf16 or f32 with C = 1, 3 or 4, [N, T, H, W, C] of
            clips, or a `Ragged` batch; or a dict of them as "image", with their targets:
            "mask" [N, H, W] or [N, H, W, M], "boxes" [N, K, 4] and "boxes_valid" [N, K],
            "keypoints" [N, K, 2] and "keypoints_visible" [N, K], "label" instead of `labels`.
          params: as from `sample`; a Python or NumPy scalar applies to all images. None if no
            transform has parameters, as after `eval()`.
          labels: one-hot float [N, classes], or None.

        Returns:
          The images [N, h, w, C] (NCHW: [N, C, h, w]). With labels a pair (images, soft labels);
          labels are unchanged if the chain does not mix. For a dict a dict: boxes and keypoints
          as float32 with their validity and visibility, "image_size" i32 [N, 2] if image sizes
          differ on a canvas, and other fields unchanged.
        Raises: TypeError or ValueError that names the argument, at trace time.

        >>> import numpy as np
        >>> from jaxkern.image import Compose, RandomHorizontalFlip
        >>> images = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
        >>> Compose([RandomHorizontalFlip()]).apply(images, ({"flip": True},)).tolist()
        [[[[1], [0]], [[3], [2]]]]
        """
        if isinstance(images, dict):
            return apply_to_fields(self, images, params, labels, lambda t: Compose(t, np.uint8))
        batch_or_clips = canonicalize(images)
        images, frames = split_clips(batch_or_clips)
        to_uint16 = self._outputs_uint16(images)
        images = uint16_to_float(images, self.scale, self.transforms)
        batch = checked_images(images)
        count = batch.images if frames is None else batch_or_clips.shape[0]
        checked = checked_parameters(self.transforms, params, count)
        steps = [
            (transform, frame_parameters(transform, values, count, frames))
            for transform, values in zip(self.transforms, checked, strict=True)
        ]
        if labels is not None:
            labels = checked_labels(labels, count)

        def fold(values: list[Params], size: tuple[Any, Any]) -> list[BatchPass]:
            chain = ChainBuilder(*size, batch.channels, batch.dtype, self.scale, batch.largest)
            transforms = [transform for transform, _ in steps]
            fuse = jax.default_backend() == "cpu"
            return list(passes(self, list(zip(transforms, values, strict=True)), chain, fuse))

        parts = per_image(fold, [values for _, values in steps], (batch.height, batch.width))
        pixels = images
        for part in parts:
            pixels, labels = part.run(pixels, labels, frames or 1)
        pixels = jnp.asarray(pixels)
        if to_uint16:
            pixels = float_to_uint16(pixels, self.scale)
        if frames is not None:
            pixels = pixels.reshape(count, frames, *pixels.shape[1:])
        return pixels if labels is None else (pixels, labels)

    def __call__(self, key_or_keys: Any, images: Any, labels: Any = None) -> Any:
        """Sample, then apply; one key is split over the batch, [N] keys are used directly.

        `images` and `labels` are as in `apply`; `images` may be a dict of images and targets.

        >>> import jax
        >>> import numpy as np
        >>> from jaxkern.image import Compose, RandomCrop
        >>> images = np.zeros((2, 8, 8, 3), np.uint8)
        >>> Compose([RandomCrop(4)])(jax.random.key(0), images).shape
        (2, 4, 4, 3)
        """
        fields = images if isinstance(images, dict) else {"image": images}
        check_fields(fields, self.transforms)
        mixed = ("label",) if any(t.kind == "batch" for t in self.transforms) else ()
        used = {name: fields[name] for name in (*FIELDS, *mixed) if name in fields}
        jitted = None if compat.is_tracing() else _jitted(self)
        if jitted is None or not _is_jittable([key_or_keys, used, labels]):
            return self._sample_and_apply(key_or_keys, images, labels)
        if not isinstance(images, dict):
            return jitted(key_or_keys, images, labels)
        return fields | jitted(key_or_keys, used, labels)

    def _sample_and_apply(self, key_or_keys: Any, images: Any, labels: Any) -> Any:
        fields = images if isinstance(images, dict) else {"image": images}
        count, size = batch_count(fields["image"])
        keys = key_or_keys
        if is_single_key(keys):
            keys = _split(keys, count)
        elif keys.shape[0] != count:
            raise ValueError(f"keys: expected {count} keys, one per image, got {keys.shape[0]}")
        params = self.sample(keys, size, fields.get("boxes"), fields.get("boxes_valid"))
        return self.apply(images, params, labels)

    def sizes(self, size: Any) -> list[Any]:
        """Return the size before each transform, and after the last."""
        sizes = [size]
        for transform in self.transforms:
            sizes.append(transform.output_size(sizes[-1]))
        return sizes

    def _outputs_uint16(self, images: Any) -> bool:
        """Return True if the output is uint16: by `dtype`, or uint16 images of unchanged dtype."""
        if self.dtype is not None:
            return bool(self.dtype == np.uint16)
        converted = any(isinstance(transform, ToDtype | Normalize) for transform in self.transforms)
        return is_uint16(images) and not converted

    def output_dtype(self, source: Dtype) -> Dtype:
        """Return the dtype of the native output for images of a dtype."""
        if self.dtype is not None:  # Images are converted to uint16 after the chain.
            return Dtype.F32 if self.dtype == np.uint16 else checked_dtype(self.dtype)
        for transform in self.transforms:
            if isinstance(transform, ToDtype):
                source = checked_dtype(transform.dtype)
            elif isinstance(transform, Normalize) and source is Dtype.U8:
                source = Dtype.F32
        return source


def _split(key: Any, count: int) -> Any:
    """Return ``jax.random.split(key, count)``."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    threefry = str(jax.random.key_impl(key)) == "threefry2x32"
    if not threefry or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return jax.random.split(key, count)

    def fold(words: Any, numbers: Any) -> Any:
        keys = jax.random.wrap_key_data(words, impl="threefry2x32")
        # The split of such a key is the fold of the numbers from 0.
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(keys[0], numbers)
        return jax.random.key_data(keys)

    words = jax.random.key_data(key) if typed else key
    split = per_image(fold, words[None], jnp.arange(count, dtype=jnp.uint32))
    return jax.random.wrap_key_data(split, impl="threefry2x32") if typed else split


# The jitted call of each chain, with the settings that it was traced with.
_JITTED: weakref.WeakKeyDictionary[Compose, tuple[tuple[Any, ...], Any]]
_JITTED = weakref.WeakKeyDictionary()


def _jitted(aug: Compose) -> Any:
    """Return the call of a chain as one compiled program; None if its transforms may change."""
    settings = (aug.transforms, aug.dtype, aug.layout, aug.scale, aug.targets)
    cached = _JITTED.get(aug)
    if cached is None or any(a is not b for a, b in zip(cached[0], settings, strict=True)):
        # A subclass may read attributes that are not among these settings.
        frozen = type(aug) is Compose and _is_frozen(aug.transforms)
        function = jax.jit(copy.copy(aug)._sample_and_apply) if frozen else None
        cached = _JITTED[aug] = settings, function
    return cached[1]


def _is_frozen(transforms: Sequence[Transform]) -> bool:
    def is_frozen(transform: Transform) -> bool:
        declared = vars(type(transform)).get("__dataclass_params__")  # not a base class's
        inner = getattr(transform, "transforms", ())
        return declared is not None and declared.frozen and _is_frozen(inner)

    return all(map(is_frozen, transforms))


def _is_jittable(values: Any) -> bool:
    """Return True for arrays that `jax.jit` accepts and does not convert."""

    def accepts(leaf: Any) -> bool:
        if isinstance(leaf, np.ndarray):
            return leaf.dtype.kind in "buifV" and leaf.itemsize <= 4  # V: bfloat16
        return isinstance(leaf, jax.Array)

    return all(map(accepts, jax.tree.leaves(values, is_leaf=lambda x: isinstance(x, Ragged))))


@dataclasses.dataclass(frozen=True)
class Identity(Transform):
    """Replaces a chain if `eval` drops all its transforms."""

    kind = "chain"

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        pass
