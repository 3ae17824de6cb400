"""A `Compose` as a producer of records: it fills batches natively, without the interpreter."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.keys import epoch_key, fold_records, high_low
from jaxkern.image.batch import checked_images, checked_parameters
from jaxkern.image.compose import Compose, Params
from jaxkern.image.fold import ChainBuilder
from jaxkern.image.ops import plan_attributes
from jaxkern.image.plan import ChainPlan, Layout, Operands

# Records whose parameters one call draws, in about a millisecond for a crop, a flip and an erasure.
_BLOCK = 1024


class ChainProducer:
    """A fused chain as native code that makes records where they lie, for `jaxkern.ring.Assembly`.

    The parameters of many records are drawn by one compiled call ahead of the batches, which
    producers of the same `aug`, image and `derive` share; the pixels are read from the source's
    rows and written into the batch. The result is what
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
      ValueError: for a chain that mixes images.
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
        for transform in aug.transforms:
            if transform.stage == "batch":
                raise ValueError(
                    f"{transform!r} mixes the images of a batch, and records are made one by one; "
                    "apply it to the batches in a Compose of its own"
                )
        library = registry.module("cpu")
        if library is None:
            raise RuntimeError(
                "batches are filled by native code, and jaxkern's CPU library is not loaded: "
                f"{registry.missing('jaxkern.image_chain.v1', 'cpu')}"
            )
        drawing = _drawing(
            aug,
            repr(aug),
            tuple(image.shape),
            np.dtype(image.dtype),
            derive,
            bool(jax.config.read("jax_enable_x64")),
        )
        self._drawing = drawing
        self._key = _key_data(seed, epoch)
        self.struct = drawing.struct
        self.capsule = drawing.capsule

    def at(self, seed: int, epoch: int) -> ChainProducer:
        """The same producer for another seed and epoch; nothing is compiled anew."""
        other = object.__new__(ChainProducer)
        other.__dict__.update(self.__dict__)
        other._key = _key_data(seed, epoch)
        return other

    def operands(self, records: np.ndarray) -> list[np.ndarray]:
        """The parameters of these records int64 [N], drawn: arrays [N or 1, ...]."""
        if self.capsule is None:
            return []
        count = len(records)
        # One size, so that one program is compiled; what a record gets depends on it alone.
        padded = np.zeros(max(-(-count // _BLOCK), 1) * _BLOCK, np.int64)
        padded[:count] = records
        with jax.default_device(_cpu()):
            drawn = [
                self._drawing.sample(self._key, *high_low(block, "records", rank=1))
                for block in padded.reshape(-1, _BLOCK)
            ]
        arrays = [np.asarray(_joined(blocks)) for blocks in zip(*drawn, strict=True)]
        return [np.ascontiguousarray(a if a.shape[0] == 1 else a[:count]) for a in arrays]


class _Drawing:
    """How a chain draws and folds the parameters of records, and what makes their pixels.

    Attributes:
      struct, capsule: as of `ChainProducer`.
      sample: (data of the epoch's key, high and low halves of [N] records) -> operands; jitted.
    """

    def __init__(
        self,
        aug: Compose,
        settings: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        derive: Callable[[jax.Array], jax.Array] | None,
        wide: bool,
    ) -> None:
        del settings, wide  # only tell drawings apart: what is traced depends on them
        self._aug = copy.copy(aug)  # traced later, when its attributes may have been set anew
        self._image = jax.ShapeDtypeStruct(shape, dtype)
        self._derive = derive
        # The plan follows from shapes alone, so one image says it.
        plans: list[ChainPlan | None] = []

        def trace(key: Any, high: Any, low: Any) -> Any:
            folded = self._fold(self._draw(key, high, low), high.shape[0])
            plans.append(folded[0] if folded else None)
            return folded[1] if folded else ()

        one = np.zeros(1, np.uint32)
        jax.eval_shape(trace, np.zeros(2, np.uint32), one, one)
        plan = plans[0]
        self.capsule: Any = None
        self.struct = self._image
        if plan is not None:
            self.struct = plan.output()
            height, width, channels = shape
            attributes = {k: np.asarray(v).tolist() for k, v in plan_attributes(plan).items()}
            library = registry.module("cpu")
            assert library is not None  # `ChainProducer` checked
            self.capsule = library.image_chain_producer(
                **attributes,
                channels=channels,
                source_dtype=int(plan.source_dtype),
                output_dtype=int(plan.output_dtype),
                height=height,
                width=width,
            )
        self.sample = jax.jit(trace)

    def _draw(self, key: Any, high: Any, low: Any) -> Params:
        keys = fold_records(jax.random.wrap_key_data(key, impl="threefry2x32"), high, low)
        return self._aug.sample(
            keys if self._derive is None else self._derive(keys), self._image.shape[:2]
        )

    def _fold(self, params: Params, count: int) -> tuple[ChainPlan, Operands] | None:
        """The chain's plan and its operands for the parameters of so many records."""
        aug = self._aug
        batch = checked_images(jax.ShapeDtypeStruct((count, *self._image.shape), self._image.dtype))
        given = checked_parameters(aug.transforms, params, count)
        chain = ChainBuilder(batch.height, batch.width, batch.channels, batch.dtype, aug.scale)
        for transform, values in zip(aug.transforms, given, strict=True):
            transform._fold(chain, values)
        return chain.finish(aug._output_dtype(batch.dtype), Layout[aug.layout])


# Every pipeline of the same Compose draws by the same program. An evicted one compiles anew.
_drawing = functools.lru_cache(maxsize=32)(_Drawing)


def _key_data(seed: int, epoch: int) -> np.ndarray:
    with jax.default_device(_cpu()):
        return np.asarray(jax.random.key_data(epoch_key(seed, epoch)))


@functools.cache
def _cpu() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]


def _joined(blocks: Sequence[Any]) -> Any:
    """An operand of blocks of records: one that all of them share, or the records'."""
    if len(blocks) == 1 or blocks[0].shape[0] == 1:
        return blocks[0]
    return np.concatenate([np.asarray(block) for block in blocks])
