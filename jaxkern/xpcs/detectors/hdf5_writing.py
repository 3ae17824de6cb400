"""New HDF5 files that appear whole or not at all, also when the disk becomes full.

HDF5 cannot close a file whose last bytes it cannot write: groups and data sets outlive it, and the
process crashes when they are freed, at exit at the latest. Here HDF5 writes to a Python object that
accepts every write, also after one has failed, so that the file closes; the error is raised then.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from jaxkern.core.paths import atomic_write

if TYPE_CHECKING:
    import h5py


@contextlib.contextmanager
def new_hdf5(path: Path, overwrite: bool = True) -> Iterator[h5py.File]:
    """Open a new HDF5 file, which gets its name when the block ends without an error.

    The format is that of HDF5 1.8 (2008), in which headers have checksums. Data sets that are
    copied from files of a newer format keep it.

    Raises:
      FileExistsError: `overwrite` is false and `path` exists.
      OSError: the disk is full or fails; what was written is removed.
    """
    import h5py

    if not overwrite and os.path.lexists(path):
        raise FileExistsError(f"expected no file at {path}, got one; remove it or choose another")
    with (
        atomic_write(path, overwrite) as temporary,
        temporary.open("rb+", buffering=0) as raw,
        _interrupts_outside_hdf5(),
    ):
        medium = _Medium(raw)
        try:
            with h5py.File(medium, "w", libver=("v108", "latest")) as file:
                yield file
        except Exception:  # HDF5 may have missed what was not written
            medium.check(path)
            raise
        medium.check(path)


@contextlib.contextmanager
def _interrupts_outside_hdf5() -> Iterator[None]:
    """Delays Ctrl-C while HDF5 is calling a `_Medium`, where an exception is a failed write.

    Python runs signal handlers in the main thread, at the first Python code after the signal. If
    that is a method of `_Medium`, the signal is sent again 10 ms later.
    """
    before, main = signal.getsignal(signal.SIGINT), threading.main_thread()
    if threading.current_thread() is not main or not callable(before):
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None:
            if caller.f_code in codes:
                threading.Timer(0.01, signal.pthread_kill, [main.ident, number]).start()
                return
            caller = caller.f_back
        before(number, frame)

    codes = {method.__code__ for method in vars(_Medium).values() if hasattr(method, "__code__")}
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # of a writer that is closed by another thread
            if signal.getsignal(signal.SIGINT) is handler:
                signal.signal(signal.SIGINT, before)


class _Medium:
    """The file that HDF5 writes to; after a write that failed it accepts all and stores nothing."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._at = 0
        self._size = 0
        self._error: OSError | None = None

    def check(self, path: Path) -> None:
        """Raises the error of the first write that failed."""
        if self._error is not None:
            number = self._error.errno
            reason = self._error.strerror if number is None else os.strerror(number)
            raise OSError(number, f"{path} cannot be written, and is as before: {reason}") from None

    def write(self, data: Any) -> int:
        content = memoryview(data).cast("B")
        if self._error is None:
            try:
                done = 0
                while done < len(content):
                    done += os.pwrite(self._raw.fileno(), content[done:], self._at + done)
            except OSError as error:
                self._error = error
        self._at += len(content)
        self._size = max(self._size, self._at)
        return len(content)

    def read(self, size: int) -> bytes:
        """As h5py knows an object as a file by; it calls `readinto`."""
        buffer = bytearray(size)
        self.readinto(buffer)
        return bytes(buffer)

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer).cast("B")
        found = os.pread(self._raw.fileno(), len(wanted), self._at)
        wanted[:] = found + bytes(len(wanted) - len(found))
        self._at += len(wanted)
        return len(wanted)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        if self._error is None:
            try:
                os.ftruncate(self._raw.fileno(), self._size)
            except OSError as error:
                self._error = error
        return self._size

    def flush(self) -> None:
        """Nothing is buffered."""
