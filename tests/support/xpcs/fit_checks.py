"""Helpers for tests of fits: the model of a simulated case, and a comparison with SciPy's fit."""

from __future__ import annotations

import dataclasses

import numpy as np

import jaxkern as jk
from support.xpcs import fit_problems as problems

_GROUPS = {
    "solver": jk.xpcs.SolverOptions,
    "errors": jk.xpcs.ErrorOptions,
    "streaming": jk.xpcs.StreamingOptions,
}


class WatchedSource:
    """A symmetric source that counts its reads and calls `on_read(angle, first_row, stop_row)`."""

    symmetric = True

    def __init__(self, data, on_read=lambda *_: None):
        self.shape, self.dtype, self._data, self._on_read = data.shape, data.dtype, data, on_read
        self.reads = 0

    def read(self, angle, first_row, stop_row):
        self.reads += 1
        self._on_read(angle, first_row, stop_row)
        return self._data[angle, first_row:stop_row]


def flow(n, phi, kind=jk.xpcs.LaminarFlow):
    """Return a model of n frames with the constants of the simulated problems."""
    t = problems.DT * np.arange(n)
    return kind(jk.xpcs.Geometry(problems.Q, problems.GAP, problems.DT, t, phi))


def model_of(case):
    return flow(case.data.shape[1], case.phi)


def options(**values):
    """Arguments of `jk.xpcs.fit`, with the fields of its options objects as keywords.

    ``errors="independent"`` is short for the field `method` of `ErrorOptions`.
    """
    if isinstance(values.get("errors"), str):
        values["method"] = values.pop("errors")
    for group, kind in _GROUPS.items():
        names = {field.name for field in dataclasses.fields(kind)} & values.keys()
        fields = {name: values.pop(name) for name in sorted(names)}
        if fields:
            values[group] = dataclasses.replace(values.get(group) or kind(), **fields)
    # Without the search, a test knows the start and the passes.
    return {"progress": False, "search": "local"} | values


def fit(model, data, *arguments, **values):
    """Call `jk.xpcs.fit` with `options(**values)`."""
    return jk.xpcs.fit(model, data, *arguments, **options(**values))


def assert_same_optimum(result, dense, scale=1e-3):
    """Compare parameters in units of their standard errors, and the errors themselves."""
    inverse = np.linalg.inv(dense.jac.T @ dense.jac)
    freedom = len(dense.fun) - len(dense.x)
    deviation = np.sqrt(np.diag(inverse) * 2 * dense.cost / freedom)
    np.testing.assert_array_less(np.abs(result.popt - dense.x), scale * deviation + 1e-12)
    np.testing.assert_allclose(result.perr_independent, deviation, rtol=1e-3)
    np.testing.assert_allclose(
        result.pcov_independent / np.outer(deviation, deviation),
        inverse * 2 * dense.cost / freedom / np.outer(deviation, deviation),
        atol=2e-3,
    )
