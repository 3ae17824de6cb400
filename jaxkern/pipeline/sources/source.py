"""Where records come from: what a source is, dicts of arrays, and any sequence of dicts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.core.archives import map_npy
from jaxkern.core.failures import note
from jaxkern.core.mapped import check_mapped
from jaxkern.pipeline.rows import Data, canonical, canonical_dtype, row_of
from jaxkern.pipeline.sources.encoded import EncodedImages


class BatchSource:
    """A source that gathers whole batches; subclass it for a format of your own.

    `gather` is called from several threads at once.

    Attributes:
      fresh: whether each `gather` (without `out`) makes arrays that nobody writes to afterwards, so
        that a batch need not be copied; a subclass that has its own `gather` says so itself.
      on_bad_record: with "mask", `gather` stands zeros for records that it cannot read and has a
        field "valid" (bool [N]) that is False there, which the iterator counts.
    """

    fresh: bool = False
    on_bad_record: Literal["raise", "mask"] = "raise"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Of the classes that it is derived from, the one whose `gather` it has must have said so.
        first = next(base for base in cls.__mro__ if {"gather", "fresh"} & vars(base).keys())
        if "fresh" not in vars(first):
            cls.fresh = False

    def __len__(self) -> int:
        raise NotImplementedError

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The batch of these records int64 [N], in order.

        Args:
          out: a dict of arrays of the batch's shapes to fill and return, where the pipeline has
            one and the source's fields are arrays.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} records)"

    def describe(self) -> str:
        """What must be equal for two sources to give the same records; in a state."""
        return type(self).__name__

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        """The shapes and dtypes of a batch, without reading it; None where that is not possible.

        Args:
          count: records of the batch.
          image_side: stands for the height and width that no image exceeds, where only headers
            tell them.
        """
        return None

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """Field -> array [records, ...], where `gather` takes rows and does nothing else.

        Native threads then take them instead, without Python.
        """
        return None

    def row_parts(self) -> Sequence[Mapping[str, np.ndarray]] | None:
        """`row_arrays` of a source whose rows lie in several arrays, one behind the other."""
        arrays = self.row_arrays()
        return None if arrays is None else [arrays]

    def rows_of(self, records: np.ndarray) -> np.ndarray:
        """The rows int64 [N] of `row_parts` and `encoded_images` that these records are."""
        return records

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """Field -> where its images lie, which `gather` decodes; `row_arrays` has the other fields.

        Native threads then decode what a Compose needs of them, without Python.
        """
        return {}

    def name_of(self, record: int) -> str:
        """Where a record is from, in messages; "" where its number says all."""
        return ""

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        """A record's image as it was encoded; None where the source does not hold it so."""
        return None

    def note_masked(self, records: np.ndarray) -> None:
        """Told of the records int64 [N] of a batch that native threads could not decode."""

    def remarks(self) -> Sequence[str]:
        """What `Pipeline.explain` says of how the records are read; it may take a while."""
        return ()

    def check(self, records: np.ndarray) -> None:
        """Raises where one of these records int64 [N] must not be read.

        It is asked before native threads read what `row_arrays` and `encoded_images` say.
        """

    def __getitem__(self, index: int) -> Data:
        """One record."""
        return row_of(self.gather(np.array([range(len(self))[index]])), 0)


class ArraySource(BatchSource):
    """Records along the leading axis of arrays.

    Args:
      arrays: field -> array [N, ...], which is not copied: NumPy, np.memmap, jax.Array, or the
        path of a ``.npy`` file, which is mapped into memory.
    Raises: ValueError for fields of different lengths; TypeError for fields that are not numbers.

    >>> from jaxkern.pipeline import ArraySource
    >>> source = ArraySource({"x": [[1, 2], [3, 4]], "y": [0, 1]})
    >>> len(source), source[1]["x"].tolist()
    (2, [3, 4])
    """

    fresh = True

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        if not isinstance(arrays, Mapping) or not arrays:
            raise TypeError(
                f"arrays is {arrays!r:.80}; wanted a dict with at least one field -> array"
            )
        self.arrays = {name: _array(name, value) for name, value in arrays.items()}
        lengths = {name: array.shape[0] for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the fields have different numbers of records: {lengths}")
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return int(self._length)

    def __repr__(self) -> str:
        return f"ArraySource({', '.join(self.arrays)}; {len(self)} records)"

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        """Of the arrays, unless a subclass gathers in a way of its own."""
        if type(self).gather is not ArraySource.gather:
            return None
        return {
            name: jax.ShapeDtypeStruct((count, *array.shape[1:]), canonical_dtype(array.dtype))
            for name, array in self.arrays.items()
        }

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """The arrays, unless a subclass gathers in a way of its own."""
        return self.arrays if type(self).gather is ArraySource.gather else None

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The rows of these records; one vectorised copy a field."""
        if records.size and not (records.min() >= 0 and records.max() < len(self)):
            raise IndexError(f"records {records.min()} to {records.max()} of {len(self)}")
        for name, array in self.arrays.items():
            check_mapped(f"field {name!r}", array)
        if out is None:
            return {k: canonical(_rows(array, records)) for k, array in self.arrays.items()}
        for name, array in self.arrays.items():
            if out[name].dtype == array.dtype and _is_plain(array):
                # "clip" writes into `out` directly, "raise" through a copy; the range was checked.
                array.take(records, axis=0, out=out[name], mode="clip")
            else:
                out[name][...] = _rows(array, records)
        return out


def _is_plain(array: np.ndarray) -> bool:
    """Whether `take` reads the array as it lies; it copies all of another one first."""
    return bool(array.flags.c_contiguous and array.flags.aligned)


def _rows(array: np.ndarray, records: np.ndarray) -> np.ndarray:
    rows: np.ndarray = array.take(records, axis=0) if _is_plain(array) else array[records]
    return rows


def _array(name: str, value: Any) -> np.ndarray:
    what = f"field {name!r}"
    if isinstance(value, str | os.PathLike):
        what, value = f"{what} ({os.fspath(value)})", map_npy(value)
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim == 0:
        raise ValueError(f"{what} is one number; wanted an array [N, ...]")
    check_numeric(array, what)
    return array


def check_numeric(array: np.ndarray, what: str) -> None:
    """Raises where an array cannot go to a device."""
    dtype = array.dtype
    # JAX's own dtypes, such as bfloat16, are void to NumPy, but registered with it.
    if dtype.kind in "OSUMm" or (dtype.kind == "V" and dtype.isbuiltin != 2):
        raise TypeError(
            f"{what} has dtype {dtype}; wanted numbers or bools: decode strings, bytes and dates "
            "in the source, give each column of a table a field, a list of encoded images to "
            "jaxkern.pipeline.Encoded, and a source of records with them to EncodedRecords"
        )
    try:
        canonical(np.empty(0, dtype))
    except TypeError:
        raise TypeError(
            f"{what} has dtype {dtype}, which JAX does not have; convert it in the source"
        ) from None


class RecordSource(BatchSource):
    """Batches of any sequence of dicts, read one record at a time."""

    fresh = True

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"{type(self.source).__name__}({len(self)} records)"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The stacked records."""
        rows = [self._record(record) for record in records.tolist()]
        return stacked(rows, records.tolist(), repr(self), out)

    def _record(self, record: int) -> Data:
        try:
            fields = self.source[record]
        except BaseException as error:
            note(error, "while reading record {} of {!r}", record, self)
            raise
        return record_arrays(fields, record, repr(self))


def record_arrays(fields: Any, record: int, who: str) -> Data:
    """A record as a dict of arrays; raises TypeError where it is none."""
    if not isinstance(fields, Mapping) or not fields:
        raise TypeError(
            f"record {record} of {who} is {fields!r:.80}; wanted a dict of arrays, such as "
            "{'image': ..., 'label': ...}"
        )
    arrays = {str(name): np.asarray(value) for name, value in fields.items()}
    for name, array in arrays.items():
        check_numeric(array, f"{name!r} of record {record}")
    return arrays


def stacked(
    rows: Sequence[Data], records: Sequence[int], who: str, out: Data | None = None
) -> Data:
    """The batch of these records, written to `out` where that fits.

    Args:
      rows: at least one.
      records: their numbers, for messages; of `who`.
    """
    for record, fields in zip(records, rows, strict=True):
        if fields.keys() != rows[0].keys():
            raise ValueError(
                f"record {record} has the fields {sorted(fields)} and record {records[0]} "
                f"{sorted(rows[0])}; wanted the same in every record"
            )
    result: Data = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        for record, value in zip(records, values, strict=True):
            if value.shape != values[0].shape:
                raise ValueError(
                    f"record {record} of {who} has {name!r} of shape {value.shape} and "
                    f"record {records[0]} of shape {values[0].shape}; wanted one shape: resize "
                    "in the source, or use jaxkern.pipeline.ImageFolder for images of any size"
                )
        place = None if out is None else out.get(name)
        dtype = np.result_type(*values)
        if _fits(place, values[0].shape, dtype):
            np.stack(values, out=place, casting="same_kind")
            result[name] = place
        else:  # as it is, whatever the first batch looked like
            result[name] = canonical(np.stack(values))
    return result


def _fits(place: np.ndarray | None, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    return place is not None and place.shape[1:] == shape and place.dtype == canonical_dtype(dtype)
