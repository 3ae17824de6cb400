"""Normal equations compared with dense arrays, mpmath and SciPy's losses, for all options.

Each program takes half a second to compile, and the pure-JAX one more. Therefore the latter is only
compiled for options that change its formulas, and options are tested in pairs.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
from support.errors import raises
from support.xpcs import two_time_oracle as oracle
from support.xpcs.two_time_problems import (
    PARAMS,
    PHI,
    assert_normalized,
    assert_scaled,
    cases,
    flow,
    measured,
    native_only,
    tables_of,
)

from jaxkern import xpcs
from jaxkern.xpcs.model import normal, ops
from jaxkern.xpcs.model.models import Tables
from jaxkern.xpcs.model.normal import LOSSES

pytestmark = pytest.mark.usefixtures("x64", "backend")
CONTRAST, OFFSET = np.array([0.3, 0.25, 0.4]), np.array([1.0, 1.1, 0.9])
FIELDS = ("jtj", "jtr", "chi2", "cost", "count", "mirrored")


def dense_jacobian(model, reference, contrast, offset, scaling):
    """Return the Jacobian [n_phi, n, n, P] from the equations, with the tables of the model."""
    A, X = (np.array(v) for v in reference.phases(PARAMS.tolist()))
    n_phi, n = X.shape
    tables = tables_of(model)
    contrast, offset = np.broadcast_to(contrast, n_phi), np.broadcast_to(offset, n_phi)
    blocks, p = [], 7
    for k in range(n_phi):
        D = A[:, None] - A, X[k][:, None] - X[k]
        f, (a, h) = oracle.correlation(*D, model.shear_power), oracle.slopes(*D, model.shear_power)
        physics = np.zeros((n, n, p))
        for table, column in zip(np.asarray(tables.tangents_A), tables.columns_A, strict=True):
            physics[..., column] += contrast[k] * a * (table[:, None] - table)
        for table, column in zip(np.asarray(tables.tangents_X[k]), tables.columns_X, strict=True):
            physics[..., column] += contrast[k] * h * (table[:, None] - table)
        scale = np.zeros((n, n, 2 * n_phi))
        scale[..., k], scale[..., n_phi + k] = f, 1.0
        if scaling == "constant":
            scale = np.stack([f, np.ones_like(f)], -1)
        blocks.append(physics if scaling == "fixed" else np.concatenate([scale, physics], -1))
    return np.stack(blocks)


def problem(n=40, symmetric=False, scaling="individual", noise=0.01):
    model, contrast, offset, data, c2, jacobian = _problem(n, symmetric, scaling, noise)
    return model, contrast, offset, data.copy(), c2, jacobian


@functools.cache
def _problem(n, symmetric, scaling, noise):
    model, reference = flow(n)
    contrast, offset = (0.3, 1.0) if scaling == "constant" else (CONTRAST, OFFSET)
    truth = reference.g2(PARAMS * 1.02, contrast, offset)
    data = measured(truth, noise, symmetric)
    c2 = reference.g2(PARAMS, contrast, offset)
    jacobian = dense_jacobian(model, reference, contrast, offset, scaling)
    return model, contrast, offset, data, c2, jacobian


def assert_equal(actual, expected, tolerance=1e-11):
    scale = np.sqrt(np.diag(expected["jtj"]))
    scale = np.where(scale > 0, scale, 1.0)
    assert_normalized(actual.jtj, expected["jtj"], tolerance)
    assert_scaled(actual.jtr / scale, expected["jtr"] / scale, tolerance)
    assert_scaled(actual.chi2, expected["chi2"], tolerance)
    assert_scaled(actual.cost, expected["cost"], tolerance)
    assert actual.count == expected["count"]


@functools.cache
def _assemble(model, scaling):
    def run(state, arrays, contrast):
        columns = model.columns_A, model.columns_X, len(model.parameters)
        return normal.assemble(state, Tables(*arrays, *columns), contrast, scaling)

    return jax.jit(run)


@pytest.fixture
def in_parts(monkeypatch):
    """Run `normal_equations` as separate programs, so that options recompile the sums alone."""

    def run(model, scaling, params, contrast, *operands, **options):
        tables, power = tables_of(model, params), model.shear_power
        state = xpcs.accumulate(tables, contrast, *operands, shear_power=power, **options)
        return _assemble(model, scaling)(state, tables[:4], contrast)

    monkeypatch.setattr(normal, "_normal_equations", run)


@pytest.mark.usefixtures("in_parts")
@cases(
    "scaling symmetric",
    native=[("individual", "auto"), ("constant", True), ("fixed", False)],
    jax=[("individual", False), ("constant", "auto"), ("fixed", True)],
)
def test_sums_of_dense_arrays(scaling, symmetric):
    mirrored = symmetric is True
    model, contrast, offset, data, c2, jacobian = problem(symmetric=mirrored, scaling=scaling)
    ne = xpcs.normal_equations(
        model, PARAMS, contrast, offset, data, 0.01, scaling=scaling, symmetric=symmetric
    )
    expected = oracle.dense_normal_equations(c2, jacobian, data, 0.01)
    assert_equal(ne, expected)
    assert ne.mirrored == (expected["count"] if mirrored else 0)
    assert ne.jtj.shape == ({"individual": 13, "constant": 9, "fixed": 7}[scaling],) * 2


@cases("power", native=[(2,), (4,)], jax=[(4,)])
def test_everything_in_60_digits(power):
    """Two angles of 5 frames, every derivative a finite difference in mpmath."""
    t = np.array([0.0, 0.1, 0.25, 0.3, 1.7])
    model = xpcs.LaminarFlow(xpcs.Geometry(0.0054, 2e6, 0.1, t, [0.0, 70.0]), shear_power=power)
    reference = oracle.Flow(0.0054, 2e6, 0.1, t, np.array([0.0, 70.0]), power)
    data = np.random.default_rng(0).uniform(1, 1.5, (2, 5, 5))
    jtj, jtr, chi2 = mp.zeros(11), mp.zeros(11, 1), mp.mpf(0)
    for angle in range(2):
        indices = [angle, 2 + angle, *range(4, 11)]
        for i in range(5):
            for j in range(5):
                if i == j:
                    continue
                J = reference.exact_jacobian(PARAMS, 0.4, 1.1, angle, i, j)
                start = [mp.mpf(0.4), mp.mpf(1.1)]
                r = mp.mpf(data[angle, i, j]) - reference.exact_g2(PARAMS, *start, angle, i, j)
                chi2 += r**2
                for k, row in enumerate(indices):
                    jtr[row] += J[k] * r
                    for m, column in enumerate(indices):
                        jtj[row, column] += J[k] * J[m]
    ne = xpcs.normal_equations(model, PARAMS, 0.4, 1.1, data, 1.0)
    expected = np.array(jtj.tolist(), float)
    scale = np.sqrt(np.diag(expected))
    assert_normalized(ne.jtj, expected, 2e-12)
    assert_scaled(ne.jtr / scale, np.array(jtr.tolist(), float)[:, 0] / scale, 2e-12)
    assert_scaled(ne.chi2, float(chi2))


@pytest.mark.usefixtures("in_parts")
@cases(
    "loss symmetric",
    native=[*zip(LOSSES, [False, True, "auto", False, True], strict=True), ("soft_l1", "auto")],
    jax=[*zip(LOSSES, [True, "auto", False, True, "auto"], strict=True)],
)
def test_losses_of_scipy(loss, symmetric):
    model, contrast, offset, data, c2, jacobian = problem(symmetric=symmetric is not False)
    f_scale = 0.7
    options = {"loss": loss, "f_scale": f_scale, "symmetric": symmetric}
    ne = xpcs.normal_equations(model, PARAMS, contrast, offset, data, 0.01, **options)
    expected = oracle.dense_normal_equations(c2, jacobian, data, 0.01, None, loss, f_scale)
    assert_equal(ne, expected)
    # The rho of the oracle is compared with the cost that SciPy's solver reports.
    counts = ~np.eye(40, dtype=bool)
    r = ((data - c2) / 0.01)[:, counts].ravel()
    fit = scipy.optimize.least_squares(
        lambda x: r + 0 * x, np.zeros(1), jac=lambda x: np.ones((r.size, 1)), loss=loss,
        f_scale=f_scale, max_nfev=1,
    )  # fmt: skip
    assert_scaled(ne.cost / 2, fit.cost, 1e-11)
    if loss == "linear":
        assert_scaled(ne.cost, ne.chi2, 1e-14)


@pytest.mark.usefixtures("in_parts")
@cases(
    "kind masked symmetric",
    native=[
        ("scalar", True, False),
        ("scalar", False, "auto"),
        ("angles", False, True),
        ("angles", True, "auto"),
        ("points", True, False),
        ("points", True, "auto"),
        ("mirrored points", True, True),
        ("mirrored points", True, "auto"),
    ],
    jax=[
        ("scalar", True, True),
        ("angles", True, False),
        ("points", True, "auto"),
    ],
)
def test_sigma_and_masks(kind, masked, symmetric):
    """Points with a sigma of 0 and masked frames have no weight, for any data."""
    mirrored = symmetric is not False and kind != "points"
    model, contrast, offset, data, c2, jacobian = problem(symmetric=mirrored)
    random = np.random.default_rng(1)
    points = random.uniform(0.005, 0.02, c2.shape) * (random.uniform(size=c2.shape) > 0.1)
    if kind == "mirrored points":
        points = np.triu(points) + np.triu(points, 1).swapaxes(1, 2)
    sigma = {"scalar": 0.01, "angles": np.array([0.01, 0.0, 1e-9])}.get(kind, points)
    sigma_of_points = np.broadcast_to(
        np.reshape(sigma, (-1, 1, 1)) if kind == "angles" else sigma, c2.shape
    )
    keep = None
    broken = data.copy()
    if masked:
        keep = random.uniform(size=40) > 0.2
        broken[:, ~keep] = np.nan
        broken[:, :, ~keep] = np.inf
    broken[:, np.arange(40), np.arange(40)] = np.nan
    broken[np.broadcast_to(sigma_of_points, c2.shape) <= 1e-10] = (
        1e300 if symmetric == "auto" else np.nan
    )
    ne = xpcs.normal_equations(
        model, PARAMS, contrast, offset, broken, sigma, keep=keep, symmetric=symmetric
    )
    expected = oracle.dense_normal_equations(c2, jacobian, data, sigma_of_points, keep)
    assert_equal(ne, expected)
    assert ne.mirrored == (expected["count"] if mirrored else 0)


def test_keep_by_angle():
    model, contrast, offset, data, c2, jacobian = problem()
    keep = np.random.default_rng(1).uniform(size=(3, 40)) > 0.2
    ne = xpcs.normal_equations(model, PARAMS, contrast, offset, data, 0.01, keep=keep)
    assert_equal(ne, oracle.dense_normal_equations(c2, jacobian, data, 0.01, keep))


@pytest.mark.usefixtures("in_parts")
@cases("i j", native=[(3, 130), (149, 0), (40, 41), (130, 149)], jax=[(3, 130)])
def test_auto_compares(i, j):
    """One point that differs from its mirror image: right sums, and its tile is not mirrored."""
    model, contrast, offset, data, c2, jacobian = problem(150, symmetric=True)
    data[1, i, j] += 0.1
    ne = xpcs.normal_equations(model, PARAMS, contrast, offset, data, 0.01)
    assert_equal(ne, oracle.dense_normal_equations(c2, jacobian, data, 0.01))
    row, column = min(i, j), max(i, j)
    first = row // 32 * 32
    start = first + (column - first) // 128 * 128
    tile = [
        (u, v)
        for u in range(first, min(first + 32, 150))
        for v in range(max(start, u + 1), min(start + 128, 150))
    ]
    assert ne.mirrored == ne.count - 2 * len(tile)
    sigma = np.full(c2.shape, 0.01)
    sigma[0, i, j] = 0.02
    with_sigma = xpcs.normal_equations(model, PARAMS, contrast, offset, data, sigma)
    assert_equal(with_sigma, oracle.dense_normal_equations(c2, jacobian, data, sigma))
    assert with_sigma.mirrored == ne.count - 4 * len(tile)


@pytest.mark.usefixtures("in_parts")
@cases("dtype", native=[(np.float32,), (np.float16,), (np.uint16,)], jax=[(np.uint16,)])
def test_data_dtypes(dtype):
    """Narrow dtypes are converted exactly, and the sums are f64."""
    model, contrast, offset, data, c2, jacobian = problem(noise=0.05)
    quantization = None
    if dtype == np.uint16:
        quantization = np.array([[1e-4, 0.5], [2e-4, 0.4], [1e-4, 0.6]])
        step, zero = quantization.T[..., None, None]
        stored = np.clip(np.round((data - zero) / step), 0, 65535).astype(np.uint16)
        data = zero + step * stored
    else:
        stored = data.astype(dtype)
        data = stored.astype(np.float64)
    ne = xpcs.normal_equations(
        model, PARAMS, contrast, offset, stored, 0.05, quantization=quantization
    )
    assert ne.jtj.dtype == np.float64
    assert_equal(ne, oracle.dense_normal_equations(c2, jacobian, data, 0.05))


@cases(
    "symmetric splits with_points",
    native=[
        *((symmetric, range(32, 150, 32), symmetric is False) for symmetric in (False, True)),
        *((symmetric, range(64, 150, 64), symmetric) for symmetric in (False, True)),
        *((True, (96,), True), (False, (1, 2, 77), False), (False, (33, 64), False)),
        (False, (149,), True),
    ],
    jax=[(True, range(64, 150, 64), True), (False, (33, 64), False)],
)
def test_chunks(symmetric, splits, with_points):
    """Results are bit-identical for splits at multiples of 32 rows, and agree for others."""
    model, reference = flow(150)
    data = measured(reference.g2(PARAMS, 0.3, 1.0), symmetric=symmetric)
    sigma = 0.01 + 0.001 * np.abs(data - 1.2) if with_points else 0.01
    tables = tables_of(model)
    options = {"shear_power": 4, "symmetric": symmetric, "loss": "soft_l1", "f_scale": 2.0}
    add = jax.jit(lambda *a, **k: xpcs.accumulate(*a, **k, **options))
    single_call, state = add(tables, 0.3, 1.0, data, sigma), None
    for first, last in itertools.pairwise((0, *splits, 150)):
        deviations = sigma[:, first:last] if with_points else sigma
        at = {"first_row": first, "initial": state}
        state = add(tables, 0.3, 1.0, data[:, first:last], deviations, **at)
    if all(row % 32 == 0 for row in splits):
        np.testing.assert_array_equal(state, single_call)
    assemble = _assemble(model, "individual")
    ne, expected = (assemble(s, tables[:4], 0.3) for s in (state, single_call))
    assert_equal(ne, {name: np.asarray(getattr(expected, name)) for name in FIELDS}, 1e-12)


@pytest.mark.usefixtures("in_parts")
@native_only
def test_auto_equals_the_upper_triangle_to_the_bit():
    model, reference = flow(150)
    data = measured(reference.g2(PARAMS, 0.3, 1.0), symmetric=True)
    one, two = (
        xpcs.normal_equations(model, PARAMS, 0.3, 1.0, data, 0.01, symmetric=s)
        for s in ("auto", True)
    )
    assert_equal(one, {name: np.asarray(getattr(two, name)) for name in FIELDS}, 1e-13)
    assert one.mirrored == one.count == two.mirrored


@native_only
def test_static_and_custom_models():
    """No shear tables; parameters that both phases share; a phase A for each angle."""
    t = 0.1 * np.arange(45)
    geometry = xpcs.Geometry(0.01, None, 0.1, t, PHI)

    def phases_of(p):
        A = p[0] * jnp.asarray([[1.0], [2.0], [1.5]]) * t
        return A, p[0] * p[1] * jnp.cos(jnp.deg2rad(PHI))[:, None] * t**1.2

    custom = xpcs.CustomModel(geometry, phases_of, ["rate", "strain"])
    for model, params in (
        (xpcs.Static(geometry), np.array([9000.0, 0.3, 50.0])),
        (custom, np.array([0.1, 2.0])),
    ):
        data = measured(xpcs.g2(model, params, CONTRAST, OFFSET))

        def r(x, model=model, data=data):
            return xpcs.residual(model, x[6:], x[:3], x[3:6], data, 0.02).ravel()

        x = np.concatenate([CONTRAST, OFFSET, params])
        J, res = -np.asarray(jax.jacfwd(r)(x)), np.asarray(r(x))
        ne = xpcs.normal_equations(model, params, CONTRAST, OFFSET, data, 0.02)
        scale = np.sqrt(np.diag(J.T @ J))
        assert_normalized(ne.jtj, J.T @ J)
        assert_scaled(ne.jtr / scale, J.T @ res / scale, 1e-11)
        assert_scaled(ne.chi2, res @ res)


@native_only
def test_transformations():
    """jit, vmap over parameters and over data, and gradients of the sums."""
    model, contrast, offset, data, *_ = problem()
    run = lambda p, d: xpcs.normal_equations(model, p, contrast, offset, d, 0.01)  # noqa: E731
    expected = [run(PARAMS, data), run(1.1 * PARAMS, data)]
    actual = jax.jit(jax.vmap(run, (0, None)))(np.stack([PARAMS, 1.1 * PARAMS]), data)
    for k in range(2):
        for name in FIELDS:
            np.testing.assert_allclose(
                getattr(actual, name)[k], getattr(expected[k], name), rtol=1e-9, atol=1e-9
            )
    slope = jax.grad(lambda p: run(p, data).chi2)(jnp.asarray(PARAMS))
    np.testing.assert_allclose(slope, -2 * expected[0].jtr[6:], rtol=1e-9)


def test_32_bit_mode():
    model, contrast, offset, data, c2, jacobian = problem(noise=0.1)
    with jax.enable_x64(False):
        ne = xpcs.normal_equations(model, PARAMS, contrast, offset, data, 0.1)
    assert ne.jtj.dtype == ne.chi2.dtype == np.float32
    expected = oracle.dense_normal_equations(c2, jacobian, data, 0.1)
    assert_normalized(np.asarray(ne.jtj, float), expected["jtj"], 1e-4)
    np.testing.assert_allclose(ne.chi2, expected["chi2"], rtol=1e-4)


@cases(
    "n symmetric",
    native=itertools.product([0, 1, 2, 3], [0, 1, 2]),
    jax=[(0, 0), (1, 1), (2, 2), (3, 1)],
)
def test_few_frames(n, symmetric):
    """Every pair of frames has weight, also of few frames."""
    A, tables, S = jnp.linspace(0.0, 1.0, n), jnp.ones((1, n)), xpcs.state_size(1, 1)
    options = {"shear_power": 4, "loss": 0, "symmetric": symmetric, "sigma_rank": 0}
    state = ops.two_time_normal_equations(
        *(A, A, tables, tables, 0.3, 1.0, jnp.full((n, n), 1.5), jnp.array([1.0, 0.0]), 0.5),
        *(jnp.ones(n, jnp.uint8), 1.0, jnp.int32(0), jnp.ones(S)),
        **options,
    )
    model = 1 + 0.3 * np.exp(-2 * abs(A[:, None] - A)) * np.sinc((A[:, None] - A) / np.pi) ** 4
    chi2 = np.sum(np.where(np.eye(n, dtype=bool), 0, (1.5 - model) / 0.5) ** 2)
    pairs = n * (n - 1)
    expected = [1 + chi2, 1 + chi2, 1 + pairs, 1 + (pairs if symmetric else 0)]
    np.testing.assert_allclose(state[-4:], expected, rtol=1e-13)


def test_rows_outside_the_matrix(backend):
    """A traced first_row out of range is an error of the CPU kernel, and NaN elsewhere."""
    data, tables = np.ones((3, 8, 40)), tables_of(flow(40)[0])
    run = jax.jit(
        lambda row: xpcs.accumulate(
            tables, 0.3, 1.0, data, 0.01, shear_power=4, first_row=row, symmetric=False
        )
    )
    assert np.isfinite(run(32)).all()
    for row in (-1, 33):
        if backend == "jax":
            assert np.isnan(run(row)).all()
        else:
            errors = (jax.errors.JaxRuntimeError, ValueError)  # depends on the version of JAX
            with raises(errors, "'first_row'", f"{row}"):
                jax.block_until_ready(run(row))


@pytest.mark.usefixtures("in_parts")
@cases("wide", native=[(False,), (True,)], jax=[(False,)])
def test_sigma_at_its_floor_has_no_weight(wide):
    """float32(1e-10) exceeds 1e-10: sigma clipped there must not have a weight of 1e20."""
    model, contrast, offset, data, *_ = problem()
    with jax.enable_x64(wide):
        for sigma in (1e-10, np.full(data.shape, 1e-10)):
            arguments = (model, PARAMS, contrast, offset, data, sigma)
            assert xpcs.normal_equations(*arguments).count == 0
            assert not np.any(xpcs.residual(*arguments))
            assert xpcs.normal_equations(*arguments[:-1], 1.01 * sigma).count == 3 * 40 * 39


@pytest.mark.usefixtures("in_parts")
def test_nan_in_points_with_weight():
    """The sums are NaN; such data are never dropped."""
    model, contrast, offset, data, *_ = problem(symmetric=True)
    data[1, 3, 7] = data[1, 7, 3] = np.nan
    for symmetric in (False, True, "auto"):
        ne = xpcs.normal_equations(model, PARAMS, contrast, offset, data, 0.01, symmetric=symmetric)
        assert np.isnan(ne.chi2)
