"""What goes wrong in a ring, and which exception says so."""

from __future__ import annotations


class RingError(RuntimeError):
    """The ring cannot do what was asked."""


class RingClosed(RingError):
    """The ring was closed: nothing is delivered or taken any more."""


class ProducerError(RingError):
    """A native producer failed at this batch."""


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
