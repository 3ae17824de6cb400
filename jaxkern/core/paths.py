"""Folders of the C++ headers and of users, and atomic replacement of files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path


def get_include() -> str:
    """Return the directory of the C++ headers for packages that define ops.

    Raises:
      FileNotFoundError: the package was not installed by its build and has no headers.

    Example:
      >>> import os, jaxkern as jk
      >>> os.path.exists(os.path.join(jk.get_include(), "jaxkern", "core", "ffi.h"))
      True
    """
    # An editable installation has Python files in the source tree and headers elsewhere.
    folders = list(sys.modules["jaxkern"].__path__)
    for root in map(Path, folders):
        if (root / "include" / "jaxkern" / "core" / "ffi.h").exists():
            return str(root / "include")
    raise FileNotFoundError(f"no jaxkern headers in {folders}: pip install jaxkern-native")


def home_path(path: str | os.PathLike[str]) -> Path:
    """Expand a leading ``~`` or ``~user``; ValueError for a user without a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"cannot expand ~ in {os.fspath(path)}: this user has no home folder; set HOME"
        ) from error


def natural_order(names: Iterable[str]) -> list[str]:
    """Sort names with their numbers in numeric order: 1, 2, 10 instead of 1, 10, 2.

    >>> natural_order(["run10.h5", "run9.h5"])
    ['run9.h5', 'run10.h5']
    """

    def key(name: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"([0-9]+)", name)
        return [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts if p]

    return sorted(names, key=key)


@contextlib.contextmanager
def atomic_write(path: Path, overwrite: bool = True) -> Iterator[Path]:
    """Create an empty temporary file that atomically replaces `path` when the block ends.

    After a kill or a power failure at any moment `path` is either the old or the new file; after an
    exception in the block it is the old one. A missing folder is created. A killed process leaves
    a file that ends in ``.tmp``; the next call for the same path removes it, unless it is in use.
    Raises FileExistsError if `overwrite` is false and `path` exists at the end of the block.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    with temporary.open("xb") as file:
        with contextlib.suppress(OSError):  # the file system may not support locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield temporary
            os.fsync(file.fileno())
            publish(temporary, path, overwrite)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of `atomic_write` from killed processes, except those in use."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.tmp")
    for name in os.listdir(path.parent):
        if pattern.fullmatch(name):
            leftover = path.with_name(name)
            with contextlib.suppress(OSError), leftover.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink()


class OutputInUse(OSError):
    """Another process writes the same output."""


@contextlib.contextmanager
def lock_output(path: Path, seconds: float = 0.5) -> Iterator[None]:
    """Lock an output in this context, by a file ``PATH.lock`` that exists during the context.

    The system releases the lock of a killed process; its file is used again. A missing folder is
    created. Raises `OutputInUse` if another process has the lock for `seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, end = path.with_name(f"{path.name}.lock"), time.monotonic() + seconds
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        if _acquire(file, lock):
            break
        os.close(file)
        if time.monotonic() > end:
            raise OutputInUse(f"another process writes {path}")
        time.sleep(0.05)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # before the lock is released
        os.close(file)


def _acquire(file: int, lock: Path) -> bool:
    """Lock an open file; False if it is locked, or if its last owner has removed it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system does not support locks
        return True
    try:
        return os.path.samestat(os.fstat(file), lock.stat())
    except FileNotFoundError:
        return False


def publish(temporary: Path, path: Path, overwrite: bool = True) -> None:
    """Rename a finished file to its final name in one step, and sync the folder.

    Without `overwrite` the name is created exclusively: of several processes exactly one succeeds,
    and the others raise FileExistsError and leave `temporary`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "x.tmp").write_bytes(b"new"), (folder / "x").write_bytes(b"old")
    >>> publish(folder / "x.tmp", folder / "x", overwrite=False)
    Traceback (most recent call last):
    FileExistsError: ...
    """
    if overwrite:
        os.replace(temporary, path)
    else:
        try:
            os.link(temporary, path)  # fails if the name exists, unlike a rename
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Reserve the name: a kill before the next line leaves an empty file.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.replace(temporary, path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# Errors of file systems without hard links, such as FAT.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content atomically, as `atomic_write` does."""
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(content)
