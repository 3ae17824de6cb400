"""The package's model of a simulated case, and the comparison of its fit with SciPy's."""

from __future__ import annotations

import numpy as np

import jaxkern as jk
from support.xpcs import fit_problems as problems


def model_of(case, kind=None):
    n = case.data.shape[1]
    t = problems.DT * np.arange(n)
    geometry = jk.xpcs.Geometry(problems.Q, problems.GAP, problems.DT, t, case.phi)
    return jk.xpcs.LaminarFlow(geometry) if kind is None else kind(geometry)


def assert_same_optimum(found, dense, scale=1e-3):
    """Parameters to a small part of their errors, which is what their size means."""
    inverse = np.linalg.inv(dense.jac.T @ dense.jac)
    freedom = len(dense.fun) - len(dense.x)
    deviation = np.sqrt(np.diag(inverse) * 2 * dense.cost / freedom)
    np.testing.assert_array_less(np.abs(found.popt - dense.x), scale * deviation + 1e-12)
    np.testing.assert_allclose(found.perr_independent, deviation, rtol=1e-3)
    np.testing.assert_allclose(
        found.pcov_independent / np.outer(deviation, deviation),
        inverse * 2 * dense.cost / freedom / np.outer(deviation, deviation),
        atol=2e-3,
    )
