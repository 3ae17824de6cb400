"""``profile_fn``: times of a function's calls, and of its compilation."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.benchmarking.environment import environment
from jaxkern.benchmarking.measurement import Measurement, ResourceMeter
from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.quantities import format_duration
from jaxkern.core.timing import CompileClock, call_seconds
from jaxkern.execution.jit import JitFunction

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
      ValueError: if a jitted function inside ``fn`` donates an argument, or an option is invalid.

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
        seconds=tuple(times),
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


# Calls that may donate their arguments ------------------------------------------------------------


class Callee:
    """``fn(*args)`` that copies donated arrays before each call, so that ``args`` stay valid."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not callable(fn):
            raise TypeError(f"fn: expected a function, got {fn!r:.80}")
        self.fn, self.args = fn, args
        jitted = hasattr(fn, "lower") and not isinstance(fn, JitFunction)
        self.donated = _donated_by_jax(fn, args) if jitted else set()

    def fresh(self) -> tuple[Any, ...]:
        """Return arguments for one call, in which donated arrays are finished copies."""
        if not self.donated:
            return self.args
        copied: tuple[Any, ...] = jax.tree.map_with_path(
            lambda path, x: jnp.copy(x) if _keystr(path) in self.donated else x, self.args
        )
        jax.block_until_ready(copied)
        return copied

    def __call__(self) -> Any:
        """Call once and wait for the result; detect a donation inside ``fn``."""
        result = jax.block_until_ready(self.fn(*self.fresh()))
        for path, leaf in jax.tree.leaves_with_path(self.args):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise ValueError(
                    f"args{_keystr(path)} was deleted by the first call of {name_of(self.fn)}: a "
                    "jitted function inside it donates the array; pass that function itself"
                )
        return result

    def seconds(self) -> float:
        """Return the time of one call, without copies of donated arguments."""
        return call_seconds(self.fn, *self.fresh(), calls=1, warmup=0)[0]

    def mean_seconds(self, calls: int, back_to_back: bool) -> float:
        """Return the mean time of calls, waiting after each call or only after the last."""
        if not back_to_back:
            return sum(self.seconds() for _ in range(calls)) / calls
        started = time.perf_counter()
        for _ in range(calls):
            result = self.fn(*self.args)
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / calls


def _donated_by_jax(fn: Any, args: tuple[Any, ...]) -> set[str]:
    """Return the paths in ``args`` that a function of ``jax.jit`` donates."""
    leaves = jax.tree.leaves_with_path(args)
    try:
        infos, _ = fn.lower(*args).args_info
    except TypeError as error:
        kinds = {f"args{_keystr(path)}": type(leaf).__name__ for path, leaf in leaves}
        raise TypeError(
            f"{name_of(fn)} cannot be traced with arguments of the types {kinds}; pass arrays and "
            f"numbers, and declare others in static_argnums of jax.jit: {error}"
        ) from error
    donated = {_keystr(path) for path, info in jax.tree.leaves_with_path(infos) if info.donated}
    if donated and len(infos) < len(args):
        # JAX omits static arguments, which shifts the paths of the others: copy all arrays.
        return {_keystr(path) for path, leaf in leaves if isinstance(leaf, jax.Array)}
    return donated


def _keystr(path: Any) -> str:
    return jax.tree_util.keystr(path)


def name_of(fn: Any) -> str:
    """Return the name of a function; for a partial, that of the wrapped function."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
