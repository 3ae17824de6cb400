"""Tools that make a JAX program's speed visible, and better."""

from jaxkern.performance.allocator import tune_host_allocator as tune_host_allocator

__all__ = ["tune_host_allocator"]
