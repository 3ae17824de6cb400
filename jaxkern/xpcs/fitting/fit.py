"""Fits of two-time correlations in constant memory: `fit` and `curve_fit`."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.fitting.evaluation import CheckpointStore, Evaluation, StartAgain
from jaxkern.xpcs.fitting.fingerprint import fingerprint_of
from jaxkern.xpcs.fitting.input import open_data
from jaxkern.xpcs.fitting.jackknife import ERRORS, independent, jackknife
from jaxkern.xpcs.fitting.noise import resolve_frames, resolve_noise
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.parameters import (
    FitLayout,
    Scaling,
    Turns,
    bounds_vectors,
    check_start,
    physics_vector,
    resolve_scaling,
    unknown_name,
)
from jaxkern.xpcs.fitting.pass_program import PassProgram, PassSettings
from jaxkern.xpcs.fitting.passes import PassContext
from jaxkern.xpcs.fitting.problem import FitProblem, FitProgress
from jaxkern.xpcs.fitting.result import FitInterrupted, FitResult
from jaxkern.xpcs.fitting.screening import best_direction
from jaxkern.xpcs.fitting.solver import Solution, StartNotFinite, solve
from jaxkern.xpcs.fitting.starting import RowSample, estimate_contrast_offset
from jaxkern.xpcs.fitting.starts import drawn_starts, first_start
from jaxkern.xpcs.fitting.summary import summarize
from jaxkern.xpcs.model.models import Model
from jaxkern.xpcs.model.twin import LOSSES

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
    bounds: Any = None,
    hold: Sequence[str] = (),
    allow_bounds: bool = False,
    weights: Any = None,
    keep: Any = None,
    start_frame: int | None = None,
    end_frame: int | None = None,
    loss: str = "linear",
    f_scale: float = 1.0,
    symmetric: bool | Literal["auto"] = "auto",
    absolute_sigma: bool = False,
    errors: Literal["jackknife", "independent"] = "jackknife",
    ftol: float | None = 1e-8,
    xtol: float | None = 1e-8,
    gtol: float | None = 1e-8,
    max_nfev: int | None = None,
    x_scale: Any = "jac",
    multistart: int = 1,
    seed: int = 0,
    strategy: str | None = None,
    streaming: StreamingOptions | None = None,
    quantization: tuple[float, float] | None = None,
    progress: bool = True,
) -> FitResult:
    """Fits a model to two-time correlations with SciPy's trust region, in float64.

    Each evaluation is one pass of a fused kernel over the data; nothing of size points x parameters
    exists. JAX's own precision setting does not matter and is not changed.

    Args:
      model: `Static`, `LaminarFlow` or `CustomModel`.
      data: [n_phi, n_t, n_t]: an array, memory map, ``.npy`` path, HDF5 data set or group, any
        `Source`, or a ``jax.Array``, also one that is sharded over angles or rows.
      sigma: noise: a number, [n_phi] or the shape of the data; None to estimate it (the result says
        how). Where the residuals are not noise, the result is no success, whether sigma is given or
        not. Points with sigma <= 1e-10, and the diagonal, do not count.
      p0: physics parameters [p], or a mapping of some by name; None for the model's defaults.
      contrast0, offset0: start (a number or [n_phi]); None to estimate them from the data. With
        ``scaling="fixed"`` they stay as they are.
      scaling: contrast and offset ``"individual"`` for each angle, ``"constant"`` for all, or
        ``"fixed"``; ``"auto"`` is what other software calls so: constant from three angles on.
        Where angles differ in truth, constant scaling biases the physics beyond its errors.
      bounds: None for the model's; a mapping name -> (lower, upper) that replaces some; or a pair
        of arrays for all fitted parameters, or for the physics. The direction phi0 has no bounds
        if these span half a turn, as by default: the search begins in four directions, on a few
        rows of the data, and the result is moved into the bounds by half turns.
      hold: names of physics parameters that stay at their start.
      allow_bounds: True if a physics parameter at one of its bounds is a valid result; else such a
        fit is no success. Contrast and offset may always be at a bound.
      weights: 1 / sigma^2, instead of sigma.
      keep: mask [n_t], True for frames that count. start_frame, end_frame: as in a slice.
      loss, f_scale: ``"linear"``, ``"soft_l1"``, ``"huber"``, ``"cauchy"`` or ``"arctan"`` as in
        `scipy.optimize.least_squares`.
      symmetric: whether data are mirrored, which halves the work; ``"auto"`` compares all of them
        once before the fit.
      errors: ``"jackknife"`` leaves out 10 blocks of frames one by one (angles, where there are few
        frames), a pass over the data each, since the noise of speckles is correlated;
        ``"independent"`` takes each point's noise as its own, as SciPy does. The result has both.
      absolute_sigma: as in `scipy.optimize.curve_fit`; of the errors of independent noise.
      ftol, xtol, gtol, max_nfev, x_scale: as in `scipy.optimize.least_squares`.
      multistart: starts, the first at p0 and the others drawn within the bounds with `seed`; the
        best is returned.
      strategy: ``"STANDARD"``, ``"LARGE"``, ``"CHUNKED"`` or ``"STREAMING"``; None to choose by
        size and memory limit.
      streaming: `StreamingOptions`: chunks, checkpoints, bad data.
      quantization: (step, zero) of uint16 data, a value being zero + step * stored.
      progress: a bar on the terminal for the strategies that go in chunks.

    Returns:
      `FitResult`, with parameters ordered [contrast..., offset..., physics...].

    Raises:
      ValueError: for data, sigma, masks, starts or bounds of a wrong shape or value, and unknown
        names, with what was wanted.
      BadDataError: for data with NaN where ``on_bad_chunk="raise"``.
      CheckpointError: for a checkpoint that is damaged or of another fit.
      FitInterrupted: for Ctrl-C, a `KeyboardInterrupt` with the best result so far.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> t = 0.1 * np.arange(64)
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=t, phi=[0.0]))
      >>> clean = np.asarray(jk.xpcs.g2(model, [2e4, 0.3, 50.0], [0.2], [1.0]), float)
      >>> noise = 0.003 * np.random.default_rng(0).normal(size=clean.shape)
      >>> found = jk.xpcs.fit(model, clean + noise)
      >>> found.success, abs(found.as_dict["alpha"] - 0.3) < 0.1
      (True, True)
    """
    begin = time.perf_counter()
    _import_ahead("scipy.optimize")
    streaming = streaming or StreamingOptions()
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; wanted one of {', '.join(LOSSES)}")
    if not f_scale > 0:
        raise ValueError(f"f_scale is {f_scale!r}; wanted a number above 0")
    multistart, seed = check_integer("multistart", multistart, 1), check_integer("seed", seed, 0)
    if max_nfev is not None:
        max_nfev = check_integer("max_nfev", max_nfev, 1)
    if isinstance(hold, str):
        raise ValueError(f"hold is {hold!r}; wanted a sequence of names, such as [{hold!r}]")
    if errors not in ERRORS:
        raise ValueError(f"errors is {errors!r}; wanted one of {', '.join(ERRORS)}")
    if symmetric not in ("auto", True, False):
        raise ValueError(f"symmetric is {symmetric!r}; wanted 'auto', True or False")
    if not isinstance(model, Model):
        raise TypeError(f"model is a {type(model).__name__}; wanted a Model, such as LaminarFlow")
    if streaming.enable_checkpoints and jax.process_count() > 1:
        # Each process would resume from a log of its own, and wait for the others for ever.
        raise ValueError(
            f"enable_checkpoints is set in a fit of {jax.process_count()} processes; wanted one "
            "process, or no checkpoints"
        )
    geometry = model.geometry
    shape = (geometry.n_phi, geometry.n_t, geometry.n_t)
    frames = resolve_frames(keep, start_frame, end_frame, geometry.n_t)
    with jax.enable_x64(True), FitProgress(progress) as bar:
        opened = open_data(data, shape, frames, strategy, streaming.chunk_points, quantization)
        empty = opened.leave_out_empty_frames(streaming.on_bad_chunk)
        noise = resolve_noise(sigma, weights, shape, opened.sample)
        mirrored = opened.mirrored(noise.sigma, symmetric)
        layout = _layout(
            model, opened.sample, resolve_scaling(scaling, shape[0]), contrast0, offset0
        )
        turns = Turns.of(layout, model.periods, *bounds_vectors(bounds, layout, model.bounds))
        lower, upper = turns.bounds()
        physics = physics_vector(p0, model.parameter_names, model.defaults)
        start = first_start(layout, physics, lower, upper, contrast0 is None, offset0 is None)
        free = _free(layout, hold)
        check_start(start, lower, upper, layout.names)
        program = PassProgram(model, PassSettings(loss, bool(mirrored.all())), opened.sharding)
        keep_u8 = opened.keep.astype(np.uint8)
        context = PassContext(program, noise.sigma, keep_u8, float(f_scale), opened.step_zero)
        if not isinstance(x_scale, str):
            x_scale = np.broadcast_to(np.asarray(x_scale, np.float64), (layout.size,))
        direct = functools.partial(
            best_direction,
            layout=layout,
            turns=turns,
            free=free,
            sample=opened.sample,
            noise=noise,
            model=model,
            program=program,
        )
        start = direct(start)
        problem = FitProblem(
            model=model,
            data=opened,
            noise=noise,
            layout=layout,
            turns=turns,
            lower=lower,
            upper=upper,
            free=free,
            mirrored=mirrored,
            context=context,
            bad=opened.bad_blocks(noise.silent),
            loss=loss,
            absolute_sigma=absolute_sigma,
            allow_bounds=allow_bounds,
            solver={
                "ftol": ftol,
                "xtol": xtol,
                "gtol": gtol,
                "max_nfev": max_nfev,
                "x_scale": x_scale if isinstance(x_scale, str) else x_scale[free],
            },
            streaming=streaming,
            progress=bar,
            empty_frames=empty,
            begin=begin,
        )
        fingerprint = None
        if streaming.enable_checkpoints:
            fingerprint = fingerprint_of(problem, start, hold, [multistart, seed])
        evaluations: list[Evaluation] = []
        solutions: dict[int, Solution] = {}
        try:
            starts = drawn_starts(start, turns.lower, turns.upper, layout, multistart, seed)
            for k, x0 in enumerate(starts):
                try:
                    x0 = start if k == 0 else direct(x0)
                    solutions[k] = _solve(problem, fingerprint, x0, evaluations)
                except StartNotFinite:
                    # A start that was drawn may lie where the model overflows; the user's may not.
                    if k == 0:
                        raise
            costs = _costs(solutions, multistart)
            best = int(np.argmin(costs))
            left_out = independent()
            if errors == "jackknife":
                left_out = jackknife(problem, evaluations[best], solutions[best].x)
            start_costs = tuple(costs) if multistart > 1 else ()
            result = summarize(problem, evaluations, best, solutions[best], left_out, start_costs)
        except KeyboardInterrupt as stop:
            raise FitInterrupted(
                _best_so_far(problem, evaluations, solutions, multistart)
            ) from stop
    stores = [(e.store, e.log) for e in evaluations if e.store is not None]
    try:
        for store, _ in stores:
            store.remove()
    except BaseException:  # who is interrupted has no result: the next fit takes it from the logs
        for store, log in stores:
            store.save(log)
        raise
    return result


def _costs(solutions: dict[int, Solution], starts: int) -> list[float]:
    """The cost from each start, infinite for those that have no solution."""
    return [solutions[k].point.cost if k in solutions else np.inf for k in range(starts)]


def _best_so_far(
    problem: FitProblem,
    evaluations: list[Evaluation],
    solutions: dict[int, Solution],
    starts: int,
) -> FitResult | None:
    """The best point of the starts that are finished and of the one that was interrupted."""
    told = f"the fit was interrupted, {len(solutions)} of {starts} starts finished"
    found = dict(solutions)
    for k, evaluation in enumerate(evaluations):
        if k not in found and evaluation.best is not None:
            found[k] = evaluation.unfinished()
    if not found:
        return None
    costs = _costs(found, starts)
    best, shown = int(np.argmin(costs)), tuple(costs) if starts > 1 else ()
    left_out = independent()
    return summarize(problem, evaluations, best, found[best], left_out, shown, interrupted=told)


def curve_fit(
    model: Model, data: Any, p0: Any = None, sigma: Any = None, **options: Any
) -> tuple[Array, Array]:
    """`fit` with the conventions of `scipy.optimize.curve_fit`: returns ``(popt, pcov)``.

    Takes the options of `fit`; parameters come in its order.

    Raises:
      RuntimeError: when the fit does not converge.
    """
    result = fit(model, data, sigma, p0, **options)
    if not result.success:
        raise RuntimeError(f"the fit did not converge: {result.message}")
    return result.popt, result.pcov


def _import_ahead(name: str) -> None:
    """Imports a module in a thread, while XLA compiles."""
    if name not in sys.modules:
        threading.Thread(target=importlib.import_module, args=(name,), daemon=True).start()


def _layout(
    model: Model, sample: RowSample, scaling: str, contrast0: Any, offset0: Any
) -> FitLayout:
    n_phi = model.geometry.n_phi
    contrast, offset = estimate_contrast_offset(sample)
    chosen = []
    for name, given, found in (("contrast0", contrast0, contrast), ("offset0", offset0, offset)):
        value = found if given is None else np.asarray(given, np.float64)
        if value.shape not in ((), (n_phi,)) or not np.isfinite(value).all():
            raise ValueError(
                f"{name} is {np.asarray(given).tolist()}; wanted a finite number, or one for each "
                f"of the {n_phi} angles"
            )
        chosen.append(np.array(np.broadcast_to(value, (n_phi,))))
    return FitLayout(scaling, model.parameter_names, model.units, chosen[0], chosen[1])


def _free(layout: FitLayout, hold: Sequence[str]) -> NDArray[np.bool_]:
    free = np.ones(layout.size, bool)
    for name in hold:
        if name not in layout.physics_names:
            raise ValueError(unknown_name(name, layout.physics_names, "hold"))
        free[2 * layout.n_scales + layout.physics_names.index(name)] = False
    if not free.any():
        raise ValueError("hold names every fitted parameter; wanted one free at least")
    return free


def _solve(
    problem: FitProblem,
    fingerprint: dict[str, Any] | None,
    x0: Array,
    evaluations: list[Evaluation],
) -> Solution:
    """One run of the solver, and again from its best point when blocks turn bad on the way."""
    streaming, free, number = problem.streaming, problem.free, len(evaluations)
    store = None
    if fingerprint is not None:
        name = "fit.checkpoint" if number == 0 else f"fit-{number}.checkpoint"
        store = CheckpointStore(
            Path(streaming.checkpoint_dir) / name,
            fingerprint,
            streaming.checkpoint_frequency,
            streaming.max_checkpoint_overhead,
        )
    evaluation = Evaluation(problem, x0, store)
    evaluations.append(evaluation)
    x = x0[free] if evaluation.log.start is None else evaluation.log.start
    while True:
        try:
            return solve(
                evaluation,
                x,
                lower=problem.lower[free],
                upper=problem.upper[free],
                **problem.solver,
            )
        except StartAgain as changed:
            evaluation.start_again(changed.x)
            x = changed.x
