"""The compressed least-squares problem and its covariance.

They are compared with certified values of NIST's Statistical Reference Datasets (nonlinear
regression), and with SciPy's solver on the full Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import least_squares
from support.errors import raises

from jaxkern.xpcs.fitting.solver import NormalPoint, compress, covariance, solve


@dataclass(frozen=True)
class Certified:
    """A nonlinear regression problem of NIST with certified results."""

    model: Callable[..., np.ndarray]  # (b, x) -> y, also for complex b
    x: list[float]
    y: list[float]
    starts: list[list[float]]
    value: list[float]
    deviation: list[float]
    residual_sum: float
    digits: float = 1e-7


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


PROBLEMS = {
    "Misra1a": Certified(
        lambda b, x: b[0] * (1 - np.exp(-b[1] * x)),
        numbers(
            "77.6 114.9 141.1 190.8 239.9 289.0 332.8 378.4 434.8 477.3 536.8 593.1 689.1 760.0"
        ),
        numbers(
            "10.07 14.73 17.94 23.93 29.61 35.18 40.02 44.82 50.76 55.05 61.01 66.40 75.47 81.78"
        ),
        [[500, 0.0001], [250, 0.0005]],
        [2.3894212918e02, 5.5015643181e-04],
        [2.7070075241e00, 7.2668688436e-06],
        1.2455138894e-01,
    ),
    "Roszman1": Certified(
        lambda b, x: b[0] - b[1] * x - np.arctan(b[2] / (x - b[3])) / np.pi,
        numbers(
            "-4868.68 -4868.09 -4867.41 -3375.19 -3373.14 -3372.03 -2473.74 -2472.35 -2469.45 "
            "-1894.65 -1893.40 -1497.24 -1495.85 -1493.41 -1208.68 -1206.18 -1206.04 -997.92 "
            "-996.61 -996.31 -834.94 -834.66 -710.03 -530.16 -464.17"
        ),
        numbers(
            "0.252429 0.252141 0.251809 0.297989 0.296257 0.295319 0.339603 0.337731 0.333820 "
            "0.389510 0.386998 0.438864 0.434887 0.427893 0.471568 0.461699 0.461144 0.513532 "
            "0.506641 0.505062 0.535648 0.533726 0.568064 0.612886 0.624169"
        ),
        [[0.1, -0.00001, 1000, -100], [0.2, -0.000005, 1200, -150]],
        [2.0196866396e-01, -6.1953516256e-06, 1.2044556708e03, -1.8134269537e02],
        [1.9172666023e-02, 3.2058931691e-06, 7.4050983057e01, 4.9573513849e01],
        4.9484847331e-04,
    ),
    "MGH09": Certified(
        lambda b, x: b[0] * (x * x + x * b[1]) / (x * x + x * b[2] + b[3]),
        [4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625],
        [0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246],
        [[25, 39, 41.5, 39], [0.25, 0.39, 0.415, 0.39]],
        [1.9280693458e-01, 1.9128232873e-01, 1.2305650693e-01, 1.3606233068e-01],
        [1.1435312227e-02, 1.9633220911e-01, 8.0842031232e-02, 9.0025542308e-02],
        3.0750560385e-04,
        digits=1e-5,
    ),
    "Thurber": Certified(
        lambda b, x: (
            (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3)
            / (1 + b[4] * x + b[5] * x**2 + b[6] * x**3)
        ),
        numbers(
            "-3.067 -2.981 -2.921 -2.912 -2.840 -2.797 -2.702 -2.699 -2.633 -2.481 -2.363 "
            "-2.322 -1.501 -1.460 -1.274 -1.212 -1.100 -1.046 -0.915 -0.714 -0.566 -0.545 "
            "-0.400 -0.309 -0.109 -0.103 0.010 0.119 0.377 0.790 0.963 1.006 1.115 1.572 1.841 "
            "2.047 2.200"
        ),
        numbers(
            "80.574 84.248 87.264 87.195 89.076 89.608 89.868 90.101 92.405 95.854 100.696 "
            "101.060 401.672 390.724 567.534 635.316 733.054 759.087 894.206 990.785 1090.109 "
            "1080.914 1122.643 1178.351 1260.531 1273.514 1288.339 1327.543 1353.863 1414.509 "
            "1425.208 1421.384 1442.962 1464.350 1468.705 1447.894 1457.628"
        ),
        [[1000, 1000, 400, 40, 0.7, 0.3, 0.03], [1300, 1500, 500, 75, 1, 0.4, 0.05]],
        numbers(
            "1.2881396800e03 1.4910792535e03 5.8323836877e02 7.5416644291e01 9.6629502864e-01 "
            "3.9797285797e-01 4.9727297349e-02"
        ),
        numbers(
            "4.6647963344e00 3.9571156086e01 2.8698696102e01 5.5675370270e00 3.1333340687e-02 "
            "1.4984928198e-02 6.5842344623e-03"
        ),
        5.6427082397e03,
        digits=1e-5,
    ),
    "BoxBOD": Certified(
        lambda b, x: b[0] * (1 - np.exp(-b[1] * x)),
        [1, 2, 3, 5, 7, 10],
        [109, 149, 149, 191, 213, 224],
        [[100, 0.75]],
        [2.1380940889e02, 5.4723748542e-01],
        [1.2354515176e01, 1.0455993237e-01],
        1.1680088766e03,
    ),
    "MGH10": Certified(
        lambda b, x: b[0] * np.exp(b[1] / (x + b[2])),
        [float(x) for x in range(50, 130, 5)],
        numbers(
            "34780 28610 23650 19630 16370 13720 11540 9744 8261 7030 6005 5147 4427 3820 3307 2872"
        ),
        [[0.02, 4000, 250]],
        [5.6096364710e-03, 6.1813463463e03, 3.4522363462e02],
        [1.5687892471e-04, 2.3309021107e01, 7.8486103508e-01],
        8.7945855171e01,
        digits=1e-5,
    ),
}
MISRA1A = PROBLEMS["Misra1a"]
STARTS = [(name, k) for name, problem in PROBLEMS.items() for k in range(len(problem.starts))]


def dense(problem: Certified, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return residuals data - model [m] and the Jacobian of the model [m, p], by complex steps."""
    x, y = np.array(problem.x, float), np.array(problem.y, float)
    columns = []
    for k in range(len(b)):
        step = 1e-30 * max(abs(b[k]), 1e-30)
        moved = b.astype(complex)
        moved[k] += 1j * step
        columns.append(problem.model(moved, x).imag / step)
    return y - problem.model(b, x), np.stack(columns, axis=1)


def normal_point(problem: Certified, b: np.ndarray) -> NormalPoint:
    residual, jacobian = dense(problem, b)
    return NormalPoint(jacobian.T @ jacobian, jacobian.T @ residual, float(residual @ residual))


def full_problem(problem: Certified, start: np.ndarray, **options):
    """Solve with SciPy on the full Jacobian."""
    options = {"jac": lambda b: dense(problem, b)[1], "x_scale": "jac", **options}
    return least_squares(lambda b: -dense(problem, b)[0], start, **options)


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_certified_values(name, start):
    problem = PROBLEMS[name]
    options = {"ftol": 1e-15, "xtol": 1e-12, "gtol": None, "max_nfev": 5000}
    b0 = np.array(problem.starts[start], float)
    result = solve(lambda b: normal_point(problem, b), b0, **options)
    np.testing.assert_allclose(result.x, problem.value, rtol=problem.digits)
    assert result.cost == pytest.approx(problem.residual_sum, rel=1e-8)
    inverse = covariance(result.point.jtj)
    assert not inverse.tradeoffs
    freedom = len(problem.x) - len(problem.value)
    deviation = np.sqrt(np.diag(inverse.inverse) * result.cost / freedom)
    np.testing.assert_allclose(deviation, problem.deviation, rtol=20 * problem.digits)


@pytest.mark.parametrize("name", ["Misra1a", "Thurber", "MGH09"])
def test_same_steps_as_the_full_problem(name):
    problem = PROBLEMS[name]
    start = np.array(problem.starts[-1], float)
    full = full_problem(problem, start)
    result = solve(lambda b: normal_point(problem, b), start)
    assert result.nfev == full.nfev
    assert result.cost == pytest.approx(2 * full.cost, rel=1e-12)
    np.testing.assert_allclose(result.x, full.x, rtol=1e-5)


def test_bounds_are_respected():
    bounds, start = ([0.0, 0.0], [230.0, 1.0]), np.array([200.0, 5e-4])
    result = solve(lambda b: normal_point(MISRA1A, b), start, bounds=bounds)
    full = full_problem(MISRA1A, start, bounds=bounds)
    np.testing.assert_allclose(result.x, full.x, rtol=1e-6)
    assert result.x[0] == pytest.approx(230.0, rel=1e-6)


def test_one_pass_a_point():
    seen = []

    def evaluate(b):
        seen.append(b.tobytes())
        return normal_point(MISRA1A, b)

    result = solve(evaluate, np.array(MISRA1A.starts[1], float))
    assert len(seen) == len(set(seen)) == result.nfev == len(result.costs)


@pytest.mark.parametrize("singular", [False, True])
def test_compression_preserves_cost_gradient_and_matrix(singular):
    draw = np.random.default_rng(3)
    jacobian = draw.normal(size=(50, 6)) * np.logspace(-6, 6, 6)
    if singular:
        jacobian[:, 4] = 1e9 * jacobian[:, 1]
        jacobian[:, 5] = 0.0
    residual = draw.normal(size=50)
    point = NormalPoint(jacobian.T @ jacobian, jacobian.T @ residual, float(residual @ residual))
    f, j = compress(point)
    scale = np.where(np.diag(point.jtj) > 0, np.sqrt(np.diag(point.jtj)), 1.0)
    assert f @ f == pytest.approx(point.cost, rel=1e-13)
    np.testing.assert_allclose(j.T @ f / scale, -point.jtr / scale, atol=1e-7 * np.sqrt(point.cost))
    np.testing.assert_allclose(
        (j.T @ j) / scale / scale[:, None], point.jtj / scale / scale[:, None], atol=1e-13
    )


def test_covariance_finds_tradeoffs():
    draw = np.random.default_rng(5)
    jacobian = draw.normal(size=(40, 5)) * np.array([1.0, 1e5, 1e-5, 3.0, 1.0])
    jacobian[:, 3] = 2e-5 * jacobian[:, 1]
    jacobian[:, 4] = 0.0
    result = covariance(jacobian.T @ jacobian)
    assert sorted(result.tradeoffs) == [(1, 3), (4,)]
    assert np.isinf(result.inverse[[1, 3, 4], [1, 3, 4]]).all()
    others = jacobian[:, [0, 1, 2]]
    expected = np.linalg.pinv(others.T @ others, rcond=1e-30)[np.ix_([0, 2], [0, 2])]
    np.testing.assert_allclose(result.inverse[np.ix_([0, 2], [0, 2])], expected, rtol=1e-6)


def test_a_start_that_is_not_finite():
    with raises(ValueError, "nan at [1.0]"):
        solve(lambda b: NormalPoint(np.eye(1), np.zeros(1), float("nan")), np.array([1.0]))


def test_a_step_into_overflow_is_shortened():
    def evaluate(b):
        if b[0] > 2.0:
            return NormalPoint(np.full((1, 1), np.inf), np.full(1, np.nan), float("inf"))
        residual = 1.9 - b[0] + 0.3 * (b[0] - 1.9) ** 2
        slope = 1.0 - 0.6 * (b[0] - 1.9)
        return NormalPoint(np.array([[slope**2]]), np.array([slope * residual]), residual**2)

    result = solve(evaluate, np.array([-3.0]))
    assert result.x[0] == pytest.approx(1.9, abs=1e-6)
