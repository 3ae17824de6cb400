"""Data with bad rows: the fit must leave out these rows alone, and report them."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import assert_same_optimum, model_of

import jaxkern as jk
from jaxkern.xpcs.fitting.evaluation import Evaluation

N = 96
TIGHT = {"p0": problems.TRUTH, "ftol": 1e-14, "xtol": 1e-12, "gtol": None}


def streaming(**options):
    return jk.xpcs.StreamingOptions(**{"chunk_points": 64 * N, "retries": 1, **options})


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=51)


@pytest.fixture(scope="module")
def broken(case):
    """NaN in rows 40 and 70 of angle 1, above the diagonal; and its mirror image."""
    data = case.data.copy()
    data[1, 40, 60] = data[1, 60, 40] = np.nan
    data[1, 70, 80] = data[1, 80, 70] = np.inf
    return data


@pytest.fixture(scope="module")
def without_blocks(case):
    """SciPy's fit without rows 32 to 95 of angle 1, which are the excluded row blocks 1 and 2."""
    points = np.triu(np.ones((N, N), bool), 1)
    sigma = np.ones(case.data.shape)
    sigma[1, 32:] = 1e9
    start = np.concatenate([case.contrast, case.offset, problems.TRUTH])
    return problems.dense_fit(case, start, sigma=sigma, points=points)


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_rows_with_nan_are_left_out(case, broken, without_blocks, strategy):
    with pytest.warns(RuntimeWarning, match=r"2 of 9 row blocks .* angle 1, rows 32 to"):
        result = checks.fit(
            model_of(case), broken, 1.0, strategy=strategy, streaming=streaming(), **TIGHT
        )
    assert result.success_rate == pytest.approx(7 / 9)
    assert result.count == 3 * N * (N - 1) - 2 * sum(N - 1 - i for i in range(32, N))
    truth = np.concatenate([case.contrast, case.offset, problems.TRUTH])
    np.testing.assert_array_less(np.abs(result.popt - truth), 5 * result.perr)
    np.testing.assert_array_less(np.abs(result.popt - without_blocks.x), 1e-3 * result.perr)
    assert any("not finite" in line for line in result.warnings)


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_bad_rows_can_fail_the_fit(case, broken, strategy):
    with pytest.raises(jk.xpcs.BadDataError, match="angle 1, rows 32 to 63"):
        checks.fit(
            model_of(case),
            broken,
            1.0,
            strategy=strategy,
            streaming=streaming(on_bad_chunk="raise"),
            **TIGHT,
        )


def test_nan_in_points_without_weight_is_ignored(case):
    data = case.data.copy()
    data[:, np.arange(N), np.arange(N)] = np.nan
    sigma = np.full(data.shape, 0.004)
    sigma[0, 3, 9] = sigma[0, 9, 3] = 0.0
    data[0, 3, 9] = data[0, 9, 3] = np.nan
    for strategy in ("memory", "stream"):
        result = checks.fit(
            model_of(case), data, sigma, strategy=strategy, streaming=streaming(), **TIGHT
        )
        assert result.success_rate == 1.0
        assert result.count == 3 * N * (N - 1) - 2


def test_rows_are_not_excluded_because_the_model_overflows():
    """A step to a point where the model is not finite must not exclude rows."""
    t = np.arange(N) * 1.0
    geometry = jk.xpcs.Geometry(0.0054, None, 1.0, t, 0.0)

    def phases(p):
        rate = jnp.where(abs(p[0] - 0.02) < 5e-4, jnp.nan, p[0])  # NaN at the first step
        return rate * jnp.asarray(t), jnp.zeros((1, N))

    model = jk.xpcs.CustomModel(geometry, phases, ["rate"], shear_power=0)
    noise = np.triu(np.random.default_rng(3).normal(size=(N, N)) * 0.01, 1)
    data = (1 + 0.3 * np.exp(-1.6 * np.abs(np.subtract.outer(t, t))) + noise + noise.T)[None]
    sigma = np.full(data.shape, 0.01)
    sigma[0, 3, 9] = sigma[0, 9, 3] = 0.0
    data[0, 3, 9] = data[0, 9, 3] = np.nan
    result = checks.fit(
        model, data, sigma, [0.01], 0.3, 1.0, "fixed",
        strategy="stream", streaming=streaming(),
    )  # fmt: skip
    assert not np.isfinite(result.costs).all()
    assert result.success
    assert result.success_rate == 1.0


class Flaky:
    """A source in which reads of the bad rows fail `failures` times (always for None)."""

    symmetric = True

    def __init__(self, data, angle, rows, failures=None, after=0):
        self.shape, self.dtype, self._data = data.shape, data.dtype, data
        self._angle, self._rows, self._failures, self._after = angle, rows, failures, after
        self.reads = 0

    def read(self, angle, first_row, stop_row):
        self.reads += 1
        touched = first_row < self._rows[1] and stop_row > self._rows[0]
        if angle == self._angle and touched and self.reads > self._after and self._failures != 0:
            if self._failures is not None:
                self._failures -= 1
            raise OSError("input/output error")
        return self._data[angle, first_row:stop_row]


@pytest.mark.parametrize("strategy", ["stream", "memory"])
def test_unreadable_rows_are_left_out(case, without_blocks, strategy):
    source = Flaky(case.data, 1, (50, 70))
    with pytest.warns(RuntimeWarning, match=r"2 of 9 row blocks .* cannot be read"):
        result = checks.fit(
            model_of(case), source, 1.0, strategy=strategy, streaming=streaming(), **TIGHT
        )
    assert result.success_rate == pytest.approx(7 / 9)
    np.testing.assert_array_less(np.abs(result.popt - without_blocks.x), 1e-3 * result.perr)


def test_a_failed_read_is_retried(case):
    source = Flaky(case.data, 0, (0, 1), failures=1, after=40)
    result = checks.fit(
        model_of(case), source, 1.0, strategy="stream", streaming=streaming(), **TIGHT
    )
    good = checks.fit(model_of(case), case.data, 1.0, **TIGHT)
    assert result.success_rate == 1.0
    np.testing.assert_array_less(np.abs(result.popt - good.popt), 1e-4 * good.perr)


def test_rows_that_turn_bad_during_the_fit(case, without_blocks, tmp_path):
    """The cost is another function then, so the solver restarts from its best point."""
    source = Flaky(case.data, 1, (50, 70), after=150)
    with pytest.warns(RuntimeWarning, match="2 of 9 row blocks"):
        result = checks.fit(
            model_of(case),
            source,
            1.0,
            strategy="stream",
            streaming=streaming(enable_checkpoints=True, checkpoint_dir=tmp_path),
            **{**TIGHT, "p0": problems.START},
        )
    assert result.success
    np.testing.assert_array_less(np.abs(result.popt - without_blocks.x), 1e-3 * result.perr)
    assert result.nfev > len(result.costs)


def test_rows_that_turn_bad_in_the_pass_at_the_solution(case, monkeypatch):
    """A fit that resumes after its last step makes this pass; its sums exclude the bad rows."""
    source = Flaky(case.data, 1, (50, 70), after=10**9)
    sums = Evaluation.sums

    def late(self, solution):
        source._after = source.reads
        return sums(self, dataclasses.replace(solution, point=None))

    monkeypatch.setattr(Evaluation, "sums", late)
    with pytest.warns(RuntimeWarning, match="2 of 9 row blocks"):
        result = checks.fit(
            model_of(case), source, 1.0, strategy="stream", streaming=streaming(), **TIGHT
        )
    assert result.count == 3 * N * (N - 1) - 2 * sum(N - 1 - i for i in range(32, N))


def test_all_rows_bad(case):
    with pytest.raises(jk.xpcs.BadDataError, match="every row is excluded"):
        checks.fit(model_of(case), np.full_like(case.data, np.nan), 1.0, **TIGHT)


def test_the_optimum_without_bad_rows_is_that_of_scipy(case, broken, without_blocks):
    with pytest.warns(RuntimeWarning):
        result = checks.fit(model_of(case), broken, 1.0, streaming=streaming(), **TIGHT)
    used = np.triu(np.ones((N, N), bool), 1)
    dense = without_blocks
    rows = np.repeat(np.arange(3), used.sum())
    inside = ~((rows == 1) & np.tile(np.nonzero(used)[0] >= 32, 3))
    dense.fun, dense.jac = dense.fun[inside], dense.jac[inside]
    dense.cost = 0.5 * float(dense.fun @ dense.fun)
    assert_same_optimum(result, dense)
