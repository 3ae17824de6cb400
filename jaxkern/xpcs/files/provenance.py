"""Provenance of results, by which a second run recognizes finished files.

A file is identified by its name, its size and the time of its last change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

NAME = "xpcs/provenance"


def file_stamp(path: Path) -> list[Any]:
    """Return a file's name, size and time of its last change in ns; the name alone if missing."""
    try:
        status = path.stat()
    except OSError:
        return [path.name]
    return [path.name, status.st_size, status.st_mtime_ns]


def link_stamps(path: Path, others: Iterable[str]) -> dict[str, list[Any]]:
    """Return the stamps of files that `path` links to, which may be relative to its folder."""
    folder = path.absolute().parent
    paths = [folder / other for other in others]
    return {os.path.relpath(linked, folder): file_stamp(linked) for linked in paths}


def read_provenance(path: Path) -> dict[str, Any] | None:
    """Return the provenance that a file stores; None if it stores none or cannot be read."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            stored = json.loads(file[NAME].asstr()[()])
    # h5py's errors about arbitrary files have no common class.
    except Exception:
        return None
    return stored if isinstance(stored, dict) else None


def rerun_reason(
    path: Path, provenance: Mapping[str, Any], stored: Mapping[str, Any]
) -> str | None:
    """Return the differences between stored and new provenance of results of a file, or None."""
    # Convert by JSON, as the stored provenance was.
    current = json.loads(json.dumps({"file": file_stamp(path), **provenance}))
    linked = stored.get("linked")
    current["linked"] = link_stamps(path, linked if isinstance(linked, dict) else ())
    differing = [
        f"{name} (stored {_format(stored.get(name))}, now {_format(current.get(name))})"
        for name in dict.fromkeys((*current, *stored))
        if current.get(name) != stored.get(name)
    ]
    return ", ".join(differing) or None


def _format(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(map(_format, value.values())) or "none"
    match value:
        # A stamp of the years 1970 to 9000; a file may store anything.
        case [str(name), int(size), int(changed)] if size >= 0 and 0 <= changed < 2 * 10**20:
            date = datetime.fromtimestamp(changed / 1e9)
            return f"{name}, {size:,} bytes of {date:%Y-%m-%d %H:%M:%S.%f}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
