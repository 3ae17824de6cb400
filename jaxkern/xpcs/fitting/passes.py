"""Passes over the data: in one call, or in chunks that are read ahead of the kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import anonymous_bytes
from jaxkern.xpcs.files.sources import (
    LoadedSource,
    RowBuffers,
    Source,
    StackSource,
    is_zero_copy,
    kernel_dtype,
    values,
)
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.pass_program import PassProgram
from jaxkern.xpcs.model.twin import SIGMA_FLOOR

Array = NDArray[np.float64]

# Larger numbers are not measurements, and their squares may overflow.
MAX_VALUE = 1e100


class BadDataError(ValueError):
    """Data that hold NaN or cannot be read, if the fit does not exclude them."""


@dataclass(frozen=True)
class PassPoint:
    """A point at which a pass is evaluated: physics [p], contrast [n_phi] and offset [n_phi]."""

    physics: Array
    contrast: Array
    offset: Array


@dataclass(frozen=True)
class PassContext:
    """The operands that all passes of a fit share.

    Attributes:
      program: the compiled programs.
      sigma: [n_phi], or a source of [n_phi, n, n].
      keep: 1 for used frames [n]; [n_phi, n] if these differ between angles.
      f_scale: as in `SolverOptions`.
      step_zero: step and zero of quantized data.
    """

    program: PassProgram
    sigma: Array | Source
    keep: NDArray[np.uint8]
    f_scale: float
    step_zero: tuple[float, float]

    def zero_states(self) -> Array:
        """Return the states [n_phi, S] before the first chunk."""
        return np.zeros((self.program.n_phi, self.program.state_size))

    def operands(self, point: PassPoint, omitted: NDArray[np.bool_] | None) -> dict[str, Any]:
        """Return the operands of the kernel that are constant in a pass."""
        keep = self.keep
        if omitted is not None:
            keep = np.where(omitted, 0, keep).astype(keep.dtype)
        return {
            "contrast": point.contrast,
            "offset": point.offset,
            "keep": keep,
            "f_scale": np.float64(self.f_scale),
            "quantization": np.array(self.step_zero),
        }


class SingleCallPass:
    """Passes of one kernel call over data on the device, or sharded over devices."""

    def __init__(self, context: PassContext, data: Any) -> None:
        self._context = context
        self._data = data
        sigma = context.sigma
        if isinstance(sigma, np.ndarray):
            self._sigma: Any = sigma
        else:
            source = sigma if isinstance(sigma, StackSource) else LoadedSource(sigma)
            self._sigma = jax.device_put(source.array.astype(np.float64), data.sharding)

    def states(self, point: PassPoint, omitted: NDArray[np.bool_] | None) -> Array:
        """Return the states [n_phi, S] at a point, without the frames `omitted` [n]."""
        program = self._context.program
        at = {
            **self._context.operands(point, omitted),
            "angle": np.int32(0),
            "first_row": np.int32(0),
            "data": self._data,
            "sigma": self._sigma,
            "initial": self._context.zero_states(),
        }
        if program.sharding is not None:
            return program.accumulate_sharded(point.physics, at)
        return program.accumulate(program.tables(point.physics), at)


@dataclass(frozen=True)
class Chunk:
    """Rows first_row .. stop_row of one angle."""

    angle: int
    first_row: int
    stop_row: int


def chunks_of(shape: tuple[int, int, int], rows: int, frames: NDArray[np.bool_]) -> list[Chunk]:
    """Return the chunks of a pass in order, skipping those without used frames."""
    n_phi, n, _ = shape
    return [
        Chunk(angle, first, min(first + rows, n))
        for angle in range(n_phi)
        for first in range(0, n, rows)
        if frames[first : first + rows].any()
    ]


@dataclass
class BadBlocks:
    """Row blocks that are excluded from the passes, as (angle, block) pairs, and the reasons."""

    row_block: int
    total: int
    excluded: set[tuple[int, int]] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)

    @property
    def success_rate(self) -> float:
        return 1.0 - len(self.excluded) / self.total

    def in_chunk(self, chunk: Chunk) -> list[int]:
        """Return the excluded blocks of a chunk."""
        blocks = range(chunk.first_row // self.row_block, -(-chunk.stop_row // self.row_block))
        return [block for block in blocks if (chunk.angle, block) in self.excluded]

    def check_any_left(self) -> None:
        """Raise BadDataError if every block is excluded."""
        if len(self.excluded) >= self.total:
            raise BadDataError(f"every row is excluded: {self.reasons[0]}, and so on")


class ChunkedPass:
    """Passes in chunks; a thread reads the next chunk while the kernel works on the current one.

    Chunks that are in memory in the layout of the kernel need no reading and no thread.

    Rows that hold NaN, or that cannot be read after `streaming.retries` more attempts, are excluded
    in blocks of `bad.row_block` rows, or raise `BadDataError`, depending on `streaming`.
    """

    def __init__(
        self,
        context: PassContext,
        source: Source,
        chunks: list[Chunk],
        bad: BadBlocks,
        streaming: StreamingOptions,
        *,
        mirrored: bool,
        on_chunk: Callable[[int, int], None],
    ) -> None:
        self._context, self._source, self._chunks, self._bad = context, source, chunks, bad
        self._streaming, self._mirrored, self._on_chunk = streaming, mirrored, on_chunk
        self._in_memory = bool(getattr(source, "in_memory", False))
        self._read_ahead = (RowBuffers(touch=not self._in_memory), RowBuffers())
        # Retries use separate buffers, because the thread may be reading ahead.
        self._retry = (RowBuffers(), RowBuffers())
        self.peak_bytes = 0
        self.n_chunks = 0

    def states(self, point: PassPoint, omitted: NDArray[np.bool_] | None) -> Array:
        """Return the states [n_phi, S] at a point, without the frames `omitted` [n]."""
        context = self._context
        states = context.zero_states()
        operands = context.operands(point, omitted)
        keep = operands["keep"]
        if isinstance(context.sigma, np.ndarray):
            operands["sigma"] = context.sigma
        # Copied to the device once a pass, not once a chunk.
        operands = jax.device_put(operands)
        call = _KernelCall(context.program, context.program.tables(point.physics), operands, keep)
        with ThreadPoolExecutor(1, "jaxkern-read") as reader:
            ahead = self._submit(reader, 0)
            for k, chunk in enumerate(self._chunks):
                loaded = ahead.result() if isinstance(ahead, Future) else ahead
                # Two buffers: the next chunk is read while the kernel uses this one.
                ahead = self._submit(reader, k + 1)
                states[chunk.angle] = self._run(call, chunk, loaded, states[chunk.angle])
                self.n_chunks += 1
                if k % 16 == 0:
                    self.peak_bytes = max(self.peak_bytes, anonymous_bytes())
                self._on_chunk(k + 1, len(self._chunks))
        self._bad.check_any_left()
        return states

    def _submit(self, reader: ThreadPoolExecutor, k: int) -> Any:
        """Return a chunk in memory, the future of one to be read, or None for one to skip."""
        if k >= len(self._chunks) or self._bad.in_chunk(self._chunks[k]):
            return None
        chunk = self._chunks[k]
        if self._in_memory and isinstance(self._context.sigma, np.ndarray):
            rows = self._source.read(chunk.angle, chunk.first_row, chunk.stop_row)
            if is_zero_copy(rows):
                return rows, None
        return reader.submit(self._load, chunk, self._read_ahead)

    def _load(
        self, chunk: Chunk, buffers: tuple[RowBuffers, RowBuffers]
    ) -> tuple[NDArray[Any], Any] | OSError:
        """Return rows and sigma of a chunk in the kernel's layout, or the error of reading them."""
        where = (chunk.angle, chunk.first_row, chunk.stop_row)
        try:
            rows = buffers[0].ready(
                self._source.read(*where),
                upper_from=chunk.first_row if self._mirrored else None,
                row_block=self._bad.row_block,
            )
            sigma = self._context.sigma
            if isinstance(sigma, np.ndarray):
                return rows, None
            return rows, buffers[1].ready(np.asarray(sigma.read(*where), np.float64))
        except OSError as error:
            return error

    def _run(self, call: _KernelCall, chunk: Chunk, loaded: Any, initial: Array) -> Array:
        """Return the state after a chunk, with retries and without bad blocks."""
        for attempt in range(self._streaming.retries + 1):
            if loaded is None and self._bad.in_chunk(chunk):
                break
            if attempt > 0:
                time.sleep(0.02 * 4**attempt)
                loaded = self._load(chunk, self._retry)
            if isinstance(loaded, OSError):
                continue
            rows, sigma = loaded
            state = call(chunk, rows, sigma, initial)
            if np.isfinite(state).all() or not self._has_bad_points(chunk, rows, sigma, call.keep):
                # Finite, or the model overflows at this point, which the solver handles.
                return state
        return self._without_bad_blocks(call, chunk, initial)

    def _has_bad_points(
        self, chunk: Chunk, rows: NDArray[Any], sigma: Any, keep: NDArray[np.uint8]
    ) -> bool:
        """True if a point with weight is not finite, or larger than `MAX_VALUE`."""
        block = self._bad.row_block
        for first in range(0, len(rows), block):
            part = values(self._source, rows[first : first + block])
            used = self._used_points(chunk.angle, chunk.first_row + first, len(part), keep)
            if sigma is not None:
                deviation = np.asarray(sigma[first : first + block])
                used &= ~(deviation <= SIGMA_FLOOR)
                part = part + deviation
            if not (np.abs(part[used]) < MAX_VALUE).all():
                return True
        return False

    def _used_points(
        self, angle: int, first_row: int, count: int, keep: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        used = keep.astype(bool)
        used = used[angle] if used.ndim == 2 else used
        row = first_row + np.arange(count)[:, None]
        column = np.arange(len(used))[None, :]
        side = column > row if self._mirrored else column != row
        return np.asarray(side & used[None, :] & used[row])

    def _without_bad_blocks(self, call: _KernelCall, chunk: Chunk, initial: Array) -> Array:
        """Accumulate the usable blocks of a chunk; a sigma of 0 excludes the others."""
        context, block = self._context, self._bad.row_block
        count, n = chunk.stop_row - chunk.first_row, context.keep.shape[-1]
        rows = np.zeros((count, n), kernel_dtype(self._source.dtype))
        sigma = np.zeros((count, n))
        for first in range(0, count, block):
            key = (chunk.angle, (chunk.first_row + first) // block)
            last = min(first + block, count)
            if key in self._bad.excluded:
                continue
            part = Chunk(chunk.angle, chunk.first_row + first, chunk.first_row + last)
            loaded = self._load(part, self._retry)
            reason = None
            if isinstance(loaded, OSError):
                reason = f"cannot be read ({loaded})"
            elif self._has_bad_points(part, *loaded, call.keep):
                reason = "contain numbers that are not finite or exceed 1e100"
            if reason is not None or isinstance(loaded, OSError):
                self._exclude(
                    key,
                    f"angle {chunk.angle}, rows {part.first_row} to {part.stop_row - 1} {reason}",
                )
                continue
            rows[first:last] = loaded[0]
            fixed = context.sigma
            sigma[first:last] = fixed[chunk.angle] if isinstance(fixed, np.ndarray) else loaded[1]
        return call(chunk, rows, sigma, initial)

    def _exclude(self, key: tuple[int, int], reason: str) -> None:
        if self._streaming.on_bad_chunk == "raise":
            raise BadDataError(
                f"{reason}; on_bad_chunk='exclude' excludes such rows, `keep` masks bad frames"
            )
        self._bad.excluded.add(key)
        self._bad.reasons.append(reason)


@dataclass(frozen=True)
class _KernelCall:
    """The kernel with the operands of one pass."""

    program: PassProgram
    tables: tuple[Any, Any, Any, Any]
    operands: dict[str, Any]
    keep: NDArray[np.uint8]

    def __call__(self, chunk: Chunk, rows: Any, sigma: Any, initial: Array) -> Array:
        """Return the state after a chunk; sigma None for that of `operands`."""
        full = {
            **self.operands,
            "angle": np.int32(chunk.angle),
            "first_row": np.int32(chunk.first_row),
            "data": jax.device_put(rows[None]),
            "initial": initial[None],
        }
        if sigma is not None:
            full["sigma"] = jax.device_put(sigma[None])
        state: Array = self.program.accumulate(self.tables, full)[0]
        return state


class PassRunner:
    """Runs and counts the passes of a fit.

    The data are passed to the kernel in one call as long as no rows have to be excluded, and in
    chunks afterwards. Data on devices have no chunks: NaN in their first pass raises
    `BadDataError`, and later means that the model overflows.

    Args:
      bad: blocks that are excluded; passes add to them.
      program: the compiled programs; their compilation time is not counted.
      single_call: passes with one kernel call, or None.
      chunked: passes in chunks, or None.
    """

    def __init__(
        self,
        bad: BadBlocks,
        program: PassProgram,
        single_call: SingleCallPass | None,
        chunked: ChunkedPass | None,
    ) -> None:
        self.bad = bad
        self._program, self._single_call, self._chunked = program, single_call, chunked
        self._first = True
        self._single_calls = 0
        self.seconds = 0.0  # without compilation
        self._peak = anonymous_bytes()

    @property
    def n_batches(self) -> int:
        """Number of kernel calls, one for each chunk."""
        return self._single_calls + (0 if self._chunked is None else self._chunked.n_chunks)

    @property
    def peak_bytes(self) -> int:
        """Largest anonymous memory of the process that was measured."""
        return max(self._peak, 0 if self._chunked is None else self._chunked.peak_bytes)

    def states(self, point: PassPoint, omitted: NDArray[np.bool_] | None = None) -> Array:
        """Return the states [n_phi, S] at a point, without the frames `omitted` [n]."""
        start, compiled = time.perf_counter(), self._program.compile_seconds
        states = self._states(point, omitted)
        self.seconds += time.perf_counter() - start - (self._program.compile_seconds - compiled)
        self._peak = max(self._peak, anonymous_bytes())
        return states

    def _states(self, point: PassPoint, omitted: NDArray[np.bool_] | None) -> Array:
        if self._single_call is not None and (self._chunked is None or not self.bad.excluded):
            self._single_calls += 1
            states = self._single_call.states(point, omitted)
            finite = np.isfinite(states).all(axis=1)
            first, self._first = self._first, False
            if finite.all() or (self._chunked is None and not first):
                return states
            if self._chunked is None:
                raise BadDataError(
                    "data on devices: expected no NaN, got sums that are not finite at the angles "
                    f"{np.flatnonzero(~finite).tolist()}; pass a NumPy array or a file, or mask "
                    "frames with `keep`"
                )
        assert self._chunked is not None
        return self._chunked.states(point, omitted)
