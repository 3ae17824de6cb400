"""A function compiled for its arguments without running it, for tools that explain it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class CompiledProgram:
    """The stages of one program."""

    traced: Any
    lowered: Any
    compiled: Any

    @property
    def platform(self) -> str:
        """As in `jaxkern.core.registry`: ``"cpu"``, ``"cuda"``, or JAX's name of another one."""
        for sharding in jax.tree.leaves(
            (self.compiled.input_shardings, self.compiled.output_shardings)
        ):
            for device in sharding.device_set:
                return "cuda" if device.platform == "gpu" else str(device.platform)
        name = jax.default_backend()
        return "cuda" if name == "gpu" else name


def compile_program(fn: Callable[..., Any], *args: Any) -> CompiledProgram:
    """Traces, lowers and compiles ``fn`` for ``args`` (arrays or ``jax.ShapeDtypeStruct``).

    A jitted function keeps its own options (donation, static arguments, shardings). What JAX warns
    of donated buffers is for those who run the program.

    Raises:
      TypeError: when ``fn`` is not callable, or cannot be traced for these arguments.
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r:.80}; wanted a function, jitted or not, and its arguments")
    jitted: Any = fn if hasattr(fn, "trace") and hasattr(fn, "lower") else jax.jit(fn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*donated")
        try:
            traced = jitted.trace(*args)
        except (jax.errors.JAXTypeError, TypeError) as error:
            name = getattr(fn, "__name__", repr(fn))
            raise TypeError(
                f"{name} cannot be compiled for these arguments: "
                f"{str(error).strip().splitlines()[0]}; wanted a function that jax.jit takes, and "
                "arrays or jax.ShapeDtypeStruct (close over anything else)"
            ) from error
        lowered = traced.lower()
        compiled = lowered.compile()
    return CompiledProgram(traced, lowered, compiled)


def memory_analysis(compiled: Any) -> Any:
    """XLA's account of a program's memory, in bytes of one device."""
    found = compiled.memory_analysis()
    if found is None:
        raise NotImplementedError(
            f"the platform {jax.default_backend()!r} does not tell what memory a program takes; "
            "wanted one whose compiled.memory_analysis() does, as cpu, gpu and tpu"
        )
    return found
