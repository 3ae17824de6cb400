"""The pixels that a correlation goes over, and their bins, as kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.qmap import QMap


@dataclass(frozen=True, eq=False)
class BinnedPixels:
    """Pixels and their bins; here bins count from 0.

    Attributes:
      pixel: [P] numbers row * W + column, ascending.
      static, dynamic: [P] the bins of each.
      n_static, n_dynamic: how many bins the map has.
    """

    pixel: NDArray[np.int32]
    static: NDArray[np.int32]
    dynamic: NDArray[np.int32]
    n_static: int
    n_dynamic: int

    @classmethod
    def of(cls, qmap: QMap, bins: NDArray[np.int64]) -> BinnedPixels:
        """Those of some dynamic bins (from 1)."""
        pixel = np.sort(qmap.pixels)
        pixel = pixel[np.isin(qmap.dynamic.ravel()[pixel], bins)]
        static, dynamic = (x.ravel()[pixel] - 1 for x in (qmap.static, qmap.dynamic))
        return cls(pixel, static, dynamic, qmap.n_static, qmap.n_dynamic)

    def __len__(self) -> int:
        return len(self.pixel)

    def taken(self, places: NDArray[Any] | slice) -> BinnedPixels:
        """Some of the pixels."""
        return BinnedPixels(
            self.pixel[places],
            self.static[places],
            self.dynamic[places],
            self.n_static,
            self.n_dynamic,
        )

    def by_bin(self) -> NDArray[np.int64]:
        """The order of the pixels by dynamic bin, static bin and number."""
        return np.lexsort((self.static, self.dynamic))

    def split(self, tile: NDArray[np.int64], most: int) -> list[BinnedPixels]:
        """Parts of about `most` pixels or fewer, each of whole tiles.

        Args:
          tile: [P] the tile of each pixel, ascending.
        """
        if len(self) <= most:
            return [self]
        ends = np.append(np.flatnonzero(np.diff(tile)) + 1, len(self))
        parts, begin = [], 0
        while begin < len(self):
            fit = ends[(ends > begin) & (ends <= begin + most)]
            end = int(fit[-1] if len(fit) else ends[ends > begin][0])
            parts.append(self.taken(slice(begin, end)))
            begin = end
        return parts
