"""The data of a fit: on the host, in files or on devices, and the passes over them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files.sources import (
    LoadedSource,
    Source,
    StackSource,
    as_source,
    kernel_dtype,
    quantization,
    values,
)
from jaxkern.xpcs.fitting.options import (
    CHUNK_POINTS,
    Strategy,
    StreamingOptions,
    choose_strategy,
    chunk_rows,
    loads_file,
    parse_strategy,
)
from jaxkern.xpcs.fitting.passes import (
    BadBlocks,
    BadDataError,
    ChunkedPass,
    PassContext,
    PassRunner,
    SingleCallPass,
    chunks_of,
)
from jaxkern.xpcs.fitting.sampling import (
    BANDS,
    RowSample,
    format_frames,
    frames_without_numbers,
    mirrored_angles,
    read_sample,
    rows_of_angle,
    sample_rows,
)
from jaxkern.xpcs.model.ops import DATA_DTYPES
from jaxkern.xpcs.model.twin import ROW_BLOCK

Array = NDArray[np.float64]

# Largest number of sampled points for estimates; the minimum number of bands may exceed it.
_SAMPLE_POINTS = 600_000
_LEAST_BANDS = 8


def _sample_bands(shape: tuple[int, int, int]) -> int:
    """Return the number of bands of rows in the sample."""
    n_phi, n, _ = shape
    return min(BANDS, max(_LEAST_BANDS, _SAMPLE_POINTS // (3 * n_phi * n)))


class FitData:
    """Data of a fit; `open_data` creates one and nothing changes it afterwards.

    Attributes:
      shape, dtype: shape (n_phi, n, n) and dtype of the data.
      sample: rows for estimates.
      strategy: the `Strategy` of the passes.
      step_zero: step and zero of quantized data.
      sharding: sharding of data on several devices, else None.
      frames: mask [n] of the frames that are used at any angle.
      keep: `frames`, or a mask [n_phi, n] if the used frames differ between angles.
      empty_frames: frames without finite numbers at some angle; `keep` excludes them at
        that angle.
    """

    shape: tuple[int, int, int]
    dtype: Any
    sample: RowSample
    strategy: Strategy
    step_zero: tuple[float, float]
    sharding: Any = None
    empty_frames: tuple[int, ...] = ()

    def __init__(self, frames: NDArray[np.bool_]) -> None:
        self.frames = frames
        self.keep = frames

    def exclude_empty_frames(self, on_bad_chunk: str) -> None:
        """Mask frames at the angles where they contain no finite number.

        Raises:
          BadDataError: if `on_bad_chunk` is "raise", or fewer than 3 frames remain.
        """
        candidates = frames_without_numbers(self.sample)
        if not candidates.size:
            return
        searched: NDArray[np.bool_] = np.logical_or.reduce(np.isfinite(self.sample.values), (1, 2))
        finite = np.array([self._finite_in(int(k)) for k in candidates]) | ~searched
        empty = tuple(int(k) for k in candidates[~finite.all(axis=1)])
        if not empty:
            return
        if on_bad_chunk == "raise":
            raise BadDataError(
                f"frames {format_frames(empty)} (counted from 0) contain no finite number; "
                "on_bad_chunk='exclude' excludes such frames, `keep` masks bad frames"
            )
        keep = np.tile(self.frames, (len(searched), 1))
        keep[:, candidates] &= finite.T
        frames: NDArray[np.bool_] = np.logical_or.reduce(keep[searched], axis=0)
        if int(frames.sum()) < 3:
            raise BadDataError(
                f"expected 3 or more frames with finite numbers, got {int(frames.sum())}; "
                f"{len(empty)} frames contain none"
            )
        keep[~searched] = frames
        self.frames = frames
        self.keep = keep if (keep != frames).any() else frames
        self.sample = self._sample()
        self.empty_frames = empty

    def bad_blocks(self, silent: Sequence[int] = ()) -> BadBlocks:
        """Return the row blocks of this fit, with those of angles without signal excluded.

        Raises:
          BadDataError: if all angles are without signal.
        """
        n_phi, n, _ = self.shape
        rows = range(0, n, ROW_BLOCK)
        used = [b for b, first in enumerate(rows) if self.frames[first : first + ROW_BLOCK].any()]
        bad = BadBlocks(ROW_BLOCK, n_phi * len(used))
        for angle in silent:
            bad.excluded |= {(angle, block) for block in used}
            value = np.nanmedian(self.sample.values[angle])
            bad.reasons.append(f"angle {angle} has the value {value:g} at every sampled point")
        if silent:
            bad.check_any_left()
        return bad

    def mirrored(self, sigma: Array | Source, symmetric: Any) -> NDArray[np.bool_]:
        """True for angles [n_phi] with symmetric data and sigma; compared if symmetric="auto"."""
        if symmetric != "auto":
            return np.full(self.shape[0], bool(symmetric))
        result = self._compare_mirrored()
        if not isinstance(sigma, np.ndarray):
            result &= mirrored_angles(sigma)
        return result

    def each_angle(self, rows: NDArray[np.intp]) -> Iterator[Array]:
        """Yield the values [len(rows), n] of each angle; NaN for rows that cannot be read."""
        raise NotImplementedError

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        """Return angle, frames i and j, and value of the point furthest from its angle's center.

        Runs over the data once, in constant memory. Angles with a center of NaN are skipped.
        """
        raise NotImplementedError

    def runner(
        self,
        context: PassContext,
        bad: BadBlocks,
        streaming: StreamingOptions,
        mirrored: bool,
        on_chunk: Callable[[int, int], None],
    ) -> PassRunner:
        """Return the passes over these data."""
        raise NotImplementedError

    def _sample(self) -> RowSample:
        raise NotImplementedError

    def _finite_in(self, frame: int) -> NDArray[np.bool_]:
        """True for angles [n_phi] where a frame's row has a finite number off the diagonal."""
        raise NotImplementedError

    def _compare_mirrored(self) -> NDArray[np.bool_]:
        raise NotImplementedError


class HostData(FitData):
    """Data of a `Source`: in the host's memory, or in files that are read in every pass."""

    def __init__(
        self, source: Source, frames: NDArray[np.bool_], streaming: StreamingOptions
    ) -> None:
        super().__init__(frames)
        self.shape = source.shape
        self.step_zero = quantization(source)
        self.source = source
        self.sample = self._sample()
        n_phi, n, _ = source.shape
        in_memory = bool(getattr(source, "in_memory", False))
        size: dict[str, Any] = {"n_phi": n_phi, "itemsize": kernel_dtype(source.dtype).itemsize}
        if streaming.strategy is None:
            self.strategy = choose_strategy(n_phi * n * n, in_memory=in_memory, **size)
            load = self.strategy is Strategy.MEMORY or loads_file(n_phi * n * n, **size)
        else:
            self.strategy = parse_strategy(streaming.strategy)
            load = self.strategy is Strategy.MEMORY
        self._chunk_rows = chunk_rows(n, ROW_BLOCK, streaming.chunk_points or CHUNK_POINTS)
        if load and not in_memory:
            try:
                self.source = LoadedSource(source)
            except OSError:
                # Passes in chunks can exclude rows that cannot be read.
                self.strategy = Strategy.STREAM
        self.dtype = self.source.dtype

    def _sample(self) -> RowSample:
        return read_sample(self.source, self.frames, _sample_bands(self.shape))

    def _compare_mirrored(self) -> NDArray[np.bool_]:
        return mirrored_angles(self.source)

    def _finite_in(self, frame: int) -> NDArray[np.bool_]:
        used = self.frames & (np.arange(self.shape[1]) != frame)
        result = np.ones(self.shape[0], bool)
        for angle in range(self.shape[0]):
            # The passes report rows that cannot be read.
            with contextlib.suppress(OSError):
                row = self.source.read(angle, frame, frame + 1)[0]
                result[angle] = np.isfinite(row[used].astype(np.float64)).any()
        return result

    def each_angle(self, rows: NDArray[np.intp]) -> Iterator[Array]:
        for angle in range(self.shape[0]):
            yield rows_of_angle(self.source, angle, rows)

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        n_phi, n, _ = self.shape
        rows = max(1, CHUNK_POINTS // 8 // n)
        furthest, largest = None, -1.0
        for angle in range(n_phi):
            if not np.isfinite(centers[angle]):
                continue
            for first in range(0, n, rows):
                try:
                    part = values(self.source, self.source.read(angle, first, min(first + rows, n)))
                except OSError:
                    continue
                i = np.arange(len(part))
                distance = np.abs(part - centers[angle])
                distance[i, first + i] = -1.0
                distance[~np.isfinite(distance)] = -1.0
                distance[:, ~self.frames] = -1.0
                distance[~self.frames[first : first + len(part)]] = -1.0
                row, column = np.unravel_index(int(distance.argmax()), distance.shape)
                if distance[row, column] > largest:
                    largest = float(distance[row, column])
                    furthest = angle, first + int(row), int(column), float(part[row, column])
        return furthest

    def runner(
        self,
        context: PassContext,
        bad: BadBlocks,
        streaming: StreamingOptions,
        mirrored: bool,
        on_chunk: Callable[[int, int], None],
    ) -> PassRunner:
        chunks = chunks_of(self.shape, self._chunk_rows, self.frames)
        chunked = ChunkedPass(
            context, self.source, chunks, bad, streaming, mirrored=mirrored, on_chunk=on_chunk
        )
        single_call = None
        if self.strategy is Strategy.MEMORY and not bad.excluded:
            assert isinstance(self.source, StackSource)
            array = np.ascontiguousarray(self.source.array, kernel_dtype(self.source.dtype))
            single_call = SingleCallPass(context, jax.device_put(array))
        return PassRunner(bad, context.program, single_call, chunked)


class DeviceData(FitData):
    """Data of a ``jax.Array`` on one device, or sharded over devices of one or more processes."""

    strategy = Strategy.MEMORY

    def __init__(
        self, data: jax.Array, frames: NDArray[np.bool_], step_zero: tuple[float, float]
    ) -> None:
        super().__init__(frames)
        if data.dtype not in DATA_DTYPES:
            data = data.astype(jnp.float64)
        n_phi, n, _ = data.shape
        self.shape = (n_phi, n, n)
        self.dtype = data.dtype
        self.step_zero = step_zero
        self._data = data
        self._finite: NDArray[np.bool_] | None = None
        if len(data.sharding.device_set) > 1:
            sharding: Any = data.sharding
            spec: Any = getattr(sharding, "spec", None)
            if spec is None or (len(spec) > 2 and spec[2] is not None):
                raise ValueError(
                    "data: expected a NamedSharding over angles or rows, such as P('devices') or "
                    f"P(None, 'devices'), got {sharding}"
                )
            # With Auto axes, a gather of rows does not need the sharding of its result.
            mesh = sharding.mesh
            kinds = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
            mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
            self.sharding = jax.NamedSharding(mesh, spec)
            self._data = jax.device_put(data, self.sharding)
        self.sample = self._sample()

    def _sample(self) -> RowSample:
        rows = sample_rows(self.frames, _sample_bands(self.shape))
        stored = self._replicated(lambda d: d[:, rows].astype(jnp.float64))
        step, zero = self.step_zero
        return RowSample(rows, zero + step * stored, self.frames)

    def _replicated(self, function: Callable[[Any], Any]) -> NDArray[Any]:
        """Return function(data) on the host of every process."""
        return np.asarray(jax.jit(function, out_shardings=self._replicated_sharding())(self._data))

    def _replicated_sharding(self) -> Any:
        return None if self.sharding is None else jax.NamedSharding(self.sharding.mesh, jax.P())

    def _compare_mirrored(self) -> NDArray[np.bool_]:
        def equal(d: Any) -> Any:
            transpose = jnp.swapaxes(d, 1, 2)
            same = d == transpose
            if jnp.issubdtype(d.dtype, jnp.floating):
                same |= jnp.isnan(d) & jnp.isnan(transpose)
            return same.all((1, 2))

        return np.array(self._replicated(equal))

    def _finite_in(self, frame: int) -> NDArray[np.bool_]:
        if self._finite is None:
            used = self.frames & ~np.eye(self.shape[1], dtype=bool)
            self._finite = self._replicated(lambda d: (jnp.isfinite(d) & used).any(2))
        return np.asarray(self._finite[:, frame])

    def each_angle(self, rows: NDArray[np.intp]) -> Iterator[Array]:
        step, zero = self.step_zero
        read = jax.jit(
            lambda d, angle: d[angle][rows].astype(jnp.float64),
            out_shardings=self._replicated_sharding(),
        )
        for angle in range(self.shape[0]):
            yield zero + step * np.asarray(read(self._data, angle))

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        step, zero = self.step_zero
        searched = np.isfinite(centers)
        used = self.frames[:, None] & self.frames & ~np.eye(self.shape[1], dtype=bool)

        def largest_in_rows(d: Any) -> Any:
            """Return the column and the value [n_phi, n, 2] of the largest distance in each row."""
            value = zero + step * d.astype(jnp.float64)
            distance = jnp.abs(value - jnp.where(searched, centers, 0.0)[:, None, None])
            distance = jnp.where(used & jnp.isfinite(distance), distance, -1.0)
            column = distance.argmax(2, keepdims=True)
            return jnp.concatenate([column, jnp.take_along_axis(value, column, 2)], 2)

        columns, value = np.moveaxis(self._replicated(largest_in_rows), 2, 0)
        distance = np.abs(value - centers[:, None])
        distance[~searched] = distance[:, ~self.frames] = -1.0
        angle, row = np.unravel_index(int(distance.argmax()), distance.shape)
        return int(angle), int(row), int(columns[angle, row]), float(value[angle, row])

    def runner(
        self,
        context: PassContext,
        bad: BadBlocks,
        streaming: StreamingOptions,
        mirrored: bool,
        on_chunk: Callable[[int, int], None],
    ) -> PassRunner:
        del streaming, mirrored, on_chunk
        return PassRunner(bad, context.program, SingleCallPass(context, self._data), None)


def open_data(
    data: Any,
    shape: tuple[int, int, int],
    frames: NDArray[np.bool_],
    streaming: StreamingOptions,
) -> FitData:
    """Open the argument `data` of a fit of a model with `shape` = (n_phi, n_t, n_t).

    Raises:
      ValueError: for another shape, uint16 data without (step, zero), (step, zero) with other data,
        or matrices with one empty triangle.
      TypeError: for an object that is not a source of data.
      BadDataError: for frames without numbers, if ``on_bad_chunk="raise"``.
    """
    step_zero = streaming.quantization
    if isinstance(data, jax.Array):
        devices: Any = data.sharding.device_set
        if len(devices) == 1 and next(iter(devices)).platform == "cpu":
            data = np.asarray(data)
    source = None if isinstance(data, jax.Array) else as_source(data, quantization=step_zero)
    array: Any = data if source is None else source
    if tuple(array.shape) != shape:
        raise ValueError(
            f"data: expected [n_phi, n_t, n_t] = {shape} of the model's geometry (its phi and t), "
            f"got shape {tuple(array.shape)}"
        )
    dtype = np.dtype(array.dtype)
    if step_zero is not None and dtype != np.uint16:
        raise ValueError(f"quantization: expected None or uint16 data, got {dtype}")
    known = step_zero if source is None else getattr(source, "quantization", None)
    if dtype == np.uint16 and known is None:
        raise ValueError(
            "quantization: expected (step, zero) for uint16 data, got None; a value is "
            "zero + step * data (or set the attribute `quantization` of a source)"
        )
    if known is not None and not (
        np.shape(known) == (2,) and np.isfinite(known).all() and known[0]
    ):
        raise ValueError(f"quantization: expected (step, zero) with step != 0, got {known!r}")
    if dtype.kind not in "fiu":
        raise ValueError(f"data: expected real numbers, got {dtype}")
    opened: FitData
    if source is None:
        opened = DeviceData(data, frames, step_zero or (1.0, 0.0))
    else:
        opened = HostData(source, frames, streaming)
    _check_triangles(opened)
    opened.exclude_empty_frames(streaming.on_bad_chunk)
    return opened


def _check_triangles(data: FitData) -> None:
    """Raise ValueError if the sampled rows of a matrix are zero in exactly one triangle."""
    sample = data.sample
    column = np.arange(sample.values.shape[2])[None, :]
    used = sample.good[None, :] & sample.good[sample.rows][:, None]
    # For quantized data, the value that a stored 0 represents.
    zero = data.step_zero[1] if data.dtype == np.uint16 else 0.0
    for angle, rows in enumerate(sample.values):
        # Rows that could not be read contain NaN only.
        known = used & ~np.isnan(rows).all(axis=1)[:, None]
        empty = np.isnan(rows) | (rows == zero)
        below = known & (column < sample.rows[:, None])
        above = known & (column > sample.rows[:, None])
        if not (below.any() and above.any()):
            continue
        if empty[below].all() != empty[above].all():
            side = "above" if empty[below].all() else "below"
            if np.isnan(rows[below if side == "above" else above]).all():
                # The passes exclude and report rows with NaN.
                continue
            raise ValueError(
                f"data: expected both triangles, c2 + c2.T with the diagonal once, got numbers "
                f"only {side} the diagonal at angle {angle} (load_aps and ApsFile complete files "
                "with one triangle)"
            )
