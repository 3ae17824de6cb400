"""Settings for all tests: four CPU devices, fast compilation, separate cache folders."""

import gc
import os
import signal
import tempfile
from importlib import metadata
from pathlib import Path

# Compiled JAX programs, most of which are single operations, for both workers and the next run.
_PROGRAMS = Path(__file__).parents[1] / "build" / "programs"

# XLA's older loop emitter compiles in less than half the time.
_EMITTERS = ["--xla_cpu_use_fusion_emitters=false"] * (metadata.version("jaxlib") == "0.10.0")


def pytest_configure(config):
    """Set the flags of XLA before JAX starts."""
    # A background job of a shell ignores SIGINT, and its child processes inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all tests are imported
    # Benchmarks use the compiler flags that users have.
    if config.getoption("markexpr") == "benchmark":
        return
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_force_host_platform_device_count=4",
            # Compilation takes longer than running the tests.
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
            *_EMITTERS,
        ]
    ).strip()
    if not hasattr(config, "workerinput"):  # workers of xdist inherit the environment
        folder = tempfile.TemporaryDirectory(prefix="jaxkern-cache-")
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CACHE_HOME"] = folder.name
    _keep_programs()


def _keep_programs():
    # Not in the environment: processes that tests kill would leave incomplete entries.
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(_PROGRAMS))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_collection_finish():
    """Exclude imported modules from garbage collection."""
    gc.freeze()
    gc.enable()
