"""The fit as the solver sees it: its problem, normal equations at a point, and checkpoints."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arrays import digest
from jaxkern.core.paths import remove_leftovers, write_atomically
from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.fitting.data import BadBlocks, FitData
from jaxkern.xpcs.fitting.options import ErrorOptions, SolverOptions
from jaxkern.xpcs.fitting.parameters import FitLayout, PeriodicBounds
from jaxkern.xpcs.fitting.passes import AngleSums, PassProgram, PassRunner
from jaxkern.xpcs.fitting.sampling import Noise, sigma_rows
from jaxkern.xpcs.fitting.solver import (
    UNFINISHED,
    NormalPoint,
    Solution,
    compress,
    covariance,
    solve,
)
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]

# Relative difference of costs of the same minimum, and the largest relative decrease of the cost
# that the normal equations predict well. In a curved valley, far from the minimum, predictions of
# larger decreases are too small.
_SAME_COST, _PREDICTABLE = 1e-6, 1e-2
# Passes of a start whose minimum is as good as that of another one, before they count as the same.
_EQUAL_PASSES = 10
# A minimum is worse than another one if its chi2 is higher by this many variances of the noise, and
# distinct if a parameter differs by this many standard errors.
EVIDENCE, DISTINCT = 25.0, 5.0


class FitProgress(ProgressBar):
    """The progress bar of a fit: number and cost of passes, and chunks of the current pass."""

    def __init__(self, enabled: bool) -> None:
        super().__init__(enabled, "fit: pass 1", "chunk")

    def after_pass(self, number: int, cost: float) -> None:
        self.update(done=0, text=f"fit: pass {number + 1}, cost {cost:.6g}")

    def after_extra(self, number: int, total: int) -> None:
        self.update(done=0, text=f"errors: pass {min(number + 1, total)} of {total}")


@dataclass(frozen=True)
class FitProblem:
    """Data, noise, parameters and options of a fit, which all of its starts share."""

    model: Model
    data: FitData
    noise: Noise
    layout: FitLayout
    bounds: PeriodicBounds
    free: NDArray[np.bool_]  # True for fitted parameters that are not held [p]
    mirrored: NDArray[np.bool_]  # True for angles with symmetric data [n_phi]
    program: PassProgram
    search: str
    solver: SolverOptions
    errors: ErrorOptions


class Evaluation:
    """Normal equations at points of one start: free parameters x -> `NormalPoint`."""

    def __init__(
        self,
        problem: FitProblem,
        runner: PassRunner,
        base: Array,  # the start [p], which has the values of held parameters
        progress: FitProgress,
        on_best: Callable[[Solution], None],  # called after a pass with the best point so far
        earlier: int,  # passes of this start before it was resumed
        rival: Solution | None = None,  # the best one of earlier starts; it ends worse ones
    ) -> None:
        self.problem, self.runner, self.free = problem, runner, problem.free
        self._base, self._progress, self._on_best, self._rival = base, progress, on_best, rival
        self.start = self._x = base[problem.free]
        self.earlier = earlier  # passes before the last restart, which had another cost
        self.passes = 0  # since then
        self._loser: Solution | None = None
        self.best: Solution | None = None

    def full(self, x: Array) -> Array:
        vector = self._base.copy()
        vector[self.free] = x
        return vector

    def __call__(self, x: Array) -> NormalPoint | None:
        """Return the normal equations; None to stop.

        The solver stops for a `restart` if blocks turned bad after a pass, and at starts that are
        worse than others.
        """
        self._x = x
        excluded = len(self.runner.bad.excluded)
        sums = self._sums(x)
        if len(self.runner.bad.excluded) > excluded and self.passes > 0:
            return None
        self.passes += 1
        point = self.restrict(self.problem.layout.join(sums))
        if np.isfinite(point.cost) and (self.best is None or point.cost < self.best.cost):
            self.best = Solution(x.copy(), point.cost, costs=(point.cost,), point=point)
        self._progress.after_pass(self.earlier + self.passes, point.cost)
        if self.best is not None:
            self._on_best(replace(self.best, nfev=self.earlier + self.passes))
        self._loser = self._lost(x, point, self._rival)
        return None if self._loser is not None else point

    def _lost(self, x: Array, point: NormalPoint, rival: Solution | None) -> Solution | None:
        """Return the minimum that the normal equations predict, if it is not better.

        It is at x if it is as good and differs from the rival, and otherwise at the rival.
        """
        if rival is None or rival.point is None or not point.is_finite():
            return None
        step = compress(point)[0][:-1]
        gain = float(step @ step)
        least = point.cost - (gain if gain < _PREDICTABLE * point.cost else 2.0 * gain)
        if least <= rival.cost * (1.0 - _SAME_COST):
            return None
        # Mirrored points are counted twice.
        unit = 2.0 * rival.cost / max(float(point.sums.count.sum()), 1.0)
        is_near, end = gain < EVIDENCE * unit, rival.x
        if least - rival.cost < EVIDENCE * unit:
            if not is_near and self.passes < _EQUAL_PASSES:
                return None
            errors = np.sqrt(np.maximum(np.diag(covariance(rival.point.jtj).inverse), 0.0) * unit)
            free = np.flatnonzero(self.free)
            compared = free >= 2 * self.problem.layout.n_scales
            step = self.problem.bounds.difference(self.full(x), self.full(rival.x))[free]
            # The minimum is at most sqrt(gain / unit) standard errors from here.
            distinct = abs(step) > (DISTINCT + np.sqrt(gain / unit)) * errors
            if is_near and (compared & distinct).any():
                end = x.copy()
        cost = max(least, rival.cost)
        return Solution(end, cost, nfev=self.passes, costs=(point.cost,), point=point)

    def restart(self) -> Array:
        """Forget all passes, and return the best point among them."""
        x = self._x if self.best is None else self.best.x
        self.earlier += self.passes
        self.passes, self.best = 0, None
        return x

    def minimize(self, x: Array) -> Solution:
        """Run the solver from x, and again from its best point after blocks turned bad."""
        options, (lower, upper) = self.problem.solver, self.problem.bounds.solver
        x_scale, most = options.x_scale, options.max_nfev
        if not isinstance(x_scale, str):
            x_scale = np.broadcast_to(x_scale, self.free.shape)[self.free]
        settings: dict[str, Any] = {"bounds": (lower[self.free], upper[self.free])}
        settings |= {name: getattr(options, name) for name in ("ftol", "xtol", "gtol")}
        settings["x_scale"] = x_scale
        while True:
            max_nfev = None if most is None else max(most - self.earlier, 1)
            solution = solve(self, x, max_nfev=max_nfev, **settings)
            if solution is not None:
                return solution
            if self._loser is not None:
                return self._loser
            x = self.restart()

    def _sums(self, x: Array, omitted: NDArray[np.bool_] | None = None) -> AngleSums:
        return self.runner.sums(self.problem.layout.split(self.full(x)), omitted)

    def restrict(self, normal: NormalPoint) -> NormalPoint:
        free = self.free
        return replace(normal, jtj=normal.jtj[np.ix_(free, free)], jtr=normal.jtr[free])

    def sums(self, solution: Solution) -> AngleSums:
        """Return the sums at a solution, from another pass if it was read from a checkpoint."""
        point = solution.point
        return self._sums(solution.x) if point is None else point.sums

    def extra_passes(
        self, passes: Sequence[tuple[Array, NDArray[np.bool_] | None]]
    ) -> list[AngleSums]:
        """Return the sums at points without some frames [n], for the standard errors."""
        results = []
        for number, (x, omitted) in enumerate(passes):
            results.append(self._sums(x, omitted))
            self._progress.after_extra(number + 1, len(passes))
        return results


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from; the message has the reason."""


class Checkpoint:
    """The file ``fit.checkpoint`` of a fit with enabled checkpoints, replaced atomically.

    It is a SHA-256 and a JSON object with a fingerprint of the fit, the excluded row blocks and the
    best point of each start, in `starts`.
    """

    def __init__(self, problem: FitProblem, start: Array, bad: BadBlocks) -> None:
        """Read the file; raise CheckpointError if it is damaged or of another fit."""
        self._options, self._bad = problem.data.streaming, bad
        self._path = Path(self._options.checkpoint_dir) / "fit.checkpoint"
        self.starts: dict[int, Solution] = {}
        if self._options.enable_checkpoints:
            self._fingerprint = _fingerprint(problem, start)
            if self._path.exists():
                self._load(int(problem.free.sum()))

    def save(self, k: int, state: Solution) -> None:
        """Store the best point of start k, if it is the solution or a checkpoint is due."""
        due = state.status != UNFINISHED or not state.nfev % self._options.checkpoint_frequency
        if self._options.enable_checkpoints and due:
            self.starts[k] = state
            self._write()

    def _write(self) -> None:
        starts = {str(k): _stored(start) for k, start in self.starts.items()}
        excluded, reasons = sorted(self._bad.excluded), self._bad.reasons
        content = {"fingerprint": self._fingerprint, "excluded": excluded, "reasons": reasons}
        text = json.dumps(content | {"starts": starts}).encode()
        write_atomically(self._path, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)

    def remove(self) -> None:
        """Delete the file, and temporary files of killed processes."""
        if self._options.enable_checkpoints and self._path.parent.is_dir():
            self._path.unlink(missing_ok=True)
            remove_leftovers(self._path)

    def _load(self, n_free: int) -> None:
        checksum, _, text = self._path.read_bytes().partition(b"\n")
        damaged = f"{self._path} is damaged or not a checkpoint; delete it to start again"
        try:
            if hashlib.sha256(text).hexdigest().encode() != checksum:
                raise ValueError("its checksum does not match")
            content = json.loads(text)
            fingerprint = dict(content["fingerprint"])
            excluded = {(int(angle), int(block)) for angle, block in content["excluded"]}
            reasons = list(map(str, content["reasons"]))
            starts = {int(k): _restored(state) for k, state in content["starts"].items()}
            shapes = {start.x.shape for start in starts.values()}
        except Exception as error:  # JSON, lookups and conversions share no type of error
            raise CheckpointError(f"{damaged} ({error})") from error
        ours = self._fingerprint
        differing = [name for name in ours if not _equal(ours[name], fingerprint.get(name))]
        if differing:
            raise CheckpointError(
                f"{self._path} belongs to another fit; it differs in {', '.join(differing)}. Pass "
                "another checkpoint_dir, or delete the file to start again"
            )
        if not shapes <= {(n_free,)}:
            raise CheckpointError(f"{damaged} (expected points of {n_free} numbers, got {shapes})")
        self.starts, self._bad.excluded = starts, self._bad.excluded | excluded
        self._bad.reasons += [r for r in reasons if r not in self._bad.reasons]


def _stored(state: Solution) -> dict[str, Any]:
    numbers = {"x": state.x.tolist(), "cost": state.cost, "passes": state.nfev}
    return {**numbers, "status": state.status, "message": state.message}


def _restored(state: dict[str, Any]) -> Solution:
    x, cost = np.array(state["x"], np.float64), float(state["cost"])
    status, message = int(state["status"]), str(state["message"])
    return Solution(x, cost, status, message, int(state["passes"]), (cost,))


def _fingerprint(problem: FitProblem, start: Array) -> dict[str, Any]:
    """Return JSON data that identify a fit, with samples of the data and of the model's tables."""
    model, data, layout, solver = problem.model, problem.data, problem.layout, problem.solver
    sample, per_angle = data.sample, problem.noise.per_angle is not None
    sigma = sigma_rows(problem.noise.sigma, sample.rows)
    tables = problem.program.host_tables(layout.split(start).physics)
    return {
        "data": [list(data.shape), np.dtype(data.dtype).str, digest(sample.rows, sample.values)],
        "keep": digest(data.keep),
        "sigma": [*sigma.ravel()] if per_angle else digest(sigma),
        "model": [type(model).__qualname__, *model.parameter_names, model.shear_power],
        "phases": [float(np.cos(np.arange(t.size)) @ t.ravel()) for t in tables.tables.arrays],
        "start": start.tolist(),
        "bounds": np.array(problem.bounds.solver).tolist(),
        "hold": (~problem.free).tolist(),
        "scaling": [*layout.basis.ravel(), *layout.contrast, *layout.offset],
        "loss": [solver.loss, float(solver.f_scale)],
        "search": [problem.search, int(solver.multistart), int(solver.seed)],
    }


def _equal(a: Any, b: Any) -> bool:
    """Compare values of fingerprints; numbers up to rounding, which depends on the CPU."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) if numbers else bool(a == b)
