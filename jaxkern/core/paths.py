"""Folders of the C++ headers and of users; files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def get_include() -> str:
    """The directory of the C++ headers with which other packages write ops.

    Raises:
      FileNotFoundError: when the package was not installed by its build, so has no headers.

    Example:
      >>> import os, jaxkern as jk
      >>> os.path.exists(os.path.join(jk.get_include(), "jaxkern", "core", "ffi.h"))
      True
    """
    # An editable installation has the Python files in the source tree and the rest elsewhere.
    folders = list(sys.modules["jaxkern"].__path__)
    for root in map(Path, folders):
        if (root / "include" / "jaxkern" / "core" / "ffi.h").exists():
            return str(root / "include")
    raise FileNotFoundError(
        f"no jaxkern headers below {folders}: install the package (pip install .) "
        "instead of importing its source tree"
    )


def home_path(path: str | os.PathLike[str]) -> Path:
    """A path whose leading ``~`` or ``~user`` is that user's home folder.

    Raises:
      ValueError: where there is none: HOME is not set and the user is not in the passwd database,
        as in a container that runs under a number (``docker run --user 1234``).
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{os.fspath(path)} begins with a home folder and the user has none: HOME is not set "
            "and the passwd database does not know the user; give a path without ~ or set HOME"
        ) from error


def natural_order(names: Iterable[str]) -> list[str]:
    """Names with their numbers in the order of numbers: 1, 2, 10, and not 1, 10, 2.

    >>> natural_order(["run10.h5", "run9.h5"])
    ['run9.h5', 'run10.h5']
    """

    def key(name: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"([0-9]+)", name)
        return [(p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts if p]

    return sorted(names, key=key)


@contextlib.contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Gives a path to write to; what is there at the end of the block replaces `path` in one step.

    A kill or a power cut at any moment leaves the old file or the new; an error in the block leaves
    the old. The folder is made where it is missing. What a kill leaves behind ends in ``.tmp``, and
    `sweep_temporaries` deletes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep_temporaries(path: Path) -> None:
    """Deletes what earlier processes left of `replaced_whole(path)` when they were killed.

    A process that writes `path` at the same time would lose its file, too.
    """
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        if re.fullmatch(r"\.[0-9a-f]{8}\.tmp", leftover.name[len(path.name) :]):
            leftover.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file's content in one step, as `replaced_whole` does.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "file"
    >>> write_whole(path, b"all of it")
    >>> path.read_bytes()
    b'all of it'
    """
    with replaced_whole(path) as temporary, temporary.open("xb") as file:
        file.write(content)
