"""The flows of an epoch's sequential nodes, and what each reads."""

from __future__ import annotations

import functools
import threading
from typing import Any

from jaxkern.core.failures import is_interrupt, note
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.feed import Feed
from jaxkern.pipeline.graph import Batches, Block, Vertex
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import Deferred, Flow, FlowStart, Given, Rows, SequentialNode


class Flows:
    """Opens the flows of an epoch when they are asked for, and keeps what they gave until taken.

    Args:
      epoch: that they are of, and its number.
      threads, ahead: for what stands before each sequential node; 0 threads make each block when
        it is asked for.
    """

    def __init__(self, epoch: Batches, number: int, threads: int, ahead: int) -> None:
        self._epoch, self._number = epoch, number
        self._threads, self._ahead = threads, ahead
        self._flows: dict[Vertex, Flow] = {}
        self._given: list[Given] = []
        self._others: list[Batches] = []
        self._pulled: dict[tuple[Vertex, int], Block | Deferred | BaseException] = {}
        self._lock = threading.Lock()
        self.closed = False

    def open(self, vertex: Vertex, place: Any) -> Flow:
        """The flow of a vertex, from a place on."""
        node = vertex.node
        assert isinstance(node, SequentialNode)
        feed = None
        if vertex.inputs:
            at = None if place is None else place["at"]
            feed = node.given(functools.partial(self.feed, vertex), self._number, at)
            self._given.append(feed)
        stream = self._epoch.stream_of(vertex)
        start = FlowStart(feed, stream, self._number, place, self._threads, self._ahead)
        with self._lock:
            flow = self._flows[vertex] = node.flow(start)
        if self.closed:
            self.close()
        return flow

    def feed(self, vertex: Vertex, number: int, at: Any) -> Feed:
        """What is before a vertex in an epoch, this one or another, from a place on."""
        if number != self._number:
            other = self._epoch.numbered(number)
            self._others.append(other)
            feed = other.feed(vertex, at)
        else:
            feed = Feed(_Upstream(self._epoch, self, vertex, at), self._threads, self._ahead)
        if self.closed:
            self.close()
        return feed

    def pull(self, vertex: Vertex, index: int) -> bool:
        """Has the flow give its next batch, which gets this index; whether there was one.

        In order, by one thread at a time. An error is kept in the batch's place; one of Ctrl-C is
        raised, and the flow is of no more use.
        """
        try:
            block = self._flows[vertex].next()
        except BaseException as error:
            if self.closed or is_interrupt(error):
                raise
            note(error, "in node {!r} of the pipeline", self._epoch.name_of(vertex))
            self._pulled[vertex, index] = error
            return True
        if block is None:
            return False
        self._pulled[vertex, index] = block
        return True

    def take(self, vertex: Vertex, index: int, out: Data | None = None) -> Block:
        """What was pulled, perhaps in the arrays `out`; raises the error in its place."""
        found = self._pulled.pop((vertex, index))
        if isinstance(found, BaseException):
            raise found
        return found.make(out) if isinstance(found, Deferred) else found

    def place(self, vertex: Vertex) -> dict[str, Any]:
        """Behind what was pulled last."""
        return self._flows[vertex].place

    def resize(self, threads: int, ahead: int) -> None:
        """Goes on with so many threads before each node."""
        self._threads, self._ahead = threads, ahead
        for given in self._given:
            given.resize(threads, ahead)

    def close(self) -> None:
        """Ends all threads; idempotent."""
        self.closed = True
        for given in self._given:
            given.close()
        for flow in self._flows.values():
            flow.close()
        for other in self._others:
            other.close()


class _Upstream:
    """The blocks before a sequential vertex, as its node's rows."""

    def __init__(self, epoch: Batches, flows: Flows, vertex: Vertex, place: Any) -> None:
        self._epoch, self._flows = epoch, flows
        self._node: Any = vertex.node
        self._name = epoch.name_of(vertex)
        (self._before,) = vertex.inputs
        stream = epoch.stream_of(self._before)
        self._inner = stream.cut
        self._index = 0
        if self._inner is None:
            self._batches = stream.batches
            self._index = 0 if place is None else int(place)
        else:
            flows.open(self._inner, place)

    @property
    def place(self) -> Any:
        return self._index if self._inner is None else self._flows.place(self._inner)

    def claim(self) -> int | None:
        if self._inner is not None:
            if not self._flows.pull(self._inner, self._index):
                return None
        elif self._index >= self._batches:
            return None
        self._index += 1
        return self._index - 1

    def make(self, claim: int) -> Rows:
        with self._epoch.together():
            block = self._epoch.block(self._before, claim)
        try:
            rows: Rows = self._node.rows(Block(row.on_host(block.data), block.records))
        except BaseException as error:
            note(error, "in node {!r} of the pipeline", self._name)
            raise
        return rows

    def close(self) -> None:
        pass
