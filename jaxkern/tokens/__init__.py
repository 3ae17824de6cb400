"""Token documents of variable length, packed into rows of fixed length."""

from jaxkern.tokens.documents import Documents as Documents
from jaxkern.tokens.packing import PackingStats as PackingStats
from jaxkern.tokens.packing import RowPacker as RowPacker
from jaxkern.tokens.packing import Rows as Rows
from jaxkern.tokens.packing import bins_state as bins_state
from jaxkern.tokens.packing import pack as pack
from jaxkern.tokens.packing import packed_rows as packed_rows
from jaxkern.tokens.packing import padded_rows as padded_rows
from jaxkern.tokens.packing import state_bins as state_bins

__all__ = [
    "Documents",
    "PackingStats",
    "RowPacker",
    "Rows",
    "bins_state",
    "pack",
    "packed_rows",
    "padded_rows",
    "state_bins",
]
