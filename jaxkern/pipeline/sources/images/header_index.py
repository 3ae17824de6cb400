"""The file that keeps the headers of image files, so that the next process need not read them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import zlib
from pathlib import Path

import numpy as np

from jaxkern.core.paths import write_atomically
from jaxkern.pipeline.sources.images.headers import Headers, Places, read_headers, read_stamps

_MAGIC = b"jaxkern image index 1\n"
_SETTLED = 2_000_000_000  # ns: a file may change again within one tick of its file system's clock
_COLUMNS = (("length", "<i8", 1), ("size", "<i4", 2), ("kind", "<u1", 1), ("stamp", "<i8", 2))


class IndexedNames:
    """Names of files and their headers, as an index file holds them.

    Attributes:
      names: relative to the folder of the index, joined.
      length: int64 [N], of each name.
      headers: of the files.
    """

    def __init__(self, names: bytes, length: np.ndarray, headers: Headers) -> None:
        self.names, self.length, self.headers = names, length, headers

    def records(self) -> dict[bytes, int]:
        """The place of each name."""
        ends = np.cumsum(self.length).tolist()
        starts = [0, *ends[:-1]]
        return {
            self.names[start:end]: k
            for k, (start, end) in enumerate(zip(starts, ends, strict=True))
        }


def indexed_headers(path: Path, files: Places, names: list[bytes], complete: bool) -> Headers:
    """The headers of files, from an index file where they have not changed since it was written.

    A file counts as unchanged while its size and time of change are the same. What is read anew is
    added to the index; one that is damaged, of another version or cannot be written is as none.

    Args:
      path: of the index.
      files: their names as the system takes them.
      names: of the same files, as the index has them.
      complete: whether the index need not keep others.
    """
    known = read_index(path)
    # Of before they are looked at: reading many takes longer than that tick.
    settled = time.time_ns() - _SETTLED
    stamp = read_stamps(files)
    found, same_names = _looked_up(known, names)
    changed = np.flatnonzero((found.stamp != stamp).any(1) | (stamp[:, 0] < 0))
    if changed.size:
        found = found.replaced(changed, read_headers(files.taken(changed)))
    if changed.size or not same_names:
        stamp = np.where(found.stamp[:, 1:] > settled, -1, found.stamp)
        kept = dataclasses.replace(found, stamp=stamp)
        _write(path, names, kept, None if complete else known)
    return found


def read_index(path: Path) -> IndexedNames | None:
    """What an index file holds; None where there is none that can be trusted."""
    try:
        content = path.read_bytes()
        if not content.startswith(_MAGIC):
            return None
        end = content.index(b"\n", len(_MAGIC))
        about = json.loads(content[len(_MAGIC) : end])
        body = memoryview(content)[end + 1 :]
        if zlib.crc32(body) != about["checksum"]:
            return None
        count, formats = int(about["files"]), tuple(map(str, about["formats"]))
        columns, offset = {}, 0
        for name, dtype, width in _COLUMNS:
            column = np.frombuffer(body, dtype, count * width, offset)
            offset += column.nbytes
            # Copied, since they lie at any address there.
            columns[name] = column.reshape((count, width) if width > 1 else count).copy()
        names, length = bytes(body[offset:]), columns.pop("length")
        if (length < 0).any() or length.sum() != len(names):
            return None
        if formats[:2] != ("", "JPEG") or (columns["kind"] >= len(formats)).any():
            return None
        return IndexedNames(names, length, Headers(formats=formats, **columns))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _looked_up(known: IndexedNames | None, names: list[bytes]) -> tuple[Headers, bool]:
    """What is known of the names, and whether it is what is known of those and no others."""
    if known is None:
        return Headers.unknown(len(names)), False
    same_length = np.array_equal(known.length, np.fromiter(map(len, names), np.int64, len(names)))
    if same_length and known.names == b"".join(names):
        return known.headers, True
    places = known.records()
    place = np.array([places.get(name, -1) for name in names], np.int64)
    there = np.flatnonzero(place >= 0)
    headers = known.headers
    part = Headers(
        headers.size[place[there]],
        headers.kind[place[there]],
        headers.formats,
        headers.stamp[place[there]],
    )
    return Headers.unknown(len(names)).replaced(there, part), False


def _write(path: Path, names: list[bytes], headers: Headers, others: IndexedNames | None) -> None:
    """Writes the index, with those of `others` that are not among the names."""
    if others is not None:
        mine = set(names)
        kept = [(name, k) for name, k in others.records().items() if name not in mine]
        places = np.array([k for _, k in kept], np.int64)
        count = len(names)
        names = [*names, *(name for name, _ in kept)]
        wide, old = Headers.unknown(len(names)), others.headers
        wide = wide.replaced(np.arange(count), headers)
        headers = wide.replaced(
            np.arange(count, len(names)),
            Headers(old.size[places], old.kind[places], old.formats, old.stamp[places]),
        )
    columns = {
        "length": np.fromiter(map(len, names), np.int64, len(names)),
        "size": headers.size,
        "kind": headers.kind,
        "stamp": headers.stamp,
    }
    body = b"".join(
        [*(np.ascontiguousarray(columns[n], d).tobytes() for n, d, _ in _COLUMNS), *names]
    )
    about = {"files": len(names), "formats": headers.formats, "checksum": zlib.crc32(body)}
    # Without a place to keep it, headers are read again by the next process.
    with contextlib.suppress(OSError):
        write_atomically(path, _MAGIC + json.dumps(about).encode() + b"\n" + body)
