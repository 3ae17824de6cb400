"""Programs of the pipeline tests, of which many run the same ones, are compiled once."""

from __future__ import annotations

import pytest

from jaxkern import performance


@pytest.fixture(scope="module", autouse=True)
def programs_of_other_tests(tmp_path_factory):
    """JAX keeps what an earlier test compiled, in a folder of this run."""
    performance.enable_persistent_cache(tmp_path_factory.getbasetemp() / "programs")
    yield
    performance.disable_persistent_cache()
