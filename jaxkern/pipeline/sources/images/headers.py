"""Headers of many images, read by several threads, and an index file that stores them."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import io
import os
import stat
import time
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
_CHUNK = 8192  # images between two checks for signals and updates of the bar
_BAR_IMAGES = 20_000  # minimum number of images for a progress bar
_FILES_AT_ONCE = 32  # threads mostly wait for the disk
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

    def update(self, records: np.ndarray, other: Headers) -> Headers:
        """Return a copy in which `other` replaces the headers of `records`, in that order."""
        formats = [*self.formats, *(name for name in other.formats if name not in self.formats)]
        renumbered = np.array([formats.index(name) for name in other.formats], np.uint8)
        size, kind, stamp = self.size.copy(), self.kind.copy(), self.stamp.copy()
        size[records], stamp[records] = other.size, other.stamp
        kind[records] = renumbered[other.kind]
        return Headers(size, kind, tuple(formats), stamp)


@dataclasses.dataclass(frozen=True, eq=False)
class ByteRanges:
    """Byte ranges of encoded images, or of the names of their files."""

    blobs: tuple[np.ndarray, ...]  # uint8 [B] each
    ranges: np.ndarray  # int64 [N, 3]: blob, offset and length of each
    in_files: bool  # True if they are names of files, encoded for the file system

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, record: int) -> memoryview:
        """Return the bytes of an image, or of a name."""
        blob, offset, length = self.ranges[record].tolist()
        return memoryview(self.blobs[blob])[offset : offset + length]

    def select(self, records: np.ndarray) -> ByteRanges:
        """Return the ranges of some records."""
        return dataclasses.replace(self, ranges=np.ascontiguousarray(self.ranges[records]))

    def open(self, record: int) -> Any:
        """Open an image as a binary file; raise OSError for pipes and other special files."""
        if not self.in_files:
            return io.BytesIO(self[record])
        return open(bytes(self[record]), "rb", opener=_open_regular)

    def check(self, records: np.ndarray | None = None) -> None:
        """Raise OSError if the mapped file of some records, or of any, was truncated."""
        blobs = np.unique(self.ranges[:, 0] if records is None else self.ranges[records, 0])
        for blob in blobs.tolist():
            check_mapped("an encoded image", self.blobs[blob])


def read_stamps(names: ByteRanges) -> np.ndarray:
    """Return int64 [N, 2]: size and modification time in ns of files; -1 if unreadable."""
    stamps = np.full((len(names), 2), -1, np.int64)
    native = registry.module("cpu")
    if native is not None:
        native.stamp_files(names.blobs, names.ranges, _FILES_AT_ONCE, stamps)
        return stamps
    for record in range(len(names)):
        stamps[record] = _stamp(bytes(names[record]))
    return stamps


def read_headers(images: ByteRanges) -> Headers:
    """Read the headers of images: JPEG by native code, other formats by Pillow.

    Images with unknown formats and unreadable files have unknown headers; decoding raises the
    reason. A progress bar is shown for many images.
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
    native = registry.module("cpu")
    if native is not None:
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
                if header.format not in formats:
                    formats.append(header.format)
                headers.size[record] = header.height, header.width
                headers.kind[record] = formats.index(header.format)
    return dataclasses.replace(headers, formats=tuple(formats))


def _header_or_none(images: ByteRanges, record: int) -> Any:
    """Return a header; None if the format is unknown, False if Pillow is missing."""
    try:
        with images.open(record) as file:
            return header_by_pillow(file)
    except ImportError:
        return False
    except Exception:  # decoding raises it again, for its batch
        return None


def _open_regular(name: str | bytes, flags: int) -> int:
    """Open a regular file only: reading a pipe may block, and some devices are endless."""
    descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(name))


def _stamp(name: bytes) -> tuple[int, int]:
    try:
        status = os.stat(name)
    except OSError:
        return -1, -1
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (-1, -1)


def indexed_headers(path: Path, files: ByteRanges, names: list[bytes], complete: bool) -> Headers:
    """Return the headers of files; read only those that changed since the index was written.

    A file is unchanged if its size and modification time are. Headers that were read are added to
    the index. An index that is damaged, of another version or not writable is ignored.

    Args:
      path: path of the index.
      files: names of the files, for the file system.
      names: names of the same files in the index.
      complete: True if the index need not keep other files.
    """
    known = read_header_index(path)
    # Taken before the files are read, which may take longer than SETTLED.
    settled = time.time_ns() - SETTLED
    stamp = read_stamps(files)
    headers, same_names = _look_up(known, names)
    changed = np.flatnonzero((headers.stamp != stamp).any(1) | (stamp[:, 0] < 0))
    if changed.size:
        headers = headers.update(changed, read_headers(files.select(changed)))
    if changed.size or not same_names:
        stamp = np.where(headers.stamp[:, 1:] > settled, -1, headers.stamp)
        _write_header_index(
            path, names, dataclasses.replace(headers, stamp=stamp), None if complete else known
        )
    return headers


def read_header_index(path: Path) -> tuple[list[bytes], Headers] | None:
    """Return the names and headers of an index; None if it is missing or invalid."""
    arrays = read_index(path, _ABOUT)
    if arrays is None:
        return None
    names = arrays.pop("names").tobytes().split(b"\0")[:-1]
    return names, Headers(formats=tuple(arrays.pop("formats").tolist()), **arrays)


def _look_up(known: tuple[list[bytes], Headers] | None, names: list[bytes]) -> tuple[Headers, bool]:
    """Return the known headers of names, and whether the index has exactly these names."""
    if known is None:
        return Headers.unknown(len(names)), False
    if known[0] == names:
        return known[1], True
    numbers = {name: number for number, name in enumerate(known[0])}
    indices = np.array([numbers.get(name, -1) for name in names], np.int64)
    existing = np.flatnonzero(indices >= 0)
    part = known[1].select(indices[existing])
    return Headers.unknown(len(names)).update(existing, part), False


def _write_header_index(
    path: Path, names: list[bytes], headers: Headers, known: tuple[list[bytes], Headers] | None
) -> None:
    """Write the index, together with the other names of `known`."""
    if known is not None:
        own = set(names)
        others = np.array([k for k, name in enumerate(known[0]) if name not in own], np.int64)
        count = len(names)
        names = [*names, *(known[0][k] for k in others.tolist())]
        headers = Headers.unknown(len(names)).update(np.arange(count), headers)
        headers = headers.update(np.arange(count, len(names)), known[1].select(others))
    columns = {"size": headers.size, "kind": headers.kind, "stamp": headers.stamp}
    joined = np.frombuffer(b"".join(name + b"\0" for name in names), np.uint8)
    write_index(path, _ABOUT, {"names": joined, "formats": np.array(headers.formats), **columns})
