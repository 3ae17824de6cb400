"""The function that the solver calls: normal equations at a point, from one pass over the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.fitting.data import FitData
from jaxkern.xpcs.fitting.options import ErrorOptions, SolverOptions, StreamingOptions
from jaxkern.xpcs.fitting.parameters import FitLayout, PeriodicBounds
from jaxkern.xpcs.fitting.passes import AngleSums, PassProgram, PassRunner
from jaxkern.xpcs.fitting.sampling import Noise
from jaxkern.xpcs.fitting.solver import NormalPoint, Solution
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]


class FitProgress(ProgressBar):
    """The progress bar of a fit: number and cost of passes, and chunks of the current pass."""

    def __init__(self, enabled: bool) -> None:
        super().__init__(enabled, "fit: pass 1", "chunk")

    def after_pass(self, number: int, cost: float) -> None:
        """Show that pass `number` is finished."""
        self.update(done=0, text=f"fit: pass {number + 1}, cost {cost:.6g}")

    def after_extra(self, number: int, total: int) -> None:
        """Report that pass `number` of `total` for the standard errors has finished."""
        self.update(done=0, text=f"errors: pass {min(number + 1, total)} of {total}")


@dataclass(frozen=True)
class FitProblem:
    """Data, noise, parameters and options of a fit, which all of its starts share.

    Attributes:
      bounds: of all fitted parameters, as the user gave them.
      lower, upper: the same for the solver, infinite for periodic parameters.
      free: True for fitted parameters that are not held [p].
      mirrored: True for angles with symmetric data [n_phi].
    """

    model: Model
    data: FitData
    noise: Noise
    layout: FitLayout
    bounds: PeriodicBounds
    lower: Array
    upper: Array
    free: NDArray[np.bool_]
    mirrored: NDArray[np.bool_]
    program: PassProgram
    solver: SolverOptions
    errors: ErrorOptions
    streaming: StreamingOptions


class Evaluation:
    """Evaluates the normal equations at points of one start: free parameters x -> `NormalPoint`.

    Args:
      problem: the fit.
      runner: runs its passes.
      base: the start [p], which has the values of held parameters.
      progress: shows the passes.
      on_pass: called after every pass of the solver.
      earlier: passes of this start before it was resumed.
    """

    def __init__(
        self,
        problem: FitProblem,
        runner: PassRunner,
        base: Array,
        progress: FitProgress,
        on_pass: Callable[[Evaluation], None] | None = None,
        earlier: int = 0,
    ) -> None:
        self.problem, self.runner, self.free = problem, runner, problem.free
        self._base, self._progress, self._on_pass = base, progress, on_pass
        self.start = self._x = base[problem.free]
        self.earlier = earlier  # passes before the last restart, which had another cost
        self.passes = 0  # since then
        self.best: tuple[Array, NormalPoint] | None = None

    def full(self, x: Array) -> Array:
        """Return all fitted parameters, including held ones."""
        vector = self._base.copy()
        vector[self.free] = x
        return vector

    def __call__(self, x: Array) -> NormalPoint | None:
        """Return the normal equations; None if row blocks were excluded after the first pass.

        The cost is another function then, and the solver must be restarted from `restart`.
        """
        self._x = x
        excluded = len(self.runner.bad.excluded)
        sums = self._sums(x)
        if len(self.runner.bad.excluded) > excluded and self.passes > 0:
            return None
        self.passes += 1
        point = self.restrict(self.problem.layout.join(sums))
        if np.isfinite(point.cost) and (self.best is None or point.cost < self.best[1].cost):
            self.best = (x.copy(), point)
        self._progress.after_pass(self.earlier + self.passes, point.cost)
        if self._on_pass is not None:
            self._on_pass(self)
        return point

    def restart(self) -> Array:
        """Forget all passes, and return the best point among them."""
        x = self._x if self.best is None else self.best[0]
        self.earlier += self.passes
        self.passes, self.best = 0, None
        return x

    def _sums(self, x: Array, omitted: NDArray[np.bool_] | None = None) -> AngleSums:
        return self.runner.sums(self.problem.layout.split(self.full(x)), omitted)

    def restrict(self, normal: NormalPoint) -> NormalPoint:
        """Return the rows and columns of the free parameters."""
        free = self.free
        if free.all():
            return normal
        jtj, jtr = normal.jtj[np.ix_(free, free)], normal.jtr[free]
        return NormalPoint(jtj, jtr, normal.cost, normal.sums)

    def unfinished(self) -> Solution | None:
        """Return the best point of an interrupted solver; None before its first pass."""
        if self.best is None:
            return None
        x, point = self.best
        # -2 is SciPy's status of a solver that was stopped by its caller.
        return Solution(x, point.cost, -2, "", self.passes, (point.cost,), point)

    def sums(self, solution: Solution) -> AngleSums:
        """Return the sums at a solution, from another pass if it was read from a checkpoint."""
        if solution.point is not None:
            sums: AngleSums = solution.point.sums
            return sums
        return self._sums(solution.x)

    def extra_passes(
        self, passes: Sequence[tuple[Array, NDArray[np.bool_] | None]]
    ) -> list[AngleSums]:
        """Return the sums at points without some frames [n], for the standard errors.

        Row blocks that turn bad here are excluded from the sums.
        """
        results = []
        for number, (x, omitted) in enumerate(passes):
            results.append(self._sums(x, omitted))
            self._progress.after_extra(number + 1, len(passes))
        return results
