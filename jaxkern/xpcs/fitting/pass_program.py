"""The compiled programs of a pass: tables of the phases, and the normal equations of a chunk.

The programs do all work of order n_t and n_t^2. Work of the order of the number of parameters
(`assemble_states`) is NumPy code, which needs no compilation.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.xpcs.model.models import Model, Tables
from jaxkern.xpcs.model.normal import accumulate, sums_of_angles
from jaxkern.xpcs.model.ops import state_size

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PassSettings:
    """Options that are compiled into a pass.

    Attributes:
      loss: as in `SolverOptions`.
      symmetric: True to use only points above the diagonal, with weight 2.
    """

    loss: str
    symmetric: bool


@dataclass(frozen=True)
class AngleSums:
    """The sums of each angle for its parameters [contrast, offset, physics...]."""

    jtj: Array  # [n_phi, 2 + p, 2 + p]
    jtr: Array  # [n_phi, 2 + p]
    chi2: Array  # [n_phi], as are the rest
    cost: Array
    count: Array
    mirrored: Array


def assemble_states(states: Array, model: Model, contrast: Array) -> AngleSums:
    """Convert sums over basis columns (states [n_phi, S]) into sums over parameters."""
    columns = model.columns_A + model.columns_X
    jtj, jtr, sums = sums_of_angles(states, columns, len(model.parameters), contrast, np)
    return AngleSums(jtj, jtr, *sums.T)


def _slice_angles(value: Any, angle: Any, count: int) -> Any:
    """Return the values of `count` angles from `angle` on, or the value that all angles share."""
    if value.shape[0] in (1, count):
        return value
    return jax.lax.dynamic_slice_in_dim(value, angle, count, 0)


def _slice_tables(tables: Tables, angle: Any, count: int) -> Tables:
    names = ["X", "tangents_X"] + (["A", "tangents_A"] if tables.A.ndim == 2 else [])
    return tables._replace(
        **{name: _slice_angles(getattr(tables, name), angle, count) for name in names}
    )


def _chunk(model: Model, settings: PassSettings, tables: Tables, at: dict[str, Any]) -> Any:
    """Return the states of the angles angle .. angle + k after adding `data` [k, m, n].

    `at` contains contrast and offset [n_phi], angle and first_row (int32), data, quantization [2],
    sigma ([n_phi], or [k, m, n]), keep ([n], or [n_phi, n]), f_scale and initial [k, S].
    """
    data, sigma, keep = at["data"], at["sigma"], at["keep"]
    count, angle = data.shape[0], at["angle"]
    return accumulate(
        _slice_tables(tables, angle, count),
        _slice_angles(at["contrast"], angle, count),
        _slice_angles(at["offset"], angle, count),
        data,
        _slice_angles(sigma, angle, count) if sigma.ndim == 1 else sigma,
        first_row=at["first_row"],
        initial=at["initial"],
        keep=_slice_angles(keep, angle, count) if keep.ndim == 2 else keep,
        loss=settings.loss,
        f_scale=at["f_scale"],
        symmetric=settings.symmetric,
        quantization=at["quantization"] if data.dtype == np.uint16 else None,
        shear_power=model.shear_power,
    )


def _sharded(model: Model, settings: PassSettings, mesh: Any, spec: Any, at: dict[str, Any]) -> Any:
    """Return the states of all angles from data sharded over a mesh: local sums, then a psum."""
    from jax.sharding import PartitionSpec as P

    angle_axes, row_axes = _axes(spec, 0), _axes(spec, 1)
    full_sigma = at["sigma"].ndim == 3
    specs = {name: P() for name in at}
    specs["data"] = P(*spec)
    if full_sigma:
        specs["sigma"] = P(*spec)

    def local(part: dict[str, Any]) -> Any:
        angles, rows, _ = part["data"].shape
        first_angle = _device_index(angle_axes) * angles
        initial = part["initial"]
        chunk = dict(part)
        chunk["angle"] = first_angle
        chunk["first_row"] = _device_index(row_axes) * rows
        chunk["initial"] = jnp.zeros((angles, initial.shape[1]), initial.dtype)
        state = _chunk(model, settings, model.tables(part["params"]), chunk)
        all_states = jax.lax.dynamic_update_slice_in_dim(
            jnp.zeros_like(initial), state, first_angle, 0
        )
        used = angle_axes + row_axes
        return jax.lax.psum(all_states, used) if used else all_states

    return jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=P(), check_vma=False)(at)


def _axes(spec: Any, dimension: int) -> tuple[str, ...]:
    entry = spec[dimension] if dimension < len(spec) else None
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _device_index(axes: tuple[str, ...]) -> Any:
    return jax.lax.axis_index(axes) if axes else jnp.int32(0)


# Models with equal numbers are equal, so later fits of the same kind reuse these programs.
_compiled: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_COMPILED_LIMIT = 64


# XLA's optimizer dominates the time of a fit of a short series, but speeds up long series.
_SHORT_SERIES = 1024
_FAST_COMPILATION: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


def _has_cpu_kernel() -> bool:
    target = "jaxkern.two_time_normal_equations.v1"
    native = current_backend() != "jax" and registry.missing(target, "cpu") is None
    return native and jax.default_backend() == "cpu"


class PassProgram:
    """Compiles the programs of a model's pass for each layout of their operands, and runs them.

    One program computes the tables, once a pass; another accumulates a chunk. For data sharded over
    a mesh one program does both.
    """

    def __init__(self, model: Model, settings: PassSettings, sharding: Any = None) -> None:
        self._model = model
        self._settings = settings
        self.n_phi = model.geometry.n_phi
        self.state_size = state_size(len(model.columns_A), len(model.columns_X))
        self.sharding = sharding
        self.compile_seconds = 0.0

    def _program(
        self, name: str, function: Callable[..., Any], fast: bool, *operands: Any
    ) -> Callable[..., Any]:
        layout = tuple((x.shape, x.dtype) for x in jax.tree.leaves(operands))
        context = (self._settings, self.sharding, current_backend())
        key = (name, self._model, context, layout)
        if key in _compiled:
            _compiled.move_to_end(key)
        else:
            start = time.perf_counter()
            options = _FAST_COMPILATION if fast else None
            lowered = jax.jit(function).lower(*operands)
            _compiled[key] = lowered.compile(compiler_options=options)
            if len(_compiled) > _COMPILED_LIMIT:
                _compiled.popitem(last=False)
            self.compile_seconds += time.perf_counter() - start
        return _compiled[key]

    def tables(self, params: Array) -> tuple[Any, Any, Any, Any]:
        """Return A, X and their tangents at physics parameters [p], on the device."""
        model = self._model
        fast = jax.default_backend() == "cpu" and model.geometry.n_t <= _SHORT_SERIES
        program = self._program("tables", lambda p: tuple(model.tables(p)[:4]), fast, params)
        tables: tuple[Any, Any, Any, Any] = program(params)
        return tables

    def host_tables(self, params: Array) -> tuple[Array, Array, Array, Array]:
        """Return A, X and their tangents as NumPy arrays."""
        A, X, tangents_A, tangents_X = map(np.asarray, self.tables(params))
        return A, X, tangents_A, tangents_X

    def accumulate(self, tables: tuple[Any, Any, Any, Any], at: dict[str, Any]) -> Array:
        """Return the states [k, S] after a chunk, once the program has released its operands.

        Args:
          tables: of `tables`.
          at: operands of the chunk: contrast, offset, angle, first_row, data, quantization, sigma,
            keep, f_scale and initial.
        """
        model, settings = self._model, self._settings

        def accumulate(arrays: Any, at: dict[str, Any]) -> Any:
            A, X, tangents_A, tangents_X = arrays
            columns = model.columns_A, model.columns_X
            full = Tables(A, X, tangents_A, tangents_X, *columns, len(model.parameters))
            return _chunk(model, settings, full, at)

        program = self._program("chunk", accumulate, _has_cpu_kernel(), tables, at)
        return np.asarray(program(tables, at))

    def accumulate_sharded(self, params: Array, at: dict[str, Any]) -> Array:
        """Return the states [n_phi, S] of data sharded over the mesh."""
        model, settings = self._model, self._settings
        mesh, spec = self.sharding.mesh, self.sharding.spec
        operands = {**at, "params": params}
        program = self._program(
            "sharded", lambda at: _sharded(model, settings, mesh, spec, at), False, operands
        )
        return np.asarray(program(operands))
