"""The number of threads for the kernels: requested, or allotted to this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jaxkern.core.arguments import parse_decimal
from jaxkern.core.machine import MEMBERSHIP, ROOT, group_folders, read_text_or_empty

# The largest C int.
MAX_THREADS = 2**31 - 1


def num_threads(environment: Mapping[str, str] | None = None) -> int:
    """Return the number of threads that kernels should use here, at least 1.

    ``JAXKERN_NUM_THREADS`` if it is set and not 0, else the minimum of ``SLURM_CPUS_PER_TASK``, the
    CPU quota of the control group, and the CPU affinity.
    """
    environment = os.environ if environment is None else environment
    requested = _requested(environment)
    if requested:
        return requested
    allotted = environment.get("SLURM_CPUS_PER_TASK", "").strip()
    bounds = [schedulable_cpus(), cgroup_cpus(), parse_decimal(allotted)]
    return max(1, min(bound for bound in bounds if bound))


def worker_cap(environment: Mapping[str, str] | None = None) -> int:
    """Return the cap for the kernels' workers; 0 if XLA's thread pool needs no cap.

    XLA sizes its pool by the CPU affinity, so only a smaller number needs a cap.
    """
    environment = os.environ if environment is None else environment
    requested = _requested(environment)
    if requested is not None:
        return requested
    count = num_threads(environment)
    return count if count < schedulable_cpus() else 0


def _requested(environment: Mapping[str, str]) -> int | None:
    """Return the value of ``JAXKERN_NUM_THREADS``; None if it is not set."""
    text = environment.get("JAXKERN_NUM_THREADS", "").strip()
    count = parse_decimal(text) if text else None
    if text and (count is None or count > MAX_THREADS):
        expected = f"an integer from 0 (no cap) to {MAX_THREADS}"
        raise ValueError(f"JAXKERN_NUM_THREADS is {text!r:.80}; expected {expected}")
    return count


def schedulable_cpus() -> int:
    """Return the number of CPUs in this process's affinity mask."""
    is_linux = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1


def cgroup_cpus(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Return the control groups' CPU quota, rounded up to whole CPUs; None without a quota."""
    quotas = [_quota(folder) for folder in group_folders("cpu", root, membership)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path) -> int | None:
    both = read_text_or_empty(folder / "cpu.max").split()
    if len(both) != 2:
        both = [read_text_or_empty(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota, period = map(parse_decimal, both)  # None: "max", or -1
    return max(1, -(-quota // period)) if quota is not None and period else None
