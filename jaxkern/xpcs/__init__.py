"""XPCS: two-time correlations, their normal equations, and fits in constant memory."""

from jaxkern.xpcs.correlation import g2, g2_at, residual
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
from jaxkern.xpcs.twin import ROW_BLOCK

__all__ = [
    "ROW_BLOCK",
    "CustomModel",
    "Geometry",
    "LaminarFlow",
    "Model",
    "NormalEquations",
    "Parameter",
    "Static",
    "Tables",
    "accumulate",
    "assemble",
    "g2",
    "g2_at",
    "log_likelihood",
    "normal_equations",
    "residual",
    "state_size",
]
