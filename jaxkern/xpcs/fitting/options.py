"""Options of `fit`, strategies for streaming the data, and estimates of their memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import GIB, memory_limit
from jaxkern.xpcs.model.checks import choice
from jaxkern.xpcs.model.twin import LOSSES, ROW_BLOCK

# Points of one chunk: 16 MB in float64, half of a typical shared cache.
CHUNK_POINTS = 2**21
# A matrix of up to this many points is one chunk: one compiled program, no remainder.
WHOLE_MATRIX_POINTS = 2**22
# Memory added by compiling one pass, in bytes (measured with jax 0.10 and 0.12 on CPU).
PROGRAM_BYTES = 72 * 2**20
# By default, fewer points than this are processed in one call a pass.
_MEMORY_POINTS = 10**7
# By default, a file with fewer points than this is loaded once instead of read in every pass.
_LOADED_POINTS = 10**8


@dataclass(frozen=True)
class SolverOptions:
    """Options of the least-squares solver; ValueError for values out of range.

    Attributes:
      loss, f_scale: ``"linear"``, ``"soft_l1"``, ``"huber"``, ``"cauchy"`` or ``"arctan"``, and the
        residual in units of sigma at which a robust loss bends, as in
        `scipy.optimize.least_squares`.
      ftol, xtol, gtol, max_nfev, x_scale: as in `scipy.optimize.least_squares`.
      multistart, seed: 1 + the number of random starts within the bounds that are fitted to all
        data, in addition to those of `search`, which finds most minima in less time. The best
        solution is returned.
      strict_bounds: True to raise ValueError for a `p0` outside the bounds, which is otherwise
        moved to them with a warning.
      allow_bounds: True if a physics parameter at one of its bounds is a valid result. Otherwise
        such a fit has ``success=False``. Contrast and offset may always be at a bound.

    Example:
      >>> import jaxkern as jk
      >>> solver = jk.xpcs.SolverOptions(loss="huber", f_scale=2.0)  # an argument of `fit`
      >>> solver.ftol
      1e-08
    """

    loss: str = "linear"
    f_scale: float = 1.0
    ftol: float | None = 1e-8
    xtol: float | None = 1e-8
    gtol: float | None = 1e-8
    max_nfev: int | None = None
    x_scale: Any = "jac"
    multistart: int = 1
    seed: int = 0
    strict_bounds: bool = False
    allow_bounds: bool = False

    def __post_init__(self) -> None:
        choice(self.loss, "loss", LOSSES)
        if isinstance(self.f_scale, str) or not self.f_scale > 0:
            raise ValueError(f"f_scale: expected a number > 0, got {self.f_scale!r}")
        check_integer("multistart", self.multistart, 1)
        check_integer("seed", self.seed, 0)
        if self.max_nfev is not None:
            check_integer("max_nfev", self.max_nfev, 1)
        if not isinstance(self.x_scale, str):
            object.__setattr__(self, "x_scale", np.array(self.x_scale, np.float64))


@dataclass(frozen=True)
class ErrorOptions:
    """How measurement noise enters the fit, and how standard errors are computed.

    Attributes:
      method: ``"jackknife"`` omits 10 blocks of frames (or single angles, if there are few
        frames) one at a time, because speckle noise is correlated; each costs one pass over the
        data. ``"independent"`` treats the noise of points as independent, as SciPy does.
      absolute_sigma: as in `scipy.optimize.curve_fit`; affects the errors of independent noise.
      weights: 1 / sigma^2, in place of the argument `sigma` of `fit` and with the same shapes.

    Example:
      >>> import jaxkern as jk
      >>> errors = jk.xpcs.ErrorOptions(method="independent")  # an argument of `fit`
      >>> errors.absolute_sigma
      False
    """

    method: Literal["jackknife", "independent"] = "jackknife"
    absolute_sigma: bool = False
    weights: Any = None

    def __post_init__(self) -> None:
        choice(self.method, "method", ("jackknife", "independent"))


class Strategy(StrEnum):
    """How a fit goes through its data; the values are the names that `StreamingOptions` accepts.

    ``memory`` copies the data to the device once and makes one kernel call a pass. ``stream``
    passes chunks of rows to the kernel. A chunk of an array in memory is not copied; a chunk of a
    file is read one chunk ahead of the kernel.

    Example:
      >>> import jaxkern as jk
      >>> jk.xpcs.Strategy("stream") is jk.xpcs.Strategy.STREAM
      True
    """

    MEMORY = "memory"
    STREAM = "stream"


_STRATEGIES = {
    **dict.fromkeys(("memory", "standard", "large"), Strategy.MEMORY),
    **dict.fromkeys(("stream", "chunked", "streaming"), Strategy.STREAM),
}


@dataclass(frozen=True)
class StreamingOptions:
    """How a fit reads its data, handles bad rows and saves its progress; ValueError out of range.

    Attributes:
      strategy: ``"memory"`` or ``"stream"``, see `Strategy`; None to choose by size and memory
        limit. The names ``"standard"`` and ``"large"`` mean memory, ``"chunked"`` and
        ``"streaming"`` mean stream.
      symmetric: True if all matrices are symmetric, which halves the work; ``"auto"`` compares all
        matrices with their transpose once before the fit.
      quantization: (step, zero) of uint16 data; a value is zero + step * stored.
      chunk_points: points of one chunk; None for 2^21, or a matrix of up to 2^22 points.
      on_bad_chunk: ``"exclude"`` excludes rows that hold NaN or cannot be read, in blocks of 32;
        ``"raise"`` raises `BadDataError`.
      retries: attempts to read such rows again first.
      enable_checkpoints: write ``checkpoint_dir/fit.checkpoint`` after passes, and resume from it
        if it exists. The file is removed when the fit has finished.
      checkpoint_dir: directory of the checkpoint; created if missing.
      checkpoint_frequency: passes between two checkpoints.

    Example:
      >>> import jaxkern as jk
      >>> streaming = jk.xpcs.StreamingOptions(strategy="stream", on_bad_chunk="raise")  # of `fit`
      >>> streaming.symmetric
      'auto'
    """

    strategy: str | None = None
    symmetric: bool | Literal["auto"] = "auto"
    quantization: tuple[float, float] | None = None
    chunk_points: int | None = None
    on_bad_chunk: Literal["exclude", "raise"] = "exclude"
    retries: int = 2
    enable_checkpoints: bool = False
    checkpoint_dir: str | Path = "checkpoints"
    checkpoint_frequency: int = 1

    def __post_init__(self) -> None:
        if self.strategy is not None:
            parse_strategy(self.strategy)
        choice(self.symmetric, "symmetric", ("auto", True, False))
        if self.chunk_points is not None:
            check_integer("chunk_points", self.chunk_points, 1)
        choice(self.on_bad_chunk, "on_bad_chunk", ("exclude", "raise"))
        check_integer("retries", self.retries, 0)
        check_integer("checkpoint_frequency", self.checkpoint_frequency, 1)


def parse_strategy(name: str) -> Strategy:
    """Return the strategy with a name, in any case."""
    if name.lower() not in _STRATEGIES:
        raise ValueError(f"strategy: expected 'memory', 'stream' or None, got {name!r}")
    return _STRATEGIES[name.lower()]


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory in GB (2^30 bytes): of a solver that stores the Jacobian, and of this fit.

    `fit` is the memory that a fit adds to a process that already holds its data. Mapped files do
    not count, because the system can drop their pages.

    Example:
      >>> import jaxkern as jk
      >>> estimate = jk.xpcs.estimate_memory(1000**2, n_parameters=7)
      >>> estimate.fit < estimate.dense_jacobian
      True
    """

    dense_jacobian: float
    fit: float


def chunk_rows(n: int, chunk_points: int = CHUNK_POINTS) -> int:
    """Return the rows of a chunk of an n x n matrix: n, or a multiple of `ROW_BLOCK`."""
    limit = max(WHOLE_MATRIX_POINTS, chunk_points) if chunk_points >= CHUNK_POINTS else chunk_points
    if n * n <= limit:
        return n
    return max(ROW_BLOCK, chunk_points // n // ROW_BLOCK * ROW_BLOCK)


def choose_strategy(n_points: int, *, n_phi: int = 1, itemsize: int = 8) -> tuple[Strategy, bool]:
    """Return the strategy under `memory_limit()`, and True to load a file."""
    available = memory_limit() * GIB
    data = n_points * itemsize
    if n_points < _MEMORY_POINTS and PROGRAM_BYTES + 2 * data <= available:
        return Strategy.MEMORY, True
    needed = data + fit_bytes(n_points, Strategy.STREAM, n_phi, itemsize)
    return Strategy.STREAM, n_points < _LOADED_POINTS and needed <= available


def fit_bytes(
    n_points: int, strategy: Strategy, n_phi: int = 1, itemsize: int = 8, in_memory: bool = True
) -> int:
    """Return the bytes that a fit adds to the process."""
    data = n_points * itemsize
    n = max(math.isqrt(n_points // n_phi), 1)
    points = min(chunk_rows(n) * n, n_points)
    if strategy is Strategy.MEMORY:
        # The device's copy, and for data of a file the loaded array.
        return PROGRAM_BYTES + data * (1 if in_memory else 2)
    return PROGRAM_BYTES + points * itemsize * (2 if in_memory else 3)


def estimate_memory(
    n_points: int,
    n_parameters: int,
    *,
    n_phi: int = 1,
    itemsize: int = 8,
    in_memory: bool = True,
    strategy: str | None = None,
) -> MemoryEstimate:
    """Estimate the memory of a fit, with and without a stored Jacobian.

    Args:
      n_points: points of all angles, counting both triangles.
      n_phi, itemsize: number of angles, and bytes of a point.
      n_parameters: fitted parameters, including contrast and offset.
      in_memory: True if the data are already in memory.
      strategy: as in `StreamingOptions`; None for the one that `fit` would choose.

    Raises:
      ValueError: for counts below 1 and unknown strategies.

    Example:
      >>> estimate = estimate_memory(23 * 1001**2, 53, n_phi=23)
      >>> round(estimate.dense_jacobian, 1), estimate.fit < 0.3
      (18.5, True)
    """
    check_integer("n_points", n_points, 1)
    check_integer("n_parameters", n_parameters, 1)
    chosen, loads = choose_strategy(n_points, n_phi=n_phi, itemsize=itemsize)
    if strategy is not None:
        chosen, loads = parse_strategy(strategy), False
    loads = loads and not in_memory and chosen is Strategy.STREAM
    total = fit_bytes(n_points, chosen, n_phi, itemsize, in_memory or loads)
    total += n_points * itemsize if loads else 0
    return MemoryEstimate(dense_jacobian=n_points * (1 + n_parameters) * 16 / GIB, fit=total / GIB)
