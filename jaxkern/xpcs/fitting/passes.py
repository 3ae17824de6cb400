"""Passes over the data: compiled programs that run in one call, or in chunks read ahead."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.core.caches import LruCache
from jaxkern.core.memory import anonymous_bytes
from jaxkern.xpcs.files import sources
from jaxkern.xpcs.fitting.data import BadDataError, Chunk, FitData
from jaxkern.xpcs.fitting.sampling import Noise
from jaxkern.xpcs.model.components import Components, ComponentTables, TwoComponent
from jaxkern.xpcs.model.models import Geometry, LaminarFlow, Model, Static, StaticIsotropic, Tables
from jaxkern.xpcs.model.normal import accumulate, sums_of_angles, table_ranks
from jaxkern.xpcs.model.ops import state_size
from jaxkern.xpcs.model.twin import ROW_BLOCK, SIGMA_FLOOR

Array = NDArray[np.float64]

# Larger numbers are not measurements, and their squares may overflow.
MAX_VALUE = 1e100
# Later fits of the same kind reuse these programs. Those of the first models are the same for all
# geometries of a shape; those of other models depend on functions of the user.
_BUILT_IN = (Static, StaticIsotropic, LaminarFlow, TwoComponent)
_compiled: LruCache[Callable[..., Any]] = LruCache(64)
# XLA's optimizer dominates the time of a fit of a short series, but speeds up long series.
_SHORT_SERIES = 1024
_FAST_COMPILATION: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


@dataclass(frozen=True)
class PassPoint:
    """A point at which a pass is evaluated: physics [p], contrast [n_phi] and offset [n_phi]."""

    physics: Array
    contrast: Array
    offset: Array


@dataclass(frozen=True)
class HostTables:
    """Tables of a model in NumPy, and g1^2 and its derivatives at pairs of frames.

    Pairs of frames are index arrays i and j with the same number of axes, which broadcast.
    All arrays of `tables` have a first axis of the size n_phi, or 1 for all angles.
    """

    tables: Tables | ComponentTables
    shear_power: int

    def at_angle(self, angle: int) -> HostTables:
        """Return the tables of one angle, with a first axis of the size 1."""
        own = (table[angle % len(table)][None] for table in self.tables.arrays)
        if isinstance(self.tables, ComponentTables):
            return HostTables(ComponentTables(*own), 0)
        A, X, tangents_A, tangents_X = own
        tables = self.tables._replace(A=A, X=X, tangents_A=tangents_A, tangents_X=tangents_X)
        return HostTables(tables, self.shear_power)

    def correlation(self, i: Any, j: Any) -> Array:
        """Return g1^2 [n_phi or 1, ...] of the frames i and j; see also `PassProgram.phases`."""
        if isinstance(self.tables, ComponentTables):
            B, A, P = self.tables[:3]
            axis = B.ndim - 2
            size = np.exp(B[..., i] + B[..., j] - np.abs(A[..., i] - A[..., j]))
            sizes, phases = np.moveaxis(size, axis, 0), np.moveaxis(P[..., i] - P[..., j], axis, 0)
            f = (sizes**2).sum(axis=0)
            for c, d in itertools.combinations(range(len(sizes)), 2):
                f = f + 2.0 * sizes[c] * sizes[d] * np.cos(phases[c] - phases[d])
            return np.asarray(f)
        A, X = self.tables[:2]
        dA, dX = A[..., i] - A[..., j], X[..., i] - X[..., j]
        flow = np.sinc(dX / np.pi) ** self.shear_power if self.shear_power else np.ones_like(dX)
        return np.asarray(np.exp(-2.0 * np.abs(dA)) * flow)

    def correlation_slopes(self, i: Any, j: Any) -> tuple[Array, Array]:
        """Return g1^2 and its derivatives [n_phi or 1, p, ...] of the frames i and j."""
        f = self.correlation(i, j)
        slopes = np.zeros((len(f), self.tables.n_parameters, *f.shape[1:]))
        if isinstance(self.tables, ComponentTables):
            _, A, _, *tangents = self.tables
            terms = self._terms(i, j)
            product = 2.0 * np.conj(terms.sum(axis=1))[:, None] * terms  # [n_phi or 1, C, ...]
            signed = product.real * -np.sign(A[..., i] - A[..., j])
            factors = ((product.real, 1.0), (signed, -1.0), (-product.imag, -1.0))
            for tangent, (factor, sign) in zip(tangents, factors, strict=True):
                # Most parameters change one table of one component.
                for k, c in np.argwhere(tangent.any(axis=(0, 3))):
                    along = tangent[:, k, c]
                    slopes[:, k] += factor[:, c] * (along[:, i] + sign * along[:, j])
            return f, slopes
        A, X, along_A, along_X = self.tables.arrays
        dA, dX, power = A[:, i] - A[:, j], X[:, i] - X[:, j], self.shear_power
        by_A = -2.0 * np.sign(dA) * f
        for k, column in enumerate(self.tables.columns_A):
            slopes[:, column] += by_A * (along_A[:, k][:, i] - along_A[:, k][:, j])
        if power:
            sinc, small = np.sinc(dX / np.pi), np.abs(dX) < 1e-4
            x = np.where(small, 1.0, dX)
            slope = np.where(small, -dX / 3.0, (np.cos(x) - sinc) / x)
            by_X = np.exp(-2.0 * np.abs(dA)) * power * sinc ** (power - 1) * slope
            for k, column in enumerate(self.tables.columns_X):
                slopes[:, column] += by_X * (along_X[:, k][:, i] - along_X[:, k][:, j])
        return f, slopes

    def _terms(self, i: Any, j: Any) -> NDArray[np.complex128]:
        """Return the terms [n_phi or 1, C, ...] whose sum is g1."""
        B, A, P = self.tables[:3]
        dA, dP = A[..., i] - A[..., j], P[..., i] - P[..., j]
        return np.asarray(np.exp(B[..., i] + B[..., j] - np.abs(dA) + 1j * dP))


@dataclass(frozen=True)
class AngleSums:
    """The sums of each angle for its parameters [contrast, offset, physics...]."""

    jtj: Array  # [n_phi, 2 + p, 2 + p]
    jtr: Array  # [n_phi, 2 + p]
    chi2: Array  # [n_phi], as are the rest
    cost: Array
    count: Array
    mirrored: Array


def _first_on_device(spec: Any, dimension: int, size: int) -> tuple[tuple[str, ...], Any]:
    """Return the mesh axes of a dimension, and the first index of this device's part of a size."""
    entry = spec[dimension] if dimension < len(spec) else None
    axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
    return axes, (jax.lax.axis_index(axes) if axes else jnp.int32(0)) * size


def _has_cpu_kernel() -> bool:
    target = "jaxkern.two_time_normal_equations.v1"
    native = current_backend() != "jax" and registry.missing(target, "cpu") is None
    return native and jax.default_backend() == "cpu"


class PassProgram:
    """Compiles the programs of a model's pass for each layout of their operands, and runs them.

    One computes the tables, another accumulates a chunk; that for sharded data does both.
    """

    def __init__(self, model: Model, loss: str, symmetric: bool, sharding: Any = None) -> None:
        self.model, self.sharding = model, sharding
        self._loss, self._symmetric = loss, symmetric
        self.compile_seconds = 0.0

    def _program(
        self, name: str, function: Callable[..., Any], fast: bool, *operands: Any
    ) -> Callable[..., Any]:
        layout = tuple((x.shape, x.dtype) for x in jax.tree.leaves(operands))
        settings = (self._loss, self._symmetric, self.sharding, current_backend())
        model: Any = self.model
        if type(model) in _BUILT_IN and name != "sharded":
            model = type(model), model.shear_power
        key = (name, model, settings, layout)
        program = _compiled.get(key)
        if program is None:
            start = time.perf_counter()
            options = _FAST_COMPILATION if fast else None
            program = jax.jit(function).lower(*operands).compile(compiler_options=options)
            _compiled.put(key, program)
            self.compile_seconds += time.perf_counter() - start
        return program

    def tables(self, params: Array) -> tuple[Any, ...]:
        """Return the arrays of the model's tables at physics parameters [p], on the device."""
        n_t, is_sum = self.model.geometry.n_t, isinstance(self.model, Components)
        # Tables of components take 10 times longer without optimization.
        fast = jax.default_backend() == "cpu" and n_t <= _SHORT_SERIES and not is_sum
        return self._of_model("tables", lambda model, p: model.tables(p).arrays, fast, params)

    def phases(self, points: Array, frames: NDArray[np.intp]) -> HostTables:
        """Return tables of some frames at points [k, p], their first axis, without derivatives."""

        def compute(model: Model, operands: Any) -> Any:
            points, frames = operands
            return jax.lax.map(lambda p: [x[..., frames] for x in model.checked_phases(p)], points)

        arrays = map(np.asarray, self._of_model("phases", compute, False, (points, frames)))
        rank = 4 if isinstance(self.model, Components) else 3
        full = [x if x.ndim == rank else x[:, None] for x in arrays]
        tables = self.model.tables_of([*full, *[None] * len(full)])
        return HostTables(tables, self.model.shear_power)

    def _of_model(
        self, name: str, function: Callable[[Any, Any], Any], fast: bool, operand: Any
    ) -> tuple[Any, ...]:
        """Run a function of the model and an operand; geometries are operands where possible."""
        model = self.model
        result: tuple[Any, ...]
        if type(model) not in _BUILT_IN:
            result = self._program(name, lambda x: function(model, x), fast, operand)(operand)
            return result
        power = (model.shear_power,) if isinstance(model, LaminarFlow) else ()

        def compute(x: Any, numbers: tuple[Any, ...]) -> Any:
            traced: Any = type(model)
            return function(traced(Geometry.from_tracers(numbers), *power), x)

        operands = operand, model.geometry.numbers
        result = self._program(name, compute, fast, *operands)(*operands)
        return result

    def host_tables(self, params: Array) -> HostTables:
        arrays = tuple(map(np.asarray, self.tables(params)))
        full = (
            table if table.ndim == rank else table[None]
            for table, rank in zip(arrays, table_ranks(arrays), strict=True)
        )
        return HostTables(self.model.tables_of(tuple(full)), self.model.shear_power)

    def accumulate(self, tables: tuple[Any, ...], at: dict[str, Any]) -> Array:
        """Return the states [k, S] after a chunk, once the program has released its operands.

        `at` has contrast and offset [n_phi], angle and first_row (int32), data [k, m, n] of the
        angles angle .. angle + k, quantization [2], sigma ([n_phi], or [k, m, n]), keep ([n], or
        [n_phi, n]), f_scale and initial [k, S].
        """
        program = self._program("chunk", self._chunk, _has_cpu_kernel(), tables, at)
        return np.asarray(program(tables, at))

    def accumulate_sharded(self, params: Array, at: dict[str, Any]) -> Array:
        operands = {**at, "params": params}
        return np.asarray(self._program("sharded", self._sharded, False, operands)(operands))

    def _chunk(self, arrays: tuple[Any, ...], at: dict[str, Any]) -> Any:
        model, data = self.model, at["data"]
        count = data.shape[0]

        def own(value: Any, rank: int) -> Any:
            """Return the part of the chunk's angles; values with angles have `rank` axes."""
            shared = value.ndim != rank or value.shape[0] in (1, count)
            return value if shared else jax.lax.dynamic_slice_in_dim(value, at["angle"], count, 0)

        tables = tuple(map(own, arrays, table_ranks(arrays)))
        return accumulate(
            model.tables_of(tables),
            *(own(at["contrast"], 1), own(at["offset"], 1), data, own(at["sigma"], 1)),
            keep=own(at["keep"], 2),
            loss=self._loss,
            symmetric=self._symmetric,
            quantization=at["quantization"] if data.dtype == np.uint16 else None,
            shear_power=model.shear_power,
            **{name: at[name] for name in ("first_row", "initial", "f_scale")},
        )

    def _sharded(self, at: dict[str, Any]) -> Any:
        """Return the states of all angles: local sums, then a psum."""
        spec = self.sharding.spec
        specs = {name: P() for name in at} | {"data": P(*spec)}
        if at["sigma"].ndim == 3:
            specs["sigma"] = P(*spec)

        def local(part: dict[str, Any]) -> Any:
            angles, rows, _ = part["data"].shape
            angle_axes, angle = _first_on_device(spec, 0, angles)
            row_axes, row = _first_on_device(spec, 1, rows)
            states = jnp.zeros_like(part["initial"])
            chunk = part | {"angle": angle, "first_row": row, "initial": states[:angles]}
            state = self._chunk(self.model.tables(part["params"]).arrays, chunk)
            states = jax.lax.dynamic_update_slice_in_dim(states, state, angle, 0)
            used = angle_axes + row_axes
            return jax.lax.psum(states, used) if used else states

        return jax.shard_map(
            local, mesh=self.sharding.mesh, in_specs=(specs,), out_specs=P(), check_vma=False
        )(at)


class PassRunner:
    """Runs and counts the passes of a fit.

    The data are passed to the kernel in one call as long as no rows have to be excluded, and in
    chunks afterwards; a thread reads the next chunk during the current one, unless it is in memory
    in the layout of the kernel. Rows that hold NaN, or that cannot be read after some retries, are
    excluded in blocks, or raise `BadDataError`. Data on devices have no chunks: NaN in their first
    pass raises `BadDataError`, and later means that the model overflows.
    """

    def __init__(
        self,
        program: PassProgram,
        data: FitData,
        noise: Noise,
        f_scale: float,
        mirrored: bool,  # True if the upper triangle suffices for all data
        on_chunk: Callable[[int, int], None],  # called with the number of finished and all chunks
    ) -> None:
        self.bad = data.bad_blocks(noise)  # passes add to them
        self._program, self._streaming, self._f_scale = program, data.streaming, np.float64(f_scale)
        self._source, self._sigma, self._keep = data.source, noise.sigma, data.keep
        self._mirrored, self._on_chunk = mirrored, on_chunk
        self._chunks = data.chunks()
        self._array = None if self._chunks and self.bad.excluded else data.device_array()
        self._all_sigma: Any = noise.sigma
        if self._array is not None and not isinstance(noise.sigma, np.ndarray):
            sigma = noise.sigma
            stack = sigma if isinstance(sigma, sources.StackSource) else sources.LoadedSource(sigma)
            self._all_sigma = jax.device_put(stack.array.astype(np.float64), self._array.sharding)
        self._in_memory = bool(getattr(data.source, "in_memory", False))
        self._read_ahead = (sources.RowBuffers(touch=not self._in_memory), sources.RowBuffers())
        # Retries use separate buffers, because the thread may be reading ahead.
        self._retry = (sources.RowBuffers(), sources.RowBuffers())
        self._first = True
        self.seconds = 0.0  # without compilation
        self.n_batches = 0  # kernel calls, one for each chunk
        self.peak_bytes = anonymous_bytes()  # largest measured anonymous memory of the process

    def measure_memory(self) -> None:
        self.peak_bytes = max(self.peak_bytes, anonymous_bytes())

    def sums(self, point: PassPoint, omitted: NDArray[np.bool_] | None = None) -> AngleSums:
        """Return the sums at a point, without the frames `omitted` [n]."""
        start, compiled = time.perf_counter(), self._program.compile_seconds
        states = self._states(point, omitted)
        self.seconds += time.perf_counter() - start - (self._program.compile_seconds - compiled)
        self.measure_memory()
        model = self._program.model
        columns, count = model.columns_A + model.columns_X, len(model.parameters)
        jtj, jtr, sums = sums_of_angles(states, columns, count, point.contrast, np)
        return AngleSums(jtj, jtr, *sums.T)

    def _states(self, point: PassPoint, omitted: NDArray[np.bool_] | None) -> Array:
        keep = self._keep if omitted is None else self._keep & ~omitted
        operands = {
            "contrast": point.contrast,
            "offset": point.offset,
            "keep": keep.astype(np.uint8),
            "f_scale": self._f_scale,
            "quantization": np.array(sources.quantization(self._source)),
        }
        model = self._program.model
        size = state_size(len(model.columns_A), len(model.columns_X))
        states = np.zeros((model.geometry.n_phi, size))
        if self._array is not None and (self._chunks is None or not self.bad.excluded):
            self.n_batches += 1
            start = {"angle": np.int32(0), "first_row": np.int32(0), "initial": states}
            at = {**operands, **start, "data": self._array, "sigma": self._all_sigma}
            if self._program.sharding is not None:
                single = self._program.accumulate_sharded(point.physics, at)
            else:
                single = self._program.accumulate(self._program.tables(point.physics), at)
            finite = np.isfinite(single).all(axis=1)
            first, self._first = self._first, False
            if finite.all() or (self._chunks is None and not first):
                return single
            if self._chunks is None:
                raise BadDataError(
                    "data on devices: expected no NaN, got sums that are not finite at the angles "
                    f"{np.flatnonzero(~finite).tolist()}; pass a NumPy array or a file, or mask "
                    "frames with `keep`"
                )
        return self._in_chunks(point, operands, keep, states)

    def _in_chunks(
        self, point: PassPoint, operands: dict[str, Any], keep: NDArray[np.bool_], states: Array
    ) -> Array:
        assert self._chunks is not None
        if isinstance(self._sigma, np.ndarray):
            operands["sigma"] = self._sigma
        shared = jax.device_put(operands)  # once a pass, not once a chunk
        tables = self._program.tables(point.physics)

        def call(chunk: Chunk, rows: Any, sigma: Any) -> Array:
            """Return the state after a chunk; sigma None for that of all chunks."""
            start = {"angle": np.int32(chunk.angle), "first_row": np.int32(chunk.first_row)}
            at = {**shared, **start, "data": jax.device_put(rows[None])}
            at["initial"] = states[chunk.angle][None]
            if sigma is not None:
                at["sigma"] = jax.device_put(sigma[None])
            return self._program.accumulate(tables, at)[0]

        with ThreadPoolExecutor(1, "jaxkern-read") as reader:
            ahead = self._submit(reader, 0)
            for k, chunk in enumerate(self._chunks):
                loaded = ahead.result() if isinstance(ahead, Future) else ahead
                # Two buffers: the next chunk is read while the kernel uses this one.
                ahead = self._submit(reader, k + 1)
                states[chunk.angle] = self._run(call, chunk, loaded, keep)
                self.n_batches += 1
                if k % 16 == 0:
                    self.measure_memory()
                self._on_chunk(k + 1, len(self._chunks))
        self.bad.check_any_left()
        return states

    def _submit(self, reader: ThreadPoolExecutor, k: int) -> Any:
        """Return a chunk in memory, the future of one to be read, or None for one to skip."""
        assert self._chunks is not None
        if k >= len(self._chunks) or self.bad.touch(self._chunks[k]):
            return None
        chunk = self._chunks[k]
        if self._in_memory and isinstance(self._sigma, np.ndarray):
            rows = self._source.read(chunk.angle, chunk.first_row, chunk.stop_row)
            if sources.is_zero_copy(rows):
                return rows, None
        return reader.submit(self._load, chunk, self._read_ahead)

    def _load(self, chunk: Chunk, buffers: tuple[sources.RowBuffers, sources.RowBuffers]) -> Any:
        """Return rows and sigma of a chunk in the kernel's layout, or the OSError of reading."""
        where = chunk.angle, chunk.first_row, chunk.stop_row
        upper_from = chunk.first_row if self._mirrored else None
        try:
            stored = self._source.read(*where)
            rows = buffers[0].ready(stored, upper_from=upper_from, row_block=ROW_BLOCK)
            if isinstance(self._sigma, np.ndarray):
                return rows, None
            return rows, buffers[1].ready(np.asarray(self._sigma.read(*where), np.float64))
        except OSError as error:
            return error

    def _run(
        self, call: Callable[..., Array], chunk: Chunk, loaded: Any, keep: NDArray[np.bool_]
    ) -> Array:
        """Return the state after a chunk, with retries and without bad blocks."""
        for attempt in range(self._streaming.retries + 1):
            if loaded is None and self.bad.touch(chunk):
                break
            if attempt > 0:
                time.sleep(0.02 * 4**attempt)
                loaded = self._load(chunk, self._retry)
            if isinstance(loaded, OSError):
                continue
            rows, sigma = loaded
            state = call(chunk, rows, sigma)
            if np.isfinite(state).all() or not self._has_bad_points(chunk, rows, sigma, keep):
                # Finite, or the model overflows at this point, which the solver handles.
                return state
        return call(chunk, *self._without_bad_blocks(chunk, keep))

    def _has_bad_points(
        self, chunk: Chunk, rows: NDArray[Any], sigma: Any, keep: NDArray[np.bool_]
    ) -> bool:
        """True if a point with weight is not finite, or larger than `MAX_VALUE`."""
        used_frames = keep[chunk.angle] if keep.ndim == 2 else keep
        column = np.arange(len(used_frames))
        for first in range(0, len(rows), ROW_BLOCK):
            part = sources.values(self._source, rows[first : first + ROW_BLOCK])
            row = chunk.first_row + first + np.arange(len(part))[:, None]
            used = used_frames & used_frames[row]
            used &= column > row if self._mirrored else column != row
            if sigma is not None:
                deviation = np.asarray(sigma[first : first + ROW_BLOCK])
                used &= ~(deviation <= SIGMA_FLOOR)
                part = part + deviation
            if not (np.abs(part[used]) < MAX_VALUE).all():
                return True
        return False

    def _without_bad_blocks(self, chunk: Chunk, keep: NDArray[np.bool_]) -> tuple[Any, Array]:
        """Return rows and sigma of a chunk; a sigma of 0 excludes bad blocks."""
        angle, count, n = chunk.angle, chunk.stop_row - chunk.first_row, keep.shape[-1]
        rows = np.zeros((count, n), sources.kernel_dtype(self._source.dtype))
        sigma = np.zeros((count, n))
        for first in range(0, count, ROW_BLOCK):
            last = min(first + ROW_BLOCK, count)
            part = Chunk(angle, chunk.first_row + first, chunk.first_row + last)
            if self.bad.touch(part):
                continue
            loaded = self._load(part, self._retry)
            if isinstance(loaded, OSError):
                self._exclude(part, f"cannot be read ({loaded})")
            elif self._has_bad_points(part, loaded[0], loaded[1], keep):
                self._exclude(part, "contain numbers that are not finite or exceed 1e100")
            else:
                rows[first:last] = loaded[0]
                fixed = self._sigma
                sigma[first:last] = fixed[angle] if isinstance(fixed, np.ndarray) else loaded[1]
        return rows, sigma

    def _exclude(self, block: Chunk, problem: str) -> None:
        last = block.stop_row - 1
        reason = f"angle {block.angle}, rows {block.first_row} to {last} {problem}"
        if self._streaming.on_bad_chunk == "raise":
            raise BadDataError(
                f"{reason}; on_bad_chunk='exclude' excludes such rows, `keep` masks bad frames"
            )
        self.bad.excluded.add((block.angle, block.first_row // ROW_BLOCK))
        self.bad.reasons.append(reason)
