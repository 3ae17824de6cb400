"""Sums of dense frames over time and over pixels, natively or in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.native_sums import native_module


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of sums of frames of a dtype: whole counts are exact."""
    return np.dtype(np.float64 if dtype.kind == "f" else np.int64)


def frame_sums(
    frames: NDArray[Any],
    masks: Sequence[NDArray[np.bool_]],
    image: NDArray[Any] | None = None,
    bad: NDArray[np.bool_] | None = None,
) -> NDArray[Any]:
    """The totals [masks, T] of frames [T, P] over the pixels of up to two masks [P].

    Args:
      frames: as `selected_frames` gives them.
      image: [P] of `sum_dtype`, to which all frames are added.
      bad: [T] those that are not added to the image.
    """
    native = native_module()
    if native is not None:
        marked = None if bad is None else bad.view(np.uint8)
        as_bytes = [mask.view(np.uint8) for mask in masks]
        found = native.frame_sums(frames, as_bytes, image, marked, num_threads())
        return np.asarray(found)
    if image is not None:
        good = frames if bad is None or not bad.any() else frames[~bad]
        image += good.sum(axis=0, dtype=image.dtype)
    totals = np.zeros((len(masks), len(frames)), sum_dtype(frames.dtype))
    for total, mask in zip(totals, masks, strict=True):
        chosen = frames if mask.all() else np.take(frames, np.flatnonzero(mask), axis=1)
        total[:] = chosen.sum(axis=1, dtype=total.dtype)
    return totals
