"""Native packing of documents into rows of equal length: placement, and writing of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import aligned_array
from jaxkern.tokens.documents import Documents, native

Method = Literal["first-fit", "best-fit", "concat-split"]
#: treatment of a document that is longer than a row
Overlong = Literal["error", "split", "truncate", "drop"]
Locate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
MARKS = {"segment_ids": np.int32, "positions": np.int32, "loss_mask": np.bool_}
_UNLIMITED = 1 << 40  # number of rows
_BLOCK = 1 << 16  # number of documents that are located together
_MAX_LENGTH, _MAX_BINS = 1 << 30, 1 << 20


@dataclasses.dataclass(frozen=True)
class PackingStats:
    """Statistics of packed rows: numbers of rows, tokens, padding, and (parts of) documents.

    Example:
      >>> import jaxkern as jk
      >>> jk.tokens.PackingStats(rows=2, tokens=7, padding=1, segments=3).efficiency
      0.875
    """

    rows: int = 0
    tokens: int = 0
    padding: int = 0
    segments: int = 0

    @property
    def efficiency(self) -> float:
        """Return the fraction of elements that are tokens; 1 without rows."""
        elements = self.tokens + self.padding
        return self.tokens / elements if elements else 1.0

    def __add__(self, other: PackingStats) -> PackingStats:
        counts = vars(other)
        return PackingStats(**{name: n + counts[name] for name, n in vars(self).items()})

    def __str__(self) -> str:
        counts = f"{self.segments} segments, {self.tokens} tokens and {self.padding} padding"
        return f"{self.rows} rows of {counts}: efficiency {self.efficiency:.2%}"


class Rows(NamedTuple):
    """Complete rows, as references to documents.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> documents = jk.tokens.Documents(np.arange(1, 9), offsets=[0, 3, 7, 8])
      >>> packer = jk.tokens.RowPacker(4)
      >>> packer.add(*documents.locate([0, 1, 2]))
      3
      >>> packer.flush()
      >>> rows = packer.take()
      >>> rows.pieces.tolist(), rows.ends.tolist()
      ([[1, 0, 4, 3], [0, 0, 3, 0], [2, 0, 1, 7]], [1, 3])
    """

    #: int64 [P, 4]: document, start in the document, number of tokens, offset in the values
    pieces: np.ndarray
    ends: np.ndarray  #: int64 [R], the end of each row among the pieces
    length: int  #: tokens per row

    @property
    def stats(self) -> PackingStats:
        """Return the statistics of these rows."""
        tokens = int(self.pieces[:, 2].sum())
        rows = len(self.ends)
        return PackingStats(rows, tokens, rows * self.length - tokens, len(self.pieces))


class RowPacker:
    """Assignment of documents to rows by their lengths; see `pack`.

    Documents are numbered as they are added.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> documents = jk.tokens.Documents(np.arange(1, 9), offsets=[0, 3, 7, 8])
      >>> packer = jk.tokens.RowPacker(4)
      >>> packer.add(*documents.locate([0, 1, 2]))
      3
      >>> packer.flush()
      >>> rows = packer.take()
      >>> rows.stats.rows, rows.stats.padding
      (2, 0)
    """

    def __init__(
        self,
        length: int,
        method: Method = "first-fit",
        *,
        long: Overlong = "error",
        max_open_bins: int = 64,
    ) -> None:
        self.length = check_integer("length", length, 1, _MAX_LENGTH)
        self.max_open_bins = check_integer("max_open_bins", max_open_bins, 1, _MAX_BINS)
        for name, value, kinds in (("method", method, Method), ("long", long, Overlong)):
            if value not in get_args(kinds):
                expected = ", ".join(map(repr, get_args(kinds)))
                raise ValueError(f"{name} is {value!r}; expected one of {expected}")
        self.method, self.long = method, long
        codes = get_args(Method).index(method), get_args(Overlong).index(long)
        self._native = native().TokenPacker(self.length, *codes, self.max_open_bins)

    @property
    def document(self) -> int:
        """Return the number of the next document to place, which may be partially placed."""
        return int(self._native.document)

    @property
    def complete(self) -> int:
        """Return the number of complete rows that `take` has not returned."""
        return int(self._native.complete)

    @property
    def open(self) -> int:
        """Return the number of open bins."""
        return int(self._native.open)

    def add(
        self,
        begins: np.ndarray,
        lengths: np.ndarray,
        rows: int = _UNLIMITED,
        names: np.ndarray | None = None,
    ) -> int:
        """Place documents until `rows` rows are complete; return the number of consumed documents.

        `begins` and `lengths` int64 [N] are offsets and lengths. With ``long="error"`` a document
        longer than a row raises ValueError, and the next call begins with it; `names` [N] are the
        numbers of documents in this message.
        """
        first = self.document
        try:
            return int(self._native.add(begins, lengths, rows))
        except ValueError:
            index = self.document - first
            if names is None or lengths[index] <= self.length:
                raise
            raise ValueError(
                f"document {names[index]} has {lengths[index]} tokens, more than the {self.length} "
                'of a row; use long="split", "truncate" or "drop", or longer rows'
            ) from None

    def skip(self) -> None:
        """Skip the next document."""
        self._native.skip()

    def flush(self, rows: int = _UNLIMITED) -> None:
        """Close open bins until `rows` rows are complete; for use after the last document."""
        self._native.flush(rows)

    def take(self) -> Rows:
        """Remove and return the complete rows."""
        pieces, ends = self._native.take()
        return Rows(pieces, ends, self.length)

    def get_state(self) -> dict[str, Any]:
        """Return its state, without the complete rows: a small JSON-compatible dict."""
        sizes, pieces = self._native.open_bins()
        split = np.flatnonzero(pieces[:, 1])
        return {
            "document": self.document,
            "started": int(self._native.started),  # tokens of it that were placed
            "bins": sizes.tolist(),  # number of pieces per bin
            "documents": pieces[:, 0].tolist(),
            # indices into "documents" of pieces that start inside a document, and their start
            "split": [split.tolist(), pieces[split, 1].tolist()],
        }

    def set_state(self, state: Mapping[str, Any], locate: Locate) -> None:
        """Restore a state from `get_state`; complete rows are dropped.

        `locate` returns the offsets and the lengths of documents, like `Documents.locate`.
        """
        numbers = np.array(state["documents"], np.int64)
        begins, lengths = locate(numbers)
        starts = np.zeros(len(numbers), np.int64)
        starts[np.array(state["split"][0], np.int64)] = state["split"][1]
        counts = lengths - starts
        if self.long == "truncate":
            counts = counts.clip(max=self.length)
        if self.method == "concat-split" and numbers.size and numbers[-1] == state["document"]:
            counts[-1] = state["started"] - starts[-1]
        pieces = np.stack([numbers, starts, counts, begins + starts], 1)
        sizes = np.asarray(state["bins"], np.int64)
        self._native.restore(state["document"], state["started"], sizes, pieces)


def packed_rows(
    rows: Rows,
    fields: Mapping[str, np.ndarray],
    pad_id: int | Mapping[str, int] = 0,
    out: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write rows: an array of each field, "segment_ids", "positions" and "loss_mask".

    Args:
      rows: the rows to write; their pieces refer to `fields`, as in `Documents`.
      pad_id: see `pack`.
      out: C-contiguous arrays [R, length] to fill and return.

    Raises:
      ValueError: rows do not match the values, or values do not fit int32.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> documents = jk.tokens.Documents(np.arange(1, 9), offsets=[0, 3, 7, 8])
      >>> packer = jk.tokens.RowPacker(4)
      >>> packer.add(*documents.locate([0, 1, 2]))
      3
      >>> packer.flush()
      >>> rows = packer.take()
      >>> jk.tokens.packed_rows(rows, {"tokens": np.arange(1, 9)})["tokens"].tolist()
      [[4, 5, 6, 7], [1, 2, 3, 8]]
    """
    kinds = {name: row_dtype(values) for name, values in fields.items()}
    if out is None:
        shape = (len(rows.ends), rows.length)
        out = {name: aligned_array(shape, kind) for name, kind in {**kinds, **MARKS}.items()}
    for name, kind in kinds.items():
        if out[name].dtype != kind:
            raise ValueError(f"{name!r} has rows of {out[name].dtype}; expected {np.dtype(kind)}")
    written = [(array, out[k], _pad_bits(k, pad_id, kinds[k])) for k, array in fields.items()]
    marks = [out.get(name) for name in MARKS]
    field, index = native().write_token_rows(rows.pieces, rows.ends, rows.length, written, *marks)
    if field >= 0:
        name = list(fields)[field]
        raise ValueError(f"value {index} of {name!r} is {fields[name][index]}; expected int32")
    return dict(out)


def padded_rows(
    begins: np.ndarray,
    lengths: np.ndarray,
    width: int,
    fields: Mapping[str, np.ndarray],
    pad_id: int | Mapping[str, int] = 0,
    out: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write documents [N] of at most `width` tokens to one row each, without marks.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> begins, lengths = np.array([0, 2]), np.array([2, 3])
      >>> jk.tokens.padded_rows(begins, lengths, 4, {"tokens": np.arange(1, 6)})["tokens"].tolist()
      [[1, 2, 0, 0], [3, 4, 5, 0]]
    """
    nonempty = np.flatnonzero(lengths)
    columns = [nonempty, np.zeros_like(nonempty), lengths[nonempty], begins[nonempty]]
    rows = Rows(np.stack(columns, 1), np.cumsum(lengths > 0, dtype=np.int64), width)
    if out is None:
        shape = (len(lengths), width)
        out = {name: aligned_array(shape, row_dtype(values)) for name, values in fields.items()}
    return packed_rows(rows, fields, pad_id, {name: out[name] for name in fields})


def row_dtype(values: np.ndarray) -> Any:
    """Return the dtype of a field's rows."""
    return np.float32 if values.dtype == np.float32 else np.int32


def _pad_bits(name: str, pad_id: int | Mapping[str, int], dtype: Any) -> int:
    pad = pad_id.get(name, 0) if isinstance(pad_id, Mapping) else pad_id
    if dtype is np.float32:
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
    """Pack documents of any length into rows of equal length.

    Returns a dict of arrays [R, length]:

    - ``"tokens"``, or the fields of `values`: int32, or float32 if they are; padded with `pad_id`;
    - ``"segment_ids"``, int32: 1, 2, ... by document in the row, 0 in padding; restrict attention
      to equal ids to separate documents;
    - ``"positions"``, int32: position in the segment, from 0;
    - ``"loss_mask"``, bool: True for tokens to predict from earlier tokens of their segment.

    Args:
      values, offsets: the documents, see `Documents`.
      length: tokens per row.
      method: "first-fit" places a document in the first open bin with enough room, "best-fit" in
        the bin with the least sufficient room; a bin is an incomplete row, and documents are not
        split. "concat-split" concatenates documents and splits them at row ends; only the last row
        has padding, and the remainder of a document in the next row is a new segment.
      long: treatment of documents longer than a row, except with "concat-split": "error" raises;
        "split" fills rows with it and treats the remainder as a document; "truncate" keeps
        the first `length` tokens; "drop" omits the document.
      max_open_bins: maximum number of open bins. If a document fits into none of them, the fullest
        bin becomes a row. More bins reduce the padding.
      pad_id: value of padding; a dict of field -> value if the fields differ.
      order: order of the documents; None for the stored order. Empty documents are skipped.

    >>> import numpy as np
    >>> import jaxkern as jk
    >>> documents = [np.array([1, 2, 3]), np.array([4, 5, 6, 7]), np.array([8])]
    >>> packed = jk.tokens.pack(documents, length=4)
    >>> packed["tokens"].tolist(), packed["segment_ids"].tolist()
    ([[4, 5, 6, 7], [1, 2, 3, 8]], [[1, 1, 1, 1], [1, 1, 1, 2]])
    """
    documents = values if isinstance(values, Documents) else Documents(values, offsets)
    packer = RowPacker(length, method, long=long, max_open_bins=max_open_bins)
    numbers = np.arange(len(documents)) if order is None else np.asarray(order, np.int64)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(documents)):
        raise IndexError(f"order goes from {numbers.min()} to {numbers.max()} of {len(documents)}")
    for first in range(0, len(numbers), _BLOCK):
        block = numbers[first : first + _BLOCK]
        begins, lengths = documents.locate(block)
        packer.add(begins, lengths, names=block)
    packer.flush()
    documents.check_files()
    return packed_rows(packer.take(), documents.fields, pad_id)
