"""Multi-tau sums of frames and of events by the native kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.backend import current_backend
from jaxkern.core.memory import available_bytes
from jaxkern.core.registry import missing as why_missing
from jaxkern.core.registry import module
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.delays import multitau_delays
from jaxkern.xpcs.correlators.event_memory import EventMemory
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.pixels import BinnedPixels
from jaxkern.xpcs.correlators.selection import FrameSelection


def native_module() -> ModuleType | None:
    """The native library where its kernels are to be used, else None.

    Raises:
      RuntimeError: where `jaxkern.backend` asks for them and they are not there.
    """
    if current_backend() == "jax":
        return None
    native = module("cpu")
    if native is None and current_backend() == "native":
        raise RuntimeError(
            "jaxkern.backend('native') is asked for, and there are no native kernels: "
            f"{why_missing('multitau', 'cpu')}"
        )
    return native


def sums_in_place(
    native: ModuleType,
    frames: NDArray[Any],
    pixels: BinnedPixels,
    dpl: int,
    average: int,
    bad: NDArray[np.bool_],
    divisor: NDArray[np.float64] | None,
    watch: Callable[[float], None],
) -> BinSums:
    """The sums of frames [N, P] that lie in memory.

    Args:
      bad: [N] which of them are left out.
      divisor: [N] what each is divided by.
      watch: called now and then with the part that is done; what it raises ends the work.
    """
    strips = len(np.unique(pixels.pixel // native.MULTITAU_STRIP))
    call = partial(
        native.multitau,
        frames,
        *_arguments(pixels),
        dpl=dpl,
        average=average,
        bad=bad.view(np.uint8) if bad.any() else None,
        divisor=divisor,
    )
    return _bin_sums(watched(call, strips * (len(frames) // average), watch), pixels)


def sums_of_events(
    native: ModuleType,
    events: EventMemory,
    selection: FrameSelection,
    pixels: BinnedPixels,
    dpl: int,
    watch: Callable[[float], None],
) -> BinSums:
    """The same sums, bit by bit, of events that lie in memory; `watch` as of `sums_in_place`."""
    call = partial(
        native.multitau_events,
        *events.arguments(),
        *events.frames(selection),
        *_arguments(pixels),
        dpl=dpl,
        bytes=available_bytes() / 2,
    )
    return _bin_sums(watched(call, events.size, watch), pixels)


def watched(call: Callable[..., Any], total: int, watch: Callable[[float], None]) -> Any:
    """What a native function gives that counts to `total` what is done, as `sums_in_place`."""
    done = np.zeros(2, np.int64)  # and whether to stop
    with ThreadPoolExecutor(1, "jaxkern-multitau") as worker:
        running = worker.submit(call, threads=num_threads(), progress=done)
        try:
            while not wait([running], timeout=0.1).done:
                watch(done[0] / max(total, 1))
        except BaseException:
            done[1] = 1
            raise
        return running.result()


class NativeSums:
    """Sums of pixels in a state that blocks of frames are added to.

    Args:
      pixels: one or more.
      missing: [N] bad frames in each of the N sums of frames that will be added.
      whole: whether counts are whole numbers.
    """

    def __init__(
        self,
        native: ModuleType,
        pixels: BinnedPixels,
        dpl: int,
        average: int,
        missing: NDArray[np.uint32],
        whole: bool,
    ) -> None:
        self._native, self._pixels = native, pixels
        first, last = pixels.pixel[[0, -1]]
        width = int(last) + 1 - int(first)
        # Frames are taken as they are where most of their pixels are wanted.
        self._first, self._gathered = int(first), width > 2 * len(pixels)
        self._places = pixels.pixel - first
        if self._gathered:
            width = len(pixels)
            self._places = np.arange(width, dtype=np.int32)
        self._carries = _carried_shapes(len(missing), dpl, pixels, whole)
        self._options = {
            "most_frames": len(missing),
            "dpl": dpl,
            "average": average,
            "missing": missing if missing.any() else None,
            "real": not whole,
            "threads": num_threads(),
        }
        shapes = _state_shapes(len(missing), dpl, whole, bool(missing.any()))
        self._state = [np.zeros((rows, width), dtype) for rows, dtype in shapes]
        self._width, self._seen, self._average = width, 0, average

    @staticmethod
    def bytes_of_pixel(n: int, dpl: int, whole: bool, weighted: bool) -> int:
        """Memory of a pixel's state for n sums of frames."""
        shapes = _state_shapes(n, dpl, whole, weighted)
        return sum(rows * dtype.itemsize for rows, dtype in shapes)

    def add(
        self, frames: NDArray[Any], bad: NDArray[np.bool_], divisor: NDArray[np.float64] | None
    ) -> None:
        """Adds frames [T * average, H * W]; `bad` and `divisor` as of `sums_in_place`."""
        if self._gathered:
            taken = np.take(frames, self._pixels.pixel, axis=1)
        else:
            taken = frames[:, self._first : self._first + self._width]
        self._native.multitau_update(
            taken,
            self._seen,
            self._state,
            bad=bad.view(np.uint8) if bad.any() else None,
            divisor=divisor,
            **self._options,
        )
        self._seen += len(frames) // self._average

    @staticmethod
    def tiles(native: ModuleType, pixels: BinnedPixels) -> NDArray[np.int64]:
        """[P] the tile of each pixel: tiles are added one after the other, whoever sums them."""
        strips = np.unique(pixels.pixel // native.MULTITAU_STRIP, return_inverse=True)[1]
        return np.asarray(strips // native.MULTITAU_TILE_STRIPS)

    def bin_sums(self, before: BinSums | None = None) -> BinSums:
        """The sums of what was added, on top of those of the tiles of pixels before.

        Raises:
          ValueError: for negative whole counts, and a pixel with 2^32 - 1 counts together or more.
        """
        carried = [np.zeros(*like) for like in self._carries] if before is None else before.carried
        options = {**self._options, "place": self._places, "carried": carried}
        sums = sums_of_state(
            self._native, self._state, self._seen, self._width, self._pixels, options
        )
        return replace(sums, pixels=carried[-1], carried=carried)


def sums_of_state(
    native: ModuleType,
    state: list[NDArray[Any]],
    seen: int,
    width: int,
    pixels: BinnedPixels,
    options: Mapping[str, Any],
) -> BinSums:
    """The sums of a state of `width` pixels that has `seen` sums of frames."""
    found = native.multitau_reduce(state, seen, width, *_arguments(pixels), **options)
    return _bin_sums(found, pixels)


def _arguments(pixels: BinnedPixels) -> tuple[Any, ...]:
    return pixels.pixel, pixels.static, pixels.dynamic, pixels.n_static, pixels.n_dynamic


def _bin_sums(found: tuple[NDArray[np.float64], ...], pixels: BinnedPixels) -> BinSums:
    weight, sums, mean, squares = found
    counts = np.bincount(pixels.dynamic, minlength=pixels.n_dynamic).astype(np.int64)
    return BinSums(weight, sums, mean, squares, counts)


def _carried_shapes(
    n: int, dpl: int, pixels: BinnedPixels, whole: bool
) -> list[tuple[tuple[int, ...], type[np.generic]]]:
    """(shape, dtype) of what `multitau_reduce` carries from some pixels to the next."""
    delays = len(multitau_delays(n, dpl))
    sums = (3, delays, pixels.n_static)
    dynamic = (delays, pixels.n_dynamic), np.float64
    return [
        ((*sums, 2), np.uint64) if whole else (sums, np.float64),
        dynamic,
        dynamic,
        ((pixels.n_dynamic,), np.int64),
    ]


def _state_shapes(n: int, dpl: int, whole: bool, weighted: bool) -> list[tuple[int, np.dtype[Any]]]:
    """(rows, dtype) of the arrays of a state, as `multitau_update` describes them."""
    delays = len(multitau_delays(n, dpl))
    levels = 1 + max(-(-(delays - 2 * dpl) // dpl), 0)
    wide = np.dtype(np.uint64 if whole else np.float64)
    narrow = np.dtype(np.uint32 if whole else np.float64)
    shapes = [(1, wide), (delays, wide), (delays, narrow), (levels * 2 * dpl, narrow)]
    return shapes + ([(delays, wide)] * 2 if weighted else [])
