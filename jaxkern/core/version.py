"""The version of the package, and those of others."""

from __future__ import annotations

import contextlib
from importlib import metadata

__version__ = "0.1.0"


def installed_versions(*packages: str) -> dict[str, str]:
    """The versions of packages, of those that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
