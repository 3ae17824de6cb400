"""What the benchmarks of the CUDA kernels share: cases, compiled programs, their times."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxkern as jk


@dataclasses.dataclass
class Case:
    """An op on several sets of operands."""

    name: str
    fn: Callable[..., Any]
    sets: list[Any]
    moved: int  # bytes, at least, by one call
    tolerance: float


def compiled(case: Case, device: Any, backend: str, sets: int) -> tuple[Any, Any]:
    """One program that runs the op on each set; and its operands on the device."""
    moved = jax.device_put(case.sets[:sets], device)
    with jk.backend(backend):  # type: ignore[arg-type]
        program = jax.jit(lambda all_: [case.fn(*one) for one in all_]).lower(moved).compile()
    return program, moved


def seconds(program: Any, operands: Any, calls: int, rounds: int, least: float) -> float:
    """The median time of one call of the op."""
    for _ in range(2):
        jax.block_until_ready(program(operands))
    start = time.perf_counter()
    jax.block_until_ready(program(operands))
    repeats = max(1, round(least / max(time.perf_counter() - start, 1e-6)))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            out = program(operands)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - start) / (repeats * calls))
    return statistics.median(times)


def copy_rate(device: Any, megabytes: int) -> float:
    """Bytes read and written a second by a large elementwise program."""
    x = jax.device_put(np.ones(megabytes << 18, np.float32), device)
    program = jax.jit(lambda x: x * 2).lower(x).compile()
    return 2 * x.nbytes / seconds(program, x, 1, 7, 0.05)
