"""Pack: packs documents of tokens into rows of equal length."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import check_mapped
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.engine import Engine, ItemSource
from jaxkern.pipeline.nodes import RECORDS_PER_CALL, BatchLayout, Block, SourceNode, Vertex
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import DeferredBlock, Flow, ReadItem, SequentialNode, Upstream
from jaxkern.pipeline.sources.combined import Subset
from jaxkern.pipeline.sources.source import BatchSource
from jaxkern.pipeline.sources.stored_arrays import TokenSource
from jaxkern.tokens import Documents, PackingStats, RowPacker, packed_rows
from jaxkern.tokens import Rows as TokenRows
from jaxkern.tokens.packing import MARKS, Method, Overlong

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch


class _PackFlow(Flow):
    """Batches of rows: rows are planned from document lengths, then native code writes them.

    It needs the documents from the oldest one in an open bin on. A position contains the open bins,
    in which documents are numbered from the first one of "at".
    """

    def __init__(self, node: Any, epoch: Epoch, vertex: Vertex, position: dict[str, Any]) -> None:
        super().__init__(node, epoch, vertex, position)
        self._packer = node.packer()
        counts = {"dropped": 0, **position.get("counts", {})}
        self._dropped = counts.pop("dropped")
        self._stats = PackingStats(**counts)
        self._position = position or {"at": self._upstream.position}
        if "packer" in position:
            self._packer.set_state(position["packer"], self._locate)

    @property
    def position(self) -> dict[str, Any]:
        return self._position

    def next(self) -> DeferredBlock | None:
        self._fill()
        rows = self._packer.take()
        count = len(rows.ends)
        block = None if self._is_dropped(count) else self._batch(rows, count)
        self._position = self._new_position()
        return block

    def _batch(self, rows: TokenRows, count: int) -> DeferredBlock:
        self._stats += rows.stats
        firsts = rows.pieces[np.concatenate([[0], rows.ends[:-1]]), 0]
        records = np.concatenate([read.records for read in self._items])
        records = records[firsts - self._items[0].first]
        if self._remainder == "pad" and count < self._size:  # with rows without documents
            repeated = np.full(self._size - count, count - 1)
            rows = rows._replace(ends=np.concatenate([rows.ends, rows.ends[repeated]]))
            records = np.concatenate([records, records[repeated]])
        rows, values = self._values(rows)
        fields = {name: values[name] for name in self._node.fields}
        return functools.partial(self._make, rows, fields, records, count)

    def _make(
        self, rows: TokenRows, fields: Any, records: np.ndarray, count: int, out: Data | None
    ) -> Block:
        if out is not None:
            out = row.without_mask(out) if len(records) == self._size else None
        for name, array in fields.items():  # after a wait for a slot
            check_mapped(f"field {name!r}", array)
        data: Data = packed_rows(rows, fields, self._node.pad_id, out)
        return self._with_mask(Block(data, records), count)

    def _fill(self) -> None:
        """Add documents until a batch is complete or all documents are placed."""
        packer = self._packer
        while packer.complete < self._size:
            read = self._read_with(packer.document)
            if read is None:
                packer.flush(self._size)
                return
            at = packer.document - read.first
            records, begins, lengths = (values[at:] for values in read.item.value[:3])
            try:
                used = packer.add(begins, lengths, self._size, records)
            except ValueError as error:  # a document longer than a row
                packer.skip()
                self._raise(error)
                continue
            if packer.long == "drop" and packer.method != "concat-split":
                self._dropped += int((lengths[:used] > packer.length).sum())

    def _raise(self, error: BaseException) -> None:
        if not self._old_errors:  # the position after the error is the last one with one more error
            errors = self._position.get("errors", 0) + 1
            self._position = {**self._position, "errors": errors}
        super()._raise(error)

    def _new_position(self) -> dict[str, Any]:
        state = self._packer.get_state()
        oldest = min(state["documents"], default=state["document"])
        self._drop_items(lambda read: read.end > oldest)
        first = self._items[0].first if self._items else self._count
        state["document"] -= first
        state["documents"] = [number - first for number in state["documents"]]
        counts = {**vars(self._stats), "dropped": self._dropped}
        return {**self._input_position(), "packer": state, "counts": counts}

    def _read_with(self, number: int) -> ReadItem | None:
        """Return the item with a document, which may be read now; None after the last one."""
        while number >= self._count:
            if not self._read():
                return None
        return next(read for read in reversed(self._items) if read.first <= number)

    def _locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets of documents in the values of their items, and their lengths."""
        reads = [(read, n - read.first) for n in numbers.tolist() if (read := self._read_with(n))]
        if len(reads) != len(numbers):
            raise ValueError("the state contains documents that the epoch does not have")
        begins = [read.item.value.begins[at] for read, at in reads]
        lengths = [read.item.value.lengths[at] for read, at in reads]
        return np.array(begins, np.int64), np.array(lengths, np.int64)

    def _values(self, rows: TokenRows) -> tuple[TokenRows, Mapping[str, np.ndarray]]:
        """Return the rows and the values of their pieces, joined if they are in several items."""
        several = [read.item.value.fields for read in self._items if read.item.error is None]
        if all(fields is several[0] for fields in several):
            return rows, several[0]
        pieces = rows.pieces.copy()
        parts: dict[str, list[np.ndarray]] = {name: [] for name in several[0]}
        for number, _, count, begin in pieces.tolist():
            read = self._read_with(number)
            assert read is not None
            for name, values in read.item.value.fields.items():
                parts[name].append(values[begin : begin + count])
        pieces[:, 3] = np.cumsum(pieces[:, 2]) - pieces[:, 2]
        return rows._replace(pieces=pieces), {k: np.concatenate(v) for k, v in parts.items()}


class Pack(SequentialNode):
    """Packs documents of tokens into rows of equal length; a batch is [batch_size, length].

    A batch contains the fields, int32, with `pad_id` after the last token of a row, and
    ``"segment_ids"`` (1, 2, ... for the documents in the row, 0 in padding), ``"positions"`` (in
    the segment, from 0) and ``"loss_mask"`` (bool: neither padding nor the first token of a
    segment), see `jaxkern.tokens.pack`. Other fields are dropped. ``iterator.packing`` counts
    tokens and padding. The number of rows is unknown before the end of an epoch, so
    ``len(pipeline)`` raises.

    After a `TokenSource`, or a `Subset` of one, native code reads the documents in place, in the
    order of the epoch. After other nodes a document is a row of a batch; the field `lengths`
    contains its number of tokens, and the rest of the row is padding.

    Args:
      length: number of tokens per row.
      fields: the fields to pack, all in the same way.
      method: "first-fit", "best-fit" or "concat-split", see `jaxkern.tokens.pack`.
      long: treatment of documents longer than a row: "error" for the batch,
        "split", "truncate" or "drop", see `jaxkern.tokens.pack`.
      max_open_bins: maximum number of incomplete rows; more of them result in less padding and
        larger states.
      pad_id: the value of padding; a dict by field if they differ.
      lengths: the field with the number of tokens of each document, after nodes other than a
        source.
      batch_size: rows per batch; None for the batch size of its input.
    Raises: ValueError that names the argument.

    >>> import jaxkern as jk
    >>> source = jk.pipeline.TokenSource([[1, 2, 3], [4, 5, 6, 7], [8]])
    >>> pipe = jk.from_source(source, batch_size=2) >> jk.pipeline.Pack(4)
    >>> [(b["tokens"].tolist(), b["segment_ids"].tolist()) for b in pipe]
    [([[4, 5, 6, 7], [1, 2, 3, 8]], [[1, 1, 1, 1], [1, 1, 1, 2]])]
    """

    name = "pack"
    flow = _PackFlow
    fresh = True

    def __init__(
        self,
        length: int,
        fields: Sequence[str] = ("tokens",),
        method: Method = "first-fit",
        *,
        long: Overlong = "error",
        max_open_bins: int = 64,
        pad_id: int | Mapping[str, int] = 0,
        lengths: str = "length",
        batch_size: int | None = None,
    ) -> None:
        #: creates the packer of an epoch
        self.packer = functools.partial(
            RowPacker, length, method, long=long, max_open_bins=max_open_bins
        )
        self.packer()  # checks the arguments
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)
        if not self.fields or {*self.fields} & {*MARKS, lengths}:
            raise ValueError(
                f"fields is {fields!r}; expected fields with tokens, none of them named "
                f"{', '.join(map(repr, [*MARKS, lengths]))}"
            )
        if unknown := [*({*pad_id} - {*self.fields} if isinstance(pad_id, Mapping) else ())]:
            raise ValueError(f"pad_id is for {unknown[0]!r}; the fields are {self.fields}")
        self.pad_id, self.lengths = pad_id, lengths
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
        self._options = f"{length}, {self.fields}, {method}, {long}, {max_open_bins}, {pad_id}"
        self._source: BatchSource | None = None

    def describe(self) -> str:
        size = "" if self.batch_size is None else f", rows {self.batch_size}"
        return f"Pack({self._options}{size})"

    def after(self, vertex: Vertex) -> Vertex:
        source = vertex.node.source if isinstance(vertex.node, SourceNode) else None
        documents = None if source is None else _documents_of(source)
        node = copy.copy(self)
        node._source = None if documents is None else source
        if documents is not None:
            fields = documents[0].fields
            if missing := [name for name in self.fields if name not in fields]:
                raise ValueError(f"the source has no field {missing[0]!r}; it has {sorted(fields)}")
        return Vertex(node, (vertex,))

    def open_upstream(self, epoch: Epoch, vertex: Vertex, position: Any) -> Upstream:
        if self._source is None:
            return super().open_upstream(epoch, vertex, position)
        layout = epoch.layouts[vertex]
        return Engine(_SourceDocuments(self._source, layout, epoch.number, position or 0), 0, 1)

    def rows(self, block: Block) -> _Documents:
        """Return the concatenated tokens of a block's documents, as `_Documents`."""
        count = len(block.records)
        if missing := [name for name in (*self.fields, self.lengths) if name not in block.data]:
            raise ValueError(
                f"the batch has no field {missing[0]!r}; it has {sorted(block.data)}: name the "
                "fields of tokens with fields=, and the field of their counts with lengths="
            )
        lengths = np.asarray(block.data[self.lengths]).astype(np.int64)
        data: Data = {}
        for name in self.fields:
            values = np.asarray(block.data[name])
            if values.ndim != 2 or lengths.shape != (count,):
                raise ValueError(
                    f"{name!r} is {values.dtype}{list(values.shape)} with lengths "
                    f"{list(lengths.shape)}; expected documents [N, width] and their lengths [N]"
                )
            if count and not (lengths.min() >= 0 and lengths.max() <= values.shape[1]):
                raise ValueError(
                    f"{self.lengths!r} is {lengths.min()} to {lengths.max()}; expected 0 to "
                    f"{values.shape[1]}, the columns of {name!r}"
                )
            data[name] = values[np.arange(values.shape[1]) < lengths[:, None]]
        return _Documents(block.records, np.cumsum(lengths) - lengths, lengths, data)

    def remarks(self) -> Sequence[str]:
        if self._source is None:
            return ["pack reads documents one by one from the batches before it"]
        return [f"pack reads documents in place by native code: {self._source!r}"]


def _documents_of(source: BatchSource) -> tuple[Documents, np.ndarray | None] | None:
    """Return the documents of a source, and the indices of those used, or None for all in order."""
    if type(source) is TokenSource:
        return source.documents, None
    if type(source) is Subset and (inner := _documents_of(source.source)) is not None:
        documents, chosen = inner
        return documents, source.indices if chosen is None else chosen[source.indices]
    return None


class _Documents(NamedTuple):
    """Documents that were read together."""

    records: np.ndarray  # int64 [M], like the next two
    begins: np.ndarray
    lengths: np.ndarray
    fields: Mapping[str, np.ndarray]  # the values; `begins` are offsets in them


class _SourceDocuments(ItemSource):
    """Documents of a source in the order of the epoch, from a row on."""

    def __init__(self, source: BatchSource, layout: BatchLayout, epoch: int, position: int) -> None:
        documents = _documents_of(source)
        assert documents is not None
        self._documents, self._chosen = documents
        self._layout, self._epoch = layout, epoch
        self._at = int(position)

    @property
    def position(self) -> int:
        return self._at

    def claim(self) -> _Documents | None:
        before, self._at = self._at, min(self._at + RECORDS_PER_CALL, self._layout.real_rows)
        if before >= self._at:
            return None
        shard, rows = self._layout.read_rows(range(before, self._at))
        records = self._layout.order.records(shard, self._epoch, rows)
        chosen = records if self._chosen is None else self._chosen[records]
        self._documents.check_files()
        return _Documents(records, *self._documents.locate(chosen), self._documents.fields)
