"""Two-time correlations written from the equations: in NumPy, point by point, and in mpmath.

Nothing is shared with the code under test: sinc is sin(x) / x, exponentials are taken of
differences, the trapezoid is a running sum, and Jacobians are dense.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import mpmath as mp
import numpy as np


@dataclass(frozen=True)
class Flow:
    """Laminar flow (7 parameters) or, with 3 parameters, diffusion alone."""

    q: float
    gap: float
    dt: float
    t: np.ndarray
    phi: np.ndarray
    power: int = 4

    def _integral(self, scale, exponent, offset, number, power, floor):
        t = [number(float(x)) for x in self.t]
        lowest = max(abs(t[1] - t[0]) / 2, number(1e-8))
        rates = []
        for x in t:
            rate = scale * power(x if x > lowest else lowest, exponent) + offset
            rates.append(rate if rate > floor else floor)
        total = [number(0)]
        for before, after in itertools.pairwise(rates):
            total.append(total[-1] + (before + after) / 2)
        return total

    def phases(self, params, number=float, power=math.pow, cos=math.cos, pi=math.pi):
        """Return A [n_t] and X [n_phi][n_t] as lists of `number`."""
        q, gap, dt = number(self.q), number(self.gap), number(self.dt)
        floor = number(1e-10)
        diffusion = self._integral(*params[:3], number, power, floor)
        A = [q * q * dt * v / 2 for v in diffusion]
        if len(params) == 3:
            return A, [[number(0)] * len(A) for _ in self.phi]
        strain = self._integral(*params[3:6], number, power, floor)
        X = []
        for phi in self.phi:
            along = cos((params[6] - number(float(phi))) * pi / 180)
            X.append([q * gap * dt / (2 * pi) * along * v for v in strain])
        return A, X

    def g2(self, params, contrast, offset):
        """Return g2 [n_phi, n_t, n_t] in float64."""
        A, X = (np.array(v) for v in self.phases([float(p) for p in params]))
        contrast, offset = (np.broadcast_to(v, len(X)) for v in (contrast, offset))
        return np.stack(
            [
                o + c * correlation(A[:, None] - A, x[:, None] - x, self.power)
                for x, c, o in zip(X, contrast, offset, strict=True)
            ]
        )

    def exact_g2(self, params, contrast, offset, angle, i, j):
        """Return one point of g2 in the precision of mpmath."""
        exact = [mp.mpf(p) for p in params]
        A, X = self.phases(exact, mp.mpf, mp.power, mp.cos, mp.pi)
        x = X[angle][i] - X[angle][j]
        return offset + contrast * mp.exp(-2 * abs(A[i] - A[j])) * mp.sinc(x) ** self.power

    def exact_jacobian(self, params, contrast, offset, angle, i, j):
        """Return derivatives of a point by [contrast, offset, physics..], from differences."""
        start = [mp.mpf(float(v)) for v in (contrast, offset, *params)]

        def value(k, v):
            moved = [*start[:k], v, *start[k + 1 :]]
            return self.exact_g2(moved[2:], moved[0], moved[1], angle, i, j)

        with mp.workdps(60):
            step = mp.mpf(10) ** -22
            slopes = []
            for k, v in enumerate(start):
                h = step * max(abs(v), mp.mpf("1e-3"))
                slopes.append((value(k, v + h) - value(k, v - h)) / (2 * h))
        return slopes


def correlation(dA, dX, power):
    """Return f of differences [..] in float64."""
    with np.errstate(invalid="ignore", divide="ignore"):
        sinc = np.where(dX == 0, 1.0, np.sin(dX) / dX)
    return np.exp(-2 * np.abs(dA)) * sinc**power


def slopes(dA, dX, power):
    """Return df/d(dA) and df/d(dX) in f64, computed in extended precision if available."""
    y = np.asarray(dX, np.longdouble)
    # Around 0 the quotient cancels: two terms of the series leave 1e-17.
    near = np.abs(y) < 1e-3
    z = np.where(near, 1, y)
    slope = np.where(near, -y / 3 + y**3 / 30, (z * np.cos(z) - np.sin(z)) / z**2)
    sinc = np.where(near, 1 - y**2 / 6 + y**4 / 120, np.sin(z) / z)
    decay = np.exp(-2 * np.abs(np.asarray(dA, np.longdouble)))
    a = -2 * np.sign(dA) * decay * sinc**power
    h = decay * power * sinc ** max(power - 1, 0) * slope
    return a.astype(float), h.astype(float)


RHO = {  # SciPy's definitions of rho(z) and rho'(z)
    "linear": (lambda z: z, lambda z: 1 + 0 * z),
    "soft_l1": (lambda z: 2 * ((1 + z) ** 0.5 - 1), lambda z: (1 + z) ** -0.5),
    "huber": (
        lambda z: np.where(z <= 1, z, 2 * np.sqrt(z) - 1),
        lambda z: np.where(z <= 1, 1, 1 / np.sqrt(np.maximum(z, 1))),
    ),
    "cauchy": (lambda z: np.log(1 + z), lambda z: 1 / (1 + z)),
    "arctan": (lambda z: np.arctan(z), lambda z: 1 / (1 + z**2)),
}


def dense_normal_equations(c2, jacobian, data, sigma, keep=None, loss="linear", f_scale=1.0):
    """Return jtj, jtr, chi2, cost and count of dense arrays.

    c2, data and sigma (or a number) are [n_phi, n, n], jacobian [n_phi, n, n, P] is dg2/dp.
    """
    n, sigma = c2.shape[-1], np.broadcast_to(sigma, c2.shape)
    counts = (sigma > 1e-10) & ~np.eye(n, dtype=bool)
    if keep is not None:
        keep = np.broadcast_to(keep, (c2.shape[0], n))
        counts &= keep[:, :, None] & keep[:, None, :]
    J = jacobian[counts] / sigma[counts][:, None]
    r = (data[counts] - c2[counts]) / sigma[counts]
    rho, weight = (fn((r / f_scale) ** 2) for fn in RHO[loss])
    return {
        "jtj": J.T @ (J * weight[:, None]),
        "jtr": J.T @ (r * weight),
        "chi2": np.sum(r**2),
        "cost": f_scale**2 * np.sum(rho),
        "count": counts.sum(),
    }
