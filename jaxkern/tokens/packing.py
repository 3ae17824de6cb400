"""Documents packed into rows of one length, natively: which row takes which, and the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jaxkern.core.alignment import aligned_array
from jaxkern.core.arguments import whole_number
from jaxkern.tokens.documents import Documents, native

Method = Literal["first-fit", "best-fit", "concat-split"]
#: what becomes of a document that is longer than a row
Overlong = Literal["error", "split", "truncate", "drop"]
MARKS = {"segment_ids": np.int32, "positions": np.int32, "loss_mask": np.bool_}
_ROWS = 1 << 40  # more than there are
_BLOCK = 1 << 16  # documents whose places are looked up together
_LONGEST, _MOST_BINS = 1 << 30, 1 << 20


@dataclasses.dataclass(frozen=True)
class PackingStats:
    """What became of rows.

    Attributes:
      rows: how many there are.
      tokens: in them, of documents.
      padding: places without a token.
      segments: documents in them, or parts of documents.
    """

    rows: int = 0
    tokens: int = 0
    padding: int = 0
    segments: int = 0

    @property
    def efficiency(self) -> float:
        """The share of places that hold a token; 1 where there are no rows."""
        places = self.tokens + self.padding
        return self.tokens / places if places else 1.0

    def __add__(self, other: PackingStats) -> PackingStats:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return PackingStats(*(a + b for a, b in zip(mine, theirs, strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.rows} rows of {self.segments} segments, {self.tokens} tokens and "
            f"{self.padding} padding: efficiency {self.efficiency:.2%}"
        )


class Rows(NamedTuple):
    """Rows that are complete.

    Attributes:
      pieces: int64 [P, 4]: document, first token of it, tokens, place of the first among values.
      ends: int64 [R]: where the pieces of each row end.
      length: of a row.
    """

    pieces: np.ndarray
    ends: np.ndarray
    length: int

    @property
    def stats(self) -> PackingStats:
        """Of these rows."""
        tokens = int(self.pieces[:, 2].sum())
        rows = len(self.ends)
        return PackingStats(rows, tokens, rows * self.length - tokens, len(self.pieces))


class RowPacker:
    """Which row takes which document, by their lengths alone; documents are numbered as they come.

    Args:
      length: of a row.
      method: see `pack`.
      long: see `pack`.
      max_open_bins: see `pack`.
    """

    def __init__(
        self,
        length: int,
        method: Method = "first-fit",
        *,
        long: Overlong = "error",
        max_open_bins: int = 64,
    ) -> None:
        self.length = whole_number("length", length, 1, _LONGEST)
        self.max_open_bins = whole_number("max_open_bins", max_open_bins, 1, _MOST_BINS)
        for name, value, kinds in (("method", method, Method), ("long", long, Overlong)):
            if value not in get_args(kinds):
                wanted = ", ".join(map(repr, get_args(kinds)))
                raise ValueError(f"{name} is {value!r}; wanted one of {wanted}")
        self.method, self.long = method, long
        self._native = native().TokenPacker(
            self.length,
            get_args(Method).index(method),
            get_args(Overlong).index(long),
            self.max_open_bins,
        )

    @property
    def document(self) -> int:
        """The number of the next document to add, which may have been placed in part."""
        return int(self._native.document)

    @property
    def complete(self) -> int:
        """Complete rows that were not taken."""
        return int(self._native.complete)

    @property
    def open(self) -> int:
        """Open bins."""
        return int(self._native.open)

    def add(self, begins: np.ndarray, lengths: np.ndarray, rows: int = _ROWS) -> int:
        """Places documents int64 [N] until so many rows are complete; returns how many it used up.

        Raises: ValueError for a document that is longer than a row, where that is an error; the
          next call begins with it.
        """
        return int(self._native.add(begins, lengths, rows))

    def skip(self) -> None:
        """Passes over the next document."""
        self._native.skip()

    def flush(self, rows: int = _ROWS) -> None:
        """Completes open bins until so many rows are complete: behind the last document."""
        self._native.flush(rows)

    def take(self) -> Rows:
        """The complete rows that were not taken."""
        pieces, ends = self._native.take()
        return Rows(pieces, ends, self.length)

    def state(self) -> dict[str, Any]:
        """Where it is, without the complete rows; JSON-able, and of documents' numbers alone."""
        sizes, pieces = self._native.open_bins()
        ends = np.cumsum(sizes).tolist()
        numbers = pieces[:, 0].tolist()
        return {
            "document": self.document,
            "started": int(self._native.started),
            "bins": [numbers[a:b] for a, b in zip([0, *ends], ends, strict=False)],
            # of what is left of a document that was split, which is in one bin at most
            "starts": {str(n): start for n, start in pieces[:, :2].tolist() if start},
        }

    def restore(self, state: Mapping[str, Any], places: Any) -> None:
        """Goes on where `state` was called.

        Args:
          places: documents int64 [M] -> where they begin and their lengths, as `Documents.places`.
        """
        numbers = [document for documents in state["bins"] for document in documents]
        begins, lengths = places(np.array(numbers, np.int64))
        starts = np.array([state["starts"].get(str(n), 0) for n in numbers], np.int64)
        counts = lengths - starts
        if self.long == "truncate":
            counts = counts.clip(max=self.length)
        if self.method == "concat-split" and numbers and numbers[-1] == state["document"]:
            counts[-1] = state["started"] - starts[-1]
        pieces = np.stack([np.array(numbers, np.int64), starts, counts, begins + starts], 1)
        sizes = np.array([len(documents) for documents in state["bins"]], np.int64)
        self._native.restore(state["document"], state["started"], sizes, pieces)


def packed_rows(
    rows: Rows,
    fields: Mapping[str, np.ndarray],
    pad_id: int | Mapping[str, int] = 0,
    out: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of rows: every field, and the marks of `pack`.

    Args:
      fields: field -> values, as of `Documents`; the pieces' places are among them.
      pad_id: see `pack`.
      out: arrays [R, length] to fill and return, C-contiguous.
    Raises: ValueError for rows that do not fit the values, and for values that are no int32.
    """
    shape = (len(rows.ends), rows.length)
    if out is None:
        kinds = {name: row_dtype(values) for name, values in fields.items()}
        out = {name: aligned_array(shape, kind) for name, kind in {**kinds, **MARKS}.items()}
    written = [
        (values, out[name], _pad_bits(name, pad_id, out[name].dtype))
        for name, values in fields.items()
    ]
    marks = [out.get(name) for name in MARKS]
    field, place = native().write_token_rows(rows.pieces, rows.ends, rows.length, written, *marks)
    if field >= 0:
        name = list(fields)[field]
        raise ValueError(
            f"{name!r} has {fields[name][place]} among its values, at {place}; wanted tokens that "
            "an int32 holds"
        )
    return dict(out)


def row_dtype(values: np.ndarray) -> Any:
    """The dtype of a field's rows."""
    return np.float32 if values.dtype == np.float32 else np.int32


def _pad_bits(name: str, pad_id: int | Mapping[str, int], dtype: np.dtype) -> int:
    pad = pad_id.get(name, 0) if isinstance(pad_id, Mapping) else pad_id
    if dtype == np.float32:
        return int(np.float32(pad).view(np.uint32))
    return whole_number("pad_id", pad, -(2**31), 2**31 - 1) & 0xFFFFFFFF


def pack(
    values: Any,
    offsets: Any = None,
    length: int = 2048,
    method: Method = "first-fit",
    *,
    long: Overlong = "error",
    max_open_bins: int = 64,
    pad_id: int | Mapping[str, int] = 0,
    order: Sequence[int] | np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Documents of any length in rows of one length.

    ================  =============================================================================
    ``"tokens"``      int32 [R, length], or the fields of `values`; `pad_id` behind the last token.
                      A field of float32 stays float32
    ``segment_ids``   int32 [R, length]: 1, 2, ... by document in the row, 0 in padding. Attention
                      between equal ids alone keeps documents apart
    ``positions``     int32 [R, length]: place in the segment, from 0
    ``loss_mask``     bool [R, length]: whether the token is to be predicted, from those before it
                      in its segment: neither padding nor the first token of a segment
    ================  =============================================================================

    Args:
      values, offsets: of the documents, see `Documents`.
      length: of a row.
      method: "first-fit" puts a document into the first open bin that has room for it, "best-fit"
        into the one with the least room that suffices; a bin is a row in the making, and documents
        stay whole. "concat-split" puts one behind the other and cuts at every row's end, without
        padding but in the last row; what follows in the next row is a segment of its own.
      long: what becomes of a document that is longer than a row, but for "concat-split": an
        "error"; "split" gives it rows of its own and treats what is left as a document; "truncate"
        takes its first `length` tokens; "drop" leaves it out.
      max_open_bins: where a document has room in no bin and so many are open, the fullest becomes
        a row. More of them leave less padding.
      pad_id: what stands in padding; a dict by field where they differ.
      order: of the documents; None is their own. Empty ones are passed over.

    >>> import numpy as np
    >>> import jaxkern as jk
    >>> documents = [np.array([1, 2, 3]), np.array([4, 5, 6, 7]), np.array([8])]
    >>> packed = jk.tokens.pack(documents, length=4)
    >>> packed["tokens"].tolist(), packed["segment_ids"].tolist()
    ([[4, 5, 6, 7], [1, 2, 3, 8]], [[1, 1, 1, 1], [1, 1, 1, 2]])
    """
    documents = values if isinstance(values, Documents) else Documents(values, offsets)
    packer = RowPacker(length, method, long=long, max_open_bins=max_open_bins)
    chosen = np.arange(len(documents)) if order is None else np.asarray(order, np.int64)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < len(documents)):
        raise IndexError(f"order has {chosen.min()} to {chosen.max()} of {len(documents)}")
    for first in range(0, len(chosen), _BLOCK):
        block = chosen[first : first + _BLOCK]
        begins, lengths = documents.places(block)
        check_lengths(lengths, block, packer)
        packer.add(begins, lengths)
    packer.flush()
    documents.check_files()
    return packed_rows(packer.take(), documents.fields, pad_id)


def check_lengths(lengths: np.ndarray, documents: np.ndarray, packer: RowPacker) -> None:
    """Raises ValueError that names a document longer than a row, where that is an error."""
    if packer.long != "error" or packer.method == "concat-split":
        return
    place = int(lengths.argmax()) if lengths.size else 0
    if lengths.size and lengths[place] > packer.length:
        raise ValueError(
            f"document {documents[place]} has {lengths[place]} tokens and a row {packer.length}; "
            'say what becomes of it: long="split", "truncate" or "drop"; or use longer rows'
        )
