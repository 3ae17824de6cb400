"""What stays the same through all starts and passes of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.input import FitData
from jaxkern.xpcs.fitting.noise import Noise
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.parameters import FitLayout
from jaxkern.xpcs.fitting.passes import BadBlocks, PassContext
from jaxkern.xpcs.fitting.progress import FitProgress
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FitProblem:
    """A fit but for its start: data, noise, parameters, and how to go through and report them.

    `lower` and `upper` bound all fitted parameters, of which those of `free` move; `mirrored`
    [n_phi] says whose data are; `solver` holds the arguments of SciPy's least_squares;
    `fingerprint` is None without checkpoints.
    """

    model: Model
    data: FitData
    noise: Noise
    layout: FitLayout
    lower: Array
    upper: Array
    free: NDArray[np.bool_]
    mirrored: NDArray[np.bool_]
    context: PassContext
    bad: BadBlocks
    loss: str
    absolute_sigma: bool
    solver: dict[str, Any]
    streaming: StreamingOptions
    fingerprint: dict[str, Any] | None
    progress: FitProgress
    empty_frames: tuple[int, ...]
    begin: float
