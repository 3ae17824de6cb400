"""The example that fits g2 of rings: would catch a lost factor between q, rates and g2, and errors
of g2 that have nothing to do with its scatter.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np


def test_rates_of_rings_are_those_of_the_simulation():
    path = Path(__file__).parents[3] / "examples" / "xpcs_g2.py"
    spec = importlib.util.spec_from_file_location("xpcs_g2", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    r = example.measure(700)
    values, errors = example.fits(r)
    truth = example.D * r.q**2
    inner = slice(1, None)  # the first ring has few pixels and few correlation times here
    assert (np.abs(values[inner, 0] / truth[inner] - 1) < 0.25).all()
    assert (np.abs(values[inner, 0] - truth[inner]) < 6 * errors[inner, 0]).all()
    assert (errors[inner, 0] < 0.1 * truth[inner]).all()
