"""Tools that make a JAX program's speed visible, and better."""

from jaxkern.performance.allocator import tune_host_allocator as tune_host_allocator
from jaxkern.performance.threads import num_threads as num_threads
from jaxkern.performance.threads import set_num_threads as set_num_threads

__all__ = ["num_threads", "set_num_threads", "tune_host_allocator"]
