"""Expansion of paths and patterns to files, and import of optional packages."""

from __future__ import annotations

import glob
import importlib
import itertools
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_MAX_FILES = 1_000_000

#: a path, a pattern, or a sequence of them
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: serializes NumPy's header parsers, which are not thread-safe on CPython 3.11 ("AST constructor
#: recursion depth mismatch", python/cpython#106905)
NUMPY_HEADERS = threading.Lock()


def expand_paths(paths: Paths, suffixes: Sequence[str], what: str) -> list[Path]:
    """Expand paths and patterns to absolute paths of existing files, in order.

    Args:
      paths: a path; a folder, for its sorted files with these suffixes; a pattern with
        ``*``, ``?``, ``[...]``, ``{a,b}`` or ``{000..003}``; or a sequence of these.
      suffixes: suffixes of the files in a folder, such as ``.parquet``.
      what: kind of files, for error messages.

    Raises:
      FileNotFoundError: a path or pattern matches no file.
      ValueError: a path is a URL.
    """
    files: list[Path] = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"expected paths of {what}, got {path!r:.80}")
        check_local(path, what)
        files += _match(os.path.expanduser(os.fspath(path)), suffixes, what)
    if not files:
        raise FileNotFoundError(f"{paths!r:.200} matches no file of {what}")
    return files


def is_url(path: Any) -> bool:
    """True for a string such as ``"s3://bucket/x.jkp"``."""
    return isinstance(path, str) and re.match(r"[a-z][a-z0-9+.-]+://", path) is not None


def check_local(path: Any, what: str) -> None:
    """Raise ValueError if a path is a URL."""
    if is_url(path):
        raise ValueError(
            f"{path!r:.200} is a URL, and {what} are read from local files: pass "
            "jaxkern.pipeline.cached(urls, folder), or write packed files (jaxkern.pipeline.pack)"
        )


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix that determines the format, without a trailing shard number.

    >>> suffix_of("data/train-*.tar"), suffix_of("x.tfrecord-00000-of-00010")
    ('.tar', '.tfrecord')
    """
    name = os.fspath(path).rstrip(os.sep)
    if name.startswith(("http://", "https://")):
        name = re.sub(r"[?#].*", "", name)
    return os.path.splitext(re.sub(r"-(\d+|\*|\?+|\{[^{}]*\})-of-\d+$", "", name))[1].lower()


def _match(path: str, suffixes: Sequence[str], what: str) -> list[Path]:
    if os.path.isdir(path):
        inside = (Path(path) / name for name in sorted(os.listdir(path)))
        files = [file.absolute() for file in inside if suffix_of(file) in suffixes]
        if not files:
            raise FileNotFoundError(f"{path} has no {' or '.join(suffixes)} files of {what}")
        return files
    if os.path.exists(path):  # even if its name looks like a pattern
        return [Path(path).absolute()]
    files = []
    for name in expand_braces(path):
        matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]
        missing = [match for match in matches if not os.path.exists(match)]
        if missing or not matches:
            pattern = "" if name == path else f" of {path}"
            raise FileNotFoundError(f"{(missing or [name])[0]}{pattern}: no such file ({what})")
        files += [Path(match).absolute() for match in matches]
    return files


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern with ``{a,b}`` or ``{000..003}`` stands for."""
    pieces = re.split(r"(\{[^{}]*\})", pattern)
    choices = [_choices(piece) if piece.startswith("{") else [piece] for piece in pieces]
    _check_count(pattern, math.prod(map(len, choices)))
    return map("".join, itertools.product(*choices))


def _check_count(pattern: str, count: int) -> None:
    if not 0 < count <= _MAX_FILES:
        raise ValueError(f"{pattern!r:.200} matches {count} files; expected 1 to {_MAX_FILES}")


def _choices(piece: str) -> Sequence[str]:
    inner = piece[1:-1]
    if numbers := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", inner):
        first, last = numbers.groups()
        _check_count(piece, int(last) - int(first) + 1)
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    return inner.split(",") if "," in inner else [piece]


def map_file(path: Path) -> np.ndarray:
    """Map a file into memory, uint8 [size], read-only."""
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    return np.memmap(path, np.uint8, "r")


def import_extra(module: str, name: str) -> Any:
    """Import a module that ``pip install 'jaxkern-native[name]'`` installs.

    >>> import_extra("no_such_module", "parquet")
    Traceback (most recent call last):
    ImportError: this needs no_such_module: pip install 'jaxkern-native[parquet]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        raise ImportError(
            f"this needs {module}: pip install 'jaxkern-native[{name}]'", name=module
        ) from error
