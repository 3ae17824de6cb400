"""What goes wrong in a ring, and which exception says so."""

from __future__ import annotations


class RingError(RuntimeError):
    """The ring cannot do what was asked."""


class RingClosed(RingError):
    """The ring was closed: nothing is delivered or taken any more."""


class ProducerError(RingError):
    """A native producer could not make a batch.

    Attributes:
      slot: the index of the batch.
      record: the record at fault; None where the producer does not name one.
    """

    def __init__(self, slot: int, record: int | None, message: str) -> None:
        super().__init__(f"batch {slot}: {message}")
        self.slot, self.record = slot, record


class RingTimeout(TimeoutError):
    """A wait in a ring that was too long; other code raises TimeoutError too."""


# jaxkern::ring::Outcome of csrc/ring/ring.h.
OK, TIMEOUT, FAILED, FINISHED, CLOSED, INVALID, FORKED, NO_MEMORY = range(8)


def problem(outcome: int, message: str, timeout: float | None) -> Exception:
    """The exception for an outcome that is not `OK`; `FAILED` and a consumer's end are not here."""
    if outcome == TIMEOUT:
        return RingTimeout(f"waited {timeout:g} s for {message}")
    if outcome == CLOSED:
        return RingClosed(message)
    if outcome == INVALID:
        return ValueError(message)
    if outcome == NO_MEMORY:
        return MemoryError(message)
    return RingError(message)
