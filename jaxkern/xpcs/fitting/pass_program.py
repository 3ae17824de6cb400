"""The compiled pass: phases, their tables and the accumulated normal equations in one program.

Everything of order n_t and n_t^2 of a pass is inside; what is of the order of the parameters
(`assemble_states`) is NumPy, where nothing has to be compiled.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.xpcs.model.models import Model, Tables
from jaxkern.xpcs.model.normal import accumulate, state_size

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PassSettings:
    """What is compiled into a pass. `symmetric`: only points above the diagonal, twice."""

    loss: str
    symmetric: bool


@dataclass(frozen=True)
class Basis:
    """Which parameters the columns of a state belong to."""

    n_parameters: int
    columns_A: tuple[int, ...]
    columns_X: tuple[int, ...]

    @property
    def size(self) -> int:
        return 2 + len(self.columns_A) + len(self.columns_X)

    @property
    def state_size(self) -> int:
        return state_size(len(self.columns_A), len(self.columns_X))


def basis_of(model: Model) -> Basis:
    """The basis of a model."""
    return Basis(len(model.parameter_names), model.columns_A, model.columns_X)


@dataclass(frozen=True)
class AngleSums:
    """The sums of each angle over its own parameters [contrast, offset, physics...]."""

    jtj: Array  # [n_phi, 2 + p, 2 + p]
    jtr: Array  # [n_phi, 2 + p]
    chi2: Array  # [n_phi], as are the rest
    cost: Array
    count: Array
    mirrored: Array


def assemble_states(states: Array, basis: Basis, contrast: Array) -> AngleSums:
    """Sums over basis columns (states [n_phi, S]) as sums over parameters.

    The derivative of g2 by a phase parameter is contrast times the sum of its columns.
    """
    n_phi, size = len(states), basis.size
    packed = size * (size + 1) // 2
    gram = np.zeros((n_phi, size, size))
    rows, columns = np.triu_indices(size)
    gram[:, rows, columns] = states[:, :packed]
    gram[:, columns, rows] = states[:, :packed]
    rhs = states[:, packed : packed + size]
    chi2, cost, count, mirrored = states[:, packed + size :].T
    physics = np.zeros((size, 2 + basis.n_parameters))
    for column, parameter in enumerate(basis.columns_A + basis.columns_X):
        physics[2 + column, 2 + parameter] = 1.0
    change = physics[None] * contrast[:, None, None]
    change[:, 1, 0] = change[:, 0, 1] = 1.0
    turned = np.swapaxes(change, 1, 2)
    return AngleSums(
        jtj=turned @ gram @ change,
        jtr=(turned @ rhs[..., None])[..., 0],
        chi2=chi2,
        cost=cost,
        count=count,
        mirrored=mirrored,
    )


def _of_angles(tables: Tables, angle: Any, count: int, n_phi: int) -> Tables:
    """The tables of `count` angles from `angle` on; what is the same for all angles stays."""
    if count == n_phi:
        return tables

    def part(table: Any, batched: bool) -> Any:
        if not batched or table.shape[0] == 1:
            return table
        return jax.lax.dynamic_slice_in_dim(table, angle, count, 0)

    return tables._replace(
        A=part(tables.A, tables.A.ndim == 2),
        X=part(tables.X, True),
        tangents_A=part(tables.tangents_A, tables.tangents_A.ndim == 3),
        tangents_X=part(tables.tangents_X, True),
    )


def _take(value: Any, angle: Any, count: int) -> Any:
    if value.shape[0] == count:
        return value
    return jax.lax.dynamic_slice_in_dim(value, angle, count, 0)


def _chunk(model: Model, settings: PassSettings, tables: Tables, at: dict[str, Any]) -> Any:
    """The states of the angles angle .. angle + k from `data` [k, m, n].

    `at` holds contrast and offset [n_phi], angle and first_row (int32), data, quantization [2],
    sigma ([n_phi], or [k, m, n]), keep [n], f_scale and initial [k, S].
    """
    data, sigma = at["data"], at["sigma"]
    count, n_phi = data.shape[0], model.geometry.n_phi
    angle = at["angle"]
    return accumulate(
        _of_angles(tables, angle, count, n_phi),
        _take(at["contrast"], angle, count),
        _take(at["offset"], angle, count),
        data,
        _take(sigma, angle, count) if sigma.ndim == 1 else sigma,
        first_row=at["first_row"],
        initial=at["initial"],
        keep=at["keep"],
        loss=settings.loss,
        f_scale=at["f_scale"],
        symmetric=settings.symmetric,
        quantization=at["quantization"] if data.dtype == np.uint16 else None,
        shear_power=model.shear_power,
    )


def _sharded(
    model: Model, settings: PassSettings, mesh: Any, spec: Any, at: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """All states, and the phases, over a mesh: local sums of each device, added up."""
    from jax.sharding import PartitionSpec as P

    angle_axes, row_axes = _axes(spec, 0), _axes(spec, 1)
    full_sigma = at["sigma"].ndim == 3
    specs = {name: P() for name in at}
    specs["data"] = P(*spec)
    if full_sigma:
        specs["sigma"] = P(*spec)

    def local(part: dict[str, Any]) -> tuple[Any, Any, Any]:
        angles, rows, _ = part["data"].shape
        first_angle = _device_index(mesh, angle_axes) * angles
        initial = part["initial"]
        mine = dict(part)
        mine["angle"] = first_angle
        mine["first_row"] = _device_index(mesh, row_axes) * rows
        mine["initial"] = jnp.zeros((angles, initial.shape[1]), initial.dtype)
        tables = model.tables(part["params"])
        state = _chunk(model, settings, tables, mine)
        all_states = jax.lax.dynamic_update_slice_in_dim(
            jnp.zeros_like(initial), state, first_angle, 0
        )
        used = angle_axes + row_axes
        return (jax.lax.psum(all_states, used) if used else all_states), tables.A, tables.X

    result: tuple[Any, Any, Any] = jax.shard_map(
        local, mesh=mesh, in_specs=(specs,), out_specs=(P(), P(), P()), check_vma=False
    )(at)
    return result


def _axes(spec: Any, dimension: int) -> tuple[str, ...]:
    entry = spec[dimension] if dimension < len(spec) else None
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _device_index(mesh: Any, axes: Sequence[str]) -> Any:
    index = jnp.int32(0)
    for name in axes:
        index = index * mesh.shape[name] + jax.lax.axis_index(name)
    return index


# Models with equal numbers are equal, so a second fit of the same kind finds its programs here.
_compiled: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_COMPILED_LIMIT = 64


# XLA's optimizer takes most of the time of a fit of short series, and longer ones need it.
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

    One makes the tables, once a pass; the other accumulates a chunk. Over a mesh one does both.
    """

    def __init__(self, model: Model, settings: PassSettings, sharding: Any = None) -> None:
        self._model = model
        self._settings = settings
        self._sharding = sharding
        self._tables: tuple[bytes, Any] | None = None
        self.compile_seconds = 0.0
        self.run_seconds = 0.0
        self.phases: tuple[bytes, Array, Array] | None = None

    def _program(
        self, name: str, function: Callable[..., Any], fast: bool, *operands: Any
    ) -> Callable[..., Any]:
        layout = tuple((x.shape, x.dtype) for x in jax.tree.leaves(operands))
        context = (self._settings, self._sharding, current_backend())
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

    def tables_at(self, params: Array) -> Any:
        """The arrays of the tables, on the device."""
        key = params.tobytes()
        if self._tables is None or self._tables[0] != key:
            model = self._model
            fast = jax.default_backend() == "cpu" and model.geometry.n_t <= _SHORT_SERIES
            program = self._program("tables", lambda p: tuple(model.tables(p)[:4]), fast, params)
            self._tables = (key, program(params))
            self.phases = (key, self._tables[1][0], self._tables[1][1])
        return self._tables[1]

    def __call__(self, at: dict[str, Any]) -> Array:
        """The states [k, S] on the host, after the program has finished with its operands."""
        model, settings = self._model, self._settings
        params = at["params"]
        if self._sharding is not None:
            mesh, spec = self._sharding.mesh, self._sharding.spec
            program = self._program(
                "sharded", lambda at: _sharded(model, settings, mesh, spec, at), False, at
            )
            start = time.perf_counter()
            states, phases_A, phases_X = program(at)
            self.phases = (params.tobytes(), phases_A, phases_X)
        else:
            tables = self.tables_at(params)
            rest = {name: value for name, value in at.items() if name != "params"}

            def accumulated(arrays: Any, at: dict[str, Any]) -> Any:
                A, X, tangents_A, tangents_X = arrays
                columns = model.columns_A, model.columns_X
                full = Tables(A, X, tangents_A, tangents_X, *columns, len(model.parameters))
                return _chunk(model, settings, full, at)

            program = self._program("chunk", accumulated, _has_cpu_kernel(), tables, rest)
            start = time.perf_counter()
            states = program(tables, rest)
        result = np.asarray(states)
        self.run_seconds += time.perf_counter() - start
        return result
