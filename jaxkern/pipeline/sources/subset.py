"""A part of a source: a holdout, a fold, a class, a few records to try things on."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.encoded import EncodedImages
from jaxkern.pipeline.sources.source import BatchSource


class Subset(BatchSource):
    """The records of a source with these numbers, in this order.

    Record i of it is record ``indices[i]`` of the source; what is drawn at random for a record, and
    `Pipeline.explain`, go by i. Arrays at a constant step are gathered by native threads, as the
    whole source is.

    Args:
      source: as for `from_source`; it is kept as the attribute `source`.
      indices: integers [M] from 0 to len(source) - 1; they may repeat.
    Raises: TypeError for what are no integers; IndexError for a record that the source has not.

    >>> import numpy as np, jaxkern as jk
    >>> data = {"x": np.arange(10)}
    >>> order = np.random.default_rng(0).permutation(10)
    >>> held_out, train = (jk.pipeline.Subset(data, part) for part in (order[:2], order[2:]))
    >>> len(held_out), len(train), sorted({*held_out.indices, *train.indices}) == list(range(10))
    (2, 8, True)
    """

    def __init__(self, source: Any, indices: Any) -> None:
        self.source = as_source(source)
        #: int64 [M], read-only: native threads and states go by what they were
        self.indices = _checked(indices, len(self.source), repr(self.source))
        self.indices.flags.writeable = False
        self.fresh = self.source.fresh and type(self).gather is Subset.gather
        self.on_bad_record = self.source.on_bad_record

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Subset({len(self)} of {self.source!r})"

    def describe(self) -> str:
        """With the indices: another split is another source."""
        return f"Subset#{self._digest}({self.source.describe()})"

    @functools.cached_property
    def _digest(self) -> str:
        return f"{zlib.crc32(self.indices.tobytes()):08x}"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The source's batch of these records."""
        return self.source.gather(self.indices[records], out)

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        """As the source's."""
        if type(self).gather is not Subset.gather:
            return None
        return self.source.batch_spec(count, image_side)

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """Those of the indices."""
        if type(self).gather is not Subset.gather:
            return {}
        return {
            name: dataclasses.replace(
                images, place=images.place[self.indices], size=images.size[self.indices]
            )
            for name, images in self.source.encoded_images().items()
        }

    def name_of(self, record: int) -> str:
        """As the source says."""
        return self.source.name_of(int(self.indices[record]))

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        """As the source holds it."""
        return self.source.encoded_bytes(field, int(self.indices[record]))

    def note_masked(self, records: np.ndarray) -> None:
        """Tells the source."""
        self.source.note_masked(self.indices[records])

    def remarks(self) -> Sequence[str]:
        """Of the whole source."""
        return self.source.remarks()

    def check(self, records: np.ndarray) -> None:
        """As the source's."""
        self.source.check(self.indices[records])

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """Views of the source's arrays where the indices have one step; beside encoded images,
        which are far larger, copies otherwise."""
        arrays = self.source.row_arrays()
        steps = np.diff(self.indices)
        if arrays is None or type(self).gather is not Subset.gather or len(self) == 0:
            return None
        if np.any(steps != steps[:1]):
            if not self.source.encoded_images():
                return None
            return {name: array[self.indices] for name, array in arrays.items()}
        first, step = (int(n) for n in (*self.indices[:1], *steps[:1], 1)[:2])
        if step == 0:
            return None
        stop = first + len(self) * step
        return {k: array[first : None if stop < 0 else stop : step] for k, array in arrays.items()}


def _checked(indices: Any, records: int, source: str) -> np.ndarray:
    given = np.asarray(indices)
    if given.size == 0 and given.ndim == 1:
        return np.empty(0, np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        more = ": np.flatnonzero(mask)" if given.dtype == bool else ""
        raise TypeError(
            f"indices is {given.dtype}{list(given.shape)}; wanted the numbers of records, "
            f"integers [M]{more}"
        )
    outside = np.flatnonzero((given < 0) | (given >= records))
    if outside.size:
        place = int(outside[0])
        raise IndexError(
            f"indices[{place}] is {given[place]}; {source} has the records 0 to {records - 1}"
        )
    return given.astype(np.int64)
