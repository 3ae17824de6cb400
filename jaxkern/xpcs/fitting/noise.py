"""Which points count and how much: sigma, weights, and masks of frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files.sources import (
    SigmaSource,
    Source,
    StackSource,
    as_source,
    check_not_negative,
    weights_to_sigma,
)
from jaxkern.xpcs.fitting.starting import (
    SIGMA_METHOD,
    RowSample,
    angles_without_signal,
    estimate_sigma,
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """sigma as [n_phi] or a source of [n_phi, n, n], and where it comes from.

    `silent` are angles that count for nothing because they hold the same number everywhere, of
    which a noise is not to be had; their sigma is 0.
    """

    sigma: Array | Source
    method: str
    estimated: bool = False
    silent: tuple[int, ...] = ()

    @property
    def per_angle(self) -> Array | None:
        return self.sigma if isinstance(self.sigma, np.ndarray) else None


def resolve_noise(
    sigma: Any, weights: Any, shape: tuple[int, int, int], sample: RowSample
) -> Noise:
    """Checks what the user gave and brings it into one of two forms.

    Raises:
      ValueError: for both of sigma and weights, a shape that does not fit, or negative numbers.
    """
    if sigma is not None and weights is not None:
        raise ValueError("both sigma and weights are given; wanted one (weights = 1 / sigma^2)")
    if sigma is None and weights is None:
        silent = angles_without_signal(sample)
        found = np.where(silent, 0.0, estimate_sigma(sample))
        names = tuple(map(int, np.flatnonzero(silent)))
        return Noise(found, f"estimated from the data, {SIGMA_METHOD}", True, names)
    what = "sigma" if weights is None else "weights"
    given = sigma if weights is None else weights
    n_phi = shape[0]
    if not isinstance(given, Source | Path | str | Mapping) and np.ndim(given) <= 1:
        value = np.asarray(given, np.float64)
        if value.shape not in ((), (n_phi,)):
            raise ValueError(_wrong_shape(what, value.shape, shape))
        check_not_negative(value, what)
        if weights is not None:
            value = weights_to_sigma(value)
        return Noise(np.ascontiguousarray(np.broadcast_to(value, (n_phi,))), "given")
    source = as_source(given, name=what)
    if source.shape != shape:
        raise ValueError(_wrong_shape(what, source.shape, shape))
    if not getattr(source, "in_memory", False) or not isinstance(source, StackSource):
        return Noise(SigmaSource(source, what), "given")
    for matrix in source.array:
        check_not_negative(matrix, what)
    return Noise(source if weights is None else SigmaSource(source, what), "given")


def _wrong_shape(what: str, given: tuple[int, ...], shape: tuple[int, int, int]) -> str:
    return (
        f"{what} has the shape {given}; wanted a number, [{shape[0]}] (one for each angle) or the "
        f"shape of the data, {shape}"
    )


def resolve_frames(
    keep: Any, start_frame: int | None, end_frame: int | None, n: int
) -> NDArray[np.bool_]:
    """[n]: the frames that count.

    `keep` is a mask [n], True for frames that count; start_frame and end_frame bound a range as a
    slice does.
    """
    frames = np.zeros(n, bool)
    frames[slice(start_frame, end_frame)] = True
    if keep is not None:
        mask = np.asarray(keep)
        if mask.shape != (n,) or mask.dtype.kind not in "bui":
            raise ValueError(
                f"keep has the shape {mask.shape} and dtype {mask.dtype}; wanted a mask [{n}], "
                "True for frames that count"
            )
        frames &= mask.astype(bool)
    if int(frames.sum()) < 3:
        raise ValueError(
            f"keep, start_frame={start_frame} and end_frame={end_frame} leave {int(frames.sum())} "
            f"of {n} frames; wanted 3 or more"
        )
    return frames
