"""Fetches the items of any iterator ahead of the consumer, in a thread, onto a device."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline.rows import aligned_copy
from jaxkern.ring import Ring, RingError


def prefetch_to_device(
    iterator: Iterable[Any], buffer_size: int = 2, sharding: Any = None
) -> Prefetcher:
    """An iterator over the same pytrees as ``jax.Array``, fetched and sent ahead by a thread.

    The thread takes items from ``iterator`` and puts them on the device while the consumer works on
    earlier ones, so that a step takes the longer of the two times and not their sum. It stays at
    most ``buffer_size`` items ahead. The iterator may fill the same NumPy arrays again: they are
    copied, unless they are read-only. An exception of the iterator is raised in its place, after
    all items before it, with its traceback. Where the iterator has ``get_state`` and ``set_state``,
    as a pipeline's, the result has them too, for the items that were delivered.

    Args:
      iterator: of pytrees of arrays (or of numbers).
      buffer_size: items that are fetched but not consumed, at most.
      sharding: a ``jax.sharding.Sharding``, a ``jax.Device``, or a pytree of them that is a prefix
        of the items; None for JAX's default device.

    Raises:
      ValueError: for a ``buffer_size`` below 1.
      TypeError: when ``iterator`` is not iterable.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> batches = ({"x": np.full(2, i, np.float32)} for i in range(3))
      >>> [float(batch["x"].sum()) for batch in jk.prefetch_to_device(batches)]
      [0.0, 2.0, 4.0]
    """
    return Prefetcher(iterator, buffer_size, sharding)


class Prefetcher(Iterator[Any]):
    """What `jaxkern.prefetch_to_device` returns: an iterator that a ``with`` block closes."""

    def __init__(self, iterator: Iterable[Any], buffer_size: int = 2, sharding: Any = None):
        buffer_size = check_integer("buffer_size", buffer_size, 1)
        self._iterator: Any = iter(iterator)
        self._buffer_size, self._sharding = buffer_size, sharding
        self._start()

    def _start(self) -> None:
        # The thread must not hold the prefetcher that the consumer drops.
        self._stream = stream = _Stream(self._buffer_size, _state_of(self._iterator))
        self._thread = threading.Thread(
            target=_fetch,
            args=(stream, self._iterator, self._sharding),
            name="jaxkern-prefetch",
            daemon=True,
        )
        self._thread.start()

    def __next__(self) -> Any:
        return self.get()

    def get(self, timeout: float | None = None) -> Any:
        """The next item; see `jaxkern.ring.Ring.get` for what it raises."""
        stream = self._stream
        index, error, _ = stream.ring.take(timeout)
        if index in stream.states:
            if index > stream.delivered[0][0]:
                stream.delivered[0] = index, stream.states[index]
            del stream.states[index]
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return stream.items.pop(index)

    def get_state(self) -> Any:
        """The iterator's state behind the last item that was delivered, not the last one fetched.

        Raises:
          TypeError: when the iterator has no ``get_state``, as a generator.
        """
        self._check_state()
        return self._stream.delivered[0][1]

    def set_state(self, state: Any) -> None:
        """Drops what was fetched and goes on where `get_state` was called.

        Raises:
          TypeError: when the iterator has no ``set_state``; and what that raises for a state.
        """
        self._check_state()
        self.close(None)
        self._iterator.set_state(state)
        self._start()

    def _check_state(self) -> None:
        if not _has_state(self._iterator):
            raise TypeError(
                f"the iterator is a {type(self._iterator).__name__}, which has no get_state and "
                "set_state; wanted one that can be resumed, as a pipeline's"
            )

    def close(self, timeout: float | None = 5.0) -> None:
        """Ends the thread and drops what was fetched. Idempotent.

        Args:
          timeout: seconds to wait for the thread, which may be in the middle of an item.
        """
        self._stream.ring.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        self._stream = self._stream.emptied()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            # At the interpreter's end the functions that `Ring.close` calls may be gone.
            stream.ring._native.close(0.0)


class _Stream:
    """A ring of batches without leaves, which orders, bounds and ends; the items stand beside."""

    def __init__(self, buffer_size: int, state: Any) -> None:
        self.ring = Ring((), capacity=buffer_size)
        # The last item's index, and the iterator's state behind it; the place is one for `emptied`.
        self.delivered: list[tuple[int, Any]] = [(-1, state)]
        self.items: dict[int, Any] = {}
        self.states: dict[int, Any] = {}

    def emptied(self) -> _Stream:
        """The same ring without the items; who is taking one still has them."""
        empty = copy.copy(self)
        empty.items, empty.states = {}, {}
        return empty


def _has_state(iterator: Any) -> bool:
    return hasattr(iterator, "get_state") and hasattr(iterator, "set_state")


def _state_of(iterator: Any) -> Any:
    return iterator.get_state() if _has_state(iterator) else None


def _fetch(stream: _Stream, iterator: Any, sharding: Any) -> None:
    ring = stream.ring
    try:
        while _fetch_one(stream, iterator, sharding):
            pass
        ring.finish()
    except BaseException as error:
        # Whatever it is, the consumer must not wait for an item that nobody fetches.
        with contextlib.suppress(BaseException):  # closed; or of its text, when it has been told
            ring.fail(error)
        with contextlib.suppress(RingError):
            ring.finish()
    finally:
        close = getattr(iterator, "close", None)  # runs the `finally` blocks of a generator
        if close is not None:
            close()


def _fetch_one(stream: _Stream, iterator: Any, sharding: Any) -> bool:
    """False when the iterator has ended."""
    slot = stream.ring.slot()
    try:
        item = next(iterator)
    except StopIteration:
        slot.abandon()
        return False
    except BaseException as error:
        with contextlib.suppress(BaseException):  # the error itself matters more
            stream.states[slot.index] = _state_of(iterator)
        slot.fail(error)
        return isinstance(error, Exception)
    try:
        stream.states[slot.index] = _state_of(iterator)
        stream.items[slot.index] = jax.device_put(jax.tree.map(_own, item), sharding)
    except BaseException as error:
        slot.fail(error)
        return isinstance(error, Exception)
    slot.commit()
    return True


def _own(leaf: Any) -> Any:
    """A leaf that its producer does not write to, now that it fetches the next item."""
    if isinstance(leaf, np.ndarray) and leaf.flags.writeable and not leaf.dtype.hasobject:
        return aligned_copy(leaf)
    return leaf
