"""Feeding a device: placement of batches, and fetching them ahead of the consumer."""

from jaxkern.pipeline.placement import DevicePlacement as DevicePlacement
from jaxkern.pipeline.prefetch import Prefetcher as Prefetcher
from jaxkern.pipeline.prefetch import prefetch_to_device as prefetch_to_device

__all__ = ["DevicePlacement", "Prefetcher", "prefetch_to_device"]
