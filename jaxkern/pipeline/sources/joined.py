"""Several sources as one: their records one behind the other, or side by side."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.mapped import check_mapped
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.encoded import EncodedImages
from jaxkern.pipeline.sources.source import ArraySource, BatchSource
from jaxkern.ring.rows import gather_rows


class FieldsOf:
    """Checks that the records of several inputs have the same fields.

    Args:
      what: that has the inputs, in messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._first: tuple[int, dict[str, str]] | None = None
        self._agreed: set[int] = set()

    def check(self, *pieces: tuple[int, Data]) -> None:
        """Raises ValueError where the pieces of a batch, (input, rows) each, are unlike each other,
        or the first one of an input is unlike those of the inputs before."""
        for source, data in pieces:
            if source not in self._agreed:
                found = source, _kinds(data)
                self._first = self._first or found
                self._compare(self._first, found)
                self._agreed.add(source)
        (first, one), *others = pieces
        looks = _looks(one)
        for source, data in others:
            if _looks(data) != looks:
                self._compare((first, _kinds(one)), (source, _kinds(data)))

    def _compare(self, one: tuple[int, dict[str, str]], other: tuple[int, dict[str, str]]) -> None:
        (first, wanted), (source, found) = one, other
        if found != wanted:
            differences = [
                f"{name} is {wanted.get(name, 'absent')} in input {first} and "
                f"{found.get(name, 'absent')} in input {source}"
                for name in sorted({*wanted, *found})
                if wanted.get(name) != found.get(name)
            ]
            raise ValueError(
                f"the inputs of {self._what} differ: {'; '.join(differences)}; wanted the same "
                "fields, shapes and dtypes: change one input before; images of different sizes "
                "want one max_size"
            )


def _kinds(data: Data) -> dict[str, str]:
    """What its fields are, in words, by their names."""
    leaves = jax.tree_util.tree_flatten_with_path(data, is_leaf=row.is_ragged)[0]
    return {jax.tree_util.keystr(path): _kind(value) for path, value in leaves}


def _kind(value: Any) -> str:
    if row.is_ragged(value):
        return f"Ragged[up to {value.max_height}x{value.max_width}x{value.channels}]"
    return f"{row.canonical_dtype(value.dtype)}{list(value.shape[1:])}"


def _looks(data: Data) -> Any:
    """What is equal only where `_kinds` is, and quickly found."""
    leaves, tree = jax.tree.flatten(data, is_leaf=row.is_ragged)
    return tree, [
        (v.max_height, v.max_width, v.channels) if row.is_ragged(v) else (v.dtype, v.shape[1:])
        for v in leaves
    ]


class JoinedSource(BatchSource):
    """The records of sources one behind the other, and perhaps all of them again.

    Args:
      sources: with the same fields.
      numbers: how many numbers of records each takes; its length, or more where it repeats itself.
      what: in messages.
    """

    def __init__(
        self, sources: Sequence[BatchSource], numbers: Sequence[int], what: str = "concat"
    ) -> None:
        self.sources = tuple(sources)
        self._ends = np.cumsum(numbers, dtype=np.int64)
        self._starts = self._ends - np.asarray(numbers, np.int64)
        self._fields = FieldsOf(what)
        self.fresh = all(source.fresh for source in self.sources)
        masks = any(source.on_bad_record == "mask" for source in self.sources)
        self.on_bad_record = "mask" if masks else "raise"

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.sources))

    def describe(self) -> str:
        return " + ".join(source.describe() for source in self.sources)

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The rows of all sources, each read together."""
        arrays = self._arrays
        if arrays is not None:
            return self._rows_of_arrays(arrays, records, out)
        pieces = list(self._split(records))
        if len(pieces) == 1:
            source, inner, _ = pieces[0]
            data = self.sources[source].gather(inner, out)
            self._fields.check((source, data))
            return data
        parts = []
        for source, inner, places in pieces:
            data = self.sources[source].gather(inner)
            parts.append((data, slice(None), places))
        self._fields.check(
            *((piece[0], part[0]) for piece, part in zip(pieces, parts, strict=True))
        )
        return row.scattered(parts, len(records), out)

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        """What the sources have in common."""
        first, *others = (source.batch_spec(count, image_side) for source in self.sources)
        return first if all(other == first for other in others) else None

    @functools.cached_property
    def _arrays(self) -> list[Mapping[str, np.ndarray]] | None:
        """Those of all sources; None where one has more than arrays, or comes more than once."""
        plain = [
            source.row_arrays() if isinstance(source, ArraySource) else None
            for source in self.sources
        ]
        found = [arrays for arrays in plain if arrays is not None]
        lengths = np.cumsum([len(source) for source in self.sources])
        if len(found) < len(plain) or not np.array_equal(lengths, self._ends):
            return None
        self._fields.check(*((number, dict(arrays)) for number, arrays in enumerate(found)))
        return found

    def _rows_of_arrays(
        self, parts: Sequence[Mapping[str, np.ndarray]], records: np.ndarray, out: Data | None
    ) -> Data:
        for name, array in ((name, array) for part in parts for name, array in part.items()):
            check_mapped(f"field {name!r}", array)
        rows, found = records % self._ends[-1], {}
        for name in parts[0]:
            arrays = [part[name] for part in parts]
            if out is None:
                first = arrays[0]
                target = np.empty((len(rows), *first.shape[1:]), first.dtype)
                found[name] = row.canonical(gather_rows(arrays, rows, target))
            else:
                found[name] = gather_rows(arrays, rows, out[name])
        return found

    def _split(self, records: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(source, its records, their places)."""
        inner = records % self._ends[-1]
        which = np.searchsorted(self._ends, inner, side="right")
        for source in np.flatnonzero(np.bincount(which)).tolist():
            places = np.flatnonzero(which == source)
            yield source, inner[places] - self._starts[source], places

    def check(self, records: np.ndarray) -> None:
        """As the sources'."""
        for source, inner, _ in self._split(records):
            self.sources[source].check(inner)

    def remarks(self) -> Sequence[str]:
        return tuple(remark for source in self.sources for remark in source.remarks())

    def row_parts(self) -> list[Mapping[str, np.ndarray]] | None:
        """Those of all sources; None where one must decode images in `gather`."""
        found: list[Mapping[str, np.ndarray]] = []
        for source in self.sources:
            parts = source.row_parts()
            if parts is None:
                return None
            found += parts
        encoded = any(source.encoded_images() for source in self.sources)
        return None if encoded and not self.encoded_images() else found

    def rows_of(self, records: np.ndarray) -> np.ndarray:
        """Behind the rows of the sources before."""
        found = np.empty(len(records), np.int64)
        starts = np.cumsum([0, *(_rows_in(source) for source in self.sources)])
        for source, inner, places in self._split(records):
            found[places] = starts[source] + self.sources[source].rows_of(inner)
        return found

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """Those of all sources, where they are of one kind."""
        found = [source.encoded_images() for source in self.sources]
        if not all(each.keys() == found[0].keys() for each in found):
            return {}
        images = {name: _joined_images([each[name] for each in found]) for name in found[0]}
        if any(value is None for value in images.values()):
            return {}
        return {
            name: dataclasses.replace(value, rows_of=self.rows_of)
            for name, value in images.items()
            if value is not None
        }


def _rows_in(source: BatchSource) -> int:
    if isinstance(source, JoinedSource):
        return sum(_rows_in(each) for each in source.sources)
    return len(source)


def _joined_images(images: Sequence[EncodedImages]) -> EncodedImages | None:
    first = images[0]
    kinds = {
        (each.in_files, each.codec, each.channels, each.max_pixels, each.scaled) for each in images
    }
    if len(kinds) > 1:
        return None
    if len(images) == 1:
        return first
    places, blobs = [], 0
    for each in images:
        places.append(each.place + np.array([blobs, 0, 0]))
        blobs += len(each.blobs)
    return dataclasses.replace(
        first,
        blobs=tuple(blob for each in images for blob in each.blobs),
        place=np.concatenate(places),
        size=np.concatenate([each.size for each in images]),
    )


class ZippedSource(BatchSource):
    """Record i of several sources as one; as long as the shortest.

    Args:
      sources: whose fields differ, or get names.
      names: of a field for each source that holds its fields; None merges them.
    """

    def __init__(self, sources: Sequence[BatchSource], names: Sequence[str] | None = None) -> None:
        self.sources = tuple(sources)
        self.names = names
        self.fresh = all(source.fresh for source in self.sources)
        masks = any(source.on_bad_record == "mask" for source in self.sources)
        self.on_bad_record = "mask" if masks else "raise"

    def __len__(self) -> int:
        return min(len(source) for source in self.sources)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.sources))

    def describe(self) -> str:
        names = "" if self.names is None else f" as {', '.join(self.names)}"
        return " | ".join(source.describe() for source in self.sources) + names

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        """Of all sources."""
        found = [source.batch_spec(count, image_side) for source in self.sources]
        specs = [spec for spec in found if spec is not None]
        return side_by_side(specs, self.names) if len(specs) == len(found) else None

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The rows of all sources."""
        return side_by_side([source.gather(records) for source in self.sources], self.names)

    def check(self, records: np.ndarray) -> None:
        """As the sources'."""
        for source in self.sources:
            source.check(records)

    def remarks(self) -> Sequence[str]:
        return tuple(remark for source in self.sources for remark in source.remarks())

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """Those of all sources, unless they are nested."""
        found = [source.row_arrays() for source in self.sources]
        if self.names is not None or any(each is None for each in found):
            return None
        arrays = side_by_side([dict(each) for each in found if each is not None], None)
        return {name: array[: len(self)] for name, array in arrays.items()}

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """Those of all sources, unless they are nested."""
        if self.names is not None:
            return {}
        found = side_by_side([dict(source.encoded_images()) for source in self.sources], None)
        return {
            name: dataclasses.replace(
                images, place=images.place[: len(self)], size=images.size[: len(self)]
            )
            for name, images in found.items()
        }


def side_by_side(batches: Sequence[Data], names: Sequence[str] | None) -> Data:
    """One batch of the fields of several, merged or nested under names."""
    if names is not None:
        return dict(zip(names, batches, strict=True))
    fields: Data = {}
    for number, batch in enumerate(batches):
        if twice := sorted(fields.keys() & batch.keys()):
            raise ValueError(
                f"field {twice[0]!r} is in input {number} of zip and in one before; rename it, or "
                "give the inputs names: jk.zip({'a': first, 'b': second})"
            )
        fields |= batch
    return fields
