"""How a fit goes through its data, and what memory that takes.

| strategy  | chosen for     | data                                                            |
|-----------|----------------|-----------------------------------------------------------------|
| STANDARD  | < 1M points    | on the device once, one kernel call a pass                      |
| LARGE     | 1M to 10M      | the same                                                        |
| CHUNKED   | 10M to 100M    | in memory where the caller has it, given to the kernel in chunks |
| STREAMING | > 100M         | read again in every pass, one chunk ahead of the kernel         |

A strategy whose memory goes beyond the limit gives way to the next one that fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from jaxkern.core.memory import GIB, memory_limit

# Points of one chunk: 16 MB in float64, which fits a shared cache beside what is being read.
CHUNK_POINTS = 2**21
# A matrix of up to this many points stays one chunk: one compiled program, no remainder.
WHOLE_MATRIX_POINTS = 2**22
# What compiling one pass adds to a process (measured with jax 0.10 and 0.12 on CPU), in bytes.
PROGRAM_BYTES = 72 * 2**20


class Strategy(StrEnum):
    """The way through the data; the values are the names that `fit(strategy=...)` takes."""

    STANDARD = "STANDARD"
    LARGE = "LARGE"
    CHUNKED = "CHUNKED"
    STREAMING = "STREAMING"


_LIMITS = (
    (Strategy.STANDARD, 10**6),
    (Strategy.LARGE, 10**7),
    (Strategy.CHUNKED, 10**8),
)


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory in GB (2^30 bytes): of a solver that stores the Jacobian, and of this fit.

    `fit` is what a fit adds to a process that holds its data already (mapped files count for
    nothing: their pages are the system's).
    """

    dense_jacobian: float
    fit: float


def chunk_rows(n: int, row_block: int, chunk_points: int = CHUNK_POINTS) -> int:
    """Rows of an n x n matrix that are one chunk: all of them, or a multiple of `row_block`."""
    whole = max(WHOLE_MATRIX_POINTS, chunk_points) if chunk_points >= CHUNK_POINTS else chunk_points
    if n * n <= whole:
        return n
    return max(row_block, chunk_points // n // row_block * row_block)


def choose_strategy(
    n_points: int,
    *,
    n_phi: int = 1,
    itemsize: int = 8,
    in_memory: bool = True,
    limit: float | None = None,
) -> Strategy:
    """The strategy for data of this size under a memory limit in GB (None: `memory_limit()`)."""
    room = (memory_limit() if limit is None else limit) * GIB
    order = list(Strategy)
    first = next((s for s, most in _LIMITS if n_points < most), Strategy.STREAMING)
    for strategy in order[order.index(first) :]:
        held = n_points * itemsize if in_memory else 0
        needed = held + fit_bytes(n_points, strategy, n_phi, itemsize, in_memory)
        if needed <= room:
            return strategy
    return Strategy.STREAMING


def fit_bytes(
    n_points: int, strategy: Strategy, n_phi: int = 1, itemsize: int = 8, in_memory: bool = True
) -> int:
    """Bytes that a fit adds to the process under a strategy."""
    data = n_points * itemsize
    n = max(math.isqrt(n_points // n_phi), 1)
    points = min(chunk_rows(n, 32) * n, n_points)
    buffers = 2 * points * itemsize
    if strategy in (Strategy.STANDARD, Strategy.LARGE):
        # The device's copy; data from a file are loaded besides.
        return PROGRAM_BYTES + data * (1 if in_memory else 2)
    if strategy is Strategy.CHUNKED:
        return PROGRAM_BYTES + buffers + (0 if in_memory else data)
    return PROGRAM_BYTES + buffers + (0 if in_memory else points * itemsize)


def estimate_memory(
    n_points: int,
    n_parameters: int,
    *,
    n_phi: int = 1,
    itemsize: int = 8,
    in_memory: bool = True,
    strategy: str | None = None,
) -> MemoryEstimate:
    """What a fit of `n_points` with `n_parameters` takes, with and without a stored Jacobian.

    Args:
      n_points: of all angles together, both halves counted.
      n_parameters: fitted ones, contrast and offset included.
      n_phi, itemsize, in_memory: angles, bytes a point, and whether the data are in memory already.
      strategy: as in `fit`; None takes the one that `fit` would.

    Example:
      >>> estimate = estimate_memory(23 * 1001**2, 53, n_phi=23)
      >>> round(estimate.dense_jacobian, 1), estimate.fit < 0.3
      (18.5, True)
    """
    if n_points < 1 or n_parameters < 1:
        raise ValueError(
            f"n_points is {n_points} and n_parameters is {n_parameters}; wanted 1 or more of each"
        )
    chosen = (
        choose_strategy(n_points, n_phi=n_phi, itemsize=itemsize, in_memory=in_memory)
        if strategy is None
        else parse_strategy(strategy)
    )
    return MemoryEstimate(
        dense_jacobian=n_points * (1 + n_parameters) * 16 / GIB,
        fit=fit_bytes(n_points, chosen, n_phi, itemsize, in_memory) / GIB,
    )


def parse_strategy(name: str) -> Strategy:
    """The strategy of this name, in any case."""
    try:
        return Strategy(name.upper())
    except ValueError:
        names = ", ".join(Strategy)
        raise ValueError(f"strategy is {name!r}; wanted one of {names}, or None") from None
