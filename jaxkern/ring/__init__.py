"""A native ring buffer between producers of batches and a training loop."""

from jaxkern.ring.assembly import Assembly as Assembly
from jaxkern.ring.assembly import RecordProducer as RecordProducer
from jaxkern.ring.assembly import RowParts as RowParts
from jaxkern.ring.errors import ProducerError as ProducerError
from jaxkern.ring.errors import RingClosed as RingClosed
from jaxkern.ring.errors import RingError as RingError
from jaxkern.ring.ops import pop as pop
from jaxkern.ring.ops import push as push
from jaxkern.ring.ring import Ring as Ring
from jaxkern.ring.ring import RingSlot as RingSlot
from jaxkern.ring.ring import RingStats as RingStats
from jaxkern.ring.ring import SlotMemory as SlotMemory
from jaxkern.ring.rows import map_hdf5 as map_hdf5

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
