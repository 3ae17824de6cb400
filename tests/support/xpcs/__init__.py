"""Oracles, simulated measurements, files and programs of the XPCS tests."""

from __future__ import annotations

import contextlib
import re

import pytest


@contextlib.contextmanager
def raises(kind, facts):
    """Expect an error whose message contains all facts: words or groups in parentheses."""
    with pytest.raises(kind) as error:
        yield
    missing = [fact for fact in re.findall(r"\([^)]*\)|\S+", facts) if fact not in str(error.value)]
    assert not missing, str(error.value)
