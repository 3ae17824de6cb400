"""Tests of drawn examples: few in every run, many in slow ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings


def few_or_many(few: int, many: int) -> Any:
    """Parametrize a test by its number of `examples`."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


def check_examples(examples: int, check: Callable[..., None], *drawn: Any, **named: Any) -> None:
    """Call `check` with this many examples of strategies."""
    settings(max_examples=examples, deadline=None)(given(*drawn, **named)(check))()
