"""Plots of a fit.

Would catch masked frames in a cut or its scale, missing lags, a missing flow angle, wrong error
bands, and a saved g2 that differs from the fitted one.
"""

from __future__ import annotations

import numpy as np
import pytest

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.xpcs.analysis import fit_plots as plot
from jaxkern.xpcs.analysis.fit_plots import AGE_BANDS, chosen_angles, lag_bins, scale, view_angles
from jaxkern.xpcs.files.sources import StackSource

PHI = [-40.0, 5.0, 50.0]
PARAMS = np.array([8000.0, -0.3, 10.0, 2e-4, 0.2, 0.0, 4.0])
BAD = [3, 17, 18]


def model_of(n_t=41, phi=PHI):
    t = 0.1 * np.arange(n_t)
    return xpcs.LaminarFlow(xpcs.Geometry(q=0.0054, gap=2e6, dt=0.1, t=t, phi=phi))


@pytest.fixture(scope="module")
def shown():
    """Views of noisy data with three bad frames of a million, one NaN, and what they show."""
    model = model_of()
    data = xpcs.simulate(model, PARAMS, 0.3, 1.0, noise=0.02, diagonal_artifact=0.7)
    data[:, BAD] = 1e6
    data[:, :, BAD] = 1e6
    data[1, 7, 20] = data[1, 20, 7] = np.nan
    keep = np.ones(41)
    keep[BAD] = 0
    views = view_angles(StackSource(data), model, PARAMS, 0.3, 1.0, 0.02, keep=keep)
    clean = xpcs.simulate(model, PARAMS, 0.3, 1.0)
    return model, data, clean, views


def test_cuts_are_means_over_all_pairs_that_count(shown):
    _, data, clean, views = shown
    bins = lag_bins(41)
    for angle, view in enumerate(views):
        for band, cut in enumerate(view.cuts):
            result = []
            for which in range(bins.max() + 1):
                pairs = [
                    (i, j)
                    for i in range(41)
                    for j in range(i + 1, 41)
                    if bins[j - i] == which
                    and (i + j) * AGE_BANDS * 6 // 81 // 6 == band
                    and not {i, j} & set(BAD)
                    and np.isfinite(data[angle, i, j])
                ]
                if pairs:
                    i, j = np.array(pairs).T
                    result.append(
                        [0.1 * np.mean(j - i), data[angle, i, j].mean(), clean[angle, i, j].mean()]
                    )
            lag, measured, expected = np.array(result).T
            np.testing.assert_allclose(cut.lag, lag, rtol=1e-12)
            np.testing.assert_allclose(cut.data, measured, rtol=1e-12)
            np.testing.assert_allclose(cut.model, expected, rtol=1e-7)


def test_masked_frames_do_not_set_the_scale(shown):
    _, data, clean, views = shown
    low, high = scale(views)
    assert 0.9 < low < 1.1
    assert 1.2 < high < 1.4
    for angle, view in enumerate(views):
        used = np.ones((41, 41), bool)
        used[BAD] = used[:, BAD] = False
        used &= ~np.eye(41, dtype=bool) & np.isfinite(data[angle])
        assert np.array_equal(np.isfinite(view.data), used)
        np.testing.assert_array_equal(view.data[used], data[angle][used])
        upper = used & np.triu(np.ones((41, 41), bool))
        expected = ((data[angle] - clean[angle])[upper] / 0.02) ** 2
        assert view.mean_square == pytest.approx(expected.mean(), rel=1e-5)
        assert view.residual_counts.sum() == upper.sum()


def test_every_lag_has_a_bin():
    bins = lag_bins(1000)
    assert bins[1:8].tolist() == list(range(7))
    assert np.all(np.diff(bins[1:]) >= 0)
    assert np.array_equal(np.unique(bins), np.arange(bins.max() + 1))


def test_long_matrices_are_shown_as_means(monkeypatch):
    monkeypatch.setattr("jaxkern.xpcs.analysis.fit_plots.SHOWN_FRAMES", 12)
    monkeypatch.setattr("jaxkern.xpcs.analysis.fit_plots._SLAB_POINTS", 41 * 9)
    model = model_of()
    data = xpcs.simulate(model, PARAMS, 0.3, 1.0, noise=0.02)
    view = view_angles(StackSource(data), model, PARAMS, 0.3, 1.0, angles=1)[0]
    blank = np.where(np.eye(41, dtype=bool), np.nan, data[1])
    expected = [
        [np.nanmean(blank[a : a + 4, b : b + 4]) for b in range(0, 40, 4)] for a in range(0, 40, 4)
    ]
    assert view.data.shape == (11, 11)
    np.testing.assert_allclose(view.data[:10, :10], expected, rtol=1e-12)
    assert not view.scaled


def test_error_bars_hold_correlated_noise():
    """Noise that is one number for 25 neighbouring frames: a count of pairs would say far less."""
    model = model_of(300, np.linspace(0, 90, 40))
    level = np.repeat(np.random.default_rng(1).normal(0, 0.01, (40, 12)), 25, axis=1)
    data = xpcs.simulate(model, PARAMS, 0.3, 1.0) + (level[:, :, None] + level[:, None]) / 2
    views = view_angles(StackSource(data), model, PARAMS, 0.3, 1.0, angles=40)
    cuts = [cut for view in views for cut in view.cuts]
    spread = np.std([(cut.data - cut.model)[0] for cut in cuts])
    error = np.sqrt(np.mean([cut.error[0] ** 2 for cut in cuts]))
    assert spread == pytest.approx(error, rel=0.3)


@pytest.mark.parametrize("n_phi", [1, 2, 7, 50])
def test_the_angle_along_the_flow_is_shown(n_phi):
    for along in range(n_phi):
        chosen = chosen_angles(n_phi, 6, along)
        assert along in chosen
        assert len(chosen) == min(n_phi, 6)
        assert chosen == sorted(set(chosen))


def test_the_flow_is_along_phi0_modulo_180(shown):
    _, _, _, views = shown
    assert [view.along_flow for view in views] == [False, True, False]
    model = model_of(11, [0.0, 100.0, 183.0])
    data = xpcs.simulate(model, PARAMS, 0.3, 1.0)
    views = view_angles(StackSource(data), model, PARAMS, 0.3, 1.0, angles=1)
    assert [view.phi for view in views] == [183.0]


def test_bands_of_rates_propagate_the_covariance():
    model = model_of()
    rng = np.random.default_rng(3)
    root = rng.normal(size=(9, 9)) * 1e-3 * np.append([0.3, 1.0], np.maximum(PARAMS, 0.1))
    pcov = root.T @ root
    names = ["contrast", "offset", *model.parameter_names]
    bands = plot.rate_bands(model, PARAMS, names, pcov)
    t = np.maximum(model.geometry.t, 0.05)
    for first, (rate, error) in zip((0, 3), bands.values(), strict=True):
        scale_, power, offset = PARAMS[first : first + 3]
        np.testing.assert_allclose(rate[1:], (scale_ * t**power + offset)[1:], rtol=1e-12)
        slope = np.stack([t**power, scale_ * t**power * np.log(t), np.ones_like(t)], -1)
        part = pcov[2 + first : 5 + first, 2 + first : 5 + first]
        expected = np.sqrt(np.sum(slope @ part * slope, -1))
        np.testing.assert_allclose(error[1:], expected[1:], rtol=1e-9)
    pcov[2, 2] = np.inf
    assert np.isnan(plot.rate_bands(model, PARAMS, names, pcov)["D (Angstrom^2/s)"][1]).all()


def test_an_angle_of_nothing_is_drawn_blank(tmp_path):
    model = model_of(12)
    data = xpcs.simulate(model, PARAMS, 0.3, 1.0)
    data[2] = np.nan
    views = view_angles(StackSource(data), model, PARAMS, 0.3, 1.0, 0.02)[1:]
    draw = {"maps": plot.plot_maps, "cuts": plot.plot_cuts, "residuals": plot.plot_residuals}
    figures = [(name, function(views)) for name, function in draw.items()]
    for path in plot.save_figures(tmp_path, figures, "title", 120):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_what_the_fit_left_out_is_not_drawn(tmp_path, monkeypatch, capsys):
    """A frame of NaN at one angle, which the fit leaves out there; and an angle of zeros."""
    t = 0.1 * np.arange(40)
    phi = [0.0, 30.0, 60.0]
    model = xpcs.Static(xpcs.Geometry(q=0.0054, gap=None, dt=0.1, t=t, phi=phi))
    data = xpcs.simulate(model, model.defaults, 0.3, 1.0, noise=0.01)
    data[1, 7] = data[1, :, 7] = np.nan
    data[2] = 0
    xpcs.write_aps(tmp_path / "s.h5", data, q=np.full(3, 0.0054), phi=phi, dt=0.1)
    (tmp_path / "c.yaml").write_text("data_files: {file: s.h5}\nanalysis: {model: static}\n")
    drawn, real = [], plot.plot_maps
    monkeypatch.setattr(plot, "plot_maps", lambda views: drawn.extend(views) or real(views))
    options = ["--config", str(tmp_path / "c.yaml"), "--output-dir", str(tmp_path / "results")]
    assert main(["xpcs", "fit", *options]) == 0  # the report lists each warning once
    assert main(["xpcs", "plot", *options]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("excluded: angle 2") == captured.out.count("frames 7 ") == 1
    assert "frame 0 of the fit is number 1" in captured.err
    assert len(drawn) == 6
    for view in drawn:
        counts = ~np.eye(40, dtype=bool) & (view.phi < 60)
        if view.phi == 30:
            counts[7] = counts[:, 7] = False
        assert np.array_equal(np.isfinite(view.data), counts)
    assert all(view.residual_counts.sum() == 0 for view in drawn if view.phi == 60)
