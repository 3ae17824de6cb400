"""A packed file while it is written: beside its name, with a journal from which it is continued."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from jaxkern.core.paths import publish
from jaxkern.pipeline.packing.records import PackedRecord, Stored, sizes
from jaxkern.pipeline.sources.packed.layout import (
    PAGE,
    PackedField,
    PackedIndex,
    encode_header,
    encode_index,
    layout,
)

# A step of the journal: records, where they end in the file, and the bytes behind it; then the
# CRC-32 of all.
_STEP = struct.Struct("<QQQ")
_CRC = struct.Struct("<I")
# What a kill may cost is written anew.
_STEP_BYTES = 1 << 26
_STEP_SECONDS = 5.0


class PackedWriter:
    """Writes ``NAME.part`` and, at the end, gives it its name; both in the order of the records.

    Args:
      path: of the file.
      fields: as they are stored.
      records: that will be written.
      purpose: what must be the same for a part that is there to be continued.
      overwrite: replace a file at `path`.
    Raises: BlockingIOError where another process writes the same file; OSError where the part or
      the journal is not a regular file of this user; FileExistsError where `path` exists, at once
      or from `finish`.
    """

    def __init__(
        self,
        path: Path,
        fields: Sequence[PackedField],
        records: int,
        purpose: bytes,
        overwrite: bool = False,
    ) -> None:
        self.path = path
        self._overwrite = overwrite
        self._fields = fields
        self._columns = {
            field.name: {
                name: np.zeros((records, *shape), dtype)
                for name, (dtype, shape) in field.columns.items()
            }
            for field in fields
        }
        self._records = records
        self._at = (0, PAGE)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._part = path.with_name(f"{path.name}.part")
        self._journal_path = journal_of(path)
        self._file = _locked(self._part)
        try:
            self._check_free()
            self._journal = _opened(self._journal_path)
            try:
                self._continue(purpose)
            except BaseException:
                self._journal.close()
                raise
        except BaseException:
            self._file.close()
            raise
        self._kept = self._at
        self._kept_at = time.monotonic()

    @property
    def done(self) -> int:
        """Records that are written."""
        return self._at[0]

    def _continue(self, purpose: bytes) -> None:
        """Takes over what is there of the same purpose; begins anew otherwise."""
        end = self._replay(self._journal.read(), purpose)
        done, cursor = self._at
        self._file.truncate(cursor if done else 0)
        self._file.seek(0, os.SEEK_END)
        if not done:
            self._file.write(bytes(PAGE))
        self._journal.truncate(end)
        self._journal.seek(end)
        if not end:
            self._journal.write(purpose)
            self._journal.flush()

    def _replay(self, journal: bytes, purpose: bytes) -> int:
        """Takes over the steps of a journal; returns where the last whole one ends."""
        if not journal.startswith(purpose):
            return 0
        written = os.fstat(self._file.fileno()).st_size
        end = len(purpose)
        while end + _STEP.size + _CRC.size <= len(journal):
            records, cursor, size = _STEP.unpack_from(journal, end)
            begin = end + _STEP.size
            checksum = journal[begin + size : begin + size + _CRC.size]
            whole = checksum == _CRC.pack(zlib.crc32(journal[end : begin + size]))
            if not whole or cursor > written or self.done + records > self._records:
                break
            payload = journal[begin : begin + size]
            for column in self._arrays():
                rows = column[self.done : self.done + records]
                rows[...] = np.frombuffer(payload, column.dtype, rows.size).reshape(rows.shape)
                payload = payload[rows.nbytes :]
            end = begin + size + _CRC.size
            self._at = (self.done + records, cursor)
        return end

    def _arrays(self) -> list[np.ndarray]:
        return [column for field in self._columns.values() for column in field.values()]

    def write(self, record: PackedRecord) -> None:
        """The next record."""
        done, at = self._at
        offsets, end = layout(list(sizes(record)), at)
        places = iter(offsets)
        for name, value in record.items():
            columns = self._columns[name]
            if not isinstance(value, Stored):
                columns["value"][done] = value
                continue
            offset = next(places)
            self._file.write(bytes(offset - at))
            self._file.write(value.data)
            at = offset + len(value.data)
            columns["offset"][done] = offset
            columns["size"][done] = len(value.data)
            columns["crc32"][done] = value.crc32
            columns["shape"][done] = value.shape
        self._at = (done + 1, end)  # at once: an interrupt finds both or none
        late = time.monotonic() - self._kept_at > _STEP_SECONDS
        if late or end - self._kept[1] >= _STEP_BYTES:
            self._keep()

    def _keep(self) -> None:
        """Makes what is written so far last."""
        _sync(self._file)
        first, (done, cursor) = self._kept[0], self._at
        payload = b"".join(column[first:done].tobytes() for column in self._arrays())
        step = _STEP.pack(done - first, cursor, len(payload)) + payload
        self._journal.write(step + _CRC.pack(zlib.crc32(step)))
        self._journal.flush()
        self._kept, self._kept_at = self._at, time.monotonic()

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Writes index and header, and gives the file its name in one step."""
        done, cursor = self._at
        assert done == self._records
        columns = self._columns
        index = encode_index(PackedIndex(done, tuple(self._fields), columns, metadata))
        begin = -(-cursor // PAGE) * PAGE
        self._file.write(bytes(begin - cursor))
        self._file.write(index)
        _sync(self._file)  # before the header, without which it is no packed file
        self._file.seek(0)
        self._file.write(encode_header(self.done, begin, index))
        _sync(self._file)
        try:
            publish(self._part, self.path, self._overwrite)
        except FileExistsError:
            raise self._exists() from None
        self._journal_path.unlink(missing_ok=True)

    def _check_free(self) -> None:
        """Raises before the work where another process has just finished the same file."""
        if not self._overwrite and os.path.lexists(self.path):
            if not self._file.seek(0, os.SEEK_END):
                self._part.unlink()  # which was created a moment ago
            raise self._exists()

    def _exists(self) -> FileExistsError:
        return FileExistsError(
            f"expected no file at {self.path}, got one that another process has finished in the "
            "meantime; remove it and repeat the call, or repeat it with overwrite=True (--force): "
            f"both resume from {self._part}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        """What was begun stays, to be continued."""
        with contextlib.suppress(OSError, ValueError):
            if kind is not None and self.done > self._kept[0]:
                self._keep()
        for file in (self._journal, self._file):
            try:
                file.close()
            except OSError:  # of a full disk, where closing writes what is left
                if kind is None:
                    raise


def journal_of(path: Path) -> Path:
    """The journal beside a file; a kill may leave it there when the file has its name already."""
    return path.with_name(f"{path.name}.journal")


def _opened(path: Path) -> BinaryIO:
    """A regular file of this user for reading and writing, created if it does not exist.

    Links are never followed: in a folder that others can write to, one of them may have put a link
    to a file of this user there. A file with a second name is unlinked and created again.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            return os.fdopen(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), "r+b")
        except FileExistsError:
            pass
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise FileExistsError(
                f"expected {path} to be a regular file, got {stat.filemode(found.st_mode)} (a "
                "link, a folder or a device); remove it"
            )
        if found.st_uid != os.geteuid():
            raise PermissionError(
                f"expected {path} to be a file of user {os.geteuid()}, got one of user "
                f"{found.st_uid}, which is not resumed; remove it"
            )
        with contextlib.suppress(FileNotFoundError):  # another process may rename it now
            file = os.fdopen(os.open(path, flags), "r+b")
            opened = os.fstat(file.fileno())
            if opened.st_nlink <= 1 and os.path.samestat(found, opened):
                return file
            file.close()
            if opened.st_nlink > 1:
                os.unlink(path)


def _locked(path: Path) -> BinaryIO:
    """The file, which no other process has; raises BlockingIOError where one has it."""
    file = _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who had it may have renamed it since: what is open here would be the finished file.
        here = os.fstat(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if here.st_nlink == 1 and os.path.samestat(here, os.stat(path)):
                return file
    except BlockingIOError:
        pass
    except OSError:  # of a file system that has no locks
        return file
    file.close()
    raise BlockingIOError(f"another process is packing this file: it holds {path}")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fdatasync(file.fileno())
