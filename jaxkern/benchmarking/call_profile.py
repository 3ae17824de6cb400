"""``profile_fn``: how long a call takes, with its compilation apart."""

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

MOST_CALLS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile(Measurement):
    """What `profile_fn` found.

    Attributes:
      compile_seconds: tracing, lowering and compiling, all that the first call needed; 0 when
        everything had been compiled before.
      first_call_seconds: from the function to its first results, compilation included.
    """

    compile_seconds: float
    first_call_seconds: float

    def figures(self) -> dict[str, Any]:
        return {
            **super().figures(),
            "compile_seconds": self.compile_seconds,
            "first_call_seconds": self.first_call_seconds,
        }

    def __str__(self) -> str:
        compiled = f"  compiled in {format_duration(self.compile_seconds)}, before the samples"
        return f"{super().__str__()}\n{compiled}"


def profile_fn(
    fn: Callable[..., Any],
    *args: Any,
    calls: int = 30,
    seconds: float = 0.2,
    warmup: int = 2,
    name: str | None = None,
) -> Profile:
    """Times calls of a function until their results are ready, and its compilation apart.

    ``fn`` runs as it is: wrap it in ``jax.jit`` to time its compiled form. Arguments that a jitted
    function donates are copied before each call, outside the time.

    Args:
      args: of ``fn``; pytrees.
      calls: how many at least.
      seconds: and more calls until so much time is spent, or there are `MOST_CALLS`.
      warmup: calls before, the one that compiles not counted.
      name: of the measurement; by default the function's.

    Returns:
      A `Profile`: ``.median``, ``.mean``, ``.std``, ``.min``, ``.max``, ``.p90`` in seconds, the
      same by ``profile["median"]``, ``.compile_seconds`` and ``.resources``.

    Raises:
      TypeError: ``fn`` is not callable, or is jitted and cannot be traced with these arguments.
      ValueError: ``fn`` donates an argument without saying so, or the operator whose method it is,
        or ``calls``, ``seconds`` or ``warmup`` is out of its range or not a number of its kind.

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
        while len(times) < calls or (spent < seconds and len(times) < MOST_CALLS):
            times.append(callee.seconds())
            spent += times[-1]
    copied = " Donated arguments were copied before each call." if callee.donated else ""
    return Profile(
        name=name or name_of(fn),
        kind="call",
        samples=Samples(tuple(times)),
        environment=environment(),
        dimensions=shapes(args),
        methodology=(
            f"{len(times)} calls after the compiling one and {warmup} of warm-up, each until its "
            f"results were ready.{copied}",
        ),
        resources=meter.used,
        compile_seconds=clock.seconds,
        first_call_seconds=first,
    )


def shapes(args: tuple[Any, ...]) -> dict[str, str]:
    """The arrays of arguments by their places: ``{"args[0]": "float32[1000]"}``."""
    return {
        f"args{jax.tree_util.keystr(path)}": f"{leaf.dtype}{list(np.shape(leaf))}"
        for path, leaf in jax.tree.leaves_with_path(args)
        if hasattr(leaf, "dtype")
    }
