"""Fetches the items of any iterator ahead of the consumer, in a thread, onto a device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import aligned_copy
from jaxkern.pipeline.engine import Engine, ItemSource


def prefetch_to_device(
    iterator: Iterable[Any], buffer_size: int = 2, sharding: Any = None
) -> Prefetcher:
    """Return an iterator over the same pytrees as ``jax.Array``, prefetched by a thread.

    The thread reads items from ``iterator`` and puts them on the device while the consumer
    processes earlier ones, at most ``buffer_size`` ahead. The iterator may reuse its NumPy arrays:
    they are copied, unless they are read-only. An exception of the iterator is raised when its item
    is requested. If the iterator has ``get_state`` and ``set_state``, as that of a pipeline, so has
    the result; they refer to the delivered items.

    Args:
      iterator: iterable of pytrees of arrays or numbers.
      buffer_size: maximum number of items that are fetched but not consumed.
      sharding: a ``jax.sharding.Sharding``, a ``jax.Device``, or a pytree of them that is a prefix
        of the items; None for JAX's default device.

    Raises:
      ValueError: for a ``buffer_size`` below 1.
      TypeError: if ``iterator`` is not iterable.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> batches = ({"x": np.full(2, i, np.float32)} for i in range(3))
      >>> [float(batch["x"].sum()) for batch in jk.prefetch_to_device(batches)]
      [0.0, 2.0, 4.0]
    """
    return Prefetcher(iterator, buffer_size, sharding)


class Prefetcher(Iterator[Any]):
    """The result of `jaxkern.prefetch_to_device`: an iterator that a ``with`` block closes.

    Example:
      >>> import jaxkern as jk
      >>> pipe = jk.from_source({"x": [1, 2, 3, 4]}, batch_size=2)
      >>> with jk.prefetch_to_device(iter(pipe), buffer_size=1) as batches:
      ...     next(batches)["x"].tolist()
      [1, 2]
    """

    def __init__(self, iterator: Iterable[Any], buffer_size: int = 2, sharding: Any = None):
        buffer_size = check_integer("buffer_size", buffer_size, 1)
        self._iterator: Any = iter(iterator)
        self._buffer_size, self._sharding = buffer_size, sharding
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        source = _Items(self._iterator, self._sharding)
        self._delivered = source.position
        self._engine = Engine(source, 1, self._buffer_size)
        self._engine.start()

    def __next__(self) -> Any:
        return self.get()

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item; see `jaxkern.ring.Ring.get` for what it raises."""
        engine = self._engine
        item = engine.next(timeout)
        if item is None:
            raise StopIteration
        with self._lock:  # several threads may receive items out of order
            index, _ = item.after
            if engine is self._engine and index > self._delivered[0]:
                self._delivered = item.after
        if item.error is not None:
            try:
                raise item.error
            finally:
                del item  # its traceback references this frame
        return item.value

    def get_state(self) -> Any:
        """Return the iterator's state after the last delivered item, not the last prefetched one.

        Raises: TypeError if the iterator has no state, as a generator.
        """
        _check_state(self._iterator)
        return self._delivered[1]

    def set_state(self, state: Any) -> None:
        """Drop prefetched items and restore a state of `get_state`; raises TypeError like it."""
        _check_state(self._iterator)
        self.close(None)
        self._iterator.set_state(state)
        self._start()

    def close(self, timeout: float | None = 5.0) -> None:
        """End the thread and drop the prefetched items. Idempotent.

        `timeout` is the maximum time in seconds to wait for the thread, which may be fetching an
        item.
        """
        self._engine.close()
        self._engine.join(timeout)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        try:
            if engine is not None:
                engine.close()
        except Exception:  # modules may be unloaded when the interpreter exits
            pass


@dataclass(frozen=True)
class DevicePlacement:
    """Puts pytrees of arrays on a device or over a mesh.

    Attributes:
      target: a ``jax.Device``, a ``jax.sharding.Sharding``, or a pytree of them that is a prefix of
        the batches; None for JAX's default device.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> placement = jk.DevicePlacement(jax.devices()[0])
      >>> [int(x) for x in placement.prefetch_to_device(iter([np.int32(1), np.int32(2)]))]
      [1, 2]
    """

    target: Any = None

    def put(self, batch: Any) -> Any:
        """Return the pytree as ``jax.Array`` on the target; the transfer may be in progress."""
        return jax.device_put(batch, self.target)

    def prefetch_to_device(self, iterator: Iterable[Any], buffer_size: int = 2) -> Prefetcher:
        """Call `jaxkern.prefetch_to_device` with this placement."""
        return prefetch_to_device(iterator, buffer_size, self.target)


class _Items(ItemSource):
    """The items of an iterator on a device; a position is (number of items, state after them)."""

    def __init__(self, iterator: Any, sharding: Any) -> None:
        self._iterator, self._sharding = iterator, sharding
        self._at: tuple[int, Any] = 0, _state_of(iterator)

    @property
    def position(self) -> tuple[int, Any]:
        return self._at

    def claim(self) -> tuple[Any] | None:
        count, state = self._at
        try:
            item = next(self._iterator)
        except StopIteration:
            return None
        except BaseException:
            self._at = count + 1, state
            with contextlib.suppress(BaseException):  # the iterator's own error is raised instead
                self._at = count + 1, _state_of(self._iterator)
            raise
        self._at = count + 1, state
        self._at = count + 1, _state_of(self._iterator)
        return (item,)

    def make(self, claim: tuple[Any], slot: Any) -> Any:
        return jax.device_put(jax.tree.map(_own, claim[0]), self._sharding)

    def release(self) -> None:
        close = getattr(self._iterator, "close", None)  # runs the `finally` blocks of a generator
        if close is not None:
            close()


def _check_state(iterator: Any) -> None:
    if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
        name = type(iterator).__name__
        raise TypeError(f"the iterator is a {name}; expected one with get_state and set_state")


def _state_of(iterator: Any) -> Any:
    resumable = hasattr(iterator, "get_state") and hasattr(iterator, "set_state")
    return iterator.get_state() if resumable else None


def _own(leaf: Any) -> Any:
    """Copy an array that its producer may overwrite with the next item."""
    if isinstance(leaf, np.ndarray) and leaf.flags.writeable and not leaf.dtype.hasobject:
        return aligned_copy(leaf)
    return leaf
