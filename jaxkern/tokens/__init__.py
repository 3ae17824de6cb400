"""Token documents of variable length, packed into rows of fixed length."""

from jaxkern.tokens.documents import Documents
from jaxkern.tokens.packing import PackingStats, RowPacker, Rows, pack, packed_rows, padded_rows

__all__ = [
    "Documents",
    "PackingStats",
    "RowPacker",
    "Rows",
    "pack",
    "packed_rows",
    "padded_rows",
]
