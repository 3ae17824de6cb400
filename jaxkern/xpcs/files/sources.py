"""Sources of two-time correlations, which may be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arrays import ALIGNMENT, aligned_array, check_mapped, map_npy
from jaxkern.core.paths import natural_order
from jaxkern.xpcs.model.ops import DATA_DTYPES


@runtime_checkable
class Source(Protocol):
    """Two-time correlations [n_phi, n, n] that are read by rows.

    Optional attributes of a source: `quantization` (step, zero), required for uint16 data, whose
    values are zero + step * stored; `symmetric`, True if every matrix is symmetric by construction;
    `in_memory`, True if reading does not copy.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> class Constant:
      ...     shape, dtype = (1, 8, 8), np.dtype(np.float32)
      ...     def read(self, angle, first_row, stop_row):
      ...         return np.ones((stop_row - first_row, 8), self.dtype)
      >>> isinstance(Constant(), jk.xpcs.Source)
      True
    """

    @property
    def shape(self) -> tuple[int, int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        """Return rows first_row .. stop_row - 1 of one angle, [stop_row - first_row, n]."""
        ...


def kernel_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which kernels read data of a dtype: itself, or float64."""
    native = dtype.newbyteorder("=")
    return np.dtype(native if native in DATA_DTYPES else np.float64)


def quantization(source: Source) -> tuple[float, float]:
    """Return (step, zero) of a source's values."""
    step, zero = getattr(source, "quantization", None) or (1.0, 0.0)
    return float(step), float(zero)


def values(source: Source, stored: NDArray[Any]) -> NDArray[np.float64]:
    """Convert stored numbers to values in float64."""
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
            raise ValueError(f"{name}: expected [n_phi, n, n], got {shape}")
        self._array, self.quantization = array, quantization
        self.shape = (shape[0], shape[1], shape[2])
        self.dtype = np.dtype(array.dtype)
        base = array
        while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
            base = base.base
        self.in_memory = isinstance(array, np.ndarray) and not isinstance(base, np.memmap)

    @property
    def array(self) -> NDArray[Any]:
        """The array, after a check that a mapped file was not truncated."""
        check_mapped("the data", self._array)
        return np.asarray(self._array)

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        rows = self._array[angle, first_row:stop_row]
        check_mapped(f"angle {angle}", rows)
        return np.asarray(rows)


class DatasetsSource:
    """A data set [n, n] for each angle, such as those of an HDF5 group."""

    def __init__(self, datasets: Sequence[Any], quantization: tuple[float, float] | None = None):
        if not datasets:
            raise ValueError("data: expected a data set [n, n] for each angle, got none")
        n = datasets[0].shape[-1]
        for index, dataset in enumerate(datasets):
            if tuple(dataset.shape) != (n, n) or dataset.dtype != datasets[0].dtype:
                raise ValueError(
                    f"data set {index}: expected {(n, n)} and {datasets[0].dtype}, as the first, "
                    f"got {tuple(dataset.shape)} and {dataset.dtype}"
                )
        self._datasets, self.quantization = list(datasets), quantization
        self.shape, self.dtype = (len(datasets), n, n), np.dtype(datasets[0].dtype)

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        return np.asarray(self._datasets[angle][first_row:stop_row])


def as_source(
    data: Any, *, quantization: tuple[float, float] | None = None, name: str = "data"
) -> Source:
    """Return data as a `Source`.

    Args:
      data: a `Source`; an array or memory map [n_phi, n, n] (or [n, n] for one angle); the path of
        a ``.npy`` file, which is mapped; an HDF5 data set [n_phi, n, n]; or an HDF5 group, mapping
        or sequence of data sets or arrays [n, n], one for each angle, in its order (names of a
        group in natural order, 2 before 10).
      quantization: (step, zero) of uint16 data, whose values are zero + step * stored.
      name: name of the argument for errors.

    Raises:
      TypeError: data of another type.
      ValueError: a shape other than [n_phi, n, n].

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> source = jk.xpcs.as_source(np.ones((8, 8)))
      >>> source.shape, source.read(0, 0, 2).shape
      ((1, 8, 8), (2, 8))
    """
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if path.suffix != ".npy":
            raise ValueError(
                f"{name}: expected the path of a .npy file, got {str(path)!r}; open an HDF5 file "
                "with h5py or jaxkern.xpcs.ApsFile, and pass the data set or the ApsFile"
            )
        data = map_npy(path)
    if isinstance(data, np.ndarray):
        return StackSource(data[None] if data.ndim == 2 else data, quantization, name)
    if isinstance(data, Source):
        if quantization is not None:
            raise ValueError(
                f"quantization: expected None for a {type(data).__name__}, got {quantization}; set "
                "the attribute `quantization` of the source"
            )
        return data
    if isinstance(data, Mapping):
        names = list(data)
        if not isinstance(data, dict) and names == sorted(names):
            names = natural_order(names)  # an HDF5 group
        return DatasetsSource([data[name] for name in names], quantization)
    if isinstance(data, Sequence):
        matrices = [x if hasattr(x, "dtype") else np.asarray(x) for x in data]
        return DatasetsSource(matrices, quantization)
    if hasattr(data, "shape") and hasattr(data, "dtype") and hasattr(data, "chunks"):
        return StackSource(data, quantization, name)
    if hasattr(data, "__array__"):
        return as_source(np.asarray(data), quantization=quantization, name=name)
    raise TypeError(
        f"{name}: expected an array [n_phi, n, n], a .npy path, an HDF5 data set or group, or an "
        "object with shape, dtype and read(angle, first_row, stop_row), got a "
        f"{type(data).__name__}"
    )


class SigmaSource:
    """sigma from a source of sigma or of weights, checked when rows are read."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name, self.shape = source, name, source.shape
        self.dtype = np.dtype(np.float64)

    def read(self, angle: int, first_row: int, stop_row: int) -> NDArray[Any]:
        rows = np.asarray(self._source.read(angle, first_row, stop_row), np.float64)
        check_not_negative(rows, self._name)
        return weights_to_sigma(rows) if self._name == "weights" else rows


def check_not_negative(numbers: NDArray[Any], name: str) -> None:
    """Raise ValueError for a negative number or NaN."""
    if not (numbers >= 0).all():
        raise ValueError(f"{name}: expected numbers of 0 or more, got {numbers.min():g}")


def weights_to_sigma(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 / sqrt(weights), and 0 for weights of 0, which exclude the point."""
    with np.errstate(divide="ignore"):
        return np.where(weights > 0, 1.0 / np.sqrt(weights), 0.0)


class LoadedSource(StackSource):
    """A small source that is read into memory once."""

    def __init__(self, source: Source) -> None:
        array = aligned_array(source.shape, kernel_dtype(source.dtype))
        for angle in range(source.shape[0]):
            array[angle] = source.read(angle, 0, source.shape[1])
        super().__init__(array, getattr(source, "quantization", None))
        self.symmetric = getattr(source, "symmetric", None)


def is_zero_copy(rows: NDArray[Any]) -> bool:
    """True if XLA uses rows without a copy: contiguous, aligned, in a dtype that kernels read."""
    aligned = rows.flags.c_contiguous and rows.ctypes.data % ALIGNMENT == 0
    return aligned and rows.dtype == kernel_dtype(rows.dtype)


class RowBuffers:
    """Conversion of rows for the kernel, without a copy if possible.

    Copies use two buffers in turn, so that a result is valid until two more calls. With `touch`,
    the calling thread loads mapped pages into memory.
    """

    def __init__(self, *, touch: bool = False) -> None:
        self._buffers: list[NDArray[Any] | None] = [None, None]
        self._turn, self._touch = 0, touch

    def ready(
        self, rows: NDArray[Any], *, upper_from: int | None = None, row_block: int = 1
    ) -> NDArray[Any]:
        """Return `rows` in a dtype that kernels read, contiguous and aligned.

        With `upper_from`, the number of the first row, only the upper triangle is copied: in each
        block of `row_block` rows, the columns from the block's first row on.
        """
        if is_zero_copy(rows):
            if self._touch and rows.size:
                # Trigger page faults here, in the reading thread, and not in the kernel.
                rows.reshape(-1).view(np.uint8)[::4096].max()
            return rows
        dtype = kernel_dtype(rows.dtype)
        buffer = self._buffers[self._turn]
        if buffer is None or buffer.dtype != dtype or buffer.size < rows.size:
            # The part that is not copied must not be NaN.
            buffer = self._buffers[self._turn] = aligned_array(rows.size, dtype, np.zeros)
        self._turn = 1 - self._turn
        room = buffer[: rows.size].reshape(rows.shape)
        if upper_from is None:
            np.copyto(room, rows)
        else:
            for first in range(0, len(rows), row_block):
                part = np.s_[first : first + row_block, upper_from + first :]
                np.copyto(room[part], rows[part])
        return room
