"""The layout of a packed file (.jkp): its header and its index; what is read is never trusted.

    0       header: one page, of which 68 bytes are used
    4096    what the records store, one record after another
    ...     index, from a page's beginning to the end of the file: a text in JSON, and columns

All numbers are little endian. docs/packed.md has the tables.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

MAGIC = b"\x89JKP\r\n\x1a\n"
VERSION = 1
PAGE = 4096
LINE = 64
SUFFIX = ".jkp"

# magic, version, 0, records, offset and size of the index, size of the file, digest of the index;
# behind it the CRC-32 of these bytes
_HEADER = struct.Struct("<8sIIQQQQ16s")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_DTYPES = frozenset(
    {"bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"}
    | {"float32", "float64", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64))}
)
_MOST_DIMENSIONS = 32
_MOST = 2**62  # records, bytes: what sums of a few cannot carry beyond 64 bits
_MOST_SIDE = 2**31 - 1

Codec = Literal["column", "array", "jpeg"]


@dataclasses.dataclass(frozen=True)
class PackedField:
    """How a field is stored.

    Attributes:
      name: of the field.
      codec: "column": rows of one shape, all together in the index; "array": each record's array
        as it lies in memory, of any shape; "jpeg": the bytes of a JPEG file.
      dtype: of the values; of what is decoded for "jpeg".
      shape: of a record in a column; of an array and an image (of a JPEG once it is decoded) as
        far as it is one for all, and 0 for the sides that differ.
    """

    name: str
    codec: Codec
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def columns(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """The field's columns in the index: dtype, and shape of a record."""
        if self.codec == "column":
            return {"value": (self.dtype, self.shape)}
        ranks = 2 if self.codec == "jpeg" else len(self.shape)  # a JPEG's channels are not stored
        return {
            "offset": (np.dtype("<i8"), ()),
            "size": (np.dtype("<i8"), ()),
            "crc32": (np.dtype("<u4"), ()),
            "shape": (np.dtype("<i4"), (ranks,)),
        }

    def described(self) -> dict[str, Any]:
        """For the index's text."""
        return {
            "name": self.name,
            "codec": self.codec,
            "dtype": self.dtype.name,
            "shape": list(self.shape),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class PackedIndex:
    """What a packed file's index says.

    Attributes:
      records: their number.
      fields: in the order of the source's.
      columns: field -> column of the field -> array [records, ...].
      metadata: what the writer said of the whole.
      digest: of the index, and by its checksums of all that the records store.
    """

    records: int
    fields: tuple[PackedField, ...]
    columns: Mapping[str, Mapping[str, np.ndarray]]
    metadata: Mapping[str, Any]
    digest: bytes = b""


def aligned(offset: int, size: int) -> int:
    """Where `size` bytes go that may begin at `offset`.

    A page's beginning for what fills one, so that reading it touches the fewest pages and shares
    none; a multiple of 64 for what is smaller, which would waste most of a page.
    """
    step = PAGE if size >= PAGE else LINE
    return -(-offset // step) * step


def layout(sizes: Sequence[int], cursor: int) -> tuple[list[int], int]:
    """Offsets of what a record stores, and the end; the same for every record of these sizes.

    A record that holds a page or more begins at a page's beginning.
    """
    at = aligned(cursor, max(sizes, default=0))
    offsets = []
    for size in sizes:
        at = aligned(at, size)
        offsets.append(at)
        at += size
    return offsets, at


def dtype_of(name: Any) -> np.dtype | None:
    """The dtype that an index names, little endian; None for others."""
    if not isinstance(name, str) or name not in _DTYPES:
        return None
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name)).newbyteorder("<")


def can_store(dtype: np.dtype) -> bool:
    """Whether a packed file holds values of a dtype."""
    return dtype.name in _DTYPES


def encode_index(index: PackedIndex) -> bytes:
    """The bytes of an index."""
    about = {"fields": [f.described() for f in index.fields], "metadata": dict(index.metadata)}
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
    """The first bytes of the file whose index this is."""
    fields = (MAGIC, VERSION, 0, records, index_offset, len(index), index_offset + len(index))
    head = _HEADER.pack(*fields, digest_of(index))
    return head + _CRC.pack(zlib.crc32(head))


def digest_of(index: Any) -> bytes:
    """Of the bytes of an index."""
    return hashlib.blake2b(index, digest_size=16).digest()


def read_index(file: np.ndarray, path: Any) -> PackedIndex:
    """The index of a packed file, uint8 [size], all of whose places lie within the file.

    Columns of offsets, sizes, shapes and checksums are copies, so that what was checked stays;
    those of values are views.

    Raises: ValueError that names the file and what is wrong with it.
    """
    try:
        return _read_index(file)
    except _WrongError as error:
        raise ValueError(f"{path} {error}") from None


class _WrongError(Exception):
    """What a file is or has; the message follows its name."""


def _read_index(file: np.ndarray) -> PackedIndex:
    head = file[: _HEADER.size + _CRC.size].tobytes()
    if head[:8] != MAGIC:
        if not any(head):
            raise _WrongError("is empty or was not finished; wanted a packed file: pack it again")
        raise _WrongError("is no packed file: it does not begin as those do")
    if len(head) < _HEADER.size + _CRC.size:
        raise _WrongError("is cut short within its header; copy it or pack it again")
    _, version, _, records, offset, size, whole, digest = _HEADER.unpack(head[: _HEADER.size])
    if version != VERSION:  # before the rest, which versions may hold in other ways
        raise _WrongError(
            f"has version {version} of the format; this jaxkern reads {VERSION}"
            + ("; upgrade jaxkern" if version > VERSION else "")
        )
    if zlib.crc32(head[: _HEADER.size]) != _CRC.unpack(head[_HEADER.size :])[0]:
        raise _WrongError("has a damaged header; copy it or pack it again")
    if whole != file.size:
        how = "is cut short" if whole > file.size else "has grown"
        raise _WrongError(f"{how}: it has {file.size} bytes and was written with {whole}")
    if offset < PAGE or offset % PAGE or offset + size != whole or not 0 < records <= _MOST:
        raise _WrongError("has a header that contradicts itself")
    index = file[offset:]
    if digest_of(index) != digest:
        raise _WrongError("has a damaged index; copy it or pack it again")
    fields, metadata, start = _read_text(index)
    columns = _read_columns(index, start, fields, records)
    for field in fields:
        if field.codec != "column":
            _check_places(field, columns[field.name], int(offset))
    return PackedIndex(records, fields, columns, metadata, digest)


def _read_text(index: np.ndarray) -> tuple[tuple[PackedField, ...], dict[str, Any], int]:
    """Fields, metadata, and where the columns begin."""
    if index.size < _LENGTH.size:
        raise _WrongError("has an index that contradicts itself")
    (length,) = _LENGTH.unpack(index[: _LENGTH.size].tobytes())
    if length > index.size - _LENGTH.size:
        raise _WrongError("has an index that contradicts itself")
    try:
        about = json.loads(index[_LENGTH.size : _LENGTH.size + length].tobytes())
        given, metadata = about["fields"], about["metadata"]
        fields = tuple(_read_field(field) for field in given)
        right = isinstance(metadata, dict) and len({f.name for f in fields}) == len(fields) > 0
    except (ValueError, TypeError, LookupError, RecursionError):
        right = False
    if not right:
        raise _WrongError("has an index whose text cannot be understood")
    return fields, metadata, _LENGTH.size + length


def _read_field(given: Any) -> PackedField:
    name, codec, dtype = given["name"], given["codec"], dtype_of(given["dtype"])
    shape = tuple(given["shape"])
    if not isinstance(name, str) or codec not in ("column", "array", "jpeg") or dtype is None:
        raise ValueError
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError
    if not all(type(n) is int and 0 <= n <= _MOST_SIDE for n in shape):
        raise ValueError
    if codec == "jpeg" and (dtype != np.uint8 or len(shape) != 3 or shape[2] not in (1, 3)):
        raise ValueError
    return PackedField(name, codec, dtype, shape)


def _read_columns(
    index: np.ndarray, start: int, fields: Sequence[PackedField], records: int
) -> dict[str, dict[str, np.ndarray]]:
    columns: dict[str, dict[str, np.ndarray]] = {}
    at = start
    for field, name, dtype, shape in _all_columns(fields):
        at += -at % LINE
        size = records * math.prod(shape) * dtype.itemsize  # Python's integers do not overflow
        if size > index.size - at:
            raise _WrongError("has an index that is too short for its records")
        try:
            column = np.ndarray((records, *shape), dtype, index, at)
        except ValueError:  # no elements, of sides that NumPy cannot count
            raise _WrongError("has an index whose text cannot be understood") from None
        columns.setdefault(field.name, {})[name] = column if name == "value" else column.copy()
        at += size
    if at != index.size:
        raise _WrongError("has an index that is too long for its records")
    return columns


def _all_columns(
    fields: Sequence[PackedField],
) -> Iterator[tuple[PackedField, str, np.dtype, tuple[int, ...]]]:
    for field in fields:
        for name, (dtype, shape) in field.columns.items():
            yield field, name, dtype, shape


def _check_places(field: PackedField, columns: Mapping[str, np.ndarray], end: int) -> None:
    """Raises where a record does not lie between the header and the index, or has another size."""
    offset, size, shape = columns["offset"], columns["size"], columns["shape"]
    what = f"has an index whose records of {field.name!r}"
    inside = (offset >= PAGE) & (size >= 0) & (size <= end) & (offset <= end - size)
    if not inside.all():
        raise _WrongError(f"{what} do not lie within the file")
    if (shape < 0).any() or (field.codec == "jpeg" and (shape == 0).any()):
        raise _WrongError(f"{what} have no possible shape")
    if field.codec == "array":
        if (offset % LINE).any():
            raise _WrongError(f"{what} are not aligned")
        # In floats first: products may not fit into 64 bits, not even those of empty arrays.
        about = np.maximum(shape, 1).prod(axis=1, dtype=np.float64) * field.dtype.itemsize
        exact = shape.prod(axis=1, dtype=np.int64) * field.dtype.itemsize
        if (about > _MOST).any() or (exact != size).any():
            raise _WrongError(f"{what} have sizes that are not those of their shapes")
