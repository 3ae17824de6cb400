"""Would catch a public name without documentation."""

from __future__ import annotations

import inspect

import pytest

import jaxkern.device
import jaxkern.performance


@pytest.mark.parametrize("package", [jaxkern.performance, jaxkern.device])
def test_public_names_are_documented(package):
    for name in package.__all__:
        assert inspect.getdoc(getattr(package, name)), name
