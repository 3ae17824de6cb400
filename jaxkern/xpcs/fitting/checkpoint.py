"""The checkpoint of a fit: the best point of each start, in a small file.

The file is a SHA-256 and a JSON object with a fingerprint of the fit, the excluded row blocks and
the state of each start. A resumed fit starts at the stored point and converges to the same minimum.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.archives import digest
from jaxkern.core.paths import remove_leftovers, write_atomically
from jaxkern.xpcs.fitting.evaluation import Evaluation, FitProblem
from jaxkern.xpcs.fitting.passes import BadBlocks
from jaxkern.xpcs.fitting.sampling import rows_of
from jaxkern.xpcs.fitting.solver import Solution

Array = NDArray[np.float64]


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
