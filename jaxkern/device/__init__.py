"""The devices of this process: what they are, which one to use, and what they can do."""

from jaxkern.device.benchmark import DevicePerformance as DevicePerformance
from jaxkern.device.benchmark import benchmark_device_performance as benchmark_device_performance
from jaxkern.device.configuration import DeviceConfiguration as DeviceConfiguration
from jaxkern.device.configuration import configure_optimal_device as configure_optimal_device
from jaxkern.device.status import DeviceInfo as DeviceInfo
from jaxkern.device.status import DeviceStatus as DeviceStatus
from jaxkern.device.status import get_device_status as get_device_status

__all__ = [
    "DeviceConfiguration",
    "DeviceInfo",
    "DevicePerformance",
    "DeviceStatus",
    "benchmark_device_performance",
    "configure_optimal_device",
    "get_device_status",
]
