"""The control groups of this process, whose files tell what it may use."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def groups(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Folders of a controller's groups, innermost first, with the root of each hierarchy.

    Of version 2, which has one hierarchy for all, and of version 1, which has some, each of a few
    controllers.
    """
    folders = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root
        if controllers:
            if controller not in controllers.split(","):
                continue
            base = root / controllers if (root / controllers).is_dir() else root / controller
        here = base / path.lstrip("/")
        while base in here.parents:
            folders.append(here)
            here = here.parent
        folders.append(base)
    return folders or [root, root / controller]


def told(folder: Path, *names: str) -> str:
    """What the first of a group's files says that is there; empty where none is."""
    for name in names:
        try:
            return (folder / name).read_text().strip()
        except OSError:
            continue
    return ""
