"""The files that a path, a pattern such as ``train-{000..003}.tar``, or a list of them names."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_MOST = 1_000_000

#: what a source of files takes
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def files_of(given: Paths, suffixes: Sequence[str], what: str) -> list[Path]:
    """The files that were given, as absolute paths, in order.

    Args:
      given: a path; a folder, whose files with these suffixes are taken, sorted; a pattern of
        ``*``, ``?``, ``[...]``, ``{a,b}`` or ``{000..003}``; or a sequence of those.
      suffixes: of the files to take from a folder, such as ``.parquet``.
      what: they are, in messages.
    Raises: FileNotFoundError for a path or pattern that names no file.
    """
    found: list[Path] = []
    for path in [given] if isinstance(given, str | os.PathLike) else given:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"{path!r:.80} is no path; wanted those of {what}")
        found += _matching(os.path.expanduser(os.fspath(path)), suffixes, what)
    if not found:
        raise FileNotFoundError(f"{given!r:.200} names no file; wanted those of {what}")
    return found


def suffix_of(path: str | os.PathLike[str]) -> str:
    """The suffix that tells the format; the number of a shard behind it does not count.

    >>> suffix_of("data/train-*.tar"), suffix_of("x.tfrecord-00000-of-00010")
    ('.tar', '.tfrecord')
    """
    name = os.fspath(path).rstrip(os.sep)
    return os.path.splitext(re.sub(r"-(\d+|\*|\?+|\{[^{}]*\})-of-\d+$", "", name))[1].lower()


def _matching(path: str, suffixes: Sequence[str], what: str) -> list[Path]:
    if os.path.isdir(path):
        inside = (Path(path) / name for name in sorted(os.listdir(path)))
        found = [file for file in inside if suffix_of(file) in suffixes]
        if not found:
            raise FileNotFoundError(f"{path} has no {' or '.join(suffixes)} files of {what}")
        return [file.absolute() for file in found]
    if os.path.exists(path):  # also where its name looks like a pattern
        return [Path(path).absolute()]
    found = []
    for name in _expanded(path):
        matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]
        missing = [match for match in matches if not os.path.exists(match)]
        if missing or not matches:
            of = "" if name == path else f" of {path}"
            raise FileNotFoundError(f"{(missing or [name])[0]}{of}: no such file of {what}")
        found += [Path(match).absolute() for match in matches]
    return found


def _expanded(pattern: str) -> Iterator[str]:
    """Each of the names of a pattern with ``{000..003}`` or ``{a,b}``."""
    pieces = re.split(r"(\{[^{}]*\})", pattern)
    choices = [_choices(piece) if piece.startswith("{") else [piece] for piece in pieces]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST:
        raise ValueError(f"{pattern!r:.200} names {count} files; wanted {_MOST} or fewer")
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _choices(piece: str) -> Sequence[str]:
    inner = piece[1:-1]
    if numbers := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", inner):
        first, last = numbers.groups()
        count = int(last) - int(first) + 1
        if not 0 < count <= _MOST:
            raise ValueError(f"{piece} names {count} files; wanted 1 to {_MOST}")
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    return inner.split(",") if "," in inner else [piece]
