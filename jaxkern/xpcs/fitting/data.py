"""The data of a fit: on the host, in files or on devices, and the passes over them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files import sources
from jaxkern.xpcs.fitting import sampling
from jaxkern.xpcs.fitting.options import (
    CHUNK_POINTS,
    Strategy,
    StreamingOptions,
    choose_strategy,
    chunk_rows,
    parse_strategy,
)
from jaxkern.xpcs.model.ops import DATA_DTYPES
from jaxkern.xpcs.model.twin import ROW_BLOCK

Array = NDArray[np.float64]


class BadDataError(ValueError):
    """Data that hold NaN or cannot be read, if the fit does not exclude them."""


@dataclass(frozen=True)
class Chunk:
    """Rows first_row .. stop_row of one angle."""

    angle: int
    first_row: int
    stop_row: int


@dataclass
class BadBlocks:
    """Blocks of `ROW_BLOCK` rows that are excluded, as pairs (angle, block), and the reasons."""

    total: int
    excluded: set[tuple[int, int]] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)

    @property
    def success_rate(self) -> float:
        return 1.0 - len(self.excluded) / self.total

    def touch(self, chunk: Chunk) -> bool:
        blocks = range(chunk.first_row // ROW_BLOCK, -(-chunk.stop_row // ROW_BLOCK))
        return any((chunk.angle, block) in self.excluded for block in blocks)

    def check_any_left(self) -> None:
        if len(self.excluded) >= self.total:
            raise BadDataError(f"every row is excluded: {self.reasons[0]}, and so on")


class DeviceSource:
    """A ``jax.Array``, which may be sharded; every process reads all rows on its host."""

    def __init__(self, data: jax.Array, quantization: tuple[float, float] | None) -> None:
        if data.dtype not in DATA_DTYPES:
            data = data.astype(jnp.float64)
        n_phi, n, _ = data.shape
        self.shape, self.dtype, self.quantization = (n_phi, n, n), data.dtype, quantization
        self.sharding: Any = None
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
            data = jax.device_put(data, self.sharding)
        self.array = data
        replicated = None if self.sharding is None else jax.NamedSharding(mesh, jax.P())
        self._rows = jax.jit(lambda d, angle, rows: d[angle][rows], out_shardings=replicated)
        self._mirrored = jax.jit(_equal_transposes, out_shardings=replicated)

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        return self.read_rows(angle, np.arange(first_row, stop_row))

    def read_rows(self, angle: int, rows: NDArray[np.intp]) -> NDArray[Any]:
        return np.asarray(self._rows(self.array, angle, rows))

    @property
    def symmetric(self) -> NDArray[np.bool_]:
        return np.array(self._mirrored(self.array))


def _equal_transposes(data: Any) -> Any:
    transpose = jnp.swapaxes(data, 1, 2)
    same = data == transpose
    if jnp.issubdtype(data.dtype, jnp.floating):
        same |= jnp.isnan(data) & jnp.isnan(transpose)
    return same.all((1, 2))


class FitData:
    """Data of a fit; `open_data` creates one and nothing changes it afterwards.

    Attributes:
      source: in the host's memory, in files that are read in every pass, or on devices.
      shape, dtype, streaming: of the data [n_phi, n, n], and the options.
      sample, strategy: rows for estimates, and the `Strategy` of the passes.
      frames: mask [n] of the frames that are used at any angle.
      keep: `frames`, or a mask [n_phi, n] if the used frames differ between angles.
      empty_frames: frames without finite numbers at some angle, where `keep` excludes them.
    """

    def __init__(
        self, source: sources.Source, frames: NDArray[np.bool_], streaming: StreamingOptions
    ) -> None:
        self.source, self.shape, self.streaming = source, source.shape, streaming
        self.frames = self.keep = frames
        self.empty_frames: tuple[int, ...] = ()
        self.sample = sampling.read_sample(source, frames)
        self.strategy = Strategy.MEMORY
        if not isinstance(source, DeviceSource):
            self._choose_strategy()
        self.dtype = self.source.dtype
        _check_triangles(self)
        self._exclude_empty_frames()

    def _choose_strategy(self) -> None:
        """Choose the strategy, and load data that are not streamed from a file."""
        n_phi, n, _ = self.shape
        itemsize = sources.kernel_dtype(self.source.dtype).itemsize
        self.strategy, load = choose_strategy(n_phi * n * n, n_phi=n_phi, itemsize=itemsize)
        if self.streaming.strategy is not None:
            self.strategy = parse_strategy(self.streaming.strategy)
            load = self.strategy is Strategy.MEMORY
        if load and not getattr(self.source, "in_memory", False):
            try:
                self.source = sources.LoadedSource(self.source)
            except OSError:
                # Passes in chunks can exclude rows that cannot be read.
                self.strategy = Strategy.STREAM

    def _exclude_empty_frames(self) -> None:
        """Mask frames at the angles where they contain no finite number."""
        candidates = sampling.frames_without_numbers(self.sample)
        if not candidates.size:
            return
        searched: NDArray[np.bool_] = np.logical_or.reduce(np.isfinite(self.sample.values), (1, 2))
        finite = np.array([self._finite_in(int(k)) for k in candidates]) | ~searched
        empty = tuple(int(k) for k in candidates[~finite.all(axis=1)])
        if not empty:
            return
        if self.streaming.on_bad_chunk == "raise":
            raise BadDataError(
                f"frames {sampling.format_frames(empty)} (counted from 0) have no finite number; "
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
        self.frames, self.empty_frames = frames, empty
        self.keep = keep if (keep != frames).any() else frames
        self.sample = sampling.read_sample(self.source, frames)

    def _finite_in(self, frame: int) -> NDArray[np.bool_]:
        """True for angles [n_phi] where a frame's row has a finite number off the diagonal."""
        used = self.frames & (np.arange(self.shape[1]) != frame)
        result = np.ones(self.shape[0], bool)
        for angle in range(self.shape[0]):
            # The passes report rows that cannot be read.
            with contextlib.suppress(OSError):
                row = self.source.read(angle, frame, frame + 1)[0]
                result[angle] = np.isfinite(row[used].astype(np.float64)).any()
        return result

    def bad_blocks(self, noise: sampling.Noise) -> BadBlocks:
        """Return the row blocks of this fit, with those of angles without signal excluded."""
        silent = np.flatnonzero(noise.per_angle == 0).tolist() if noise.estimated else []
        n_phi, n, _ = self.shape
        rows = range(0, n, ROW_BLOCK)
        used = [b for b, first in enumerate(rows) if self.frames[first : first + ROW_BLOCK].any()]
        bad = BadBlocks(n_phi * len(used))
        for angle in silent:
            bad.excluded |= {(angle, block) for block in used}
            value = np.nanmedian(self.sample.values[angle])
            bad.reasons.append(f"angle {angle} has the value {value:g} at every sampled point")
        bad.check_any_left()
        return bad

    def mirrored(self, sigma: Array | sources.Source) -> NDArray[np.bool_]:
        """True for angles [n_phi] with symmetric data and sigma; compared if symmetric="auto"."""
        if self.streaming.symmetric != "auto":
            return np.full(self.shape[0], bool(self.streaming.symmetric))
        result = sampling.mirrored_angles(self.source)
        if not isinstance(sigma, np.ndarray):
            result &= sampling.mirrored_angles(sigma)
        return result

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        """Return angle, frames i and j, and value of the point furthest from its angle's center.

        Angles with a center of NaN are skipped.
        """
        n = self.shape[1]
        rows = max(1, CHUNK_POINTS // 8 // n)
        furthest, largest = None, -1.0
        for angle in np.flatnonzero(np.isfinite(centers)).tolist():
            for first in range(0, n, rows):
                try:
                    stored = self.source.read(angle, first, min(first + rows, n))
                except OSError:
                    continue
                part = sources.values(self.source, stored)
                i = np.arange(len(part))
                distance = np.abs(part - centers[angle])
                used = np.isfinite(distance) & self.frames & self.frames[first + i, None]
                used[i, first + i] = False
                distance[~used] = -1.0
                row, column = np.unravel_index(int(distance.argmax()), distance.shape)
                if distance[row, column] > largest:
                    largest = float(distance[row, column])
                    furthest = angle, first + int(row), int(column), float(part[row, column])
        return furthest

    def chunks(self) -> list[Chunk] | None:
        """Return the chunks of a pass; None for data on devices."""
        if isinstance(self.source, DeviceSource):
            return None
        n_phi, n, _ = self.shape
        rows = chunk_rows(n, self.streaming.chunk_points or CHUNK_POINTS)
        return [
            Chunk(angle, first, min(first + rows, n))
            for angle in range(n_phi)
            for first in range(0, n, rows)
            if self.frames[first : first + rows].any()
        ]

    def device_array(self) -> Any:
        """Return the data on devices for passes of one call; None for the strategy "stream"."""
        if isinstance(self.source, DeviceSource):
            return self.source.array
        if self.strategy is Strategy.STREAM:
            return None
        assert isinstance(self.source, sources.StackSource)
        return jax.device_put(
            np.ascontiguousarray(self.source.array, sources.kernel_dtype(self.dtype))
        )


def open_data(
    data: Any, shape: tuple[int, int, int], frames: NDArray[np.bool_], streaming: StreamingOptions
) -> FitData:
    """Open the argument `data` of a fit of a model with `shape` = (n_phi, n_t, n_t)."""
    step_zero = streaming.quantization
    if isinstance(data, jax.Array):
        devices: Any = data.sharding.device_set
        if len(devices) == 1 and next(iter(devices)).platform == "cpu":
            data = np.asarray(data)
    on_device = isinstance(data, jax.Array)
    source: Any = data if on_device else sources.as_source(data, quantization=step_zero)
    known = step_zero if on_device else getattr(source, "quantization", None)
    if tuple(source.shape) != shape:
        raise ValueError(f"data: expected {shape} of the geometry, got {tuple(source.shape)}")
    dtype = np.dtype(source.dtype)
    if step_zero is not None and dtype != np.uint16:
        raise ValueError(f"quantization: expected None or uint16 data, got {dtype}")
    step: Any = (1.0, 0.0) if known is None and dtype != np.uint16 else known
    if np.shape(step) != (2,) or not (np.isfinite(step).all() and step[0]):
        raise ValueError(
            "quantization: expected (step, zero) with step != 0 for uint16 data, got "
            f"{known!r}; a value is zero + step * data (or set the attribute of a source)"
        )
    if dtype.kind not in "fiu":
        raise ValueError(f"data: expected real numbers, got {dtype}")
    return FitData(DeviceSource(data, step_zero) if on_device else source, frames, streaming)


def _check_triangles(data: FitData) -> None:
    """Raise ValueError if the sampled rows of a matrix are zero in exactly one triangle."""
    sample = data.sample
    column = np.arange(sample.values.shape[2])[None, :]
    used = sample.good[None, :] & sample.good[sample.rows][:, None]
    # For quantized data, the value that a stored 0 represents.
    zero = sources.quantization(data.source)[1] if data.dtype == np.uint16 else 0.0
    for angle, rows in enumerate(sample.values):
        # Rows that could not be read contain NaN only.
        known = used & ~np.isnan(rows).all(axis=1)[:, None]
        empty = np.isnan(rows) | (rows == zero)
        below = known & (column < sample.rows[:, None])
        above = known & (column > sample.rows[:, None])
        if not (below.any() and above.any()):
            continue
        for side, this, other in (("above", above, below), ("below", below, above)):
            # The passes exclude and report rows with NaN.
            if empty[other].all() and not empty[this].all() and not np.isnan(rows[other]).all():
                raise ValueError(
                    "data: expected both triangles, c2 + c2.T with the diagonal once, got numbers "
                    f"only {side} the diagonal at angle {angle} (load_aps and ApsFile complete "
                    "files with one triangle)"
                )
