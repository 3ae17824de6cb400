"""What a call must take: floating-point operations and bytes, from shapes alone."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Operations and bytes of a call; None where they are not known from shapes."""

    flops: int | None
    bytes: int | None
