"""The interface of data sources, and sources of arrays and of sequences of dicts."""

from __future__ import annotations

import bisect
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.core.arrays import check_mapped, map_npy
from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data, canonical, canonical_dtype, row_of
from jaxkern.ring import RowParts
from jaxkern.ring.rows import check_records, common_length, is_numeric

#: maximum size in bytes of the arrays that `join_arrays` concatenates
CONCATENATED_BYTES = 2**28


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedImages:
    """A field of encoded images that native threads can decode.

    Attributes:
      blobs: C-contiguous arrays uint8 [B] with the bytes of encoded images, such as memory maps.
      ranges: int64 [N, 3]: blob, offset and length of the bytes of each record.
      in_files: True if these bytes are file names instead, in the encoding of the file system.
      size: int32 [N, 2], height and width of the upright image, from its header; zeros if unknown.
      codec: "jpeg", or "raw" for uncompressed uint8 [height, width, channels].
      channels, max_pixels: as for `Encoded`.
      scaled: True if JPEG may be decoded at 1/2, 1/4 or 1/8, see `ImageFiles`.
      rows_of: function from record numbers to rows of `ranges` and `size`, if they differ.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> blob = np.frombuffer(bytes(60), np.uint8)  # 4x5 pixels without a header
      >>> images = jk.pipeline.EncodedImages(
      ...     (blob,), ranges=np.array([[0, 0, 60]]), in_files=False,
      ...     size=np.array([[4, 5]], np.int32), codec="raw")
      >>> images.channels, images.in_files
      (3, False)
    """

    blobs: tuple[np.ndarray, ...]
    ranges: np.ndarray
    in_files: bool
    size: np.ndarray
    codec: Literal["jpeg", "raw"] = "jpeg"
    channels: int = 3
    max_pixels: int = 178_956_970
    scaled: bool = False
    rows_of: Callable[[np.ndarray], np.ndarray] | None = None


class BatchSource:
    """Base class of sources that read whole batches; subclass it for other formats.

    `gather` is called concurrently from several threads. A subclass that overrides an inherited
    `gather` must also override `fresh`, `batch_spec`, `row_arrays` and `encoded_images`, which
    describe it.

    Attributes:
      fresh: True if each `gather` (without `out`) returns new arrays that are not modified later,
        so a batch need not be copied.
      on_bad_record: with "mask", `gather` returns zeros for records that it cannot read, and a
        field "valid" (bool [N]) that is False there; the iterator counts them.

    Example:
      >>> import jaxkern as jk
      >>> class Squares(jk.pipeline.BatchSource):
      ...     _length = 5
      ...     def gather(self, records, out=None):
      ...         return {"x": records**2}
      >>> [batch["x"].tolist() for batch in jk.from_source(Squares(), batch_size=3)]
      [[0, 1, 4], [9, 16]]
    """

    fresh: bool = False
    on_bad_record: Literal["raise", "mask"] = "raise"
    _names: Collection[str] = ()  # names of the fields, for the repr
    _length: int  # number of records; or override `__len__`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("fresh", "batch_spec", "row_arrays", "encoded_images"):
            first = next(base for base in cls.__mro__ if {"gather", name} & vars(base).keys())
            if name not in vars(first):
                setattr(cls, name, vars(BatchSource)[name])

    def __len__(self) -> int:
        return self._length

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """Return the batch of records int64 [N], in order.

        `out` is a dict of arrays to fill and return, or None; a source may ignore it.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        fields = f"{', '.join(self._names)}; " if self._names else ""
        return f"{type(self).__name__}({fields}{len(self)} records)"

    def describe(self) -> str:
        """Return a text that is equal for sources of equal records; it is stored in states."""
        return type(self).__name__

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        """Return the shapes and dtypes of `count` records without reading them; None if unknown.

        `image_side` is assumed as the maximum height and width if only image headers contain them.
        """
        return None

    def row_arrays(self) -> Mapping[str, np.ndarray | RowParts] | None:
        """Return field -> array [rows, ...] whose rows native threads may copy, or None."""
        return None

    def rows_of(self, records: np.ndarray) -> np.ndarray:
        """Return the rows int64 [N] of records in `row_arrays` and `encoded_images`."""
        return records

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """Return field -> images that native threads can decode; `row_arrays` has other fields."""
        return {}

    def name_of(self, record: int) -> str:
        """Return the origin of a record, for error messages; "" if its number suffices."""
        return ""

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        """Return a record's encoded image; None if the source does not store it encoded."""
        return None

    def note_masked(self, records: np.ndarray) -> None:
        """Handle records int64 [N] of a batch that native threads could not decode."""

    def remarks(self) -> Sequence[str]:
        """Describe how records are read, for `Pipeline.explain`; may be slow."""
        return ()

    def check(self, records: np.ndarray) -> None:
        """Raise if native threads must not read one of the records int64 [N]."""

    def __getitem__(self, index: int) -> Data:
        """Return one record."""
        return row_of(self.gather(np.array([range(len(self))[index]])), 0)


class ArraySource(BatchSource):
    """Source of records along the leading axis of arrays.

    Args:
      arrays: field -> array [N, ...], not copied: NumPy, np.memmap, jax.Array, or the path of a
        ``.npy`` file, which is mapped into memory.

    Raises:
      ValueError: fields have different lengths.
      TypeError: fields are not numbers.

    >>> from jaxkern.pipeline import ArraySource
    >>> source = ArraySource({"x": [[1, 2], [3, 4]], "y": [0, 1]})
    >>> len(source), source[1]["x"].tolist()
    (2, [3, 4])
    """

    fresh = True

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        if not isinstance(arrays, Mapping) or not arrays:
            raise TypeError(f"arrays is {arrays!r:.80}; expected a dict with at least one field")
        self.arrays = {name: _array(name, each) for name, each in arrays.items()}
        self._names = self.arrays
        self._length = common_length({name: len(array) for name, array in self.arrays.items()})

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        return {
            name: jax.ShapeDtypeStruct((count, *array.shape[1:]), canonical_dtype(array.dtype))
            for name, array in self.arrays.items()
        }

    def row_arrays(self) -> Mapping[str, np.ndarray | RowParts] | None:
        arrays = {name: a for name, a in self.arrays.items() if not isinstance(a, RowReader)}
        return arrays if len(arrays) == len(self.arrays) else None

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        check_records(records, len(self))
        data: Data = {}
        for name, array in self.arrays.items():
            fits = out is not None and out[name].dtype == array.dtype
            target = out[name] if out is not None and fits else None
            if not isinstance(array, np.ndarray):
                rows = array.take(records, target)
            else:
                check_mapped(f"field {name!r}", array)
                # `take` reads such an array directly; it first copies any other array completely.
                if array.flags.c_contiguous and array.flags.aligned:
                    # mode="raise" would buffer the output; the indices are already checked.
                    rows = array.take(records, axis=0, out=target, mode="clip")
                else:
                    rows, target = array[records], None
            data[name] = rows if target is not None else store_rows(rows, name, out)
        return data


@dataclasses.dataclass(frozen=True, eq=False)
class RowReader:
    """A field of an `ArraySource` of which ``read(rows, out)`` reads rows int64 [N] into `out`."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[np.ndarray, np.ndarray], None]

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Read rows into `out` [N, ...], a new array by default, and return it."""
        out = np.empty((len(rows), *self.shape[1:]), self.dtype) if out is None else out
        self.read(rows, out)
        return out


def join_arrays(arrays: Sequence[np.ndarray]) -> np.ndarray | RowParts:
    """Return the concatenation of arrays, which is copied only if it is small."""
    if len(arrays) == 1:
        return arrays[0]
    small = sum(array.nbytes for array in arrays) <= CONCATENATED_BYTES
    return np.concatenate(arrays) if small else RowParts(arrays)


def store_rows(rows: np.ndarray, name: str, out: Data | None) -> np.ndarray:
    """Return the rows of a field in JAX's dtype, in `out` if the pipeline provides it."""
    if out is None:
        return canonical(rows)
    target: np.ndarray = out[name]
    target[...] = rows
    return target


def check_choice(name: str, value: Any, *choices: Any) -> None:
    """Raise ValueError with the name of the argument if its value is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def locate(ends: Any, record: int) -> tuple[int, int]:
    """Return (part, number in the part) of a record; part k ends before record ``ends[k]``."""
    part = bisect.bisect_right(ends, record)
    return part, int(record - (ends[part - 1] if part else 0))


def _array(name: str, value: Any) -> np.ndarray | RowParts | RowReader:
    if isinstance(value, RowParts | RowReader):
        return value
    what = f"field {name!r}"
    if isinstance(value, str | os.PathLike):
        what, value = f"{what} ({os.fspath(value)})", map_npy(value)
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim == 0:
        raise ValueError(f"{what} is a scalar; expected an array [N, ...]")
    check_numeric(array, what)
    return array


def check_numeric(array: np.ndarray, what: str) -> None:
    """Raise TypeError if an array cannot be transferred to a device."""
    dtype = array.dtype
    if not is_numeric(dtype):
        raise TypeError(
            f"{what} has dtype {dtype}; expected numbers or bools: use jaxkern.pipeline.Encoded "
            "for encoded images, EncodedRecords for records with them; decode other values first"
        )
    try:
        canonical_dtype(dtype)
    except TypeError:
        raise TypeError(f"{what} has dtype {dtype}, which JAX does not support") from None


class RecordSource(BatchSource):
    """Source that reads a sequence of dicts one record at a time."""

    fresh = True

    def __init__(self, source: Any) -> None:
        self.source, self._length = source, len(source)

    def __repr__(self) -> str:
        return f"{type(self.source).__name__}({len(self)} records)"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        rows = [self.record(record) for record in records.tolist()]
        return stack_records(rows, records.tolist(), repr(self), out)

    def record(self, record: int) -> Data:
        """Return a record as arrays."""
        return record_arrays(read_record(self.source, record, self), record, repr(self))


def read_record(source: Any, record: int, who: Any) -> Any:
    """Return ``source[record]``; add a note with the record to exceptions."""
    try:
        return source[record]
    except BaseException as error:
        note(error, "while reading record {} of {!r}", record, who)
        raise


def record_arrays(fields: Any, record: int, who: str) -> Data:
    """Convert a record to a dict of arrays; raise TypeError if it is not a dict of numbers."""
    if not isinstance(fields, Mapping) or not fields:
        raise TypeError(f"record {record} of {who} is {fields!r:.80}; expected a dict of arrays")
    arrays = {str(name): np.asarray(value) for name, value in fields.items()}
    for name, array in arrays.items():
        check_numeric(array, f"{name!r} of record {record}")
    return arrays


def stack_records(
    rows: Sequence[Data], records: Sequence[int], who: str, out: Data | None = None
) -> Data:
    """Stack records into a batch, in `out` where shapes and dtypes match.

    `records` are their numbers and `who` is the name of the source, for error messages.
    """
    for record, fields in zip(records, rows, strict=True):
        if fields.keys() != rows[0].keys():
            raise ValueError(
                f"record {record} has the fields {[*fields]}, record {records[0]} {[*rows[0]]}"
            )
    result: Data = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        for record, value in zip(records, values, strict=True):
            if value.shape != values[0].shape:
                raise ValueError(
                    f"record {record} of {who} has {name!r} of shape {value.shape} and "
                    f"record {records[0]} of shape {values[0].shape}; expected equal shapes"
                )
        target = None if out is None else out.get(name)
        kind = values[0].shape, canonical_dtype(np.result_type(*values))
        if target is not None and (target.shape[1:], target.dtype) == kind:
            result[name] = np.stack(values, out=target, casting="same_kind")
        else:  # the shape or dtype differs from that of the first batch
            result[name] = canonical(np.stack(values))
    return result
