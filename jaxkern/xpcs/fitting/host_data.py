"""The data of a fit in the host's reach: in memory, or read from files in every pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files.sources import (
    LoadedSource,
    Source,
    StackSource,
    kernel_dtype,
    quantization,
    values,
)
from jaxkern.xpcs.fitting.fit_data import FitData, WholeFirst, sample_bands
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.passes import (
    BadBlocks,
    ChunkedPass,
    Pass,
    PassContext,
    WholePass,
    chunks_of,
)
from jaxkern.xpcs.fitting.starting import RowSample, mirrored_angles, read_sample, rows_of_angle
from jaxkern.xpcs.fitting.strategy import (
    CHUNK_POINTS,
    Strategy,
    choose_strategy,
    chunk_rows,
    parse_strategy,
)
from jaxkern.xpcs.model.twin import ROW_BLOCK

Array = NDArray[np.float64]


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
        return read_sample(self.source, self.frames, sample_bands(self.shape))

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

    def each_angle(self, rows: NDArray[np.intp]) -> Iterator[Array]:
        for angle in range(self.shape[0]):
            yield rows_of_angle(self.source, angle, rows)

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
        return WholeFirst(whole, bad, chunked)
