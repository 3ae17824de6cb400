"""Fits of two-time correlations in constant memory: `fit` and `curve_fit`."""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting import parameters, sampling
from jaxkern.xpcs.fitting.data import open_data
from jaxkern.xpcs.fitting.evaluation import Checkpoint, Evaluation, FitProblem, FitProgress
from jaxkern.xpcs.fitting.jackknife import Jackknife, jackknife
from jaxkern.xpcs.fitting.options import ErrorOptions, SolverOptions, StreamingOptions
from jaxkern.xpcs.fitting.parameters import FitLayout, Scaling
from jaxkern.xpcs.fitting.passes import PassProgram, PassRunner
from jaxkern.xpcs.fitting.result import FitInterrupted, FitResult, summarize
from jaxkern.xpcs.fitting.search import EFFORTS, Search, find_starts
from jaxkern.xpcs.fitting.solver import UNFINISHED, Solution, StartNotFinite
from jaxkern.xpcs.model.checks import choice
from jaxkern.xpcs.model.models import Model
from jaxkern.xpcs.model.normal import SCALINGS, scale_basis

Array = NDArray[np.float64]


def fit(
    model: Model,
    data: Any,
    sigma: Any = None,
    p0: Any = None,
    contrast0: Any = None,
    offset0: Any = None,
    scaling: Scaling = "individual",
    *,
    fourier_order: int = 2,
    bounds: Any = None,
    hold: Sequence[str] = (),
    keep: Any = None,
    search: Search = "auto",
    solver: SolverOptions | None = None,
    errors: ErrorOptions | None = None,
    streaming: StreamingOptions | None = None,
    progress: bool = True,
) -> FitResult:
    """Fit a model to two-time correlations with SciPy's trust region, in float64.

    Each evaluation is one pass of a fused kernel over the data; no array of the size points x
    parameters exists. JAX's precision setting is neither used nor changed.

    Args:
      model: `Static`, `LaminarFlow`, `TwoComponent`, `CustomModel` or `Components`.
      data: [n_phi, n_t, n_t]: an array, memory map, ``.npy`` path, HDF5 data set or group, any
        `Source`, or a ``jax.Array``, which may be sharded over angles or rows.
      sigma: noise: a number, [n_phi] or the shape of the data; None to estimate it. The result
        contains the method. Points on the diagonal and with sigma <= 1e-10 have no weight.
      p0: physics parameters [p], or a mapping of some by name; None for the model's defaults.
      contrast0, offset0: start (a number or [n_phi]); None to estimate them from the data. They are
        not fitted with ``scaling="fixed"``.
      scaling: fit contrast and offset for each angle (``"individual"``), once for all angles
        (``"constant"``), as a Fourier series in phi (``"fourier"``), or not (``"fixed"``).
        ``"auto"`` is constant for three angles or more. If the contrasts of angles differ, constant
        scaling biases the physics.
      fourier_order: number of harmonics m of the series c0 + sum(c_m cos(m phi) + s_m sin(m phi)),
        whose coefficients are named ``"contrast[c0]"``, ``"contrast[c1]"``, ``"contrast[s1]"``, ...
      bounds: None for the model's; a mapping name -> (lower, upper) that replaces some; or a pair
        of arrays for all fitted parameters, or for the physics. Those of ``"contrast"`` and
        ``"offset"`` refer to the angles: coefficients of a series have the range that such values
        can reach. Bounds of phi0 that span half a turn do not restrict the search; the result is
        shifted into them by half turns.
      hold: names of physics parameters that are not fitted.
      keep: the used frames: a mask [n_t], or a slice.
      search: other starts that are compared on thinned data: 192 points within the bounds for each
        free parameter (``"auto"``), 2,048 (``"wide"``), or only other flow directions
        (``"local"``).
      solver: `SolverOptions`: loss, tolerances, number of starts.
      errors: `ErrorOptions`: method of the standard errors, absolute sigma, weights.
      streaming: `StreamingOptions`: strategy, symmetry, chunks, checkpoints, bad rows.
      progress: True for a progress bar on a terminal.

    Returns:
      `FitResult`, with parameters ordered [contrast..., offset..., physics...]. Its `success` is
      False if the residuals are not noise, whether sigma is estimated or not.

    Raises:
      ValueError: for data, sigma, masks, starts or bounds of a wrong shape or value, and unknown
        names.
      BadDataError: for data with NaN if ``on_bad_chunk="raise"``.
      CheckpointError: for a checkpoint that is damaged or of another fit.
      FitInterrupted: for Ctrl-C, a `KeyboardInterrupt` with the best result so far.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> t = 0.1 * np.arange(64)
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=t, phi=[0.0]))
      >>> clean = np.asarray(jk.xpcs.g2(model, [2e4, 0.3, 50.0], [0.2], [1.0]), float)
      >>> noise = 0.003 * np.random.default_rng(0).normal(size=clean.shape)
      >>> result = jk.xpcs.fit(model, clean + noise)
      >>> result.success, abs(result.as_dict["alpha"] - 0.3) < 0.1
      (True, True)
    """
    begin = time.perf_counter()
    choice(search, "search", tuple(EFFORTS))
    # Imported while XLA compiles.
    optimizer = ("scipy.optimize",)
    threading.Thread(target=importlib.import_module, args=optimizer, daemon=True).start()
    solver, errors = solver or SolverOptions(), errors or ErrorOptions()
    streaming = streaming or StreamingOptions()
    if isinstance(hold, str):
        raise ValueError(f"hold: expected a sequence of names, such as [{hold!r}], got {hold!r}")
    if not isinstance(model, Model):
        raise TypeError(f"model: expected a Model, such as LaminarFlow, got {type(model).__name__}")
    kinds = {"solver": SolverOptions, "errors": ErrorOptions, "streaming": StreamingOptions}
    for (name, kind), value in zip(kinds.items(), (solver, errors, streaming), strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")
    n = jax.process_count()
    if streaming.enable_checkpoints and n > 1:
        # Processes would resume from different states, and wait for each other for ever.
        raise ValueError(f"enable_checkpoints: expected a single process, got {n} processes")
    geometry = model.geometry
    shape = (geometry.n_phi, geometry.n_t, geometry.n_t)
    frames = sampling.resolve_frames(keep, geometry.n_t, model.unused_frames)
    with jax.enable_x64(True), FitProgress(progress) as bar:
        opened = open_data(data, shape, frames, streaming)
        noise = sampling.resolve_noise(sigma, errors.weights, shape, opened.sample)
        mirrored = opened.mirrored(noise.sigma)
        all_mirrored = bool(mirrored.all())
        starts = {"contrast0": contrast0, "offset0": offset0}
        layout = _layout(model, opened.sample, scaling, fourier_order, **starts)
        all_bounds = parameters.fit_bounds(bounds, layout, model)
        physics = parameters.physics_vector(p0, model.parameter_names, model.defaults)
        estimated = contrast0 is None, offset0 is None
        free = _free(layout, hold)
        if np.shape(solver.x_scale) not in ((), free.shape):
            raise ValueError(
                f"x_scale: expected 'jac', a number or {free.size}, got {np.shape(solver.x_scale)}"
            )
        start = parameters.first_start(
            layout, physics, all_bounds, estimated, solver.strict_bounds, free
        )
        sharding = getattr(opened.source, "sharding", None)
        program = PassProgram(model, solver.loss, all_mirrored, sharding)
        problem = FitProblem(
            model, opened, noise, layout, all_bounds, free, mirrored, program,
            search, solver, errors,
        )  # fmt: skip
        runner = PassRunner(program, opened, noise, solver.f_scale, all_mirrored, bar.update)
        return _Starts(problem, runner, start, bar).run(begin)


class _Starts:
    """The starts of a fit, one after the other."""

    def __init__(
        self, problem: FitProblem, runner: PassRunner, start: Array, progress: FitProgress
    ) -> None:
        self.problem, self.runner, self.progress = problem, runner, progress
        self.checkpoint = Checkpoint(problem, start, runner.bad)
        self.starts, self.search, self.n_found = [start], "", 1
        self.evaluations: list[Evaluation] = []  # of the starts so far
        self.solutions: dict[int, Solution] = {}  # of finished starts, by index

    def run(self, begin: float) -> FitResult:
        """Fit from all starts and return the best result; `begin` is the time of the call."""
        try:
            self._search()
            for k, start in enumerate(self.starts):
                try:
                    self.solutions[k] = self._solve(k, start)
                except StartNotFinite:
                    # The model may overflow at a random start, but not at the user's.
                    if k == 0:
                        raise
            result = self._best(self.solutions, begin)
            self.checkpoint.remove()
        except KeyboardInterrupt as stop:
            raise FitInterrupted(self._best_so_far(begin)) from stop
        return result

    def _search(self) -> None:
        """Replace the user's start by those of the search and the random ones."""
        problem, solver = self.problem, self.problem.solver
        starts, text = find_starts(self.starts[0], problem, EFFORTS[problem.search])
        self.n_found = len(starts)
        random = parameters.drawn_starts(
            starts[0], problem.bounds, problem.layout, problem.free, solver.multistart - 1,
            solver.seed,
        )  # fmt: skip
        self.starts = starts + [find_starts(x, problem, EFFORTS["local"])[0][0] for x in random]
        self.search = f"{text}, {len(self.starts)} fitted to all data"

    def _solve(self, k: int, start: Array) -> Solution:
        """Run the solver from start k; and again from its best point after blocks turned bad."""
        problem, stored = self.problem, self.checkpoint.starts.get(k)
        save = functools.partial(self.checkpoint.save, k)
        earlier = 0 if stored is None else stored.nfev
        # All random starts are fitted, because the spread of their costs is a result.
        others = self.solutions.values() if k < self.n_found else ()
        rival = min(others, key=lambda solution: solution.cost, default=None)
        evaluation = Evaluation(problem, self.runner, start, self.progress, save, earlier, rival)
        self.evaluations.append(evaluation)
        x = evaluation.start
        if stored is not None and stored.status != UNFINISHED:
            return stored
        if stored is not None:
            x = np.clip(stored.x, *(bound[problem.free] for bound in problem.bounds.solver))
        solution = evaluation.minimize(x)
        self.checkpoint.save(k, replace(solution, nfev=evaluation.earlier + solution.nfev))
        return solution

    def _best(
        self, solutions: dict[int, Solution], begin: float, interrupted: str = ""
    ) -> FitResult:
        """Return the result of the best solution; the cost of other starts is infinite."""
        problem = self.problem
        costs = tuple(
            solutions[k].cost if k in solutions else np.inf for k in range(len(self.starts))
        )
        best = int(np.argmin(costs))
        evaluation, solution, errors = self.evaluations[best], solutions[best], Jackknife()
        if problem.errors.method == "jackknife" and not interrupted:
            errors = jackknife(problem, evaluation, solution)
        others = [other for k, other in solutions.items() if k != best]
        return summarize(
            problem, evaluation, solution, others, errors, costs, self.search, begin, interrupted
        )

    def _best_so_far(self, begin: float) -> FitResult | None:
        """Return the best point of all finished starts and the interrupted one."""
        points = {k: evaluation.best for k, evaluation in enumerate(self.evaluations)}
        solutions = {k: point for k, point in points.items() if point is not None} | self.solutions
        finished = f"{len(self.solutions)} of {len(self.starts)} starts were finished"
        reason = f"the fit was interrupted, {finished}"
        return self._best(solutions, begin, reason) if solutions else None


def curve_fit(
    model: Model, data: Any, p0: Any = None, sigma: Any = None, **options: Any
) -> tuple[Array, Array]:
    """Call `fit` with the conventions of `scipy.optimize.curve_fit`: returns ``(popt, pcov)``.

    Accepts the other arguments of `fit` by name; parameters are ordered as in its result.

    Raises:
      RuntimeError: if the fit does not converge.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> geometry = jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=.1 * np.arange(64), phi=[0.0])
      >>> model = jk.xpcs.Static(geometry)
      >>> clean = np.asarray(jk.xpcs.g2(model, [2e4, 0.3, 50.0], [0.2], [1.0]), float)
      >>> data = clean + 0.003 * np.random.default_rng(0).normal(size=clean.shape)
      >>> popt, pcov = jk.xpcs.curve_fit(model, data, search="local", progress=False)
      >>> popt.shape, pcov.shape  # contrast, offset, D0, alpha, D_offset
      ((5,), (5, 5))
    """
    result = fit(model, data, sigma, p0, **options)
    if not result.success:
        raise RuntimeError(f"the fit did not converge: {result.message}")
    return result.popt, result.pcov


def _layout(
    model: Model, sample: sampling.RowSample, scaling: str, order: int, **starts: Any
) -> FitLayout:
    n_phi, pair = model.geometry.n_phi, []
    choice(scaling, "scaling", (*SCALINGS, "auto", "fourier"))
    if model.isotropic and scaling != "fixed":
        scaling = "constant"
    if scaling == "auto":
        scaling = "constant" if n_phi >= 3 else "individual"
    estimates = zip(starts.items(), sampling.estimate_contrast_offset(sample), strict=True)
    for (name, argument), estimate in estimates:
        value = estimate if argument is None else parameters.numbers(argument, name)
        if value.shape not in ((), (n_phi,)) or not np.isfinite(value).all():
            raise ValueError(
                f"{name}: expected a finite number, or one for each of the {n_phi} angles, got "
                f"{np.asarray(argument).tolist()}"
            )
        pair.append(np.array(np.broadcast_to(value, (n_phi,))))
    if scaling == "fourier":
        labels, basis = parameters.fourier_series(model.geometry.phi, order)
    else:
        basis = scale_basis(scaling, n_phi)
        is_individual = scaling == "individual"
        labels = tuple(f"[{k}]" if is_individual else "" for k in range(basis.shape[1]))
    return FitLayout(basis, labels, model.parameter_names, model.units, *pair)


def _free(layout: FitLayout, hold: Sequence[str]) -> NDArray[np.bool_]:
    free = np.ones(layout.size, bool)
    for name in hold:
        if name not in layout.physics_names:
            raise ValueError(parameters.unknown_name(name, layout.physics_names, "hold"))
        free[2 * layout.n_scales + layout.physics_names.index(name)] = False
    if not free.any():
        raise ValueError("hold: expected at least one free parameter, got the names of all")
    return free
