"""Caps the threads of the CPU kernels from Python."""

from __future__ import annotations

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.threads import MOST_THREADS, worker_cap
from jaxkern.core.threads import num_threads as num_threads


def set_num_threads(count: int | None) -> None:
    """Caps the threads that the CPU kernels use from now on.

    XLA's own operations run in XLA's thread pool, whose size is the process's CPU affinity: set
    that too (``taskset``, ``srun --cpu-bind=cores``) where the rest of a program matters.

    Args:
      count: the most threads; 0 for no cap but XLA's pool; None for what the environment says
        (``JAXKERN_NUM_THREADS``, else SLURM's, the control group's and the affinity's bound).

    Raises:
      ValueError: when ``count`` is no whole number from 0 to 2**31 - 1.

    Example:
      >>> import jaxkern.performance
      >>> jaxkern.performance.set_num_threads(1)
      >>> jaxkern.performance.set_num_threads(None)
    """
    if count is not None:
        count = check_integer("count", count, 0, MOST_THREADS)
    registry.set_max_workers(worker_cap() if count is None else count)
