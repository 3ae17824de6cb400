"""Fits of data that are sharded over several devices or processes."""

from __future__ import annotations

import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from support import SUPPORT, environment
from support.errors import raises
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.xpcs.fitting.data import open_data

N, PHI = 64, np.array([0.0, 30.0, 60.0, 90.0])


@pytest.fixture(scope="module", params=[True, False], ids=["mirrored", "not mirrored"])
def case(request):
    return problems.simulate(N, seed=71, phi=PHI, mirrored=request.param)


@pytest.fixture(scope="module")
def expected(case):
    """The fit on one device."""
    return checks.fit(model_of(case), case.data, p0=problems.START)


def assert_same(result, expected):
    np.testing.assert_array_less(np.abs(result.popt - expected.popt), 1e-6 * expected.perr)
    np.testing.assert_allclose(result.perr, expected.perr, rtol=1e-7)
    assert (result.count, result.independent_count) == (expected.count, expected.independent_count)


@pytest.mark.parametrize(
    ("case", "shape", "names", "spec", "kind"),
    [
        (True, (4,), ("d",), ("d",), AxisType.Explicit),
        (False, (4,), ("d",), (None, "d"), AxisType.Auto),
        (True, (2, 2), ("a", "r"), ("a", "r"), AxisType.Explicit),
        (False, (2, 2), ("a", "r"), (("a", "r"),), AxisType.Auto),
        (True, (2, 2), ("a", "r"), (None, "r"), AxisType.Explicit),
    ],
    indirect=["case"],
)
def test_four_devices_give_one_devices_result(case, expected, shape, names, spec, kind):
    mesh = jax.make_mesh(shape, names, axis_types=(kind,) * len(names))
    with jax.enable_x64(True):
        data = jax.device_put(case.data, jax.NamedSharding(mesh, jax.P(*spec)))
    result = checks.fit(model_of(case), data, p0=problems.START)
    assert_same(result, expected)


def test_pointwise_sigma_is_sharded_with_the_data(case):
    sigma = np.full(case.data.shape, 0.004)
    sigma[:, :20] = 0.01
    sigma = np.minimum(sigma, np.swapaxes(sigma, 1, 2))
    mesh = jax.make_mesh((4,), ("d",))
    where = jax.NamedSharding(mesh, jax.P(None, "d"))
    with jax.enable_x64(True):
        data, deviations = jax.device_put((case.data, sigma), where)
    expected = checks.fit(model_of(case), case.data, sigma, problems.START)
    for noise in (sigma, deviations):
        result = checks.fit(model_of(case), data, noise, problems.START)
        assert_same(result, expected)


def test_errors_for_unsupported_shardings_and_nan():
    case = problems.simulate(N, seed=71, phi=PHI)
    mesh = jax.make_mesh((4,), ("d",))
    with jax.enable_x64(True):
        columns = jax.device_put(case.data, jax.NamedSharding(mesh, jax.P(None, None, "d")))
        broken = jax.device_put(
            np.where(case.data == case.data[1, 2, 3], np.nan, case.data),
            jax.NamedSharding(mesh, jax.P("d")),
        )
    with raises(ValueError, "NamedSharding over angles or rows"):
        checks.fit(model_of(case), columns)
    with raises(jk.xpcs.BadDataError, "angles [1]"):
        checks.fit(model_of(case), broken, p0=problems.START)


def test_faults_of_sharded_data_are_reported():
    """A frame of NaN is masked, an angle of zeros left out, and an outlier located."""
    case = problems.simulate(N, seed=71, phi=PHI)
    mesh = jax.make_mesh((4,), ("d",))
    where = jax.NamedSharding(mesh, jax.P(None, "d"))

    def fit(data):
        with jax.enable_x64(True):
            data = jax.device_put(data, where)
        return checks.fit(model_of(case), data, p0=problems.START)

    broken = case.data.copy()
    broken[:, 9] = broken[:, :, 9] = np.nan
    broken[2] = 0
    with pytest.warns(RuntimeWarning) as warned:
        result = fit(broken)
    texts = [str(warning.message) for warning in warned]
    assert any("frames 9 (counted from 0) contain no finite number" in text for text in texts)
    assert any("angle 2 has the value 0" in text for text in texts)
    n = case.data.shape[1]
    assert result.count == 3 * (n - 1) * (n - 2)
    assert result.success
    far = case.data.copy()
    far[1, 5, 30] = far[1, 30, 5] = 40.0
    assert not fit(far).success
    with jax.enable_x64(True):
        data = jax.device_put(far, where)
        opened = open_data(data, far.shape, np.ones(n, bool), jk.xpcs.StreamingOptions())
        assert opened.find_largest(np.ones(4)) == (1, 5, 30, 40.0)


@pytest.mark.slow
def test_two_processes_give_one_devices_result(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    program = SUPPORT / "xpcs" / "distributed_fit.py"
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(k), str(port), str(tmp_path / f"{k}.npz")],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors[-3000:]
    case = problems.simulate(64, seed=71)
    expected = checks.fit(model_of(case), case.data, p0=problems.START)
    first, second = (np.load(tmp_path / f"{k}.npz") for k in range(2))
    assert first["local"] == second["local"] == 2
    np.testing.assert_array_equal(first["popt"], second["popt"])
    np.testing.assert_array_less(np.abs(first["popt"] - expected.popt), 1e-6 * expected.perr)
    np.testing.assert_allclose(np.diag(first["pcov"]), expected.perr**2, rtol=1e-6)
