"""Source of WebDataset shards: tar files, mapped into memory, with an index of their members."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from jaxkern.core.caches import SETTLED, cache_folder, read_index, write_index
from jaxkern.core.progress import track
from jaxkern.pipeline.sources.files import NUMPY_HEADERS, Paths, expand_paths, map_file
from jaxkern.pipeline.sources.images.columns import Column, Decode, EncodedSource, decoded
from jaxkern.pipeline.sources.images.fields import ImageOptions
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.source import locate

#: endings of members that contain one integer, which the index stores
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
    last part: ``000017.jpg``, ``000017.cls``. Samples are read in any order, so shuffling permutes
    all samples, without a buffer.

    The ending of a member determines its field: jpg, png, ... become "image", a
    `jaxkern.image.Ragged`; cls becomes "label"; id, index and count become integers; npy an array;
    txt a number; json a number or a list of numbers, or fields "json.KEY" for an object.

    Args:
      paths: a tar file, a list of them, a folder, or a pattern: ``train-{000..003}.tar``.
      fields: field -> ending, or several endings of which each sample has one,
        ``{"image": "jpg;png", "label": "cls"}``; or a sequence of endings. By default those of
        the first sample, as above.
      decoders: ending -> function from bytes to a number, an array or a dict of these, of equal
        shapes for all samples. If a field has several endings, one of them is enough.
      images: `channels`, `max_size`, `max_pixels`, `on_bad_record`, `decode`: as for `Encoded`.

    Attributes:
      files: the shards.
      bad_images: (field, record) -> error of each masked image.

    Raises:
      ValueError: a shard is compressed, damaged or truncated, or a sample lacks a field; the
        message names the shard.
      TypeError, KeyError: an ending has no decoder, or a decoder no field.

    Example:
      >>> import io, tarfile, tempfile, jaxkern as jk
      >>> path = tempfile.mkdtemp() + "/train.tar"
      >>> with tarfile.open(path, "w") as tar:
      ...     for name, content in [("0.cls", b"3"), ("1.cls", b"4")]:
      ...         member = tarfile.TarInfo(name)
      ...         member.size = len(content)
      ...         tar.addfile(member, io.BytesIO(content))
      >>> source = jk.pipeline.WebDatasetSource(path)
      >>> len(source), source[1]["label"].item()
      (2, 4)
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
        endings_of = _field_endings(fields, index.endings_of(0))
        used: set[str | None] = set()
        columns: dict[str, Column] = {}
        for name, endings in endings_of.items():
            kinds = {_last(ending) for ending in endings}
            keys = (key for ending in endings for key in (ending, _last(ending)))
            decoder = next((key for key in keys if key in decoders), None)
            used.add(decoder)
            if decoder is None and kinds <= {*_IMAGES}:
                columns[name] = index.ranges(name, endings)
            elif decoder is None and kinds <= {*_NUMBERS}:
                columns[name] = index.numbers(name, endings)
            else:
                default = _DECODERS.get(_last(endings[0]))
                function = default if decoder is None else decoders[decoder]
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
    """The samples of all shards and their members; cached while the shards do not change."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._blobs = tuple(map(map_file, files))
        self._keys: list[str] = []
        self._endings: dict[str, int] = {}
        members, shards, ends = [], [], []
        for number, file in enumerate(track(files, "index", "shards")):
            shard = _cached_index(file, self._blobs[number])
            numbers = [self._endings.setdefault(e, len(self._endings)) for e in shard.endings]
            renumbered = shard.members.copy()
            renumbered["sample"] += len(self._keys)
            renumbered["ending"] = np.array(numbers, np.int32)[shard.members["ending"]]
            members.append(renumbered)
            shards.append(np.full(len(renumbered), number))
            self._keys += shard.keys
            ends.append(len(self._keys))
        if not self._keys:
            raise ValueError(f"{', '.join(map(str, files))[:200]}: no samples in these shards")
        self._members, self._shards = np.concatenate(members), np.concatenate(shards)
        self._ends = np.array(ends)

    def endings_of(self, sample: int) -> list[str]:
        """Return the endings of the members of a sample."""
        endings = list(self._endings)
        chosen = self._members["ending"][self._members["sample"] == sample]
        return [endings[number] for number in chosen.tolist()]

    def name_of(self, record: int) -> str:
        return f"{self._files[locate(self._ends, record)[0]]}: {self._keys[record]}"

    def ranges(self, name: str, endings: Sequence[str]) -> ByteRanges:
        """Return the byte ranges of a field."""
        chosen = self._select(name, endings)
        members = self._members[chosen]
        shards = self._shards[chosen]
        return ByteRanges.from_columns(self._blobs, shards, members["offset"], members["length"])

    def numbers(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """Return int64 [N] of a field whose members are integers."""
        members = self._members[self._select(name, endings)]
        wrong = np.flatnonzero(~members["is_number"])
        if wrong.size:
            raise ValueError(
                f"{name!r} of {self.name_of(int(wrong[0]))} is not an integer; use decoders={{"
                f"{endings[0]!r}: a function of bytes}}, or fields={{...}} without it"
            )
        return np.ascontiguousarray(members["number"])

    def _select(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """Return the numbers [N] of the members of a field, one for each sample."""
        numbers = [number for ending, number in self._endings.items() if ending in endings]
        chosen = np.flatnonzero(np.isin(self._members["ending"], numbers))
        count = np.bincount(self._members["sample"][chosen], minlength=len(self._keys))
        if (count != 1).any():
            sample = int(np.flatnonzero(count != 1)[0])
            raise ValueError(
                f"{self.name_of(sample)} has the members {sorted(self.endings_of(sample))}; "
                f"expected one of {list(endings)} for {name!r}: set fields={{...}}"
            )
        return chosen


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


class _Shard(NamedTuple):
    """The samples of one shard and their members."""

    keys: list[str]  # names of the samples
    endings: list[str]  # distinct endings of the members
    members: np.ndarray  # _MEMBER [M]: indices into `keys` and `endings`, and location of the data


def _cached_index(file: Path, data: np.ndarray) -> _Shard:
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
        joined = "".join(f"{key}\0" for key in index.keys).encode("utf-8", "surrogateescape")
        arrays = {"names": np.frombuffer(joined, np.uint8), "members": index.members}
        write_index(path, about, {**arrays, "endings": np.array(index.endings, str)})
    return index


def _checked_index(arrays: dict[str, np.ndarray], size: int) -> _Shard | None:
    """Return the index of a shard of `size` bytes; None if it is inconsistent."""
    try:
        keys = arrays["names"].tobytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
        endings, members = arrays["endings"].tolist(), arrays["members"]
        offset, length, ending = members["offset"], members["length"], members["ending"]
        consistent = (
            ((offset >= 0) & (length >= 0) & (offset + length <= size)).all()
            and ((ending >= 0) & (ending < len(endings))).all()
            and np.isin(np.diff(members["sample"], prepend=0), (0, 1)).all()
            and len(keys) == (int(members["sample"][-1]) + 1 if len(members) else 0)
        )
    except (TypeError, ValueError, LookupError):
        return None
    return _Shard(keys, endings, members) if consistent else None


def _read_headers(file: Path, data: np.ndarray) -> _Shard:
    keys: list[str] = []
    endings: dict[str, int] = {}
    members: list[tuple[Any, ...]] = []
    seen: set[int] = set()  # endings of the current sample
    end = 0
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                end = member.offset_data + (-(-member.size // 512) * 512 if member.isreg() else 0)
                tar.members = []  # type: ignore[attr-defined]  # or it stores all members
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
    blocks = (data[k : k + 65_536] for k in range(end, len(data), 65_536))  # read lazily
    if len(data) < end + 512 or any(block.any() for block in blocks):
        # tarfile treats invalid data after the first member as the end of the archive, and ignores
        # a second archive after the end.
        raise ValueError(
            f"{file} is damaged, truncated or a concatenation: expected zeros after byte {end} of "
            f"{len(data)}"
        )
    return _Shard(keys, list(endings), np.array(members, _MEMBER))


def _parse_integer(data: bytes) -> int | None:
    """Return the integer in a member; None if invalid or above 64 bits."""
    try:
        number = int(data.decode("ascii", "replace"))
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None
