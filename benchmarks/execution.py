"""Overheads of `jaxkern.execution`: `jit` compared with `jax.jit`, unused options, graphs.

    python benchmarks/execution.py            # prints, and writes benchmarks/results/
    python benchmarks/execution.py --quick    # fewer turns, writes nothing

Bars: 20 us for a cached call in addition to ``jax.jit``, and 1 us for an operator in addition to
its ``forward``. A graph of sleeping operators may take 20% longer than its critical path. Overheads
are medians of the differences between consecutive turns of two arms. The turns are milliseconds
apart, so that a change of the machine's speed affects both.
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

TURNS, CALLS = 400, 100


def per_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        result = fn(*args)
    jax.block_until_ready(result)
    return (time.perf_counter() - started) / CALLS


Case = tuple[str, float, Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def measured(cases: list[Case], turns: int) -> list[list[tuple[float, float]]]:
    """Return the microseconds of both arms of each case in each turn.

    Every turn runs the cases in another random order, so that periodic events such as garbage
    collection do not always affect the same case.
    """
    for _, _, ours, theirs, args in cases:
        per_call(ours, args), per_call(theirs, args)
    pairs: list[list[tuple[float, float]]] = [[] for _ in cases]
    rng = np.random.default_rng(0)
    for _ in range(turns):
        for number in rng.permutation(len(cases)):
            _, _, ours, theirs, args = cases[number]
            pairs[number].append((1e6 * per_call(ours, args), 1e6 * per_call(theirs, args)))
    return pairs


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
    return xs[0] + 1


def jit_cases() -> list[Case]:
    """Return calls with all kinds of arguments, for `jit` and for ``jax.jit``."""
    x, scale = jnp.full((4, 4), 1.0), Scale()
    operator = jax.jit(lambda op, x: op.forward(inputs=x))
    ours, theirs, static = ex.jit(first), jax.jit(first), jax.jit(first, static_argnums=1)
    by_keyword = (functools.partial(jit(power), n=x) for jit in (ex.jit, jax.jit))
    tree = dict.fromkeys("abcd", x)
    cases: list[tuple[Any, ...]] = [
        (f"{n} arrays", ex.jit(first), jax.jit(first), tuple(x + i for i in range(n)))
        for n in (1, 4, 16, 64)
    ]
    cases += [
        ("a dict of 4 arrays", ex.jit(tree_first), jax.jit(tree_first), (tree,)),
        ("an array and a number", ours, theirs, (x, 2.0)),
        ("an array and a text", ex.jit(first), static, (x, "same")),
        ("an array and a function", ex.jit(first), static, (x, first)),
        ("an array and a random key", ours, theirs, (x, jax.random.key(0))),
        ("an array of NumPy", ours, theirs, (np.asarray(x),)),
        ("an array and another by keyword", *by_keyword, (x,)),
        ("an operator of one array", ex.jit(scale), lambda x: operator(scale, x), (x,)),
        ("an array of two shapes in turn", in_turn(ours), in_turn(theirs), (x,)),
    ]
    for _, own, other, args in cases:
        np.testing.assert_array_equal(own(*args), other(*args))
    return [(f"jit, {what}", 20.0, *rest) for what, *rest in cases]


def in_turn(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Calls with the argument and with another shape, one after the other."""
    arguments = [jnp.ones((4, 4)), jnp.ones((4, 2))]

    def call(x: Any) -> Any:
        del x
        arguments.reverse()
        return fn(arguments[0])

    return call


def power(x: Any, n: Any) -> Any:
    return x**n


def tree_first(tree: Any) -> Any:
    return tree["a"] + 1


def graph_ratio(rounds: int) -> float:
    """Return the median ratio of the time of random sleeping graphs and their critical paths."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(rounds):
        seconds = rng.uniform(0.01, 0.1, 16)
        after = [
            [int(j) for j in rng.choice(i, rng.integers(0, min(i, 2) + 1), replace=False)]
            for i in range(16)
        ]
        ops = [ex.operator(lambda x, s=s: time.sleep(s) or 1, host=True) for s in seconds]

        def graph(x: Any, ops: Any = ops, after: Any = after) -> Any:
            values: list[Any] = []
            for op, before in zip(ops, after, strict=True):
                values.append(op([values[i] for i in before] or x))
            return values

        path: list[float] = []
        for s, before in zip(seconds, after, strict=True):
            path.append(s + max((path[i] for i in before), default=0.0))
        run = ex.structural_jit(graph, execution_strategy="parallel")
        run(0)
        started = time.perf_counter()
        run(0)
        ratios.append((time.perf_counter() - started) / max(path))
    return statistics.median(ratios)


def main() -> None:
    quick = harness.parse(__doc__).quick
    op = Same()
    option: Case = ("operator, options off", 1.0, op, lambda x: op.forward(inputs=x), (1,))
    cases = [*jit_cases(), option]
    pairs = measured(cases, 60 if quick else TURNS)
    rows = []
    for (what, bar, *_), times in zip(cases, pairs, strict=True):
        ours, theirs = (statistics.median(pair[i] for pair in times) for i in range(2))
        low, added, high = statistics.quantiles([a - b for a, b in times], n=4)
        verdict = harness.at_most(added, bar)
        cells = [what, f"{ours:.2f}", f"{theirs:.2f}", f"{added:.2f}", f"{low:.2f} to {high:.2f}"]
        rows.append([*cells, f"{bar:.1f}", verdict])
    ratio = graph_ratio(4 if quick else 12)
    graph = f"Random graphs of 16 sleeping operators take {ratio:.3f} of their critical path."
    header = " | jaxkern, us | without, us | added, us | quartiles | bar, us | "
    lines = [*harness.table(header, "lrrrrrl", rows), "", graph]
    record = {case[0]: times for case, times in zip(cases, pairs, strict=True)}
    harness.write("execution", "Execution", lines, record, quick=quick)


if __name__ == "__main__":
    main()
