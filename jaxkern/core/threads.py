"""The CPUs that this process may use, and the number of threads of the kernels."""

from __future__ import annotations

import os
from pathlib import Path

from jaxkern.core.arguments import parse_decimal
from jaxkern.core.machine import MEMBERSHIP, ROOT, group_folders, read_text_or_empty

# The largest C int.
MAX_THREADS = 2**31 - 1


def num_threads() -> int:
    """Return the number of threads that kernels should use here, at least 1.

    ``JAXKERN_NUM_THREADS`` if it is set and not 0, else the minimum of ``SLURM_CPUS_PER_TASK``, the
    CPU quota of the control group, and the CPU affinity.

    Example:
      >>> from jaxkern import performance
      >>> performance.num_threads() >= 1
      True
    """
    return _requested() or usable_cpus()


def worker_cap() -> int:
    """Return the cap for the kernels' workers; 0 if XLA's thread pool needs no cap.

    XLA sizes its pool by the CPU affinity, so only a smaller number needs a cap.
    """
    requested = _requested()
    if requested is not None:
        return requested
    cpus = usable_cpus()
    return cpus if cpus < schedulable_cpus() else 0


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use: the smallest of its limits."""
    bounds = [schedulable_cpus(), cgroup_cpus(), slurm_cpus()]
    return min(bound for bound in bounds if bound)


def slurm_cpus() -> int | None:
    """Return the CPUs of a task of SLURM; None outside of SLURM."""
    return parse_decimal(os.environ.get("SLURM_CPUS_PER_TASK", "").strip()) or None


def _requested() -> int | None:
    """Return the value of ``JAXKERN_NUM_THREADS``; None if it is not set."""
    text = os.environ.get("JAXKERN_NUM_THREADS", "").strip()
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
