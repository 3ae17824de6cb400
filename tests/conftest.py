"""Settings of every test: four CPU devices, and no installation that lacks its native part."""

import os

# Before JAX starts.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
).strip()
