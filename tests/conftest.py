"""Settings of every test: four CPU devices, programs that compile fast, a cache of its own."""

import gc
import os
import signal
import tempfile
from importlib import metadata

# The older one of XLA's two emitters of loops compiles in less than half of the other's time.
_EMITTERS = ["--xla_cpu_use_fusion_emitters=false"] * (metadata.version("jaxlib") == "0.10.0")


def pytest_configure(config):
    """Sets XLA's flags, before JAX starts."""
    # A shell's background job ignores Ctrl-C, and so would all tests of it and their processes.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all is imported
    # Timings are of programs as users compile them.
    if config.getoption("markexpr") == "benchmark":
        return
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_force_host_platform_device_count=4",
            # Tests compile far longer than they run.
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
            *_EMITTERS,
        ]
    ).strip()
    if not hasattr(config, "workerinput"):  # workers of xdist get the environment
        folder = tempfile.TemporaryDirectory(prefix="jaxkern-cache-")
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CACHE_HOME"] = folder.name


def pytest_collection_finish():
    """What is imported stays: no collection of garbage looks through it again."""
    gc.freeze()
    gc.enable()
