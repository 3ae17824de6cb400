"""Control groups of this process, which may allot it less than the machine has."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def group_folders(controller: str, root: Path, membership: Path) -> list[Path]:
    """Folders of the groups that may bound ``"cpu"`` or ``"memory"``, versions 2 and 1.

    Innermost first, with all above it up to the root of its hierarchy.
    """
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
    """What a file of the system says; nothing where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
