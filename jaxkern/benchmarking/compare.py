"""``compare``: implementations of the same work, checked to be equal, then timed in turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from jaxkern.benchmarking.measurement import (
    Measurement,
    Ratio,
    ResourceMeter,
    environment,
    ratio_of_medians,
)
from jaxkern.benchmarking.profiling import Callee, describe_arrays
from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.quantities import format_duration

_MAX_TURN_SECONDS = 3600.0
Check = Literal["equal", "close"] | Callable[[Any, Any], Any]


class DifferentResultsError(ValueError):
    """The arms of a comparison return different results, so their times cannot be compared.

    Example:
      >>> import jaxkern as jk
      >>> try:
      ...     jk.benchmarking.compare({"sum": sum, "max": max}, (1, 2, 3))
      ... except jk.benchmarking.DifferentResultsError:
      ...     print("not equal")
      not equal
    """


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of `compare`: measurements by name, and a sentence on how results were checked.

    Example:
      >>> import jaxkern as jk
      >>> arms = {"sum": lambda x: sum(x), "loop": lambda x: sum(y for y in x)}
      >>> comparison = jk.benchmarking.compare(arms, (1, 2, 3), rounds=5)
      >>> list(comparison.arms), comparison.fastest in arms
      (['sum', 'loop'], True)
    """

    arms: dict[str, Measurement]
    checked: str

    def __getitem__(self, name: str) -> Measurement:
        if name not in self.arms:
            raise KeyError(f"no arm {name!r}; the arms are {', '.join(self.arms)}")
        return self.arms[name]

    @property
    def fastest(self) -> str:
        """The arm with the smallest median, even if the difference is not significant."""
        return min(self.arms, key=lambda name: self.arms[name].median)

    def speedup(self, name: str, over: str) -> Ratio:
        """Return the speed of an arm relative to another, a ratio of medians over paired rounds."""
        after, before = self[name].seconds, self[over].seconds
        return ratio_of_medians(after, before, paired=True).inverse

    def __str__(self) -> str:
        first = next(iter(self.arms))
        width = max(map(len, self.arms))
        lines = [f"{self.checked}; medians, {first} = 1"]
        for name, arm in self.arms.items():
            median, p90 = format_duration(arm.median), format_duration(arm.p90)
            speedup = "" if name == first else f"  x{self.speedup(name, over=first)}"
            lines.append(f"  {name:<{width}}  {median:>9}  p90 {p90:>9}{speedup}")
        return "\n".join(lines)


def compare(
    arms: Mapping[str, Callable[..., Any]],
    *args: Any,
    check: Check | None = "equal",
    rounds: int = 15,
    warmup: int = 2,
    turn_seconds: float = 0.01,
    pause: float = 0.0,
    back_to_back: bool = False,
    rtol: float | None = None,
    atol: float = 0.0,
    dimensions: Mapping[str, Any] | None = None,
) -> Comparison:
    """Check that functions do the same work, then time them in interleaved turns.

    In each round, which begins with another arm, every arm has one turn: one untimed call, then
    timed calls for about ``turn_seconds``, whose mean is one sample.

    Args:
      arms: at least two functions by name.
      *args: arguments of all arms.
      check: ``"equal"``: the same structures, shapes, dtypes and values (NaN equals NaN).
        ``"close"``: values within ``rtol`` and ``atol``, of any float dtypes. A function
        ``check(first, other)`` raises or returns False if they differ. None: not compared, which
        the result states.
      rounds, warmup: number of rounds, and of untimed calls of each arm before them.
      turn_seconds: approximate duration of a turn.
      pause: seconds of rest before each turn, for threads of another arm to become idle.
      back_to_back: wait at the end of a turn instead of after each call.
      rtol, atol: tolerances of ``"close"``; rtol is by default the square root of the coarser
        dtype's epsilon.
      dimensions: size of the work for the report; by default the shapes of the arguments.

    Raises:
      DifferentResultsError: if results differ; the message says where. No arm is timed.
      TypeError, ValueError: for an invalid argument, or an arm that modifies an argument in place.

    Example:
      >>> import jax, jax.numpy as jnp, jaxkern as jk
      >>> arms = {"product": jax.jit(lambda x: x * x), "power": jax.jit(lambda x: x**2)}
      >>> comparison = jk.benchmarking.compare(arms, jnp.arange(1000.0), rounds=5)
      >>> comparison.speedup("power", over="product").low > 0
      True
    """
    if not isinstance(arms, Mapping) or len(arms) < 2:
        raise ValueError(f"arms: expected a dict of at least two functions, got {arms!r:.80}")
    rounds, warmup = check_integer("rounds", rounds, 1), check_integer("warmup", warmup, 0)
    turn_seconds = check_number("turn_seconds", turn_seconds, 0, _MAX_TURN_SECONDS)
    pause, atol = check_number("pause", pause, 0), check_number("atol", atol, 0)
    rtol = None if rtol is None else check_number("rtol", rtol, 0)
    callees = {name: Callee(fn, args) for name, fn in arms.items()}
    if back_to_back and (donors := [name for name, c in callees.items() if c.donated]):
        raise ValueError(f"back_to_back: expected arms without donation, got {', '.join(donors)}")
    checked = _check_arms(callees, check, rtol, atol)
    repeats = {}
    for name, callee in callees.items():
        last = callee.seconds(warmup + 1)[-1]
        repeats[name] = max(1, round(turn_seconds / max(last, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    with ResourceMeter() as meter:
        for _ in range(rounds):
            for name in order:
                time.sleep(pause)
                callees[name].seconds()
                samples[name].append(callees[name].mean_seconds(repeats[name], back_to_back))
            order = order[1:] + order[:1]
    measured_on = environment()
    rounds_id = f"{measured_on['date']} {time.monotonic_ns()}"
    sizes = describe_arrays(args, "args") if dimensions is None else dimensions
    waits = "a turn" if back_to_back else "every call"
    measurements = {
        name: Measurement(
            name=name,
            kind="arm",
            seconds=tuple(samples[name]),
            environment=measured_on,
            dimensions=dict(sizes),
            methodology=(
                f"{checked}.",
                f"{rounds} rounds of interleaved turns, each round beginning with another arm; a "
                f"turn is one untimed call, then {repeats[name]} calls whose mean is one sample; "
                f"{waits} waits for its results.",
            ),
            resources=meter.used,
            rounds=rounds_id,
        )
        for name in arms
    }
    return Comparison(measurements, checked)


def _check_arms(
    callees: dict[str, Callee], check: Check | None, rtol: float | None, atol: float
) -> str:
    if not (check is None or check in ("equal", "close") or callable(check)):
        raise ValueError(f"check: expected 'equal', 'close', a function or None, got {check!r}")
    first, *others = callees
    expected = _call_checked(first, callees[first])
    for name in others:
        result = _call_checked(name, callees[name])
        try:
            assert_same(expected, result, check, rtol, atol)
        except AssertionError as error:
            raise DifferentResultsError(
                f"{first!r} and {name!r} return different results: {error}"
            ) from error
    if check is None:
        return "The results were not compared"
    name = getattr(check, "__name__", "the check")
    return f"All results passed {name}" if callable(check) else f"All results are {check}"


def _call_checked(name: str, callee: Callee) -> Any:
    """Return an arm's result; raise if it modifies arguments, which would change the work."""
    arrays = [
        (path, leaf, leaf.copy())
        for path, leaf in jax.tree.leaves_with_path(callee.args)
        if isinstance(leaf, np.ndarray)
    ]
    result = callee()
    for path, leaf, before in arrays:
        if before.tobytes() != leaf.tobytes():
            raise ValueError(f"{name!r} modifies args{keystr(path)} in place; copy it in the arm")
    return result


def assert_same(
    expected: Any, result: Any, check: Check | None, rtol: float | None = None, atol: float = 0.0
) -> None:
    """Raise AssertionError if two results differ, see `compare`."""
    if callable(check):
        passed = check(expected, result)
        if passed is not None and not np.all(passed):
            raise AssertionError("the check returned False")
    elif check is not None:
        trees: list[Any] = [jax.tree.structure(expected), jax.tree.structure(result)]
        if trees[0] != trees[1]:
            raise AssertionError(f"the structures are {trees[0]} and {trees[1]}")
        leaves = zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(result), strict=True)
        for (path, a), b in leaves:
            _assert_same_leaf(f"result{keystr(path)}", a, b, check == "equal", rtol, atol)


def _to_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _assert_same_leaf(
    where: str, expected: Any, result: Any, equal: bool, rtol: float | None, atol: float
) -> None:
    a, b = _to_numpy(expected), _to_numpy(result)
    # NumPy does not count bfloat16 and similar dtypes as floats; JAX does.
    inexact = [x.dtype for x in (a, b) if jnp.issubdtype(x.dtype, jnp.inexact)]
    is_complex = any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in inexact)
    wide: Any = np.complex128 if is_complex else np.float64
    exact = equal or len(inexact) < 2
    if a.shape != b.shape:
        raise AssertionError(f"{where}: the shapes are {a.shape} and {b.shape}")
    if exact and a.dtype != b.dtype:
        raise AssertionError(f"{where}: the dtypes are {a.dtype} and {b.dtype}")
    if inexact:
        a, b = a.astype(wide), b.astype(wide)
    if exact:
        different, bounds = (a != b) & ~((a != a) & (b != b)), ""
    else:
        if rtol is None:
            infos: list[Any] = [jnp.finfo(dtype) for dtype in inexact]  # type: ignore[no-untyped-call]
            rtol = max(float(info.eps) for info in infos) ** 0.5
        different = ~np.isclose(b, a, rtol, atol, equal_nan=True)
        bounds = f" (rtol={rtol:.3g}, atol={atol:.3g})"
    if np.any(different):
        index = tuple(np.argwhere(different)[0].tolist())
        raise AssertionError(
            f"{where}: {int(np.sum(different)):,} of {a.size:,} values differ{bounds}, "
            f"the first at {list(index)}: {a[index]} and {b[index]}"
        )
