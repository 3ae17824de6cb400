"""The devices of this process: status, selection and performance."""

from jaxkern.device.benchmark import DevicePerformance, benchmark_device_performance
from jaxkern.device.configuration import DeviceConfiguration, configure_optimal_device
from jaxkern.device.status import DeviceInfo, DeviceStatus, get_device_status

__all__ = [
    "DeviceConfiguration",
    "DeviceInfo",
    "DevicePerformance",
    "DeviceStatus",
    "benchmark_device_performance",
    "configure_optimal_device",
    "get_device_status",
]
