"""The fit as the solver sees it: its problem, normal equations at a point, and checkpoints.

A checkpoint is a SHA-256 and a JSON object with a fingerprint of the fit, the excluded row blocks
and the state of each start. A resumed fit starts at the stored point and converges to the same
minimum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arrays import digest
from jaxkern.core.paths import remove_leftovers, write_atomically
from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.fitting.data import FitData
from jaxkern.xpcs.fitting.options import ErrorOptions, SolverOptions, StreamingOptions
from jaxkern.xpcs.fitting.parameters import FitLayout, PeriodicBounds
from jaxkern.xpcs.fitting.passes import AngleSums, BadBlocks, PassProgram, PassRunner
from jaxkern.xpcs.fitting.sampling import Noise, rows_of
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
    """Data, noise, parameters and options of a fit, which all of its starts share."""

    model: Model
    data: FitData
    noise: Noise
    layout: FitLayout
    bounds: PeriodicBounds  # of all fitted parameters, as the user gave them
    lower: Array  # the same for the solver, infinite for periodic parameters
    upper: Array
    free: NDArray[np.bool_]  # True for fitted parameters that are not held [p]
    mirrored: NDArray[np.bool_]  # True for angles with symmetric data [n_phi]
    program: PassProgram
    solver: SolverOptions
    errors: ErrorOptions
    streaming: StreamingOptions


class Evaluation:
    """Normal equations at points of one start: free parameters x -> `NormalPoint`."""

    def __init__(
        self,
        problem: FitProblem,
        runner: PassRunner,
        base: Array,  # the start [p], which has the values of held parameters
        progress: FitProgress,
        on_pass: Callable[[Evaluation], None] | None = None,
        earlier: int = 0,  # passes of this start before it was resumed
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


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from; the message has the reason."""


@dataclass
class StartState:
    """The best free parameters of a start; `status` is None while the solver has not finished."""

    x: list[float]
    cost: float
    passes: int
    status: int | None = None
    message: str = ""

    def solution(self) -> Solution | None:
        """Return the solution of a finished solver."""
        if self.status is None:
            return None
        return Solution(
            np.array(self.x), self.cost, self.status, self.message, self.passes, (self.cost,)
        )


class Checkpoint:
    """The file ``fit.checkpoint`` of a fit, which `save` replaces atomically."""

    def __init__(self, problem: FitProblem, start: Array, bad: BadBlocks) -> None:
        """Read the file; raise CheckpointError if it is damaged or of another fit."""
        self._path = Path(problem.streaming.checkpoint_dir) / "fit.checkpoint"
        self._frequency = problem.streaming.checkpoint_frequency
        self._fingerprint = _fingerprint(problem, start)
        self._bad = bad
        self.starts: dict[int, StartState] = {}
        if self._path.exists():
            self._load(int(problem.free.sum()))

    def after_pass(self, k: int, evaluation: Evaluation) -> None:
        """Save the best point of start k if a checkpoint is due."""
        passes = evaluation.earlier + evaluation.passes
        if evaluation.best is not None and passes % self._frequency == 0:
            x, point = evaluation.best
            self.save(k, StartState(x.tolist(), point.cost, passes))

    def save(self, k: int, state: StartState) -> None:
        """Store the state of start k."""
        self.starts[k] = state
        content = {
            "fingerprint": self._fingerprint,
            "excluded": sorted(self._bad.excluded),
            "reasons": self._bad.reasons,
            "starts": {str(k): asdict(start) for k, start in self.starts.items()},
        }
        text = json.dumps(content).encode()
        write_atomically(self._path, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)

    def remove(self) -> None:
        """Delete the file, and temporary files of killed processes."""
        self._path.unlink(missing_ok=True)
        if self._path.parent.is_dir():
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
            starts = {int(k): StartState(**state) for k, state in content["starts"].items()}
            shapes = {np.array(state.x, np.float64).shape for state in starts.values()}
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
        self._bad.excluded |= excluded
        self._bad.reasons += [r for r in reasons if r not in self._bad.reasons]
        self.starts = starts


def _fingerprint(problem: FitProblem, start: Array) -> dict[str, Any]:
    """Return JSON data that identify a fit.

    Sampled rows identify the data, and projections of the tables at the start identify the model.
    """
    model, data, layout, solver = problem.model, problem.data, problem.layout, problem.solver
    sample, sigma = data.sample, problem.noise.per_angle
    tables = problem.program.host_tables(layout.split(start).physics)
    return {
        "data": [list(data.shape), np.dtype(data.dtype).str, digest(sample.rows, sample.values)],
        "keep": digest(data.keep),
        "sigma": digest(rows_of(problem.noise.sigma, sample.rows)) if sigma is None else [*sigma],
        "model": [type(model).__qualname__, *model.parameter_names, model.shear_power],
        "phases": [float(np.cos(np.arange(t.size)) @ t.ravel()) for t in tables],
        "start": start.tolist(),
        "bounds": [problem.lower.tolist(), problem.upper.tolist()],
        "hold": (~problem.free).tolist(),
        "scaling": [layout.scaling, *layout.contrast, *layout.offset],
        "loss": [solver.loss, float(solver.f_scale)],
        "multistart": [int(solver.multistart), int(solver.seed)],
    }


def _equal(a: Any, b: Any) -> bool:
    """Compare values of fingerprints; numbers up to rounding, which depends on the CPU."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    return bool(a == b)
