"""The example with NumPyro's NUTS: gradient and scale of `log_likelihood`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[3] / "examples" / "xpcs_nuts.py"
    spec = importlib.util.spec_from_file_location("xpcs_nuts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_posterior_has_the_covariance_of_the_fit(example, tmp_path):
    result, draws = example.compare(1000)
    assert list(draws) == ["contrast[0]", "offset[0]", "D0", "alpha"]
    for name, fit, error, mean, spread in example.table(result, draws):
        # About 400 independent draws determine a spread and a correlation to 0.05.
        assert spread == pytest.approx(error, rel=0.25), name
        assert abs(mean - fit) < 0.4 * error, name
    names = [result.names.index(name) for name in draws]
    expected = result.pcov[np.ix_(names, names)] / np.outer(result.perr[names], result.perr[names])
    np.testing.assert_allclose(np.corrcoef(list(draws.values())), expected, atol=0.2)
    example.plot(result, draws, tmp_path / "posterior.png")
    assert (tmp_path / "posterior.png").stat().st_size > 5000
