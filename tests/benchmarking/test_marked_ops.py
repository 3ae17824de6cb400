"""Timings of ops by pytest-benchmark: ``pytest -m benchmark --benchmark-autosave``.

The native kernel and pure JAX of a case are one group, so that the table compares them. Their
values are checked first. ``--benchmark-compare`` compares with the last saved run.
"""

from __future__ import annotations

import jax
import pytest

import jaxkern as jk
from jaxkern.benchmarking.compare import assert_same
from jaxkern.cli.bench_cases import prepare_case
from jaxkern.cli.commands import CASES

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("backend", ["native", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_op(name, backend, benchmark):
    benchmark.group = name
    with prepare_case(name) as case:
        arms = {}
        for arm in ("native", "jax"):
            with jk.backend(arm):
                arms[arm] = jax.jit(case.fn).lower(*case.args).compile()
        run, reference = arms[backend], arms["jax"](*case.args)
        result = jax.block_until_ready(run(*case.args))
        assert_same(reference, result, "close", case.rtol, case.atol)
        benchmark(lambda: jax.block_until_ready(run(*case.args)))
