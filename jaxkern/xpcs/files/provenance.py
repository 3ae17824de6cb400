"""Provenance of results: the files of frames, bins and choices that a file of results stores.

With it a second run recognizes finished files. A file is identified by its name, its size and the
time of its last change, which are read before its content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

NAME = "xpcs/made_of"


def file_stamp(path: Path) -> list[Any]:
    """A file's name, size and time of its last change in ns; without these where it is gone."""
    try:
        status = path.stat()
    except OSError:
        return [path.name]
    return [path.name, status.st_size, status.st_mtime_ns]


def link_stamps(path: Path, others: Iterable[str]) -> dict[str, list[Any]]:
    """The files that `path` links to, which are absolute or relative to its folder."""
    folder = path.absolute().parent
    places = [folder / other for other in others]
    return {os.path.relpath(place, folder): file_stamp(place) for place in places}


def read_provenance(path: Path) -> dict[str, Any] | None:
    """What a file says that it was made of; None where it says nothing or cannot be read."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            said = json.loads(file[NAME].asstr()[()])
    # Of any file: h5py's errors have no kind in common.
    except Exception:
        return None
    return said if isinstance(said, dict) else None


def rerun_reason(path: Path, told: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    """Why results that are there are not those of the file at `path`; None where they are.

    Args:
      told: what results of it say if they are made now, besides the files of frames.
      there: what those that are there say.
    """
    # Through JSON, so that both sides went the same way.
    here = json.loads(json.dumps({"file": file_stamp(path), **told}))
    linked = there.get("linked")
    here["linked"] = link_stamps(path, linked if isinstance(linked, dict) else ())
    differing = [
        f"{name} (there {_shown(there.get(name))}, here {_shown(here.get(name))})"
        for name in (*here, *(name for name in there if name not in here))
        if here.get(name) != there.get(name)
    ]
    return ", ".join(differing) or None


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(map(_shown, value.values())) or "none"
    if _is_stamp(value):
        changed = datetime.fromtimestamp(value[2] / 1e9)
        return f"{value[0]}, {value[1]:,} bytes of {changed:%Y-%m-%d %H:%M:%S.%f}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_stamp(value: Any) -> bool:
    """True for what `file_stamp` returns of a file that is there."""
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str):
        return False
    # Years 1970 to 9000: another file may say anything.
    return all(type(n) is int and n >= 0 for n in value[1:]) and value[2] < 2 * 10**20
