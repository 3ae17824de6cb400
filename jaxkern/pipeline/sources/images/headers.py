"""Headers of many images, read by several threads, and an index file that stores them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import io
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxkern.core import registry
from jaxkern.core.arrays import check_mapped
from jaxkern.core.caches import SETTLED, read_index, write_index
from jaxkern.core.progress import ProgressBar
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.sources.images.decoding import header_by_pillow

UNKNOWN, JPEG = 0, 1
_CHUNK = 8192  # number of images between checks for signals and updates of the progress bar
_BAR_IMAGES = 20_000  # minimum number of images for a progress bar
_FILES_AT_ONCE = 32  # number of threads, which mostly wait for the disk
_ABOUT = {"contents": "headers of image files", "version": 2}


@dataclasses.dataclass(frozen=True, eq=False)
class Headers:
    """Sizes and formats of N images, from their headers."""

    size: np.ndarray  # int32 [N, 2], height and width of the upright image; zeros if unknown
    kind: np.ndarray  # uint8 [N], index in `formats`
    formats: tuple[str, ...]  # "" if unknown, "JPEG" if jaxkern's decoder supports it, then others
    stamp: np.ndarray  # int64 [N, 2], size in bytes and modification time in ns; -1 if unreadable

    @classmethod
    def unknown(cls, count: int) -> Headers:
        """Return headers of `count` unknown images."""
        size, stamp = np.zeros((count, 2), np.int32), np.full((count, 2), -1, np.int64)
        return cls(size, np.zeros(count, np.uint8), ("", "JPEG"), stamp)

    def counts(self) -> dict[str, int]:
        """Return the number of images of each format, the most frequent first."""
        counts = np.bincount(self.kind, minlength=len(self.formats))
        order = sorted(range(len(counts)), key=lambda kind: -counts[kind])
        return {self.formats[kind]: int(counts[kind]) for kind in order if counts[kind]}

    def select(self, records: np.ndarray) -> Headers:
        """Return the headers of some records."""
        return Headers(self.size[records], self.kind[records], self.formats, self.stamp[records])

    def __add__(self, other: Headers) -> Headers:
        formats = [*self.formats, *(name for name in other.formats if name not in self.formats)]
        renumbered = np.array([formats.index(name) for name in other.formats], np.uint8)
        kind = np.concatenate([self.kind, renumbered[other.kind]])
        size = np.concatenate([self.size, other.size])
        return Headers(size, kind, tuple(formats), np.concatenate([self.stamp, other.stamp]))


@dataclasses.dataclass(frozen=True, eq=False)
class ByteRanges:
    """Byte ranges of encoded images, or of the names of their files."""

    blobs: tuple[np.ndarray, ...]  # uint8 [B] each
    ranges: np.ndarray  # int64 [N, 3]: blob, offset and length of each
    in_files: bool  # True if they are file names, in the encoding of the file system

    @classmethod
    def from_columns(
        cls,
        blobs: Sequence[np.ndarray],
        blob: Any,
        offset: Any,
        length: Any,
        in_files: bool = False,
    ) -> ByteRanges:
        """Return N ranges; blob, offset and length are arrays [N], or numbers for all ranges."""
        columns = np.broadcast_arrays(blob, offset, length)
        return cls(tuple(blobs), np.stack(columns, axis=1).astype(np.int64), in_files)

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, record: int) -> memoryview:
        """Return the bytes of an image, or of a name."""
        blob, offset, length = self.ranges[record].tolist()
        return memoryview(self.blobs[blob])[offset : offset + length]

    def bytes_of(self, record: int) -> memoryview:
        """Return the bytes of an image; raise OSError if its mapped file was truncated."""
        check_mapped("an encoded image", self.blobs[self.ranges[record, 0]])
        return self[record]

    def select(self, records: np.ndarray) -> ByteRanges:
        """Return the ranges of some records."""
        return dataclasses.replace(self, ranges=np.ascontiguousarray(self.ranges[records]))

    def open(self, record: int) -> Any:
        """Open an image as a binary file; raise OSError for pipes and other special files."""
        if not self.in_files:
            return io.BytesIO(self[record])
        return open(bytes(self[record]), "rb", opener=_open_regular)

    def check(self, records: np.ndarray | None = None) -> None:
        """Raise OSError if the mapped file of a record was truncated; None checks all records."""
        blobs = np.unique(self.ranges[:, 0] if records is None else self.ranges[records, 0])
        for blob in blobs.tolist():
            check_mapped("an encoded image", self.blobs[blob])


def read_stamps(names: ByteRanges) -> np.ndarray:
    """Return int64 [N, 2]: size and modification time in ns of files; -1 if unreadable."""
    stamps = np.full((len(names), 2), -1, np.int64)
    if (native := registry.module("cpu")) is not None:
        native.stamp_files(names.blobs, names.ranges, _FILES_AT_ONCE, stamps)
        return stamps
    for record in range(len(names)):
        with contextlib.suppress(OSError):
            status = os.stat(bytes(names[record]))
            if stat.S_ISREG(status.st_mode):
                stamps[record] = status.st_size, status.st_mtime_ns
    return stamps


def read_headers(images: ByteRanges) -> Headers:
    """Read the headers of images: JPEG by native code, other formats by Pillow.

    Images in unknown formats and unreadable files have unknown headers; decoding them raises the
    error.
    """
    headers = Headers.unknown(len(images))
    with ProgressBar(len(images) > _BAR_IMAGES, "headers", "image") as bar:
        for start in range(0, len(images), _CHUNK):
            records = np.arange(start, min(start + _CHUNK, len(images)))
            headers = _read_chunk(headers, images, records)
            bar.update(int(records[-1]) + 1, len(images))
    return headers


def _read_chunk(headers: Headers, images: ByteRanges, records: np.ndarray) -> Headers:
    part = slice(int(records[0]), int(records[-1]) + 1)
    if (native := registry.module("cpu")) is not None:
        ranges = images.ranges[part]
        if images.in_files:
            native.jpeg_file_sizes(
                images.blobs, ranges, _FILES_AT_ONCE, headers.size[part], headers.stamp[part]
            )
        else:
            native.jpeg_sizes(images.blobs, ranges, num_threads(), headers.size[part])
        headers.kind[part] = np.where(headers.size[part, 0] > 0, JPEG, UNKNOWN)
    elif images.in_files:
        headers.stamp[part] = read_stamps(images.select(records))
    remaining = records[headers.kind[part] == UNKNOWN]
    if images.in_files:  # skip unreadable files
        remaining = remaining[headers.stamp[remaining, 0] >= 0]
    if remaining.size == 0:
        return headers
    formats = list(headers.formats)
    with concurrent.futures.ThreadPoolExecutor(num_threads()) as threads:
        results = threads.map(lambda record: _header_or_none(images, record), remaining.tolist())
        for record, header in zip(remaining.tolist(), results, strict=True):
            if header is False:  # do not cache: Pillow may be installed next time
                headers.stamp[record] = -1
            elif header is not None:
                height, width, form = header
                if form not in formats:
                    formats.append(form)
                headers.size[record] = height, width
                headers.kind[record] = formats.index(form)
    return dataclasses.replace(headers, formats=tuple(formats))


def _header_or_none(images: ByteRanges, record: int) -> Any:
    """Return a header; None if the format is unknown, False if Pillow is missing."""
    try:
        with images.open(record) as file:
            return header_by_pillow(file)
    except ImportError:
        return False
    except Exception:  # raised again by decoding, for the batch
        return None


def _open_regular(name: str | bytes, flags: int) -> int:
    """Open a file if it is regular: reading a pipe may block, and some devices are endless."""
    descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(name))


def indexed_headers(path: Path, files: ByteRanges, names: list[bytes], complete: bool) -> Headers:
    """Return the headers of files; read only those whose size or modification time changed.

    New headers are added to the index at `path`, under `names`. A damaged index, another version,
    and a folder that is not writable are ignored. Entries of other files are kept unless
    `complete`.
    """
    known_names, known = read_header_index(path) or ([], Headers.unknown(0))
    # Read the clock before the files: reading them may take longer than SETTLED.
    settled = time.time_ns() - SETTLED
    stamp = read_stamps(files)
    if same_names := known_names == names:
        headers = known
    else:
        numbers = {name: number for number, name in enumerate(known_names)}
        indices = [numbers.get(name, len(known_names)) for name in names]
        headers = (known + Headers.unknown(1)).select(np.array(indices, np.int64))
    changed = np.flatnonzero((headers.stamp != stamp).any(1) | (stamp[:, 0] < 0))
    if changed.size:
        rows = np.arange(len(names))
        rows[changed] = len(names) + np.arange(len(changed))
        headers = (headers + read_headers(files.select(changed))).select(rows)
    if changed.size or not same_names:
        stamp = np.where(headers.stamp[:, 1:] > settled, -1, headers.stamp)
        stored = dataclasses.replace(headers, stamp=stamp)
        if not complete:
            own = set(names)
            others = [k for k, name in enumerate(known_names) if name not in own]
            names = [*names, *(known_names[k] for k in others)]
            stored += known.select(np.array(others, np.int64))
        columns = {name: getattr(stored, name) for name in ("size", "kind", "stamp")}
        columns["names"] = np.frombuffer(b"".join(name + b"\0" for name in names), np.uint8)
        write_index(path, _ABOUT, {**columns, "formats": np.array(stored.formats)})
    return headers


def read_header_index(path: Path) -> tuple[list[bytes], Headers] | None:
    """Return the names and headers of an index; None if it is missing or invalid."""
    if (arrays := read_index(path, _ABOUT)) is None:
        return None
    names = arrays.pop("names").tobytes().split(b"\0")[:-1]
    return names, Headers(formats=tuple(arrays.pop("formats").tolist()), **arrays)
