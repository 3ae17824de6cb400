"""Ahead-of-time compilation of a function, for tools that explain programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class CompiledProgram:
    """The compilation stages of one program."""

    traced: Any
    lowered: Any
    compiled: Any

    @property
    def platform(self) -> str:
        """Return ``"cpu"``, ``"cuda"``, or JAX's name of another platform."""
        for sharding in jax.tree.leaves(
            (self.compiled.input_shardings, self.compiled.output_shardings)
        ):
            for device in sharding.device_set:
                return "cuda" if device.platform == "gpu" else str(device.platform)
        name = jax.default_backend()
        return "cuda" if name == "gpu" else name


def compile_program(fn: Callable[..., Any], *args: Any) -> CompiledProgram:
    """Trace, lower and compile ``fn`` for ``args``; TypeError if it cannot be traced for these."""
    if not callable(fn):
        raise TypeError(f"fn is {fn!r:.80}; expected a function, jitted or not")
    jitted: Any = fn if hasattr(fn, "trace") and hasattr(fn, "lower") else jax.jit(fn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*donated")
        try:
            traced = jitted.trace(*args)
        except (jax.errors.JAXTypeError, TypeError) as error:
            name = getattr(fn, "__name__", repr(fn))
            raise TypeError(
                f"{name} cannot be compiled for these arguments: "
                f"{str(error).strip().splitlines()[0]}; expected a function that jax.jit accepts, "
                "and arrays or jax.ShapeDtypeStruct (close over other values)"
            ) from error
        lowered = traced.lower()
        compiled = lowered.compile()
    return CompiledProgram(traced, lowered, compiled)


def memory_analysis(compiled: Any) -> Any:
    """Return XLA's memory statistics of a program, in bytes of one device."""
    statistics = compiled.memory_analysis()
    if statistics is None:
        raise NotImplementedError(
            f"the platform {jax.default_backend()!r} does not report a program's memory; expected "
            "one that supports compiled.memory_analysis(), such as cpu, gpu or tpu"
        )
    return statistics
