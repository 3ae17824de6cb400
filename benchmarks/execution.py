"""Overheads of `jaxkern.execution`: `jit` compared with `jax.jit`, unused options.

Bars: 20 us for a cached call in addition to ``jax.jit``, and 1 us for an operator in addition to
its ``forward``. Overheads are medians of the differences between consecutive turns of two arms. The
turns are milliseconds apart, so that a change of the machine's speed affects both.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np

from jaxkern import execution as ex

CALLS = 100  # in a turn
# Our function, the other one, their arguments, and the bar.
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], float]


class Same(ex.Operator):
    """Returns its input."""

    host = True

    def forward(self, *, inputs: Any) -> Any:
        return inputs


class Scale(ex.Operator):
    """An operator with a factor, which is an operand, and a name, which is static."""

    def __init__(self) -> None:
        self.factor, self.name = jnp.float32(2), "scale"

    def forward(self, *, inputs: Any) -> Any:
        return inputs * self.factor


def first(*xs: Any) -> Any:
    return jax.tree.leaves(xs)[0] + 1


def power(x: Any, n: Any) -> Any:
    return x**n


def in_turn(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls fn with arrays of two shapes, one after the other."""
    arguments = [jnp.ones((4, 4)), jnp.ones((4, 2))]

    def call() -> Any:
        arguments.reverse()
        return fn(arguments[0])

    return call


def cases() -> dict[str, Case]:
    """Return calls with all kinds of arguments, for `jit` and for ``jax.jit``."""
    x, scale, same = jnp.full((4, 4), 1.0), Scale(), Same()
    operator = jax.jit(lambda op, x: op.forward(inputs=x))
    static = jax.jit(lambda x, other: first(x), static_argnums=1)
    by_keyword = [functools.partial(jit(power), n=x) for jit in (ex.jit, jax.jit)]

    def both() -> Any:
        return ex.jit(first), jax.jit(first)

    of_jit: dict[str, tuple[Any, ...]] = {
        f"{n} arrays": (*both(), tuple(x + i for i in range(n))) for n in (1, 4, 16, 64)
    }
    of_jit |= {
        "a dict of 4 arrays": (*both(), (dict.fromkeys("abcd", x),)),
        "an array and a number": (*both(), (x, 2.0)),
        "an array and a text": (ex.jit(first), static, (x, "same")),
        "an array and a function": (ex.jit(first), static, (x, first)),
        "an array and a random key": (*both(), (x, jax.random.key(0))),
        "an array of NumPy": (*both(), (np.asarray(x),)),
        "an array and another by keyword": (*by_keyword, (x,)),
        "an operator of one array": (ex.jit(scale), lambda x: operator(scale, x), (x,)),
        "an array of two shapes in turn": (*map(in_turn, both()), ()),
    }
    for own, other, args in of_jit.values():
        np.testing.assert_array_equal(own(*args), other(*args))
    unused: Case = (same, lambda x: same.forward(inputs=x), (1,), 1.0)
    return {f"jit, {name}": (*case, 20.0) for name, case in of_jit.items()} | {
        "operator, options off": unused
    }


def microseconds(fn: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Return the time of a call in a turn."""
    started = time.perf_counter()
    for _ in range(CALLS):
        result = fn(*args)
    jax.block_until_ready(result)
    return 1e6 * (time.perf_counter() - started) / CALLS


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(400, 60))
    calls = cases()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    rng = np.random.default_rng(0)
    for turn in range(bench.rounds + 1):
        # Another random order, so that periodic events such as garbage collection do not always
        # affect the same case.
        for name in rng.permutation(list(calls)):
            ours, theirs, args, _ = calls[name]
            pair = microseconds(ours, args), microseconds(theirs, args)
            if turn > 0:
                times[name].append(pair)
    rows = []
    for name, (*_, bar) in calls.items():
        ours, theirs = (statistics.median(pair[i] for pair in times[name]) for i in range(2))
        low, added, high = statistics.quantiles([a - b for a, b in times[name]], n=4)
        cells = [f"{ours:.2f}", f"{theirs:.2f}", f"{added:.2f}", f"{low:.2f} to {high:.2f}"]
        rows.append([name, *cells, f"{bar:.1f}", harness.at_most(added, bar)])
    header = " | jaxkern, us | without, us | added, us | quartiles | bar, us | "
    bench.write(harness.table(header, "lrrrrrl", rows), microseconds=times)


if __name__ == "__main__":
    main()
