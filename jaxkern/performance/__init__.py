"""Tools that make a JAX program's speed visible, and better."""

from jaxkern.core.ceilings import Ceilings as Ceilings
from jaxkern.core.ceilings import Rates as Rates
from jaxkern.core.ceilings import ceilings as ceilings
from jaxkern.performance.allocator import tune_host_allocator as tune_host_allocator
from jaxkern.performance.roofline import roofline_analysis as roofline_analysis
from jaxkern.performance.roofline_result import OpRow as OpRow
from jaxkern.performance.roofline_result import Placement as Placement
from jaxkern.performance.roofline_result import Roofline as Roofline
from jaxkern.performance.threads import num_threads as num_threads
from jaxkern.performance.threads import set_num_threads as set_num_threads

__all__ = [
    "Ceilings",
    "OpRow",
    "Placement",
    "Rates",
    "Roofline",
    "ceilings",
    "num_threads",
    "roofline_analysis",
    "set_num_threads",
    "tune_host_allocator",
]
