"""Dynamic bins of a map with their labels and pixels, and the time between frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_number
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap


class BinLabels:
    """Some dynamic bins of a map (numbers from 1; None for all), with q, phi and pixel counts."""

    def __init__(self, qmap: QMap, bins: Any = None) -> None:
        self.qmap = qmap
        every = np.arange(1, qmap.n_dynamic + 1)
        chosen = every if bins is None else np.atleast_1d(np.asarray(bins))
        unique = np.unique(chosen)
        if chosen.ndim != 1 or not np.isin(chosen, every).all() or len(unique) != len(chosen):
            raise ValueError(
                f"bins: expected different bins from 1 to {qmap.n_dynamic}, got {bins!r:.80}"
            )
        self.bins: NDArray[np.int64] = chosen.astype(np.int64)
        self.n_pixels = qmap.pixels_of_bin[self.bins - 1]

    def fields(
        self, selection: FrameSelection, frame_time: float | None, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields common to results of both kinds; `frame_time` is the source's, in s."""
        q, phi = (None if x is None else x[self.bins - 1] for x in (self.qmap.q, self.qmap.phi))
        return {
            "bins": self.bins,
            "q": q,
            "phi": phi,
            "n_pixels": self.n_pixels,
            "n_frames": selection.n,
            "frame_time": selection.time_step(frame_time),
            "qmap": self.qmap,
            "overview": None,
            "config": {**config, **selection.config()},
        }


def check_frame_time(frame_time: float) -> float:
    """Return a time between frames in s, which must be above 0 and finite."""
    step = check_number("frame_time", frame_time, 0.0)
    if not 0 < step < math.inf:
        raise ValueError(f"frame_time: expected a finite time above 0 s, got {frame_time!r}")
    return step


def time_step(frame_time: float | None, source: FrameSource) -> float | None:
    """Return the time between frames in s: `frame_time`, or a valid one of the source, or None."""
    if frame_time is not None:
        return check_frame_time(frame_time)
    stored = source.metadata.get("frame_time")
    return float(stored) if stored is not None and 0 < stored < math.inf else None


@dataclass(frozen=True, eq=False)
class BinnedPixels:
    """Pixels and their bins, which are numbered from 0 here."""

    pixel: NDArray[np.int32]  # [P] row * W + column, ascending
    static: NDArray[np.int32]  # [P]
    dynamic: NDArray[np.int32]  # [P]
    n_static: int  # bins of the map
    n_dynamic: int

    @classmethod
    def from_map(cls, qmap: QMap, bins: NDArray[np.int64]) -> BinnedPixels:
        """Return the pixels of some dynamic bins, numbered from 1, of a map."""
        pixel = np.sort(qmap.pixels)
        pixel = pixel[np.isin(qmap.dynamic.ravel()[pixel], bins)]
        static, dynamic = (x.ravel()[pixel] - 1 for x in (qmap.static, qmap.dynamic))
        return cls(pixel, static, dynamic, qmap.n_static, qmap.n_dynamic)

    def __len__(self) -> int:
        return len(self.pixel)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of native kernels for these pixels."""
        return self.pixel, self.static, self.dynamic, self.n_static, self.n_dynamic

    def split(self, tile: NDArray[np.int64], max_pixels: int) -> list[BinnedPixels]:
        """Split at tiles, ascending [P], into groups of at most `max_pixels`, or one tile, each."""
        if len(self) <= max_pixels:
            return [self]
        ends = np.append(np.flatnonzero(np.diff(tile)) + 1, len(self))
        parts, begin = [], 0
        while begin < len(self):
            fitting = ends[(ends > begin) & (ends <= begin + max_pixels)]
            end = int(fitting[-1] if len(fitting) else ends[ends > begin][0])
            arrays = (x[begin:end] for x in (self.pixel, self.static, self.dynamic))
            parts.append(BinnedPixels(*arrays, self.n_static, self.n_dynamic))
            begin = end
        return parts
