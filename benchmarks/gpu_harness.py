"""What the benchmarks of the CUDA kernels share: cases, compiled programs, their times."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import harness
import jax
import numpy as np

import jaxkern as jk
from jaxkern.benchmarking import compare


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


def timed(
    case: Case, gpu: Any, cpu: Any, check: Callable[[Case, str, Any, Any], None], dry: bool
) -> dict[str, float]:
    """Seconds of one call by each way, after a check of their values, and the bytes it moves.

    Programs are enqueued back to back and waited for at the end of a turn.
    """
    sets = len(case.sets)
    runs = {
        "gpu": (*compiled(case, gpu, "native", sets), sets),
        "gpu_pure_jax": (*compiled(case, gpu, "jax", sets), sets),
        "cpu": (*compiled(case, cpu, "native", 1), 1),
    }
    got, *others = (run(operands)[0] for run, operands, _ in runs.values())
    for name, other in zip(("pure JAX on the GPU", "the CPU kernel"), others, strict=True):
        check(case, name, got, other)
    del got, others, other
    found = compare(
        {name: functools.partial(run, operands) for name, (run, operands, _) in runs.items()},
        check=None,
        rounds=3 if dry else 9,
        turn_seconds=0.01 if dry else 0.1,
        back_to_back=True,
    )
    seconds = {name: found[name].median / calls for name, (_, _, calls) in runs.items()}
    return {**seconds, "bytes": case.moved}


def copy_rate(device: Any, megabytes: int) -> float:
    """Bytes read and written a second by a large elementwise program."""
    x = jax.device_put(np.ones(megabytes << 18, np.float32), device)
    program = jax.jit(lambda x: x * 2).lower(x).compile()
    # compare() times two arms or more; the faster of equal ones is the nearer to the ceiling.
    arms = {name: functools.partial(program, x) for name in ("once", "again")}
    found = compare(arms, check=None, rounds=7, turn_seconds=0.05, back_to_back=True)
    return 2 * x.nbytes / found[found.fastest].median


def write(name: str, title: str, gpu: Any, text: str, record: dict[str, Any], note: str) -> None:
    """The result files of a chip."""
    chip = re.sub(r"[^a-z0-9]+", "-", gpu.device_kind.lower()).strip("-")
    harness.write(
        f"{name}-{chip}",
        f"{title} on {gpu.device_kind}",
        text,
        {"gpu": gpu.device_kind, **record},
        ["jax-cuda13-plugin"],
        note,
    )
