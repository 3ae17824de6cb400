"""What a file of results was made of, as it says itself: files of frames, bins, choices.

By it a second start knows what is finished. A file counts by its name, its size and the time of its
last change, which is looked at before it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NAME = "xpcs/made_of"


def file_told(path: Path) -> list[Any]:
    """A file's name, size and time of its last change in ns; without these where it is gone."""
    try:
        status = path.stat()
    except OSError:
        return [path.name]
    return [path.name, status.st_size, status.st_mtime_ns]


def links_told(path: Path, others: Iterable[str]) -> dict[str, list[Any]]:
    """The files that `path` links to, which are absolute or relative to its folder."""
    folder = path.absolute().parent
    places = [folder / other for other in others]
    return {os.path.relpath(place, folder): file_told(place) for place in places}


def read_made_of(path: Path) -> dict[str, Any] | None:
    """What a file says that it was made of; None where it says nothing or cannot be read."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            said = json.loads(file[NAME].asstr()[()])
    # Of any file: h5py's errors have no kind in common.
    except Exception:
        return None
    return said if isinstance(said, dict) else None


def why_again(path: Path, told: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    """Why results that are there are not those of the file at `path`; None where they are.

    Args:
      told: what results of it say if they are made now, besides the files of frames.
      there: what those that are there say.
    """
    # Through JSON, so that both sides went the same way.
    here = json.loads(json.dumps({"file": file_told(path), **told}))
    linked = there.get("linked")
    here["linked"] = links_told(path, linked if isinstance(linked, dict) else ())
    differing = [
        f"{name} (there {_shown(there.get(name))}, here {_shown(here.get(name))})"
        for name in (*here, *(name for name in there if name not in here))
        if here.get(name) != there.get(name)
    ]
    return ", ".join(differing) or None


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
