"""Assertions on the facts in error messages and warnings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def raises(
    error: type[BaseException] | tuple[type[BaseException], ...], *facts: str
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Assert that a block raises `error` whose message and notes contain every fact."""
    with pytest.raises(error) as caught:
        yield caught
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    missing = [fact for fact in facts if fact not in text]
    assert not missing, f"{missing} not in {text!r}"


@contextlib.contextmanager
def warns(category: type[Warning], *facts: str) -> Iterator[pytest.WarningsRecorder]:
    """Assert that a block issues a warning of `category` whose message contains every fact."""
    with pytest.warns(category) as issued:
        yield issued
    messages = [str(w.message) for w in issued if issubclass(w.category, category)]
    assert any(all(fact in m for fact in facts) for m in messages), f"{facts} not in {messages}"
