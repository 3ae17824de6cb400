"""Examples and public names of files and settings, and both functions that simulate data."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest

from jaxkern import xpcs

MODULES = ("files.aps", "analysis.settings", "files.prepare", "files.simulation")


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.xpcs.{name}"))


def test_every_public_name_is_there():
    assert all(hasattr(xpcs, name) for name in xpcs.__all__)
    assert len(set(xpcs.__all__)) == len(xpcs.__all__)


def test_both_ways_to_simulate_give_the_same(tmp_path):
    """The mirrored noise has the size that was asked for and does not depend on where it goes."""
    t = 0.1 * np.arange(300)
    geometry = xpcs.Geometry(q=0.0054, gap=2e6, dt=0.1, t=t, phi=[0.0, 40.0])
    model = xpcs.LaminarFlow(geometry)
    how = {"noise": 0.02, "diagonal_artifact": 0.5, "seed": 4}
    held = xpcs.simulate(model, model.defaults, 0.3, [1.0, 1.1], **how)
    path = xpcs.simulate_to_file(
        tmp_path / "s.h5", model, model.defaults, 0.3, [1.0, 1.1], dtype="f8", **how
    )
    np.testing.assert_array_equal(xpcs.load_aps(path).c2, held)
    np.testing.assert_array_equal(held, held.transpose(0, 2, 1))
    clean = xpcs.simulate(model, model.defaults, 0.3, [1.0, 1.1])
    upper = (held - clean)[:, *np.triu_indices(300, 1)]
    assert np.std(upper) == pytest.approx(0.02, rel=0.02)
    assert abs(np.mean(upper)) < 5 * 0.02 / np.sqrt(upper.size)
    k = np.arange(300)
    assert np.mean((held - clean)[:, k, k]) == pytest.approx(0.5, abs=0.01)
