"""``doctor()``: the kernels that this process uses, and why it does not use others."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata

import jax

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.core.client import BackendError, start_backend
from jaxkern.core.op import ops
from jaxkern.core.version import __version__


@dataclass(frozen=True)
class OpStatus:
    """How an op runs on a platform: by the native ``target``, or in pure JAX for a ``reason``."""

    op: str
    platform: str
    target: str
    native: bool
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """The result of ``doctor()``; its ``str()`` is the report."""

    versions: dict[str, str]
    backend: str
    default_platform: str
    problems: tuple[str, ...]
    abi_running: tuple[int, int]
    libraries: tuple[registry.Library, ...]
    ops: tuple[OpStatus, ...]
    simd_level: str | None
    simd_levels: tuple[str, ...]
    max_workers: int | None
    cuda_architectures: tuple[str, ...]
    cuda_driver: int | None
    jpeg_decoder: str

    @property
    def ok(self) -> bool:
        """True if every op runs natively on JAX's default platform."""
        mine = [s for s in self.ops if s.platform == self.default_platform]
        return not self.problems and bool(mine) and all(s.native for s in mine)

    def __str__(self) -> str:
        facts = [
            *self.versions.items(),
            ("default platform", self.default_platform),
            ("backend", self.backend),
            ("XLA FFI running", _dotted(self.abi_running)),
        ]
        if self.simd_level is not None:
            facts += simd_facts(self.simd_level, self.simd_levels, "threads", self.max_workers)
        if self.cuda_architectures:
            facts.append(("CUDA code for", ", ".join(self.cuda_architectures)))
        if self.cuda_driver is not None:
            facts.append(("CUDA driver", cuda_version(self.cuda_driver)))
        facts.append(("JPEG decoder", self.jpeg_decoder))
        facts += [("PROBLEM", problem) for problem in self.problems]
        lines = ["jaxkern doctor", "", *format_facts(facts), "", "libraries"]
        for library in self.libraries:
            built = f"built for FFI {_dotted(library.abi)}" if library.abi else "not loaded"
            state = library.problem or f"in use, {len(library.targets)} targets"
            lines.append(f"  {library.module} [{library.platform}] {built}: {state}")
        lines += ["", "ops"]
        for status in self.ops:
            how = f"native {status.target}" if status.native else f"pure JAX ({status.reason})"
            lines.append(f"  {status.op} on {status.platform}: {how}")
        lines += [
            "",
            "FFI targets of this process. A compiled or exported program that fails with",
            "'No FFI handler registered for NAME' needs NAME here: import its package first.",
            *(f"  {target} [{x.platform}]" for x in self.libraries for target in x.targets),
        ]
        return "\n".join(lines)

    __repr__ = __str__


def doctor() -> Diagnosis:
    """Report for every op and platform which implementation runs, and why.

    Asks JAX for its default platform, which starts its backends.

    Returns:
      A `Diagnosis`: printable, and structured (``.ok``, ``.ops``, ``.libraries``, ...).

    Example:
      >>> import jaxkern as jk
      >>> jk.doctor().backend
      'auto'
    """
    from jaxkern import image  # noqa: F401 (declares its ops)
    from jaxkern.pipeline.sources.images.decoding import jpeg_decoding

    forced = current_backend()
    native = registry.module("cpu")
    problems = []
    try:
        backend = start_backend()
        default = "cuda" if backend == "gpu" else backend
    except BackendError as error:
        default = "none"
        problems.append(str(error))
    # After the backend has started, which checks the module against the GPUs.
    cuda = registry.module("cuda")
    if native is not None and (problem := native.simd_problem()) is not None:
        problems.append(problem)
    decoder, is_native, reason = jpeg_decoding()
    statuses = []
    for op in ops().values():
        for name in op.platforms:
            missing = registry.missing(op.target, name)
            if forced == "jax":
                missing = "the backend is 'jax'"
            statuses.append(OpStatus(op.name, name, op.target, missing is None, missing or ""))
    return Diagnosis(
        versions={
            "jaxkern": __version__,
            "jax": jax.__version__,
            "jaxlib": metadata.version("jaxlib"),
            "Python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
        },
        backend=forced,
        default_platform=default,
        problems=tuple(problems),
        abi_running=registry.running_abi(),
        libraries=tuple(registry.libraries()),
        ops=tuple(statuses),
        simd_level=native.simd_level() if native else None,
        simd_levels=tuple(native.simd_levels()) if native else (),
        max_workers=native.max_workers() if native else None,
        cuda_architectures=tuple(cuda.architectures()) if cuda else (),
        cuda_driver=registry.cuda_driver_version(),
        jpeg_decoder=f"{decoder}, linked"
        if is_native
        else f"not native: {reason}; {decoder} decodes in worker threads",
    )


def format_facts(facts: list[tuple[str, str]]) -> list[str]:
    """Return a line for each name and value."""
    return [f"  {name:<18}{value}" for name, value in facts]


def simd_facts(
    level: str, levels: tuple[str, ...], threads_name: str, threads: int | None
) -> list[tuple[str, str]]:
    """Return the lines of a report on the SIMD level and the threads of the kernels."""
    limit = str(threads or "no limit (XLA's thread pool decides)")
    return [("SIMD level", f"{level} (available: {', '.join(levels)})"), (threads_name, limit)]


def cuda_version(number: int) -> str:
    """Return the text of a CUDA version: ``13.0`` for 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
