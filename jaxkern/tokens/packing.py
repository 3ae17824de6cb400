"""Documents packed into rows of one length, natively: which row takes which, and the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jaxkern.core.alignment import aligned_array
from jaxkern.core.arguments import check_integer
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
        theirs = vars(other)
        return PackingStats(**{name: mine + theirs[name] for name, mine in vars(self).items()})

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
        self.length = check_integer("length", length, 1, _LONGEST)
        self.max_open_bins = check_integer("max_open_bins", max_open_bins, 1, _MOST_BINS)
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

    def bins(self) -> tuple[int, int, np.ndarray, np.ndarray]:
        """All of its state: `document`, tokens of it that were placed, and how many pieces each
        open bin has, int64 [B], of the pieces int64 [P, 4], see `Rows`."""
        sizes, pieces = self._native.open_bins()
        return self.document, int(self._native.started), sizes, pieces

    def restore(self, document: int, started: int, sizes: Any, pieces: Any) -> None:
        """Goes on where `bins` was called; complete rows are dropped.

        Raises: ValueError for what no packer can have.
        """
        self._native.restore(document, started, np.asarray(sizes, np.int64), pieces)


def bins_state(
    document: int, started: int, sizes: np.ndarray, pieces: np.ndarray
) -> dict[str, Any]:
    """What `RowPacker.bins` returns as a small dict, JSON-able, of documents' numbers alone."""
    split = np.flatnonzero(pieces[:, 1])
    return {
        "document": document,
        "started": started,
        "bins": sizes.tolist(),
        "documents": pieces[:, 0].tolist(),
        # places in "documents" where a document does not begin, and its token there
        "split": [split.tolist(), pieces[split, 1].tolist()],
    }


def state_bins(
    state: Mapping[str, Any], places: Any, packer: RowPacker
) -> tuple[int, int, list[int], np.ndarray]:
    """The arguments of `RowPacker.restore` of a state that `bins_state` made.

    Args:
      places: documents int64 [M] -> where they begin and their lengths, as `Documents.places`.
    """
    numbers = np.array(state["documents"], np.int64)
    begins, lengths = places(numbers)
    starts = np.zeros(len(numbers), np.int64)
    starts[np.array(state["split"][0], np.int64)] = state["split"][1]
    counts = lengths - starts
    if packer.long == "truncate":
        counts = counts.clip(max=packer.length)
    if packer.method == "concat-split" and numbers.size and numbers[-1] == state["document"]:
        counts[-1] = state["started"] - starts[-1]
    pieces = np.stack([numbers, starts, counts, begins + starts], 1)
    return state["document"], state["started"], state["bins"], pieces


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
    for name, values in fields.items():
        if out[name].dtype != row_dtype(values):
            raise ValueError(
                f"{name!r} has values of {values.dtype} and rows of {out[name].dtype}; wanted "
                "rows of int32, or of float32 where the values are"
            )
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


def padded_rows(
    begins: np.ndarray,
    lengths: np.ndarray,
    width: int,
    fields: Mapping[str, np.ndarray],
    pad_id: int | Mapping[str, int] = 0,
    out: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Documents int64 [N] of at most `width` tokens, each in a row of its own; without marks."""
    real = np.flatnonzero(lengths)
    pieces = np.stack([real, np.zeros_like(real), lengths[real], begins[real]], 1)
    rows = Rows(pieces, np.cumsum(lengths > 0, dtype=np.int64), width)
    if out is None:
        shape = (len(lengths), width)
        out = {name: aligned_array(shape, row_dtype(values)) for name, values in fields.items()}
    return packed_rows(rows, fields, pad_id, {name: out[name] for name in fields})


def row_dtype(values: np.ndarray) -> Any:
    """The dtype of a field's rows."""
    return np.float32 if values.dtype == np.float32 else np.int32


def _pad_bits(name: str, pad_id: int | Mapping[str, int], dtype: np.dtype) -> int:
    pad = pad_id.get(name, 0) if isinstance(pad_id, Mapping) else pad_id
    if dtype == np.float32:
        return int(np.float32(pad).view(np.uint32))
    return check_integer("pad_id", pad, -(2**31), 2**31 - 1) & 0xFFFFFFFF


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
