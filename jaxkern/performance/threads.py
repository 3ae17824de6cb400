"""Limit of the number of threads of the CPU kernels."""

from __future__ import annotations

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.threads import MAX_THREADS, worker_cap
from jaxkern.core.threads import num_threads as num_threads


def set_num_threads(count: int | None) -> None:
    """Limit the number of threads of the CPU kernels, from the next call on.

    XLA's own operations run in XLA's thread pool, whose size is the process's CPU affinity. Set the
    affinity too (``taskset``, ``srun --cpu-bind=cores``) if the rest of the program matters.

    Args:
      count: maximum number of threads; 0 for XLA's pool as the only limit; None for the limit of
        the environment (``JAXKERN_NUM_THREADS``, else the smallest of SLURM's allocation, the
        control group's quota and the affinity).

    Raises:
      ValueError: if ``count`` is not an integer from 0 to 2**31 - 1.

    Example:
      >>> import jaxkern.performance
      >>> jaxkern.performance.set_num_threads(1)
      >>> jaxkern.performance.set_num_threads(None)
    """
    if count is not None:
        count = check_integer("count", count, 0, MAX_THREADS)
    registry.set_max_workers(worker_cap() if count is None else count)
