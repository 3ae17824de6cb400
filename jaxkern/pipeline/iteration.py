"""One pass over an epoch: batches in order, made ahead, and a state after each."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core import compat
from jaxkern.core.failures import is_interrupt
from jaxkern.pipeline.epoch import Epoch, PipelinePlan, Placement
from jaxkern.pipeline.native import NativeBatches, native_batches
from jaxkern.pipeline.program import BatchUnit, NodeProgram
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import SequentialNode
from jaxkern.pipeline.state import make_state, read_state, read_states
from jaxkern.pipeline.tuning import Auto, PipelineStats, Tuning
from jaxkern.pipeline.workers import Workers, holds_ragged
from jaxkern.ring import RingClosed, SlotMemory
from jaxkern.ring.errors import RingTimeout
from jaxkern.tokens import PackingStats


@dataclasses.dataclass(frozen=True)
class IterationOptions:
    """Of `from_source`, which says what each of them is."""

    num_workers: int | Auto
    prefetch_size: int | Auto
    sharding: jax.sharding.NamedSharding | None


class PipelineIterator(Iterator[Data]):
    """The batches of an epoch; what ``iter(pipeline)`` returns.

    A batch that fails raises in its place; the next call goes on behind it. Several threads may
    iterate together: each batch goes to one of them. An interrupt by Ctrl-C closes the iterator;
    a new one with the old one's `get_state` resumes after the last batch that was delivered.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        epoch: int,
        options: IterationOptions,
        resumed: Callable[[int], None],
        replan: Callable[[Placement], PipelinePlan],
        tuning: Tuning,
        memory: SlotMemory,
    ) -> None:
        self._plan = plan
        self._epoch = epoch
        self._options = options
        self._resumed = resumed
        self._replan = replan
        self._tuning = tuning
        self._memory = memory
        self._process = os.getpid()
        self._delivered = self._next = 0
        self._lock = threading.RLock()
        self._start(0)

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._epoch

    def __iter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Data:
        self._check_process()
        with self._lock:
            try:
                outcome = self._take()
            except KeyboardInterrupt:
                self.close()
                raise
            self._next += 1
            if not isinstance(outcome, BaseException):
                self._delivered = self._next
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # its traceback holds this frame
        return outcome

    def _take(self) -> Data | BaseException:
        index = self._next
        if index < self._run.batches and self._closed:
            raise RingClosed(
                "the iteration was closed; resume with a new iterator and the get_state() of this "
                "one"
            )
        while self._made <= index and index < self._run.batches:
            self._make(None)
        if index >= self._run.batches:
            self.close()
            raise StopIteration
        # The program of the next batch runs while the consumer works on this one.
        if self._tail is not None and self._workers is not None and self._made == index + 1:
            self._make(0.0)
        return self._outcomes.pop(index)

    def get_state(self) -> dict[str, Any]:
        """Where the iteration is, as a small JSON-able dict: behind the last batch delivered."""
        run, batch = self._run, self._delivered
        finished = batch >= run.batches
        return make_state(self._plan, self._epoch, batch, finished, run.place(batch))

    def set_state(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Continues where `get_state` was called, perhaps in another process.

        The number of workers may differ; at the end of an epoch the number of shards may too.

        Within an epoch another number of shards goes on with the states of all shards in a list:
        each of the new ones is given it, and gets its part of the records that none of them has
        delivered, every one once; their batch size may be another. It may be saved again, and go on
        with another number of shards again.

        Raises: ValueError for what is no state, or one of another pipeline, naming the difference;
        RuntimeError in a child of the process where the iteration began.
        """
        self._check_process()  # in a child, who held the lock is not there to release it
        states = [state] if isinstance(state, dict) or not isinstance(state, Sequence) else state
        whole = self._plan if self._plan.remains is None else self._plan.continued(None)
        found = read_states(whole, states) if states is state else read_state(whole, states[0])
        self.close()  # first: who waits for a batch holds the lock
        with self._lock:
            self.close()
            placement = states[0].get("placement")
            if placement and whole.placement and placement != whole.placement:
                whole = self._replan(placement)  # the batches had that place's arithmetic
            self._plan = whole if found.remains is None else whole.continued(found.remains)
            self._epoch = found.epoch
            self._start(found.batch, found.place)
            if self._plan.cut is not None and found.finished:
                self._run.batches = found.batch
            self._resumed(found.epoch)

    def stats(self) -> PipelineStats | None:
        """Of the ring between the workers and the consumer; None before there is one."""
        workers = self._workers
        if workers is None:
            return None
        return self._tuning.stats(workers.stats(), workers.ring.capacity)

    @property
    def bad_records(self) -> int:
        """How many records of the delivered batches could not be read, as `on_bad_record="mask"` of
        the source says; since the iteration, or `set_state`, began. Batches from which a function
        dropped the field "valid" do not tell."""
        found = self._bad.copy()  # another thread may add to it
        return sum(count for batch, count in found.items() if batch < self._delivered)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """What nodes counted in this epoch, up to the last batch delivered and also before a
        `set_state`, by the nodes' names: of a `Filter` how many records it "dropped"."""
        place = self._run.place(self._delivered)
        found: dict[str, dict[str, int]] = {}
        vertex = self._plan.cut
        while vertex is not None:
            node = vertex.node
            counted = None if place is None else place.get("counts")
            if counted or (isinstance(node, SequentialNode) and node.drops):
                found[self._plan.names[vertex]] = dict(counted or {"dropped": 0})
            vertex = self._plan.streams[vertex.inputs[0]].cut if vertex.inputs else None
            for _ in range(2):
                place = None if place is None else place.get("at")
                place = place if isinstance(place, dict) else None
                if place is None or "turn" not in place:  # of a SequentialRepeat
                    break
        return dict(reversed(found.items()))

    @property
    def filtered(self) -> int:
        """How many records the filters have dropped in this epoch, see `counts`."""
        return sum(counted.get("dropped", 0) for counted in self.counts.values())

    @property
    def packing(self) -> PackingStats:
        """How full the rows of a `Pack` were in this epoch, see `counts`."""
        names = [field.name for field in dataclasses.fields(PackingStats)]
        packed = [c for c in self.counts.values() if {*names} <= c.keys()]
        return PackingStats(**{name: packed[-1][name] for name in names if packed})

    def close(self) -> None:
        """Ends the worker threads; idempotent. It happens by itself when the iterator is gone."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        for closing in (self._closing, self._ending):
            if closing is not None:
                closing()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "this iteration began before the process forked, and its batches are the parent's; "
                "start the child by multiprocessing's 'spawn' or 'forkserver', and make the "
                "pipeline there"
            )

    def _start(self, batch: int, place: dict[str, Any] | None = None) -> None:
        self._delivered = batch  # where a state points: behind the last batch delivered
        self._begin(batch, place)
        self._tail: NodeProgram | None = self._plan.tail
        self._workers: Workers | NativeBatches | None = None
        self._closing: weakref.finalize[Any, Any] | None = None
        self._made: int = batch  # the index behind the last outcome that is known
        self._outcomes: dict[int, Data | BaseException] = {}  # known and not claimed
        self._next = batch  # the index that is claimed next
        self._closed = False
        self._bad: dict[int, int] = {}  # batch -> its records that could not be read

    def _begin(self, batch: int, place: dict[str, Any] | None) -> None:
        tuning = self._tuning
        self._run = run = Epoch(self._plan, self._epoch, batch, place, tuning.workers, tuning.ahead)
        self._ending = None if self._plan.cut is None else weakref.finalize(self, run.close)

    def _make(self, timeout: float | None) -> None:
        """Makes the next outcome known; returns without it where it is not ready in time, and
        where the epoch ends there."""
        if self._made >= self._run.batches:
            return
        if self._tuning.due:
            self._tune()
        try:
            taken = self._unit(timeout)
        except RingTimeout:
            return
        if taken is None:
            return
        _, error, unit = taken
        outcome: Data | BaseException
        try:
            outcome = self._placed(unit) if error is None else error
        except Exception as failed:
            if is_interrupt(failed):
                raise KeyboardInterrupt from failed
            outcome = failed
        if error is None and unit.bad:
            self._bad[self._made] = unit.bad
        self._outcomes[self._made] = outcome
        self._made += 1

    def _tune(self) -> None:
        """Measures, and changes the threads and the ring where that may be faster."""
        workers = self._workers
        if workers is None:
            return
        in_order = self._plan.cut is not None
        if not self._tuning.observe(workers.stats(), resizable=not in_order):
            return
        if in_order:  # what its nodes have read would have to be read again
            assert isinstance(workers, Workers)
            workers.resize(self._tuning.workers)
        else:  # any batch can be made anew
            self._workers = None
            self._end()

    def _unit(self, timeout: float | None) -> tuple[int, BaseException | None, Any] | None:
        """The next unit, or the error in its place, as `Ring._outcome` returns them; None where the
        epoch has ended."""
        tuning = self._tuning
        if tuning.workers == 0:
            return self._made_here()
        if self._workers is None:
            first = self._plan.first
            tuning.restarted()
            arguments = (
                self._run,
                range(self._made, self._run.batches),
                tuning.workers,
                tuning.ahead if first is None else tuning.slots(first.nbytes),
                None if self._options.sharding is None else jax.local_devices(backend="cpu")[0],
                self._memory,
            )
            native = native_batches(*arguments)
            # Otherwise the shapes of the ring's slots come from the first batch, made here.
            if native is None and self._plan.first is None:
                return self._made_here()
            workers = native or Workers(*arguments)
            self._closing = weakref.finalize(self, workers.close)
            self._workers = workers
        try:
            return self._workers.outcome(timeout)
        except StopIteration:
            if self._plan.cut is not None:
                return None
            self._workers = None  # nothing was drawn behind the batch for which drawing failed
            self._end()
            return self._unit(timeout)

    def _made_here(self) -> tuple[int, BaseException | None, Any] | None:
        index = self._made
        try:
            if not self._run.pull(index):
                return None
            return index, None, self._run.unit(index)
        except BaseException as error:
            if is_interrupt(error):  # the batch is still to come
                raise KeyboardInterrupt from error
            return index, error, None

    def _placed(self, unit: BatchUnit) -> Data:
        # A NumPy array may be the user's own, which JAX must not take for its memory.
        leaves = unit.made_private().joint.leaves
        records = unit.records
        if self._options.sharding is not None:
            if holds_ragged(unit.joint):
                raise ValueError(
                    "images of different sizes cannot be spread over a mesh; bring them to one "
                    'size before, on the host: OperatorNode(aug, on="host")'
                )
            leaves = [_spread(leaf, self._options.sharding) for leaf in leaves]
            records = _spread(records, self._options.sharding, axes=1)  # their halves stay together
        else:
            leaves = [_loose(leaf) for leaf in leaves]
        joint = unit.joint._replace(leaves=leaves)
        if self._tail is None:
            return joint.batches()[0]
        if isinstance(records, jax.Array) and self._options.sharding is None:
            records = _loose(records)
        return self._tail(joint, records, self._run.key)


def _loose(leaf: Any) -> Any:
    """An array on the default device that jitted code may move.

    The first batch, those of a ring and a smaller last one must be alike in this: a jitted step is
    compiled anew for operands that are tied to a device, and again for the weights that it returns.
    """
    if isinstance(leaf, np.ndarray):
        return jax.device_put(leaf)
    if isinstance(leaf, jax.Array) and leaf.committed and len(leaf.devices()) == 1:
        return compat.uncommitted(leaf)
    return leaf


def _spread(leaf: Any, sharding: jax.sharding.NamedSharding, axes: int | None = None) -> jax.Array:
    """This process's rows as its part of a global array, of which so many axes are divided."""
    array = np.asarray(leaf)
    spec = jax.sharding.PartitionSpec(*sharding.spec[: array.ndim if axes is None else axes])
    placed = jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    spread: jax.Array = jax.make_array_from_process_local_data(placed, array)
    return spread
