"""A native ring buffer between producers of batches and a training loop."""

from jaxkern.ring.assembly import Assembly, RecordProducer
from jaxkern.ring.errors import ProducerError, RingClosed, RingError
from jaxkern.ring.ops import pop, push
from jaxkern.ring.ring import Ring, RingSlot, RingStats, SlotMemory
from jaxkern.ring.rows import RowParts, map_hdf5

__all__ = [
    "Assembly",
    "ProducerError",
    "RecordProducer",
    "Ring",
    "RingClosed",
    "RingError",
    "RingSlot",
    "RingStats",
    "RowParts",
    "SlotMemory",
    "map_hdf5",
    "pop",
    "push",
]
