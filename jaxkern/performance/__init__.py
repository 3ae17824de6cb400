"""Tools that make a JAX program's speed visible, and better."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxkern.core.ceilings import Ceilings as Ceilings
    from jaxkern.core.ceilings import Rates as Rates
    from jaxkern.core.ceilings import ceilings as ceilings
    from jaxkern.core.client import set_memory_fraction as set_memory_fraction
    from jaxkern.performance.accumulation import accumulate_gradients as accumulate_gradients
    from jaxkern.performance.allocator import tune_host_allocator as tune_host_allocator
    from jaxkern.performance.auditing import Audit as Audit
    from jaxkern.performance.auditing import Finding as Finding
    from jaxkern.performance.auditing import audit as audit
    from jaxkern.performance.batch_size import BatchMeasurement as BatchMeasurement
    from jaxkern.performance.batch_size import BatchSizeRecommendation as BatchSizeRecommendation
    from jaxkern.performance.batch_size import (
        get_batch_size_recommendation as get_batch_size_recommendation,
    )
    from jaxkern.performance.buckets import Buckets as Buckets
    from jaxkern.performance.buckets import bucket_shapes as bucket_shapes
    from jaxkern.performance.buckets import pad_to as pad_to
    from jaxkern.performance.cache import CacheReport as CacheReport
    from jaxkern.performance.cache import disable_persistent_cache as disable_persistent_cache
    from jaxkern.performance.cache import enable_persistent_cache as enable_persistent_cache
    from jaxkern.performance.changes import Change as Change
    from jaxkern.performance.collectives import Collective as Collective
    from jaxkern.performance.compiles import CompileWatch as CompileWatch
    from jaxkern.performance.compiles import FunctionCompiles as FunctionCompiles
    from jaxkern.performance.compiles import watch_compiles as watch_compiles
    from jaxkern.performance.precision import Policy as Policy
    from jaxkern.performance.profile_server import ProfileServer as ProfileServer
    from jaxkern.performance.profile_server import start_profile_server as start_profile_server
    from jaxkern.performance.program_memory import MemoryReport as MemoryReport
    from jaxkern.performance.program_memory import memory_report as memory_report
    from jaxkern.performance.remat import RematReport as RematReport
    from jaxkern.performance.remat import RematRow as RematRow
    from jaxkern.performance.remat import remat_report as remat_report
    from jaxkern.performance.roofline import roofline_analysis as roofline_analysis
    from jaxkern.performance.roofline_result import OpRow as OpRow
    from jaxkern.performance.roofline_result import Placement as Placement
    from jaxkern.performance.roofline_result import Roofline as Roofline
    from jaxkern.performance.threads import num_threads as num_threads
    from jaxkern.performance.threads import set_num_threads as set_num_threads

# Imported at first use: each tool costs its own import only.
_MODULES = {
    "jaxkern.core.ceilings": ("Ceilings", "Rates", "ceilings"),
    "jaxkern.core.client": ("set_memory_fraction",),
    "jaxkern.performance.accumulation": ("accumulate_gradients",),
    "jaxkern.performance.allocator": ("tune_host_allocator",),
    "jaxkern.performance.auditing": ("Audit", "Finding", "audit"),
    "jaxkern.performance.batch_size": (
        "BatchMeasurement",
        "BatchSizeRecommendation",
        "get_batch_size_recommendation",
    ),
    "jaxkern.performance.buckets": ("Buckets", "bucket_shapes", "pad_to"),
    "jaxkern.performance.cache": (
        "CacheReport",
        "disable_persistent_cache",
        "enable_persistent_cache",
    ),
    "jaxkern.performance.collectives": ("Collective",),
    "jaxkern.performance.changes": ("Change",),
    "jaxkern.performance.compiles": (
        "CompileWatch",
        "FunctionCompiles",
        "watch_compiles",
    ),
    "jaxkern.performance.program_memory": ("MemoryReport", "memory_report"),
    "jaxkern.performance.precision": ("Policy",),
    "jaxkern.performance.profile_server": ("ProfileServer", "start_profile_server"),
    "jaxkern.performance.remat": ("RematReport", "RematRow", "remat_report"),
    "jaxkern.performance.roofline": ("roofline_analysis",),
    "jaxkern.performance.roofline_result": ("OpRow", "Placement", "Roofline"),
    "jaxkern.performance.threads": ("num_threads", "set_num_threads"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jaxkern.performance' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
