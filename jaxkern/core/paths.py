"""Where the installed package keeps what other builds need."""

from __future__ import annotations

from pathlib import Path


def get_include() -> str:
    """The directory of the C++ headers with which other packages write ops.

    Raises:
      FileNotFoundError: when the package was not installed by its build, so has no headers.

    Example:
      >>> import os, jaxkern as jk
      >>> os.path.exists(os.path.join(jk.get_include(), "jaxkern", "core", "ffi.h"))
      True
    """
    import jaxkern

    # An editable installation has the Python files in the source tree and the rest elsewhere.
    for root in map(Path, jaxkern.__path__):
        if (root / "include" / "jaxkern" / "core" / "ffi.h").exists():
            return str(root / "include")
    raise FileNotFoundError(
        f"no jaxkern headers below {list(jaxkern.__path__)}: install the package (pip install .) "
        "instead of importing its source tree"
    )
