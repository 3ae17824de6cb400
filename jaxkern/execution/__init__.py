"""Compiled programs with a bounded cache, graphs, maps over threads and devices, time limits."""

from jaxkern.execution.donation import donated
from jaxkern.execution.jit import CacheInfo, JITOptions, jit
from jaxkern.execution.mapping import pmap, vmap
from jaxkern.execution.mesh import (
    DeviceMesh,
    PartitionSpec,
    PipelineParallel,
    mesh_sharded,
    pipeline_parallel,
)
from jaxkern.execution.operator import Operator, operator
from jaxkern.execution.options import (
    ExecutionOptions,
    ExecutionTimeout,
    check_timeout,
    current_options,
    execution_options,
    remaining_seconds,
)
from jaxkern.execution.structural import SymbolicError, structural_jit

__all__ = [
    "CacheInfo",
    "DeviceMesh",
    "ExecutionOptions",
    "ExecutionTimeout",
    "JITOptions",
    "Operator",
    "PartitionSpec",
    "PipelineParallel",
    "SymbolicError",
    "check_timeout",
    "current_options",
    "donated",
    "execution_options",
    "jit",
    "mesh_sharded",
    "operator",
    "pipeline_parallel",
    "pmap",
    "remaining_seconds",
    "structural_jit",
    "vmap",
]
