"""Packed files (.jkp): names of sets, header and index, which are validated when read.

    0       header: one page, of which 68 bytes are used
    4096    data of the records, one record after another
    ...     index, from the start of a page to the end of the file: JSON text, and columns

All numbers are little endian. See docs/reference/packed-format.md for the tables.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxkern.pipeline.sources.files import Paths, is_url, map_file
from jaxkern.pipeline.sources.remote import File, RemoteFile, Url, expand_files

MAGIC = b"\x89JKP\r\n\x1a\n"
VERSION = 1
PAGE = 4096
LINE = 64
SUFFIX = ".jkp"
_SHARD = re.compile(r"-(\d{5,})-of-(\d{5,})" + re.escape(SUFFIX) + r"\Z")

# magic, version, 0, number of records, offset and size of the index, size of the file, digest of
# the index; followed by the CRC-32 of these bytes
_HEADER = struct.Struct("<8sIIQQQQ16s")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_DTYPES = frozenset(
    {"bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"}
    | {"float32", "float64", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64))}
)
_MAX_DIMENSIONS = 32
_MAX_COUNT = 2**62  # maximum number of records or bytes; sums of a few do not overflow 64 bits
_MAX_SIDE = 2**31 - 1

Codec = Literal["column", "array", "jpeg"]


@dataclasses.dataclass(frozen=True)
class PackedField:
    """Storage of a field: its values, or decoded images for the codec "jpeg"."""

    name: str
    codec: Codec  # "column": rows in the index; "array": arrays of any shape, stored per record
    dtype: np.dtype
    shape: tuple[int, ...]  # shape of a record, with 0 for sides that differ between records

    @property
    def columns(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return the field's columns in the index: name -> (dtype, shape of a record)."""
        if self.codec == "column":
            return {"value": (self.dtype, self.shape)}
        ranks = 2 if self.codec == "jpeg" else len(self.shape)  # without the channels of a JPEG
        return {
            "offset": (np.dtype("<i8"), ()),
            "size": (np.dtype("<i8"), ()),
            "crc32": (np.dtype("<u4"), ()),
            "shape": (np.dtype("<i4"), (ranks,)),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the entry in the text of the index."""
        about = {"name": self.name, "codec": self.codec, "dtype": self.dtype.name}
        return {**about, "shape": list(self.shape)}


@dataclasses.dataclass(frozen=True, eq=False)
class PackedIndex:
    """The index of a packed file."""

    records: int  # number of records
    fields: tuple[PackedField, ...]  # in the order of the source
    columns: Mapping[str, Mapping[str, np.ndarray]]  # field -> column -> array [records, ...]
    metadata: Mapping[str, Any]  # metadata of the writer
    digest: bytes = b""  # digest of the index, which includes the checksums of all records


def aligned(offset: int, size: int) -> int:
    """Round an offset up to a multiple of a page, or of 64 bytes if `size` is less than a page."""
    step = PAGE if size >= PAGE else LINE
    return -(-offset // step) * step


def layout(sizes: Sequence[int], cursor: int) -> tuple[list[int], int]:
    """Return the offsets of the data of a record, and its end, which depend only on sizes."""
    at = aligned(cursor, max(sizes, default=0))
    offsets = []
    for size in sizes:
        at = aligned(at, size)
        offsets.append(at)
        at += size
    return offsets, at


def dtype_of(name: Any) -> np.dtype | None:
    """Return the little-endian dtype for a name in an index; None if it is not supported."""
    if not isinstance(name, str) or name not in _DTYPES:
        return None
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name)).newbyteorder("<")


def can_store(dtype: np.dtype) -> bool:
    """True if a packed file can store a dtype."""
    return dtype.name in _DTYPES


def encode_index(index: PackedIndex) -> bytes:
    """Return the bytes of an index."""
    about = {"fields": [f.as_dict() for f in index.fields], "metadata": dict(index.metadata)}
    text = json.dumps(about, separators=(",", ":"), sort_keys=True).encode()
    parts = [_LENGTH.pack(len(text)), text]
    size = _LENGTH.size + len(text)
    for field in index.fields:
        for name, (dtype, shape) in field.columns.items():
            column = np.ascontiguousarray(index.columns[field.name][name], dtype)
            assert column.shape == (index.records, *shape)
            parts += [bytes(-size % LINE), column.tobytes()]
            size += -size % LINE + column.nbytes
    return b"".join(parts)


def encode_header(records: int, index_offset: int, index: bytes) -> bytes:
    """Return the header of a file with this index."""
    fields = (MAGIC, VERSION, 0, records, index_offset, len(index), index_offset + len(index))
    head = _HEADER.pack(*fields, digest_of(index))
    return head + _CRC.pack(zlib.crc32(head))


def digest_of(index: Any) -> bytes:
    """Return the digest of the bytes of an index."""
    return hashlib.blake2b(index, digest_size=16).digest()


def open_packed(path: File) -> tuple[np.ndarray | RemoteFile, PackedIndex]:
    """Map a packed file, uint8 [size], read-only, or open its URL; read and validate its index.

    All byte ranges are within the file. Columns of offsets, sizes, shapes and checksums are copies,
    so that they cannot change after the validation; columns of values are views.

    Raises:
      ValueError: names the file and the problem.
    """
    file = RemoteFile.open(path) if isinstance(path, Url) else map_file(path)
    try:
        return file, _read_index(file)
    except _InvalidFile as error:
        if isinstance(file, RemoteFile):
            file.check_unchanged()
        raise ValueError(f"{path} {error}") from None


class _InvalidFile(Exception):
    """An invalid file; the message continues a sentence that begins with the file name."""


def _read_index(file: np.ndarray | RemoteFile) -> PackedIndex:
    head = file[: _HEADER.size + _CRC.size].tobytes()
    if head[:8] != MAGIC:
        if not any(head):
            raise _InvalidFile("is empty or incomplete; pack it again")
        raise _InvalidFile("is not a packed file: it has a wrong magic number")
    if len(head) < _HEADER.size + _CRC.size:
        raise _InvalidFile("is truncated within its header; copy it or pack it again")
    _, version, _, records, offset, size, file_size, digest = _HEADER.unpack(head[: _HEADER.size])
    if version != VERSION:  # first, because other versions may have another layout
        hint = "; upgrade jaxkern" if version > VERSION else ""
        raise _InvalidFile(f"has version {version}; this jaxkern reads {VERSION}{hint}")
    if zlib.crc32(head[: _HEADER.size]) != _CRC.unpack(head[_HEADER.size :])[0]:
        raise _InvalidFile("has a damaged header; copy it or pack it again")
    if file_size != file.size:
        how = "is truncated" if file_size > file.size else "has grown"
        raise _InvalidFile(f"{how}: it has {file.size} bytes and was written with {file_size}")
    is_aligned = offset >= PAGE and offset % PAGE == 0
    if not (is_aligned and offset + size == file_size and 0 < records <= _MAX_COUNT):
        raise _InvalidFile("has an inconsistent header")
    index = file[offset:]
    if digest_of(index) != digest:
        raise _InvalidFile("has a damaged index; copy it or pack it again")
    fields, metadata, start = _read_text(index)
    columns = _read_columns(index, start, fields, records)
    for field in fields:
        if field.codec != "column":
            _check_ranges(field, columns[field.name], int(offset))
    return PackedIndex(records, fields, columns, metadata, digest)


def _read_text(index: np.ndarray) -> tuple[tuple[PackedField, ...], dict[str, Any], int]:
    head = index[: _LENGTH.size].tobytes().ljust(_LENGTH.size, b"\xff")
    (length,) = _LENGTH.unpack(head)
    if length > index.size - _LENGTH.size:
        raise _InvalidFile("has an inconsistent index")
    try:
        about = json.loads(index[_LENGTH.size : _LENGTH.size + length].tobytes())
        entries, metadata = about["fields"], about["metadata"]
        fields = tuple(_read_field(entry) for entry in entries)
        valid = isinstance(metadata, dict) and len({f.name for f in fields}) == len(fields) > 0
    except (ValueError, TypeError, LookupError, RecursionError):
        valid = False
    if not valid:
        raise _InvalidFile("has an index with invalid text")
    return fields, metadata, _LENGTH.size + length


def _read_field(entry: Any) -> PackedField:
    name, codec, dtype = entry["name"], entry["codec"], dtype_of(entry["dtype"])
    shape = tuple(entry["shape"])
    if not isinstance(name, str) or codec not in ("column", "array", "jpeg") or dtype is None:
        raise ValueError
    sides = [n for n in shape if type(n) is int and 0 <= n <= _MAX_SIDE]
    if len(shape) > _MAX_DIMENSIONS or len(sides) < len(shape):
        raise ValueError
    if codec == "jpeg" and (dtype != np.uint8 or len(shape) != 3 or shape[2] not in (1, 3)):
        raise ValueError
    return PackedField(name, codec, dtype, shape)


def _read_columns(
    index: np.ndarray, start: int, fields: Sequence[PackedField], records: int
) -> dict[str, dict[str, np.ndarray]]:
    columns: dict[str, dict[str, np.ndarray]] = {field.name: {} for field in fields}
    at = start
    for field in fields:
        for name, (dtype, shape) in field.columns.items():
            at += -at % LINE
            size = records * math.prod(shape) * dtype.itemsize  # Python's integers do not overflow
            if size > index.size - at:
                raise _InvalidFile("has an index that is too short for its records")
            try:
                column = np.ndarray((records, *shape), dtype, index, at)
            except ValueError:  # an empty array with sides above NumPy's limit
                raise _InvalidFile("has an index with invalid text") from None
            columns[field.name][name] = column if name == "value" else column.copy()
            at += size
    if at != index.size:
        raise _InvalidFile("has an index that is too long for its records")
    return columns


def _check_ranges(field: PackedField, columns: Mapping[str, np.ndarray], end: int) -> None:
    """Raise if a record is not between header and index, or its size contradicts its shape."""
    offset, size, shape = columns["offset"], columns["size"], columns["shape"]
    what = f"has an index whose records of {field.name!r}"
    inside = (offset >= PAGE) & (size >= 0) & (size <= end) & (offset <= end - size)
    if not inside.all():
        raise _InvalidFile(f"{what} are not within the file")
    if (shape < 0).any() or (field.codec == "jpeg" and (shape == 0).any()):
        raise _InvalidFile(f"{what} have invalid shapes")
    if field.codec == "array":
        if (offset % LINE).any():
            raise _InvalidFile(f"{what} are not aligned")
        # In float64 first: products may overflow 64 bits, even those of empty arrays.
        estimate = np.maximum(shape, 1).prod(axis=1, dtype=np.float64) * field.dtype.itemsize
        exact = shape.prod(axis=1, dtype=np.int64) * field.dtype.itemsize
        if (estimate > _MAX_COUNT).any() or (exact != size).any():
            raise _InvalidFile(f"{what} have sizes that contradict their shapes")


def packed_paths(path: Paths) -> list[File]:
    """Return the absolute paths, or the URLs, of a name, a pattern, a folder or a list, in order.

    Raise FileNotFoundError if shards are missing, and ValueError if they belong to several sets.
    """
    try:
        paths = expand_files(path, (SUFFIX,), "packed records")
    except FileNotFoundError as error:
        if not isinstance(path, str | os.PathLike) or is_url(path):
            raise
        stem = os.path.expanduser(os.fspath(path)).removesuffix(SUFFIX)
        named = map(_SHARD.search, glob.glob(f"{glob.escape(stem)}-*-of-*{SUFFIX}"))
        sets = {f"{stem}-*-of-{match[2]}{SUFFIX}" for match in named if match}
        if not sets:
            raise
        shards = " or ".join(sorted(sets))
        raise FileNotFoundError(f"{error}; did you mean the shards {shards}?") from None
    names = [_SHARD.search(path.name) for path in paths]
    if len({isinstance(each, Url) for each in paths}) > 1:
        raise ValueError(f"{path!r:.200} has both URLs and local paths; expected one kind")
    is_file = isinstance(path, str | os.PathLike) and (path in paths or os.path.isfile(path))
    if not any(names) or (is_file and len(paths) == 1):  # a single shard may be read by itself
        return paths
    pairs = zip(paths, names, strict=True)
    stems = {(p.name[: n.start()], n[2]) if n else (p.name, "") for p, n in pairs}
    if len(stems) > 1:
        raise ValueError(f"{path} has several sets, of {paths[0].name} and {paths[-1].name}")
    numbers = {int(name[1]) for name in names if name}
    count = int(next(name[2] for name in names if name))
    if missing := sorted(set(range(min(count, 10**6))) - numbers):
        text = ", ".join(f"{number:05}" for number in missing[:5])
        raise FileNotFoundError(f"{path} has {len(numbers)} of {count} shards, but not {text}")
    return paths


def check_same_set(paths: Sequence[File], indices: Sequence[PackedIndex]) -> None:
    """Raise ValueError if files have different fields or are shards of different sets."""
    first = indices[0].metadata
    expected = [field.as_dict() for field in indices[0].fields]
    for number, (path, index) in enumerate(zip(paths, indices, strict=True)):
        position, own = [number, len(paths)], index.metadata
        fields = [field.as_dict() for field in index.fields]
        if fields != expected:
            problem = f"expected the fields {expected}, got {fields}"
        elif own.get("set") != first.get("set"):
            problem = "it was written with another set"
        elif len(paths) > 1 and "shard" in own and own["shard"] != position:
            problem = f"expected shard {position}, got {own['shard']}"
        else:
            continue
        raise ValueError(f"{path} does not belong to {paths[0]}: {problem}")
