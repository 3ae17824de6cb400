"""The files of a packed source: their names, each one mapped, and whether they are one set."""

from __future__ import annotations

import glob
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxkern.pipeline.sources.files import Paths, expand_paths
from jaxkern.pipeline.sources.packed.layout import SUFFIX, PackedField, PackedIndex, read_index

_SHARD = re.compile(r"-(\d{5,})-of-(\d{5,})" + re.escape(SUFFIX) + r"\Z")


class Damage(NamedTuple):
    """A record whose bytes are not those that were written."""

    path: Path
    record: int
    field: str
    begin: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.path}: record {self.record}, field {self.field!r}, is damaged: its {self.size} "
            f"bytes from {self.begin} on do not have the checksum that they were written with"
        )


class PackedFile:
    """One file, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; wanted a packed file")
        #: uint8 [size], read-only
        self.file = np.memmap(path, np.uint8, "r")
        self.index: PackedIndex = read_index(self.file, path)
        self._rows: dict[str, np.ndarray | None] = {}

    def damage(self, row: int) -> tuple[str, int, int] | None:
        """Field, begin and size of what does not have its checksum in a record."""
        for field in self.index.fields:
            if field.codec != "column":
                columns = self.index.columns[field.name]
                stored = self.stored(field.name, row)
                if zlib.crc32(stored.data) != columns["crc32"][row]:
                    return field.name, int(columns["offset"][row]), stored.size
        return None

    def stored(self, field: str, row: int) -> np.ndarray:
        """The bytes of a record."""
        columns = self.index.columns[field]
        begin = int(columns["offset"][row])
        return np.asarray(self.file[begin : begin + int(columns["size"][row])])

    def shape(self, field: str, row: int) -> tuple[int, ...]:
        """Of a record."""
        return tuple(self.index.columns[field]["shape"][row].tolist())

    def array(self, field: PackedField, row: int) -> np.ndarray:
        """A view of a record."""
        begin = int(self.index.columns[field.name]["offset"][row])
        return np.ndarray(self.shape(field.name, row), field.dtype, self.file, begin)

    def rows(self, field: PackedField, shape: tuple[int, ...] | None) -> np.ndarray | None:
        """All records of a field as one view, where they are one array with one step."""
        if field.name not in self._rows:
            self._rows[field.name] = self._view(field, shape)
        return self._rows[field.name]

    def _view(self, field: PackedField, shape: tuple[int, ...] | None) -> np.ndarray | None:
        columns = self.index.columns[field.name]
        if field.codec == "column":
            return columns["value"]
        if field.codec != "array" or shape is None:
            return None
        offset = columns["offset"]
        steps = np.diff(offset)
        if steps.size and ((steps != steps[0]).any() or steps[0] < columns["size"][0]):
            return None
        dense = np.ndarray(shape, field.dtype, self.file, int(offset[0])).strides
        step = int(steps[0]) if steps.size else int(columns["size"][0])
        whole = (self.index.records, *shape)
        return np.ndarray(whole, field.dtype, self.file, int(offset[0]), (step, *dense))


def packed_paths(path: Paths) -> list[Path]:
    """The files of a name, a pattern, a folder or a list of them, in order; absolute.

    Raises: FileNotFoundError where there is none, or shards are missing; ValueError for files that
      are not one set.
    """
    try:
        paths = expand_paths(path, (SUFFIX,), "packed records")
    except FileNotFoundError as error:
        if not isinstance(path, str | os.PathLike):
            raise
        stem = os.path.expanduser(os.fspath(path)).removesuffix(SUFFIX)
        named = map(_SHARD.search, glob.glob(f"{glob.escape(stem)}-*-of-*{SUFFIX}"))
        sets = {f"{stem}-*-of-{found[2]}{SUFFIX}" for found in named if found}
        if not sets:
            raise
        there = " or ".join(sorted(sets))
        raise FileNotFoundError(f"{error}; there are the shards of {there}") from None
    names = [_SHARD.search(path.name) for path in paths]
    if any(names) and len(paths) + _is_pattern(path) > 1:  # one may be looked at by itself
        _check_complete(path, paths, names)
    return paths


def _is_pattern(path: Paths) -> bool:
    """Whether it may stand for any number of files."""
    return not isinstance(path, str | os.PathLike) or not os.path.isfile(path)


def _check_complete(
    given: Paths, paths: Sequence[Path], named: Sequence[re.Match[str] | None]
) -> None:
    """Raises where files that are named as shards are not all of one set."""
    sets = {(p.name[: n.start()], n[2]) if n else p.name for p, n in zip(paths, named, strict=True)}
    if len(sets) > 1:
        raise ValueError(
            f"{given} has files of several sets: {paths[0].name} and {paths[-1].name} among them"
        )
    found = {int(name[1]) for name in named if name}
    count = int(next(name[2] for name in named if name))
    missing = sorted(set(range(min(count, 10**6))) - found)
    if missing:
        text = ", ".join(f"{number:05}" for number in missing[:5])
        raise FileNotFoundError(
            f"{given} has {len(found)} of {count} shards; missing: {text}"
            f"{' and others' if len(missing) > 5 else ''}"
        )


def check_one_set(shards: Sequence[PackedFile]) -> None:
    """Raises where files do not have the same fields, or are shards of different sets."""
    first = shards[0]
    for number, shard in enumerate(shards):
        place = [number, len(shards)]
        about, wanted = shard.index.metadata, first.index.metadata
        described, as_first = ([f.described() for f in s.index.fields] for s in (shard, first))
        if described != as_first:
            problem = f"its fields are {described}; wanted {as_first}"
        elif about.get("set") != wanted.get("set"):
            problem = "it was written with another set"
        elif len(shards) > 1 and "shard" in about and about["shard"] != place:
            problem = f"it says to be shard {about['shard']}; wanted {place}"
        else:
            continue
        raise ValueError(f"{shard.path} does not belong to {first.path}: {problem}")
