"""Draws of parameters in one program: eager operations would be compiled one by one."""

from __future__ import annotations

import functools

import jax
import numpy as np
from scipy import stats

from jaxkern import image as im


@functools.partial(jax.jit, static_argnames=("aug", "size"))
def sample(aug, keys, size):
    """Return `aug.sample(keys, size)` for a size of Python integers."""
    return aug.sample(keys, size)


@functools.cache
def _keys(count):
    return jax.random.split(jax.random.key(0), count)


def draw(transform, size, count, *names, boxes=None):
    """Return NumPy arrays [count, ...] of all parameters, or of these names, for boxes [K, 4]."""

    def sample_one(keys, boxes):
        params = im.Compose([transform]).sample(keys, size, boxes)[0]
        return {name: params[name] for name in names or params}

    if boxes is not None:
        boxes = np.broadcast_to(boxes, (count, *boxes.shape))
    params = jax.jit(sample_one)(_keys(count), boxes)
    return {name: np.asarray(value) for name, value in params.items()}


def assert_same_distribution(first, second):
    """Compare two samples of numbers by the test of Kolmogorov and Smirnov."""
    assert stats.ks_2samp(np.asarray(first, float), np.asarray(second, float)).pvalue > 1e-3
