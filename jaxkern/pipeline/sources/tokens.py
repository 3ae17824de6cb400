"""A source of documents of tokens, of any length each."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.source import BatchSource
from jaxkern.tokens import Documents, padded_rows


class TokenSource(BatchSource):
    """Documents of tokens: values behind each other, and offsets among them.

    Behind it stands a `Pack`, which takes the documents from where they lie. Without one, each is a
    row of its own: the fields int32 [N, width], `pad_id` behind the last token, and "length",
    int32 [N]. The width is `max_length`, or the longest document's length.

    Args:
      values, offsets: see `jaxkern.tokens.Documents`: arrays, memory maps or paths of ``.npy``
        files; or, without offsets, a sequence of arrays or an Arrow array of lists.
      max_length: tokens that a document has at most; what is behind them is left out. None: all.
      pad_id: what stands in padding; a dict by field where they differ.
    Raises: as `Documents`.

    >>> import jaxkern as jk
    >>> source = jk.pipeline.TokenSource([1, 2, 3, 4, 5, 6], offsets=[0, 3, 4, 6])
    >>> batch = next(iter(jk.from_source(source, batch_size=3)))
    >>> batch["tokens"].tolist(), batch["length"].tolist()
    ([[1, 2, 3], [4, 0, 0], [5, 6, 0]], [3, 1, 2])
    """

    fresh = True

    def __init__(
        self,
        values: Any,
        offsets: Any = None,
        *,
        max_length: int | None = None,
        pad_id: int | Mapping[str, int] = 0,
    ) -> None:
        self.documents = Documents(values, offsets, max_length)
        if "length" in self.documents.fields:
            raise ValueError("a field is named 'length', which the batches have beside: rename it")
        self.pad_id = pad_id

    @functools.cached_property
    def width(self) -> int:
        """Columns of the batches."""
        return self.documents.max_length or max(self.documents.longest(), 1)

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"TokenSource({', '.join(self.documents.fields)}; {len(self)} documents)"

    def describe(self) -> str:
        fields = ", ".join(self.documents.fields)
        first, last = self.documents.offsets[[0, -1]]
        return f"TokenSource({fields}; {first} to {last}, at most {self.documents.max_length})"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The documents, each in a row."""
        if records.size and not (records.min() >= 0 and records.max() < len(self)):
            raise IndexError(f"records {records.min()} to {records.max()} of {len(self)}")
        self.documents.check_files()
        begins, lengths = self.documents.places(records)
        made = padded_rows(begins, lengths, self.width, self.documents.fields, self.pad_id, out)
        if out is None:
            return {**made, "length": lengths.astype(np.int32)}
        out["length"][...] = lengths
        return out
