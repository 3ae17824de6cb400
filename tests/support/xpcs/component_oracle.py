"""The two-component model written from its equations, point by point, in mpmath or floats.

Nothing is shared with the code under test: the terms of the square are written out, and the decays
have the smooth absolute value of the original.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import mpmath as mp
import numpy as np

TRUTH = np.array([8e3, 0.2, 100.0, 1.2e4, 0.1, 50.0, 800.0, 0.7, 20.0, 0.5, 0.05, 0.1, 0.02, 3.0])


@dataclass(frozen=True)
class Heterodyne:
    """Geometry of a two-component model; lengths in Angstrom, times in s, angles in degrees."""

    q: float
    dt: float
    t: np.ndarray
    phi: np.ndarray

    def _power(self, law):
        scale, exponent, offset = law
        values = []
        for time in self.t:
            t = max(mp.mpf(float(time)), mp.mpf("1e-10"))
            values.append((scale * t**exponent if time > 0 else mp.mpf(0)) + offset)
        return values

    def _integral(self, rate):
        total = [mp.mpf(0)]
        for before, after in itertools.pairwise(rate):
            total.append(total[-1] + mp.mpf(self.dt) * (before + after) / 2)
        return total

    def tables(self, params):
        """Return x_s, and the integrals R, S and V, as lists of n_t numbers."""
        p = [mp.mpf(v) for v in params]
        R, S = (self._integral([max(j, 0) for j in self._power(p[k : k + 3])]) for k in (0, 3))
        V = self._integral(self._power(p[6:9]))
        fractions = []
        for time in self.t:
            exponent = p[10] * (mp.mpf(float(time)) - p[11])
            x = p[9] * mp.exp(min(max(exponent, -700), 700)) + p[12]
            y = mp.log(1 + mp.exp(50 * x)) / 50
            fractions.append(1 - mp.log(1 + mp.exp(50 * (1 - y))) / 50)
        return fractions, R, S, V

    def point(self, tables, phi0, contrast, offset, angle, i, j):
        """Return one point of c2 from the tables."""
        x, R, S, V = tables
        q, (xs, ys) = mp.mpf(self.q), (x[i], x[j])
        xr, yr = 1 - xs, 1 - ys

        def decay(table):
            distance = mp.sqrt((table[j] - table[i]) ** 2 + mp.mpf("1e-12"))
            return mp.exp(min(max(-(q**2) / 2 * distance, -700), 0))

        h_r, h_s = decay(R), decay(S)
        along = q * mp.cos((phi0 + mp.mpf(float(self.phi[angle]))) * mp.pi / 180)
        n = max((xs**2 + xr**2) * (ys**2 + yr**2), mp.mpf("1e-10"))
        cross = 2 * xr * yr * xs * ys * h_r * h_s * mp.cos(along * (V[j] - V[i]))
        f = (xr * yr) ** 2 * h_r**2 + (xs * ys) ** 2 * h_s**2 + cross
        return offset + contrast / n * f

    def g2(self, params, contrast, offset):
        """Return c2 [n_phi, n_t, n_t] in float64."""
        tables, n, phi0 = self.tables(params), len(self.t), mp.mpf(params[13])
        c2 = np.empty((len(self.phi), n, n))
        for angle, i, j in np.ndindex(c2.shape):
            if i <= j:  # the formula is symmetric
                c2[angle, i, j] = self.point(tables, phi0, contrast, offset, angle, i, j)
                c2[angle, j, i] = c2[angle, i, j]
        return c2

    def slopes(self, params, contrast, offset, angle, i, j):
        """Return derivatives of a point by [contrast, offset, physics..], from differences."""
        with mp.workdps(50):
            start = [mp.mpf(float(v)) for v in (contrast, offset, *params)]

            def value(k, v):
                moved = [*start[:k], v, *start[k + 1 :]]
                tables = self.tables(moved[2:])
                return self.point(tables, moved[15], moved[0], moved[1], angle, i, j)

            result = []
            for k, v in enumerate(start):
                h = mp.mpf(10) ** -18 * max(abs(v), mp.mpf("1e-3"))
                result.append(float((value(k, v + h) - value(k, v - h)) / (2 * h)))
            return result
