"""Frames of Rigaku's photon-counting detectors of one module or of six, as 64-bit events.

A little-endian word holds the count in bits 0 to 11, the pixel in bits 16 to 36 and the frame in
bits 40 to 63. Words are ordered by frame.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.mapped import check_mapped
from jaxkern.xpcs.detectors.frames import (
    DetectorFileError,
    Events,
    FrameSource,
    check_frame_shape,
    nonzero_events,
)

#: (H, W) of one module
MODULE = (512, 1024)
# The files 000 to 005 in row-major order of 3 x 2 modules, and the gaps between modules.
_ORDER = (5, 0, 4, 1, 3, 2)
_GAPS = (70, 52)

_COUNT = np.uint64(0xFFF)
_PIXEL = np.uint64(0x1FFFFF)
_PIXEL_BIT = np.uint64(16)
_FRAME_BIT = np.uint64(40)
# Number of the first pixel in modules of the large detector.
_OFFSET = 1 << 20
# Words that are checked at a time, so that they fit into the cache.
_BLOCK = 1 << 15


class RigakuFrames(FrameSource):
    """Frames of a file `.bin`, which is checked and mapped; N is that of the last frame plus 1."""

    is_sparse = True
    dtype = np.dtype(np.uint16)

    def __init__(self, path: str | os.PathLike[str], frame_shape: tuple[int, int] = MODULE):
        super().__init__()
        self.name = os.fspath(path)
        height, width = check_frame_shape(self.name, frame_shape)
        self._words = _mapped_words(self.name)
        self.pixel_base, n_frames = _check_words(self.name, self._words, (height, width))
        self.shape = (n_frames, height, width)
        self.words = self._words

    def events(self, first: int, stop: int) -> Events:
        self.check_range(first, stop)
        check_mapped(self.name, self._words)
        # The frame is in the highest bits, so that words are ordered like their frames.
        begin, end = (
            np.searchsorted(self._words, np.uint64(n) << _FRAME_BIT) if n < self.shape[0] else None
            for n in (first, stop)
        )
        words = self._words[begin:end] if first < stop else self._words[:0]
        frame = (words >> _FRAME_BIT).astype(np.int32)
        pixel = (words >> _PIXEL_BIT & _PIXEL).astype(np.int32) - np.int32(self.pixel_base)
        count = (words & _COUNT).astype(np.uint16)
        # A file that is overwritten while it is mapped has words that were not checked.
        size = self.shape[1] * self.shape[2]
        if words.size and not (
            first <= frame.min() and frame.max() < stop and pixel.min() >= 0 and pixel.max() < size
        ):
            raise DetectorFileError(f"{self.name} has changed since it was opened; open it again")
        return nonzero_events(pixel, frame, count)


class Rigaku3MFrames(FrameSource):
    """Six files `.bin.000` to `.bin.005`, 1676 x 2100 pixels with gaps, which `dead` marks."""

    is_sparse = True
    dtype = np.dtype(np.uint16)

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__()
        self.name = os.fspath(path)
        if not self.name.endswith(".000"):
            raise DetectorFileError(f"expected the first file, NAME.bin.000, got {self.name}")
        self._modules = [RigakuFrames(f"{self.name[:-1]}{number}") for number in _ORDER]
        self.linked = tuple(module.name for module in self._modules if module.name != self.name)
        height = 3 * MODULE[0] + 2 * _GAPS[0]
        width = 2 * MODULE[1] + _GAPS[1]
        self.shape = (max(module.shape[0] for module in self._modules), height, width)
        rows, columns = np.divmod(np.arange(MODULE[0] * MODULE[1], dtype=np.int32), MODULE[1])
        self._inside = rows * np.int32(width) + columns
        self._corners = [
            (k // 2) * (MODULE[0] + _GAPS[0]) * width + (k % 2) * (MODULE[1] + _GAPS[1])
            for k in range(len(_ORDER))
        ]
        gaps = np.ones(height * width, bool)
        for corner in self._corners:
            gaps[self._inside + corner] = False
        self.dead = gaps.reshape(height, width)

    def events(self, first: int, stop: int) -> Events:
        self.check_range(first, stop)
        parts = []
        for module, corner in zip(self._modules, self._corners, strict=True):
            n = module.shape[0]
            pixel, frame, count = module.events(min(first, n), min(stop, n))
            parts.append((self._inside[pixel] + np.int32(corner), frame, count))
        pixel, frame, count = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(frame, kind="stable")
        return Events(pixel[order], frame[order], count[order])


def _mapped_words(name: str) -> NDArray[np.uint64]:
    size = Path(name).stat().st_size
    if size == 0 or size % 8:
        got = f"{size} bytes; is it still being written?" if size else "an empty file"
        raise DetectorFileError(f"{name}: expected events of 8 bytes each, got {got}")
    # Convert to an array, since slicing a memory map is many times slower.
    return np.asarray(np.memmap(name, "<u8", mode="r"))


def _check_words(
    name: str, words: NDArray[np.uint64], frame_shape: tuple[int, int]
) -> tuple[int, int]:
    """Check the words, and return the number of the first pixel and the number of frames."""
    lowest, last, pixels = int(_PIXEL), -1, []
    for begin in range(0, len(words), _BLOCK):
        block = words[begin : begin + _BLOCK]
        frame = block >> _FRAME_BIT
        if int(frame[0]) < last or (frame[1:] < frame[:-1]).any():
            before = np.concatenate([[np.uint64(max(last, 0))], frame[:-1]])
            k = int(np.flatnonzero(frame < before)[0])
            raise DetectorFileError(
                f"{name}: expected events ordered by frame, got event {begin + k} of frame "
                f"{frame[k]} after one of frame {before[k]}"
            )
        last = int(frame[-1])
        pixel = block >> _PIXEL_BIT & _PIXEL
        lowest = min(lowest, int(pixel.min()))
        pixels.append(int(pixel.max()))
    n_pixels = frame_shape[0] * frame_shape[1]
    base = _OFFSET if lowest >= _OFFSET else 0
    for number, highest in enumerate(pixels):
        if highest - base >= n_pixels:
            block = words[number * _BLOCK : (number + 1) * _BLOCK] >> _PIXEL_BIT & _PIXEL
            k = int(np.flatnonzero(block == np.uint64(highest))[0])
            raise DetectorFileError(
                f"{name}: event {number * _BLOCK + k}: expected pixels 0 to {n_pixels - 1} "
                f"({frame_shape[0]} x {frame_shape[1]}, from frame_shape= or the map of bins), got "
                f"{highest - base}"
            )
    return base, last + 1
