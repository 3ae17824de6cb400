"""The native libraries of this process: loading, checks, and registration of FFI targets.

A handler built with newer FFI headers than the running jaxlib's breaks the whole backend. Therefore
each library is checked BEFORE its handlers are registered; if that fails, ops use pure JAX.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import re
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import jax

from jaxkern.core import compat
from jaxkern.core import forking as _forking  # noqa: F401 (registers functions that fork calls)
from jaxkern.core.threads import worker_cap

PLATFORMS = ("cpu", "cuda")


@dataclass
class Library:
    """One native module for one platform. ``problem`` is why nothing was registered, or None."""

    module: str
    platform: str
    problem: str | None = None
    abi: tuple[int, int] | None = None
    targets: list[str] = field(default_factory=list)
    loaded: ModuleType | None = field(default=None, repr=False)
    devices_checked: bool = field(default=False, repr=False)


_libraries: dict[tuple[str, str], Library] = {}
_targets: dict[tuple[str, str], Library] = {}
_checking_devices = threading.Lock()


def libraries() -> list[Library]:
    """Return all libraries that this process tried to load."""
    return list(_libraries.values())


def module(platform: str = "cpu") -> ModuleType | None:
    """Return jaxkern's native module for a platform, or None if it is not usable."""
    library = _libraries.get((f"jaxkern._{platform}", platform))
    if library is None:
        return None
    _check_devices(library)
    return library.loaded


@functools.cache
def running_abi() -> tuple[int, int]:
    """Return the FFI version (major, minor) of the running jaxlib, read from its headers."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    values = dict(re.findall(r"#define (XLA_FFI_API_\w+) (\d+)", header.read_text()))
    return int(values["XLA_FFI_API_MAJOR"]), int(values["XLA_FFI_API_MINOR"])


def load(name: str, platform: str = "cpu") -> Library:
    """Load a native module and register its FFI targets if it can run here.

    The module has two functions: ``registrations()`` returns ``{target: capsule}``, and ``abi()``
    returns the FFI version ``(major, minor)`` with which its handlers were built. A CUDA module
    also has ``cuda_runtime()``, the version of its linked CUDA runtime (13000 for 13.0), and may
    have ``architectures()``, such as ``["sm_80", "compute_90"]``: if JAX later starts on a GPU that
    can run none of that code, its targets are dropped. On any problem nothing is registered, a
    warning is issued, and ``jaxkern.doctor()`` reports the reason; ops then run in pure JAX.

    Args:
      name: name of the importable module, such as ``"my_package._cpu"``.
      platform: ``"cpu"`` or ``"cuda"``.

    Returns:
      The `Library`; its ``problem`` is None if its targets are registered.
    """
    if platform not in PLATFORMS:
        raise ValueError(f"platform is {platform!r}; expected one of {', '.join(PLATFORMS)}")
    key = (name, platform)
    if key in _libraries:
        return _libraries[key]
    library = _libraries[key] = Library(name, platform)
    try:
        native = importlib.import_module(name)
        library.abi = tuple(native.abi())
        library.problem = _abi_problem(library.abi) or _driver_problem(native, platform)
        if library.problem is None:
            _register(library, native)
            library.loaded = native
    except Exception as error:  # a broken library must not break the import of jaxkern or JAX
        library.problem = _import_problem(name, error)
        _drop_targets(library)
    if library.problem is not None:
        _warn_not_used(library)
    return library


def _register(library: Library, native: ModuleType) -> None:
    platform = "CUDA" if library.platform == "cuda" else library.platform
    for target, capsule in native.registrations().items():
        jax.ffi.register_ffi_target(target, capsule, platform=platform)
        jax.ffi.register_ffi_target_as_batch_partitionable(target)
        library.targets.append(target)
        _targets[(target, library.platform)] = library


def _drop_targets(library: Library) -> None:
    for target in library.targets:
        _targets.pop((target, library.platform), None)
    library.targets.clear()


def _warn_not_used(library: Library) -> None:
    warnings.warn(
        f"jaxkern: the {library.platform} kernels of {library.module} are not used; ops run in "
        f"pure JAX: {library.problem}",
        RuntimeWarning,
        stacklevel=3,
    )


def missing(target: str, platform: str) -> str | None:
    """Return why ``target`` has no handler on ``platform``; None if it has one."""
    of_platform = [library for library in libraries() if library.platform == platform]
    for library in of_platform:
        _check_devices(library)
    if (target, platform) in _targets:
        return None
    problems = [f"{x.module}: {x.problem}" for x in of_platform if x.problem is not None]
    return "; ".join([f"no library registered {target!r} for {platform}", *problems])


def export_targets() -> list[str]:
    """Return the names of all registered FFI targets of all platforms.

    ``jax.export`` rejects custom calls that are not known to be stable. These targets are stable:
    the name includes the version of the contract.

    Example:
      >>> import jax, jaxkern as jk
      >>> checks = [jax.export.DisabledSafetyCheck.custom_call(t) for t in jk.export_targets()]
    """
    return sorted({target for target, _ in list(_targets)})


def _abi_problem(built: tuple[int, int]) -> str | None:
    running = running_abi()
    if built[0] == running[0] and built[1] <= running[1]:
        return None
    return (
        f"it was built for XLA FFI {built[0]}.{built[1]} and the running jaxlib has "
        f"{running[0]}.{running[1]}; install a newer jaxlib"
    )


def _import_problem(name: str, error: Exception) -> str:
    with contextlib.suppress(ImportError):
        if importlib.util.find_spec(name) is not None:
            return f"it cannot be loaded ({type(error).__name__}: {error})"
    return (
        f"the module does not exist: this installation has no kernels for {sys.platform} on this "
        "Python; install a wheel with kernels, or build from source"
    )


def _driver_problem(native: ModuleType, platform: str) -> str | None:
    if platform != "cuda":
        return None
    runtime = int(native.cuda_runtime())
    driver = cuda_driver_version()
    if driver is None:
        return "no CUDA driver (libcuda.so.1) was found"
    # A driver runs machine code of any minor version of its major version.
    if driver // 1000 < runtime // 1000:
        return (
            f"the CUDA driver supports CUDA {cuda_version_text(driver)} and the kernels "
            f"need {runtime // 1000}.0 or newer; update the driver"
        )
    return None


def _check_devices(library: Library) -> None:
    """Drop a CUDA library's targets if a GPU of this process cannot run its kernels."""
    # Runs after JAX has started CUDA: a query at import would initialize it before any fork.
    if library.platform != "cuda":
        return
    is_required = library.module == "jaxkern._cuda" and "cuda" in _required()
    is_dropped = False
    # Other threads wait for the result: they must not compile for targets that are dropped.
    with _checking_devices:
        native, started = library.loaded, "cuda" in compat.started_backends()
        if native is not None and started and not library.devices_checked:
            library.problem = _devices_problem(native)
            library.devices_checked = True
            if library.problem is not None:
                _drop_targets(library)
                library.loaded = None
                is_dropped = True
    if is_dropped and not is_required:
        _warn_not_used(library)  # without the lock, since warnings can be handled by any code
    if is_required and library.devices_checked and library.problem is not None:
        raise RuntimeError(
            f"JAXKERN_REQUIRE names 'cuda', but its kernels are not usable: {library.problem}"
        )


def _devices_problem(native: ModuleType) -> str | None:
    """Return the reason that a GPU of this process cannot run a module's kernels, or None."""
    if not hasattr(native, "architectures"):
        return None
    names, built = list(native.architectures()), int(native.cuda_runtime())
    driver = cuda_driver_version() or built
    problems = (device_code_problem(names, built, c, driver) for c in cuda_capabilities())
    return next(filter(None, problems), None)


def cuda_capabilities() -> list[tuple[int, int]]:
    """Return the compute capabilities of this process's GPUs. Starts JAX's CUDA backend."""
    names = sorted({str(d.compute_capability) for d in jax.local_devices(backend="cuda")})
    return [(int(major), int(minor)) for major, minor in (name.split(".") for name in names)]


def device_code_problem(
    architectures: Sequence[str], built: int, capability: tuple[int, int], driver: int
) -> str | None:
    """Return the reason that a GPU can run none of the code for ``architectures``, or None."""
    # ``sm_XY`` is machine code, which runs on the capabilities X.Y and later ones of the same X.
    # ``compute_XY`` is PTX, which the driver compiles for X.Y and everything later; for that it
    # must support the CUDA that wrote the PTX, ``built``. Code for ``90a`` runs on 9.0 only, code
    # for ``100f`` on 10.0 and later ones of the same family. Other names, such as CMake's
    # ``native`` and ``all-major``, are not checked; CUDA itself reports kernels that cannot run.
    compiles = False
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", name)
        if match is None:
            return None
        target = divmod(int(match[2]), 10)
        if target > capability or (match[3] == "a" and target != capability):
            continue
        same_major = target[0] == capability[0]
        if match[1] == "sm" and same_major:
            return None
        compiles |= match[1] == "compute" and (same_major or match[3] != "f")
    gpu = f"a GPU of this process has compute capability {capability[0]}.{capability[1]}"
    if not compiles:
        built_for = ", ".join(architectures)
        return f"{gpu}, and the kernels are compiled for {built_for}; build from source for it"
    if driver < built:
        return (
            f"{gpu}, for which the driver must compile PTX of CUDA {cuda_version_text(built)}, but "
            f"it supports CUDA {cuda_version_text(driver)}; update the driver"
        )
    return None


def cuda_version_text(version: int) -> str:
    """Return the text of a CUDA version, such as ``13.0`` for 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


def cuda_driver_version() -> int | None:
    """Return the newest CUDA version that the driver supports, as 1000 * major + 10 * minor."""
    override = os.environ.get("JAXKERN_CUDA_DRIVER_VERSION")  # to test the check without a GPU
    if override:
        return int(override)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return int(version.value) if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


@functools.cache
def load_own() -> None:
    """Load jaxkern's kernels: CPU always, CUDA only if JAX could use it. Starts no backend."""
    load("jaxkern._cpu", "cpu")
    set_max_workers(worker_cap())
    reason = _reason_without_cuda()
    if reason is None:
        load("jaxkern._cuda", "cuda")
    else:  # without a warning
        _libraries["jaxkern._cuda", "cuda"] = Library("jaxkern._cuda", "cuda", reason)
    for name in _required():
        _require(name)


def _required() -> list[str]:
    names = os.environ.get("JAXKERN_REQUIRE", "").split(",")
    return [name.strip() for name in names if name.strip()]


def set_max_workers(count: int) -> None:
    """Cap the threads of the CPU kernels (0: no cap) if their library is loaded."""
    native = module("cpu")
    if native is not None:
        native.set_max_workers(count)


def _reason_without_cuda() -> str | None:
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if chosen and not {"cuda", "gpu"} & set(chosen.split(",")):
        return f"JAX_PLATFORMS is {chosen!r}"
    plugins = map(importlib.util.find_spec, ("jax_cuda13_plugin", "jax_cuda12_plugin"))
    return None if any(plugins) else "JAX has no CUDA backend: no jax-cuda plugin is installed"


def _require(name: str) -> None:
    """Raise ImportError if a platform's kernels or the JPEG decoder (``"jpeg"``) are missing."""
    library = _libraries.get((f"jaxkern._{name}", name))
    problem = "jaxkern has no such platform" if library is None else library.problem
    if name == "jpeg":
        native = module("cpu")
        has_decoder = native is not None and native.jpeg_decoder()
        problem = None if has_decoder else "jaxkern was built without libjpeg-turbo"
    if problem is not None:
        raise ImportError(f"JAXKERN_REQUIRE names {name!r}, which is not usable: {problem}")
