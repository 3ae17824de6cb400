"""Native kernels for JAX that behave like any JAX function.

C++ and CUDA kernels as XLA custom calls, with pure JAX in their place where there is no kernel:
``jaxkern.image`` (fused augmentation), ``jaxkern.xpcs`` (X-ray photon correlation spectroscopy),
``jaxkern.ring`` (batches between threads), ``jaxkern.random`` (keys per record), and `Op`, the
recipe that makes a kernel of your own behave the same.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxkern.core import registry as _registry
from jaxkern.core.backend import backend as backend
from jaxkern.core.cost import Cost as Cost
from jaxkern.core.doctor import doctor as doctor
from jaxkern.core.op import Op as Op
from jaxkern.core.paths import get_include as get_include
from jaxkern.core.registry import export_targets as export_targets
from jaxkern.core.registry import load as load_library

if TYPE_CHECKING:
    from jaxkern import image as image
    from jaxkern import performance as performance
    from jaxkern import random as random
    from jaxkern import ring as ring
    from jaxkern import testing as testing
    from jaxkern import xpcs as xpcs

__version__ = "0.1.0"
__all__ = [
    "Cost",
    "Op",
    "backend",
    "doctor",
    "export_targets",
    "get_include",
    "image",
    "load_library",
    "performance",
    "random",
    "ring",
    "testing",
    "xpcs",
]

# Imported at first use, so that `import jaxkern` stays cheap.
_DOMAINS = ("image", "performance", "random", "ring", "testing", "xpcs")


def __getattr__(name: str) -> Any:
    if name in _DOMAINS:
        return importlib.import_module(f"jaxkern.{name}")
    raise AttributeError(f"module 'jaxkern' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_DOMAINS})


_registry.load_own()
