"""Frames in IMM files: a header of 1024 bytes before each, dense or as events.

Of a header: compression i32 at byte 4 (6: events), rows i32 at 108, columns i32 at 112, bytes of a
pixel i32 at 116, elapsed f64 at 128, preset f64 at 136, length u32 at 152; date of 32 bytes at 8.
Events are length times pixel i32, then length times count i16; a dense frame is length times u16.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.mapped import check_mapped
from jaxkern.xpcs.detectors.events import MAX_INDEX
from jaxkern.xpcs.detectors.frames import DetectorFileError, Events, FrameSource

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
    """An IMM file, mapped into memory; frames in the order of the file.

    Raises:
      FileNotFoundError: no such file.
      DetectorFileError: for a header that is not of this file's kind, or data that end in a frame;
        from `read` and `events`, for pixels outside the frame and negative counts.
    """

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__()
        self.name = os.fspath(path)
        size = Path(self.name).stat().st_size
        if size < _HEADER.itemsize:
            raise DetectorFileError(
                f"{self.name} has {size} bytes; wanted a header of 1024 and more"
            )
        self._bytes = np.memmap(self.name, np.uint8, mode="r")
        header = self._header(0)
        height, width = int(header["rows"]), int(header["columns"])
        self.is_sparse = int(header["compression"]) == _EVENTS
        if height < 1 or width < 1 or height * width > MAX_INDEX:
            raise DetectorFileError(
                f"{self.name}: the first header says {height} rows and {width} columns; wanted 1 "
                f"to {MAX_INDEX} pixels. Is it an IMM file?"
            )
        if not self.is_sparse and int(header["bytes"]) != 2:
            raise DetectorFileError(
                f"{self.name}: the first header says {header['bytes']} bytes a pixel and "
                f"compression {header['compression']}; wanted 2 bytes, or compression 6. Is it an "
                "IMM file?"
            )
        self._size = height * width
        self._places, self._lengths = self._contents(header)
        self.shape = (len(self._places), height, width)
        self.dtype = np.dtype(np.uint16)
        self.metadata = self._told(header)

    def _header(self, place: int) -> Any:
        return np.ndarray((), _HEADER, self._bytes, place)

    def _contents(self, first: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the data of each frame begin, and how many numbers they are."""
        total, width = len(self._bytes), 6 if self.is_sparse else 2
        places: list[int] = []
        lengths: list[int] = []
        place = 0
        kind = [int(first[key]) for key in ("compression", "rows", "columns")]
        while place < total:
            where = f"{self.name}: the header of frame {len(places)} at byte {place}"
            if total - place < _HEADER.itemsize:
                raise DetectorFileError(f"{where} is cut off: the file ends at byte {total}")
            header = self._header(place)
            found = [int(header[key]) for key in ("compression", "rows", "columns")]
            length = int(header["length"])
            if found != kind:
                raise DetectorFileError(
                    f"{where} says compression, rows and columns {found}; wanted {kind} as in the "
                    "first"
                )
            if length > self._size or (not self.is_sparse and length != self._size):
                raise DetectorFileError(
                    f"{where} says {length} numbers; wanted {'at most ' * self.is_sparse}"
                    f"{self._size}, the pixels of a frame"
                )
            place += _HEADER.itemsize
            if total - place < length * width:
                raise DetectorFileError(
                    f"{where} says {length} numbers of {width} bytes; the file ends at byte {total}"
                )
            places.append(place)
            lengths.append(length)
            place += length * width
        return np.array(places, np.int64), np.array(lengths, np.int64)

    def _told(self, first: Any) -> dict[str, Any]:
        told: dict[str, Any] = {}
        n = len(self._places)
        last = self._header(int(self._places[-1]) - _HEADER.itemsize)
        elapsed = float(last["elapsed"]) - float(first["elapsed"])
        if n > 1 and math.isfinite(elapsed) and elapsed > 0:
            told["frame_time"] = elapsed / (n - 1)
        preset = float(first["preset"])
        if math.isfinite(preset) and preset > 0:
            told["count_time"] = preset
        if date := bytes(first["date"]).decode("ascii", "replace").strip("\0 \n"):
            told["start_time"] = date
        return told

    def read(self, first: int, stop: int) -> NDArray[Any]:
        if self.is_sparse:
            return super().read(first, stop)
        self.check_range(first, stop)
        check_mapped(self.name, self._bytes)
        if first == stop:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        begin = int(self._places[first])
        # Dense frames lie at equal distances: a view, of which nothing is copied here.
        step = _HEADER.itemsize + 2 * self._size
        strides = (step, 2 * self.shape[2], 2)
        return np.ndarray((stop - first, *self.shape[1:]), "<u2", self._bytes, begin, strides)

    def events(self, first: int, stop: int) -> Events:
        if not self.is_sparse:
            return super().events(first, stop)
        self.check_range(first, stop)
        check_mapped(self.name, self._bytes)
        lengths = self._lengths[first:stop]
        pixel = np.empty(int(lengths.sum()), np.int32)
        count = np.empty(len(pixel), np.int16)
        end = 0
        for place, length in zip(self._places[first:stop].tolist(), lengths.tolist(), strict=True):
            begin, end = end, end + length
            pixel[begin:end] = np.ndarray(length, "<i4", self._bytes, place)
            count[begin:end] = np.ndarray(length, "<i2", self._bytes, place + 4 * length)
        frame = np.repeat(np.arange(first, stop, dtype=np.int32), lengths)
        wrong = (pixel < 0) | (pixel >= self._size) | (count < 0)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise DetectorFileError(
                f"{self.name}: frame {frame[place]} has the count {count[place]} in pixel "
                f"{pixel[place]}; wanted counts of 0 or more in pixels 0 to {self._size - 1}"
            )
        counted = count > 0
        if not counted.all():
            pixel, frame, count = pixel[counted], frame[counted], count[counted]
        return Events(pixel, frame, count.astype(np.uint16))
