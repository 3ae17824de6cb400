"""Exceptions of rings, and the outcomes that native code returns."""

from __future__ import annotations


class RingError(RuntimeError):
    """An operation that the ring cannot perform.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32))
      >>> ring.finish()
      >>> try:
      ...     ring.put(np.ones(2, np.float32))
      ... except jk.ring.RingError:
      ...     print("finished")
      finished
    """


class RingClosed(RingError):
    """The ring is closed; it accepts and delivers no batches.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32))
      >>> ring.close()
      >>> try:
      ...     ring.put(np.ones(2, np.float32))
      ... except jk.ring.RingClosed:
      ...     print("closed")
      closed
    """


class ProducerError(RingError):
    """A native producer could not make a batch.

    Attributes:
      slot: the index of the batch.
      record: the failing record; None if the producer does not report one.

    Example:
      >>> import jaxkern as jk
      >>> error = jk.ring.ProducerError(slot=2, record=17, message="truncated JPEG")
      >>> error.slot, error.record
      (2, 17)
    """

    def __init__(self, slot: int, record: int | None, message: str) -> None:
        super().__init__(f"batch {slot}: {message}")
        self.slot, self.record = slot, record


class RingTimeout(TimeoutError):
    """A timeout of a ring, as opposed to TimeoutError raised by other code."""


# Values of jaxkern::ring::Outcome in csrc/ring/ring.h.
OK, TIMEOUT, FAILED, FINISHED, CLOSED, INVALID, FORKED, NO_MEMORY = range(8)


def problem(outcome: int, message: str, timeout: float | None) -> Exception:
    """Return the exception for an outcome, except `OK`, `FAILED` and a consumer's `FINISHED`."""
    if outcome == TIMEOUT:
        return RingTimeout(f"waited {timeout:g} s for {message}")
    errors = {CLOSED: RingClosed, INVALID: ValueError, NO_MEMORY: MemoryError}
    return errors.get(outcome, RingError)(message)
