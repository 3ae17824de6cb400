"""The function that the solver calls: passes with their log, checkpoints and replay."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import anonymous_bytes
from jaxkern.xpcs.fitting import checkpoint
from jaxkern.xpcs.fitting.checkpoint import CheckpointError, PartialPass, PassLog
from jaxkern.xpcs.fitting.pass_program import AngleSums, assemble_states
from jaxkern.xpcs.fitting.problem import FitProblem
from jaxkern.xpcs.fitting.solver import NormalPoint, Solution

Array = NDArray[np.float64]


class StartAgain(Exception):
    """Blocks turned bad after the first pass: the cost is another function from here on."""

    def __init__(self, x: Array) -> None:
        super().__init__("blocks turned bad in the middle of the fit")
        self.x = x


@dataclass
class CheckpointStore:
    """Saves the log every `frequency` chunks and after every pass, within a share of the time.

    `max_overhead` is the part of the time that saving may take; a save that would go beyond it
    waits for a later chunk.
    """

    path: Path
    fingerprint: dict[str, Any]
    frequency: int
    max_overhead: float
    free_from: float = 0.0

    def load(self, sizes: tuple[int, int, int]) -> PassLog:
        """The log so far; an empty one where there is no checkpoint."""
        if not self.path.exists():
            return PassLog()
        return checkpoint.load(self.path, self.fingerprint, sizes)

    def is_due(self, chunks: int) -> bool:
        return chunks % self.frequency == 0 and time.monotonic() >= self.free_from

    def save(self, log: PassLog) -> None:
        start = time.monotonic()
        checkpoint.save(self.path, self.fingerprint, log)
        end = time.monotonic()
        self.free_from = end + (end - start) * (1.0 / self.max_overhead - 1.0)

    def remove(self) -> None:
        checkpoint.remove(self.path)


class Evaluation:
    """x (the free parameters) -> `NormalPoint`, from the log where it has the pass already."""

    def __init__(
        self, problem: FitProblem, base: Array, store: CheckpointStore | None = None
    ) -> None:
        self._problem = problem
        self._layout = problem.layout
        self._program = problem.context.program
        self._bad = problem.bad
        self._base = base
        self.free = problem.free
        self.store = store
        sizes = (int(self.free.sum()), self._program.n_phi, self._program.state_size)
        self.log = PassLog() if store is None else store.load(sizes)
        self._bad.excluded |= set(self.log.excluded)
        self._way = problem.data.way(
            problem.context,
            problem.bad,
            problem.streaming,
            after_chunk=self._after_chunk,
            advance=problem.progress.update,
        )
        self._served = 0
        self._excluded_before = 0
        self.seconds = 0.0  # in passes, without compiling
        self.peak_bytes = anonymous_bytes()
        self.best: tuple[float, Array, AngleSums] | None = None
        self._at_solution: tuple[bytes, AngleSums] | None = None

    def full(self, x: Array) -> Array:
        """All fitted parameters, those that are held included."""
        vector = self._base.copy()
        vector[self.free] = x
        return vector

    def __call__(self, x: Array) -> NormalPoint:
        log, served = self.log, self._served
        if served < len(log.points):
            if log.points[served].tobytes() != x.tobytes():
                raise CheckpointError(
                    f"the checkpoint's pass {served} was at {log.points[served].tolist()} and this "
                    f"fit comes to {x.tolist()} there; delete the checkpoint to start anew"
                )
            states = log.states[served]
        else:
            states = self._compute(x)
        self._served += 1
        sums = self._sums_of(states, x)
        normal = self._layout.join(sums)
        if np.isfinite(normal.cost) and (self.best is None or normal.cost < self.best[0]):
            self.best = (normal.cost, x.copy(), sums)
        self._problem.progress.after_pass(log.earlier + self._served, normal.cost)
        return self.of_free(normal)

    def _sums_of(self, states: Array, x: Array) -> AngleSums:
        contrast = self._layout.split(self.full(x)).contrast
        return assemble_states(states, self._problem.model, contrast)

    def of_free(self, normal: NormalPoint) -> NormalPoint:
        """The rows and columns of the free parameters."""
        free = self.free
        if free.all():
            return normal
        return NormalPoint(normal.jtj[np.ix_(free, free)], normal.jtr[free], normal.cost)

    def _compute(self, x: Array) -> Array:
        log = self.log
        self._excluded_before = len(self._bad.excluded)
        states = self._pass(x, x)
        self._check_excluded(x)
        if self.store is not None:
            log.points.append(x.copy())
            log.states.append(states.copy())
            log.excluded = sorted(self._bad.excluded)
            if self.store.is_due(0):
                self.store.save(log)
        return states

    def _pass(self, x: Array, key: Array) -> Array:
        """The states at x; `key` tells an unfinished pass from that of another kind."""
        log = self.log
        partial = log.partial
        if partial is not None and partial.x.tobytes() != key.tobytes():
            partial = None
        log.partial = None
        start, compiled = time.perf_counter(), self._program.compile_seconds
        states = self._way.states(self._layout.split(self.full(x)), key, partial)
        self.seconds += time.perf_counter() - start - (self._program.compile_seconds - compiled)
        self.peak_bytes = max(self.peak_bytes, anonymous_bytes())
        log.partial = None
        return states

    def _after_chunk(self, x: Array, states: Array, done: int) -> None:
        """Saves the unfinished pass where a checkpoint is due."""
        self._check_excluded(x)
        if self.store is None or not self.store.is_due(done):
            return
        self.log.partial = PartialPass(x.copy(), states.copy(), done)
        self.log.excluded = sorted(self._bad.excluded)
        self.store.save(self.log)

    def _check_excluded(self, x: Array) -> None:
        if len(self._bad.excluded) > self._excluded_before and self._served > 0:
            raise StartAgain(self.best[1] if self.best is not None else x)

    def start_again(self, x: Array) -> None:
        """Forgets the passes so far, which were of another cost."""
        log = self.log
        log.earlier += self._served
        log.points.clear()
        log.states.clear()
        log.extra.clear()
        log.partial, log.start = None, x.copy()
        log.excluded = sorted(self._bad.excluded)
        self._served = 0
        self.best = None

    def phases(self, physics: Array) -> tuple[Array, Array]:
        """The phases at these parameters."""
        return self.tables(physics)[:2]

    def tables(self, physics: Array) -> tuple[Array, Array, Array, Array]:
        """The phases at these parameters, and their derivatives, as `Tables` has them."""
        A, X, tangents_A, tangents_X = map(np.asarray, self._program.tables_at(physics))
        return A, X, tangents_A, tangents_X

    def unfinished(self) -> Solution:
        """The best point so far, of a solver that was interrupted."""
        assert self.best is not None
        cost, x, sums = self.best
        point = self.of_free(self._layout.join(sums))
        # SciPy's status of a solver that its caller has stopped.
        return Solution(x, point, -2, "", self._served, (cost,))

    def sums(self, x: Array) -> AngleSums:
        """The sums at the solution, from a pass at the same point."""
        if self.best is None or self.best[1].tobytes() != x.tobytes():
            # The solver stopped at a point that is not the best one; its pass is run again. Blocks
            # that turn bad only now are left out of the sums, and there is no start to go back to.
            self._excluded_before = self._bad.total
            if self._at_solution is None or self._at_solution[0] != x.tobytes():
                states = self._pass(x, np.append(x, -1.0))
                self._at_solution = (x.tobytes(), self._sums_of(states, x))
            return self._at_solution[1]
        return self.best[2]

    def extra_passes(self, passes: Sequence[tuple[Array, NDArray[np.bool_]]]) -> list[AngleSums]:
        """The sums at some x without some frames [n], after the solver's: the same in every life.

        Blocks of rows that turn bad here are left out of the sums, as in `sums`.
        """
        log = self.log
        self._excluded_before = self._bad.total
        found = []
        for number, (x, left_out) in enumerate(passes):
            if number < len(log.extra):
                states = log.extra[number]
            else:
                with self._problem.context.without(left_out):
                    states = self._pass(x, np.append(x, number))
                if self.store is not None:
                    log.extra.append(states.copy())
                    if self.store.is_due(0):
                        self.store.save(log)
            self._problem.progress.after_extra(number + 1, len(passes))
            found.append(self._sums_of(states, x))
        return found
