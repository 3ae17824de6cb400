"""Token documents of variable length, packed into rows of fixed length."""

from jaxkern.tokens.documents import Documents
from jaxkern.tokens.packing import (
    PackingStats,
    RowPacker,
    Rows,
    bins_state,
    pack,
    packed_rows,
    padded_rows,
    state_bins,
)

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
