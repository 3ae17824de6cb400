"""Timings of ops by pytest-benchmark: ``pytest -m benchmark --benchmark-autosave``.

Native kernels and pure JAX stand in one group a case, so that the table compares them; their values
are checked first. ``--benchmark-compare`` compares with the run that was saved before.
"""

from __future__ import annotations

import jax
import pytest

from jaxkern.benchmarking.equality import check_same
from jaxkern.cli.bench_cases import CASES, prepared

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("way", ["native", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_op(name, way, benchmark):
    benchmark.group = name
    with prepared(name) as case:
        run, reference = case.arm(way), case.arm("jax")(*case.args)
        found = jax.block_until_ready(run(*case.args))
        check_same("jax", reference, way, found, "close", case.rtol, case.atol)
        benchmark.extra_info["values"] = case.values
        benchmark(lambda: jax.block_until_ready(run(*case.args)))
