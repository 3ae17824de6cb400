"""Native kernels for JAX that behave like any JAX function.

C++ and CUDA kernels as XLA custom calls, with pure JAX in their place where there is no kernel:
``jaxkern.image`` (fused augmentation), ``jaxkern.xpcs`` (X-ray photon correlation spectroscopy),
``jaxkern.ring`` (batches between threads), ``jaxkern.random`` (keys per record), and `Op`, the
recipe that makes a kernel of your own behave the same.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from jaxkern.core.version import __version__ as __version__


def _is_command() -> bool:
    """Return True in a process of the command line, which loads the core when it is needed.

    The core imports JAX, which takes most of the time of ``jaxkern --help``.
    """
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "") == "jaxkern"
        if not word.startswith("-"):
            return os.path.basename(word) == "jaxkern"
    return False


if TYPE_CHECKING or not _is_command():
    from jaxkern.core import registry as _registry
    from jaxkern.core.backend import backend as backend
    from jaxkern.core.op import Cost as Cost
    from jaxkern.core.op import Op as Op
    from jaxkern.core.paths import get_include as get_include
    from jaxkern.core.registry import export_targets as export_targets
    from jaxkern.core.registry import load as load_library

    _registry.load_own()

if TYPE_CHECKING:
    from jaxkern import benchmarking as benchmarking
    from jaxkern import device as device
    from jaxkern import execution as execution
    from jaxkern import image as image
    from jaxkern import performance as performance
    from jaxkern import pipeline as pipeline
    from jaxkern import random as random
    from jaxkern import ring as ring
    from jaxkern import testing as testing
    from jaxkern import tokens as tokens
    from jaxkern import xpcs as xpcs
    from jaxkern.device.status import doctor as doctor
    from jaxkern.execution import donated as donated
    from jaxkern.performance import (
        get_batch_size_recommendation as get_batch_size_recommendation,
    )
    from jaxkern.pipeline import DevicePlacement as DevicePlacement
    from jaxkern.pipeline import ElementOperator as ElementOperator
    from jaxkern.pipeline import ElementOperatorConfig as ElementOperatorConfig
    from jaxkern.pipeline import OperatorNode as OperatorNode
    from jaxkern.pipeline import Pipeline as Pipeline
    from jaxkern.pipeline import concat as concat
    from jaxkern.pipeline import from_source as from_source
    from jaxkern.pipeline import from_stream as from_stream
    from jaxkern.pipeline import mix as mix
    from jaxkern.pipeline import prefetch_to_device as prefetch_to_device
    from jaxkern.pipeline import zip as zip

__all__ = [
    "Cost",
    "DevicePlacement",
    "ElementOperator",
    "ElementOperatorConfig",
    "Op",
    "OperatorNode",
    "Pipeline",
    "backend",
    "benchmarking",
    "concat",
    "device",
    "doctor",
    "donated",
    "execution",
    "export_targets",
    "from_source",
    "from_stream",
    "get_batch_size_recommendation",
    "get_include",
    "image",
    "load_library",
    "mix",
    "performance",
    "pipeline",
    "prefetch_to_device",
    "random",
    "ring",
    "testing",
    "tokens",
    "xpcs",
]  # without `zip`, which would shadow the builtin on `import *`

# Imported at first use, so that `import jaxkern` stays cheap.
_DOMAINS = (
    "benchmarking",
    "device",
    "execution",
    "image",
    "performance",
    "pipeline",
    "random",
    "ring",
    "testing",
    "tokens",
    "xpcs",
)
_HOMES = {
    "Cost": "core.op",
    "Op": "core.op",
    "backend": "core.backend",
    "export_targets": "core.registry",
    "get_include": "core.paths",
    "load_library": "core.registry",
    "DevicePlacement": "pipeline",
    "ElementOperator": "pipeline",
    "ElementOperatorConfig": "pipeline",
    "OperatorNode": "pipeline",
    "Pipeline": "pipeline",
    "concat": "pipeline",
    "doctor": "device.status",
    "donated": "execution",
    "from_source": "pipeline",
    "from_stream": "pipeline",
    "get_batch_size_recommendation": "performance",
    "mix": "pipeline",
    "prefetch_to_device": "pipeline",
    "zip": "pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _DOMAINS:
        return importlib.import_module(f"jaxkern.{name}")
    if name in _HOMES:
        home = importlib.import_module(f"jaxkern.{_HOMES[name]}")
        return getattr(home, "load" if name == "load_library" else name)
    raise AttributeError(f"module 'jaxkern' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_DOMAINS, *_HOMES})
