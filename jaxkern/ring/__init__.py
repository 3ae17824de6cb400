"""A native ring buffer between producers of batches and a training loop."""

from jaxkern.ring.errors import ProducerError as ProducerError
from jaxkern.ring.errors import RingClosed as RingClosed
from jaxkern.ring.errors import RingError as RingError
from jaxkern.ring.program import pop as pop
from jaxkern.ring.program import push as push
from jaxkern.ring.ring import Ring as Ring
from jaxkern.ring.ring import RingSlot as RingSlot
from jaxkern.ring.statistics import RingStats as RingStats

__all__ = [
    "ProducerError",
    "Ring",
    "RingClosed",
    "RingError",
    "RingSlot",
    "RingStats",
    "pop",
    "push",
]
