"""Batches of u8 images of different sizes, flat in one buffer."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.core.alignment import aligned_array
from jaxkern.image.chain.plan import CHANNEL_COUNTS

_INT32_MAX = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ragged:
    """N images [height[n], width[n], C] u8, image n dense from buffer[offset[n]]; a pytree.

    `channels`, `max_height` and `max_width` are static: functions are retraced when they change,
    as they are when the buffer's length changes. Fix them in `from_list` for a stream of batches.

    Fields: buffer u8 [B], offset i32 (i64 under x64) [N], height i32 [N], width i32 [N].

    >>> import numpy as np
    >>> from jaxkern.image import Ragged
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
        """Copies images [H, W, C] u8 of one channel count, one after the other, into a buffer.

        JAX on the CPU takes the buffer as it is: do not write to it while its arrays are in use.

        Args:
          max_height, max_width: upper bounds of the sizes; the largest image's if not given.
          buffer_size: length of the buffer in bytes; what the images need if not given; "rounded":
            that rounded up to one of four lengths in each doubling, so that a stream of batches
            compiles few programs.
          channels: needed only for an empty list.
        Raises: TypeError for images that are not u8; ValueError for other ranks, zero sizes,
          channel counts, bounds that are too small, and more than 2**31 - 1 bytes without x64.

        >>> import numpy as np
        >>> from jaxkern.image import Ragged
        >>> Ragged.from_list([np.zeros((4, 6, 1), np.uint8)]).offset.tolist()
        [0]
        """
        arrays = [np.asarray(image) for image in images]
        for k, array in enumerate(arrays):
            if array.dtype != np.uint8:
                raise TypeError(f"images[{k}] has dtype {array.dtype.name}; wanted uint8")
            if array.ndim != 3 or array.size == 0 or array.shape[2] not in CHANNEL_COUNTS:
                raise ValueError(
                    f"images[{k}] has shape {array.shape}; wanted [H, W, C] with H and W from 1 "
                    "and 1, 3 or 4 channels"
                )
            channels = array.shape[2] if channels is None else channels
            if array.shape[2] != channels:
                raise ValueError(
                    f"images[{k}] has {array.shape[2]} channels and the batch {channels}; "
                    "all images of a batch need the same number"
                )
        if channels not in CHANNEL_COUNTS:
            raise ValueError(f"channels={channels!r}; an empty list needs channels=1, 3 or 4")
        heights = np.asarray([array.shape[0] for array in arrays], np.int32)
        widths = np.asarray([array.shape[1] for array in arrays], np.int32)
        limits = []
        for name, sizes, limit in (
            ("max_height", heights, max_height),
            ("max_width", widths, max_width),
        ):
            largest = int(sizes.max(initial=1))
            if limit is not None and limit < largest:
                raise ValueError(f"{name}={limit} is below the largest image's {largest}")
            limits.append(largest if limit is None else int(limit))
        bytes_of = np.asarray([array.size for array in arrays], np.int64)
        total = int(bytes_of.sum())
        length = _length(total, buffer_size)
        if length < total:
            raise ValueError(f"buffer_size={buffer_size}, but the images take {total} bytes")
        wide = bool(jax.config.read("jax_enable_x64"))
        if length > _INT32_MAX and not wide:
            raise ValueError(
                f"the images take {length} bytes, above 2**31 - 1, which int32 offsets cannot "
                "reach; use smaller batches or jax.config.update('jax_enable_x64', True)"
            )
        buffer = aligned_array(max(length, 1), np.uint8, np.zeros)
        offsets = np.zeros(len(arrays), np.int64)
        offsets[1:] = np.cumsum(bytes_of)[:-1]
        for offset, array in zip(offsets, arrays, strict=True):
            buffer[offset : offset + array.size] = array.reshape(-1)
        offsets = offsets if wide else offsets.astype(np.int32)
        return cls(buffer, offsets, heights, widths, int(channels), limits[0], limits[1])


def _length(total: int, buffer_size: int | str | None) -> int:
    if buffer_size is None:
        return total
    if isinstance(buffer_size, str):
        if buffer_size != "rounded":
            raise ValueError(f"buffer_size={buffer_size!r}; wanted bytes, 'rounded' or None")
        step = 1 << max(total.bit_length() - 3, 0)
        # Offsets stay within int32 where those of the images do.
        return min(-(-total // step) * step, max(total, _INT32_MAX))
    return operator.index(buffer_size)
