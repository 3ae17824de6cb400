"""How many threads the kernels may use: asked for, or what the machine allots to this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jaxkern.core.arguments import parse_decimal
from jaxkern.core.cgroups import MEMBERSHIP, ROOT, group_folders, read_text_or_empty

# More than any machine has, and what a C int holds.
MOST_THREADS = 2**31 - 1


def num_threads(environment: Mapping[str, str] | None = None) -> int:
    """The number of threads that kernels should use here, at least 1.

    ``JAXKERN_NUM_THREADS`` when it is set and not 0. Otherwise the smallest of what bounds this
    process: ``SLURM_CPUS_PER_TASK``, the CPU quota of its control group, its CPU affinity.

    Raises:
      ValueError: when ``JAXKERN_NUM_THREADS`` is set and is not a number from 0 to 2**31 - 1.
    """
    environment = os.environ if environment is None else environment
    asked = _asked(environment)
    if asked:
        return asked
    allotted = environment.get("SLURM_CPUS_PER_TASK", "").strip()
    bounds = [schedulable_cpus(), cgroup_cpus(), parse_decimal(allotted)]
    return max(1, min(bound for bound in bounds if bound))


def worker_cap(environment: Mapping[str, str] | None = None) -> int:
    """The cap to set on the kernels' workers; 0 where XLA's thread pool is right as it is.

    XLA sizes its pool by the affinity, so that only a smaller number needs a cap.
    """
    environment = os.environ if environment is None else environment
    asked = _asked(environment)
    if asked is not None:
        return asked
    count = num_threads(environment)
    return count if count < schedulable_cpus() else 0


def _asked(environment: Mapping[str, str]) -> int | None:
    """What ``JAXKERN_NUM_THREADS`` says; None where it is not set."""
    text = environment.get("JAXKERN_NUM_THREADS", "").strip()
    count = parse_decimal(text) if text else None
    if text and (count is None or count > MOST_THREADS):
        raise ValueError(
            f"JAXKERN_NUM_THREADS is {text!r:.80}; wanted a number of threads up to "
            f"{MOST_THREADS}, or 0 for no cap"
        )
    return count


def schedulable_cpus() -> int:
    """CPUs in this process's affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_cpus(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Whole CPUs that the control group's quota amounts to (rounded up); None without a quota.

    Reads ``cpu.max`` of version 2 and ``cpu.cfs_quota_us`` of version 1, of the process's own group
    and of those above it.
    """
    quotas = [_quota(folder) for folder in group_folders("cpu", root, membership)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path) -> int | None:
    both = read_text_or_empty(folder / "cpu.max").split()
    if len(both) != 2:
        both = [
            read_text_or_empty(folder / "cpu.cfs_quota_us"),
            read_text_or_empty(folder / "cpu.cfs_period_us"),
        ]
    allowed, every = map(parse_decimal, both)  # None: "max", or -1
    return max(1, -(-allowed // every)) if allowed is not None and every else None
