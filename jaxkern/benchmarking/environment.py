"""The conditions of a measurement: machine, devices, versions and settings."""

from __future__ import annotations

import datetime
import os
import platform
from typing import Any

import jax

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.core.machine import cpu_model
from jaxkern.core.memory import memory_limit
from jaxkern.core.threads import num_threads, schedulable_cpus
from jaxkern.core.version import __version__, installed_versions


def environment(*packages: str) -> dict[str, Any]:
    """Return machine, versions and settings of this process, for JSON. Starts JAX.

    Args:
      *packages: further packages whose versions are included if they are installed.
    """
    native = registry.module("cpu")
    kinds = [device.device_kind for device in jax.devices()]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": cpu_model(),
            "cores": schedulable_cpus(),
            "memory_gib": round(memory_limit(), 2),
            "devices": ", ".join(f"{kinds.count(kind)} x {kind}" for kind in sorted(set(kinds))),
        },
        "versions": {
            "python": platform.python_version(),
            "jaxkern": __version__,
            **installed_versions("jax", "jaxlib", "numpy", *packages),
        },
        "settings": {
            "backend": current_backend(),
            "simd_level": native.simd_level() if native is not None else None,
            "threads": num_threads(),
            "x64": bool(jax.config.read("jax_enable_x64")),
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", "").strip(),
        },
    }


def conditions(where: dict[str, Any]) -> str:
    """Return an environment as one line: ``AMD EPYC, 2 cores, 2 x cpu; python 3.12.1, ...``."""
    machine = where["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['devices']}; {versions}"


def differences(mine: dict[str, Any], other: dict[str, Any], part: str) -> list[str]:
    """Return the differences in one part of two environments, such as ``cores: 2, was 64``."""
    now, before = mine.get(part, {}), other.get(part, {})
    return [
        f"{name}: {now.get(name)}, was {before.get(name)}"
        for name in sorted({*now, *before})
        if now.get(name) != before.get(name)
    ]
