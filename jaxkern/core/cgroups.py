"""Control groups of this process, which may limit it to a part of the machine."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


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
