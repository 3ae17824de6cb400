"""Batches of uint8 images of different sizes in one flat buffer."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.core.arrays import aligned_array
from jaxkern.image.chain.plan import CHANNEL_COUNTS

_INT32_MAX = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ragged:
    """N images [height[n], width[n], C] u8, image n contiguous from buffer[offset[n]]; a pytree.

    `channels`, `max_height` and `max_width` are static: functions are retraced if they or the
    buffer's length change. Set them in `from_list` for a stream of batches.

    Fields: buffer u8 [B], offset i32 (i64 under x64) [N], height i32 [N], width i32 [N].

    >>> import numpy as np
    >>> Ragged.from_list([np.zeros((4, 6, 3), np.uint8), np.zeros((5, 2, 3), np.uint8)]).max_width
    6
    """

    buffer: Any
    offset: Any
    height: Any
    width: Any
    channels: int = dataclasses.field(metadata={"static": True})
    max_height: int = dataclasses.field(metadata={"static": True})
    max_width: int = dataclasses.field(metadata={"static": True})

    def __len__(self) -> int:
        return int(self.height.shape[0])

    @classmethod
    def from_list(
        cls,
        images: Sequence[Any],
        *,
        max_height: int | None = None,
        max_width: int | None = None,
        buffer_size: int | Literal["rounded"] | None = None,
        channels: int | None = None,
    ) -> Ragged:
        """Copy images [H, W, C] u8 with equal channel counts into one buffer.

        JAX on the CPU uses the buffer without a copy: do not modify it while its arrays are in use.

        Args:
          max_height, max_width: upper bounds of the sizes; default: the largest image's.
          buffer_size: length of the buffer in bytes; default: the size of the images. "rounded"
            rounds it up to one of four lengths per power of two, so that a stream of batches
            compiles few programs.
          channels: needed only for an empty list.
        Raises: TypeError for images that are not uint8; ValueError for other ranks, zero sizes,
        channel counts, bounds that are too small, and more than 2**31 - 1 bytes without x64.

        >>> import numpy as np
        >>> Ragged.from_list([np.zeros((4, 6, 1), np.uint8)]).offset.tolist()
        [0]
        """
        arrays = [np.asarray(image) for image in images]
        for k, array in enumerate(arrays):
            if array.dtype != np.uint8:
                raise TypeError(f"images[{k}]: expected dtype uint8, got {array.dtype.name}")
            if array.ndim != 3 or array.size == 0 or array.shape[2] not in CHANNEL_COUNTS:
                raise ValueError(f"images[{k}]: expected [H, W, 1, 3 or 4], got {array.shape}")
            channels = array.shape[2] if channels is None else channels
            if array.shape[2] != channels:
                raise ValueError(f"images[{k}]: expected {channels} channels, got {array.shape[2]}")
        if channels not in CHANNEL_COUNTS:
            raise ValueError(f"channels: expected 1, 3 or 4 for an empty list, got {channels!r}")
        heights, widths = (np.asarray([x.shape[k] for x in arrays], np.int32) for k in (0, 1))
        limits = []
        named = (("max_height", heights, max_height), ("max_width", widths, max_width))
        for name, sizes, limit in named:
            largest = int(sizes.max(initial=1))
            if limit is not None and limit < largest:
                raise ValueError(f"{name}: expected at least {largest}, got {limit}")
            limits.append(largest if limit is None else int(limit))
        byte_counts = np.asarray([array.size for array in arrays], np.int64)
        total = int(byte_counts.sum())
        length = _length(total, buffer_size)
        if length < total:
            raise ValueError(f"buffer_size: expected at least {total} bytes, got {buffer_size}")
        x64 = bool(jax.config.read("jax_enable_x64"))
        if length > _INT32_MAX and not x64:
            raise ValueError(f"images: expected at most 2**31 - 1 bytes without x64, got {length}")
        buffer = aligned_array(max(length, 1), np.uint8, np.zeros)
        offsets = np.zeros(len(arrays), np.int64)
        offsets[1:] = np.cumsum(byte_counts)[:-1]
        for offset, array in zip(offsets, arrays, strict=True):
            buffer[offset : offset + array.size] = array.reshape(-1)
        offsets = offsets if x64 else offsets.astype(np.int32)
        return cls(buffer, offsets, heights, widths, int(channels), limits[0], limits[1])


def _length(total: int, buffer_size: int | str | None) -> int:
    if buffer_size is None:
        return total
    if isinstance(buffer_size, str):
        if buffer_size != "rounded":
            raise ValueError(f"buffer_size: expected bytes, 'rounded' or None, got {buffer_size!r}")
        step = 1 << max(total.bit_length() - 3, 0)
        # Offsets stay within int32 if those of the images do.
        return min(-(-total // step) * step, max(total, _INT32_MAX))
    return operator.index(buffer_size)
