"""What rematerialization saves and costs, measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from jaxkern.core.arguments import check_integer
from jaxkern.core.calls import inner_programs
from jaxkern.core.programs import compile_program, memory_analysis
from jaxkern.core.timing import call_seconds


@dataclass(frozen=True)
class RematRow:
    """The value and gradient of a function under one policy.

    Attributes:
      policy: its name.
      temporary_bytes: that the compiled program holds besides arguments and results, on a device.
      seconds: a call, the median; the policies' calls took turns.
      saved_bytes: less than without remat; negative where it takes more.
      slowdown: the time over that without remat.
    """

    policy: str
    temporary_bytes: int
    seconds: float
    saved_bytes: int
    slowdown: float


@dataclass(frozen=True)
class RematReport:
    """A row for each policy, the one without remat first."""

    rows: tuple[RematRow, ...]

    def __getitem__(self, policy: str) -> RematRow:
        for row in self.rows:
            if row.policy == policy:
                return row
        raise KeyError(f"{policy!r}; there are {', '.join(row.policy for row in self.rows)}")

    def __str__(self) -> str:
        width = max(len(row.policy) for row in self.rows)
        lines = [f"{'policy':<{width}}  temporary MB   saved MB       ms   time"]
        for row in self.rows:
            lines.append(
                f"{row.policy:<{width}}{row.temporary_bytes / 1e6:>14.3f}"
                f"{row.saved_bytes / 1e6:>11.3f}{row.seconds * 1e3:>9.2f}{row.slowdown:>6.2f}x"
            )
        return "\n".join(lines)


def remat_report(
    make: Callable[..., Any],
    *args: Any,
    policies: Mapping[str, Any] | None = None,
    calls: int = 5,
) -> RematReport:
    """Compiles and runs the gradient of a function with and without remat: memory and time of each.

    What is worth rematerializing is a BLOCK that is repeated, such as a layer or the body of a
    scan: ``jax.checkpoint`` around a whole loss keeps nothing between, but its backward pass then
    holds all of the recomputed values at once, and little is saved. Therefore the function takes
    the wrapper and places it itself.

    Args:
      make: ``make(remat)`` returns the loss, with ``remat(block)`` around what may be recomputed;
        ``remat`` returns the block itself or ``jax.checkpoint(block, policy=...)``.
      *args: of the loss, which is differentiated by the first.
      policies: name to policy of ``jax.checkpoint``, None for one that saves nothing but the
        block's arguments; the default compares ``"nothing saved"`` and ``"dots saved"``.
      calls: that are timed.

    Raises:
      ValueError: when a policy's gradient differs from the one without remat by more than
        rounding, or ``calls`` is no whole number from 1 on.
      TypeError: when the loss cannot be compiled for the arguments.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxkern import performance
      >>> def make(remat):
      ...     layer = remat(lambda x, w: (jnp.sin(jnp.sin(x @ w)), None))
      ...     return lambda ws, x: jnp.sum(jax.lax.scan(layer, x, ws)[0])
      >>> ws, x = jnp.ones((8, 16, 16)) / 16, jnp.ones((64, 16))
      >>> report = performance.remat_report(make, ws, x)
      >>> report["nothing saved"].saved_bytes > 0
      True
    """
    if policies is None:
        policies = {"nothing saved": None, "dots saved": jax.checkpoint_policies.dots_saveable}
    if not callable(make):
        raise TypeError(f"make is {make!r:.60}; wanted a function of remat that returns the loss")
    calls = check_integer("calls", calls, 1)
    wrappers: dict[str, Callable[..., Any]] = {"no remat": lambda block: block}
    for name, policy in policies.items():
        wrappers[name] = _wrapper(policy)
    compiled, temporary = {}, {}
    wanted: Any = None
    for name, wrapper in wrappers.items():
        loss = make(wrapper)
        if not callable(loss):
            raise TypeError(f"make returned {loss!r:.60}; wanted the loss, a function")
        built = compile_program(jax.value_and_grad(loss), *args)
        compiled[name] = built.compiled
        temporary[name] = int(memory_analysis(built.compiled).temp_size_in_bytes)
        result = built.compiled(*args)
        wanted = result if wanted is None else wanted
        _check_equal(name, result, wanted, _coarsest(built.traced.jaxpr.jaxpr))
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(calls):
        for name, program in compiled.items():
            times[name] += call_seconds(program, *args, calls=1, warmup=0)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    return RematReport(
        tuple(
            RematRow(
                name,
                temporary[name],
                seconds[name],
                temporary["no remat"] - temporary[name],
                seconds[name] / seconds["no remat"],
            )
            for name in compiled
        )
    )


def _wrapper(policy: Any) -> Callable[..., Any]:
    return lambda block: jax.checkpoint(block, policy=policy)


def _coarsest(jaxpr: Jaxpr) -> float:
    """The rounding of the narrowest floating dtype that a program computes in, f32 at least."""
    found = float(np.finfo(np.float32).eps)
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            dtype = getattr(variable.aval, "dtype", None)
            if dtype is not None and jnp.issubdtype(dtype, np.floating):
                info: Any = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
                found = max(found, float(info.eps))
        found = max([found, *(_coarsest(part.jaxpr) for part in inner_programs(eqn))])
    return found


def _check_equal(name: str, result: Any, wanted: Any, eps: float) -> None:
    half = eps**0.5  # half of the digits
    for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(wanted), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        scale = np.max(np.abs(want), initial=0.0)
        if not np.allclose(got, want, rtol=half, atol=half * scale, equal_nan=True):
            raise ValueError(
                f"policy {name!r} gives another value or gradient than no remat; wanted a function "
                "whose recomputation is the same (no side effects, no other random numbers)"
            )
