"""Pack: documents of tokens in rows of one length, a pipeline's batches."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline.graph import Block, PipelineNode, Stream, Vertex
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import Deferred, Flow, FlowStart, Rows, SequentialNode
from jaxkern.pipeline.sources.combined import Subset
from jaxkern.pipeline.sources.source import BatchSource
from jaxkern.pipeline.sources.tokens import TokenSource
from jaxkern.tokens import Documents, PackingStats, RowPacker, bins_state, packed_rows, state_bins
from jaxkern.tokens import Rows as TokenRows
from jaxkern.tokens.packing import MARKS, Method, Overlong

_DOCUMENTS = 1024  # looked up together


class Pack(SequentialNode):
    """Packs documents of tokens into rows of one length; a batch is [batch_size, length].

    A batch holds the fields, int32, with `pad_id` behind the last token of a row, and
    ``"segment_ids"`` (1, 2, ... by document in the row, 0 in padding), ``"positions"`` (in the
    segment, from 0) and ``"loss_mask"`` (bool: neither padding nor the first token of a segment),
    see `jaxkern.tokens.pack`. Other fields are dropped. ``iterator.packing`` tells how full the
    rows are. How many rows an epoch has is known at its end: ``len(pipeline)`` raises.

    Behind a `TokenSource`, or a `Subset` of one, native code takes the documents from where they
    lie, in the epoch's order. Behind other nodes a document is a row of a batch whose field
    `lengths` tells its tokens; those behind them are padding.

    Args:
      length: of a row.
      fields: which fields are packed, all in the same places.
      method: "first-fit", "best-fit" or "concat-split", see `jaxkern.tokens.pack`.
      long: what becomes of a document longer than a row: "error" in its batch's place, "split",
        "truncate" or "drop", see `jaxkern.tokens.pack`.
      max_open_bins: rows in the making; more of them leave less padding and make states larger.
      pad_id: what stands in padding; a dict by field where they differ.
      lengths: the field with the tokens of each document, behind nodes other than a source.
      batch_size: rows of a batch; None for the batch_size before it.
    Raises: ValueError that names the argument.

    >>> import jaxkern as jk
    >>> source = jk.pipeline.TokenSource([[1, 2, 3], [4, 5, 6, 7], [8]])
    >>> pipe = jk.from_source(source, batch_size=2) >> jk.pipeline.Pack(4)
    >>> [(b["tokens"].tolist(), b["segment_ids"].tolist()) for b in pipe]
    [([[4, 5, 6, 7], [1, 2, 3, 8]], [[1, 1, 1, 1], [1, 1, 1, 2]])]
    """

    name = "pack"
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
        #: makes the packer of an epoch
        self.packer = functools.partial(
            RowPacker, length, method, long=long, max_open_bins=max_open_bins
        )
        self.packer()  # raises what is wrong
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)
        if not self.fields or {*self.fields} & {*MARKS, lengths}:
            raise ValueError(
                f"fields is {fields!r}; wanted fields with tokens, none of them named "
                f"{', '.join(map(repr, [*MARKS, lengths]))}"
            )
        unknown = [*({*pad_id} - {*self.fields} if isinstance(pad_id, Mapping) else ())]
        if unknown:
            raise ValueError(f"pad_id is for {unknown[0]!r}; the fields are {self.fields}")
        self.pad_id, self.lengths = pad_id, lengths
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
        self._options = f"{length}, {self.fields}, {method}, {long}, {max_open_bins}, {pad_id}"
        self._source: BatchSource | None = None

    def describe(self) -> str:
        size = "" if self.batch_size is None else f", rows {self.batch_size}"
        return f"Pack({self._options}{size})"

    def behind(self, vertex: Vertex) -> PipelineNode:
        """With the source's documents where it stands behind a source that has such."""
        source = vertex.node.source if isinstance(vertex.node, SourceNode) else None
        found = None if source is None else _documents_of(source)
        if found is not None:
            missing = [name for name in self.fields if name not in found[0].fields]
            if missing:
                raise ValueError(
                    f"the source has no field {missing[0]!r}; it has {sorted(found[0].fields)}"
                )
        node = copy.copy(self)
        node._source = None if found is None else source
        return node

    def rows(self, block: Block) -> Rows:
        """The tokens of a block's documents behind each other, and their lengths."""
        count = len(block.records)
        missing = [name for name in (*self.fields, self.lengths) if name not in block.data]
        if missing:
            raise ValueError(
                f"the batch has no field {missing[0]!r}; it has {sorted(block.data)}: give the "
                "fields with the tokens as fields=, and the one with their numbers as lengths="
            )
        lengths = np.asarray(block.data[self.lengths]).astype(np.int64)
        found: Data = {self.lengths: lengths}
        for name in self.fields:
            values = np.asarray(block.data[name])
            if values.ndim != 2 or lengths.shape != (count,):
                raise ValueError(
                    f"{name!r} is {values.dtype}{list(values.shape)} with lengths "
                    f"{list(lengths.shape)}; wanted documents [N, most] and their lengths [N]"
                )
            if count and not (lengths.min() >= 0 and lengths.max() <= values.shape[1]):
                raise ValueError(
                    f"{self.lengths!r} is {lengths.min()} to {lengths.max()}; wanted 0 to "
                    f"{values.shape[1]}, the columns of {name!r}"
                )
            found[name] = values[np.arange(values.shape[1]) < lengths[:, None]]
        return Rows(found, block.records, np.arange(count), count)

    def remarks(self) -> Sequence[str]:
        """Where the documents come from."""
        if self._source is None:
            return ["pack takes documents one by one from the batches before it"]
        return [f"pack takes documents from where they lie, natively: {self._source!r}"]

    def flow(self, start: FlowStart) -> Flow:
        place = start.place or {}
        reader: _Reader
        if self._source is None:
            reader = _GivenDocuments(start, self.fields, self.lengths)
        else:
            reader = _SourceDocuments(start, self._source)
        return _PackFlow(self, start.stream, _Window(reader, int(place.get("errors", 0))), place)


def _documents_of(source: BatchSource) -> tuple[Documents, np.ndarray | None] | None:
    """The documents that a source's records are, and which they are where not all in order."""
    if type(source) is TokenSource:
        return source.documents, None
    if type(source) is Subset and (found := _documents_of(source.source)) is not None:
        documents, chosen = found
        return documents, source.indices if chosen is None else chosen[source.indices]
    return None


class _Read(NamedTuple):
    """Documents that were read together, or the error in their place.

    Attributes:
      before: where reading begins that has them again.
      first: the number of the first one.
      records, begins, lengths: int64 [M] of each.
      fields: field -> values, among which they begin.
    """

    before: Any
    first: int
    records: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    fields: Mapping[str, np.ndarray]
    error: BaseException | None = None


class _Reader(Protocol):
    @property
    def place(self) -> Any:
        """Where the next read begins."""

    def read(self, first: int) -> _Read | None:
        """The next documents, the first of which gets this number; None behind the last."""


class _SourceDocuments:
    """Of a source, in the epoch's order."""

    def __init__(self, start: FlowStart, source: BatchSource) -> None:
        found = _documents_of(source)
        assert found is not None
        self._documents, self._chosen = found
        self._stream, self._epoch = start.stream, start.epoch
        self.place = 0 if start.place is None else int(start.place["at"])

    def read(self, first: int) -> _Read | None:
        before, self.place = self.place, min(self.place + _DOCUMENTS, self._stream.real_rows)
        if before >= self.place:
            return None
        shard, rows = self._stream.read_rows(range(before, self.place))
        records = self._stream.order.records(shard, self._epoch, rows)
        chosen = records if self._chosen is None else self._chosen[records]
        self._documents.check_files()
        places = self._documents.places(chosen)
        return _Read(before, first, records, *places, self._documents.fields)


class _GivenDocuments:
    """The rows of the batches before the node."""

    def __init__(self, start: FlowStart, fields: tuple[str, ...], lengths: str) -> None:
        assert start.given is not None
        self._given, self._fields, self._lengths = start.given, fields, lengths

    @property
    def place(self) -> Any:
        return self._given.place

    def read(self, first: int) -> _Read | None:
        item = self._given.next()
        if item is None:
            return None
        none = np.empty(0, np.int64)
        if item.error is not None:
            return _Read(item.before, first, none, none, none, {}, item.error)
        lengths = item.value.data[self._lengths]
        begins = np.cumsum(lengths) - lengths
        fields = {name: item.value.data[name] for name in self._fields}
        return _Read(item.before, first, item.value.records, begins, lengths, fields)


class _Window:
    """The documents from the oldest on that an open bin holds, numbered as they come."""

    def __init__(self, reader: _Reader, raised: int) -> None:
        self._reader = reader
        self._raised = raised  # errors that were raised before, and come again
        self._reads: deque[_Read] = deque()
        self._count = 0

    def read_with(self, number: int) -> _Read | None:
        """What was read with this document, which may be read now; None behind the last.

        Raises the error in the place of documents once.
        """
        while number >= self._count:
            read = self._reader.read(self._count)
            if read is None:
                return None
            self._reads.append(read)
            self._count += len(read.lengths)
            if read.error is not None:
                if not self._raised:
                    raise read.error
                self._raised -= 1
        found: _Read = next(read for read in reversed(self._reads) if read.first <= number)
        return found

    def place(self, oldest: int) -> tuple[dict[str, Any], int]:
        """Where reading begins that has the documents from a number on, and the first one's number
        there; what stands before is let go."""
        while self._reads and self._reads[0].first + len(self._reads[0].lengths) <= oldest:
            self._reads.popleft()
        errors = self._raised + sum(read.error is not None for read in self._reads)
        found = {"at": self._reads[0].before if self._reads else self._reader.place}
        first = self._reads[0].first if self._reads else self._count
        return found | ({"errors": errors} if errors else {}), first

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where documents begin among the values that they were read with, and their lengths."""
        found = [(read, n - read.first) for n in numbers.tolist() if (read := self.read_with(n))]
        if len(found) != len(numbers):
            raise ValueError("the state's bins hold documents that the epoch has not")
        begins = [read.begins[at] for read, at in found]
        lengths = [read.lengths[at] for read, at in found]
        return np.array(begins, np.int64), np.array(lengths, np.int64)

    def records(self, numbers: np.ndarray) -> np.ndarray:
        """The records int64 [M] of documents."""
        records = np.concatenate([read.records for read in self._reads])
        found: np.ndarray = records[numbers - self._reads[0].first]
        return found

    def values(self, rows: TokenRows) -> tuple[TokenRows, Mapping[str, np.ndarray]]:
        """Rows, and the values among which their pieces lie: joined where there are several."""
        several = [read.fields for read in self._reads if read.error is None]
        if all(fields is several[0] for fields in several):
            return rows, several[0]
        pieces = rows.pieces.copy()
        parts: dict[str, list[np.ndarray]] = {name: [] for name in several[0]}
        for number, _, count, begin in pieces.tolist():
            read = self.read_with(number)
            assert read is not None
            for name, values in read.fields.items():
                parts[name].append(values[begin : begin + count])
        pieces[:, 3] = np.cumsum(pieces[:, 2]) - pieces[:, 2]
        return rows._replace(pieces=pieces), {k: np.concatenate(v) for k, v in parts.items()}


class _PackFlow(Flow):
    """Rows in batches: placed by the documents' lengths, then written by native code."""

    def __init__(
        self, node: Pack, stream: Stream, window: _Window, place: Mapping[str, Any]
    ) -> None:
        self._node, self._window = node, window
        self._size, self._remainder = stream.batch_size, stream.remainder
        self._packer = node.packer()
        counts = dict(place.get("counts", {}))
        self._dropped = counts.pop("dropped", 0)
        self._stats = PackingStats(**counts)
        #: documents that were an error in a batch's place and are passed over
        self._passed = set(place.get("passed", ()))
        if "packer" in place:
            self._packer.restore(*state_bins(place["packer"], window.places, self._packer))

    @property
    def place(self) -> dict[str, Any]:
        document, started, sizes, pieces = self._packer.bins()
        oldest = int(pieces[:, 0].min(initial=document))
        found, first = self._window.place(oldest)
        pieces[:, 0] -= first
        found["packer"] = bins_state(document - first, started, sizes, pieces)
        if passed := [n - first for n in sorted(self._passed) if n >= document]:
            found["passed"] = passed
        found["counts"] = {**vars(self._stats), "dropped": self._dropped}
        return found

    def next(self) -> Deferred | None:
        before, dropped = self._packer.bins(), self._dropped
        try:
            self._fill()
        except BaseException:
            self._packer.restore(*before)  # and from there on without what has failed
            self._dropped = dropped
            raise
        rows = self._packer.take()
        count = len(rows.ends)
        if not count or (self._remainder == "drop" and count < self._size):
            return None
        stats = rows.stats
        firsts = rows.pieces[np.concatenate([[0], rows.ends[:-1]]), 0]
        records = self._window.records(firsts)
        if self._remainder == "pad" and count < self._size:
            again = np.full(self._size - count, count - 1)
            rows = rows._replace(ends=np.concatenate([rows.ends, rows.ends[again]]))
            records = np.concatenate([records, records[again]])
        rows, values = self._window.values(rows)
        fields = {name: values[name] for name in self._node.fields}
        self._stats += stats
        return Deferred(functools.partial(self._written, rows, fields, records, count))

    def _written(
        self,
        rows: TokenRows,
        fields: Mapping[str, np.ndarray],
        records: np.ndarray,
        count: int,
        out: Data | None,
    ) -> Block:
        """The batch of rows, of which the first `count` are no padding."""
        if out is not None and len(out[self._node.fields[0]]) != len(rows.ends):
            out = None
        data: Data = packed_rows(rows, fields, self._node.pad_id, out)
        if self._remainder == "pad":
            mask = np.arange(self._size) < count
            if out is None:
                data["mask"] = mask
            else:
                data["mask"][...] = mask
        return Block(data, records)

    def _fill(self) -> None:
        """Places documents until a batch is complete, or all are placed."""
        packer = self._packer
        while packer.complete < self._size:
            read = self._window.read_with(packer.document)
            if read is None:
                packer.flush(self._size)
                return
            at = packer.document - read.first
            lengths = read.lengths[at:]
            if any(n >= packer.document for n in self._passed):
                lengths = lengths.copy()
                for n in self._passed & {*range(packer.document, read.first + at + len(lengths))}:
                    lengths[n - packer.document] = 0
            overlong = np.empty(0, np.int64)
            if packer.method != "concat-split" and packer.long in ("error", "drop"):
                overlong = np.flatnonzero(lengths > packer.length)
            stop = int(overlong[0]) if packer.long == "error" and overlong.size else len(lengths)
            used = packer.add(read.begins[at : at + stop], lengths[:stop], self._size)
            if packer.long == "drop":
                self._dropped += int((overlong < used).sum())
            if used == stop < len(lengths) and packer.complete < self._size:
                self._passed.add(packer.document)
                raise ValueError(
                    f"record {read.records[at + stop]} has {lengths[stop]} tokens and a row "
                    f'{packer.length}; say what becomes of it: Pack(..., long="split"), '
                    '"truncate" or "drop"; or use longer rows'
                )
