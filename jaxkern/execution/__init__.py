"""How computations run: compiled ahead and counted, over graphs, threads and meshes, in time."""

from jaxkern.execution.graph import SymbolicError as SymbolicError
from jaxkern.execution.jit import Precompilation as Precompilation
from jaxkern.execution.jit import jit as jit
from jaxkern.execution.jit import precompile as precompile
from jaxkern.execution.jit_options import CacheInfo as CacheInfo
from jaxkern.execution.jit_options import JITOptions as JITOptions
from jaxkern.execution.mapping import pmap as pmap
from jaxkern.execution.mapping import vmap as vmap
from jaxkern.execution.mesh import DeviceMesh as DeviceMesh
from jaxkern.execution.mesh import PartitionSpec as PartitionSpec
from jaxkern.execution.mesh import mesh_sharded as mesh_sharded
from jaxkern.execution.microbatches import PipelineParallel as PipelineParallel
from jaxkern.execution.microbatches import pipeline_parallel as pipeline_parallel
from jaxkern.execution.operator import Operator as Operator
from jaxkern.execution.operator import operator as operator
from jaxkern.execution.options import ExecutionOptions as ExecutionOptions
from jaxkern.execution.options import ExecutionTimeout as ExecutionTimeout
from jaxkern.execution.options import check_timeout as check_timeout
from jaxkern.execution.options import current_options as current_options
from jaxkern.execution.options import execution_options as execution_options
from jaxkern.execution.options import remaining_seconds as remaining_seconds
from jaxkern.execution.structural import structural_jit as structural_jit
from jaxkern.execution.trace import ExecutionTrace as ExecutionTrace
from jaxkern.execution.trace import Span as Span

__all__ = [
    "CacheInfo",
    "DeviceMesh",
    "ExecutionOptions",
    "ExecutionTimeout",
    "ExecutionTrace",
    "JITOptions",
    "Operator",
    "PartitionSpec",
    "PipelineParallel",
    "Precompilation",
    "Span",
    "SymbolicError",
    "check_timeout",
    "current_options",
    "execution_options",
    "jit",
    "mesh_sharded",
    "operator",
    "pipeline_parallel",
    "pmap",
    "precompile",
    "remaining_seconds",
    "structural_jit",
    "vmap",
]
