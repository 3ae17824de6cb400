"""The posterior of a fit: its width and correlations, parameters at bounds, files and the command.

Would catch: samples that are not transformed back, a prior that is not uniform within the bounds,
a likelihood without the fit's noise or inflation, a held parameter that moves.
"""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import library

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.xpcs.fitting.posterior import _Space

TRUTH = [2e4, 0.3, 50.0]
QUIET = {"progress": False}


def problem(contrast=0.2, frames=50, sigma=0.004):
    model = xpcs.Static(xpcs.Geometry(0.0054, None, 0.1, 0.1 * np.arange(frames), 0.0))
    noise = np.triu(np.random.default_rng(0).normal(0, sigma, (frames, frames)), 1)
    return model, np.asarray(xpcs.g2(model, TRUTH, contrast, 1.0)) + noise + noise.T


def test_it_has_the_covariance_of_the_fit():
    model, data = problem()
    errors = xpcs.ErrorOptions("independent", absolute_sigma=True)
    fit = xpcs.fit(model, data, 0.004, hold=["D_offset"], errors=errors, **QUIET)
    sampled = xpcs.posterior(model, data, fit, chains=2, warmup=150, draws=400, **QUIET)
    assert sampled.names == ("contrast[0]", "offset[0]", "D0", "alpha")
    assert sampled.rhat.max() < 1.03
    assert not sampled.diverging.any()
    assert sampled.ess.min() > 200
    for row in sampled.table:
        # 200 independent samples determine a deviation to 5%.
        assert row["sd"] == pytest.approx(row["fit error"], rel=0.2), row
        assert abs(row["mean"] - row["fit"]) < 0.35 * row["fit error"], row
        inside = np.array([row["68% low"], row["68% high"]]) - row["mean"]
        np.testing.assert_allclose(inside / row["sd"], [-1, 1], atol=0.2)
    kept = [fit.names.index(name) for name in sampled.names]
    expected = fit.pcov[np.ix_(kept, kept)] / np.outer(fit.perr[kept], fit.perr[kept])
    flat = sampled.samples.reshape(-1, 4)
    np.testing.assert_allclose(np.corrcoef(flat.T), expected, atol=0.2)


def test_the_volume_of_the_coordinates():
    """Of power laws, whose parameters have other coordinates, near bounds and far from them."""
    t = 0.1 * np.arange(40)
    model = xpcs.LaminarFlow(xpcs.Geometry(0.0054, 2e6, 0.1, t, [0.0, 30.0, 70.0]))
    truth = [2e4, 0.3, 50.0, 5e-3, 0.2, 1e-4, 5.0]
    data = xpcs.simulate(model, truth, 0.2, 1.0, noise=0.002)
    fit = xpcs.fit(model, data, 0.002, truth, search="local", hold=["phi0"], **QUIET)
    free = np.array([name != "phi0" for name in fit.names])
    low, high = fit.popt - 3 * fit.perr, fit.popt + 40 * fit.perr
    with jax.enable_x64(True):
        space = _Space(model, fit, free, low, high)
        density = []
        for z in 1.5 * np.random.default_rng(0).normal(size=(6, free.sum())):
            x, volume = space(jnp.asarray(z))
            assert ((low < x) & (x < high))[free].all()
            change = jax.jacfwd(lambda z: space(z)[0])(jnp.asarray(z))[free]
            density.append(float(volume - jnp.linalg.slogdet(change)[1]))
    np.testing.assert_allclose(density, density[0], atol=1e-6)


def test_the_scale_of_sigma_cancels():
    """Coordinates were wider by the factor of a sigma that is too small."""
    model, data = problem(frames=30)
    factors = []
    for sigma in (0.004, 0.0004):
        fit = xpcs.fit(model, data, sigma, search="local", hold=["D_offset"], **QUIET)
        free = np.array([name not in fit.held for name in fit.names])
        limits = np.full(len(free), np.inf)
        with jax.enable_x64(True):
            factors.append(_Space(model, fit, free, -limits, limits)._factor)
    np.testing.assert_allclose(factors[1], factors[0], rtol=1e-3, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("low", [0.1, -np.inf])
def test_a_parameter_at_its_bound_and_an_inflation(low):
    """A uniform prior that ends near the maximum: the truncated normal distribution."""
    from scipy.stats import truncnorm

    model, data = problem(frames=30)
    bounds = {"alpha": (low, 0.3)}
    options = {"hold": ["D0", "D_offset"], "scaling": "fixed", "contrast0": 0.2, "offset0": 1.0}
    start = dict(zip(model.parameter_names, TRUTH, strict=True))
    free = xpcs.fit(model, data, 0.004, start, **options, **QUIET)
    fit = xpcs.fit(model, data, 0.004, start, **options, bounds=bounds, **QUIET)
    sampled = xpcs.posterior(model, data, fit, bounds=bounds, chains=2, draws=600, **QUIET)
    assert sampled.names == ("alpha",)
    draws = sampled.samples.ravel()
    assert low <= draws.min() < draws.max() <= 0.3
    width = np.sqrt(free.pcov_independent[-2, -2] * fit.inflation)
    center = free.as_dict["alpha"]
    expected = truncnorm((low - center) / width, (0.3 - center) / width, center, width)
    np.testing.assert_allclose(
        np.quantile(draws, [0.1, 0.5, 0.9]), expected.ppf([0.1, 0.5, 0.9]), atol=0.25 * width
    )


def test_errors():
    model, data = problem(frames=20)
    fit = xpcs.fit(model, data, 0.004, hold=["D_offset"], **QUIET)
    with pytest.raises(ValueError, match="draws is 1; expected"):
        xpcs.posterior(model, data, fit, draws=1)
    by_point = xpcs.fit(model, data, np.full((1, 20, 20), 0.004), hold=["D_offset"], **QUIET)
    with pytest.raises(ValueError, match="sigma: expected the noise of each point"):
        xpcs.posterior(model, data, by_point)
    fit = xpcs.fit(model, data, 0.004, hold=["D_offset"], **QUIET)
    with pytest.raises(ValueError, match="bounds of D0: expected bounds that include the fit"):
        xpcs.posterior(model, data, fit, bounds={"D0": (1.0, 2.0)})
    flow = xpcs.LaminarFlow(replace(model.geometry, gap=2e6))
    with pytest.raises(ValueError, match=r"a fit of the model with .*phi0, got one with"):
        xpcs.posterior(flow, data, fit)
    broken = data.copy()
    broken[0, 3, 7] = np.nan
    with pytest.raises(ValueError, match="got others at angle 0 in the frames 3"):
        xpcs.posterior(model, broken, fit)
    robust = xpcs.SolverOptions(loss="soft_l1")
    fit = xpcs.fit(model, data, 0.004, hold=["D_offset"], solver=robust, **QUIET)
    with pytest.raises(ValueError, match="loss 'linear'"):
        xpcs.posterior(model, data, fit)
    flat = xpcs.fit(model, np.ones((1, 20, 20)), 0.004, search="local", **QUIET)
    with pytest.raises(ValueError, match=r"do not determine .*hold"):
        xpcs.posterior(model, np.ones((1, 20, 20)), flat)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    settings = """\
data_files: {file: run.h5}
analysis: {model: static}
simulation: {frames: 60, phi: [0.0, 60.0], noise: 0.01, parameters: {D0: 2.0e+4, alpha: 0.3}}
initial_parameters: {hold: [D_offset]}
"""
    (tmp_path / "config.yaml").write_text(settings)
    where = ["--config", str(tmp_path / "config.yaml"), "--output-dir", str(tmp_path / "out")]
    assert main(["xpcs", "simulate", *where, "--quiet"]) == 0
    capsys.readouterr()
    few = ["--chains", "2", "--warmup", "100", "--draws", "100"]
    assert main(["xpcs", "posterior", *where, *few, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    names = [row["parameter"] for row in record["table"]]
    assert names == ["contrast[0]", "contrast[1]", "offset[0]", "offset[1]", "D0", "alpha"]
    saved = np.load(tmp_path / "out/posterior.npz")
    assert saved["samples"].shape == (2, 100, 6)
    assert record["table"][4]["mean"] == pytest.approx(saved["samples"][:, :, 4].mean())
    assert (tmp_path / "out/posterior.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "out/posterior.csv").read_text().splitlines()) == 7
    h5py, path = library("h5py"), tmp_path / "out/posterior.nc"
    if path.exists():  # arviz-base needs Python 3.12
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["posterior/D0"], saved["samples"][:, :, 4])
            assert file["sample_stats/diverging"].shape == (2, 100)
