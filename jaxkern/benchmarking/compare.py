"""``compare``: several ways to do the same work, checked to do it, then timed in turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.benchmarking.call_profile import shapes
from jaxkern.benchmarking.callee import Callee
from jaxkern.benchmarking.environment import environment
from jaxkern.benchmarking.equality import check_same
from jaxkern.benchmarking.measurement import Measurement
from jaxkern.benchmarking.resources import ResourceMeter
from jaxkern.benchmarking.samples import Ratio, Samples, ratio_of_medians
from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.quantities import format_duration

_LONGEST_TURN = 3600.0
Check = Literal["equal", "close"] | Callable[[Any, Any], Any] | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found: ``comparison["arm"]`` is an arm's `Measurement`.

    Attributes:
      arms: in the order they were given in; the first is what the others were checked against.
      checked: how the results were compared, in words.
    """

    arms: dict[str, Measurement]
    checked: str

    def __getitem__(self, name: str) -> Measurement:
        if name not in self.arms:
            raise KeyError(f"no arm {name!r}; there are {', '.join(self.arms)}")
        return self.arms[name]

    @property
    def fastest(self) -> str:
        """The arm with the least median, whether or not the others are shown to be slower."""
        return min(self.arms, key=lambda name: self.arms[name].median)

    def speedup(self, name: str, over: str) -> Ratio:
        """How many times as fast one arm is as another: a ratio of medians, rounds paired."""
        after, before = self[name].samples.seconds, self[over].samples.seconds
        return ratio_of_medians(after, before, paired=True).inverse

    def as_dict(self) -> dict[str, Any]:
        arms = {name: arm.as_dict() for name, arm in self.arms.items()}
        return {"checked": self.checked, "arms": arms}

    def __str__(self) -> str:
        first = next(iter(self.arms))
        width = max(map(len, self.arms))
        lines = [f"{self.checked}; medians, {first} = 1"]
        for name, arm in self.arms.items():
            median, p90 = format_duration(arm.median), format_duration(arm.p90)
            line = f"  {name:<{width}}  {median:>9}  p90 {p90:>9}"
            lines.append(line + ("" if name == first else f"  x{self.speedup(name, over=first)}"))
        return "\n".join(lines)


def compare(
    arms: Mapping[str, Callable[..., Any]],
    *args: Any,
    check: Check = "equal",
    rounds: int = 15,
    warmup: int = 2,
    turn_seconds: float = 0.01,
    pause: float = 0.0,
    back_to_back: bool = False,
    rtol: float | None = None,
    atol: float = 0.0,
    dimensions: Mapping[str, Any] | None = None,
) -> Comparison:
    """Times functions that do the same work, in turns, after checking that they do.

    Each round gives every arm one turn, and the next round begins with the next arm, so that a
    machine whose speed drifts slows all of them alike. A turn is one call that does not count and
    then as many as fill ``turn_seconds``; its mean is one sample.

    Args:
      arms: functions by name, two or more; all get ``args``.
      check: ``"equal"``: the same structures, shapes, dtypes and values (NaN equals NaN).
        ``"close"``: values within ``rtol`` and ``atol``, of any float dtypes. A function
        ``check(first, other)`` raises or returns False where they differ. None: unchecked, and the
        result says so.
      pause: seconds of rest before each turn, in which the threads of another arm come to rest.
      back_to_back: whether a turn's calls are enqueued one behind the other and waited for at its
        end: the throughput of an accelerator, not the time until a call's results are there.
      rtol: for ``"close"``; by default the square root of the coarser dtype's epsilon.
      dimensions: what the report says of the work's size; by default the arguments' shapes.

    Raises:
      DifferentResultsError: arms whose results differ; the message says where, and no arm is timed.
      TypeError, ValueError: bad input; an arm that changes an argument in place.

    Example:
      >>> import jax, jax.numpy as jnp, jaxkern as jk
      >>> ways = {"product": jax.jit(lambda x: x * x), "power": jax.jit(lambda x: x**2)}
      >>> found = jk.benchmarking.compare(ways, jnp.arange(1000.0), rounds=5)
      >>> found.speedup("power", over="product").low > 0
      True
    """
    if not isinstance(arms, Mapping) or len(arms) < 2:
        raise ValueError(f"arms is {arms!r:.80}; wanted a dict of two functions or more by name")
    rounds, warmup = check_integer("rounds", rounds, 1), check_integer("warmup", warmup, 0)
    turn_seconds = check_number("turn_seconds", turn_seconds, 0, _LONGEST_TURN)
    pause, atol = check_number("pause", pause, 0), check_number("atol", atol, 0)
    rtol = None if rtol is None else check_number("rtol", rtol, 0)
    callees = {name: Callee(fn, args) for name, fn in arms.items()}
    if back_to_back and (donors := [name for name, c in callees.items() if c.donated]):
        raise ValueError(
            f"{', '.join(donors)} donates arguments, which are copied before each call; wanted "
            "arms without donation for back_to_back=True"
        )
    checked = _check(callees, check, rtol, atol)
    repeats = {name: _repeats(callee, warmup, turn_seconds) for name, callee in callees.items()}
    samples: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    with ResourceMeter() as meter:
        for number in range(rounds):
            start = number % len(order)
            for name in order[start:] + order[:start]:
                time.sleep(pause)
                callees[name].seconds()
                samples[name].append(callees[name].turn(repeats[name], back_to_back))
    where = environment()
    identity = f"{where['date']} {time.monotonic_ns()}"
    measured = {
        name: Measurement(
            name=name,
            kind="arm",
            samples=Samples(tuple(samples[name])),
            environment=where,
            dimensions=dict(dimensions) if dimensions is not None else shapes(args),
            methodology=(
                checked + ".",
                f"{rounds} rounds of interleaved turns, each round beginning with another arm; a "
                f"turn is one call that does not count, then {repeats[name]} calls of which the "
                f"mean is one sample; {'a turn' if back_to_back else 'every call'} waits for its "
                "results.",
            ),
            resources=meter.used,
            rounds=identity,
        )
        for name in arms
    }
    return Comparison(measured, checked)


def _check(callees: dict[str, Callee], check: Check, rtol: float | None, atol: float) -> str:
    if not (check is None or check in ("equal", "close") or callable(check)):
        raise ValueError(f"check is {check!r}; wanted 'equal', 'close', a function or None")
    first, *others = callees
    expected = _untouched(first, callees[first])
    if check is None:
        for name in others:
            _untouched(name, callees[name])
        return "The results were not compared"
    for name in others:
        check_same(first, expected, name, _untouched(name, callees[name]), check, rtol, atol)
    if callable(check):
        return f"All results passed {getattr(check, '__name__', 'the given check')}"
    return "All results are equal" if check == "equal" else "All results are close"


def _untouched(name: str, callee: Callee) -> Any:
    """An arm's result; arms that change their arguments leave the others other work."""
    before = [
        (path, leaf.copy())
        for path, leaf in jax.tree.leaves_with_path(callee.args)
        if isinstance(leaf, np.ndarray)
    ]
    result = callee()
    after = (leaf for leaf in jax.tree.leaves(callee.args) if isinstance(leaf, np.ndarray))
    for (path, old), new in zip(before, after, strict=True):
        if old.tobytes() != new.tobytes():
            raise ValueError(
                f"{name!r} changes args{jax.tree_util.keystr(path)} in place, so that the next "
                "call has other work; wanted an arm that copies what it changes"
            )
    return result


def _repeats(callee: Callee, warmup: int, turn_seconds: float) -> int:
    for _ in range(warmup):
        callee.seconds()
    return max(1, round(turn_seconds / max(callee.seconds(), 1e-7)))
