"""Frames in IMM files: dense or as events, with a header of 1024 bytes before each frame.

Fields of a header at their byte offsets: 4 compression i32 (6: events), 8 date of 32 bytes, 108
rows i32, 112 columns i32, 116 bytes per pixel i32, 128 elapsed f64, 136 preset f64, 152 length u32.
The data of a frame are `length` pixels i32 and `length` counts i16 for events, or `length` counts
u16 for a dense frame.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.mapped import check_mapped
from jaxkern.xpcs.detectors.frames import (
    MAX_INDEX,
    DetectorFileError,
    Events,
    FrameSource,
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

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__()
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
            raise DetectorFileError(
                f"{where}: expected 2 bytes per pixel or compression 6, got {header['bytes']} "
                f"bytes and compression {header['compression']}"
            )
        self._size = height * width
        self._offsets, self._lengths = self._scan_headers(header)
        self.shape = (len(self._offsets), height, width)
        self.dtype = np.dtype(np.uint16)
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
                raise DetectorFileError(
                    f"{where}: expected {'at most ' * self.is_sparse}{self._size} numbers, the "
                    f"pixels of a frame, got {length}"
                )
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
            raise DetectorFileError(
                f"{self.name}: frame {frame[k]}: expected counts of 0 or more in pixels 0 to "
                f"{self._size - 1}, got the count {count[k]} in pixel {pixel[k]}"
            )
        return nonzero_events(pixel, frame, count.astype(np.uint16))
