"""Selection of q, phi and frames, and the correction of the diagonal, against direct loops.

Would catch: ranges that fail at 0 or 360 degrees, a diagonal that is correct for a full matrix and
wrong at the edge of a slab, and a mix of frame numbers that begin at 0 and at 1.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import raises

from jaxkern.xpcs.files import prepare
from jaxkern.xpcs.files.sources import StackSource


def _on_circle(phi: int, low: int, high: int) -> bool:
    """Return whether phi is in [low, high], by steps of one degree from low to high."""
    if high - low >= 360:
        return True
    at = low
    while True:
        if (at - phi) % 360 == 0:
            return True
        if (at - high) % 360 == 0:
            return False
        at += 1


@given(st.lists(st.integers(-720, 720), max_size=8), st.integers(-400, 400), st.integers(-400, 400))
@settings(max_examples=60, deadline=None)
def test_ranges_of_phi_walk_the_circle(phi, low, high):
    expected = [_on_circle(p, low, high) for p in phi]
    assert prepare.select_phi(phi, [(low, high)]).tolist() == expected


def test_ranges_join_and_round(tmp_path):
    phi = [-170.0, -10 - 1e-12, 0.0, 10 + 1e-12, 11.0, 180.0]
    chosen = prepare.select_phi(phi, [(-10, 10), (170, -170)])
    assert chosen.tolist() == [True, True, True, True, False, True]
    with raises(ValueError, "ranges", "[1.0]"):
        prepare.select_phi(phi, [[1]])
    with raises(ValueError, "ranges", "none"):
        prepare.select_phi(phi, [])


def test_q_by_value():
    q, phi = np.array([0.0050, 0.0054, 0.0054, 0.0060]), [0.0, 0.0, 90.0, 90.0]
    assert prepare.select_q(q, 0.00545, phi=phi).tolist() == [False, True, True, False]
    # All but the first are within 10% of 0.0058; the nearer of two at one angle is selected.
    assert prepare.select_q(q, 0.0058, phi=phi).tolist() == [False, True, False, True]
    with raises(ValueError, "0.01", "0.0057", "0.005, 0.0054, 0.006"):
        prepare.select_q(q, 0.0057, tolerance=0.01, phi=phi)
    with raises(ValueError, "q:", "0.0057", "none"):
        prepare.select_q([], 0.0057, phi=[])
    with raises(ValueError, "q, phi", "(4,)", "(1,)"):
        prepare.select_q(q, 0.0057, phi=[0.0])


@given(st.integers(1, 24), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_ring_whose_q_varies_keeps_every_angle(angles, seed):
    """Three rings, 8% apart, whose q varies by 3%, with slightly different angles."""
    draw = np.random.default_rng(seed)
    direction = np.arange(angles) * 360 / angles - 180
    rings = 0.0054 * np.array([0.92, 1.0, 1.08])[:, None]
    q = rings * (1 + 0.03 * np.cos(np.radians(2 * direction)))
    phi = direction + draw.uniform(-0.2, 0.2, q.shape) + 360 * draw.integers(-1, 2, q.shape)
    order = draw.permutation(q.size)
    chosen = np.zeros(q.size, bool)
    chosen[order] = prepare.select_q(q.ravel()[order], 0.0054, phi=phi.ravel()[order])
    # Each angle by itself: the nearest of its three.
    nearest = np.abs(q - 0.0054).argmin(axis=0)
    expected = np.arange(3)[:, None] == nearest
    np.testing.assert_array_equal(chosen.reshape(q.shape), expected)


def test_a_fine_grid_of_angles_is_kept():
    """Neighbours among 720 angles of equal q are not two rings at one angle."""
    phi = np.tile(np.arange(720) * 0.5, 2)
    q = np.repeat([0.0050, 0.0054], 720)
    assert prepare.select_q(q, 0.0054, phi=phi).tolist() == [False] * 720 + [True] * 720


def _corrected(c2: np.ndarray, method: str = "basic") -> np.ndarray:
    """Apply the formulas of `correct_diagonal` entry by entry."""
    n = c2.shape[-1]
    out = c2.copy()
    for matrix, shown in zip(c2.reshape(-1, n, n), out.reshape(-1, n, n), strict=True):
        side = [(matrix[i, i + 1] + matrix[i + 1, i]) / 2 for i in range(n - 1)]
        for i in range(n):
            near = [k for k in range(max(i - 3, 0), min(i + 4, n)) if k != i]
            if method == "basic":
                shown[i, i] = np.mean([side[k] for k in (i - 1, i) if 0 <= k < n - 1])
            elif method == "statistical":
                shown[i, i] = np.median([matrix[i, k] for k in near] + [matrix[k, i] for k in near])
            elif i == 0:
                shown[i, i] = matrix[0, 1]
            else:
                shown[i, i] = np.mean([matrix[k, i] for k in (i - 1, i + 1) if k < n])
    return out


@pytest.mark.parametrize("n", [2, 3, 9])
def test_diagonal(n):
    c2 = np.random.default_rng(n).random((2, n, n))
    before = c2.copy()
    for method in ("basic", "statistical", "interpolation"):
        shown = prepare.correct_diagonal(c2, method)
        np.testing.assert_allclose(shown, _corrected(c2, method), rtol=1e-15)
    with raises(ValueError, "method", "statistical", "cubic"):
        prepare.correct_diagonal(c2, "cubic")
    np.testing.assert_array_equal(c2, before)
    with raises(ValueError, "c2", "[3, 4]"):
        prepare.correct_diagonal(np.ones((3, 4)))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_slabs_of_a_prepared_source(data):
    n = data.draw(st.integers(3, 12))
    c2 = np.random.default_rng(n).random((3, n, n))
    first = data.draw(st.integers(0, n - 2))
    stop = data.draw(st.integers(first + 2, n))
    method = data.draw(st.sampled_from(["basic", "statistical", "interpolation"]))
    shown = prepare.Prepared(StackSource(c2), angles=[2, 0], frames=(first, stop), diagonal=method)
    expected = _corrected(c2[[2, 0], first:stop, first:stop], method)
    a = data.draw(st.integers(0, stop - first))
    b = data.draw(st.integers(a, stop - first))
    np.testing.assert_allclose(shown.read(1, a, b), expected[1, a:b], rtol=1e-15)
    np.testing.assert_allclose(shown.load(), expected, rtol=1e-15)


def test_prepared_with_a_mask_of_angles_and_no_correction():
    c2 = np.random.default_rng(0).random((3, 5, 5))
    shown = prepare.Prepared(StackSource(c2), angles=np.array([False, True, True]), diagonal=False)
    np.testing.assert_array_equal(shown.load(), c2[1:])
    assert shown.shape == (2, 5, 5)
    for angles, facts in [
        ([], ["at least one"]),
        ([3], ["0 to 2", "[3]"]),
        (np.array([True]), ["[3]", "[1]"]),
    ]:
        with raises(ValueError, "angles", *facts):
            prepare.Prepared(StackSource(c2), angles=angles)
    with raises(ValueError, "frames", "0 to 5", "2 to 9"):
        prepare.Prepared(StackSource(c2), frames=(2, 9))


def test_prepared_has_the_quantization_of_its_source():
    for quantization in (None, (0.5, 1.0)):
        source = StackSource(np.zeros((1, 4, 4), np.uint16), quantization)
        assert prepare.Prepared(source).quantization == quantization


def test_frame_numbers_begin_at_one():
    assert prepare.frame_window(50) == (0, 50)
    assert prepare.frame_window(50, 1, -1) == (0, 50)
    assert prepare.frame_window(50, 3, 40) == (2, 40)
    with pytest.warns(RuntimeWarning, match="end: the data have 50 frames, so frame 50 replaces"):
        assert prepare.frame_window(50, 3, 51) == (2, 50)
    for start, end in [(0, None), (49, None), (10, 9)]:
        with raises(ValueError, "start, end", "1 to 50", f"got {start} to {end or 50}"):
            prepare.frame_window(50, start, end)
    assert prepare.frames_to_keep(5, [2, [4, 5]]).tolist() == [1, 0, 1, 0, 0]
    for bad in (0, 6, [3, 2], [1, 2, 3]):
        with raises(ValueError, "bad", f"got {bad}"):
            prepare.frames_to_keep(5, [bad])
