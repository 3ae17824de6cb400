"""Libraries that read a format: imported where it is used, and named where they are missing."""

from __future__ import annotations

import importlib
from typing import Any


def extra(module: str, name: str) -> Any:
    """A module that ``pip install 'jaxkern[name]'`` installs.

    >>> extra("no_such_module", "parquet")
    Traceback (most recent call last):
    ImportError: this needs no_such_module: pip install 'jaxkern[parquet]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        raise ImportError(
            f"this needs {module}: pip install 'jaxkern[{name}]'", name=module
        ) from error
