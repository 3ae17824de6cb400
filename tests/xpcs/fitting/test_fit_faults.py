"""Frames without numbers and angles without signal are left out and reported, and nothing else.

An angle of zeros has no noise and would have infinite weight; a NaN frame must not exclude its
neighbours. The results are compared with SciPy's dense fits of the remaining data.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk

N = 96
TIGHT = {"p0": problems.TRUTH, "ftol": 1e-14, "xtol": 1e-12, "gtol": None}


def streaming(**options):
    return jk.xpcs.StreamingOptions(chunk_points=64 * N, retries=0, **options)


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=51)


USED = ~np.isin(np.arange(N), [40, 41, 90])


@pytest.fixture(scope="module")
def without_frames(case):
    """SciPy's fits without the frames, by the angles where they are left out."""
    start = np.concatenate([case.contrast, case.offset, problems.TRUTH])
    fits = {}
    for angles in (slice(None), slice(1, 2)):
        sigma = np.ones_like(case.data)
        sigma[angles] = np.where(np.outer(USED, USED), 1.0, np.inf)
        fits[angles.start] = problems.dense_fit(case, start, sigma=sigma)
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
    with pytest.warns(RuntimeWarning, match=r"frames 40, 41, 90 .* no finite number"):
        result = checks.fit(
            model_of(case), with_frames(case, angles), 1.0, strategy=strategy,
            streaming=streaming(), symmetric=symmetric, **TIGHT,
        )  # fmt: skip
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
    with pytest.raises(jk.xpcs.BadDataError, match="frames 40, 41, 90"):
        checks.fit(
            model_of(case), with_frames(case, 0), streaming=streaming(on_bad_chunk="raise"), **TIGHT
        )


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
    with pytest.warns(
        RuntimeWarning, match=r"3 of 9 row blocks .* angle 2 has the value 0"
    ) as warned:
        result = jk.xpcs.fit(
            model_of(case),
            data,
            scaling=scaling,
            **checks.options(strategy=strategy, streaming=streaming(), **TIGHT),
        )
    assert [warning.filename for warning in warned] == [__file__]
    assert result.success
    assert result.success_rate == pytest.approx(2 / 3)
    assert not any("trade off" in line or "depend on" in line for line in result.warnings)
    assert result.count == 2 * N * (N - 1)
    np.testing.assert_array_less(np.abs(result.physics - problems.TRUTH), 5 * result.perr[-7:])
    nan = case.data.copy()
    nan[2] = np.nan
    with pytest.warns(RuntimeWarning, match="3 of 9 row blocks"):
        alike = checks.fit(model_of(case), nan, scaling=scaling, **TIGHT)
    np.testing.assert_allclose(result.physics, alike.physics, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_a_value_whose_square_overflows(case, strategy):
    """Its rows are left out and reported, instead of an infinite cost."""
    data = case.data.copy()
    data[1, 40, 60] = data[1, 60, 40] = 1e200
    with pytest.warns(RuntimeWarning, match=r"row blocks .*angle 1, rows 32 to 63 .*1e100"):
        result = checks.fit(model_of(case), data, strategy=strategy, streaming=streaming(), **TIGHT)
    assert result.success
    assert result.success_rate < 1


def test_all_zeros(case):
    with pytest.raises(jk.xpcs.BadDataError, match="angle 0 has the value 0"):
        checks.fit(model_of(case), np.zeros_like(case.data), **TIGHT)
