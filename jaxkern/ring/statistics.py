"""How a ring has run so far, and which side holds the other up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RingStats:
    """Counts since a ring was made.

    Attributes:
      batches: batches delivered.
      bytes: their size.
      failures: errors delivered.
      zero_copy: arrays that were handed over as the slot's own memory.
      copied: arrays that were copied, inside jitted code or to another device.
      producer_wait: seconds that producers waited for a slot, summed over them.
      consumer_wait: seconds that consumers waited for a batch.
      elapsed: seconds since the ring's first use.
      occupancy: [capacity + 1], how often so many batches were ready when a consumer came.
      ready: batches that wait for the consumer now.
      filling: slots that producers fill now.
      held: batches of which the consumer keeps an array now.
      verdict: "producer-bound" where the consumer waits more than twice as long as a producer does
        on average, "consumer-bound" the other way round, else "balanced"; also "balanced" where
        both wait for less than 2% of the time.
    """

    batches: int
    bytes: int
    failures: int
    zero_copy: int
    copied: int
    producer_wait: float
    consumer_wait: float
    elapsed: float
    occupancy: tuple[int, ...]
    ready: int
    filling: int
    held: int
    verdict: Literal["producer-bound", "consumer-bound", "balanced"]
