"""Data that are broken in places: would catch a fit that dies, lies, or loses good rows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import assert_same_optimum, model_of

import jaxkern as jk
from jaxkern.xpcs.fitting.evaluation import Evaluation

N = 96
TIGHT = {"p0": problems.TRUTH, "ftol": 1e-14, "xtol": 1e-12, "gtol": None, "progress": False}


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
    """SciPy's fit without rows 32 to 95 of angle 1, as row blocks 1 and 2 are left out."""
    points = np.triu(np.ones((N, N), bool), 1)
    sigma = np.ones(case.data.shape)
    sigma[1, 32:] = 1e9
    start = np.concatenate([case.contrast, case.offset, problems.TRUTH])
    return problems.dense_fit(case, start, sigma=sigma, points=points)


@pytest.mark.parametrize("strategy", ["STANDARD", "LARGE", "CHUNKED", "STREAMING"])
def test_rows_with_nan_are_left_out(case, broken, without_blocks, strategy):
    with pytest.warns(RuntimeWarning, match="2 of 9 row blocks are left out: angle 1, rows 32 to"):
        found = jk.xpcs.fit(
            model_of(case), broken, 1.0, strategy=strategy, streaming=streaming(), **TIGHT
        )
    assert found.success_rate == pytest.approx(7 / 9)
    assert found.count == 3 * N * (N - 1) - 2 * sum(N - 1 - i for i in range(32, N))
    truth = np.concatenate([case.contrast, case.offset, problems.TRUTH])
    np.testing.assert_array_less(np.abs(found.popt - truth), 5 * found.perr)
    np.testing.assert_array_less(np.abs(found.popt - without_blocks.x), 1e-3 * found.perr)
    assert any("not finite" in line for line in found.warnings)


@pytest.mark.parametrize("strategy", ["STANDARD", "STREAMING"])
def test_or_fail_the_fit(case, broken, strategy):
    with pytest.raises(jk.xpcs.BadDataError, match="angle 1, rows 32 to 63 hold numbers"):
        jk.xpcs.fit(
            model_of(case),
            broken,
            1.0,
            strategy=strategy,
            streaming=streaming(on_bad_chunk="raise"),
            **TIGHT,
        )


def test_nan_where_nothing_counts_is_no_matter(case):
    data = case.data.copy()
    data[:, np.arange(N), np.arange(N)] = np.nan
    sigma = np.full(data.shape, 0.004)
    sigma[0, 3, 9] = sigma[0, 9, 3] = 0.0
    data[0, 3, 9] = data[0, 9, 3] = np.nan
    for strategy in ("STANDARD", "STREAMING"):
        found = jk.xpcs.fit(
            model_of(case), data, sigma, strategy=strategy, streaming=streaming(), **TIGHT
        )
        assert found.success_rate == 1.0
        assert found.count == 3 * N * (N - 1) - 2


def test_nan_that_does_not_count_stays_in_when_the_model_overflows():
    """A step to where the model is not finite is no reason to leave out data."""
    t = np.arange(N) * 1.0
    geometry = jk.xpcs.Geometry(0.0054, None, 1.0, t, 0.0)

    def phases(p):
        rate = jnp.where(abs(p[0] - 0.02) < 5e-4, jnp.nan, p[0])  # which the first step meets
        return rate * jnp.asarray(t), jnp.zeros((1, N))

    model = jk.xpcs.CustomModel(geometry, phases, ["rate"], shear_power=0)
    noise = np.triu(np.random.default_rng(3).normal(size=(N, N)) * 0.01, 1)
    data = (1 + 0.3 * np.exp(-1.6 * np.abs(np.subtract.outer(t, t))) + noise + noise.T)[None]
    sigma = np.full(data.shape, 0.01)
    sigma[0, 3, 9] = sigma[0, 9, 3] = 0.0
    data[0, 3, 9] = data[0, 9, 3] = np.nan
    found = jk.xpcs.fit(
        model, data, sigma, [0.01], 0.3, 1.0, "fixed",
        strategy="STREAMING", streaming=streaming(), progress=False,
    )  # fmt: skip
    assert not np.isfinite(found.costs).all()
    assert found.success
    assert found.success_rate == 1.0


class Flaky:
    """Reads of rows that touch the bad ones fail, `failures` times (always for None)."""

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


@pytest.mark.parametrize("strategy", ["STREAMING", "CHUNKED", "STANDARD"])
def test_rows_that_cannot_be_read_are_left_out(case, without_blocks, strategy):
    source = Flaky(case.data, 1, (50, 70))
    with pytest.warns(RuntimeWarning, match="2 of 9 row blocks .* cannot be read"):
        found = jk.xpcs.fit(
            model_of(case), source, 1.0, strategy=strategy, streaming=streaming(), **TIGHT
        )
    assert found.success_rate == pytest.approx(7 / 9)
    np.testing.assert_array_less(np.abs(found.popt - without_blocks.x), 1e-3 * found.perr)


def test_a_read_that_fails_once_is_tried_again(case):
    source = Flaky(case.data, 0, (0, 1), failures=1, after=40)
    found = jk.xpcs.fit(
        model_of(case), source, 1.0, strategy="STREAMING", streaming=streaming(), **TIGHT
    )
    good = jk.xpcs.fit(model_of(case), case.data, 1.0, **TIGHT)
    assert found.success_rate == 1.0
    np.testing.assert_array_less(np.abs(found.popt - good.popt), 1e-4 * good.perr)


def test_rows_that_turn_bad_in_the_middle(case, without_blocks, tmp_path):
    """The cost is another one from then on, so the solver starts again from its best point."""
    source = Flaky(case.data, 1, (50, 70), after=150)
    with pytest.warns(RuntimeWarning, match="2 of 9 row blocks"):
        found = jk.xpcs.fit(
            model_of(case),
            source,
            1.0,
            strategy="STREAMING",
            streaming=streaming(enable_checkpoints=True, checkpoint_dir=tmp_path),
            **{**TIGHT, "p0": problems.START},
        )
    assert found.success
    np.testing.assert_array_less(np.abs(found.popt - without_blocks.x), 1e-3 * found.perr)
    assert found.nfev > len(found.costs)


def test_rows_that_turn_bad_after_the_last_step(case, monkeypatch):
    """The sums of the result are then of the other rows, and the result says so."""
    source = Flaky(case.data, 1, (50, 70), after=10**9)
    sums = Evaluation.sums

    def late(self, x):
        source._after, self.best = source.reads, None  # as if the solver had stopped elsewhere
        return sums(self, x)

    monkeypatch.setattr(Evaluation, "sums", late)
    with pytest.warns(RuntimeWarning, match="2 of 9 row blocks"):
        found = jk.xpcs.fit(
            model_of(case), source, 1.0, strategy="STREAMING", streaming=streaming(), **TIGHT
        )
    assert found.count == 3 * N * (N - 1) - 2 * sum(N - 1 - i for i in range(32, N))


def test_all_rows_bad(case):
    with pytest.raises(jk.xpcs.BadDataError, match="no row can be used"):
        jk.xpcs.fit(model_of(case), np.full_like(case.data, np.nan), 1.0, **TIGHT)


def test_optimum_of_the_rest_is_scipys(case, broken, without_blocks):
    with pytest.warns(RuntimeWarning):
        found = jk.xpcs.fit(model_of(case), broken, 1.0, streaming=streaming(), **TIGHT)
    kept = np.triu(np.ones((N, N), bool), 1)
    dense = without_blocks
    rows = np.repeat(np.arange(3), kept.sum())
    inside = ~((rows == 1) & np.tile(np.nonzero(kept)[0] >= 32, 3))
    dense.fun, dense.jac = dense.fun[inside], dense.jac[inside]
    dense.cost = 0.5 * float(dense.fun @ dense.fun)
    assert_same_optimum(found, dense)
