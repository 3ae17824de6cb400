"""Foundation of all domains: the op recipe, the choice of backend, and the native libraries."""

import os
import re
from pathlib import Path


def _reject_other_distribution(folder: Path) -> None:
    """Raise ImportError if the distribution `jaxkern` has files in the folder of this package."""
    try:
        names = os.listdir(folder)
    except OSError:  # a zip file, or a folder that cannot be read
        return
    for name in names:
        # An interrupted uninstallation can leave a folder without RECORD.
        if re.fullmatch(r"jaxkern-.*\.dist-info", name) and (folder / name / "RECORD").exists():
            raise ImportError(
                f"{folder}: jaxkern-native and {name.removesuffix('.dist-info')}, another "
                "distribution, have both installed a package jaxkern here; keep one: "
                "pip uninstall jaxkern jaxkern-native, then pip install jaxkern-native"
            )


# Here and not in jaxkern/__init__.py, which the other distribution may have replaced.
_reject_other_distribution(Path(__file__).parents[2])
