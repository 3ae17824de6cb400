"""Sources made of other sources: concatenations, zipped sources and subsets."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.pipeline import rows as row
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.source import ArraySource, BatchSource, EncodedImages
from jaxkern.ring import RowParts


class FieldChecker:
    """Checks that the records of the inputs of the node `what` have equal fields."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._first: tuple[int, row.Fields] | None = None
        self._agreed: set[int] = set()

    def check(self, sources: Sequence[int], fields: Sequence[row.Fields]) -> None:
        """Raise ValueError if fields of these inputs differ, also from earlier ones."""
        known = list(zip(sources, fields, strict=True))
        self._first = self._first or known[0]
        for each in known:
            if each[0] not in self._agreed:
                self._compare(self._first, each)
                self._agreed.add(each[0])
            self._compare(known[0], each)

    def _compare(self, one: tuple[int, row.Fields], other: tuple[int, row.Fields]) -> None:
        if one[1] == other[1]:
            return
        texts = [
            f"{name} is {a} in input {one[0]} and {b} in input {other[0]}"
            for name, a, b in row.differences(one[1], other[1])
        ]
        if texts:
            raise ValueError(
                f"the inputs of {self._what} differ: {'; '.join(texts)}; transform one input "
                "before, or for images of different sizes set the same max_size"
            )


class CombinedSource(BatchSource):
    """Base class of sources whose records are made of records of other sources."""

    _sign = " + "

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        self.sources = tuple(sources)
        self.fresh = all(source.fresh for source in self.sources)
        masks = any(source.on_bad_record == "mask" for source in self.sources)
        self.on_bad_record = "mask" if masks else "raise"

    def __repr__(self) -> str:
        return self._sign.join(map(repr, self.sources))

    def describe(self) -> str:
        return self._sign.join(source.describe() for source in self.sources)

    def remarks(self) -> Sequence[str]:
        return tuple(remark for source in self.sources for remark in source.remarks())

    def parts(self, records: np.ndarray) -> Iterator[tuple[int, np.ndarray, Any]]:
        """Yield (source, its records, their positions) for the records [N]."""
        raise NotImplementedError

    def _one(self, record: int) -> Iterator[tuple[BatchSource, int]]:
        for source, inner, _ in self.parts(np.array([record])):
            yield self.sources[source], int(inner[0])

    def name_of(self, record: int) -> str:
        names = (source.name_of(inner) for source, inner in self._one(record))
        return next(filter(None, names), "")

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        stored = (source.encoded_bytes(field, inner) for source, inner in self._one(record))
        return next((data for data in stored if data is not None), None)

    def note_masked(self, records: np.ndarray) -> None:
        for source, inner, _ in self.parts(records):
            self.sources[source].note_masked(inner)

    def check(self, records: np.ndarray) -> None:
        for source, inner, _ in self.parts(records):
            self.sources[source].check(inner)


class JoinedSource(CombinedSource):
    """Concatenation of sources with equal fields, possibly repeated.

    `counts` are the numbers of records from each source: its length, or more if it is repeated.
    """

    def __init__(
        self, sources: Sequence[BatchSource], counts: Sequence[int], what: str = "concat"
    ) -> None:
        super().__init__(sources)
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._starts = self._ends - np.asarray(counts, np.int64)
        self._length = int(self._ends[-1])
        self._fields = FieldChecker(what)

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        if self._arrays is not None:
            return self._arrays.gather(records % len(self), out)
        pieces = list(self.parts(records))
        if len(pieces) == 1:
            source, inner, _ = pieces[0]
            data = self.sources[source].gather(inner, out)
            self._fields.check([source], [row.fields_of(data)])
            return data
        batches = [(self.sources[source].gather(inner), slice(None)) for source, inner, _ in pieces]
        check = functools.partial(self._fields.check, [source for source, *_ in pieces])
        return row.joined(batches, [positions for *_, positions in pieces], out, check)

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        first, *others = (source.batch_spec(count, image_side) for source in self.sources)
        return first if all(other == first for other in others) else None

    @functools.cached_property
    def _arrays(self) -> ArraySource | None:
        """The concatenation of sources of arrays that are not repeated."""
        each = (s.row_arrays() for s in self.sources if isinstance(s, ArraySource))
        parts = [arrays for arrays in each if arrays is not None]
        if len(parts) < len(self.sources) or sum(map(len, self.sources)) != len(self):
            return None
        self._fields.check(range(len(parts)), [row.fields_of(dict(arrays)) for arrays in parts])
        return ArraySource(_concatenate_fields(parts))

    def parts(self, records: np.ndarray) -> Iterator[tuple[int, np.ndarray, Any]]:
        inner = records % self._ends[-1]
        sources = np.searchsorted(self._ends, inner, side="right")
        for source in np.flatnonzero(np.bincount(sources)).tolist():
            positions = np.flatnonzero(sources == source)
            yield source, inner[positions] - self._starts[source], positions

    def row_arrays(self) -> Mapping[str, np.ndarray | RowParts] | None:
        parts = [source.row_arrays() for source in self.sources]
        if any(source.encoded_images() for source in self.sources) and not self.encoded_images():
            return None
        known = [arrays for arrays in parts if arrays is not None]
        kinds = [{k: (a.dtype, a.shape[1:]) for k, a in arrays.items()} for arrays in known]
        if len(known) < len(parts) or any(kind != kinds[0] for kind in kinds):
            return None  # reading them raises an error
        return _concatenate_fields(known)

    def rows_of(self, records: np.ndarray) -> np.ndarray:
        rows = np.empty(len(records), np.int64)
        for source, inner, positions in self.parts(records):
            rows[positions] = self._row_starts[source] + self.sources[source].rows_of(inner)
        return rows

    @functools.cached_property
    def _row_starts(self) -> np.ndarray:
        return np.cumsum([0, *(_rows_in(source) for source in self.sources)])

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        parts = [source.encoded_images() for source in self.sources]
        if not all(each.keys() == parts[0].keys() for each in parts):
            return {}
        images = {name: _concatenate([each[name] for each in parts]) for name in parts[0]}
        if None in images.values():
            return {}
        return {k: dataclasses.replace(v, rows_of=self.rows_of) for k, v in images.items() if v}


def _rows_in(source: BatchSource) -> int:
    """Return the number of rows of `row_arrays` and `encoded_images` of a source."""
    if isinstance(source, JoinedSource):
        return sum(_rows_in(each) for each in source.sources)
    return _rows_in(source.source) if isinstance(source, Subset) else len(source)


def _concatenate_fields(
    parts: Sequence[Mapping[str, np.ndarray | RowParts]],
) -> dict[str, np.ndarray | RowParts]:
    fields: dict[str, np.ndarray | RowParts] = {}
    for name, first in parts[0].items():
        arrays: list[np.ndarray] = []
        for part in parts:
            array = part[name]
            arrays += array.arrays if isinstance(array, RowParts) else [array]
        fields[name] = first if len(arrays) == 1 else RowParts(arrays)
    return fields


def _concatenate(images: Sequence[EncodedImages]) -> EncodedImages | None:
    options = ("in_files", "codec", "channels", "max_pixels", "scaled")
    if len({tuple(getattr(each, name) for name in options) for each in images}) > 1:
        return None
    if len(images) == 1:
        return images[0]
    first_blob = np.cumsum([0, *(len(each.blobs) for each in images)])
    starts = [np.array([number, 0, 0]) for number in first_blob]
    ranges = [each.ranges + start for each, start in zip(images, starts, strict=False)]
    blobs = tuple(blob for each in images for blob in each.blobs)
    size = np.concatenate([each.size for each in images])
    return dataclasses.replace(images[0], blobs=blobs, ranges=np.concatenate(ranges), size=size)


class ZippedSource(CombinedSource):
    """Source whose record i combines records i of several sources; as long as the shortest.

    With `names` the fields of each source are nested under its name; None merges them.
    """

    _sign = " | "

    def __init__(self, sources: Sequence[BatchSource], names: Sequence[str] | None = None) -> None:
        super().__init__(sources)
        self.names, self._length = names, min(map(len, self.sources))

    def describe(self) -> str:
        return super().describe() + (f" as {', '.join(self.names)}" if self.names else "")

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        specs = [source.batch_spec(count, image_side) for source in self.sources]
        known = [spec for spec in specs if spec is not None]
        return merge_fields(known, self.names) if len(known) == len(specs) else None

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        rows = self.rows_of(records)
        return merge_fields([source.gather(rows) for source in self.sources], self.names)

    def parts(self, records: np.ndarray) -> Iterator[tuple[int, np.ndarray, Any]]:
        for source in range(len(self.sources)):
            yield source, self.rows_of(records), slice(None)

    def rows_of(self, records: np.ndarray) -> np.ndarray:
        return records % len(self)  # the ids of repeated records are larger

    def row_arrays(self) -> Mapping[str, np.ndarray | RowParts] | None:
        if self.names is not None:
            return None
        parts: list[Data] = []
        for source in self.sources:
            if (arrays := source.row_arrays()) is None:
                return None
            rows = source.rows_of(np.arange(len(self)))
            parts.append({name: _select_rows(array, rows) for name, array in arrays.items()})
        fields = merge_fields(parts, None)
        return None if any(rows is None for rows in fields.values()) else fields

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        if self.names is not None:
            return {}
        records = np.arange(len(self))
        parts: list[Data] = []
        for source in self.sources:
            rows = source.rows_of(records)
            images = source.encoded_images()
            parts.append({name: self._select(each, rows) for name, each in images.items()})
        return merge_fields(parts, None)

    def _select(self, images: EncodedImages, rows: np.ndarray) -> EncodedImages:
        ranges, size = images.ranges[rows], images.size[rows]
        return dataclasses.replace(images, ranges=ranges, size=size, rows_of=self.rows_of)


def _select_rows(array: np.ndarray | RowParts, rows: np.ndarray) -> np.ndarray | RowParts | None:
    """Return a view of rows of an array; None if that is not possible."""
    steps = np.diff(rows)
    if len(rows) == len(array) and not rows[:1].any() and (steps == 1).all():
        return array
    if isinstance(array, np.ndarray) and len(rows) and (steps == steps[:1]).all():
        first, step = int(rows[0]), int(steps[0]) if len(steps) else 1
        stop = first + len(rows) * step
        if step:
            return array[first : None if stop < 0 else stop : step]
    return None


def merge_fields(batches: Sequence[Data], names: Sequence[str] | None) -> Data:
    """Merge the fields of several batches, or nest them under names."""
    if names is not None:
        return dict(zip(names, batches, strict=True))
    fields: Data = {}
    for number, batch in enumerate(batches):
        if repeated := sorted(fields.keys() & batch.keys()):
            raise ValueError(
                f"field {repeated[0]!r} is in input {number} of zip and in an earlier one; name "
                "the inputs: jk.zip({'a': first, 'b': second})"
            )
        fields |= batch
    return fields


class Subset(CombinedSource):
    """Source of selected records of another source: record i is its record ``indices[i]``.

    Random parameters and `Pipeline.explain` use the number i. Native threads can read the records
    if they can read those of the source.

    Args:
      source: as for `from_source`; stored as the attribute `source`.
      indices: integers [M] from 0 to len(source) - 1; may repeat.

    Raises:
      TypeError: ``indices`` are not integers.
      IndexError: an index is out of range.

    >>> import numpy as np, jaxkern as jk
    >>> data = {"x": np.arange(10)}
    >>> order = np.random.default_rng(0).permutation(10)
    >>> held_out, train = (jk.pipeline.Subset(data, part) for part in (order[:2], order[2:]))
    >>> len(held_out), len(train), sorted({*held_out.indices, *train.indices}) == list(range(10))
    (2, 8, True)
    """

    def __init__(self, source: Any, indices: Any) -> None:
        super().__init__([as_source(source)])
        (self.source,) = self.sources
        #: int64 [M], read-only: native threads and states rely on the values
        self.indices = _check_indices(indices, len(self.source), repr(self.source))
        self.indices.flags.writeable = False
        self._length = len(self.indices)
        self.fresh &= type(self).gather is Subset.gather

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {self.source!r})"

    def describe(self) -> str:
        return f"Subset#{self._digest:08x}({self.source.describe()})"

    @functools.cached_property
    def _digest(self) -> int:
        return zlib.crc32(self.indices.tobytes())

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        return self.source.gather(self.indices[records], out)

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        return self.source.batch_spec(count, image_side)

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        images = self.source.encoded_images()
        return {k: dataclasses.replace(v, rows_of=self.rows_of) for k, v in images.items()}

    def parts(self, records: np.ndarray) -> Iterator[tuple[int, np.ndarray, Any]]:
        yield 0, self.indices[records], slice(None)

    def row_arrays(self) -> Mapping[str, np.ndarray | RowParts] | None:
        return self.source.row_arrays() if len(self) else None

    def rows_of(self, records: np.ndarray) -> np.ndarray:
        return self.source.rows_of(self.indices[records])


def _check_indices(indices: Any, records: int, source: str) -> np.ndarray:
    array = np.asarray(indices)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        hint = ": use np.flatnonzero(mask)" if array.dtype == bool else ""
        raise TypeError(f"indices is {array.dtype}{list(array.shape)}; expected integers [M]{hint}")
    outside = np.flatnonzero((array < 0) | (array >= records))
    if outside.size:
        first = int(outside[0])
        raise IndexError(
            f"indices[{first}] is {array[first]}; {source} has the records 0 to {records - 1}"
        )
    return array.astype(np.int64)
