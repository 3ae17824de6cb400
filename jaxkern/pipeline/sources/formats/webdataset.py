"""Source of WebDataset shards: tar files, mapped into memory, with an index of their members."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jaxkern.core.caches import SETTLED, cache_folder, read_index, write_index
from jaxkern.core.progress import ProgressBar
from jaxkern.pipeline.sources.files import Paths, expand_paths
from jaxkern.pipeline.sources.formats.columns import (
    NUMPY_HEADERS,
    Bytes,
    Column,
    ColumnSource,
    Decode,
    ImageOptions,
)

#: endings of members with one integer, which the index stores
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_INDEX_MEMBERS = 1000  # minimum number of members for an index file
_ABOUT = {"contents": "members of a tar shard", "version": 2}
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "gif", "tif", "tiff")


class WebDatasetSource(ColumnSource):
    """Source of WebDataset shards: local tar files, mapped into memory.

    The members of a sample are consecutive, and their names are equal up to the first dot of the
    last part: ``000017.jpg``, ``000017.cls``. Samples are read in any order, so a shuffle is a full
    shuffle, without a buffer.

    ============================ ======================================================
    ending                       field of a batch
    ============================ ======================================================
    jpg, jpeg, png, webp, ...    "image": a `jaxkern.image.Ragged`, as input of a Compose
    cls                          "label": int
    id, index, count, ...        int, by its ending
    npy                          the array, by its ending
    txt                          a number, by its ending
    json                         a number or a list of numbers; "json.KEY" for objects
    ============================ ======================================================

    Args:
      paths: a tar file, a list of them, a folder, or a pattern: ``train-{000..003}.tar``.
      fields: field -> ending, or several endings of which each sample has one,
        ``{"image": "jpg;png", "label": "cls"}``; or a sequence of endings. By default the endings
        of the first sample, as above.
      decoders: ending -> function from bytes to a number, an array or a dict of these, of equal
        shapes for all samples. One ending of a field is enough. Decoders take precedence over the
        table.
      images: `channels`, `max_size`, `max_pixels`, `on_bad_record`, `decode`: as for `Encoded`.

    Attributes:
      files: the shards.
      bad_images: (field, record) -> error of each masked image.

    Raises:
      FileNotFoundError: a file does not exist.
      ValueError: a shard is compressed, damaged or truncated, or a sample lacks a field; the
        message names the shard.
      TypeError: an ending has no decoder.
      KeyError: decoders has endings that no field uses.
    """

    def __init__(
        self,
        paths: Paths,
        fields: Mapping[str, str] | Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        **images: Unpack[ImageOptions],
    ) -> None:
        self.files = expand_paths(paths, (".tar",), "WebDataset shards")
        index = _Index(self.files)
        decoders = decoders or {}
        endings_of = _field_endings(fields, index.first_endings())
        used: set[str | None] = set()
        columns: dict[str, Column] = {}
        for name, endings in endings_of.items():
            kinds = {_last(ending) for ending in endings}
            keys = (key for ending in endings for key in (ending, _last(ending)))
            decoder = next((key for key in keys if key in decoders), None)
            function = None if decoder is None else decoders[decoder]
            used.add(decoder)
            if function is None and kinds <= {*_IMAGES}:
                columns[name] = Bytes(index.blobs, index.ranges(name, endings))
            elif function is None and kinds <= {*_NUMBERS}:
                columns[name] = index.numbers(name, endings)
            else:
                function = function or _DECODERS.get(_last(endings[0]))
                if function is None:
                    raise TypeError(
                        f"the members {'.' + endings[0]!r} of {self.files[0]} have no decoder; "
                        f"expected decoders={{{endings[0]!r}: a function of bytes}}, or "
                        "fields={...} without them"
                    )
                columns[name] = Bytes(index.blobs, index.ranges(name, endings), function)
        if unknown := sorted(decoders.keys() - used):
            existing = sorted({ending for endings in endings_of.values() for ending in endings})
            raise KeyError(
                f"decoders has {unknown}; the endings of the fields are {existing}, with one "
                "function per field"
            )
        super().__init__(columns, index.name_of, **images)

    def __repr__(self) -> str:
        shards = f"{len(self.files)} shard{'' if len(self.files) == 1 else 's'}"
        return f"WebDatasetSource({', '.join(self._names)}; {shards}, {len(self)} samples)"


class _Index:
    """Byte ranges of the members of the samples of all shards."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.blobs = [_map(file) for file in files]
        self._shards = shard_indices(files, self.blobs)
        self._ends = np.cumsum([shard.samples for shard in self._shards])
        if not self._ends[-1]:
            raise ValueError(f"{', '.join(map(str, files))[:200]}: no samples in these shards")

    def first_endings(self) -> list[str]:
        """Return the endings of the members of the first sample."""
        shard = next(shard for shard in self._shards if shard.samples)
        return [str(shard.endings[k]) for k in shard.ending[shard.sample == 0]]

    def name_of(self, record: int) -> str:
        shard = int(np.searchsorted(self._ends, record, "right"))
        first = int(self._ends[shard - 1]) if shard else 0
        return f"{self._files[shard]}: {self._shards[shard].keys[record - first]}"

    def ranges(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """Return int64 [N, 3] of a field: blob, offset and length."""
        parts = []
        for number, (shard, members) in enumerate(self._members(name, endings)):
            offset, length = shard.offset[members], shard.length[members]
            parts.append(np.stack([np.full_like(offset, number), offset, length], 1))
        return np.concatenate(parts)

    def numbers(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """Return int64 [N] of a field whose members are integers."""
        parts: list[np.ndarray] = []
        for shard, members in self._members(name, endings):
            wrong = np.flatnonzero(~shard.is_number[members])
            if wrong.size:
                record = sum(len(part) for part in parts) + int(wrong[0])
                raise ValueError(
                    f"{name!r} of {self.name_of(record)} is not an integer; expected decoders={{"
                    f"{endings[0]!r}: a function of bytes}}, or fields={{...}} without it"
                )
            parts.append(shard.number[members])
        return np.concatenate(parts)

    def _members(
        self, name: str, endings: Sequence[str]
    ) -> Iterator[tuple[ShardIndex, np.ndarray]]:
        first = 0
        for shard in self._shards:
            members = shard.select(endings)
            count = np.bincount(shard.sample[members], minlength=shard.samples)
            if (count != 1).any():
                sample = int(np.flatnonzero(count != 1)[0])
                has = sorted(str(shard.endings[k]) for k in shard.ending[shard.sample == sample])
                raise ValueError(
                    f"{self.name_of(first + sample)} has the members {has}; expected one of "
                    f"{list(endings)} for {name!r}, as in other samples: set fields={{...}}"
                )
            first += shard.samples
            yield shard, members


def _map(file: Path) -> np.ndarray:
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty; expected a tar file")
    return np.memmap(file, np.uint8, "r")


def _field_endings(
    fields: Mapping[str, str] | Sequence[str] | None, first: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    if isinstance(fields, str):
        raise TypeError(f"fields is {fields!r}; expected a sequence of endings, or a dict")
    if isinstance(fields, Mapping):
        return {name: tuple(endings.split(";")) for name, endings in fields.items()}
    result: dict[str, tuple[str, ...]] = {}
    for ending in first if fields is None else fields:
        if ending in _IMAGES and fields is None:
            result["image"] = _IMAGES
        elif ending == "cls" and fields is None:
            result["label"] = (ending,)
        else:
            result[ending] = (ending,)
    return result


def _last(ending: str) -> str:
    return ending.rpartition(".")[2]


def _number(data: bytes) -> int | float:
    text = data.decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{text[:80]!r} is not a number; expected decoders={{'txt': a function of bytes}}, or "
            "fields={...} without it"
        ) from None


def _array(data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    with NUMPY_HEADERS:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.tell() != len(data):
        raise ValueError(f"an array ends at byte {stream.tell()} of {len(data)}: it is damaged")
    return array


_DECODERS: dict[str, Callable[[bytes], Any]] = {"npy": _array, "txt": _number, "json": json.loads}


@dataclasses.dataclass(frozen=True, eq=False)
class ShardIndex:
    """The samples of one shard and their M members."""

    names: np.ndarray  # uint8 [bytes], zero-terminated names of the samples in UTF-8
    endings: np.ndarray  # str [E], distinct endings of members
    sample: np.ndarray  # int64 [M], index in `names`
    ending: np.ndarray  # int32 [M], index in `endings`
    offset: np.ndarray  # int64 [M], first byte of the member in the file
    length: np.ndarray  # int64 [M], size of the member in bytes
    number: np.ndarray  # int64 [M], value of members whose ending is in `_NUMBERS`
    is_number: np.ndarray  # bool [M], True if `number` is valid

    @functools.cached_property
    def keys(self) -> list[str]:
        """Return the names of the samples."""
        return self.names.tobytes().decode("utf-8", "surrogateescape").split("\0")[:-1]

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return int(self.sample[-1]) + 1 if len(self.sample) else 0

    def select(self, endings: Sequence[str]) -> np.ndarray:
        """Return the members with one of these endings, in order."""
        numbers = [k for k, ending in enumerate(self.endings.tolist()) if ending in endings]
        return np.flatnonzero(np.isin(self.ending, numbers))


def shard_indices(files: Sequence[Path], data: Sequence[np.ndarray]) -> list[ShardIndex]:
    """Return the index of each shard, from the cache folder if the shard has not changed."""
    indices = []
    with ProgressBar(True, "index", "shards") as bar:
        for number, (file, content) in enumerate(zip(files, data, strict=True)):
            indices.append(_cached_index(file, content))
            bar.update(number + 1, len(files))
    return indices


def _cached_index(file: Path, data: np.ndarray) -> ShardIndex:
    status = file.stat()
    about = {**_ABOUT, "size": len(data), "mtime_ns": status.st_mtime_ns}
    folder = cache_folder()
    name = f"{file.name[:40]}-{zlib.crc32(os.fsencode(file)):08x}.npz"
    path = None if folder is None else folder / "shards" / name
    arrays = None if path is None else read_index(path, about)
    if arrays is not None and (cached := _checked_index(arrays, len(data))) is not None:
        return cached
    index = _read_headers(file, data)
    settled = time.time_ns() - status.st_mtime_ns > SETTLED
    if path is not None and settled and len(index.sample) >= _INDEX_MEMBERS:
        fields = dataclasses.fields(ShardIndex)
        write_index(path, about, {f.name: getattr(index, f.name) for f in fields})
    return index


def _checked_index(arrays: dict[str, np.ndarray], size: int) -> ShardIndex | None:
    """Return the index of a shard of `size` bytes; None if it is inconsistent."""
    try:
        index = ShardIndex(**arrays)
        steps = np.diff(index.sample, prepend=0)
        consistent = (
            (index.offset >= 0).all()
            and (index.length >= 0).all()
            and (index.offset + index.length <= size).all()
            and ((steps == 0) | (steps == 1)).all()
            and len(index.keys) == index.samples
        )
    except (TypeError, ValueError):
        return None
    return index if consistent else None


def _read_headers(file: Path, data: np.ndarray) -> ShardIndex:
    keys: list[str] = []
    endings: dict[str, int] = {}
    members: list[tuple[int, int, int, int, int, bool]] = []
    seen: set[int] = set()  # endings of the current sample
    end = 0
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                end = member.offset_data + (-(-member.size // 512) * 512 if member.isreg() else 0)
                tar.members = []  # type: ignore[attr-defined]  # would store all members
                folder, _, last = member.name.rpartition("/")
                stem, dot, ending = last.partition(".")
                is_link = member.islnk() or member.issym()
                if not (member.isreg() or is_link) or not dot or not stem or stem.startswith("__"):
                    continue
                if is_link or member.issparse() or member.offset_data + member.size > len(data):
                    raise tarfile.ReadError(f"{member.name} is not stored as a contiguous file")
                key = f"{folder}/{stem}" if folder else stem
                if not keys or keys[-1] != key:
                    keys.append(key)
                    seen = set()
                kind = endings.setdefault(ending.lower(), len(endings))
                if kind in seen:
                    raise tarfile.ReadError(f"{member.name} occurs twice")
                seen.add(kind)
                number = None
                if ending.lower().rpartition(".")[2] in _NUMBERS:
                    start = member.offset_data
                    number = _parse_integer(data[start : start + min(member.size, 40)].tobytes())
                is_number = number is not None and member.size <= 40
                extent = member.offset_data, member.size
                members.append((len(keys) - 1, kind, *extent, number or 0, is_number))
    except (tarfile.TarError, ValueError, OverflowError) as error:
        compressed = data[:2].tobytes() in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")
        raise ValueError(
            f"{file} is not a readable tar file: {error}"
            + ("; decompress it first: samples are read in any order" * compressed)
        ) from error
    if len(data) < end + 512 or _has_data(data, end):
        # tarfile treats invalid data after the first member as the end, and ignores another tar
        # file after the end.
        raise ValueError(
            f"{file} is damaged, truncated or a concatenation: its members end at byte {end} of "
            f"{len(data)}; expected only zeros after them"
        )
    table = np.array(members, np.int64).reshape(-1, 6).T.copy()
    joined = "".join(f"{key}\0" for key in keys).encode("utf-8", "surrogateescape")
    names, kinds = np.frombuffer(joined, np.uint8), np.array(list(endings), str)
    kind_numbers, valid = table[1].astype(np.int32), table[5].astype(bool)
    return ShardIndex(names, kinds, table[0], kind_numbers, table[2], table[3], table[4], valid)


def _has_data(data: np.ndarray, begin: int) -> bool:
    """True if a byte from `begin` on is not zero; reads in blocks and stops early."""
    step = 1 << 16
    return any(data[k : k + step].any() for k in range(begin, len(data), step))


def _parse_integer(data: bytes) -> int | None:
    """Return the integer in a member; None if invalid or above 64 bits."""
    try:
        number = int(data.decode("ascii", "replace"))
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None
