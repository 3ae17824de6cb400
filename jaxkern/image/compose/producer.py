"""A `Compose` as a producer of records: it fills batches natively, without the interpreter.

`record_drawing.py` draws the parameters of the records.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jaxkern.image.compose.compose import Compose
from jaxkern.image.compose.drawing import Params
from jaxkern.image.compose.masks import fill_bytes, mask_transforms
from jaxkern.image.compose.record_drawing import SeededChain, drawing_of, key_data, library, native


class ChainProducer(SeededChain):
    """A chain as native code that makes records where they lie, for `jaxkern.ring.Assembly`.

    The pixels are read from the source's rows and written into the batch. The result is what
    ``aug(record_keys(seed, epoch, records), images)`` gives.

    Args:
      aug: the chain; it must not mix images.
      image: shape and dtype of one source image [H, W, C].
      seed, epoch: integers that, with the record's number, decide its parameters.
      derive: from the records' keys [N] to those that parameters are drawn with; traced, and
        hashable. None takes the keys themselves.

    Attributes:
      struct: shape and dtype of one record's output.
      capsule: the producer's C interface (core/producer.h); None where the chain changes nothing.

    Raises:
      ValueError: for a chain that mixes images, or that changes the number of their channels.
      RuntimeError: without the native library.

    >>> import jax, numpy as np, jaxkern as jk
    >>> aug = jk.image.Compose([jk.image.RandomCrop(4), jk.image.Normalize(0.5, 0.5)])
    >>> jk.image.ChainProducer(aug, jax.ShapeDtypeStruct((8, 8, 3), np.uint8)).struct
    ShapeDtypeStruct(shape=(4, 4, 3), dtype=float32)
    """

    def __init__(
        self,
        aug: Compose,
        image: Any,
        *,
        seed: int = 0,
        epoch: int = 0,
        derive: Callable[[jax.Array], jax.Array] | None = None,
    ):
        self._drawing = drawing = drawing_of(aug, image.shape, image.dtype, derive)
        self._key = key_data(seed, epoch)
        self.struct = drawing.struct
        self.capsule = drawing.capsule


class MaskProducer(ChainProducer):
    """As `ChainProducer`, of the masks that move with its images: the same draws, by nearest.

    Args:
      aug, seed, epoch, derive: as for `ChainProducer`.
      mask: shape and dtype of one mask [H, W] with labels of one or four bytes.

    Raises:
      TypeError: for labels of other sizes.
      ValueError: for a chain that leaves masks as they are, and as `ChainProducer`.

    >>> import jax, numpy as np, jaxkern as jk
    >>> aug = jk.image.Compose([jk.image.RandomCrop(4), jk.image.Normalize(0.5, 0.5)])
    >>> jk.image.MaskProducer(aug, jax.ShapeDtypeStruct((8, 8), np.int32)).struct
    ShapeDtypeStruct(shape=(4, 4), dtype=int32)
    """

    def __init__(
        self,
        aug: Compose,
        mask: Any,
        *,
        seed: int = 0,
        epoch: int = 0,
        derive: Callable[[jax.Array], jax.Array] | None = None,
    ):
        labels = np.dtype(mask.dtype)
        if len(mask.shape) != 2 or labels.itemsize not in (1, 4):
            raise TypeError(
                f"mask is {labels.name}{list(mask.shape)}; wanted [H, W] of one or four bytes"
            )
        fill = fill_bytes(aug.targets.mask_fill, labels, labels)
        pixels = jax.ShapeDtypeStruct((*mask.shape, labels.itemsize), np.uint8)
        chain = _mask_chain(aug, repr(aug), fill)
        super().__init__(chain, pixels, seed=seed, epoch=epoch, derive=derive)
        self.struct = jax.ShapeDtypeStruct(self.struct.shape[:2], labels)


class _MaskChain(Compose):
    """What another chain does to masks, with what that one draws."""

    def __init__(self, aug: Compose, settings: str, fill: tuple[float, ...]) -> None:
        del settings
        steps = mask_transforms(aug.transforms, fill)
        if not steps:
            raise ValueError(f"{aug!r} leaves masks as they are")
        super().__init__([transform for _, transform in steps], np.uint8)
        self._drawn_by, self._places = copy.copy(aug), [place for place, _ in steps]

    def sample(self, keys: Any, size: Any, boxes: Any = None, boxes_valid: Any = None) -> Params:
        drawn = self._drawn_by.sample(keys, size, boxes, boxes_valid)
        return tuple(drawn[place] for place in self._places)


# One object a chain, by which its drawing is found.
_mask_chain = functools.lru_cache(maxsize=32)(_MaskChain)


class EncodedRows(Protocol):
    """Encoded images by record; `jaxkern.pipeline.EncodedImages` says what each part is."""

    @property
    def blobs(self) -> Sequence[np.ndarray]: ...
    @property
    def place(self) -> np.ndarray: ...
    @property
    def in_files(self) -> bool: ...
    @property
    def size(self) -> np.ndarray: ...
    @property
    def codec(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def max_pixels(self) -> int: ...
    @property
    def scaled(self) -> bool: ...
    @property
    def rows_of(self) -> Callable[[np.ndarray], np.ndarray] | None: ...


class EncodedProducer(SeededChain):
    """A chain as native code that decodes records, for `jaxkern.ring.Assembly`.

    Its rows are ``images.place``. Of each image only the region that the chain needs is decoded,
    and a large one in bands; the result is what the chain gives on a `Ragged` batch of the whole
    images, bit for bit (unless they are ``scaled``). A record's parameters are drawn with the size
    that ``images`` says, and an image that has another one by now is refused.

    Args:
      aug, seed, epoch, derive: as for `ChainProducer`.
      images: where the images lie.

    Attributes:
      struct, capsule: as of `ChainProducer`.

    Raises:
      ValueError: for a chain that mixes images, changes the number of their channels or has no
        fixed size of output, and where the native library was built without a decoder.
      RuntimeError: without the native library.

    >>> import numpy as np, jaxkern as jk
    >>> aug = jk.image.Compose([jk.image.RandomResizedCrop(4)])
    >>> pixels = np.arange(90 + 189, dtype=np.uint8)  # two images, one behind the other
    >>> images = jk.pipeline.EncodedImages(
    ...     (pixels,), place=np.array([[0, 0, 90], [0, 90, 189]]), in_files=False,
    ...     size=np.array([[6, 5], [9, 7]], np.int32), codec="raw")
    >>> producers = {"image": jk.image.EncodedProducer(aug, images)}
    >>> with jk.ring.Assembly({"image": images.place}, [1, 0], 2, producers=producers) as batches:
    ...     next(batches)["image"].shape
    (2, 4, 4, 3)
    """

    def __init__(
        self,
        aug: Compose,
        images: EncodedRows,
        *,
        seed: int = 0,
        epoch: int = 0,
        derive: Callable[[jax.Array], jax.Array] | None = None,
    ):
        shape = (None, None, images.channels)
        self._drawing = drawing = drawing_of(aug, shape, np.uint8, derive)
        self._key = key_data(seed, epoch)
        self.struct = drawing.struct
        self._images = images
        # A header that cannot be understood has no size; its image is an error or zeros.
        size = np.asarray(images.size, np.int32)
        largest = np.maximum(size.max(0, initial=1), 1)
        self._size = np.where((size > 0).all(1, keepdims=True), size, largest)
        #: what the capsule reads, for who keeps the capsule alone
        self.kept = tuple(np.ascontiguousarray(blob, np.uint8) for blob in images.blobs)
        if drawing.plan is None:
            raise ValueError(
                f"{aug!r} changes nothing, and images of different sizes make no batch"
            )
        self.capsule = library().image_encoded_producer(
            native(drawing.plan),
            blobs=list(self.kept),
            in_files=bool(images.in_files),
            codec=_CODECS.index(images.codec),
            max_pixels=int(images.max_pixels),
            scaled=bool(images.scaled),
        )

    def operands(self, records: np.ndarray) -> list[np.ndarray]:
        """The parameters of these records int64 [N], and the sizes that they were drawn with."""
        rows_of = self._images.rows_of
        rows = records if rows_of is None else rows_of(records)
        size = np.ascontiguousarray(self._size[rows])
        return [*self._drawn(records, size), size]


_CODECS = ("jpeg", "raw")  # numbered as in encoded_producer.h
