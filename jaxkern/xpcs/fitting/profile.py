"""Profile likelihood of a parameter: chi2 with the parameter held, and all others refitted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.data import BadBlocks
from jaxkern.xpcs.fitting.evaluation import Evaluation, FitProblem, FitProgress
from jaxkern.xpcs.fitting.parameters import unknown_name
from jaxkern.xpcs.fitting.passes import PassRunner

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# Differences of chi2 at the ends of intervals of one parameter, by level (Wilks).
LIMITS = {0.68: 1.0, 0.95: 3.84}
# Step of the root of the difference of chi2, and the largest number of refits on each side.
_ROOT_STEP, _MOST_REFITS = 0.5, 24
# Roots below this are differences of costs within the tolerances of the solver.
_SMALL_ROOT = 0.05


@dataclass(frozen=True, eq=False)
class Profile:
    """Profile likelihood of a parameter of a fit.

    Attributes:
      name, unit: of the parameter.
      best: its fitted value.
      values: [n] values at which it was held, and `best`, in increasing order.
      delta_chi2: [n] increase of the minimized function over that of the fit. Its unit is that of
        `perr`: the variance of the noise, estimated or given, and with a jackknife also the ratio
        of both variances of this parameter, so that a parabola of `perr` is ((value - best) /
        perr)^2.
      parameters: [n, p] all parameters of the refits.
      intervals: level (0.68, 0.95) -> (low, high), where delta_chi2 is 1 and 3.84. An end is
        infinite if delta_chi2 remains smaller up to the bound, or as far as was searched.
      notes: reasons of infinite ends, and a lower minimum if a refit found one.
      nfev: passes over the data.
    """

    name: str
    unit: str
    best: float
    values: Array
    delta_chi2: Array
    parameters: Array
    intervals: Mapping[float, tuple[float, float]]
    notes: tuple[str, ...] = ()
    nfev: int = 0

    def __str__(self) -> str:
        lines = [f"{self.name} = {self.best:.6g} {self.unit}".rstrip()]
        lines += [f"  {level:.0%}: {a:.6g} .. {b:.6g}" for level, (a, b) in self.intervals.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot the difference of chi2 and the intervals; save the figure if a path is given."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.0, 3.8), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.values, self.delta_chi2, ".-", color="k", lw=0.8)
        for (level, ends), color in zip(self.intervals.items(), ("C0", "C1"), strict=True):
            axes.axhline(LIMITS[level], color=color, lw=0.6)
            for end in filter(math.isfinite, ends):
                axes.axvline(end, color=color, lw=0.8, ls="--")
            axes.plot([], [], color=color, label=f"{level:.0%}: {ends[0]:.4g} to {ends[1]:.4g}")
        axes.axvline(self.best, color="0.6", lw=0.8)
        axes.set(xlabel=f"{self.name} ({self.unit})" if self.unit else self.name)
        axes.set(ylabel="increase of chi2", ylim=(min(0.0, float(self.delta_chi2.min())), None))
        axes.legend(frameon=False, fontsize=8)
        if path is not None:
            figure.savefig(path)
        return figure


@dataclass
class _Refits:
    """Refits with the parameter k held, each from an extrapolation of the last two."""

    problem: FitProblem  # with k held
    runner: PassRunner
    progress: FitProgress
    k: int
    best: Array  # the parameters of the fit [p]
    cost: float
    unit: float  # of differences of the cost
    slope: Array  # change of all parameters with k, from the covariance [p]
    passes: int = 0

    def root(self, value: float, points: list[tuple[float, Array]]) -> float:
        """Append the refit at a value to `points`; return the root of its difference of chi2."""
        (_, x), slope = points[-1], self.slope
        if len(points) > 1:
            before = points[-2][1]
            slope = (x - before) / (x[self.k] - before[self.k])
        lower, upper = self.problem.bounds.solver
        start = np.clip(x + (value - x[self.k]) * slope, lower, upper)
        start = np.where(self.problem.free, start, x)
        start[self.k] = value
        evaluation = Evaluation(
            self.problem, self.runner, start, self.progress, lambda _: None, earlier=0
        )
        others, cost = evaluation.start, math.inf
        if others.size:
            solution = evaluation.minimize(others)
            others, cost = solution.x, solution.cost
        elif (point := evaluation(others)) is not None:
            cost = point.cost
        self.passes += evaluation.earlier + evaluation.passes
        delta = (cost - self.cost) / self.unit
        points.append((delta, evaluation.full(others)))
        return math.sqrt(max(delta, 0.0))

    def calibrate(self, error: float) -> None:
        """Scale the unit so that the curvature at the optimum is that of the standard error.

        The weights of a robust loss in J^T J are larger than its curvature.
        """
        low, high = (bound[self.k] for bound in self.problem.bounds.solver)
        deltas = []
        for value in self.best[self.k] + _ROOT_STEP * error * np.array([-1.0, 1.0]):
            if low <= value <= high:
                points = [(0.0, self.best)]
                self.root(float(value), points)
                deltas.append(points[1][0])
        if deltas and np.mean(deltas) > 0:
            self.unit *= float(np.mean(deltas)) / _ROOT_STEP**2

    def side(self, sign: float, step: float, notes: list[str]) -> list[tuple[float, Array]]:
        """Return the refits on one side, outward until the 95% limit or a bound."""
        k, points = self.k, [(0.0, self.best)]
        start, name = self.best[k], self.problem.layout.names[k]
        last = math.sqrt(max(LIMITS.values()))
        low, high = (bound[k] for bound in self.problem.bounds.solver)
        half = self.problem.bounds.period[k] / 2
        end = min(high, start + half) if sign > 0 else max(low, start - half)
        if end != start:
            step = min(step, abs(end - start) / 4)
        value, reached = start, 0.0
        for _ in range(_MOST_REFITS):
            target = value + sign * step
            target = min(target, end) if sign > 0 else max(target, end)
            if target == value:
                break
            root = self.root(target, points)
            # The root is linear in the value for a parabola.
            gain = (root - reached) / abs(target - value)
            ideal = _ROOT_STEP / gain if gain > 0 else math.inf
            step = float(np.clip(ideal, step / 4, 2 * step))
            value, reached = target, root
            if root > last:
                return points
        side = "upper" if sign > 0 else "lower"
        bound = high if sign > 0 else low
        where = f"its bound {bound:g}" if value == bound else f"{value:g}"
        notes.append(
            f"the {side} end of an interval of {name} is open: chi2 increases by {reached**2:.3g} "
            f"up to {where}"
        )
        return points


def profile(
    problem: FitProblem,
    bad: BadBlocks,
    name: str,
    best: Array,
    cost: float,
    pcov: Array,
    error: float,
    unit: float,
    values: Sequence[float] | None,
    progress: bool,
) -> Profile:
    """Return the profile of a fit with the parameters `best` [p], and their cost.

    `pcov` [p, p] is the covariance for independent noise, `error` the standard error, and `unit`
    the difference of the cost at this distance. `values` replace the steps.
    """
    names = problem.layout.names
    if name not in names:
        raise ValueError(unknown_name(name, names, "name"))
    k = names.index(name)
    if not problem.free[k]:
        raise ValueError(f"name: expected a fitted parameter, got {name!r}, which is held")
    free = problem.free.copy()
    free[k] = False
    low, high = (bound[k] for bound in problem.bounds.solver)
    slope = np.zeros(len(free))
    if np.isfinite(pcov[k, k]) and pcov[k, k] > 0:
        slope = np.where(free & np.isfinite(pcov[k]), pcov[k] / pcov[k, k], 0.0)
    step = _ROOT_STEP * error
    if not (math.isfinite(step) and step > 0):
        step = min(0.1 * max(abs(best[k]), 1e-3), (high - low) / 10)
    notes: list[str] = []
    with jax.enable_x64(True), FitProgress(progress) as bar:
        runner = PassRunner(
            problem.program, problem.data, problem.noise, problem.solver.f_scale,
            bool(problem.mirrored.all()), bar.update,
        )  # fmt: skip
        runner.bad.excluded |= bad.excluded
        held = replace(problem, free=free)
        refits = _Refits(held, runner, bar, k, best, cost, unit, slope)
        if problem.solver.loss != "linear" and math.isfinite(error):
            refits.calibrate(error)
        sides = []
        for sign in (-1.0, 1.0):
            if values is None:
                sides.append(refits.side(sign, step, notes))
                continue
            points = [(0.0, best)]
            side = [float(v) for v in values if sign * (v - best[k]) > 0]
            for value in sorted(side, reverse=sign < 0):
                if not low <= value <= high:
                    raise ValueError(f"values: expected {low:g} .. {high:g}, got {value:g}")
                refits.root(value, points)
            sides.append(points)
    points = sides[0][:0:-1] + sides[1]
    deltas = np.array([delta for delta, _ in points])
    table = np.array([x for _, x in points])
    if deltas.min() < -(_SMALL_ROOT**2):
        at = table[int(np.argmin(deltas)), k]
        notes.append(
            f"chi2 is lower by {-deltas.min():.3g} at {name} = {at:.6g}: the fit missed this "
            "minimum, so fit again from these `parameters`"
        )
    intervals = {
        level: (_crossing(sides[0], k, limit, -math.inf), _crossing(sides[1], k, limit, math.inf))
        for level, limit in LIMITS.items()
    }
    return Profile(
        name, problem.layout.units[k], float(best[k]), table[:, k], deltas, table, intervals,
        tuple(notes), refits.passes,
    )  # fmt: skip


def _crossing(points: list[tuple[float, Array]], k: int, limit: float, missing: float) -> float:
    """Return the first value where delta chi2 is `limit`, linear in its root, or `missing`."""
    end = math.sqrt(limit)
    roots = [math.sqrt(max(delta, 0.0)) for delta, _ in points]
    for i in range(1, len(points)):
        if roots[i] >= end:
            share = (end - roots[i - 1]) / (roots[i] - roots[i - 1])
            inner, outer = points[i - 1][1][k], points[i][1][k]
            return float(inner + share * (outer - inner))
    return missing
