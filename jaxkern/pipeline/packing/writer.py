"""Writing of a packed file next to its final name, with a journal for resuming."""

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
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from jaxkern.core.paths import publish
from jaxkern.pipeline.sources.packed.layout import (
    PAGE,
    PackedField,
    PackedIndex,
    encode_header,
    encode_index,
    layout,
)

# A step of the journal: number of records, their end in the file, size of the payload; followed by
# the payload and the CRC-32 of all.
_STEP = struct.Struct("<QQQ")
_CRC = struct.Struct("<I")
# A kill loses at most the data since the last step.
_STEP_BYTES = 1 << 26
_STEP_SECONDS = 5.0


class Stored(NamedTuple):
    """Data of a record's field that are stored outside the index."""

    data: Any  # bytes-like
    shape: tuple[int, ...]
    crc32: int


#: a record: field -> its value in a column, or stored data
PackedRecord = dict[str, np.ndarray | Stored]


class PackedWriter:
    """Writes `records` records to ``NAME.part`` in order, and renames it when complete.

    An existing part is resumed if `purpose`, a digest of settings and source, is equal.

    Raises:
      BlockingIOError: another process writes the same file.
      OSError: the part or the journal is not a regular file of this user.
      FileExistsError: `path` exists without `overwrite`, initially or in `finish`.
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
        with contextlib.ExitStack() as opened:
            self._file = opened.enter_context(_open_locked(self._part))
            self._check_free()
            self._journal = opened.enter_context(_open_own(self._journal_path))
            self._resume(purpose)
            opened.pop_all()  # both remain open
        self._synced = self._at
        self._synced_time = time.monotonic()

    @property
    def done(self) -> int:
        """Return the number of written records."""
        return self._at[0]

    def _resume(self, purpose: bytes) -> None:
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
        if not journal.startswith(purpose):
            return 0
        written = os.fstat(self._file.fileno()).st_size
        end = len(purpose)
        while end + _STEP.size + _CRC.size <= len(journal):
            records, cursor, size = _STEP.unpack_from(journal, end)
            begin = end + _STEP.size
            checksum = journal[begin + size : begin + size + _CRC.size]
            valid = checksum == _CRC.pack(zlib.crc32(journal[end : begin + size]))
            if not valid or cursor > written or self.done + records > self._records:
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
        """Write the next record."""
        done, at = self._at
        stored = [value for value in record.values() if isinstance(value, Stored)]
        offsets, end = layout([len(value.data) for value in stored], at)
        remaining_offsets = iter(offsets)
        for name, value in record.items():
            columns = self._columns[name]
            if not isinstance(value, Stored):
                columns["value"][done] = value
                continue
            offset = next(remaining_offsets)
            self._file.write(bytes(offset - at))
            self._file.write(value.data)
            at = offset + len(value.data)
            columns["offset"][done] = offset
            columns["size"][done] = len(value.data)
            columns["crc32"][done] = value.crc32
            columns["shape"][done] = value.shape
        self._at = (done + 1, end)  # one assignment: atomic for interrupts
        late = time.monotonic() - self._synced_time > _STEP_SECONDS
        if late or end - self._synced[1] >= _STEP_BYTES:
            self._sync_step()

    def _sync_step(self) -> None:
        """Make the written records durable, and add a step to the journal."""
        _sync(self._file)
        first, (done, cursor) = self._synced[0], self._at
        payload = b"".join(column[first:done].tobytes() for column in self._arrays())
        step = _STEP.pack(done - first, cursor, len(payload)) + payload
        self._journal.write(step + _CRC.pack(zlib.crc32(step)))
        self._journal.flush()
        self._synced, self._synced_time = self._at, time.monotonic()

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Write index and header, and rename the file to its final name."""
        done, cursor = self._at
        assert done == self._records
        index = encode_index(PackedIndex(done, tuple(self._fields), self._columns, metadata))
        begin = -(-cursor // PAGE) * PAGE
        self._file.write(bytes(begin - cursor))
        self._file.write(index)
        _sync(self._file)  # before the header, which makes it a packed file
        self._file.seek(0)
        self._file.write(encode_header(self.done, begin, index))
        _sync(self._file)
        try:
            publish(self._part, self.path, self._overwrite)
        except FileExistsError:
            raise self._exists() from None
        self._journal_path.unlink(missing_ok=True)

    def _check_free(self) -> None:
        """Raise early if another process has finished the same file."""
        if not self._overwrite and os.path.lexists(self.path):
            if not self._file.seek(0, os.SEEK_END):
                self._part.unlink()  # created above
            raise self._exists()

    def _exists(self) -> FileExistsError:
        return FileExistsError(
            f"another process has finished {self.path} meanwhile; remove it, or use overwrite=True "
            f"(--force): the call resumes from {self._part}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        """Keep an incomplete part for resuming."""
        with contextlib.suppress(OSError, ValueError):
            if kind is not None and self.done > self._synced[0]:
                self._sync_step()
        for file in (self._journal, self._file):
            try:
                file.close()
            except OSError:  # for example a full disk, when closing flushes
                if kind is None:
                    raise


def journal_of(path: Path) -> Path:
    """Return the path of a file's journal; a kill may leave it next to the finished file."""
    return path.with_name(f"{path.name}.journal")


def _open_own(path: Path) -> BinaryIO:
    """Open a regular file of this user for reading and writing, and create it if missing.

    Links are not followed: in a shared folder another user may have created a link to a file of
    this user. A file with a second name is unlinked and created again.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            return os.fdopen(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), "r+b")
        except FileExistsError:
            pass
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            mode = stat.filemode(status.st_mode)
            raise FileExistsError(f"expected {path} to be a regular file, got {mode}; remove it")
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is a file of user {status.st_uid}; remove it")
        with contextlib.suppress(FileNotFoundError):  # another process may rename it now
            file = os.fdopen(os.open(path, flags), "r+b")
            opened = os.fstat(file.fileno())
            if opened.st_nlink <= 1 and os.path.samestat(status, opened):
                return file
            file.close()
            if opened.st_nlink > 1:
                os.unlink(path)


def _open_locked(path: Path) -> BinaryIO:
    """Open and lock a file; raise BlockingIOError if another process has locked it."""
    file = _open_own(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner may have renamed it: then the open file is the finished one.
        opened = os.fstat(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if opened.st_nlink == 1 and os.path.samestat(opened, os.stat(path)):
                return file
    except BlockingIOError:
        pass
    except OSError:  # the file system may not support locks
        return file
    file.close()
    raise BlockingIOError(f"another process is packing this file: it has locked {path}")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fdatasync(file.fileno())
