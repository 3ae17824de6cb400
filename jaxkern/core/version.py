"""The version of this package and of installed packages."""

from __future__ import annotations

import contextlib

__version__ = "0.1.0"


def installed_versions(*packages: str) -> dict[str, str]:
    """Return the versions of packages; packages that are not installed are omitted."""
    from importlib import metadata

    versions = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
