"""Tools that measure and improve the performance of JAX programs."""

from jaxkern.core.ceilings import Ceilings, Rates, ceilings
from jaxkern.core.client import set_memory_fraction
from jaxkern.core.threads import num_threads
from jaxkern.performance.auditing import Audit, Finding, audit
from jaxkern.performance.batch_size import BatchSizeRecommendation, get_batch_size_recommendation
from jaxkern.performance.batch_trials import BatchMeasurement
from jaxkern.performance.compiles import Change, CompileWatch, FunctionCompiles, watch_compiles
from jaxkern.performance.programs import Collective, MemoryReport, memory_report
from jaxkern.performance.roofline import OpRow, Placement, Roofline, roofline_analysis
from jaxkern.performance.settings import (
    CacheReport,
    disable_persistent_cache,
    enable_persistent_cache,
    set_num_threads,
    tune_host_allocator,
)

__all__ = [
    "Audit",
    "BatchMeasurement",
    "BatchSizeRecommendation",
    "CacheReport",
    "Ceilings",
    "Change",
    "Collective",
    "CompileWatch",
    "Finding",
    "FunctionCompiles",
    "MemoryReport",
    "OpRow",
    "Placement",
    "Rates",
    "Roofline",
    "audit",
    "ceilings",
    "disable_persistent_cache",
    "enable_persistent_cache",
    "get_batch_size_recommendation",
    "memory_report",
    "num_threads",
    "roofline_analysis",
    "set_memory_fraction",
    "set_num_threads",
    "tune_host_allocator",
    "watch_compiles",
]
