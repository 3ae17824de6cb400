"""A source of token documents of variable length."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.source import BatchSource, check_records
from jaxkern.tokens import Documents, padded_rows


class TokenSource(BatchSource):
    """Source of token documents, stored as concatenated values and offsets.

    Usually followed by `Pack`, which reads the documents without a copy. Without it each document
    is one padded row: the fields int32 [N, width], and "length", int32 [N]. The width is
    `max_length`, or the length of the longest document.

    Args:
      values, offsets: see `jaxkern.tokens.Documents`: arrays, memory maps or paths of ``.npy``
        files; or, without offsets, a sequence of arrays or an Arrow array of lists.
      max_length: documents are truncated to this number of tokens; None: no limit.
      pad_id: value of padding; a dict of field -> value if the fields differ.

    Raises:
      As `Documents`.

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
            raise ValueError(
                "the field name 'length' is reserved for the lengths of documents; rename it"
            )
        self.pad_id = pad_id

    @functools.cached_property
    def width(self) -> int:
        """Return the number of columns of the batches."""
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
        check_records(records, len(self))
        self.documents.check_files()
        begins, lengths = self.documents.places(records)
        rows = padded_rows(begins, lengths, self.width, self.documents.fields, self.pad_id, out)
        if out is None:
            return {**rows, "length": lengths.astype(np.int32)}
        out["length"][...] = lengths
        return out
