"""Sizes and formats of many images, read from their headers by several threads, once."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import io
import os
import stat
from typing import Any

import numpy as np

from jaxkern.core import registry
from jaxkern.core.mapped import check_mapped
from jaxkern.core.progress import ProgressBar
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.sources.images.decoding import header_by_pillow

UNKNOWN, JPEG = 0, 1
_CHUNK = 8192  # images between two looks at signals and at the bar
_LONG = 20_000  # images from which on there is a bar
_FILES_AT_ONCE = 32  # most of their time threads wait for a disk


@dataclasses.dataclass(frozen=True, eq=False)
class Headers:
    """What is known of N images before they are decoded.

    Attributes:
      size: int32 [N, 2], height and width as they stand upright; zeros where that is not known.
      kind: uint8 [N], the place in `formats`.
      formats: "" for what cannot be understood, "JPEG" for what jaxkern's decoder takes, and what
        others there are.
      stamp: int64 [N, 2], of files: bytes, and time of change in nanoseconds; -1 where there was
        none to read.
    """

    size: np.ndarray
    kind: np.ndarray
    formats: tuple[str, ...]
    stamp: np.ndarray

    @classmethod
    def unknown(cls, count: int) -> Headers:
        """Of so many images of which nothing is known."""
        return cls(
            np.zeros((count, 2), np.int32),
            np.zeros(count, np.uint8),
            ("", "JPEG"),
            np.full((count, 2), -1, np.int64),
        )

    def counts(self) -> dict[str, int]:
        """Images of each format, the most frequent first."""
        found = np.bincount(self.kind, minlength=len(self.formats))
        order = sorted(range(len(found)), key=lambda kind: -found[kind])
        return {self.formats[kind]: int(found[kind]) for kind in order if found[kind]}

    def replaced(self, records: np.ndarray, other: Headers) -> Headers:
        """With those of some records taken from `other`, which has them in that order."""
        formats = [*self.formats, *(name for name in other.formats if name not in self.formats)]
        renumbered = np.array([formats.index(name) for name in other.formats], np.uint8)
        size, kind, stamp = self.size.copy(), self.kind.copy(), self.stamp.copy()
        size[records], stamp[records] = other.size, other.stamp
        kind[records] = renumbered[other.kind]
        return Headers(size, kind, tuple(formats), stamp)


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """Where encoded images lie, or the names of their files.

    Attributes:
      blobs: uint8 [B] each.
      place: int64 [N, 3] of each: its blob, offset and length there.
      in_files: whether they are names, as the system takes them.
    """

    blobs: tuple[np.ndarray, ...]
    place: np.ndarray
    in_files: bool

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, record: int) -> memoryview:
        """The bytes of an image, or of a name."""
        blob, offset, length = self.place[record].tolist()
        return memoryview(self.blobs[blob])[offset : offset + length]

    def taken(self, records: np.ndarray) -> Places:
        """Those of some records."""
        return dataclasses.replace(self, place=np.ascontiguousarray(self.place[records]))

    def opened(self, record: int) -> Any:
        """A binary file of an image; what is no regular file, such as a pipe, is an OSError."""
        if not self.in_files:
            return io.BytesIO(self[record])
        return open(bytes(self[record]), "rb", opener=_opened_if_regular)

    def check(self, records: np.ndarray | None = None) -> None:
        """Raises OSError where the bytes of some images, or of all, are no longer mapped."""
        blobs = np.unique(self.place[:, 0] if records is None else self.place[records, 0])
        for blob in blobs.tolist():
            check_mapped("an encoded image", self.blobs[blob])


def read_stamps(names: Places) -> np.ndarray:
    """int64 [N, 2]: size and time of change in ns of files; -1 where there is none."""
    found = np.full((len(names), 2), -1, np.int64)
    native = registry.module("cpu")
    if native is not None:
        native.stamp_files(names.blobs, names.place, _FILES_AT_ONCE, found)
        return found
    for record in range(len(names)):
        found[record] = _stamp(bytes(names[record]))
    return found


def read_headers(images: Places) -> Headers:
    """The headers of images: JPEG by native code, what it does not understand by Pillow.

    What cannot be understood by either is unknown, and so is a file that cannot be read; decoding
    tells why. A bar shows long work on a terminal.
    """
    found = Headers.unknown(len(images))
    with ProgressBar(len(images) > _LONG, "headers", "image") as bar:
        for start in range(0, len(images), _CHUNK):
            records = np.arange(start, min(start + _CHUNK, len(images)))
            found = _filled(found, images, records)
            bar.update(int(records[-1]) + 1, len(images))
    return found


def _filled(found: Headers, images: Places, records: np.ndarray) -> Headers:
    part = slice(int(records[0]), int(records[-1]) + 1)
    for blob in np.unique(images.place[part, 0]).tolist():
        check_mapped("images", images.blobs[blob])
    native = registry.module("cpu")
    if native is not None:
        place = images.place[part]
        if images.in_files:
            native.jpeg_file_sizes(
                images.blobs, place, _FILES_AT_ONCE, found.size[part], found.stamp[part]
            )
        else:
            native.jpeg_sizes(images.blobs, place, num_threads(), found.size[part])
        found.kind[part] = np.where(found.size[part, 0] > 0, JPEG, UNKNOWN)
    elif images.in_files:
        found.stamp[part] = read_stamps(images.taken(records))
    left = records[found.kind[part] == UNKNOWN]
    if images.in_files:  # of those that can be read
        left = left[found.stamp[left, 0] >= 0]
    if left.size == 0:
        return found
    formats = list(found.formats)
    with concurrent.futures.ThreadPoolExecutor(num_threads()) as threads:
        headers = threads.map(lambda record: _header_if_any(images, record), left.tolist())
        for record, header in zip(left.tolist(), headers, strict=True):
            if header is False:  # not to be kept: it may be installed next time
                found.stamp[record] = -1
            elif header is not None:
                if header.format not in formats:
                    formats.append(header.format)
                found.size[record] = header.height, header.width
                found.kind[record] = formats.index(header.format)
    return dataclasses.replace(found, formats=tuple(formats))


def _header_if_any(images: Places, record: int) -> Any:
    """None where it cannot be understood; False without Pillow."""
    try:
        with images.opened(record) as file:
            return header_by_pillow(file)
    except ImportError:
        return False
    except Exception:  # decoding it raises again, in its batch's place
        return None


def _opened_if_regular(name: str | bytes, flags: int) -> int:
    """Nobody may ever write into a pipe, and some devices do not end."""
    descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", os.fsdecode(name))


def _stamp(name: bytes) -> tuple[int, int]:
    try:
        found = os.stat(name)
    except OSError:
        return -1, -1
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (-1, -1)
