"""The memory of this process: what it may use at most, uses, and may still take."""

from __future__ import annotations

import os
from pathlib import Path

from jaxkern.core.arguments import decimal

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


def _cgroup_bytes(
    root: Path = Path("/sys/fs/cgroup"), process: str = "/proc/self/cgroup"
) -> list[int]:
    """Limits of this process's cgroups and of those above them, versions 2 and 1."""
    try:
        lines = Path(process).read_text().splitlines()
    except OSError:
        return []
    found: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            try:
                text = (place / name).read_text().strip()
            except OSError:
                text = "max"
            # Version 1 writes a number beyond any memory where there is no limit.
            limit = decimal(text)
            if limit is not None and limit < 2**60:
                found.append(limit)
            if place == base:
                break
    return found


def _slurm_bytes() -> list[int]:
    """SLURM's allocation on this node, which it gives in MB."""
    node = decimal(os.environ.get("SLURM_MEM_PER_NODE", ""))
    if node:
        return [node * 2**20]
    per_cpu = decimal(os.environ.get("SLURM_MEM_PER_CPU", ""))
    cpus = decimal(os.environ.get("SLURM_CPUS_ON_NODE", ""))
    if per_cpu and cpus is not None:
        return [per_cpu * cpus * 2**20]
    return []


def status_bytes(field: str) -> int | None:
    """A figure of this process in bytes, such as its ``VmRSS``; None where it is not told."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def anonymous_bytes() -> int:
    """Memory that is this process's own, without the pages of mapped files."""
    return status_bytes("RssAnon") or 0


def available_bytes() -> int:
    """What this process may still take: up to its own limit, and of what the machine has free."""
    room = int(min(memory_limit() * GIB, machine_bytes())) - anonymous_bytes()
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                room = min(room, int(line.split()[1]) * 1024)
    except OSError:
        pass
    return max(room, 0)
