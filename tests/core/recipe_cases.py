"""The ops that are put through the recipe, each with samples: one line an op in ``CASES``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxkern as jk


def scale(dtype: Any) -> Callable[[], dict[str, Any]]:
    """A small op of the tests' own library: x [n] times s []."""

    def make() -> dict[str, Any]:
        op = jk.Op("test.scale", version=1, abstract=lambda x, s: x, impl=lambda x, s: x * s)
        random = np.random.default_rng(1)
        samples = [
            (
                jnp.asarray(random.integers(-9, 9, 6), dtype),
                jnp.asarray(random.integers(-9, 9), dtype),
            )
            for _ in range(8)
        ]
        return {"op": op, "samples": samples}

    return make


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "scale-f32": scale(np.float32),
    "scale-f64": scale(np.float64),
    "scale-i32": scale(np.int32),
}
