"""Iteration over an epoch: batches in order, prefetched, with a state after each."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core import compat
from jaxkern.core.failures import is_interrupt
from jaxkern.core.forking import check_not_forked
from jaxkern.pipeline.engine import Engine, Item
from jaxkern.pipeline.epoch import Epoch, NativeEngine, WorkItems
from jaxkern.pipeline.plan import PipelinePlan, WorkItem
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.state import make_state, read_state, read_states
from jaxkern.pipeline.tuning import Auto, PipelineStats, Tuning
from jaxkern.ring import RingClosed, SlotMemory
from jaxkern.ring.errors import RingTimeout
from jaxkern.tokens import PackingStats

_READING = "an iteration that the parent began cannot continue"


@dataclasses.dataclass(frozen=True)
class IterationOptions:
    """Options of `from_source`."""

    num_workers: int | Auto
    prefetch_size: int | Auto
    sharding: jax.sharding.NamedSharding | None


class PipelineIterator(Iterator[Data]):
    """The batches of an epoch; returned by ``iter(pipeline)``.

    The error of a batch is raised instead of the batch; the next call continues with the batch
    after it. Several threads may share the iterator; each batch is delivered to one of them. Ctrl-C
    closes the iterator; a new one with the state of the old one resumes after the last delivered
    batch.

    Example:
      >>> import jaxkern as jk
      >>> pipe = jk.from_source({"x": [1, 2, 3, 4]}, batch_size=2)
      >>> iterator = iter(pipe)
      >>> next(iterator)["x"].tolist()
      [1, 2]
      >>> resumed = iter(pipe)
      >>> resumed.set_state(iterator.get_state())
      >>> next(resumed)["x"].tolist()
      [3, 4]
    """

    def __init__(
        self,
        plan: PipelinePlan,
        epoch: int,
        options: IterationOptions,
        on_resume: Callable[[int], None],
        tuning: Tuning,
        memory: SlotMemory,
    ) -> None:
        self._plan, self._epoch, self._options = plan, epoch, options
        self._on_resume, self._tuning, self._memory = on_resume, tuning, memory
        self._lock = threading.RLock()
        #: the number of batches, if known
        self._batches: int | None = None
        self._start(0, None, self._open(plan, epoch, 0, None))

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._epoch

    def __iter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Data:
        check_not_forked(_READING)
        with self._lock:
            try:
                item = self._take()
            except BaseException as error:
                if is_interrupt(error):
                    self.close()
                raise
            if item is None:
                raise StopIteration
            if item.error is None:  # the state covers only delivered batches
                self._delivered, self._position = self._made - len(self._ready), item.after
                self._bad += item.value[1]
        if item.error is not None:
            try:
                raise item.error
            finally:
                del item  # its traceback references this frame
        return item.value[0]

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last delivered batch: a small dict that JSON can represent."""
        finished = self._batches is not None and self._delivered >= self._batches
        return make_state(self._plan, self._epoch, self._delivered, finished, self._position)

    def set_state(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Resume from a state of `get_state`, which another process may have saved.

        The number of workers may differ. At the end of an epoch the number of shards may differ,
        too.

        To change the number of shards within an epoch, pass the list of the states of all old
        shards to each new shard. The new shards divide the records that no old shard has delivered,
        and each is delivered once; the batch size may differ. This can be repeated.

        Raises: ValueError if the state is not one of this pipeline; RuntimeError in a child of the
        process where the iteration began.
        """
        check_not_forked(_READING)  # in a child, a thread that does not exist may hold the lock
        states = [state] if isinstance(state, dict) or not isinstance(state, Sequence) else state
        plan = self._plan if self._plan.pending is None else self._plan.with_pending(None)
        start = read_states(plan, states) if states is state else read_state(plan, states[0])
        if start.pending is not None:
            plan = plan.with_pending(start.pending)
        opened = self._open(plan, start.epoch, start.batch, start.position)
        self.close()  # before locking, because a thread that waits for a batch holds the lock
        with self._lock:
            self.close()
            self._plan, self._epoch = plan, start.epoch
            self._start(start.batch, start.position, opened)
            if start.finished:
                self._batches = start.batch
            self._on_resume(start.epoch)

    def stats(self) -> PipelineStats | None:
        """Return the statistics of the ring between workers and consumer; None before it exists."""
        engine = self._engine
        if engine is None or (stats := engine.stats()) is None:
            return None
        return self._tuning.stats(stats, engine.capacity)

    @property
    def bad_records(self) -> int:
        """Number of unreadable records in the delivered batches, with ``on_bad_record="mask"``.

        It counts from the beginning of the iteration or the last `set_state`. Batches from which a
        function removed the field "valid" are not counted.
        """
        return self._bad

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Counters of the nodes in this epoch, by name; "dropped" is that of a `Filter`.

        They cover the epoch up to the last delivered batch, including the part before a
        `set_state`.
        """
        counts: dict[str, dict[str, int]] = {}
        vertex, position = self._plan.last_sequential, self._position
        while vertex is not None:
            node: Any = vertex.node
            position = position if isinstance(position, dict) else {}
            if "turn" in position:  # in the input of a Repeat
                position = position["at"] or {}
            numbers = position.get("counts") or ({"dropped": 0} if node.drops else {})
            if numbers:
                counts[self._plan.names[vertex]] = dict(numbers)
            position = position.get("at")
            (upstream,) = vertex.inputs or (None,)
            vertex = None if upstream is None else self._plan.layouts[upstream].last_sequential
        return dict(reversed(counts.items()))

    @property
    def filtered(self) -> int:
        """The number of records that filters have dropped in this epoch, see `counts`."""
        return sum(numbers.get("dropped", 0) for numbers in self.counts.values())

    @property
    def packing(self) -> PackingStats:
        """Tokens and padding in the rows of a `Pack` in this epoch, see `counts`."""
        names = [field.name for field in dataclasses.fields(PackingStats)]
        packed = [c for c in self.counts.values() if {*names} <= c.keys()]
        return PackingStats(**{name: packed[-1][name] for name in names if packed})

    def close(self) -> None:
        """End the worker threads; idempotent. A dropped iterator is closed automatically."""
        self._closed = True
        for closing in list(self._finalizers):
            closing()

    def _open(
        self, plan: PipelinePlan, epoch: int, batch: int, position: dict[str, Any] | None
    ) -> tuple[Epoch, WorkItems | None]:
        """Return the epoch and, if they are read in order, its batches from one on."""
        run = Epoch(plan, epoch, self._tuning.workers, self._tuning.ahead)
        return run, WorkItems(run, batch, position) if plan.last_sequential is not None else None

    def _start(
        self,
        batch: int,
        position: dict[str, Any] | None,
        opened: tuple[Epoch, WorkItems | None],
    ) -> None:
        self._closed = False  # first: another thread may close the iterator meanwhile
        self._delivered = batch  # number of batches that are delivered
        self._made: int = batch  # number of batches that were returned or are in `_ready`
        self._position = position
        self._bad: int = 0
        layout = self._plan.layout
        self._batches = layout.batches if layout.known else None
        self._ready: deque[Item] = deque()  # values are (batch, number of unreadable records)
        self._run, self._items = opened
        self._engine: Engine | NativeEngine | None = None
        self._finalizers: list[weakref.finalize[Any, Any]] = []
        if self._items is not None:
            self._finalizers.append(weakref.finalize(self, self._items.stop))
        self._end_position: dict[str, Any] | None = None

    def _take(self) -> Item | None:
        """Return the next batch; None at the end."""
        if not self._ready:
            self._make(None)
        if not self._ready:
            if self._end_position is not None:
                self._position = self._end_position
            self.close()
            return None
        # The program of the next batch runs while the consumer works on this one.
        if self._engine is not None and self._tuning.workers and len(self._ready) == 1:
            if self._plan.final_program is not None:
                self._make(0.0)
        return self._ready.popleft()

    def _make(self, timeout: float | None) -> None:
        """Append the next item to `_ready`, unless `timeout` expires or the epoch ends."""
        if self._batches is not None and self._made >= self._batches:
            return
        if self._closed:
            raise RingClosed(
                "the iteration was closed; resume with a new iterator and get_state() of this one"
            )
        if self._tuning.due:
            self._tune()
        try:
            item = self._next_item(timeout)
        except RingTimeout:
            return
        if item is None:
            return
        self._made += 1
        if item.error is None:
            try:
                item = Item(self._deliver(item.value), None, item.before, item.after)
            except Exception as failure:
                if is_interrupt(failure):
                    raise
                item = item._replace(error=failure)
        self._ready.append(item)

    def _next_item(self, timeout: float | None) -> Item | None:
        while True:
            engine = self._engine or self._begin_engine()
            item = engine.next(timeout)
            if item is not None:
                return item
            if self._batches is not None and self._made < self._batches:
                self._restart()  # the engine ended early: drawing the parameters of a batch raised
                continue
            self._batches = self._made
            if self._items is not None:
                self._end_position = self._items.position
            return None

    def _begin_engine(self) -> Engine | NativeEngine:
        """Return the engine of the next batches; only this method chooses a backend."""
        tuning, plan, first = self._tuning, self._plan, self._plan.first
        sharding, memory = self._options.sharding, self._memory
        device = None if sharding is None else jax.local_devices(backend="cpu")[0]
        native = plan.runs_natively(tuning.workers)
        engine: Engine | NativeEngine
        if not native and (tuning.workers == 0 or first is None):
            # The shapes of the slots come from the first batch, which is made in this thread.
            engine = Engine(self._items or WorkItems(self._run, self._made), 0, 1)
            self._engine = engine if tuning.workers == 0 else None
            return engine
        tuning.restarted()
        ahead = tuning.ahead if first is None else tuning.slots(first.nbytes)
        if native:
            engine = NativeEngine(self._run, self._made, tuning.workers, ahead, device, memory)
        else:
            assert first is not None
            _raise_malloc_trim_threshold(first.nbytes)
            leaves = [] if first.ragged else first.leaves
            engine = Engine(
                self._items or WorkItems(self._run, self._made),
                tuning.workers,
                ahead,
                struct={"leaves": leaves, "records": first.records},
                start=self._made,
                device=device,
                memory=memory,
            )
        self._finalizers.append(weakref.finalize(self, engine.close))
        self._engine = engine
        if self._closed:  # by another thread, before the engine was in the list
            engine.close()
        return engine

    def _restart(self) -> None:
        """Replace the engine by a new one that starts with the next batch to make."""
        self._engine = None
        for closing in self._finalizers:
            closing()
        self._finalizers.clear()

    def _tune(self) -> None:
        """Measure the throughput; change the number of threads or slots if that may increase it."""
        engine = self._engine
        if engine is None or (stats := engine.stats()) is None:
            return
        in_order = self._plan.last_sequential is not None
        if not self._tuning.observe(stats, resizable=not in_order):
            return
        if in_order and isinstance(engine, Engine):
            # A new engine would have to read the input of the sequential nodes again.
            engine.resize(self._tuning.workers)
        else:
            self._restart()

    def _deliver(self, item: WorkItem | Data) -> tuple[Data, int]:
        """Return the batch on the device, and the number of its records that are unreadable."""
        if isinstance(item, dict):
            return {name: _uncommitted(item[name]) for name in sorted(item)}, 0
        # JAX must not use the memory of a NumPy array that may belong to the user.
        item, records = item.with_owned_buffers(), item.records
        sharding, program = self._options.sharding, self._plan.final_program
        if sharding is not None:
            if item.ragged:
                raise ValueError(
                    "images of different sizes cannot be sharded over a mesh; resize them on the "
                    'host: OperatorNode(aug, on="host")'
                )
            item = item._replace(leaves=[_shard(leaf, sharding) for leaf in item.leaves])
            records = _shard(records, sharding, axes=1)  # the halves of an id stay together
        else:
            item = item._replace(leaves=[_uncommitted(leaf) for leaf in item.leaves])
        if program is None:
            return item.batches()[0], item.bad
        if isinstance(records, jax.Array) and sharding is None:
            records = _uncommitted(records)
        return program(item._replace(records=records), self._run.key), item.bad


def _raise_malloc_trim_threshold(batch_bytes: int) -> None:
    """Make glibc reuse the memory of freed batches, by freeing a large array.

    Otherwise glibc returns free memory beyond a few hundred KiB, or beyond twice the size of the
    largest array freed so far, to the system. Then every batch causes page faults, which take
    longer than a copy.
    """
    np.empty(min(8 * batch_bytes, (32 << 20) - (64 << 10)), np.uint8)


def _uncommitted(leaf: Any) -> Any:
    """Return an uncommitted array on the default device, which jitted code may move.

    All batches must be uncommitted: a jitted step is compiled again for committed operands.
    """
    if isinstance(leaf, np.ndarray):
        return jax.device_put(leaf)
    if isinstance(leaf, compat.ArrayImpl) and leaf.committed and len(leaf.devices()) == 1:
        return compat.uncommitted(leaf)
    return leaf


def leading_axes(sharding: jax.sharding.NamedSharding, axes: int) -> jax.sharding.NamedSharding:
    """Return a sharding like this one that divides only the first `axes` axes."""
    spec = jax.sharding.PartitionSpec(*sharding.spec[:axes])
    return jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def _shard(leaf: Any, sharding: jax.sharding.NamedSharding, axes: int | None = None) -> jax.Array:
    """Return the global array of all processes' parts; its first `axes` axes are divided."""
    array = np.asarray(leaf)
    placed = leading_axes(sharding, array.ndim if axes is None else axes)
    return jax.make_array_from_process_local_data(placed, array)
