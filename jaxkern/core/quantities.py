"""Formatting of quantities with three digits and a suitable unit."""

from __future__ import annotations


def format_quantity(value: float | None, unit: str) -> str:
    """Format a value with a decimal prefix and its unit; "unknown" for None.

    >>> format_quantity(98765.4, "FLOP/s"), format_quantity(0.5, "B"), format_quantity(None, "B")
    ('98.8 kFLOP/s', '0.5 B', 'unknown')
    """
    if value is None:
        return "unknown"
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def format_duration(seconds: float) -> str:
    """Format seconds in s, ms, us or ns.

    >>> format_duration(0.00012345), format_duration(2.5)
    ('123 us', '2.5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
