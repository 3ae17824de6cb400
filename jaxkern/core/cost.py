"""Cost of a call, computed from shapes: floating-point operations and bytes."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Floating-point operations and bytes of a call; None if unknown."""

    flops: int | None
    bytes: int | None
