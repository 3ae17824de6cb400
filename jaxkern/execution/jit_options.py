"""What can be said about a cache of compiled programs, and what it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxkern.core.arguments import check_integer


@dataclasses.dataclass(frozen=True)
class JITOptions:
    """Options of `jit`.

    Attributes:
      sample_input: arguments to compile for at once: a tuple of arguments, or the single argument
        (of an `Operator`: its ``inputs``). Arrays or ``jax.ShapeDtypeStruct``; values do not
        matter. For a class of operators each new instance is compiled for it.
      cache_size: the most compiled programs that are kept; the least recently used ones go first.
      background: compile for ``sample_input`` in a thread instead of at once. A call that comes
        earlier waits for it.
      static_argnames: arguments to fix in the program though they are numbers or tuples of them.
      donate_argnames: arguments whose memory the result may take; they cannot be used again.

    Raises:
      ValueError: for a ``cache_size`` that is no whole number above 0.
      TypeError: for argument names that are not texts.
    """

    sample_input: Any = None
    cache_size: int = 128
    background: bool = False
    static_argnames: Sequence[str] = ()
    donate_argnames: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_size", check_integer("cache_size", self.cache_size, 1))
        for field in ("static_argnames", "donate_argnames"):
            names = getattr(self, field)
            object.__setattr__(self, field, _names(field, names))


def _names(field: str, names: Any) -> tuple[str, ...]:
    wanted = f"{field} is {names!r}; wanted an argument's name, or a sequence of names"
    try:
        found = (names,) if isinstance(names, str) else tuple(names)
    except TypeError as error:
        raise TypeError(wanted) from error
    if not all(isinstance(name, str) for name in found):
        raise TypeError(wanted)
    return found


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """The state of a cache of compiled programs.

    Attributes:
      hits, misses: calls that found a program, and calls that compiled one. (What JAX has to
        compile again after ``jax.clear_caches`` is no miss.)
      evictions: programs that were let go to stay within ``max_programs``.
      programs, max_programs: kept now, and at most. One signature has several where its arguments
        come with different shardings or in different contexts (`jaxkern.backend`, 64-bit types).
      bytes: of the programs kept: of machine code where the backend tells, else of the serialized
        programs.
      compile_seconds: spent tracing and compiling since the beginning, evicted programs included.
      inlined: calls under another transformation (``jax.jit``, ``grad``, ``vmap``), which belong
        to the program around them.
    """

    hits: int
    misses: int
    evictions: int
    programs: int
    max_programs: int
    bytes: int
    compile_seconds: float
    inlined: int
