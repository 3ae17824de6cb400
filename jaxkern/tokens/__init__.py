"""Token sequences of any length: where documents lie, and rows of one length packed of them."""

from jaxkern.tokens.documents import Documents as Documents
from jaxkern.tokens.packing import PackingStats as PackingStats
from jaxkern.tokens.packing import RowPacker as RowPacker
from jaxkern.tokens.packing import pack as pack
from jaxkern.tokens.packing import packed_rows as packed_rows

__all__ = ["Documents", "PackingStats", "RowPacker", "pack", "packed_rows"]
