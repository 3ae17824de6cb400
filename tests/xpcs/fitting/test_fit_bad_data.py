"""Bad rows, frames without numbers and angles without signal are left out and reported, alone.

Results are compared with SciPy's dense fits of the remaining data.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises, warns
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import assert_same_optimum, model_of

import jaxkern as jk
from jaxkern.xpcs.fitting.evaluation import Evaluation

N = 96
TIGHT = {"p0": problems.TRUTH, "ftol": 1e-14, "xtol": 1e-12, "gtol": None}


def streaming(**options):
    return jk.xpcs.StreamingOptions(**{"chunk_points": 64 * N, "retries": 1, **options})


def fit(case, data, sigma, **options):
    """Fit with tight tolerances; `options` are those of `streaming`."""
    return checks.fit(model_of(case), data, sigma, streaming=streaming(**options), **TIGHT)


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
    dense = problems.dense_fit(case, sigma=sigma, points=points)
    used = sigma[:, points].ravel() == 1
    dense.fun, dense.jac = dense.fun[used], dense.jac[used]
    dense.cost = 0.5 * float(dense.fun @ dense.fun)
    return dense


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_rows_with_nan_are_left_out(case, broken, without_blocks, strategy):
    with warns(RuntimeWarning, "2 of 9 row blocks", "angle 1, rows 32 to"):
        result = fit(case, broken, 1.0, strategy=strategy)
    assert result.success_rate == pytest.approx(7 / 9)
    assert result.count == 3 * N * (N - 1) - 2 * sum(N - 1 - i for i in range(32, N))
    np.testing.assert_array_less(np.abs(result.popt - case.truth), 5 * result.perr)
    assert_same_optimum(result, without_blocks)
    assert any("not finite" in line for line in result.warnings)


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_bad_rows_can_fail_the_fit(case, broken, strategy):
    with raises(jk.xpcs.BadDataError, "angle 1, rows 32 to 63"):
        fit(case, broken, 1.0, strategy=strategy, on_bad_chunk="raise")


def test_nan_in_points_without_weight_is_ignored(case):
    data = case.data.copy()
    data[:, np.arange(N), np.arange(N)] = np.nan
    sigma = np.full(data.shape, 0.004)
    sigma[0, 3, 9] = sigma[0, 9, 3] = 0.0
    data[0, 3, 9] = data[0, 9, 3] = np.nan
    for strategy in ("memory", "stream"):
        result = fit(case, data, sigma, strategy=strategy)
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
    how = {"strategy": "stream", "streaming": streaming()}
    result = checks.fit(model, data, sigma, [0.01], 0.3, 1.0, "fixed", **how)
    assert not np.isfinite(result.costs).all()
    assert result.success
    assert result.success_rate == 1.0


def flaky(data, angle, rows, failures=np.inf, after=0):
    """Return a source in which reads of some rows fail `failures` times, `after` some reads."""
    remaining = [failures]

    def on_read(read_angle, first_row, stop_row):
        touched = first_row < rows[1] and stop_row > rows[0]
        if read_angle == angle and touched and source.reads > after and remaining[0] > 0:
            remaining[0] -= 1
            raise OSError("input/output error")

    source = checks.WatchedSource(data, on_read)
    return source


@pytest.mark.parametrize("strategy", ["stream", "memory"])
def test_unreadable_rows_are_left_out(case, without_blocks, strategy):
    source = flaky(case.data, 1, (50, 70))
    with warns(RuntimeWarning, "2 of 9 row blocks", "cannot be read"):
        result = fit(case, source, 1.0, strategy=strategy)
    assert result.success_rate == pytest.approx(7 / 9)
    np.testing.assert_array_less(np.abs(result.popt - without_blocks.x), 1e-3 * result.perr)


def test_a_failed_read_is_retried(case):
    source = flaky(case.data, 0, (0, 1), failures=1, after=40)
    result = fit(case, source, 1.0, strategy="stream")
    good = checks.fit(model_of(case), case.data, 1.0, **TIGHT)
    assert result.success_rate == 1.0
    np.testing.assert_array_less(np.abs(result.popt - good.popt), 1e-4 * good.perr)


def test_rows_that_turn_bad_during_the_fit(case, without_blocks, tmp_path):
    """The cost is another function then, so the solver restarts from its best point."""
    source = flaky(case.data, 1, (50, 70), after=150)
    with warns(RuntimeWarning, "2 of 9 row blocks"):
        how = {**TIGHT, "p0": problems.START, "strategy": "stream"}
        how["streaming"] = streaming(enable_checkpoints=True, checkpoint_dir=tmp_path)
        result = checks.fit(model_of(case), source, 1.0, **how)
    assert result.success
    np.testing.assert_array_less(np.abs(result.popt - without_blocks.x), 1e-3 * result.perr)
    assert result.nfev > len(result.costs)


def test_rows_that_turn_bad_in_the_pass_at_the_solution(case, monkeypatch):
    """A fit that resumes after its last step makes this pass; its sums exclude the bad rows."""
    bad, sums = [], Evaluation.sums

    def on_read(angle, first_row, stop_row):
        if bad and angle == 1 and first_row < 70 and stop_row > 50:
            raise OSError("input/output error")

    def late(self, solution):
        bad.append(True)
        return sums(self, dataclasses.replace(solution, point=None))

    monkeypatch.setattr(Evaluation, "sums", late)
    source = checks.WatchedSource(case.data, on_read)
    with warns(RuntimeWarning, "2 of 9 row blocks"):
        result = fit(case, source, 1.0, strategy="stream")
    assert result.count == 3 * N * (N - 1) - 2 * sum(N - 1 - i for i in range(32, N))


@pytest.mark.parametrize(
    ("value", "reason"), [(np.nan, "every row is excluded"), (0.0, "angle 0 has the value 0")]
)
def test_no_good_rows(case, value, reason):
    with raises(jk.xpcs.BadDataError, reason):
        checks.fit(model_of(case), np.full_like(case.data, value), **TIGHT)


USED = ~np.isin(np.arange(N), [40, 41, 90])


@pytest.fixture(scope="module")
def without_frames(case):
    """SciPy's fits without the frames, by the angles where they are left out."""
    fits = {}
    for angles in (slice(None), slice(1, 2)):
        sigma = np.ones_like(case.data)
        sigma[angles] = np.where(np.outer(USED, USED), 1.0, np.inf)
        fits[angles.start] = problems.dense_fit(case, sigma=sigma)
    return fits


def with_frames(case, angles, value=np.nan):
    data = case.data.copy()
    for frame in (40, 41, 90):
        data[angles, frame] = data[angles, :, frame] = value
    return data


@pytest.mark.parametrize(
    ("strategy", "angles", "symmetric"),
    [
        ("memory", slice(None), "auto"),
        ("stream", slice(None), False),
        ("memory", slice(1, 2), False),
        ("stream", slice(1, 2), "auto"),
    ],
)
def test_frames_of_nan_are_masked_and_reported(case, without_frames, strategy, angles, symmetric):
    with warns(RuntimeWarning, "frames 40, 41, 90", "no finite number"):
        result = fit(
            case, with_frames(case, angles), 1.0, strategy=strategy, retries=0, symmetric=symmetric
        )
    assert result.success_rate == 1.0
    everywhere = angles == slice(None)
    assert result.count == 3 * 93 * 92 if everywhere else 93 * 92 + 2 * 96 * 95
    expected = USED if everywhere else np.where(np.arange(3)[:, None] == 1, USED, True)
    np.testing.assert_array_equal(result.keep, expected)
    best = without_frames[angles.start].x
    np.testing.assert_array_less(np.abs(result.popt - best), 1e-3 * result.perr)
    assert any("frames 40, 41, 90" in line for line in result.warnings)


def test_frames_of_inf_and_an_angle_of_nan(case):
    data = with_frames(case, slice(None), np.inf)
    data[2] = np.nan
    with pytest.warns(RuntimeWarning) as warned:
        result = checks.fit(model_of(case), data, **TIGHT)
    assert any("frames 40, 41, 90" in str(w.message) for w in warned)
    assert any("row blocks" in str(w.message) for w in warned)
    assert result.count == 2 * 93 * 92
    assert result.success


def test_empty_frames_can_fail_the_fit(case):
    with raises(jk.xpcs.BadDataError, "frames 40, 41, 90"):
        fit(case, with_frames(case, 0), None, retries=0, on_bad_chunk="raise")


def test_a_column_of_nan_with_a_finite_row_is_no_empty_frame(case):
    """With symmetric=True only the upper triangle is used."""
    data = case.data.copy()
    data[:, 1:, 0] = np.nan
    result = checks.fit(model_of(case), data, 1.0, symmetric=True, **TIGHT)
    assert result.count == 3 * N * (N - 1)


@pytest.mark.parametrize("strategy", ["memory", "stream"])
@pytest.mark.parametrize("scaling", ["individual", "constant"])
def test_an_angle_of_zeros_is_left_out_and_reported(strategy, scaling):
    case = problems.simulate(N, seed=52, same_scales=True)
    data = case.data.copy()
    data[2] = 0
    with warns(RuntimeWarning, "3 of 9 row blocks", "angle 2 has the value 0") as warned:
        options = checks.options(strategy=strategy, streaming=streaming(retries=0), **TIGHT)
        result = jk.xpcs.fit(model_of(case), data, scaling=scaling, **options)
    assert [warning.filename for warning in warned] == [__file__]
    assert result.success
    assert result.success_rate == pytest.approx(2 / 3)
    assert not any("trade off" in line or "depend on" in line for line in result.warnings)
    assert result.count == 2 * N * (N - 1)
    np.testing.assert_array_less(np.abs(result.physics - problems.TRUTH), 5 * result.perr[-7:])
    nan = case.data.copy()
    nan[2] = np.nan
    with warns(RuntimeWarning, "3 of 9 row blocks"):
        alike = checks.fit(model_of(case), nan, scaling=scaling, **TIGHT)
    np.testing.assert_allclose(result.physics, alike.physics, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_a_value_whose_square_overflows(case, strategy):
    """Its rows are left out and reported, instead of an infinite cost."""
    data = case.data.copy()
    data[1, 40, 60] = data[1, 60, 40] = 1e200
    with warns(RuntimeWarning, "row blocks", "angle 1, rows 32 to 63", "1e100"):
        result = fit(case, data, None, strategy=strategy, retries=0)
    assert result.success
    assert result.success_rate < 1
