"""XPCS: two-time correlations, their normal equations, and fits in constant memory."""

from jaxkern.xpcs.checkpoint import CheckpointError
from jaxkern.xpcs.correlation import g2, g2_at, residual
from jaxkern.xpcs.fitting import curve_fit, fit
from jaxkern.xpcs.geometry import Geometry
from jaxkern.xpcs.likelihood import log_likelihood
from jaxkern.xpcs.models import CustomModel, LaminarFlow, Model, Parameter, Static, Tables
from jaxkern.xpcs.normal import (
    NormalEquations,
    accumulate,
    assemble,
    normal_equations,
    state_size,
)
from jaxkern.xpcs.options import StreamingOptions
from jaxkern.xpcs.passes import BadDataError
from jaxkern.xpcs.result import FitResult, FitTimings
from jaxkern.xpcs.sources import Source, as_source
from jaxkern.xpcs.strategy import MemoryEstimate, Strategy, estimate_memory, memory_limit
from jaxkern.xpcs.twin import ROW_BLOCK

__all__ = [
    "ROW_BLOCK",
    "BadDataError",
    "CheckpointError",
    "CustomModel",
    "FitResult",
    "FitTimings",
    "Geometry",
    "LaminarFlow",
    "MemoryEstimate",
    "Model",
    "NormalEquations",
    "Parameter",
    "Source",
    "Static",
    "Strategy",
    "StreamingOptions",
    "Tables",
    "accumulate",
    "as_source",
    "assemble",
    "curve_fit",
    "estimate_memory",
    "fit",
    "g2",
    "g2_at",
    "log_likelihood",
    "memory_limit",
    "normal_equations",
    "residual",
    "state_size",
]
