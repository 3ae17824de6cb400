"""What stays the same through all starts and passes of a fit, and what tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.fitting.fit_data import FitData
from jaxkern.xpcs.fitting.noise import Noise
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.parameters import FitLayout, Turns
from jaxkern.xpcs.fitting.passes import BadBlocks, PassContext
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]


class FitProgress(ProgressBar):
    """The progress bar of a fit: passes and cost, and the chunks of the running pass."""

    def __init__(self, wanted: bool) -> None:
        super().__init__(wanted, "fit: pass 1", "chunk")

    def after_pass(self, number: int, cost: float) -> None:
        """Pass `number` is finished."""
        self.update(done=0, text=f"fit: pass {number + 1}, cost {cost:.6g}")

    def after_extra(self, number: int, total: int) -> None:
        """Pass `number` of the `total` for the errors is finished."""
        self.update(done=0, text=f"errors: pass {min(number + 1, total)} of {total}")


@dataclass(frozen=True)
class FitProblem:
    """A fit but for its start: data, noise, parameters, and how to go through and report them.

    `lower` and `upper` bound all fitted parameters, of which those of `free` move, and `turns` has
    the bounds of angles, which the result is moved into; `mirrored` [n_phi] says whose data are;
    `solver` holds the arguments of SciPy's least_squares.
    """

    model: Model
    data: FitData
    noise: Noise
    layout: FitLayout
    turns: Turns
    lower: Array
    upper: Array
    free: NDArray[np.bool_]
    mirrored: NDArray[np.bool_]
    context: PassContext
    bad: BadBlocks
    loss: str
    absolute_sigma: bool
    allow_bounds: bool
    solver: dict[str, Any]
    streaming: StreamingOptions
    progress: FitProgress
    empty_frames: tuple[int, ...]
    begin: float
