"""``profile_fn``: times of a function's calls, and of its compilation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxkern.benchmarking.callee import Callee, name_of
from jaxkern.benchmarking.environment import environment
from jaxkern.benchmarking.measurement import Measurement
from jaxkern.benchmarking.resources import ResourceMeter
from jaxkern.benchmarking.samples import Samples
from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.compile_clock import CompileClock
from jaxkern.core.quantities import format_duration

MAX_CALLS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile(Measurement):
    """The result of `profile_fn`.

    Attributes:
      compile_seconds: tracing, lowering and compiling in the first call; 0 if nothing was compiled.
      first_call_seconds: time of the first call, including compilation.
    """

    compile_seconds: float
    first_call_seconds: float

    def figures(self) -> dict[str, Any]:
        compiled = ("compile_seconds", "first_call_seconds")
        return {**super().figures(), **{name: getattr(self, name) for name in compiled}}

    def __str__(self) -> str:
        compiled = format_duration(self.compile_seconds)
        return f"{super().__str__()}\n  compiled in {compiled}, before the samples"


def profile_fn(
    fn: Callable[..., Any],
    *args: Any,
    calls: int = 30,
    seconds: float = 0.2,
    warmup: int = 2,
    name: str | None = None,
) -> Profile:
    """Time the calls of a function until their results are ready, and its compilation separately.

    ``fn`` runs unchanged: wrap it in ``jax.jit`` to time its compiled form. Arguments that a jitted
    function donates are copied before each call, outside the measured time.

    Args:
      fn: function to time.
      *args: its arguments, pytrees.
      calls: minimum number of timed calls.
      seconds: minimum total time of the calls, limited to `MAX_CALLS` calls.
      warmup: number of untimed calls after the one that compiles.
      name: name of the measurement; by default the function's.

    Returns:
      A `Profile`: ``.median``, ``.mean``, ``.std``, ``.min``, ``.max``, ``.p90`` in seconds, also
      as ``profile["median"]``; ``.compile_seconds`` and ``.resources``.

    Raises:
      TypeError: if ``fn`` is not callable, or is jitted and cannot be traced with these arguments.
      ValueError: if a jitted function inside ``fn`` donates an argument, ``fn`` donates its own
        operator, or ``calls``,
        ``seconds`` or ``warmup`` is invalid.

    Example:
      >>> import jax, jax.numpy as jnp, jaxkern as jk
      >>> measured = jk.benchmarking.profile_fn(jax.jit(jnp.sin), jnp.ones(1000))
      >>> measured.min <= measured.median <= measured["p90"] <= measured.max
      True
    """
    calls, warmup = check_integer("calls", calls, 1), check_integer("warmup", warmup, 0)
    seconds = check_number("seconds", seconds, 0)
    with CompileClock() as clock:
        started = time.perf_counter()
        callee = Callee(fn, args)
        callee()
        first = time.perf_counter() - started
    for _ in range(warmup):
        callee()
    times: list[float] = []
    spent = 0.0
    with ResourceMeter() as meter:
        while len(times) < calls or (spent < seconds and len(times) < MAX_CALLS):
            times.append(callee.seconds())
            spent += times[-1]
    copied = " Donated arguments were copied before each call." if callee.donated else ""
    return Profile(
        name=name or name_of(fn),
        kind="call",
        samples=Samples(tuple(times)),
        environment=environment(),
        dimensions=describe_arrays(args, "args"),
        methodology=(
            f"{len(times)} calls after one that compiles and {warmup} for warm-up, each until its "
            f"results were ready.{copied}",
        ),
        resources=meter.used,
        compile_seconds=clock.seconds,
        first_call_seconds=first,
    )


def describe_arrays(tree: Any, name: str = "") -> dict[str, str]:
    """Return dtype and shape of the arrays in a tree: ``{"args[0]": "float32[1000]"}``."""
    return {
        f"{name}{jax.tree_util.keystr(path)}": f"{leaf.dtype}{list(np.shape(leaf))}"
        for path, leaf in jax.tree.leaves_with_path(tree)
        if hasattr(leaf, "dtype")
    }
