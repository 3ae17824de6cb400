"""Where two-time correlations are read from: arrays, memory maps, HDF5, or a reader of your own.

A source gives rows of one angle at a time, so that nothing is ever all in memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.archives import map_npy
from jaxkern.core.mapped import check_mapped
from jaxkern.core.paths import natural_order
from jaxkern.xpcs.model.ops import DATA_DTYPES


@runtime_checkable
class Source(Protocol):
    """Two-time correlations [n_phi, n, n] that are read by rows.

    Attributes a source may have besides: `quantization` (step, zero), which uint16 data must have,
    where a value is zero + step * stored; `symmetric`, True where every matrix is mirrored by
    construction; `in_memory`, True where a read costs nothing.
    """

    @property
    def shape(self) -> tuple[int, int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        """Rows first_row .. stop_row of one angle, [stop_row - first_row, n]."""
        ...


def kernel_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which the kernels read data of this dtype: its own, or float64."""
    native = dtype.newbyteorder("=")
    return np.dtype(native if native in DATA_DTYPES else np.float64)


def quantization(source: Source) -> tuple[float, float]:
    """(step, zero) of a source's values."""
    step, zero = getattr(source, "quantization", None) or (1.0, 0.0)
    return float(step), float(zero)


def values(source: Source, stored: NDArray[Any]) -> NDArray[np.float64]:
    """Stored numbers as values in float64."""
    step, zero = quantization(source)
    result = stored.astype(np.float64)
    return result if (step, zero) == (1.0, 0.0) else zero + step * result


class StackSource:
    """One array [n_phi, n, n] in memory or mapped from a file, or an HDF5 data set."""

    def __init__(
        self, array: Any, quantization: tuple[float, float] | None = None, name: str = "data"
    ):
        shape = tuple(map(int, array.shape))
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ValueError(
                f"{name} has the shape {shape}; wanted [n_phi, n, n], one square matrix for each "
                "angle"
            )
        self._array = array
        self.quantization = quantization
        self.shape = (shape[0], shape[1], shape[2])
        self.dtype = np.dtype(array.dtype)
        base = array
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        self.in_memory = isinstance(array, np.ndarray) and not isinstance(base, np.memmap)

    @property
    def array(self) -> NDArray[Any]:
        check_mapped("the data", self._array)
        return np.asarray(self._array)

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        rows = self._array[angle, first_row:stop_row]
        check_mapped(f"angle {angle}", rows)
        return np.asarray(rows)


class DatasetsSource:
    """One two-dimensional data set [n, n] an angle, such as those of an HDF5 group."""

    def __init__(self, datasets: Sequence[Any], quantization: tuple[float, float] | None = None):
        if not datasets:
            raise ValueError("data holds no data set; wanted one [n, n] for each angle")
        n = datasets[0].shape[-1]
        for place, dataset in enumerate(datasets):
            if tuple(dataset.shape) != (n, n) or dataset.dtype != datasets[0].dtype:
                raise ValueError(
                    f"data set {place} has the shape {tuple(dataset.shape)} and dtype "
                    f"{dataset.dtype}; wanted {(n, n)} and {datasets[0].dtype} as in the first"
                )
        self._datasets = list(datasets)
        self.shape = (len(datasets), n, n)
        self.dtype = np.dtype(datasets[0].dtype)
        self.quantization = quantization

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        return np.asarray(self._datasets[angle][first_row:stop_row])


def as_source(
    data: Any, *, quantization: tuple[float, float] | None = None, name: str = "data"
) -> Source:
    """A source for what a user gives as data.

    Args:
      data: a `Source`; an array or memory map [n_phi, n, n] (or [n, n] for one angle); the path of
        a ``.npy`` file, which is mapped; an HDF5 data set [n_phi, n, n], or an HDF5 group, mapping
        or sequence of data sets or arrays [n, n], one an angle in its own order (names of a group
        in natural order, 2 before 10).
      quantization: (step, zero) of uint16 data, where a value is zero + step * stored.
      name: what errors call it.

    Raises:
      TypeError: for anything else.
      ValueError: for a shape other than [n_phi, n, n].
    """
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if path.suffix != ".npy":
            raise ValueError(
                f"{name} is the path {str(path)!r}; only .npy files are opened by their path. Open "
                "an HDF5 file with h5py, or jaxkern.xpcs's reader of APS files, and give that"
            )
        data = map_npy(path)
    if isinstance(data, np.ndarray):
        return StackSource(data[None] if data.ndim == 2 else data, quantization, name)
    if isinstance(data, Source):
        if quantization is not None:
            raise ValueError(
                f"quantization={quantization} is given beside a {type(data).__name__}, which reads "
                "by itself; wanted it as the attribute `quantization` of that source"
            )
        return data
    if isinstance(data, Mapping):
        return DatasetsSource([data[name] for name in _in_order(data)], quantization)
    if isinstance(data, Sequence):
        return DatasetsSource([_as_matrix(item) for item in data], quantization)
    if hasattr(data, "shape") and hasattr(data, "dtype") and hasattr(data, "chunks"):
        return StackSource(data, quantization, name)
    if hasattr(data, "__array__"):
        return as_source(np.asarray(data), quantization=quantization, name=name)
    raise TypeError(
        f"{name} is a {type(data).__name__}; wanted an array [n_phi, n, n], a .npy path, an HDF5 "
        "data set or group, or an object with shape, dtype and read(angle, first_row, stop_row)"
    )


def _in_order(data: Mapping[str, Any]) -> list[str]:
    """Names of a group: in the order of their numbers where the file has that of the alphabet."""
    names = list(data)
    if isinstance(data, dict) or names != sorted(names):
        return names
    return natural_order(names)


def _as_matrix(item: Any) -> Any:
    return item if hasattr(item, "shape") and hasattr(item, "dtype") else np.asarray(item)


class SigmaSource:
    """sigma from a source of it or of weights, rows at a time; looked at as it is read.

    Weight 0 becomes sigma 0, which does not count.
    """

    def __init__(self, given: Source, name: str) -> None:
        self._given = given
        self._name = name
        self.shape = given.shape
        self.dtype = np.dtype(np.float64)

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        rows = np.asarray(self._given.read(angle, first_row, stop_row), np.float64)
        check_not_negative(rows, self._name)
        return weights_to_sigma(rows) if self._name == "weights" else rows


def check_not_negative(numbers: NDArray[Any], name: str) -> None:
    """Raises ValueError for a negative number or NaN."""
    if not (numbers >= 0).all():
        raise ValueError(f"{name} holds {numbers.min():g}; wanted numbers of 0 or more")


def weights_to_sigma(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / sqrt(weights), 0 where a weight is 0."""
    with np.errstate(divide="ignore"):
        return np.where(weights > 0, 1.0 / np.sqrt(weights), 0.0)


class LoadedSource(StackSource):
    """A source that was read into memory once, because it is small."""

    def __init__(self, source: Source) -> None:
        array = aligned_empty(source.shape, kernel_dtype(source.dtype))
        for angle in range(source.shape[0]):
            array[angle] = source.read(angle, 0, source.shape[1])
        super().__init__(array, getattr(source, "quantization", None))
        self.symmetric = getattr(source, "symmetric", None)


# Read-ahead -----------------------------------------------------------------------------------

_ALIGNMENT = 64  # bytes; XLA's CPU backend takes an array at such an address without a copy


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An uninitialized array at an address that XLA takes as it is."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return np.asarray(room[start : start + size].view(dtype).reshape(shape))


def is_zero_copy(rows: NDArray[Any]) -> bool:
    """Whether XLA takes rows as they lie: contiguous, aligned, in a dtype that kernels read."""
    aligned = rows.flags.c_contiguous and rows.ctypes.data % _ALIGNMENT == 0
    return aligned and rows.dtype == kernel_dtype(rows.dtype)


class RowBuffers:
    """Rows ready for the kernel: taken as they lie where they can be, else copied.

    The copies go round `count` buffers: whoever asks for rows must be done with those of `count`
    calls ago. With `touch`, mapped pages are brought into memory by whoever asks.
    """

    def __init__(self, count: int = 2, *, touch: bool = False) -> None:
        self._buffers: list[NDArray[Any] | None] = [None] * count
        self._turn = 0
        self._touch = touch

    def ready(
        self, rows: NDArray[Any], *, upper_from: int | None = None, row_block: int = 1
    ) -> NDArray[Any]:
        """`rows` in a dtype that kernels read, contiguous and aligned.

        With `upper_from`, the number of the first row, a copy holds only what a kernel reads of the
        upper triangle: in each block of `row_block` rows the columns from the block's first row on.
        """
        if is_zero_copy(rows):
            if self._touch and rows.size:
                # Page faults belong here, in the reading thread, and not inside the kernel.
                rows.reshape(-1).view(np.uint8)[::4096].max()
            return rows
        dtype = kernel_dtype(rows.dtype)
        buffer = self._buffers[self._turn]
        if buffer is None or buffer.dtype != dtype or buffer.size < rows.size:
            buffer = self._buffers[self._turn] = aligned_empty((rows.size,), dtype)
            # What is not copied shall be numbers all the same.
            buffer[:] = 0
        self._turn = (self._turn + 1) % len(self._buffers)
        room = buffer[: rows.size].reshape(rows.shape)
        if upper_from is None:
            np.copyto(room, rows)
        else:
            for first in range(0, len(rows), row_block):
                part = np.s_[first : first + row_block, upper_from + first :]
                np.copyto(room[part], rows[part])
        return room
