"""Opening and writing of HDF5 files: links, filter plugins, errors with paths, full disks."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from jaxkern.core.paths import atomic_write
from jaxkern.xpcs.detectors.frames import DetectorFileError

if TYPE_CHECKING:
    import h5py


def open_hdf5(name: str | Path, error_type: type[ValueError] = DetectorFileError) -> h5py.File:
    """Open a file for reading; raise `error_type` if it is not a valid HDF5 file."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"{name} requires h5py; run pip install 'jaxkern-native[xpcs]'"
        ) from error

    if not Path(name).exists():
        raise FileNotFoundError(f"file not found: {str(name)!r}")
    try:
        return h5py.File(name, "r")
    except (OSError, RuntimeError, ValueError) as error:
        # A detector may allow reading while it writes (single writer, multiple readers).
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            return h5py.File(name, "r", libver="latest", swmr=True)
        raise error_type(f"{name} cannot be opened as an HDF5 file: {error}") from error


@contextlib.contextmanager
def hdf5_errors(
    name: str | Path, path: str | None = None, error_type: type[ValueError] = DetectorFileError
) -> Iterator[None]:
    """Convert h5py's errors about groups, links, headers and data to errors with the path."""
    try:
        yield
    except error_type as error:
        if str(name) in str(error):
            raise
        raise error_type(f"{name}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError,
            TypeError, ValueError) as error:  # fmt: skip
        reason = error.args[0] if error.args else error
        where = f"{name}: {path}" if path else name
        raise error_type(
            f"{where} cannot be read; the file is damaged, or has a broken link: {reason}"
        ) from error


def find_object(group: Any, name: str) -> Any:
    """Return the object with a name, or None; raise an error that names a broken link."""
    import h5py

    at = group
    for step in filter(None, name.split("/")):
        link = at.get(step, getlink=True) if isinstance(at, h5py.Group) else None
        if link is None:
            return None
        try:
            at = at[step]
        except (KeyError, OSError, RuntimeError) as error:
            target = link.path if hasattr(link, "path") else step
            other = f"{link.filename}, " if hasattr(link, "filename") else ""
            raise DetectorFileError(
                f"{group.file.filename}: {at.name.rstrip('/')}/{step} is a link to {other}"
                f"{target}, which does not exist"
            ) from error
    return at


def find_dataset(group: Any, name: Any) -> h5py.Dataset | None:
    """Return the data set with a name, or None."""
    found = find_object(group, name) if isinstance(name, str) else None
    return found if hasattr(found, "maxshape") else None


def find_group(group: Any, name: str) -> h5py.Group | None:
    """Return the group with a name, or None."""
    found = find_object(group, name)
    return found if hasattr(found, "keys") else None


def check_filters(name: str, stored: h5py.Dataset) -> None:
    """Load the plugins that a compression needs, or raise an error if they are missing."""
    import h5py

    plist = stored.id.get_create_plist()
    codes = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
    missing = [code for code in codes if not h5py.h5z.filter_avail(code)]
    if not missing:
        return
    where = f"{name}: {stored.name} is compressed by the HDF5 filters {missing}"
    try:
        import hdf5plugin  # noqa: F401, registers them
    except ImportError as error:
        raise ImportError(
            f"{where} of hdf5plugin; pip install 'jaxkern-native[detectors]'"
        ) from error
    if not all(h5py.h5z.filter_avail(code) for code in missing):
        raise DetectorFileError(f"{where}; h5py and the installed hdf5plugin lack some of them")


def check_virtual(name: str, stored: h5py.Dataset) -> None:
    """Raise an error if a file of a virtual data set is missing, which would be read as zeros."""
    for path in _virtual_files(stored):
        if not path.exists():
            raise DetectorFileError(f"{name}: the virtual {stored.name} needs the missing {path}")


def linked_files(name: str, sets: Iterable[h5py.Dataset]) -> tuple[str, ...]:
    """Return the files other than `name` that store some data sets of the file `name`."""
    paths: dict[str, None] = {}
    for stored in sets:
        for path in (Path(stored.file.filename), *_virtual_files(stored)):
            paths[str(path.absolute())] = None
    paths.pop(str(Path(name).absolute()), None)
    return tuple(paths)


def _virtual_files(stored: h5py.Dataset) -> Iterator[Path]:
    """Yield the files of a virtual data set, except patterns with numbers in their names."""
    if not stored.is_virtual:
        return
    folder = Path(stored.file.filename).parent
    for source in stored.virtual_sources():
        if source.file_name != "." and "%" not in source.file_name:
            in_folder = folder / source.file_name
            yield in_folder if in_folder.exists() else Path(source.file_name)


@contextlib.contextmanager
def new_hdf5(path: Path, overwrite: bool = True) -> Iterator[h5py.File]:
    """Open a new HDF5 file, which gets its name when the block ends without an error."""
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
            # Headers have checksums from the format of HDF5 1.8 (2008) on.
            with h5py.File(medium, "w", libver=("v108", "latest")) as file:
                yield file
        except Exception:  # a failed write may be the cause, which HDF5 does not see
            medium.check(path)
            raise
        medium.check(path)


@contextlib.contextmanager
def _interrupts_outside_hdf5() -> Iterator[None]:
    """Delay Ctrl-C while HDF5 is calling a `_Medium`, where an exception is a failed write.

    Python runs signal handlers in the main thread, at the first Python code after the signal. If
    that is a method of `_Medium`, the signal is sent again 10 ms later.
    """
    before, main = signal.getsignal(signal.SIGINT), threading.main_thread()
    if threading.current_thread() is not main or not callable(before):
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if any(caller.f_code in codes for caller, _ in traceback.walk_stack(frame)):
            threading.Timer(0.01, signal.pthread_kill, [main.ident, number]).start()
        else:
            before(number, frame)

    codes = {method.__code__ for method in vars(_Medium).values() if hasattr(method, "__code__")}
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # if another thread closes the writer
            if signal.getsignal(signal.SIGINT) is handler:
                signal.signal(signal.SIGINT, before)


class _Medium:
    """The file that HDF5 writes to. After a failed write it accepts all data and stores nothing."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._at = 0
        self._size = 0
        self._error: OSError | None = None

    def check(self, path: Path) -> None:
        """Raise the error of the first write that failed."""
        if self._error is not None:
            number = self._error.errno
            reason = self._error.strerror if number is None else os.strerror(number)
            raise OSError(number, f"{path} cannot be written, and is unchanged: {reason}") from None

    def write(self, data: Any) -> int:
        content = memoryview(data).cast("B")
        self._store(content, self._at)
        self._at += len(content)
        self._size = max(self._size, self._at)
        return len(content)

    def _store(self, content: memoryview | None, offset: int) -> None:
        """Write, or without content truncate, unless an earlier write failed."""
        if self._error is not None:
            return
        file = self._raw.fileno()
        try:
            if content is None:
                os.ftruncate(file, offset)
            while content:
                done = os.pwrite(file, content, offset)
                content, offset = content[done:], offset + done
        except OSError as error:
            self._error = error

    def read(self, size: int) -> bytes:
        """Read bytes; h5py requires this method of a file, but calls `readinto`."""
        buffer = bytearray(size)
        self.readinto(buffer)
        return bytes(buffer)

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        content = os.pread(self._raw.fileno(), len(target), self._at)
        target[:] = content + bytes(len(target) - len(content))
        self._at += len(target)
        return len(target)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        self._store(None, self._size)
        return self._size

    def flush(self) -> None:
        """Do nothing, since writes are not buffered."""
