"""Files of a packed source: name expansion, memory maps, and checks of sets."""

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
    """A record whose checksum is wrong."""

    path: Path
    record: int
    field: str
    begin: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.path}: record {self.record}, field {self.field!r}, is damaged: its {self.size} "
            f"bytes at offset {self.begin} have a wrong checksum"
        )


class PackedFile:
    """A packed file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; expected a packed file")
        #: uint8 [size], read-only
        self.file = np.memmap(path, np.uint8, "r")
        self.index: PackedIndex = read_index(self.file, path)
        self._rows: dict[str, np.ndarray | None] = {}

    def damage(self, row: int) -> tuple[str, int, int] | None:
        """Return (field, offset, size) of the first damaged field of a record, or None."""
        for field in self.index.fields:
            if field.codec != "column":
                columns = self.index.columns[field.name]
                stored = self.stored(field.name, row)
                if zlib.crc32(stored.data) != columns["crc32"][row]:
                    return field.name, int(columns["offset"][row]), stored.size
        return None

    def stored(self, field: str, row: int) -> np.ndarray:
        """Return the stored bytes of a record."""
        columns = self.index.columns[field]
        begin = int(columns["offset"][row])
        return np.asarray(self.file[begin : begin + int(columns["size"][row])])

    def shape(self, field: str, row: int) -> tuple[int, ...]:
        """Return the shape of a record."""
        return tuple(self.index.columns[field]["shape"][row].tolist())

    def array(self, field: PackedField, row: int) -> np.ndarray:
        """Return a view of a record."""
        begin = int(self.index.columns[field.name]["offset"][row])
        return np.ndarray(self.shape(field.name, row), field.dtype, self.file, begin)

    def rows(self, field: PackedField, shape: tuple[int, ...] | None) -> np.ndarray | None:
        """Return a view of all records of a field; None without a constant stride."""
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
        full_shape = (self.index.records, *shape)
        return np.ndarray(full_shape, field.dtype, self.file, int(offset[0]), (step, *dense))


def packed_paths(path: Paths) -> list[Path]:
    """Return the absolute paths of a name, a pattern, a folder or a list, in order.

    Raises:
      FileNotFoundError: no file exists, or shards are missing.
      ValueError: the files are not one set.
    """
    try:
        paths = expand_paths(path, (SUFFIX,), "packed records")
    except FileNotFoundError as error:
        if not isinstance(path, str | os.PathLike):
            raise
        stem = os.path.expanduser(os.fspath(path)).removesuffix(SUFFIX)
        named = map(_SHARD.search, glob.glob(f"{glob.escape(stem)}-*-of-*{SUFFIX}"))
        sets = {f"{stem}-*-of-{match[2]}{SUFFIX}" for match in named if match}
        if not sets:
            raise
        shards = " or ".join(sorted(sets))
        raise FileNotFoundError(f"{error}; did you mean the shards {shards}?") from None
    names = [_SHARD.search(path.name) for path in paths]
    if any(names) and len(paths) + _is_pattern(path) > 1:  # a single shard may be read alone
        _check_complete(path, paths, names)
    return paths


def _is_pattern(path: Paths) -> bool:
    return not isinstance(path, str | os.PathLike) or not os.path.isfile(path)


def _check_complete(
    pattern: Paths, paths: Sequence[Path], named: Sequence[re.Match[str] | None]
) -> None:
    """Raise if files named as shards are not one complete set."""
    sets = {(p.name[: n.start()], n[2]) if n else p.name for p, n in zip(paths, named, strict=True)}
    if len(sets) > 1:
        raise ValueError(
            f"{pattern} has files of several sets, such as {paths[0].name} and {paths[-1].name}"
        )
    numbers = {int(name[1]) for name in named if name}
    count = int(next(name[2] for name in named if name))
    missing = sorted(set(range(min(count, 10**6))) - numbers)
    if missing:
        text = ", ".join(f"{number:05}" for number in missing[:5])
        more = " and others" if len(missing) > 5 else ""
        raise FileNotFoundError(
            f"{pattern} has {len(numbers)} of {count} shards; missing: {text}{more}"
        )


def check_same_set(shards: Sequence[PackedFile]) -> None:
    """Raise ValueError if files have different fields or are shards of different sets."""
    first = shards[0]
    for number, shard in enumerate(shards):
        position = [number, len(shards)]
        own, reference = shard.index.metadata, first.index.metadata
        fields, expected = ([f.as_dict() for f in s.index.fields] for s in (shard, first))
        if fields != expected:
            problem = f"expected the fields {expected}, got {fields}"
        elif own.get("set") != reference.get("set"):
            problem = "it was written with another set"
        elif len(shards) > 1 and "shard" in own and own["shard"] != position:
            problem = f"expected shard {position}, got {own['shard']}"
        else:
            continue
        raise ValueError(f"{shard.path} does not belong to {first.path}: {problem}")
