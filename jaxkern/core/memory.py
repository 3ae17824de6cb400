"""Memory of this process: its limit, its use, and what is available."""

from __future__ import annotations

import os
from pathlib import Path

from jaxkern.core.arguments import parse_decimal
from jaxkern.core.machine import MEMBERSHIP, ROOT, group_folders, read_text_or_empty

GIB = 2**30


def memory_limit() -> float:
    """Return the memory limit of this process in GiB, ``JAXKERN_MEMORY_LIMIT`` if it is set.

    Without the variable it is the minimum of the SLURM allocation, the cgroup's limit and the
    machine's memory.

    Example:
      >>> import jaxkern as jk
      >>> jk.xpcs.memory_limit() > 0
      True
    """
    text = os.environ.get("JAXKERN_MEMORY_LIMIT", "").strip()
    if text:
        try:
            limit = float(text)
        except ValueError:
            limit = float("nan")
        if not limit > 0:
            raise ValueError(f"JAXKERN_MEMORY_LIMIT is {text!r}; expected a number of GB above 0")
        return limit
    limits = [machine_bytes(), *_cgroup_bytes(), *_slurm_bytes()]
    return min(limits) / GIB


def machine_bytes() -> int:
    """Return the size of the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[int]:
    """Return the limits of this process's cgroups and of their parents."""
    limits = [
        parse_decimal(read_text_or_empty(folder / name))
        for folder in group_folders("memory", root, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    # Version 1 writes a huge number if there is no limit.
    return [limit for limit in limits if limit is not None and limit < 2**60]


def _slurm_bytes() -> list[int]:
    """Return SLURM's allocation on this node, converted from MB."""
    node = parse_decimal(os.environ.get("SLURM_MEM_PER_NODE", ""))
    if node:
        return [node * 2**20]
    per_cpu = parse_decimal(os.environ.get("SLURM_MEM_PER_CPU", ""))
    cpus = parse_decimal(os.environ.get("SLURM_CPUS_ON_NODE", ""))
    if per_cpu and cpus is not None:
        return [per_cpu * cpus * 2**20]
    return []


def status_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status in bytes, such as ``VmRSS``; None if unknown."""
    return _field_bytes(Path("/proc/self/status"), field)


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process in bytes, without mapped files."""
    return status_bytes("RssAnon") or 0


def available_bytes() -> int:
    """Return the bytes that this process can still allocate."""
    room = int(min(memory_limit() * GIB, machine_bytes())) - anonymous_bytes()
    free = _field_bytes(Path("/proc/meminfo"), "MemAvailable")
    return max(room if free is None else min(room, free), 0)


def _field_bytes(path: Path, field: str) -> int | None:
    """Parse a line such as ``RssAnon:  1024 kB`` into bytes; None if it is missing."""
    for line in read_text_or_empty(path).splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def check_memory(what: str, needed: int, advice: str, minimum: int = 0) -> None:
    """Raise MemoryError if arrays of ``needed`` bytes exceed the available memory.

    ``what`` is a plural subject for the message. Sizes up to ``minimum`` bytes are not checked.

    >>> check_memory("arrays of 2 frames", 16, "select fewer frames")
    """
    if needed > minimum and needed > (free := available_bytes()):
        raise MemoryError(
            f"{what} need {needed / 1e9:,.3g} GB, and {free / 1e9:,.3g} GB of memory are free; "
            f"{advice}"
        )
