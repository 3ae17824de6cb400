"""Oracles, simulated measurements, files and programs of the XPCS tests."""

from __future__ import annotations

import re


def words(text):
    """Split facts of a message at spaces, except inside parentheses."""
    return re.findall(r"\([^)]*\)|\S+", text)
