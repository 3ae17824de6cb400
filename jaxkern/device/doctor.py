"""``doctor()``: which kernels this process uses, and why it does not use the others."""

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
    """How one op runs on one platform: ``native`` (``target`` is called) or in pure JAX."""

    op: str
    platform: str
    target: str
    native: bool
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """What ``doctor()`` found; ``str()`` of it is the report."""

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
        """Whether every op runs natively on JAX's default platform."""
        mine = [s for s in self.ops if s.platform == self.default_platform]
        return not self.problems and bool(mine) and all(s.native for s in mine)

    def __str__(self) -> str:
        lines = ["jaxkern doctor", ""]
        lines += [f"  {name:<18}{value}" for name, value in self.versions.items()]
        lines += [
            f"  {'default platform':<18}{self.default_platform}",
            f"  {'backend':<18}{self.backend}",
            f"  {'XLA FFI running':<18}{_dotted(self.abi_running)}",
        ]
        if self.simd_level is not None:
            others = ", ".join(self.simd_levels)
            lines.append(f"  {'SIMD level':<18}{self.simd_level} (this machine has {others})")
            cap = self.max_workers or "no cap (XLA's thread pool decides)"
            lines.append(f"  {'threads':<18}{cap}")
        if self.cuda_architectures:
            lines.append(f"  {'CUDA code for':<18}{', '.join(self.cuda_architectures)}")
        if self.cuda_driver is not None:
            lines.append(
                f"  {'CUDA driver':<18}{self.cuda_driver // 1000}.{self.cuda_driver % 1000 // 10}"
            )
        lines.append(f"  {'JPEG decoder':<18}{self.jpeg_decoder}")
        lines += [f"  {'PROBLEM':<18}{problem}" for problem in self.problems]
        lines += ["", "libraries"]
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
            "'No FFI handler registered for NAME' needs NAME here: first import its package.",
            *(f"  {target} [{x.platform}]" for x in self.libraries for target in x.targets),
        ]
        return "\n".join(lines)

    __repr__ = __str__


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def doctor() -> Diagnosis:
    """Tells for every op and platform which implementation it takes, and why.

    Asks JAX for its default platform, which starts its backends.

    Returns:
      A `Diagnosis`: printable, and structured (``.ok``, ``.ops``, ``.libraries``, ...).

    Example:
      >>> import jaxkern as jk
      >>> jk.doctor().backend
      'auto'
    """
    from jaxkern import image  # noqa: F401, declares its ops

    forced = current_backend()
    native = registry.module("cpu")
    problems = []
    try:
        default = _platform_name(start_backend())
    except BackendError as error:
        default = "none"
        problems.append(str(error))
    cuda = registry.module("cuda")  # the started backend tells whether the GPUs can run it
    if native is not None and (problem := native.simd_problem()) is not None:
        problems.append(problem)
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
        ops=tuple(
            OpStatus(op.name, p, op.target, reason is None, reason or "")
            for op in ops().values()
            for p in op.platforms
            for reason in [_reason(op.target, p, forced)]
        ),
        simd_level=native.simd_level() if native else None,
        simd_levels=tuple(native.simd_levels()) if native else (),
        max_workers=native.max_workers() if native else None,
        cuda_architectures=tuple(cuda.architectures()) if cuda else (),
        cuda_driver=registry.cuda_driver_version(),
        jpeg_decoder=_jpeg_decoder(),
    )


def _jpeg_decoder() -> str:
    from jaxkern.pipeline.sources.images.decoding import jpeg_decoding

    name, native, reason = jpeg_decoding()
    if native:
        return f"{name}, linked"
    return f"not native: {reason}; {name} decodes in worker threads"


def _platform_name(backend: str) -> str:
    return "cuda" if backend == "gpu" else backend


def _reason(target: str, name: str, forced: str) -> str | None:
    return "the backend is 'jax'" if forced == "jax" else registry.missing(target, name)
