"""One pass over an epoch: batches in order, made ahead, and a state after each."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxkern.core import compat
from jaxkern.pipeline.epoch import Epoch, Placement, Plan
from jaxkern.pipeline.native import NativeBatches, native_batches
from jaxkern.pipeline.program import Program, Unit
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.state import make_state, read_state
from jaxkern.pipeline.workers import Workers, holds_ragged
from jaxkern.ring import RingStats


class PipelineIterator(Iterator[Data]):
    """The batches of an epoch; what ``iter(pipeline)`` returns.

    A batch that fails raises in its place; the next call goes on behind it.
    """

    def __init__(
        self,
        plan: Plan,
        epoch: int,
        num_workers: int,
        prefetch_size: int,
        sharding: Any,
        resumed: Callable[[int], None],
        replan: Callable[[Placement], Plan],
    ) -> None:
        self._plan = plan
        self._epoch = epoch
        self._num_workers = num_workers
        self._prefetch_size = prefetch_size
        self._sharding = sharding
        self._resumed = resumed
        self._replan = replan
        self._start(0)

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._epoch

    def __iter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Data:
        if self._made - len(self._ahead) >= self._plan.stream.batches:
            self.close()
            raise StopIteration
        ready = self._ahead.popleft() if self._ahead else self._outcome(None)
        assert ready is not None
        if isinstance(ready, BaseException):
            try:
                raise ready
            finally:
                del ready  # its traceback holds this frame
        # The program of the next batch runs while the consumer works on this one.
        if self._tail is not None and self._workers is not None and not self._ahead:
            try:
                following = self._outcome(0.0)
            except BaseException:  # an interrupt: the next call returns this batch
                self._ahead.append(ready)
                raise
            if following is not None:
                self._ahead.append(following)
        self._delivered = self._made - len(self._ahead)
        return ready

    def get_state(self) -> dict[str, Any]:
        """Where the iteration is, as a small JSON-able dict: behind the last batch delivered."""
        return make_state(self._plan, self._epoch, self._delivered)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `get_state` was called, perhaps in another process.

        The number of workers may differ; at the end of an epoch the number of shards may too.

        Raises: ValueError for what is no state, or one of another pipeline, naming the difference.
        """
        epoch, batch = read_state(self._plan, state)
        self.close()
        placement = state.get("placement")
        if placement and self._plan.placement and placement != self._plan.placement:
            self._plan = self._replan(placement)  # the batches had that place's arithmetic
        self._epoch = epoch
        self._start(batch)
        self._resumed(epoch)

    def stats(self) -> RingStats | None:
        """Of the ring between the workers and the consumer; None before there is one."""
        return None if self._workers is None else self._workers.stats()

    @property
    def bad_records(self) -> int:
        """How many records of the delivered batches could not be read, as `on_bad_record="mask"` of
        the source says; since the iteration, or `set_state`, began."""
        return sum(count for batch, count in self._bad.items() if batch < self._delivered)

    def close(self) -> None:
        """Ends the worker threads; idempotent. It happens by itself when the iterator is gone."""
        if self._closing is not None:
            self._closing()

    def _start(self, batch: int) -> None:
        self._delivered = batch  # where a state points: behind the last batch delivered
        self._run = Epoch(self._plan, self._epoch)
        self._tail: Program | None = self._plan.tail
        self._workers: Workers | NativeBatches | None = None
        self._closing: weakref.finalize[Any, Any] | None = None
        self._made: int = batch  # units whose outcome is known
        self._unit_taken: Unit | None = None  # behind them, where its program was interrupted
        self._ahead: deque[Data | BaseException] = deque()
        self._bad: dict[int, int] = {}  # batch -> its records that could not be read

    def _outcome(self, timeout: float | None) -> Data | BaseException | None:
        """The next batch, or the error in its place; None where it is not ready in time."""
        if self._made >= self._plan.stream.batches:
            return None
        try:
            if self._unit_taken is None:
                self._unit_taken = self._unit(timeout)
        except BaseException as error:
            if self._workers is None:
                self._made += not isinstance(error, KeyboardInterrupt)
                return error
            before, self._made = self._made, self._workers.next_index
            if self._made > before:
                return error
            if isinstance(error, TimeoutError) and timeout is not None:
                return None
            raise  # an interrupted wait: the batch is still to come
        outcome: Data | BaseException
        try:
            outcome = self._placed(self._unit_taken)
        except Exception as error:
            outcome = error
        if self._unit_taken.bad:
            self._bad[self._made] = self._unit_taken.bad
        self._unit_taken = None
        self._made += 1
        return outcome

    def _unit(self, timeout: float | None) -> Unit:
        if self._num_workers == 0:
            return self._run.unit(self._made)
        if self._workers is None:
            arguments = (
                self._run,
                range(self._made, self._plan.stream.batches),
                self._num_workers,
                self._prefetch_size,
                None if self._sharding is None else jax.local_devices(backend="cpu")[0],
            )
            native = native_batches(*arguments)
            # Otherwise the shapes of the ring's slots come from the first batch, made here.
            if native is None and self._plan.first is None:
                return self._run.unit(self._made)
            self._workers = native or Workers(*arguments)
            self._closing = weakref.finalize(self, self._workers.close)
        try:
            return self._workers.get(timeout)
        except StopIteration:  # nothing was drawn behind the batch for which drawing failed
            self.close()
            self._workers = None
            return self._unit(timeout)

    def _placed(self, unit: Unit) -> Data:
        # A NumPy array may be the user's own, which JAX must not take for its memory.
        leaves = unit.made_private().joint.leaves
        records = unit.records
        if self._sharding is not None:
            if holds_ragged(unit.joint):
                raise ValueError(
                    "images of different sizes cannot be spread over a mesh; bring them to one "
                    'size before, on the host: OperatorNode(aug, on="host")'
                )
            leaves = [_spread(leaf, self._sharding) for leaf in leaves]
            records = _spread(records, self._sharding, axes=1)  # their halves stay together
        else:
            leaves = [_loose(leaf) for leaf in leaves]
        joint = unit.joint._replace(leaves=leaves)
        if self._tail is None:
            return joint.batches()[0]
        if isinstance(records, jax.Array) and self._sharding is None:
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
