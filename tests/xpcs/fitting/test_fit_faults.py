"""Frames without numbers and angles without signal: left out by name, and no more than these.

Would catch an angle of zeros whose noise is nothing and whose weight is everything, and one NaN
frame that costs its neighbours, or the whole fit. Compared with SciPy's dense fits of the rest.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk

N = 96
TIGHT = {"p0": problems.TRUTH, "ftol": 1e-14, "xtol": 1e-12, "gtol": None, "progress": False}


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
    found = {}
    for angles in (slice(None), slice(1, 2)):
        sigma = np.ones_like(case.data)
        sigma[angles] = np.where(np.outer(USED, USED), 1.0, np.inf)
        found[angles.start] = problems.dense_fit(case, start, sigma=sigma)
    return found


def with_frames(case, angles, value=np.nan):
    data = case.data.copy()
    for frame in (40, 41, 90):
        data[angles, frame] = data[angles, :, frame] = value
    return data


@pytest.mark.parametrize(
    ("strategy", "angles", "symmetric"),
    [
        ("STANDARD", slice(None), "auto"),
        ("STREAMING", slice(None), False),
        ("STANDARD", slice(1, 2), False),
        ("STREAMING", slice(1, 2), "auto"),
    ],
)
def test_frames_of_nan_are_masked_and_named(case, without_frames, strategy, angles, symmetric):
    with pytest.warns(RuntimeWarning, match=r"frames 40, 41, 90 .* hold no finite number"):
        found = jk.xpcs.fit(
            model_of(case), with_frames(case, angles), 1.0, strategy=strategy,
            streaming=streaming(), symmetric=symmetric, **TIGHT,
        )  # fmt: skip
    assert found.success_rate == 1.0
    everywhere = angles == slice(None)
    assert found.count == 3 * 93 * 92 if everywhere else 93 * 92 + 2 * 96 * 95
    expected = USED if everywhere else np.where(np.arange(3)[:, None] == 1, USED, True)
    np.testing.assert_array_equal(found.keep, expected)
    best = without_frames[angles.start].x
    np.testing.assert_array_less(np.abs(found.popt - best), 1e-3 * found.perr)
    assert any("frames 40, 41, 90" in line for line in found.warnings)


def test_frames_of_inf_beside_an_angle_of_nan(case):
    data = with_frames(case, slice(None), np.inf)
    data[2] = np.nan
    with pytest.warns(RuntimeWarning) as told:
        found = jk.xpcs.fit(model_of(case), data, **TIGHT)
    assert any("frames 40, 41, 90" in str(w.message) for w in told)
    assert any("row blocks are left out" in str(w.message) for w in told)
    assert found.count == 2 * 93 * 92
    assert found.success


def test_or_fail_the_fit(case):
    with pytest.raises(jk.xpcs.BadDataError, match=r"frames 40, 41, 90 .*on_bad_chunk='exclude'"):
        jk.xpcs.fit(
            model_of(case), with_frames(case, 0), streaming=streaming(on_bad_chunk="raise"), **TIGHT
        )


def test_a_column_of_nan_whose_row_holds_numbers_is_no_empty_frame(case):
    """Where the caller says that data are mirrored, only the upper triangle is looked at."""
    data = case.data.copy()
    data[:, 1:, 0] = np.nan
    found = jk.xpcs.fit(model_of(case), data, 1.0, symmetric=True, **TIGHT)
    assert found.count == 3 * N * (N - 1)


@pytest.mark.parametrize("strategy", ["STANDARD", "STREAMING"])
@pytest.mark.parametrize("scaling", ["individual", "constant"])
def test_an_angle_of_zeros_is_left_out_and_named(strategy, scaling):
    case = problems.simulate(N, seed=52, same_scales=True)
    data = case.data.copy()
    data[2] = 0
    with pytest.warns(RuntimeWarning, match="3 of 9 row blocks .* angle 2 has the value 0") as told:
        found = jk.xpcs.fit(
            model_of(case), data, scaling=scaling, strategy=strategy, streaming=streaming(), **TIGHT
        )
    assert [warning.filename for warning in told] == [__file__]
    assert found.success
    assert found.success_rate == pytest.approx(2 / 3)
    assert not any("trade off" in line or "depend on" in line for line in found.warnings)
    assert found.count == 2 * N * (N - 1)
    np.testing.assert_array_less(np.abs(found.physics - problems.TRUTH), 5 * found.perr[-7:])
    nan = case.data.copy()
    nan[2] = np.nan
    with pytest.warns(RuntimeWarning, match="3 of 9 row blocks"):
        alike = jk.xpcs.fit(model_of(case), nan, scaling=scaling, **TIGHT)
    np.testing.assert_allclose(found.physics, alike.physics, rtol=1e-6)


@pytest.mark.parametrize("strategy", ["STANDARD", "STREAMING"])
def test_a_value_whose_square_overflows(case, strategy):
    """Its rows are left out by name: the model is not to blame for a cost that is infinite."""
    data = case.data.copy()
    data[1, 40, 60] = data[1, 60, 40] = 1e200
    with pytest.warns(RuntimeWarning, match=r"row blocks .*angle 1, rows 32 to 63 .*beyond 1e100"):
        found = jk.xpcs.fit(model_of(case), data, strategy=strategy, streaming=streaming(), **TIGHT)
    assert found.success
    assert found.success_rate < 1


def test_nothing_but_zeros(case):
    with pytest.raises(jk.xpcs.BadDataError, match="angle 0 has the value 0"):
        jk.xpcs.fit(model_of(case), np.zeros_like(case.data), **TIGHT)
