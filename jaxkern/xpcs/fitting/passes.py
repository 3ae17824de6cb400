"""One pass over the data: in one call, or chunk by chunk with reading ahead of the kernel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

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
from jaxkern.xpcs.fitting.checkpoint import PartialPass
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.pass_program import PassProgram
from jaxkern.xpcs.model.twin import SIGMA_FLOOR

Array = NDArray[np.float64]

# What is larger was never measured, and its square may overflow.
_NO_NUMBER = 1e100


class BadDataError(ValueError):
    """Data that hold NaN or cannot be read, where the fit was told to fail on them."""


@dataclass(frozen=True)
class PassPoint:
    """Where a pass is evaluated: physics [p], contrast [n_phi] and offset [n_phi]."""

    physics: Array
    contrast: Array
    offset: Array


@dataclass
class PassContext:
    """What stays the same from pass to pass.

    sigma is [n_phi] or a source of [n_phi, n, n]; keep [n], or [n_phi, n] where angles differ, is
    1 for frames that count, fewer of them in the passes of a jackknife.
    """

    program: PassProgram
    sigma: Array | Source
    keep: NDArray[np.uint8]
    f_scale: float
    step_zero: tuple[float, float]

    @contextlib.contextmanager
    def without(self, frames: NDArray[np.bool_]) -> Iterator[None]:
        """Passes in this context leave frames [n] out of both times."""
        keep = self.keep
        self.keep = np.where(frames, 0, keep).astype(keep.dtype)
        try:
            yield
        finally:
            self.keep = keep

    def no_states(self) -> Array:
        """The states [n_phi, S] before the first chunk."""
        return np.zeros((self.program.n_phi, self.program.state_size))

    def operands(self, point: PassPoint) -> dict[str, Any]:
        return {
            "params": point.physics,
            "contrast": point.contrast,
            "offset": point.offset,
            "keep": self.keep,
            "f_scale": np.float64(self.f_scale),
            "quantization": np.array(self.step_zero),
        }


class Pass(Protocol):
    """A way through the data: the states [n_phi, S] at a point."""

    def states(self, point: PassPoint, x: Array, partial: PartialPass | None = None) -> Array: ...


class WholePass:
    """All data on the device (or sharded over devices), one call a pass."""

    def __init__(self, context: PassContext, data: Any) -> None:
        self._context = context
        self._data = data
        self.n_chunks = 0
        if isinstance(context.sigma, np.ndarray):
            self._sigma: Any = context.sigma
        else:
            given = context.sigma
            source = given if isinstance(given, StackSource) else LoadedSource(given)
            self._sigma = jax.device_put(source.array.astype(np.float64), data.sharding)

    def states(self, point: PassPoint, x: Array, partial: PartialPass | None = None) -> Array:
        del x, partial
        context = self._context
        self.n_chunks += 1
        return context.program(
            {
                **context.operands(point),
                "angle": np.int32(0),
                "first_row": np.int32(0),
                "data": self._data,
                "sigma": self._sigma,
                "initial": context.no_states(),
            }
        )


@dataclass(frozen=True)
class Chunk:
    """Rows first_row .. stop_row of one angle."""

    angle: int
    first_row: int
    stop_row: int


def chunks_of(shape: tuple[int, int, int], rows: int, frames: NDArray[np.bool_]) -> list[Chunk]:
    """The chunks of a pass in their order, without those whose rows do not count."""
    n_phi, n, _ = shape
    return [
        Chunk(angle, first, min(first + rows, n))
        for angle in range(n_phi)
        for first in range(0, n, rows)
        if frames[first : first + rows].any()
    ]


@dataclass
class BadBlocks:
    """Row blocks that are left out, as (angle, block) pairs, and why."""

    row_block: int
    total: int
    excluded: set[tuple[int, int]] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)

    @property
    def success_rate(self) -> float:
        return 1.0 - len(self.excluded) / self.total

    def in_chunk(self, chunk: Chunk) -> list[int]:
        blocks = range(chunk.first_row // self.row_block, -(-chunk.stop_row // self.row_block))
        return [block for block in blocks if (chunk.angle, block) in self.excluded]


class ChunkedPass:
    """The data chunk by chunk; a thread reads the next chunk while the kernel works on this one.

    Chunks that lie in memory as the kernel wants them need no reading and no thread.

    Rows that hold NaN, or that cannot be read after some more attempts, are left out in blocks of
    `bad.row_block` rows, or fail the pass, as `streaming` says.
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
        after_chunk: Callable[[Array, Array, int], None],
        advance: Callable[[int, int], None],
    ) -> None:
        self._context, self._source, self._chunks, self._bad = context, source, chunks, bad
        self._streaming, self._mirrored = streaming, mirrored
        self._after_chunk, self._advance = after_chunk, advance
        self._in_memory = bool(getattr(source, "in_memory", False))
        self._ahead = (RowBuffers(touch=not self._in_memory), RowBuffers())
        # What is read again is read here while the other thread may be reading ahead.
        self._again = (RowBuffers(), RowBuffers())
        self.peak_bytes = 0
        self.n_chunks = 0

    def states(self, point: PassPoint, x: Array, partial: PartialPass | None = None) -> Array:
        context = self._context
        states = context.no_states()
        done = 0
        if partial is not None:
            states, done = partial.states.copy(), partial.chunks
        operands = context.operands(point)
        # On the device once a pass, not once a chunk; the parameters are looked at on the host.
        constant = {k: v for k, v in operands.items() if k != "params"}
        if isinstance(context.sigma, np.ndarray):
            constant["sigma"] = context.sigma
        operands |= jax.device_put(constant)
        with ThreadPoolExecutor(1, "jaxkern-read") as reader:
            ahead = self._submit(reader, done)
            for place in range(done, len(self._chunks)):
                chunk = self._chunks[place]
                loaded = ahead.result() if isinstance(ahead, Future) else ahead
                # Two buffers: the next chunk is read while the kernel has this one.
                ahead = self._submit(reader, place + 1)
                states[chunk.angle] = self._run(operands, chunk, loaded, states[chunk.angle])
                self.n_chunks += 1
                if place % 16 == 0:
                    self.peak_bytes = max(self.peak_bytes, anonymous_bytes())
                if place + 1 < len(self._chunks):
                    self._after_chunk(x, states, place + 1)
                self._advance(place + 1, len(self._chunks))
        if len(self._bad.excluded) >= self._bad.total:
            raise BadDataError(f"no row can be used: {self._bad.reasons[0]}, and so on")
        return states

    def _submit(self, reader: ThreadPoolExecutor, place: int) -> Any:
        """A chunk that lies ready, the future of one that is being read, None for one to skip."""
        if place >= len(self._chunks) or self._bad.in_chunk(self._chunks[place]):
            return None
        chunk = self._chunks[place]
        if self._in_memory and isinstance(self._context.sigma, np.ndarray):
            rows = self._source.read(chunk.angle, chunk.first_row, chunk.stop_row)
            if is_zero_copy(rows):
                return rows, None
        return reader.submit(self._load, chunk, self._ahead)

    def _load(
        self, chunk: Chunk, buffers: tuple[RowBuffers, RowBuffers]
    ) -> tuple[NDArray[Any], Any] | OSError:
        """The rows of a chunk and their sigma, ready for the kernel; or why they cannot be read."""
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

    def _call(
        self, operands: dict[str, Any], chunk: Chunk, rows: Any, sigma: Any, initial: Array
    ) -> Array:
        full = {
            **operands,
            "angle": np.int32(chunk.angle),
            "first_row": np.int32(chunk.first_row),
            "data": jax.device_put(rows[None]),
            "initial": initial[None],
        }
        if sigma is not None:
            full["sigma"] = jax.device_put(sigma[None])
        state: Array = self._context.program(full)[0]
        return state

    def _run(self, operands: dict[str, Any], chunk: Chunk, loaded: Any, initial: Array) -> Array:
        """The state after a chunk, whatever is wrong with it."""
        for attempt in range(self._streaming.retries + 1):
            if loaded is None and self._bad.in_chunk(chunk):
                break
            if attempt > 0:
                time.sleep(0.02 * 4**attempt)
                loaded = self._load(chunk, self._again)
            if isinstance(loaded, OSError):
                continue
            rows, sigma = loaded
            state = self._call(operands, chunk, rows, sigma, initial)
            if np.isfinite(state).all() or not self._not_finite(chunk, rows, sigma):
                # Finite, or the model itself overflows here, which the solver deals with.
                return state
        return self._without_bad_blocks(operands, chunk, initial)

    def _not_finite(self, chunk: Chunk, rows: NDArray[Any], sigma: Any) -> bool:
        """Whether a point that counts is not finite, or beyond all measure."""
        block = self._bad.row_block
        for first in range(0, len(rows), block):
            part = values(self._source, rows[first : first + block])
            wanted = self._counting(chunk.angle, chunk.first_row + first, len(part))
            if sigma is not None:
                deviation = np.asarray(sigma[first : first + block])
                wanted &= ~(deviation <= SIGMA_FLOOR)
                part = part + deviation
            if not (np.abs(part[wanted]) < _NO_NUMBER).all():
                return True
        return False

    def _counting(self, angle: int, first_row: int, count: int) -> NDArray[np.bool_]:
        keep = self._context.keep.astype(bool)
        keep = keep[angle] if keep.ndim == 2 else keep
        row = first_row + np.arange(count)[:, None]
        column = np.arange(len(keep))[None, :]
        side = column > row if self._mirrored else column != row
        return np.asarray(side & keep[None, :] & keep[row])

    def _without_bad_blocks(self, operands: dict[str, Any], chunk: Chunk, initial: Array) -> Array:
        """The state after the blocks of a chunk that can be used: sigma 0 takes out the others."""
        context, block = self._context, self._bad.row_block
        count, n = chunk.stop_row - chunk.first_row, context.keep.shape[-1]
        rows = np.zeros((count, n), kernel_dtype(self._source.dtype))
        sigma = np.zeros((count, n))
        for first in range(0, count, block):
            place = (chunk.angle, (chunk.first_row + first) // block)
            last = min(first + block, count)
            if place in self._bad.excluded:
                continue
            part = Chunk(chunk.angle, chunk.first_row + first, chunk.first_row + last)
            loaded = self._load(part, self._again)
            reason = None
            if isinstance(loaded, OSError):
                reason = f"cannot be read ({loaded})"
            elif self._not_finite(part, *loaded):
                reason = "hold numbers that are not finite, or beyond 1e100"
            if reason is not None or isinstance(loaded, OSError):
                self._report(
                    place,
                    f"angle {chunk.angle}, rows {part.first_row} to {part.stop_row - 1} {reason}",
                )
                continue
            rows[first:last] = loaded[0]
            fixed = context.sigma
            sigma[first:last] = fixed[chunk.angle] if isinstance(fixed, np.ndarray) else loaded[1]
        return self._call(operands, chunk, rows, sigma, initial)

    def _report(self, place: tuple[int, int], reason: str) -> None:
        if self._streaming.on_bad_chunk == "raise":
            raise BadDataError(
                f"{reason}; on_bad_chunk='exclude' leaves such rows out, keep masks bad frames"
            )
        self._bad.excluded.add(place)
        self._bad.reasons.append(reason)
