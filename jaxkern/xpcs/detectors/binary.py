"""Frames in binary files: IMM, and 64-bit events of Rigaku's detectors of one module or of six.

IMM has a header of 1024 bytes before each frame, whose fields are in `_HEADER`. The data of a frame
are `length` pixels i32 and `length` counts i16 for events, or `length` counts u16 if dense.

Rigaku's little-endian words hold the count in bits 0 to 11, the pixel in bits 16 to 36 and the
frame in bits 40 to 63, and are ordered by frame.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arrays import check_mapped
from jaxkern.xpcs.detectors.frames import (
    MAX_INDEX,
    DetectorFileError,
    Events,
    FrameSource,
    check_frame_shape,
    nonzero_events,
)

_HEADER = np.dtype(
    {
        "names": ["compression", "date", "rows", "columns", "bytes", "elapsed", "preset", "length"],
        "formats": ["<i4", "S32", "<i4", "<i4", "<i4", "<f8", "<f8", "<u4"],
        "offsets": [4, 8, 108, 112, 116, 128, 136, 152],
        "itemsize": 1024,
    }
)
_EVENTS = 6


class ImmFrames(FrameSource):
    """Frames of an IMM file, mapped into memory, in the order of the file."""

    dtype = np.dtype(np.uint16)

    def __init__(self, path: str | os.PathLike[str]):
        self.name = os.fspath(path)
        size = Path(self.name).stat().st_size
        if size < _HEADER.itemsize:
            raise DetectorFileError(f"{self.name}: expected at least 1024 bytes, got {size} bytes")
        self._bytes = np.memmap(self.name, np.uint8, mode="r")
        header = self._header(0)
        height, width = int(header["rows"]), int(header["columns"])
        self.is_sparse = int(header["compression"]) == _EVENTS
        where = f"{self.name}, which may not be an IMM file: the first header"
        if height < 1 or width < 1 or height * width > MAX_INDEX:
            raise DetectorFileError(
                f"{where}: expected 1 to {MAX_INDEX} pixels, got {height} rows and {width} columns"
            )
        if not self.is_sparse and int(header["bytes"]) != 2:
            got = f"{header['bytes']} bytes and compression {header['compression']}"
            raise DetectorFileError(f"{where}: expected 2 bytes per pixel or events, got {got}")
        self._size = height * width
        self._offsets, self._lengths = self._scan_headers(header)
        self.shape = (len(self._offsets), height, width)
        self.metadata = self._read_metadata(header)

    def _header(self, offset: int) -> Any:
        return np.ndarray((), _HEADER, self._bytes, offset)

    def _scan_headers(self, first: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the byte offset and the length of the data of each frame."""
        total, width = len(self._bytes), 6 if self.is_sparse else 2
        data: list[tuple[int, int]] = []
        offset, keys = 0, ("compression", "rows", "columns")
        expected = [int(first[key]) for key in keys]
        while offset < total:
            where = f"{self.name}: the header of frame {len(data)} at byte {offset}"
            if total - offset < _HEADER.itemsize:
                raise DetectorFileError(f"{where} is truncated: the file ends at byte {total}")
            header = self._header(offset)
            fields = [int(header[key]) for key in keys]
            length = int(header["length"])
            if fields != expected:
                raise DetectorFileError(
                    f"{where}: expected compression, rows and columns {expected}, got {fields}"
                )
            if length > self._size or (not self.is_sparse and length != self._size):
                most = f"{'at most ' * self.is_sparse}{self._size} numbers, the pixels of a frame"
                raise DetectorFileError(f"{where}: expected {most}, got {length}")
            offset += _HEADER.itemsize
            if total - offset < length * width:
                raise DetectorFileError(
                    f"{where}: expected {length} numbers of {width} bytes, got end at byte {total}"
                )
            data.append((offset, length))
            offset += length * width
        offsets, lengths = np.array(data, np.int64).T
        return offsets, lengths

    def _read_metadata(self, first: Any) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        n = len(self._offsets)
        last = self._header(int(self._offsets[-1]) - _HEADER.itemsize)
        elapsed = float(last["elapsed"]) - float(first["elapsed"])
        if n > 1 and math.isfinite(elapsed) and elapsed > 0:
            metadata["frame_time"] = elapsed / (n - 1)
        preset = float(first["preset"])
        if math.isfinite(preset) and preset > 0:
            metadata["count_time"] = preset
        if date := bytes(first["date"]).decode("ascii", "replace").strip("\0 \n"):
            metadata["start_time"] = date
        return metadata

    def read(self, first: int, stop: int) -> NDArray[Any]:
        if self.is_sparse:
            return super().read(first, stop)
        self.check_range(first, stop)
        check_mapped(self.name, self._bytes)
        if first == stop:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        begin = int(self._offsets[first])
        # Dense frames have a constant stride. Return a view without a copy.
        step = _HEADER.itemsize + 2 * self._size
        strides = (step, 2 * self.shape[2], 2)
        return np.ndarray((stop - first, *self.shape[1:]), "<u2", self._bytes, begin, strides)

    def events(self, first: int, stop: int) -> Events:
        if not self.is_sparse:
            return super().events(first, stop)
        self.check_range(first, stop)
        check_mapped(self.name, self._bytes)
        offsets, lengths = self._offsets[first:stop], self._lengths[first:stop]
        pixel = np.empty(int(lengths.sum()), np.int32)
        count = np.empty(len(pixel), np.int16)
        end = 0
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            begin, end = end, end + length
            pixel[begin:end] = np.ndarray(length, "<i4", self._bytes, offset)
            count[begin:end] = np.ndarray(length, "<i2", self._bytes, offset + 4 * length)
        frame = np.repeat(np.arange(first, stop, dtype=np.int32), lengths)
        invalid = (pixel < 0) | (pixel >= self._size) | (count < 0)
        if invalid.any():
            k = int(np.flatnonzero(invalid)[0])
            where = f"{self.name}: frame {frame[k]}: pixels 0 to {self._size - 1}"
            raise DetectorFileError(
                f"{where}: expected counts of 0 or more, got count {count[k]} in pixel {pixel[k]}"
            )
        return nonzero_events(pixel, frame, count.astype(np.uint16))


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
        self.name = os.fspath(path)
        height, width = check_frame_shape(self.name, frame_shape)
        size = Path(self.name).stat().st_size
        if size == 0 or size % 8:
            got = f"{size} bytes; is it still being written?" if size else "an empty file"
            raise DetectorFileError(f"{self.name}: expected events of 8 bytes each, got {got}")
        # Convert to an array, since slicing a memory map is many times slower.
        self._words = np.asarray(np.memmap(self.name, "<u8", mode="r"))
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
            got = f"event {begin + k} of frame {frame[k]} after one of frame {before[k]}"
            raise DetectorFileError(f"{name}: expected events ordered by frame, got {got}")
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
                f"{name}: event {number * _BLOCK + k}: expected pixels 0 to {n_pixels - 1} of "
                f"{frame_shape[0]} x {frame_shape[1]} (frame_shape= or qmap), got {highest - base}"
            )
    return base, last + 1
