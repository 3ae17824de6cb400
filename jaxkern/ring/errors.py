"""Exceptions of rings, and the outcomes that native code returns."""

from __future__ import annotations


class RingError(RuntimeError):
    """An operation that the ring cannot perform."""


class RingClosed(RingError):
    """The ring is closed; it accepts and delivers no batches."""


class ProducerError(RingError):
    """A native producer could not make a batch.

    Attributes:
      slot: the index of the batch.
      record: the failing record; None if the producer does not report one.
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
