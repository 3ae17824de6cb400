"""The data of a fit, opened: where they lie, what was sampled of them, and the way through them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
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
from jaxkern.xpcs.fitting.checkpoint import PartialPass
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.passes import (
    BadBlocks,
    BadDataError,
    ChunkedPass,
    Pass,
    PassContext,
    PassPoint,
    WholePass,
    chunks_of,
)
from jaxkern.xpcs.fitting.starting import (
    BANDS,
    RowSample,
    frames_without_numbers,
    listed,
    mirrored_angles,
    read_sample,
    sample_rows,
)
from jaxkern.xpcs.fitting.strategy import (
    CHUNK_POINTS,
    Strategy,
    choose_strategy,
    chunk_rows,
    parse_strategy,
)
from jaxkern.xpcs.model.ops import DATA_DTYPES
from jaxkern.xpcs.model.twin import ROW_BLOCK

Array = NDArray[np.float64]

# Points that are sampled for estimates, at most, beyond a least number of rows.
_SAMPLE_POINTS = 600_000
_LEAST_BANDS = 8


def _bands(shape: tuple[int, int, int]) -> int:
    n_phi, n, _ = shape
    return min(BANDS, max(_LEAST_BANDS, _SAMPLE_POINTS // (3 * n_phi * n)))


class FitData:
    """What `fit` needs to know of its data; either in the host's reach or on devices."""

    shape: tuple[int, int, int]
    dtype: Any
    sample: RowSample
    strategy: Strategy
    chunk_rows: int
    step_zero: tuple[float, float]
    sharding: Any = None

    def __init__(self, frames: NDArray[np.bool_]) -> None:
        self.frames = frames
        self._all_mirrored = False
        self.ways: list[Any] = []

    def bad_blocks(self, silent: Sequence[int] = ()) -> BadBlocks:
        """Nothing excluded yet but the angles without signal.

        Raises:
          BadDataError: when no other angle is there.
        """
        n_phi, n, _ = self.shape
        rows = range(0, n, ROW_BLOCK)
        used = [b for b, first in enumerate(rows) if self.frames[first : first + ROW_BLOCK].any()]
        bad = BadBlocks(ROW_BLOCK, n_phi * len(used))
        for angle in silent:
            bad.excluded |= {(angle, block) for block in used}
            value = np.nanmedian(self.sample.values[angle])
            bad.reasons.append(f"angle {angle} has the value {value:g} wherever it was looked at")
        if silent and len(bad.excluded) >= bad.total:
            raise BadDataError(f"no row can be used: {bad.reasons[0]}, and so on")
        return bad

    def leave_out_empty_frames(self, on_bad_chunk: str) -> tuple[int, ...]:
        """Masks frames that hold no number at some angle; returns them, counted from 0.

        Raises:
          BadDataError: where the fit shall fail on them, or when fewer than 3 others are left.
        """
        candidates = frames_without_numbers(self.sample)
        if not candidates.size:
            return ()
        searched = np.isfinite(self.sample.values).any((1, 2))
        empty = [int(k) for k in candidates if not self._numbers_in(int(k))[searched].all()]
        if not empty:
            return ()
        if on_bad_chunk == "raise":
            raise BadDataError(
                f"frames {listed(empty)} (counted from 0) hold no finite number; "
                "on_bad_chunk='exclude' leaves such frames out, keep masks bad frames"
            )
        frames = self.frames.copy()
        frames[empty] = False
        if int(frames.sum()) < 3:
            raise BadDataError(f"{len(empty)} frames hold no finite number; fewer than 3 are left")
        self.frames = frames
        self.sample = self._sample()
        return tuple(empty)

    def _sample(self) -> RowSample:
        """Rows of frames that count."""
        raise NotImplementedError

    def _numbers_in(self, frame: int) -> NDArray[np.bool_]:
        """[n_phi]: whether the frame's row holds a finite number off the diagonal."""
        raise NotImplementedError

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        """The point furthest from its angle's center: angle, frames i and j, value.

        One run over the data, in constant memory; None where they cannot be searched.
        """
        del centers
        return None

    def mirrored(self, sigma: Array | Source, symmetric: Any) -> NDArray[np.bool_]:
        """[n_phi]: whose data and sigma are mirrored, as given or as found."""
        n_phi = self.shape[0]
        if symmetric == "auto":
            found = self._find_mirrored()
            if not isinstance(sigma, np.ndarray):
                found &= mirrored_angles(sigma)
        else:
            found = np.full(n_phi, bool(symmetric))
        self._all_mirrored = bool(found.all())
        return found

    def _find_mirrored(self) -> NDArray[np.bool_]:
        raise NotImplementedError

    def way(
        self, context: PassContext, bad: BadBlocks, streaming: StreamingOptions, **told: Any
    ) -> Pass:
        """The passes over these data."""
        raise NotImplementedError

    @property
    def n_batches(self) -> int:
        """Chunks that the kernel was given so far."""
        return sum(way.n_chunks for way in self.ways)


class HostData(FitData):
    """Data behind a `Source`."""

    def __init__(
        self,
        source: Source,
        frames: NDArray[np.bool_],
        strategy: str | None,
        chunk_points: int | None,
    ) -> None:
        super().__init__(frames)
        self.shape = source.shape
        self.step_zero = quantization(source)
        self.source = source
        self.sample = self._sample()
        n_phi, n, _ = source.shape
        in_memory = bool(getattr(source, "in_memory", False))
        itemsize = kernel_dtype(source.dtype).itemsize
        self.strategy = (
            choose_strategy(n_phi * n * n, n_phi=n_phi, itemsize=itemsize, in_memory=in_memory)
            if strategy is None
            else parse_strategy(strategy)
        )
        self.chunk_rows = chunk_rows(n, ROW_BLOCK, chunk_points or CHUNK_POINTS)
        if not in_memory and self.strategy is not Strategy.STREAMING:
            try:
                source = LoadedSource(source)
            except OSError:
                # Chunks know how to go on without what cannot be read.
                self.strategy = Strategy.STREAMING
        self.source = source
        self.dtype = source.dtype

    def _sample(self) -> RowSample:
        return read_sample(self.source, self.frames, _bands(self.shape))

    def _find_mirrored(self) -> NDArray[np.bool_]:
        return mirrored_angles(self.source)

    def _numbers_in(self, frame: int) -> NDArray[np.bool_]:
        away = self.frames & (np.arange(self.shape[1]) != frame)
        found = np.ones(self.shape[0], bool)
        for angle in range(self.shape[0]):
            # Rows that cannot be read are met again in the fit.
            with contextlib.suppress(OSError):
                row = self.source.read(angle, frame, frame + 1)[0]
                found[angle] = np.isfinite(row[away].astype(np.float64)).any()
        return found

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        n_phi, n, _ = self.shape
        rows = max(1, CHUNK_POINTS // 8 // n)
        found, furthest = None, -1.0
        for angle in range(n_phi):
            if not np.isfinite(centers[angle]):
                continue
            for first in range(0, n, rows):
                try:
                    part = values(self.source, self.source.read(angle, first, min(first + rows, n)))
                except OSError:
                    continue
                i = np.arange(len(part))
                far = np.abs(part - centers[angle])
                far[i, first + i] = -1.0
                far[~np.isfinite(far)] = -1.0
                far[:, ~self.frames] = -1.0
                far[~self.frames[first : first + len(part)]] = -1.0
                row, column = np.unravel_index(int(far.argmax()), far.shape)
                if far[row, column] > furthest:
                    furthest = float(far[row, column])
                    found = angle, first + int(row), int(column), float(part[row, column])
        return found

    def way(
        self, context: PassContext, bad: BadBlocks, streaming: StreamingOptions, **told: Any
    ) -> Pass:
        chunks = chunks_of(self.shape, self.chunk_rows, self.frames)
        chunked = ChunkedPass(
            context, self.source, chunks, bad, streaming, mirrored=self._all_mirrored, **told
        )
        self.ways.append(chunked)
        if self.strategy in (Strategy.CHUNKED, Strategy.STREAMING) or bad.excluded:
            return chunked
        assert isinstance(self.source, StackSource)
        array = self.source.array
        wanted = kernel_dtype(array.dtype)
        whole = WholePass(context, jax.device_put(np.ascontiguousarray(array, wanted)))
        self.ways.append(whole)
        return _WholeFirst(whole, bad, chunked)


class _WholeFirst:
    """All data in one call, until it turns out that some of them must be left out.

    Without chunks, as of data on devices, that fails the fit in its first pass; later it is the
    model that overflows.
    """

    def __init__(self, whole: WholePass, bad: BadBlocks, chunked: Pass | None = None) -> None:
        self._whole, self._bad, self._chunked = whole, bad, chunked
        self._first = True

    def states(self, point: PassPoint, x: Array, partial: PartialPass | None = None) -> Array:
        if self._chunked is None or not (self._bad.excluded or partial is not None):
            states = self._whole.states(point, x)
            finite = np.isfinite(states).all(axis=1)
            first, self._first = self._first, False
            if finite.all() or (self._chunked is None and not first):
                return states
            if self._chunked is None:
                raise BadDataError(
                    f"the sums of angles {np.flatnonzero(~finite).tolist()} are not finite: data on"
                    " devices must not hold NaN (a NumPy array or file may; or mask frames with "
                    "keep)"
                )
        return self._chunked.states(point, x, partial)


class DeviceData(FitData):
    """A ``jax.Array``, on one device or sharded over several, in one process or more."""

    def __init__(
        self, data: jax.Array, frames: NDArray[np.bool_], step_zero: tuple[float, float]
    ) -> None:
        super().__init__(frames)
        if data.ndim != 3:
            raise ValueError(f"data has the shape {data.shape}; wanted [n_phi, n, n]")
        if data.dtype not in DATA_DTYPES:
            data = data.astype(jnp.float64)
        n_phi, n, _ = data.shape
        self.shape = (n_phi, n, n)
        self.dtype = data.dtype
        self.step_zero = step_zero
        self.strategy = Strategy.STANDARD if data.size < 10**6 else Strategy.LARGE
        self.chunk_rows = n
        self._data = data
        self._numbers: NDArray[np.bool_] | None = None
        if len(data.sharding.device_set) > 1:
            spec: Any = getattr(data.sharding, "spec", None)
            if spec is None or (len(spec) > 2 and spec[2] is not None):
                raise ValueError(
                    f"data has the sharding {data.sharding}; wanted a NamedSharding over angles or "
                    "rows, such as P('devices') or P(None, 'devices')"
                )
            # With Auto axes, where a gather of rows needs no words about its result's sharding.
            given: Any = data.sharding
            mesh = given.mesh
            kinds = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
            mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
            self.sharding = jax.NamedSharding(mesh, spec)
            self._data = jax.device_put(data, self.sharding)
        self.sample = self._sample()

    def _sample(self) -> RowSample:
        rows = sample_rows(self.frames, _bands(self.shape))
        taken = self._replicated(lambda d: d[:, rows].astype(jnp.float64))
        step, zero = self.step_zero
        return RowSample(rows, zero + step * taken, self.frames)

    def _replicated(self, function: Callable[[Any], Any]) -> NDArray[Any]:
        """function(data) on the host of every process."""
        where = None
        if self.sharding is not None:
            where = jax.NamedSharding(self.sharding.mesh, jax.P())
        return np.asarray(jax.jit(function, out_shardings=where)(self._data))

    def _find_mirrored(self) -> NDArray[np.bool_]:
        def equal(d: Any) -> Any:
            turned = jnp.swapaxes(d, 1, 2)
            same = d == turned
            if jnp.issubdtype(d.dtype, jnp.floating):
                same |= jnp.isnan(d) & jnp.isnan(turned)
            return same.all((1, 2))

        return np.array(self._replicated(equal))

    def _numbers_in(self, frame: int) -> NDArray[np.bool_]:
        if self._numbers is None:
            away = self.frames & ~np.eye(self.shape[1], dtype=bool)
            self._numbers = self._replicated(lambda d: (jnp.isfinite(d) & away).any(2))
        return np.asarray(self._numbers[:, frame])

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        step, zero = self.step_zero
        searched = np.isfinite(centers)
        counts = self.frames[:, None] & self.frames & ~np.eye(self.shape[1], dtype=bool)

        def furthest(d: Any) -> Any:
            """[n_phi, n, 2]: column and value of what is furthest off in each row."""
            value = zero + step * d.astype(jnp.float64)
            far = jnp.abs(value - jnp.where(searched, centers, 0.0)[:, None, None])
            far = jnp.where(counts & jnp.isfinite(far), far, -1.0)
            column = far.argmax(2, keepdims=True)
            return jnp.concatenate([column, jnp.take_along_axis(value, column, 2)], 2)

        columns, found = np.moveaxis(self._replicated(furthest), 2, 0)
        far = np.abs(found - centers[:, None])
        far[~searched] = far[:, ~self.frames] = -1.0
        angle, row = np.unravel_index(int(far.argmax()), far.shape)
        return int(angle), int(row), int(columns[angle, row]), float(found[angle, row])

    def way(
        self, context: PassContext, bad: BadBlocks, streaming: StreamingOptions, **told: Any
    ) -> Pass:
        whole = WholePass(context, self._data)
        self.ways.append(whole)
        return _WholeFirst(whole, bad)


def open_data(
    data: Any,
    shape: tuple[int, int, int],
    frames: NDArray[np.bool_],
    strategy: str | None,
    chunk_points: int | None,
    step_zero: tuple[float, float] | None,
) -> FitData:
    """Opens what the user gave as data of a model with `shape` = (n_phi, n_t, n_t).

    Raises:
      ValueError: for another shape, uint16 data without (step, zero), (step, zero) with other data,
        or matrices of which one triangle is empty.
      TypeError: for something that is no data.
    """
    if isinstance(data, jax.Array):
        devices: Any = data.sharding.device_set
        if len(devices) == 1 and next(iter(devices)).platform == "cpu":
            data = np.asarray(data)
    source = None if isinstance(data, jax.Array) else as_source(data, quantization=step_zero)
    held: Any = data if source is None else source
    if tuple(held.shape) != shape:
        raise ValueError(
            f"data has the shape {tuple(held.shape)}; wanted {shape}, [n_phi, n_t, n_t] of the "
            "model's geometry (its phi and t)"
        )
    dtype = np.dtype(held.dtype)
    if step_zero is not None and dtype != np.uint16:
        raise ValueError(f"quantization is given for data of {dtype}; wanted uint16 data")
    known = step_zero if source is None else getattr(source, "quantization", None)
    if dtype == np.uint16 and known is None:
        raise ValueError(
            "data are uint16, and quantization is missing; give quantization=(step, zero), where a "
            "value is zero + step * data (or the attribute `quantization` of a source)"
        )
    if known is not None and not (
        np.shape(known) == (2,) and np.isfinite(known).all() and known[0]
    ):
        raise ValueError(f"quantization is {known!r}; wanted (step, zero), step not 0")
    if dtype.kind not in "fiu":
        raise ValueError(f"data has the dtype {dtype}; wanted real numbers")
    opened: FitData
    if source is None:
        opened = DeviceData(data, frames, step_zero or (1.0, 0.0))
    else:
        opened = HostData(source, frames, strategy, chunk_points)
    _check_triangles(opened)
    return opened


def _check_triangles(data: FitData) -> None:
    """Raises ValueError for a matrix of which one triangle is zero, as far as it was sampled."""
    sample = data.sample
    column = np.arange(sample.values.shape[2])[None, :]
    counts = sample.good[None, :] & sample.good[sample.rows][:, None]
    # Quantized, nothing is stored as 0 too.
    nothing = data.step_zero[1] if data.dtype == np.uint16 else 0.0
    for angle, shown in enumerate(sample.values):
        # Rows that could not be read are NaN as a whole.
        seen = counts & ~np.isnan(shown).all(axis=1)[:, None]
        empty = np.isnan(shown) | (shown == nothing)
        below, above = (
            seen & (column < sample.rows[:, None]),
            seen & (column > sample.rows[:, None]),
        )
        if not (below.any() and above.any()):
            continue
        if empty[below].all() != empty[above].all():
            where = "above" if empty[below].all() else "below"
            if np.isnan(shown[below if where == "above" else above]).all():
                # Not fitted: rows that hold NaN are left out, and named.
                continue
            raise ValueError(
                f"data holds numbers only {where} the diagonal at angle {angle}; wanted both "
                "triangles, c2 + c2.T with the diagonal once (load_aps and ApsFile read files of "
                "one triangle so)"
            )
