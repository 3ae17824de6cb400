"""Short measurements of ceilings, for tests that do not need accurate figures."""

from __future__ import annotations

import importlib

import pytest

from jaxkern.core import ceilings


def shorten(patch: pytest.MonkeyPatch) -> None:
    """One pass of each probe over a small buffer, a few calls of each program, and no files."""
    patch.setattr(importlib.import_module("jaxkern.performance.roofline"), "_SECONDS", 0.0)
    patch.setattr(ceilings, "_PROBE_SECONDS", 0.0)
    patch.setattr(ceilings, "_CACHE_MULTIPLE", 0)
    patch.setattr(ceilings, "_MIN_BUFFER_BYTES", 1 << 20)
    patch.setattr(ceilings, "_read", lambda path, identity: None)
    patch.setattr(ceilings, "_write", lambda path, identity, found: found)
