"""The processor of this machine, and the control groups that may limit this process to a part."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from jaxkern.core.arguments import parse_decimal

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_STAT = Path("/proc/stat")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """Return the processor's name, such as ``"AMD EPYC 7763 64-Core Processor"``."""
    fields: dict[str, str] = {}
    for line in read_text_or_empty(cpuinfo).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    # Linux on Arm reports numbers instead of a name.
    parts = [fields[n] for n in ("CPU implementer", "CPU part") if n in fields]
    name = platform.processor() or platform.machine() or "unknown processor"
    return " ".join([name, *parts])


def last_level_caches(cpus: Path = _CPUS) -> list[int]:
    """Return the size of each last-level cache in bytes; empty if unknown."""
    caches: dict[tuple[int, str], int] = {}
    for index in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        names = ("type", "level", "size", "shared_cpu_list")
        kind, at, size, shared = (read_text_or_empty(index / name) for name in names)
        level, number = parse_decimal(at), parse_decimal(size[:-1])
        if kind != "Instruction" and level and number is not None and size[-1] in _UNITS:
            caches[(level, shared)] = number * _UNITS[size[-1]]
    last = max((level for level, _ in caches), default=0)
    return [size for (level, _), size in caches.items() if level == last]


def busy_seconds(stat: Path = _STAT) -> float | None:
    """Return the busy and stolen seconds of all processors together; None if unknown."""
    try:
        name, *ticks = read_text_or_empty(stat).splitlines()[0].split()
        user, nice, system, _, _, irq, softirq, stolen = map(int, ticks[:8])
    except (ValueError, IndexError):
        return None
    busy = user + nice + system + irq + softirq + stolen
    return busy / os.sysconf("SC_CLK_TCK") if name == "cpu" else None


def group_folders(controller: str, root: Path, membership: Path) -> list[Path]:
    """List the folders of the groups that limit ``"cpu"`` or ``"memory"``, innermost first."""
    folders = []
    for line in read_text_or_empty(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        base = root
        if controllers:  # version 1
            if controller not in controllers.split(","):
                continue
            joint = root / controllers
            base = joint if joint.is_dir() else root / controller
        here = base / path.lstrip("/")
        while base in here.parents:
            folders.append(here)
            here = here.parent
        folders.append(base)
    return folders or [root, root / controller]


def read_text_or_empty(path: Path) -> str:
    """Return the stripped text of a system file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
