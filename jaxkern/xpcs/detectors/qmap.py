"""Maps of a detector's pixels to bins, and files of masks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path
from jaxkern.core.version import __version__
from jaxkern.xpcs.detectors.frames import DetectorFileError
from jaxkern.xpcs.detectors.hdf5 import MASKS
from jaxkern.xpcs.detectors.hdf5_access import find_dataset, hdf5_errors, new_hdf5, open_hdf5
from jaxkern.xpcs.detectors.qmap_layout import (
    default_layout,
    geometry_bins,
    read_qmap,
    write_layout,
)


class QMap:
    """Map of the pixels of a detector to dynamic and static bins.

    Correlations are computed for each dynamic bin. A pixel's intensity is normalized by the mean of
    its static bin, a part of the dynamic bin. Bins are numbered from 1; 0 means no bin. A pixel is
    used if both its bins are above 0 and `mask` is true.

    Args:
      dynamic: [H, W] integers, the dynamic bin of each pixel.
      static: [H, W] integers, the static bin; by default the dynamic one.
      mask: [H, W], true where a pixel is good; by default all are good.
      q: [n_dynamic] of the dynamic bins 1, 2, ..., in 1/Angstrom.
      phi: [n_dynamic] of the dynamic bins, in degrees.
      blemish: [H, W], true where the detector itself is good; for plots of the mean intensity.
      layout: entries of the file of this map, see the attribute `layout`.

    Raises:
      ValueError: maps of different shapes, negative bins, a static bin in more than one dynamic
        bin, or q and phi of another length than the number of dynamic bins.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> qmap = jk.xpcs.QMap(np.array([[1, 1, 2], [1, 1, 0]]), q=[0.01, 0.02])
      >>> qmap.n_dynamic, qmap.n_pixels, qmap.pixels_of_bin.tolist()
      (2, 5, [4, 1])
    """

    def __init__(
        self,
        dynamic: Any,
        static: Any = None,
        mask: Any = None,
        q: Any = None,
        phi: Any = None,
        blemish: Any = None,
        layout: Mapping[str, Any] | None = None,
    ):
        self.dynamic = _bins("dynamic", dynamic)
        self.shape: tuple[int, int] = (self.dynamic.shape[0], self.dynamic.shape[1])
        self.static = self.dynamic if static is None else _bins("static", static, self.shape)
        every = np.ones(self.shape, bool)
        self.mask = every if mask is None else _mask("mask", mask, self.shape)
        self.blemish = None if blemish is None else _mask("blemish", blemish, self.shape)
        self._layout = layout
        self.n_dynamic = int(self.dynamic.max(initial=0))
        self.n_static = int(self.static.max(initial=0))
        self.q = _labels("q", q, self.n_dynamic)
        self.phi = _labels("phi", phi, self.n_dynamic)
        _ = self.dynamic_of_static  # checks that each static bin is in one dynamic bin

    def __repr__(self) -> str:
        return (
            f"QMap({self.shape[0]} x {self.shape[1]}, {self.n_dynamic} dynamic and "
            f"{self.n_static} static bins, {self.n_pixels} pixels)"
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str], group: str | None = None) -> Self:
        """Read the map of a file by simplemask or pysimplemask, or of a file of results.

        Args:
          path: the HDF5 file.
          group: group of the map; by default `/qmap`, or `/xpcs/qmap` of results.

        Raises:
          FileNotFoundError: no such file.
          DetectorFileError: not an HDF5 file, missing groups or maps, maps of different shapes, and
            the errors of `QMap`; it is a ValueError.
        """
        arguments = read_qmap(path, group)
        try:
            return cls(**arguments)
        except ValueError as error:
            raise DetectorFileError(f"{os.fspath(path)}: {error}") from error

    @classmethod
    def from_geometry(
        cls,
        shape: tuple[int, int],
        *,
        beam_center: tuple[float, float],
        distance: float,
        pixel_size: float,
        energy: float,
        q_edges: Any,
        phi_edges: Any = None,
        static: tuple[int, int] = (10, 1),
        mask: Any = None,
    ) -> Self:
        """Return the map of a flat detector that is perpendicular to the beam.

        q is 4 pi / lambda sin(theta) with tan(2 theta) = r / distance, lambda = 12.39842 Angstrom /
        energy. phi is 0 to the right of the beam and 90 degrees above it, where row 0 is the top.
        A bin includes its lower edge; the last bin also includes its upper edge. Cells of the grid
        without pixels have no bin.

        Args:
          shape: (H, W) of a frame.
          beam_center: (x, y) in pixels, x along a row; the centre of the first pixel is (0, 0).
          distance: distance from the sample to the detector, in m.
          pixel_size: in m.
          energy: photon energy, in keV.
          q_edges: [n + 1] increasing edges of the dynamic bins, in 1/Angstrom.
          phi_edges: [m + 1] increasing edges in degrees, at most 360 apart; without them a bin is a
            full ring, and the map has no phi.
          static: numbers of static bins of equal width per dynamic bin, in q and in phi.
          mask: [H, W], true where a pixel is good.

        Raises:
          ValueError: edges that do not increase, and other numbers out of range.

        Example:
          >>> import jaxkern as jk, numpy as np
          >>> qmap = jk.xpcs.QMap.from_geometry(
          ...     (64, 64), beam_center=(31.5, 31.5), distance=5.0, pixel_size=75e-6, energy=10.0,
          ...     q_edges=[1e-3, 2e-3], phi_edges=[-90, 0, 90], static=(4, 1))
          >>> qmap, qmap.q.tolist(), qmap.phi.tolist()
          (QMap(64 x 64, 2 dynamic and 8 static bins, 816 pixels), [0.0015, 0.0015], [-45.0, 45.0])
        """
        detector = (shape, beam_center, distance, pixel_size, energy)
        return cls(**geometry_bins(*detector, q_edges, phi_edges, static, mask))

    def without(self, pixels: Any) -> Self:
        """Return this map with some pixels masked.

        Args:
          pixels: [H, W], true for the pixels to leave out; or [n] numbers row * W + column; or
            [n, 2] pairs (row, column). An array of the map's shape is always a mask. None leaves
            out no pixel.

        Raises:
          ValueError: an array of another shape or dtype, or a pixel outside of the map.

        Example:
          >>> import jaxkern as jk, numpy as np
          >>> qmap = jk.xpcs.QMap(np.ones((4, 6), int))
          >>> qmap.n_pixels, qmap.without([0, 23]).n_pixels, qmap.without([(3, 5)]).n_pixels
          (24, 22, 23)
        """
        if pixels is None:
            return self
        return self._masked(self.mask & ~self._marked(np.asarray(pixels)), self.blemish)

    def with_mask(self, mask: Any = None, blemish: Any = None) -> Self:
        """Return this map with additional masks.

        Args:
          mask: [H, W], true where a pixel is good, in addition to the map's mask; None for all.
          blemish: the same for the detector itself; also combined with the map's `blemish`.

        Raises:
          ValueError: a mask of another shape than the map.
        """
        good, blemished = self.mask, self.blemish
        for name, value in (("mask", mask), ("blemish", blemish)):
            if value is not None:
                array = _mask(name, value, self.shape)
                good = good & array
                if name == "blemish":
                    blemished = array if blemished is None else blemished & array
        if good is self.mask:
            return self
        return self._masked(good, blemished)

    def _masked(self, mask: NDArray[np.bool_], blemish: NDArray[np.bool_] | None) -> Self:
        layout = None if self._layout is None else {**self._layout, "mask": mask.astype(np.uint8)}
        return type(self)(self.dynamic, self.static, mask, self.q, self.phi, blemish, layout)

    def _marked(self, pixels: NDArray[Any]) -> NDArray[np.bool_]:
        if pixels.shape == self.shape:
            return pixels.astype(bool)
        marked = np.zeros(self.shape, bool)
        if pixels.size == 0 and pixels.ndim == 1:
            return marked
        pairs = pixels.ndim == 2 and pixels.shape[1] == 2
        if pixels.dtype.kind not in "ui" or not (pairs or pixels.ndim == 1):
            raise ValueError(
                f"pixels: expected a mask {self.shape}, integers row * W + column [n], or "
                f"pairs (row, column) [n, 2]; got {pixels.dtype} of the shape {pixels.shape}"
            )
        indices = pixels if pairs else np.stack(np.divmod(pixels, self.shape[1]), axis=1)
        outside = (indices < 0).any(axis=1) | (indices >= self.shape).any(axis=1)
        if outside.any():
            row, column = indices[np.flatnonzero(outside)[0]].tolist()
            raise ValueError(f"pixels: row {row}, column {column} is outside of {self.shape}")
        marked[indices[:, 0], indices[:, 1]] = True
        return marked

    def write(self, path: str | os.PathLike[str], group: str = "/qmap") -> None:
        """Write the map to a new file like pysimplemask; FileExistsError if there is one."""
        with new_hdf5(Path(path), overwrite=False) as file:
            self.write_group(file.create_group(group))

    def write_group(self, group: Any) -> None:
        """Write the map to an empty HDF5 group of an open file."""
        write_layout(group, self.layout, __version__)

    @cached_property
    def layout(self) -> dict[str, Any]:
        """Entries of a file of this map by the names of pysimplemask, including its geometry."""
        if self._layout is not None:
            layout = {key: value for key, value in self._layout.items() if value is not None}
        else:
            layout = default_layout(self.dynamic, self.static, self.mask, self.q, self.phi)
        if self.blemish is not None:
            layout["blemish"] = self.blemish.astype(np.uint8)
        return layout

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """[H, W], true where a pixel is used."""
        return self.mask & (self.dynamic > 0) & (self.static > 0)

    @cached_property
    def pixels(self) -> NDArray[np.int32]:
        """[n_pixels] numbers row * W + column of the used pixels, ordered by static bin."""
        flat = np.flatnonzero(self.used)
        order = np.argsort(self.static.ravel()[flat], kind="stable")
        return flat[order].astype(np.int32)

    @property
    def n_pixels(self) -> int:
        """Number of used pixels."""
        return len(self.pixels)

    @cached_property
    def pixels_of_bin(self) -> NDArray[np.int64]:
        """[n_dynamic] numbers of used pixels of the dynamic bins."""
        bins = self.dynamic.ravel()[self.pixels]
        return np.bincount(bins, minlength=self.n_dynamic + 1)[1:].astype(np.int64)

    @cached_property
    def pixels_of_static(self) -> NDArray[np.int64]:
        """[n_static] numbers of used pixels of the static bins."""
        bins = self.static.ravel()[self.pixels]
        return np.bincount(bins, minlength=self.n_static + 1)[1:].astype(np.int64)

    @cached_property
    def dynamic_of_static(self) -> NDArray[np.int32]:
        """[n_static] the dynamic bin of each static bin; 0 if it has no pixels."""
        static, dynamic = self.static[self.used], self.dynamic[self.used]
        parents = np.zeros(self.n_static + 1, np.int32)
        parents[static] = dynamic
        if (split := static[parents[static] != dynamic]).size:
            bins = np.unique(dynamic[static == split[0]])
            got = f"bin {split[0]} in the dynamic bins {bins.tolist()}"
            raise ValueError(f"static: expected each static bin in one dynamic bin, got {got}")
        return parents[1:]


def _bins(name: str, values: Any, shape: tuple[int, int] | None = None) -> NDArray[np.int32]:
    array = np.asarray(values)
    if array.ndim != 2:
        raise ValueError(f"{name}: expected the shape [H, W], got {array.shape}")
    if shape is not None:
        _check_shape(name, array, shape)
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name}: expected integers (bins from 1, or 0), got other numbers")
    if array.size and (array.min() < 0 or array.max() > array.size):
        raise ValueError(f"{name}: expected 0 to {array.size}, got {array.min()} to {array.max()}")
    return array.astype(np.int32)


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, int]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name}: expected the shape {shape} of dynamic, got {array.shape}")


def _mask(name: str, values: Any, shape: tuple[int, int]) -> NDArray[np.bool_]:
    mask = np.asarray(values).astype(bool)
    _check_shape(name, mask, shape)
    return mask


def _labels(name: str, labels: Any, n_bins: int) -> NDArray[np.float64] | None:
    if labels is None:
        return None
    values = np.asarray(labels, np.float64)
    if values.shape != (n_bins,):
        raise ValueError(f"{name}: expected [{n_bins}], the dynamic bins, got {values.shape}")
    return values


#: suffixes of files that `read_mask` reads
MASK_SUFFIXES = (".npy", ".tif", ".tiff", ".h5", ".hdf", ".hdf5", ".nxs")
_TIFF = (".tif", ".tiff")
_IN_HDF5 = ("{kind}", "qmap/{kind}", "xpcs/qmap/{kind}", "data/{kind}")


def read_mask(path: str | os.PathLike[str], kind: str = "mask") -> NDArray[np.bool_]:
    """Read a mask [H, W], which is not 0 where a pixel is good.

    Args:
      path: a NumPy, TIFF or HDF5 file. In HDF5, the mask is the data set `kind` in the root, /qmap,
        /xpcs/qmap or /data; else a NeXus `pixel_mask`, which is 0 where a pixel is good; else the
        only data set of two axes.
      kind: "mask" or "blemish".

    Raises:
      FileNotFoundError: no such file.
      DetectorFileError: a file of another format, a damaged one, or not one array [H, W] of
        numbers.

    Example:
      >>> import numpy as np, pathlib, tempfile, jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> np.save(folder / "mask.npy", np.eye(2))
      >>> jk.xpcs.read_mask(folder / "mask.npy").tolist()
      [[True, False], [False, True]]
    """
    path = home_path(path)
    name = str(path)
    if not path.exists():
        raise FileNotFoundError(f"--{kind}: file not found: {name!r}")
    suffix = path.suffix.lower()
    if suffix not in MASK_SUFFIXES:
        raise DetectorFileError(f"{name}: expected a file that ends in {', '.join(MASK_SUFFIXES)}")
    if suffix == ".npy":
        try:
            with path.open("rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # NumPy's errors about damaged files have no common class
            raise DetectorFileError(f"{name} cannot be read as a .npy file: {error}") from error
    elif suffix in _TIFF:
        array = _read_tiff(path)
    else:
        array = _read_hdf5(name, kind)
    array = np.asarray(array)
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2 or array.dtype.kind not in "uifb":
        raise DetectorFileError(f"{name}: expected numbers [H, W], got {array.dtype} {array.shape}")
    return array != 0


def masked_map(qmap: QMap, mask: Any = None, blemish: Any = None) -> QMap:
    """Return a map without the pixels that are 0 in masks [H, W] or files of masks."""
    for kind, value in (("mask", mask), ("blemish", blemish)):
        if value is None:
            continue
        is_path = isinstance(value, str | os.PathLike)
        name = os.fspath(value) if is_path else kind
        good = read_mask(value, kind) if is_path else np.asarray(value).astype(bool)
        if good.shape != qmap.shape:
            pixels = f"{qmap.shape[0]} x {qmap.shape[1]} pixels"
            raise ValueError(f"{name}: expected a {kind} of {pixels}, got {good.shape}")
        masked = qmap.with_mask(**{kind: good})
        if qmap.n_pixels and not masked.n_pixels:
            raise ValueError(
                f"{name}: the {kind} is 0 in all {qmap.n_pixels:,} pixels of the map's bins, and "
                f"not 0 in {int(good.sum()):,} others; is it inverted (expected 0 for bad pixels)?"
            )
        qmap = masked
    return qmap


def _read_tiff(path: Path) -> NDArray[Any]:
    try:
        from PIL import Image

        with Image.open(path) as image:
            return np.asarray(image)
    except ModuleNotFoundError as error:
        raise ImportError(f"Pillow is required to read {path}; run pip install pillow") from error
    except Exception as error:  # damaged files give struct.error, ValueError, OSError, ...
        raise DetectorFileError(f"{path} cannot be read as a TIFF file: {error}") from error


def _read_hdf5(name: str, kind: str) -> NDArray[Any]:
    with open_hdf5(name) as file, hdf5_errors(name):
        for path in (*(path.format(kind=kind) for path in _IN_HDF5), *MASKS):
            stored = find_dataset(file, path)
            if stored is not None:
                return np.asarray(stored[()] == 0 if path in MASKS else stored[()])
        images: list[Any] = []

        def visit(_: str, item: Any) -> None:
            if getattr(item, "ndim", None) == 2:
                images.append(item)

        file.visititems(visit)
        if len(images) == 1:
            return np.asarray(images[0][()])
        got = [item.name for item in images[:10]]
        raise DetectorFileError(f"{name}: expected data set {kind!r} or one of two axes, got {got}")
