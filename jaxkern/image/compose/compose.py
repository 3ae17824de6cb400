"""A list of transforms as one augmentation: sampled per record, applied in one fused call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.explicit import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.core.integers import to_int32
from jaxkern.image.chain.axis import is_static
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import MAX_SIZE, Dtype, Layout, dtype_code
from jaxkern.image.compose.batch import (
    as_frames,
    as_uint16,
    as_unit,
    canonical,
    checked_images,
    checked_labels,
    checked_parameters,
    is_single_key,
    is_uint16,
    of_frames,
)
from jaxkern.image.compose.passes import BatchPass, Steps, passes
from jaxkern.image.compose.targets import (
    checked_boxes,
    checked_fields,
    checked_formats,
    counted,
    move_fields,
    passages,
    passed_boxes,
)
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.transform import Transform
from jaxkern.image.transforms.values import Normalize, ToDtype

Params = tuple[dict[str, Any], ...]


def drawn(transforms: Sequence[Transform], keys: Any, size: Any, objects: Any = ()) -> Params:
    """One dict of [N] arrays a transform, for images of `size`, numbers or [N].

    `objects`: boxes [N, K, 4] (left, top, right, bottom) and whether they are valid.
    """
    found: list[dict[str, Any]] = []
    last = max((k for k, t in enumerate(transforms) if t.needs_boxes), default=-1)
    for place, transform in enumerate(transforms):
        if not transform.parameters:
            found.append({})
        elif transform.per_sample:
            by = objects if transform.needs_boxes else ()
            found.append(_sample_each(transform, keys, place, size, by))
        else:
            found.append(_sample_once(transform, keys, place, size))
        if objects and place < last:
            (passage,) = passages([transform], found[-1:], size)
            objects = passed_boxes(objects[0], objects[1], passage)
        if place + 1 < len(transforms):
            size = transform._size_after(size, found[-1])
    return tuple(found)


def checked_size(size: Any, count: int) -> tuple[Any, Any]:
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


def _sample_each(
    transform: Transform, keys: Any, place: int, size: Any, objects: Any = ()
) -> dict[str, Any]:
    sides = [side for side in size if not is_static(side)]

    def one(key: Any, objects: Any, sides: Any) -> dict[str, Any]:
        given = iter(sides)
        of_image = tuple(side if is_static(side) else next(given) for side in size)
        return transform.sample(jax.random.fold_in(key, place), of_image, *objects)

    return dict(jax.vmap(one)(keys, tuple(objects), sides))


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


class Compose:
    """Applies transforms in order to batches [N, H, W, C] (or `Ragged`), fused where possible.

    Values: u8 images are levels 0..255 until a ToDtype(float, scale=True), a Normalize or a float
    output makes them x / 255 (`scale=False` keeps the levels in the last two cases). Pad, crop
    and erase constants are in the value space at their place in the chain. Between transforms
    values are float32 and are rounded only by ToDtype(uint8) and by a uint8 output; u8 levels also
    before and after each colour and warp, as torchvision rounds them.

    Args:
      transforms: the transforms, at least one.
      dtype: of the output: uint8, uint16, float16, bfloat16 or float32. None: what the last ToDtype
        says; else float32 where a Normalize meets u8 or u16 images; else the images' own dtype.
      layout: of the output, "NHWC" or "NCHW".
      scale: whether u8 levels become x / 255 where a float image is implied.
      boxes: format of boxes: "xyxy", "xywh" or "cxcywh".
      keypoints: "torchvision", whose flips map x to W - 1 - x and whose other transforms take x as
        a distance from the edge; or "centers", where whole numbers are centres of pixels
        everywhere.
      mask_fill: the label of a mask where it shows what is outside.
    Raises: TypeError for what is no transform or dtype; ValueError for an empty list, other words
    and a fill that is no number.

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
        self.dtype = _output_type(dtype)
        self.layout = checks.choice(layout, "layout", ("NHWC", "NCHW"))
        self.scale = bool(scale)
        self.targets = checked_formats(boxes, keypoints, mask_fill)

    def __repr__(self) -> str:
        listed = "".join(f"\n  {transform!r}," for transform in self.transforms)
        dtype = None if self.dtype is None else self.dtype.name
        named = "".join(f", {name}={value!r}" for name, value in self.targets._asdict().items())
        return (
            f"Compose([{listed}\n], dtype={dtype!r}, layout={self.layout!r}, scale={self.scale}"
            f"{named})"
        )

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
        return Compose(
            kept or [_Identity()], self.dtype, self.layout, self.scale, **self.targets._asdict()
        )

    def sample(self, keys: Any, size: Any, boxes: Any = None, boxes_valid: Any = None) -> Params:
        """Draws each image's parameters: a tuple of one dict of [N] arrays a transform.

        What an image gets depends on its key and the transform's position only (mixing apart:
        without per_sample it draws once, from the first key).

        Args:
          keys: [N] keys, new-style or uint32 [N, 2]; see jaxkern.random.record_keys.
          size: (height, width) as ints or as int32 arrays [N], or a `Ragged` batch.
          boxes: [N, K, 4] in the chain's format, and boxes_valid [N, K], for a chain that draws by
            them: one with a RandomIoUCrop.
        Raises: TypeError for what is no key array; ValueError for a single key, bad sizes, and
          without boxes where they are needed.

        >>> import jax
        >>> from jaxkern.image import Compose, RandomHorizontalFlip
        >>> keys = jax.random.split(jax.random.key(0), 4)
        >>> Compose([RandomHorizontalFlip()]).sample(keys, (8, 8))[0]["flip"].shape
        (4,)
        """
        if is_single_key(keys):
            raise ValueError("keys holds one key; wanted one per image: jax.random.split(key, N)")
        height, width = checked_size(size, keys.shape[0])
        objects: tuple[Any, ...] = ()
        if boxes is not None and any(transform.needs_boxes for transform in self.transforms):
            objects = checked_boxes(boxes, boxes_valid, keys.shape[0], self.targets.boxes)
        arrays = (keys, *objects, *(side for side in (height, width) if not is_static(side)))

        def draw(keys: Any, *others: Any) -> Params:
            given = iter(others[len(objects) :])
            start = (side if is_static(side) else next(given) for side in (height, width))
            return drawn(self.transforms, keys, tuple(start), others[: len(objects)])

        # XLA places what is inside: vmap and single keys need not follow Explicit mode's rules.
        draw = in_auto_mode(draw, batch_sharding(arrays, 1), explicit_axes(arrays))
        return tuple(draw(*arrays))

    def apply(self, images: Any, params: Params | None = None, labels: Any = None) -> Any:
        """Applies the chain with given parameters; deterministic.

        Args:
          images: [N, H, W, C] u8, u16, f16, bf16 or f32 with C = 1, 3 or 4, [N, T, H, W, C] of
            clips, or a `Ragged` batch; or a dict of them as "image", with what moves with them:
            "mask" [N, H, W] or [N, H, W, M], "boxes" [N, K, 4] and "boxes_valid" [N, K],
            "keypoints" [N, K, 2] and "keypoints_visible" [N, K], "label" instead of `labels`.
          params: as from `sample`; a Python or NumPy scalar stands for all images. None where no
            transform has parameters, as after `eval()`.
          labels: one-hot float [N, classes], or None.
        Returns:
          The images [N, h, w, C] (NCHW: [N, C, h, w]); with labels a pair (images, soft labels),
          where labels are as given if the chain does not mix. Of a dict the dict, other fields as
          they are; boxes and keypoints as float32 with what is valid and visible of them, and
          "image_size" i32 [N, 2] where images have sizes of their own on a canvas.
        Raises: TypeError or ValueError that names the argument, at trace time.

        >>> import numpy as np
        >>> from jaxkern.image import Compose, RandomHorizontalFlip
        >>> images = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
        >>> Compose([RandomHorizontalFlip()]).apply(images, ({"flip": True},)).tolist()
        [[[[1], [0]], [[3], [2]]]]
        """
        if isinstance(images, dict):
            return move_fields(self, images, params, labels, lambda t: Compose(t, np.uint8))
        whole = canonical(images)
        images, frames = as_frames(whole)
        narrow = self._makes_uint16(images)
        images = as_unit(images, self.scale, self.transforms)
        batch = checked_images(images)
        count = batch.images if frames is None else whole.shape[0]
        checked = checked_parameters(self.transforms, params, count)
        steps = [
            (transform, of_frames(transform, given, count, frames))
            for transform, given in zip(self.transforms, checked, strict=True)
        ]
        if labels is not None:
            labels = checked_labels(labels, count)
        size, largest = (batch.height, batch.width), batch.largest
        chain = ChainBuilder(*size, batch.channels, batch.dtype, self.scale, largest)
        pixels = images
        for part in self._passes(steps, chain):
            pixels, labels = part.run(pixels, labels, frames or 1)
        pixels = pixels if isinstance(pixels, jax.Array) else jnp.asarray(pixels)
        if narrow:
            pixels = as_uint16(pixels, self.scale)
        if frames is not None:
            pixels = pixels.reshape(count, frames, *pixels.shape[1:])
        return pixels if labels is None else (pixels, labels)

    def __call__(self, key_or_keys: Any, images: Any, labels: Any = None) -> Any:
        """Samples, then applies; one key is split over the batch, [N] keys are used as they are.

        `images` and `labels` are those of `apply`, a dict of images and targets among them.

        >>> import jax
        >>> import numpy as np
        >>> from jaxkern.image import Compose, RandomCrop
        >>> images = np.zeros((2, 8, 8, 3), np.uint8)
        >>> Compose([RandomCrop(4)])(jax.random.key(0), images).shape
        (2, 4, 4, 3)
        """
        fields = images if isinstance(images, dict) else {"image": images}
        checked_fields(fields, self.transforms)
        count, size = counted(fields["image"])
        keys = key_or_keys
        if is_single_key(keys):
            keys = jax.random.split(keys, count)
        elif keys.shape[0] != count:
            raise ValueError(f"keys holds {keys.shape[0]} keys and the batch {count} images")
        params = self.sample(keys, size, fields.get("boxes"), fields.get("boxes_valid"))
        return self.apply(images, params, labels)

    def _passes(self, steps: Steps, chain: ChainBuilder) -> Iterator[BatchPass]:
        """What native calls do to the images that `chain` begins with."""
        return passes(steps, chain, self._output_dtype(chain.source_dtype), Layout[self.layout])

    def _sizes(self, size: Any) -> list[Any]:
        """The size before each transform, and after the last."""
        sizes = [size]
        for transform in self.transforms:
            sizes.append(transform.output_size(sizes[-1]))
        return sizes

    def _makes_uint16(self, images: Any) -> bool:
        """Whether the output is uint16: asked for, or that of uint16 images which nothing makes
        another type."""
        if self.dtype is not None:
            return bool(self.dtype == np.uint16)
        made = any(isinstance(transform, ToDtype | Normalize) for transform in self.transforms)
        return is_uint16(images) and not made

    def _output_dtype(self, source: Dtype) -> Dtype:
        if self.dtype == np.uint16:
            return Dtype.F32  # which becomes uint16 then
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


def _output_type(dtype: Any) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    known = isinstance(dtype, type | np.dtype | str) and dtype in (np.uint16, "uint16")
    return np.dtype(np.uint16) if known else ToDtype(dtype).dtype
