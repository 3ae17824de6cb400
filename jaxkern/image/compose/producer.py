"""A `Compose` as a native producer of records, which fills batches without the interpreter."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.keys import epoch_key, fold_records, split_int64
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import ChainPlan
from jaxkern.image.compose.batch import checked_images, checked_parameters
from jaxkern.image.compose.compose import BatchPass, Compose, passes
from jaxkern.image.compose.targets import fill_bytes, mask_transforms
from jaxkern.image.ops import MAX_STAGES, Call, Stage, StagesPlan, stages_attributes
from jaxkern.image.parameters.per_image import per_image

_Derive = Callable[[jax.Array], jax.Array] | None

# Records per call that draws parameters: about a millisecond for a crop, a flip and an erasure.
_BLOCK = 1024


class SeededChain:
    """Base class of producers: a `_DrawingProgram` with a seed and an epoch."""

    struct: jax.ShapeDtypeStruct
    capsule: Any

    def __init__(
        self,
        aug: Compose,
        shape: Sequence[int | None],
        dtype: Any,
        seed: int,
        epoch: int,
        derive: _Derive,
        mask_fill: tuple[float, ...] | None = None,
    ):
        wide = bool(jax.config.read("jax_enable_x64"))
        settings = repr(aug), wide
        self._sampler = _program(aug, tuple(shape), np.dtype(dtype), derive, mask_fill, settings)
        self._key = key_data(seed, epoch)
        self.struct, self.capsule = self._sampler.struct, self._sampler.capsule

    def at(self, seed: int, epoch: int) -> Self:
        """Return the same producer for another seed and epoch, without compiling again."""
        other = copy.copy(self)
        other._key = key_data(seed, epoch)
        return other

    def operands(self, records: np.ndarray) -> list[np.ndarray]:
        """Draw the parameters of records int64 [N]: arrays [N or 1, ...]."""
        return [] if self.capsule is None else self._sample(records)

    def _sample(self, records: np.ndarray, size: np.ndarray | None = None) -> list[np.ndarray]:
        """Draw parameters, for images of `size` int32 [N, 2] if sizes differ."""
        count = len(records)
        # Blocks of one size need only one compiled program; draws do not depend on the block.
        blocks = max(-(-count // _BLOCK), 1)
        padded = np.zeros(blocks * _BLOCK, np.int64)
        padded[:count] = records
        sized = np.ones((blocks * _BLOCK, 2), np.int32)
        sized[:count] = 1 if size is None else size
        operands = []
        for k in range(0, len(padded), _BLOCK):
            record_halves = split_int64(padded[k : k + _BLOCK], "records", rank=1)
            sides = () if size is None else sized[k : k + _BLOCK].T
            with jax.default_device(_cpu()):
                operands.append(self._sampler.sample(self._key, *record_halves, *sides))
        arrays = [np.asarray(_concatenate(blocks)) for blocks in zip(*operands, strict=True)]
        return [np.ascontiguousarray(a if a.shape[0] == 1 else a[:count]) for a in arrays]


class _DrawingProgram:
    """A compiled program that draws and folds the parameters of a chain's records.

    With `mask_fill` the parameters are those of the images' masks.
    """

    def __init__(
        self,
        aug: Compose,
        shape: tuple[int | None, ...],
        dtype: np.dtype,
        derive: _Derive,
        mask_fill: tuple[float, ...] | None,
        settings: tuple[str, bool],
    ) -> None:
        del settings  # A part of the cache key, since tracing depends on them.
        # A copy, since the caller may change attributes before it is traced.
        self._aug = self._folded = copy.copy(aug)
        self._indices = list(range(len(aug.transforms)))  # of the transforms that are folded
        if mask_fill is not None:
            steps = mask_transforms(aug.transforms, mask_fill)
            if not steps:
                raise ValueError(f"{aug!r}: expected a chain that changes masks")
            self._indices = [index for index, _ in steps]
            self._folded = Compose([transform for _, transform in steps], np.uint8)
        for transform in self._folded.transforms:
            if transform.kind == "batch":
                raise ValueError(f"{transform!r}: expected no mixing of records")
        if self._folded.dtype == np.uint16:
            raise ValueError("dtype: expected another type than uint16, which only JAX supports")
        library()
        self._shape, self._dtype, self._derive = shape, dtype, derive
        # The plan depends on shapes only, so one image determines it.
        plans: list[ChainPlan | StagesPlan | None] = []

        def trace(key: Any, high: Any, low: Any, *sides: Any) -> Any:
            size = sides or shape[:2]
            folded = self._fold(key, high, low, size)
            plans.append(folded[0] if folded else None)
            return folded[1] if folded else ()

        one = np.zeros(1, np.uint32)
        sides = [np.ones(1, np.int32) for side in shape[:2] if side is None]
        jax.eval_shape(trace, np.zeros(2, np.uint32), one, one, *sides)
        self.plan = plan = plans[0]
        self.capsule: Any = None
        if plan is None:
            self.struct = jax.ShapeDtypeStruct(shape, dtype)
        else:
            source = None if sides else jax.ShapeDtypeStruct(shape, dtype)
            self.struct = plan.output() if isinstance(plan, ChainPlan) else plan.output(source)
            if not sides:
                size = [int(side) for side in shape[:2] if side is not None]
                self.capsule = library().image_chain_producer(native(plan, *size), *size)
        #: (key data, high and low halves of records [N], sizes [N] if they differ) -> operands
        self.sample = jax.jit(trace)

    def _fold(self, key: Any, high: Any, low: Any, size: tuple[Any, ...]) -> Call | None:
        """Draw the parameters of records; return the chain's plan and operands."""
        keys = fold_records(jax.random.wrap_key_data(key, impl="threefry2x32"), high, low)
        draws = self._aug.sample(keys if self._derive is None else self._derive(keys), size)
        aug, count = self._folded, high.shape[0]
        params = tuple(draws[index] for index in self._indices)
        shape = (count, *(1 if side is None else side for side in self._shape))
        batch = checked_images(jax.ShapeDtypeStruct(shape, self._dtype))
        checked = checked_parameters(aug.transforms, params, count)

        def fold(params: Any, size: Any) -> list[BatchPass]:
            chain = ChainBuilder(size[0], size[1], batch.channels, batch.dtype, aug.scale)
            steps = list(zip(aug.transforms, params, strict=True))
            return list(passes(aug, steps, chain, fuse=True))

        first, *others = per_image(fold, checked, size)
        if others:
            raise ValueError(f"{aug!r}: expected no kind 'jax' and no change of channels")
        if len(first.calls) > 1:
            raise ValueError(
                f"{aug!r}: expected at most {MAX_STAGES} stages, which fit in one call"
            )
        return first.calls[0] if first.calls else None


def library() -> Any:
    """Return the CPU library; raise RuntimeError if it is not loaded."""
    result = registry.module("cpu")
    if result is None:
        reason = registry.missing("jaxkern.image_chain.v1", "cpu")
        raise RuntimeError(f"jaxkern's CPU library, which fills batches, is not loaded: {reason}")
    return result


def native(plan: ChainPlan | StagesPlan, height: int = 0, width: int = 0) -> Any:
    """Convert a plan for images of this size to the library's type."""
    if isinstance(plan, ChainPlan):
        plan = StagesPlan((Stage(plan),), plan.channels, plan.source_dtype)
    return library().image_stages(
        **{name: np.asarray(value).tolist() for name, value in stages_attributes(plan).items()},
        channels=plan.channels,
        source_dtype=int(plan.source_dtype),
        height=height,
        width=width,
    )


# Pipelines with equal chains share a program. An evicted one is compiled again.
_program = functools.lru_cache(maxsize=32)(_DrawingProgram)


def key_data(seed: int, epoch: int) -> np.ndarray:
    with jax.default_device(_cpu()):
        return np.asarray(jax.random.key_data(epoch_key(seed, epoch)))


@functools.cache
def _cpu() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]


def _concatenate(blocks: Sequence[Any]) -> Any:
    """Concatenate an operand of several blocks, unless all records share it."""
    if len(blocks) == 1 or blocks[0].shape[0] == 1:
        return blocks[0]
    return np.concatenate([np.asarray(block) for block in blocks])


class ChainProducer(SeededChain):
    """A chain as native code that writes records into batches, for `jaxkern.ring.Assembly`.

    Pixels are read from the source's rows. The result equals
    ``aug(record_keys(seed, epoch, records), images)``.

    Args:
      aug: the chain; it must not mix images.
      image: shape and dtype of one source image [H, W, C].
      seed, epoch: integers that determine a record's parameters together with its number.
      derive: traceable and hashable function from the records' keys [N] to the keys that
        parameters are drawn with. None uses the records' keys.

    Attributes:
      struct: shape and dtype of one record's output.
      capsule: the producer's C interface (core/producer.h); None if the chain changes nothing.

    Raises:
      ValueError: for a chain that mixes images, changes the number of their channels between
        transforms, or has a transform of kind "jax".
      RuntimeError: without the native library.

    >>> import jax, numpy as np, jaxkern as jk
    >>> aug = jk.image.Compose([jk.image.RandomCrop(4), jk.image.Normalize(0.5, 0.5)])
    >>> jk.image.ChainProducer(aug, jax.ShapeDtypeStruct((8, 8, 3), np.uint8)).struct
    ShapeDtypeStruct(shape=(4, 4, 3), dtype=float32)
    """

    def __init__(
        self, aug: Compose, image: Any, *, seed: int = 0, epoch: int = 0, derive: _Derive = None
    ):
        super().__init__(aug, image.shape, image.dtype, seed, epoch, derive)


class MaskProducer(SeededChain):
    """A `ChainProducer` of masks that move with its images: the same draws, nearest sampling.

    Args:
      aug, seed, epoch, derive: as for `ChainProducer`.
      mask: shape and dtype of one mask [H, W] with labels of one or four bytes.

    Raises:
      TypeError: for labels of other sizes.
      ValueError: for a chain that does not change masks, and as `ChainProducer`.

    >>> import jax, numpy as np, jaxkern as jk
    >>> aug = jk.image.Compose([jk.image.RandomCrop(4), jk.image.Normalize(0.5, 0.5)])
    >>> jk.image.MaskProducer(aug, jax.ShapeDtypeStruct((8, 8), np.int32)).struct
    ShapeDtypeStruct(shape=(4, 4), dtype=int32)
    """

    def __init__(
        self, aug: Compose, mask: Any, *, seed: int = 0, epoch: int = 0, derive: _Derive = None
    ):
        labels = np.dtype(mask.dtype)
        if len(mask.shape) != 2 or labels.itemsize not in (1, 4):
            name = f"{labels.name}{[*mask.shape]}"
            raise TypeError(f"mask: expected [H, W] of 1 or 4 bytes, got {name}")
        fill = fill_bytes(aug.targets.mask_fill, labels, labels)
        super().__init__(aug, (*mask.shape, labels.itemsize), np.uint8, seed, epoch, derive, fill)
        self.struct = jax.ShapeDtypeStruct(self.struct.shape[:2], labels)


class EncodedProducer(SeededChain):
    """A chain as native code that decodes records, for `jaxkern.ring.Assembly`.

    Its rows are ``images.ranges``. Only the region of an image that the chain reads is decoded, in
    bands if it is large. The result is bit-identical to the chain on a `Ragged` batch of complete
    images (unless they are ``scaled``). Parameters are drawn with the sizes in ``images``; an image
    whose size has changed is an error.

    Args:
      aug, seed, epoch, derive: as for `ChainProducer`.
      images: a `jaxkern.pipeline.EncodedImages`.

    Attributes:
      struct, capsule: as in `ChainProducer`.

    Raises:
      ValueError: as `ChainProducer`, for an output size that depends on the image, and if the
        native library was built without a decoder.
      RuntimeError: without the native library.

    >>> import numpy as np, jaxkern as jk
    >>> aug = jk.image.Compose([jk.image.RandomResizedCrop(4)])
    >>> pixels = np.arange(90 + 189, dtype=np.uint8)  # two images, one after the other
    >>> images = jk.pipeline.EncodedImages(
    ...     (pixels,), ranges=np.array([[0, 0, 90], [0, 90, 189]]), in_files=False,
    ...     size=np.array([[6, 5], [9, 7]], np.int32), codec="raw")
    >>> producers = {"image": jk.image.EncodedProducer(aug, images)}
    >>> with jk.ring.Assembly({"image": images.ranges}, [1, 0], 2, producers=producers) as batches:
    ...     next(batches)["image"].shape
    (2, 4, 4, 3)
    """

    def __init__(
        self, aug: Compose, images: Any, *, seed: int = 0, epoch: int = 0, derive: _Derive = None
    ):
        super().__init__(aug, (None, None, images.channels), np.uint8, seed, epoch, derive)
        self._images = images
        # An image with an invalid header has no size; it becomes an error or zeros.
        size = np.asarray(images.size, np.int32)
        largest = np.maximum(size.max(0, initial=1), 1)
        self._size = np.where((size > 0).all(1, keepdims=True), size, largest)
        #: buffers that the capsule reads
        self.buffers = tuple(np.ascontiguousarray(blob, np.uint8) for blob in images.blobs)
        if self._sampler.plan is None:
            raise ValueError(f"{aug!r}: expected a chain that returns images of one size")
        self.capsule = library().image_encoded_producer(
            native(self._sampler.plan),
            blobs=list(self.buffers),
            in_files=bool(images.in_files),
            codec=_CODECS.index(images.codec),
            max_pixels=int(images.max_pixels),
            scaled=bool(images.scaled),
        )

    def operands(self, records: np.ndarray) -> list[np.ndarray]:
        """Draw the parameters of records int64 [N]; also return the sizes used."""
        rows_of = self._images.rows_of
        size = np.ascontiguousarray(self._size[records if rows_of is None else rows_of(records)])
        return [*self._sample(records, size), size]


_CODECS = ("jpeg", "raw")  # numbered as in csrc/image/producer.h
