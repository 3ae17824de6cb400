"""Caps the threads of the CPU kernels from Python."""

from __future__ import annotations

from jaxkern.core import registry
from jaxkern.core.threads import num_threads as num_threads
from jaxkern.core.threads import worker_cap


def set_num_threads(count: int | None) -> None:
    """Caps the threads that the CPU kernels use from now on.

    XLA's own operations run in XLA's thread pool, whose size is the process's CPU affinity: set
    that too (``taskset``, ``srun --cpu-bind=cores``) where the rest of a program matters.

    Args:
      count: the most threads; 0 for no cap but XLA's pool; None for what the environment says
        (``JAXKERN_NUM_THREADS``, else SLURM's, the control group's and the affinity's bound).

    Raises:
      ValueError: when ``count`` is negative.

    Example:
      >>> import jaxkern.performance
      >>> jaxkern.performance.set_num_threads(1)
      >>> jaxkern.performance.set_num_threads(None)
    """
    if count is not None and count < 0:
        raise ValueError(f"count is {count}; wanted 0 or more, or None")
    registry.set_max_workers(worker_cap() if count is None else count)
