"""The bins that a detector's pixels belong to."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


class QMap:
    """Which bin each pixel of a detector belongs to.

    Correlations are computed for each dynamic bin. A pixel's intensity is normalized by the mean of
    its static bin, a smaller one inside the dynamic bin, since the mean changes with q. Bins are
    numbered from 1; 0 is none. A pixel counts when both its bins are there and `mask` is true.

    Args:
      dynamic: [H, W] whole numbers, the dynamic bin of each pixel.
      static: [H, W] whole numbers, the static bin; by default the dynamic one.
      mask: [H, W], true where a pixel is good; by default all are.
      q: [n_dynamic] of the dynamic bins 1, 2, ..., in 1/Angstrom.
      phi: [n_dynamic] of the dynamic bins, in degrees.

    Raises:
      ValueError: for maps of different shapes, negative bins, a static bin that lies in more than
        one dynamic bin, or q and phi of another length than there are dynamic bins.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> qmap = jk.xpcs.QMap(np.array([[1, 1, 2], [1, 1, 0]]), q=[0.01, 0.02])
      >>> qmap.n_dynamic, qmap.n_pixels, qmap.pixels_of_bin.tolist()
      (2, 5, [4, 1])
    """

    def __init__(
        self,
        dynamic: Any,
        static: Any = None,
        mask: Any = None,
        q: Any = None,
        phi: Any = None,
    ):
        self.dynamic = _bins("dynamic", dynamic)
        self.shape: tuple[int, int] = (self.dynamic.shape[0], self.dynamic.shape[1])
        self.static = self.dynamic if static is None else _bins("static", static, self.shape)
        if mask is None:
            self.mask = np.ones(self.shape, bool)
        else:
            self.mask = np.asarray(mask).astype(bool)
            _check_shape("mask", self.mask, self.shape)
        self.n_dynamic = int(self.dynamic.max(initial=0))
        self.n_static = int(self.static.max(initial=0))
        self.q = _labels("q", q, self.n_dynamic)
        self.phi = _labels("phi", phi, self.n_dynamic)
        _ = self.dynamic_of_static  # checks that each lies in one

    def __repr__(self) -> str:
        return (
            f"QMap({self.shape[0]} x {self.shape[1]}, {self.n_dynamic} dynamic and "
            f"{self.n_static} static bins, {self.n_pixels} pixels)"
        )

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """[H, W], true where a pixel counts."""
        used: NDArray[np.bool_] = self.mask & (self.dynamic > 0) & (self.static > 0)
        return used

    @cached_property
    def pixels(self) -> NDArray[np.int32]:
        """[n_pixels] numbers row * W + column of the pixels that count, ordered by static bin."""
        flat = np.flatnonzero(self.used)
        order = np.argsort(self.static.ravel()[flat], kind="stable")
        return flat[order].astype(np.int32)

    @property
    def n_pixels(self) -> int:
        return len(self.pixels)

    @cached_property
    def pixels_of_bin(self) -> NDArray[np.int64]:
        """[n_dynamic] how many pixels count in each dynamic bin."""
        bins = self.dynamic.ravel()[self.pixels]
        return np.bincount(bins, minlength=self.n_dynamic + 1)[1:].astype(np.int64)

    @cached_property
    def pixels_of_static(self) -> NDArray[np.int64]:
        """[n_static] how many pixels count in each static bin."""
        bins = self.static.ravel()[self.pixels]
        return np.bincount(bins, minlength=self.n_static + 1)[1:].astype(np.int64)

    @cached_property
    def dynamic_of_static(self) -> NDArray[np.int32]:
        """[n_static] the dynamic bin that each static bin lies in; 0 where it has no pixels."""
        static, dynamic = self.static[self.used], self.dynamic[self.used]
        found = np.zeros(self.n_static + 1, np.int32)
        found[static] = dynamic
        if (wrong := static[found[static] != dynamic]).size:
            bins = np.unique(dynamic[static == wrong[0]])
            raise ValueError(
                f"static bin {wrong[0]} has pixels of the dynamic bins {bins.tolist()}; wanted "
                "each static bin inside one dynamic bin"
            )
        return found[1:]


def _bins(name: str, given: Any, shape: tuple[int, int] | None = None) -> NDArray[np.int32]:
    array = np.asarray(given)
    if array.ndim != 2:
        raise ValueError(f"{name} has the shape {array.shape}; wanted [H, W]")
    if shape is not None:
        _check_shape(name, array, shape)
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} holds numbers that are not whole; wanted bins 1, 2, ..., 0 none")
    if array.size and (array.min() < 0 or array.max() > array.size):
        raise ValueError(
            f"{name} holds bins from {array.min()} to {array.max()}; wanted 0 (none) to at most "
            f"the number of pixels, {array.size}"
        )
    return array.astype(np.int32)


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, int]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}; wanted {shape}, that of dynamic")


def _labels(name: str, given: Any, n_bins: int) -> NDArray[np.float64] | None:
    if given is None:
        return None
    values = np.asarray(given, np.float64)
    if values.shape != (n_bins,):
        raise ValueError(
            f"{name} has the shape {values.shape}; wanted [{n_bins}], one for each dynamic bin"
        )
    return values
