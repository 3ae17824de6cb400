"""Models, parameters and data that several XPCS tests share."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from jaxkern import xpcs
from jaxkern.xpcs.model.models import Tables
from support.xpcs.two_time_oracle import Flow

PARAMS = np.array([1234.5, 0.6, 17.0, 0.021, 0.4, 0.003, -3.0])
PHI = np.array([0.0, 25.0, 90.0])


native_only = pytest.mark.parametrize("backend", ["native"], indirect=True)


def cases(names, native, jax):
    """Return a parametrization of a test, with the backend of each case.

    The tests of the op recipe compare both backends. Compilation of pure JAX takes seconds, so
    comparisons with an oracle use it only for options that change its formulas; `make test` runs
    the first of these.
    """
    values: list = [("native", *case) for case in native]
    for number, case in enumerate(jax):
        marks = [pytest.mark.slow] if number else []
        values.append(pytest.param("jax", *case, marks=marks))
    return pytest.mark.parametrize(("backend", *names.split()), values, indirect=["backend"])


@functools.cache
def flow(n_t=70, power=4, gap=2e6):
    """Return a LaminarFlow model and its oracle."""
    t = 0.1 * np.arange(n_t)
    model = xpcs.LaminarFlow(xpcs.Geometry(0.0054, gap, 0.1, t, PHI), shear_power=power)
    return model, Flow(0.0054, gap, 0.1, t, PHI, power)


@functools.cache
def _tables(model):
    return jax.jit(lambda params: model.tables(params)[:4])


def tables_of(model, params=PARAMS):
    """Compute the tables of a model in one program instead of a hundred small ones."""
    columns = model.columns_A, model.columns_X, len(model.parameters)
    return Tables(*_tables(model)(params), *columns)


def measured(c2, noise=0.01, symmetric=False, seed=0):
    """Return noisy data in f64, mirrored or not."""
    c2 = np.asarray(c2, np.float64)
    data = c2 + noise * np.random.default_rng(seed).normal(size=c2.shape)
    if symmetric:
        upper = np.triu(data)
        data = upper + np.triu(data, 1).swapaxes(1, 2)
    return data


def assert_scaled(actual, expected, tolerance=1e-12):
    """Compare the largest difference with the tolerance times the largest expected value."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    assert np.all(np.isfinite(actual))
    assert np.max(np.abs(actual - expected), initial=0) <= tolerance * np.max(
        np.abs(expected), initial=0
    )


def assert_normalized(actual, expected, tolerance=1e-11):
    """Compare J^T J (or J^T r with `scale`) whose columns have different units."""
    scale = np.sqrt(np.diag(np.asarray(expected)))
    scale = np.where(scale > 0, scale, 1.0)
    assert_scaled(
        np.asarray(actual) / np.outer(scale, scale), expected / np.outer(scale, scale), tolerance
    )
