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
from jaxkern.pipeline.sources.columns import Column, Decode, EncodedSource, decoded
from jaxkern.pipeline.sources.files import NUMPY_HEADERS, Paths, expand_paths, map_file
from jaxkern.pipeline.sources.images.fields import ImageOptions
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.source import locate

#: endings of members with one integer, which the index stores
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_INDEX_MEMBERS = 1000  # minimum number of members for an index file
_ABOUT = {"contents": "members of a tar shard", "version": 3}
#: number is the value of a member whose ending is in `_NUMBERS`
_MEMBER = np.dtype(
    [("sample", "i8"), ("ending", "i4"), ("offset", "i8"), ("length", "i8"), ("number", "i8"),
     ("is_number", "?")]
)  # fmt: skip
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "gif", "tif", "tiff")


class WebDatasetSource(EncodedSource):
    """Source of WebDataset shards: local tar files, mapped into memory.

    The members of a sample are consecutive, and their names are equal up to the first dot of the
    last part: ``000017.jpg``, ``000017.cls``. Samples are read in any order, so a shuffle is a full
    shuffle, without a buffer.

    By its ending a member becomes a field: jpg, png, ... "image", a `jaxkern.image.Ragged`; cls
    "label"; id, index and count integers; npy an array; txt a number; json a number or a list of
    numbers, or "json.KEY" for objects.

    Args:
      paths: a tar file, a list of them, a folder, or a pattern: ``train-{000..003}.tar``.
      fields: field -> ending, or several endings of which each sample has one,
        ``{"image": "jpg;png", "label": "cls"}``; or a sequence of endings. By default those of
        the first sample, as above.
      decoders: ending -> function from bytes to a number, an array or a dict of these, of equal
        shapes for all samples. One ending of a field is enough.
      images: `channels`, `max_size`, `max_pixels`, `on_bad_record`, `decode`: as for `Encoded`.

    Attributes:
      files: the shards.
      bad_images: (field, record) -> error of each masked image.

    Raises:
      ValueError: a shard is compressed, damaged or truncated, or a sample lacks a field; the
        message names the shard.
      TypeError, KeyError: an ending has no decoder, or a decoder no field.
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
                columns[name] = index.ranges(name, endings)
            elif function is None and kinds <= {*_NUMBERS}:
                columns[name] = index.numbers(name, endings)
            else:
                function = function or _DECODERS.get(_last(endings[0]))
                if function is None:
                    raise TypeError(
                        f"the members {'.' + endings[0]!r} of {self.files[0]} have no decoder; use "
                        f"decoders={{{endings[0]!r}: a function of bytes}}, or fields={{...}}"
                    )
                columns[name] = decoded(index.ranges(name, endings), function)
        if unknown := sorted(decoders.keys() - used):
            existing = sorted({ending for endings in endings_of.values() for ending in endings})
            raise KeyError(f"decoders has {unknown}; the endings of the fields are {existing}")
        super().__init__(columns, index.name_of, **images)


class _Index:
    """The members of the samples of all shards; from the cache folder for unchanged shards."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.blobs = [map_file(file) for file in files]
        self._shards: list[ShardIndex] = []
        with ProgressBar(True, "index", "shards") as bar:
            for file, blob in zip(files, self.blobs, strict=True):
                self._shards.append(_cached_index(file, blob))
                bar.update(len(self._shards), len(files))
        self._ends = np.cumsum([shard.samples for shard in self._shards])
        if not self._ends[-1]:
            raise ValueError(f"{', '.join(map(str, files))[:200]}: no samples in these shards")

    def first_endings(self) -> list[str]:
        """Return the endings of the members of the first sample."""
        shard = next(shard for shard in self._shards if shard.samples)
        return shard.endings_of(0)

    def name_of(self, record: int) -> str:
        shard, sample = locate(self._ends, record)
        return f"{self._files[shard]}: {self._shards[shard].keys[sample]}"

    def ranges(self, name: str, endings: Sequence[str]) -> ByteRanges:
        """Return the byte ranges of a field."""
        parts = []
        for number, members in enumerate(self._members(name, endings)):
            shard = np.full(len(members), number)
            parts.append(np.stack([shard, members["offset"], members["length"]], 1))
        return ByteRanges(tuple(self.blobs), np.concatenate(parts), in_files=False)

    def numbers(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """Return int64 [N] of a field whose members are integers."""
        members = np.concatenate([*self._members(name, endings)])
        wrong = np.flatnonzero(~members["is_number"])
        if wrong.size:
            raise ValueError(
                f"{name!r} of {self.name_of(int(wrong[0]))} is not an integer; use decoders={{"
                f"{endings[0]!r}: a function of bytes}}, or fields={{...}} without it"
            )
        return np.ascontiguousarray(members["number"])

    def _members(self, name: str, endings: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the members of a field in each shard, one for each sample."""
        for file, shard in zip(self._files, self._shards, strict=True):
            members = shard.select(endings)
            count = np.bincount(members["sample"], minlength=shard.samples)
            if (count != 1).any():
                sample = int(np.flatnonzero(count != 1)[0])
                has = sorted(shard.endings_of(sample))
                raise ValueError(
                    f"{file}: {shard.keys[sample]} has the members {has}; expected one of "
                    f"{list(endings)} for {name!r}: set fields={{...}}"
                )
            yield members


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
            f"{text[:80]!r} is not a number; use decoders={{'txt': a function of bytes}}"
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
    members: np.ndarray  # _MEMBER [M]: indices in `names` and `endings`, and where it is stored

    @functools.cached_property
    def keys(self) -> list[str]:
        """Return the names of the samples."""
        return self.names.tobytes().decode("utf-8", "surrogateescape").split("\0")[:-1]

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return int(self.members["sample"][-1]) + 1 if len(self.members) else 0

    def endings_of(self, sample: int) -> list[str]:
        """Return the endings of the members of a sample."""
        endings = self.members["ending"][self.members["sample"] == sample]
        return [str(self.endings[k]) for k in endings]

    def select(self, endings: Sequence[str]) -> np.ndarray:
        """Return the members with one of these endings, in order."""
        numbers = [k for k, ending in enumerate(self.endings.tolist()) if ending in endings]
        return self.members[np.isin(self.members["ending"], numbers)]


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
    if path is not None and settled and len(index.members) >= _INDEX_MEMBERS:
        arrays = {"names": index.names, "endings": index.endings, "members": index.members}
        write_index(path, about, arrays)
    return index


def _checked_index(arrays: dict[str, np.ndarray], size: int) -> ShardIndex | None:
    """Return the index of a shard of `size` bytes; None if it is inconsistent."""
    try:
        index = ShardIndex(**arrays)
        offset, length = index.members["offset"], index.members["length"]
        consistent = (
            ((offset >= 0) & (length >= 0) & (offset + length <= size)).all()
            and np.isin(np.diff(index.members["sample"], prepend=0), (0, 1)).all()
            and len(index.keys) == index.samples
        )
    except (TypeError, ValueError, IndexError):
        return None
    return index if consistent else None


def _read_headers(file: Path, data: np.ndarray) -> ShardIndex:
    keys: list[str] = []
    endings: dict[str, int] = {}
    members: list[tuple[Any, ...]] = []
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
                start, size, number = member.offset_data, member.size, None
                if size <= 40 and _last(ending.lower()) in _NUMBERS:
                    number = _parse_integer(data[start : start + size].tobytes())
                is_number = number is not None
                members.append((len(keys) - 1, kind, start, size, number or 0, is_number))
    except (tarfile.TarError, ValueError, OverflowError) as error:
        compressed = data[:2].tobytes() in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")
        hint = "; decompress it first" if compressed else ""
        raise ValueError(f"{file} is not a readable tar file: {error}{hint}") from error
    blocks = (data[k : k + 65_536] for k in range(end, len(data), 65_536))  # stops early
    if len(data) < end + 512 or any(block.any() for block in blocks):
        # tarfile treats invalid data after the first member as the end, and ignores another tar
        # file after the end.
        raise ValueError(
            f"{file} is damaged, truncated or a concatenation: expected zeros from byte {end} of "
            f"{len(data)} on"
        )
    joined = "".join(f"{key}\0" for key in keys).encode("utf-8", "surrogateescape")
    names = np.frombuffer(joined, np.uint8)
    return ShardIndex(names, np.array(list(endings), str), np.array(members, _MEMBER))


def _parse_integer(data: bytes) -> int | None:
    """Return the integer in a member; None if invalid or above 64 bits."""
    try:
        number = int(data.decode("ascii", "replace"))
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None
