"""How computations run: compiled ahead and counted, over graphs, threads and meshes, in time."""

from jaxkern.execution.jit import CacheInfo as CacheInfo
from jaxkern.execution.jit import JITOptions as JITOptions
from jaxkern.execution.jit import Precompilation as Precompilation
from jaxkern.execution.jit import jit as jit
from jaxkern.execution.jit import precompile as precompile
from jaxkern.execution.operator import Operator as Operator
from jaxkern.execution.operator import operator as operator
from jaxkern.execution.options import ExecutionOptions as ExecutionOptions
from jaxkern.execution.options import ExecutionTimeout as ExecutionTimeout
from jaxkern.execution.options import check_timeout as check_timeout
from jaxkern.execution.options import current_options as current_options
from jaxkern.execution.options import execution_options as execution_options
from jaxkern.execution.options import remaining_seconds as remaining_seconds
from jaxkern.execution.trace import ExecutionTrace as ExecutionTrace
from jaxkern.execution.trace import Span as Span
