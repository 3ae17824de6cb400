"""The memory of this process: what it may use at most, uses, and may still take."""

from __future__ import annotations

import os
from pathlib import Path

from jaxkern.core.arguments import parse_decimal
from jaxkern.core.cgroups import MEMBERSHIP, ROOT, group_folders, read_text_or_empty

GIB = 2**30


def memory_limit() -> float:
    """GB that this process may use: ``JAXKERN_MEMORY_LIMIT``, else the tightest limit set on it.

    Without the variable: the SLURM allocation, the limit of the cgroup and the machine's memory,
    whichever is least.
    """
    given = os.environ.get("JAXKERN_MEMORY_LIMIT", "").strip()
    if given:
        try:
            limit = float(given)
        except ValueError:
            limit = float("nan")
        if not limit > 0:
            raise ValueError(f"JAXKERN_MEMORY_LIMIT is {given!r}; wanted a number of GB above 0")
        return limit
    limits = [machine_bytes(), *_cgroup_bytes(), *_slurm_bytes()]
    return min(limits) / GIB


def machine_bytes() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[int]:
    """Limits of this process's cgroups and of those above them."""
    found = [
        parse_decimal(read_text_or_empty(folder / name))
        for folder in group_folders("memory", root, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    # Version 1 writes a number beyond any memory where there is no limit.
    return [limit for limit in found if limit is not None and limit < 2**60]


def _slurm_bytes() -> list[int]:
    """SLURM's allocation on this node, which it gives in MB."""
    node = parse_decimal(os.environ.get("SLURM_MEM_PER_NODE", ""))
    if node:
        return [node * 2**20]
    per_cpu = parse_decimal(os.environ.get("SLURM_MEM_PER_CPU", ""))
    cpus = parse_decimal(os.environ.get("SLURM_CPUS_ON_NODE", ""))
    if per_cpu and cpus is not None:
        return [per_cpu * cpus * 2**20]
    return []


def status_bytes(field: str) -> int | None:
    """A figure of this process in bytes, such as its ``VmRSS``; None where it is not told."""
    return _told_bytes(Path("/proc/self/status"), field)


def anonymous_bytes() -> int:
    """Memory that is this process's own, without the pages of mapped files."""
    return status_bytes("RssAnon") or 0


def available_bytes() -> int:
    """What this process may still take: up to its own limit, and of what the machine has free."""
    room = int(min(memory_limit() * GIB, machine_bytes())) - anonymous_bytes()
    free = _told_bytes(Path("/proc/meminfo"), "MemAvailable")
    return max(room if free is None else min(room, free), 0)


def _told_bytes(path: Path, field: str) -> int | None:
    """Bytes of a line such as ``RssAnon:  1024 kB``; None where it is not told."""
    for line in read_text_or_empty(path).splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
