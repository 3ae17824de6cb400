"""Assertions on the facts in error messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def raises(
    error: type[BaseException] | tuple[type[BaseException], ...], *facts: str
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Assert that a block raises `error` with a message that contains every fact."""
    with pytest.raises(error) as caught:
        yield caught
    missing = [fact for fact in facts if fact not in str(caught.value)]
    assert not missing, f"{missing} not in {str(caught.value)!r}"
