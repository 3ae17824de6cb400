"""Where a fit starts: at what was given and estimated, or drawn within the bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.parameters import FitLayout

Array = NDArray[np.float64]


def first_start(
    layout: FitLayout, physics: Array, lower: Array, upper: Array, *estimated: bool
) -> Array:
    """The start of all fitted parameters; what was estimated is moved inside its bounds."""
    start = layout.vector(physics)
    scales = layout.n_scales
    for place, is_estimated in enumerate(estimated):
        part = slice(place * scales, (place + 1) * scales)
        if is_estimated:
            with np.errstate(invalid="ignore"):
                margin = np.minimum(1e-3 * (upper[part] - lower[part]), 1e-3)
            start[part] = np.clip(start[part], lower[part] + margin, upper[part] - margin)
    return start


def drawn_starts(
    start: Array, lower: Array, upper: Array, layout: FitLayout, count: int, seed: int
) -> list[Array]:
    """The start and count - 1 others, drawn within the bounds of the physics.

    Uniform, or uniform in the logarithm where positive bounds span more than two decades; around
    the start where there is no bound.
    """
    draw = np.random.default_rng(seed)
    starts = [start]
    for _ in range(count - 1):
        x = start.copy()
        for k in range(2 * layout.n_scales, layout.size):
            low, high, u = lower[k], upper[k], draw.random()
            if not (np.isfinite(low) and np.isfinite(high)):
                x[k] = np.clip(x[k] + (2 * u - 1) * max(abs(x[k]), 1.0), low, high)
            elif low > 0 and high > 100 * low:
                x[k] = low * (high / low) ** u
            else:
                x[k] = low + (high - low) * u
        starts.append(x)
    return starts
