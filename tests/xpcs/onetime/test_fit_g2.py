"""`fit_g2` against SciPy's least squares, known truths, and the coverage of its errors.

Would catch: another minimum or other errors than SciPy's, an invalid delay that counts, bins that
are mixed up by chunks, a joint fit that is not the joint minimum, errors of correlated noise that
are those of independent noise, input that is accepted silently.
"""

from __future__ import annotations

import sys

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit, least_squares
from support.errors import raises, warns

from jaxkern import xpcs

TAU = np.geomspace(1e-3, 1.0, 30)
Q = np.linspace(0.01, 0.03, 6)
CONTRAST, BASELINE = 0.2, 1.01


def sinc(x):
    return np.sinc(x / np.pi)


# The formulas of the docstring in NumPy: g1, and the truth.
FIELDS = {
    "exponential": (lambda t, rate: np.exp(-rate * t), {"rate": 10.0}),
    "stretched": (
        lambda t, rate, stretch: np.exp(-((rate * t) ** stretch)),
        {"rate": 10.0, "stretch": 0.8},
    ),
    "double": (
        lambda t, rate, slow_rate, fraction: (
            fraction * np.exp(-rate * t) + (1 - fraction) * np.exp(-slow_rate * t)
        ),
        {"rate": 150.0, "slow_rate": 5.0, "fraction": 0.4},
    ),
    "shear-gaussian": (
        lambda t, rate, shear: np.exp(-rate * t - (shear * t) ** 2 / 2),
        {"rate": 4.0, "shear": 12.0},
    ),
    "shear-sinc": (
        lambda t, rate, shear: np.exp(-rate * t) * sinc(shear * t) ** 2,
        {"rate": 4.0, "shear": 12.0},
    ),
}


def formula(model):
    field, truth = FIELDS[model]
    names = [*truth, "contrast", "baseline"]
    return lambda t, *p: p[-1] + p[-2] * field(t, *p[:-2]) ** 2, names, [*truth.values()]


def measured(model, seed=0, sigma=0.001):
    """Return the truth [bins, p] of 6 bins, and noisy g2 and its errors."""
    rng = np.random.default_rng(seed)
    function, _, truth = formula(model)
    rows = np.tile([*truth, CONTRAST, BASELINE], (len(Q), 1))
    rows[:, :1] *= np.linspace(0.8, 1.4, len(Q))[:, None]
    clean = np.stack([function(TAU, *row) for row in rows], axis=1)
    errors = sigma * rng.uniform(0.5, 2.0, clean.shape)
    return rows, clean + errors * rng.normal(size=clean.shape), errors


@pytest.mark.parametrize("model", FIELDS)
def test_parameters_and_errors_equal_those_of_scipy(model):
    truth, g2, errors = measured(model)
    g2[3, :2], errors[5, 1], g2[7, 1] = np.nan, 0.0, np.inf  # left out
    fit = xpcs.fit_g2(TAU, g2, errors, model=model)
    function, names, _ = formula(model)
    assert fit.success.all(), fit.messages
    assert fit.n_points.tolist() == [29, 27, 30, 30, 30, 30]
    for b, start in enumerate(truth):
        used = np.isfinite(g2[:, b]) & (errors[:, b] > 0)
        options = {"sigma": errors[used, b], "xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}
        values, pcov = curve_fit(function, TAU[used], g2[used, b], start, **options)
        np.testing.assert_allclose([fit.params[n][b] for n in names], values, rtol=1e-6)
        deviations = np.sqrt(np.diag(pcov))
        np.testing.assert_allclose([fit.errors[n][b] for n in names], deviations, rtol=1e-4)
        chi2 = (((g2[used, b] - function(TAU[used], *values)) / errors[used, b]) ** 2).sum()
        np.testing.assert_allclose(fit.chi2[b], chi2, rtol=1e-9)
    np.testing.assert_allclose(fit.reduced_chi2, fit.chi2 / (fit.n_points - len(names)))


def test_a_robust_loss_equals_that_of_scipy():
    _, g2, errors = measured("exponential", seed=1)
    g2[::7] += 0.05
    fit = xpcs.fit_g2(TAU, g2, errors, loss="soft_l1", f_scale=1.5)
    function, names, _ = formula("exponential")
    for b in range(len(Q)):

        def residual(p, b=b):
            return (g2[:, b] - function(TAU, *p)) / errors[:, b]

        start = [fit.params[n][b] * 1.02 for n in names]
        tolerances = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15)
        best = least_squares(
            residual, start, loss="soft_l1", f_scale=1.5, x_scale="jac", **tolerances
        )
        np.testing.assert_allclose([fit.params[n][b] for n in names], best.x, rtol=1e-6)


def test_shared_parameters_are_the_joint_minimum_of_scipy():
    rng = np.random.default_rng(2)
    truth = {"D": 3e4, "exponent": 1.8, "stretch": 0.9}

    def curves(p):
        rates = np.exp(p[0]) * Q ** p[1]
        return p[9:] + p[3:9] * np.exp(-2 * (rates * TAU[:, None]) ** p[2])

    exact = np.array([np.log(3e4), 1.8, 0.9, *[CONTRAST] * 6, *[BASELINE] * 6])
    g2 = curves(exact) + 0.002 * rng.normal(size=(len(TAU), len(Q)))
    errors = np.full(g2.shape, 0.002)
    share = ["D", "exponent", "stretch"]
    fit = xpcs.fit_g2(TAU, g2, errors, model="stretched", q=Q, share=share)
    best = least_squares(
        lambda p: ((g2 - curves(p)) / 0.002).ravel(), exact, xtol=1e-15, ftol=1e-15, gtol=1e-15
    )
    joint = [np.log(fit.params["D"][0]), *(fit.params[n][0] for n in share[1:])]
    joint += [*fit.params["contrast"], *fit.params["baseline"]]
    np.testing.assert_allclose(joint, best.x, rtol=1e-6)
    np.testing.assert_allclose(fit.params["rate"], np.exp(best.x[0]) * Q ** best.x[1], rtol=1e-6)
    inverse = np.linalg.inv(best.jac.T @ best.jac) * 2 * best.cost / (g2.size - len(exact))
    deviations = np.sqrt(np.diag(inverse))
    assert fit.success.all(), fit.messages
    np.testing.assert_allclose(fit.errors["D"] / fit.params["D"], deviations[0], rtol=1e-4)
    np.testing.assert_allclose(fit.errors["stretch"], deviations[2], rtol=1e-4)
    np.testing.assert_allclose(fit.errors["baseline"], deviations[9:], rtol=1e-4)
    slope = np.stack([np.ones(len(Q)), np.log(Q)])
    rate_error = np.sqrt(np.einsum("ib,ij,jb->b", slope, inverse[:2, :2], slope))
    np.testing.assert_allclose(fit.errors["rate"] / fit.params["rate"], rate_error, rtol=1e-4)
    for name, value in truth.items():
        assert abs(fit.params[name][0] - value) < 4 * fit.errors[name][0]

    # The jackknife is one Newton step for each part, here compared with refits.
    parts = g2 + 2e-4 * rng.normal(size=(3, *g2.shape))
    jackknife = xpcs.fit_g2(
        TAU, g2, errors, model="stretched", q=Q, share=share, g2_parts=parts, absolute_sigma=True
    )
    changes = {name: [] for name in ("D", "stretch", "rate", "contrast")}
    for k in range(3):
        moved = g2 + parts[k] - parts.mean(0)
        refit = xpcs.fit_g2(TAU, moved, errors, model="stretched", q=Q, share=share)
        for name, values in changes.items():
            values.append(refit.params[name] - fit.params[name])
    student = 1.3213  # the 84.13% quantile of Student's distribution with 2 degrees of freedom
    for name, values in changes.items():
        expected = student * np.sqrt((np.array(values) ** 2).sum(0) / 6)
        np.testing.assert_allclose(jackknife.errors[name], expected, rtol=0.03)


def gelation(tau, *, rate, plateau=0.5, contrast=0.1, baseline):
    return baseline + contrast * (plateau + (1 - plateau) * jnp.exp(-2 * rate * tau))


def test_a_function_with_bounds_equals_scipy():
    rng = np.random.default_rng(3)
    rate = np.linspace(8.0, 12.0, len(Q))
    clean = 1.0 + 0.2 * (0.3 + 0.7 * np.exp(-2 * rate * TAU[:, None]))
    g2 = clean + 0.001 * rng.normal(size=clean.shape)
    bounds = {"baseline": (0.9, 1.001), "contrast": (0.2, 0.2), "rate": (1.0, 10.0)}
    fit = xpcs.fit_g2(TAU, g2, model=gelation, bounds=bounds)

    def function(t, rate, plateau, baseline):
        return baseline + 0.2 * (plateau + (1 - plateau) * np.exp(-2 * rate * t))

    for b in range(len(Q)):
        box = [1.0, -np.inf, 0.9], [10.0, np.inf, 1.001]
        tight = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15)
        values, _ = curve_fit(function, TAU, g2[:, b], [5.0, 0.5, 1.0], bounds=box, **tight)
        made = [fit.params[n][b] for n in ("rate", "plateau", "baseline")]
        np.testing.assert_allclose(made, values, rtol=1e-5)
    assert fit.success.tolist() == (fit.params["rate"] < 10 - 1e-4).tolist()
    assert fit.messages[-1] == "rate is at its upper bound 10"
    assert (fit.params["contrast"] == 0.2).all()
    assert (fit.errors["contrast"] == 0).all()


def test_chunks_of_many_bins_and_bins_that_cannot_be_fitted():
    rng = np.random.default_rng(4)
    rate = rng.uniform(3.0, 100.0, 300)
    g2 = 1 + 0.2 * np.exp(-2 * rate * TAU[:, None]) + 0.001 * rng.normal(size=(len(TAU), 300))
    g2[:, 7], g2[2:, 8], g2[:, 9] = np.nan, np.nan, 1 + 0.001 * rng.normal(size=len(TAU))
    fit = xpcs.fit_g2(TAU, g2, np.full(g2.shape, 0.001))
    valid = np.delete(np.arange(300), [7, 8, 9])
    assert fit.success[valid].all()
    assert not fit.success[7:10].any()
    assert (np.abs(fit.params["rate"] - rate) < 5 * fit.errors["rate"])[valid].all()
    for number, message in zip((0, 2), fit.messages[7:9], strict=True):
        assert f"at least 3 points, got {number}; those with an error of 0 or NaN" in message
    assert "no decay" in fit.messages[9] or "determine" in fit.messages[9]
    few = xpcs.fit_g2(TAU, g2[:, 290:], np.full((len(TAU), 10), 0.001))
    np.testing.assert_allclose(few.params["rate"], fit.params["rate"][290:], rtol=1e-7)


def test_parameters_at_a_bound_do_not_succeed():
    tau = 10 * TAU
    decays = np.exp(-2 * np.array([0.5, 2.0, 2.0]) * tau[:, None])
    g2 = [1.0, 2.3, 1.0] + np.array([0.2, 0.2, 2.8]) * decays
    fit = xpcs.fit_g2(tau, g2, np.full(g2.shape, 0.001), bounds={"rate": (0, 1e6)})
    assert fit.messages[0] == ""
    assert "baseline is at its upper bound 2" in fit.messages[1]
    assert "contrast is at its upper bound 2" in fit.messages[2]
    held = xpcs.fit_g2(tau, g2, bounds={"baseline": (1, 1), "contrast": (0.2, 0.2)})
    assert held.success[0]


def test_errors_of_a_jackknife_cover_the_truth_of_correlated_noise():
    rng = np.random.default_rng(5)
    bins, parts = 250, 10
    # Noise of neighbouring delays is correlated, as that of multi-tau.
    distance = np.abs(np.arange(len(TAU))[:, None] - np.arange(len(TAU)))
    root = np.linalg.cholesky(np.exp(-distance / 4.0))
    noise = 0.006 * np.einsum("ij,kjb->kib", root, rng.normal(size=(parts, len(TAU), bins)))
    clean = 1 + 0.2 * np.exp(-2 * 10.0 * TAU[:, None])
    g2 = clean + noise.mean(0)
    errors = np.full(g2.shape, 0.006 / np.sqrt(parts))
    fit = xpcs.fit_g2(TAU, g2, errors, g2_parts=clean + noise)
    independent = xpcs.fit_g2(TAU, g2, errors, absolute_sigma=True)
    assert fit.error_method == "jackknife over 10 parts of the run"

    def coverage(result, width):
        pulls = [
            (result.params[name] - truth) / result.errors[name]
            for name, truth in (("rate", 10.0), ("contrast", 0.2), ("baseline", 1.0))
        ]
        return np.mean(np.abs(pulls) < width)

    assert 0.62 < coverage(fit, 1.0) < 0.74
    assert 0.90 < coverage(fit, 1.96) < 0.98
    assert coverage(independent, 1.0) < 0.6
    # Delays that no part has contribute their standard errors, taken together.
    missing = np.where(TAU[:, None] > 0.3, np.nan, clean + noise)
    longer = xpcs.fit_g2(TAU, g2, errors, g2_parts=missing)
    np.testing.assert_array_equal(longer.params["rate"], fit.params["rate"])
    assert (longer.errors["baseline"] > 0.5 * fit.errors["baseline"]).all()
    # Bins whose parts are unknown have errors of independent noise.
    lacking = clean + noise
    lacking[:, :, 1], lacking[3, :, 2] = np.nan, np.nan
    some = xpcs.fit_g2(TAU, g2, errors, g2_parts=lacking, absolute_sigma=True)
    assert np.flatnonzero(~some.jackknife).tolist() == [1, 2]
    assert "in 248 of 250 bins, independent" in some.error_method
    for name, values in some.errors.items():
        np.testing.assert_array_equal(values[[1, 2]], independent.errors[name][[1, 2]])
        np.testing.assert_array_equal(values[3:], fit.errors[name][3:])
    options = {"share": ["rate"], "absolute_sigma": True}
    joint = xpcs.fit_g2(TAU, g2[:, :3], errors[:, :3], g2_parts=lacking[:, :, :3], **options)
    assert joint.error_method == "independent"
    np.testing.assert_array_equal(
        joint.errors["rate"], xpcs.fit_g2(TAU, g2[:, :3], errors[:, :3], **options).errors["rate"]
    )


def test_power_law_table_and_plots(tmp_path):
    rng = np.random.default_rng(6)
    rate = 1e5 * Q**2
    g2 = 1 + 0.2 * np.exp(-2 * rate * TAU[:, None]) + 0.001 * rng.normal(size=(len(TAU), len(Q)))
    labels = {"q": Q, "phi": np.zeros(6), "bins": np.arange(11, 17)}
    fit = xpcs.fit_g2(TAU, g2, np.full(g2.shape, 0.001), **labels)
    law = fit.tau_q()
    line, cov = np.polyfit(
        np.log(Q), np.log(fit.params["rate"]), 1, w=fit.params["rate"] / fit.errors["rate"],
        cov="unscaled",
    )  # fmt: skip
    np.testing.assert_allclose([law.exponent, np.log(law.D)], line, rtol=1e-9)
    scale = max(law.reduced_chi2, 1.0) ** 0.5
    np.testing.assert_allclose(law.exponent_err, scale * cov[0, 0] ** 0.5, rtol=1e-6)
    low, high = law.exponent_interval  # Student's 97.5% quantile of 4 degrees of freedom
    np.testing.assert_allclose((high - low) / law.exponent_err, 2 * 2.7764451, rtol=1e-6)
    assert low < 2 < high
    assert law.D_interval[0] < 1e5 < law.D_interval[1]
    for item, name in ((fit, "fit.png"), (law, "law.png")):
        item.plot(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000
    lines = fit.to_csv(tmp_path / "fit.csv").read_text().splitlines()
    assert lines[0].startswith("bin,q,phi,rate,rate_err,contrast,")
    assert len(lines) == 7
    assert [row["bin"] for row in fit.table] == list(range(11, 17))
    assert lines[1].split(",")[3] == repr(fit.params["rate"].tolist()[0])
    assert "6 of 6 bins succeeded" in str(fit)
    assert "exponent" in str(law)
    for share in (["D", "exponent"], ["rate"]):
        joint = xpcs.fit_g2(TAU, g2, np.full(g2.shape, 0.001), q=Q, share=share)
        with raises(ValueError, "tau_q", f"shared {share[0]}", f"params['{share[0]}']"):
            joint.tau_q()
    with raises(ValueError, "name", "'rat'", "rate, contrast"):
        fit.tau_q("rat")
    with raises(ValueError, "q: expected", "fit_g2"):
        xpcs.fit_g2(TAU, g2, np.full(g2.shape, 0.001)).tau_q()


def test_a_data_frame_needs_pandas(monkeypatch):
    fit = xpcs.fit_g2(TAU, measured("exponential")[1], np.full((30, 6), 0.001))

    class Pandas:
        DataFrame = staticmethod(lambda rows: ("frame", rows))

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert fit.to_dataframe() == ("frame", fit.table)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises(ModuleNotFoundError, "pandas"):
        fit.to_dataframe()


@pytest.mark.parametrize("kind", ["groups", "parts"])
def test_multitau_results_are_fitted_with_their_jackknife(kind):
    frames = xpcs.simulate_frames([0.05, 0.2], n_frames=2000, pixels=300, seed=3, progress=False)
    result = xpcs.multitau(frames, frames.qmap, **{kind: 10}, frame_time=1e-3)
    fit = result.fit_g2(p0={"baseline": 1.0})
    expected = {"groups": "10 groups of pixels", "parts": "10 parts of the run"}
    assert fit.error_method == f"jackknife over {expected[kind]}"
    assert fit.success.all(), fit.messages
    pulls = (fit.params["rate"] - [50.0, 200.0]) / fit.errors["rate"]
    assert (np.abs(pulls) < 4).all()
    assert (fit.errors["rate"] < 10).all()
    assert fit.bins.tolist() == [1, 2]
    if kind == "groups":  # too few groups for weights
        few = xpcs.multitau(frames, frames.qmap, groups=2, frame_time=1e-3).fit_g2()
        np.testing.assert_array_equal(few.g2_err, result.g2_err)
    unknown = xpcs.multitau(frames, frames.qmap, frame_time=None)
    with raises(ValueError, "frame_time", "pass frame_time to multitau"):
        unknown.fit_g2()


def test_groups_of_pixels_are_the_jackknife_of_runs_without_them():
    rng = np.random.default_rng(7)
    frames = rng.poisson(1.0, (60, 6, 8)).astype(np.uint8)
    dynamic = np.repeat([[1, 2], [1, 0], [3, 2]], 2, 0).repeat(4, 1)
    dynamic[5, 7] = 4  # fewer pixels than groups
    static = np.where(dynamic == 1, 1 + np.arange(8) // 2, dynamic + 2) * (dynamic > 0)
    qmap = xpcs.QMap(dynamic, static)
    result = xpcs.multitau(frames, qmap, groups=3, parts=2)
    plain = xpcs.multitau(frames, qmap)
    np.testing.assert_array_equal(result.g2, plain.g2)
    np.testing.assert_array_equal(result.g2_err, plain.g2_err)
    pixels = [np.flatnonzero(dynamic.ravel() == b) for b in (1, 2, 3)]
    for k in range(3):
        mask = np.ones(48, bool)
        for own in pixels:
            mask[own[np.arange(len(own)) * 3 // len(own) == k]] = False
        rest = xpcs.multitau(frames, qmap, mask=mask.reshape(6, 8), bins=[1, 2, 3])
        pseudo = 3 * plain.g2[:, :3] - 2 * rest.g2
        np.testing.assert_allclose(result.g2_groups[k][:, :3], pseudo, rtol=1e-12)
    assert np.isnan(result.g2_groups[:, :, 3]).all()  # the errors of this bin are then `g2_err`
    covariance = np.cov(result.g2_groups[:, :, 0].T) / 3
    np.testing.assert_allclose(result.g2_cov[0], covariance, atol=1e-15)
    # A static bin of which no pixel is left is left out of the mean: here each row is one.
    rows = np.repeat(np.arange(1, 7), 8).reshape(6, 8)
    fine = xpcs.QMap(np.ones((6, 8), int), rows)
    whole = xpcs.multitau(frames, fine, groups=3)
    for k in range(3):
        rest = xpcs.multitau(frames, fine, mask=(rows - 1) // 2 != k)
        np.testing.assert_allclose(whole.g2_groups[k], 3 * whole.g2 - 2 * rest.g2, rtol=1e-12)
    frame, pixel = np.nonzero(frames.reshape(60, 48))
    events = pixel, frame, frames.reshape(60, 48)[frame, pixel]
    sparse = xpcs.multitau_events(*events, 60, qmap, groups=3, bins=[2, 1])
    np.testing.assert_array_equal(sparse.g2_groups, result.g2_groups[:, :, [1, 0]])
    with raises(ValueError, "groups", "got 1"):
        xpcs.multitau(frames, qmap, groups=1)
    with raises(ValueError, "g2_cov", "pass groups"):
        _ = plain.g2_cov


def numpy_function(tau, rate=1.0):
    return np.exp(-rate * np.asarray(tau))


GOOD = np.ones((len(TAU), 2))
INVALID = [
    ({"tau": TAU[:, None]}, ["tau: expected [n_tau]", "(30, 1)"]),
    ({"tau": TAU - TAU[0]}, ["tau", "> 0", "got 0"]),
    ({"g2": GOOD[1:]}, ["g2: expected", "n_tau = 30", "(29, 2)"]),
    ({"g2_err": GOOD[:, :1]}, ["g2_err", "(30, 2)", "(30, 1)"]),
    ({"g2_err": -GOOD}, ["g2_err: expected errors >= 0", "-1"]),
    ({"model": "exponental"}, ["model", "'exponential'", "'exponental'"]),
    ({"model": lambda tau, *rest: tau}, ["model", "named parameters"]),
    ({"model": lambda tau, speed: tau}, ["p0", "'speed'", "signature"]),
    ({"model": lambda tau, rate: 1.0}, ["model", "(30,)"]),
    ({"model": numpy_function}, ["model", "jax.numpy", "numpy_function"]),
    ({"share": "contrast"}, ["share", "['contrast']"]),
    ({"share": ["contrst"]}, ["share", "did you mean 'contrast'?"]),
    ({"share": ["D"]}, ["q: expected [n_bins]", "'D'"]),
    ({"share": ["exponent"], "q": [1, 2]}, ["share", "'D' with 'exponent'"]),
    ({"share": ["D", "rate"], "q": [1, 2]}, ["share", "'rate' or 'D'"]),
    ({"q": [1.0]}, ["q: expected [n_bins] = (2,)"]),
    ({"bounds": {"rates": (0, 1)}}, ["bounds", "did you mean 'rate'?"]),
    ({"bounds": {"rate": (0, 1)}, "share": ["D"], "q": [1, 2]}, ["bounds", "not fitted"]),
    ({"bounds": {"rate": (2, 1)}}, ["bounds['rate']", "(2, 1)"]),
    (
        {"bounds": {"D": (-1, 1)}, "share": ["D"], "q": [1, 2]},
        ["bounds['D']", ">= 0", "got -1"],
    ),
    ({"bounds": {"rate": 3}}, ["bounds['rate']", "(lower, upper)"]),
    ({"p0": {"rte": 1}}, ["p0", "did you mean 'rate'?"]),
    ({"p0": {"rate": [1, 2, 3]}}, ["p0['rate']", "(2,)"]),
    ({"loss": "hubert"}, ["loss", "'huber'", "'hubert'"]),
    ({"loss": "huber"}, ["f_scale", "g2_err"]),
    ({"g2_parts": [GOOD, GOOD], "g2_groups": [GOOD, GOOD]}, ["g2_parts", "both"]),
    ({"g2_parts": GOOD[None]}, ["g2_parts", "at least 2", "[1, 30, 2]"]),
]


@pytest.mark.parametrize(("change", "facts"), INVALID)
def test_invalid_input_is_named(change, facts):
    arguments = {"tau": TAU, "g2": GOOD, **change}
    with raises(ValueError, *facts):
        xpcs.fit_g2(**arguments)


def test_a_start_outside_of_the_bounds_is_moved():
    g2 = measured("exponential")[1]
    with warns(RuntimeWarning, "p0['stretch']", "0.05 to 4"):
        xpcs.fit_g2(TAU, g2, np.full(g2.shape, 0.001), model="stretched", p0={"stretch": 9.0})
