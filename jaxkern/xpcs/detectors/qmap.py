"""The bins that a detector's pixels belong to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.version import __version__
from jaxkern.xpcs.detectors.frames import DetectorFileError
from jaxkern.xpcs.detectors.hdf5_access import new_hdf5
from jaxkern.xpcs.detectors.qmap_files import default_layout, read_qmap, write_layout
from jaxkern.xpcs.detectors.qmap_geometry import geometry_bins


class QMap:
    """Which bin each pixel of a detector belongs to.

    Correlations are computed for each dynamic bin. A pixel's intensity is normalized by the mean of
    its static bin, a smaller one inside the dynamic bin, since the mean changes with q. Bins are
    numbered from 1; 0 is none. A pixel counts when both its bins are there and `mask` is true.

    Args:
      dynamic: [H, W] whole numbers, the dynamic bin of each pixel.
      static: [H, W] whole numbers, the static bin; by default the dynamic one.
      mask: [H, W], true where a pixel is good; by default all are.
      q: [n_dynamic] of the dynamic bins 1, 2, ..., in 1/Angstrom.
      phi: [n_dynamic] of the dynamic bins, in degrees.
      blemish: [H, W], true where the detector itself is good; for pictures of the mean intensity.
      layout: what a file of this map holds beside or instead of the above, see `layout`.

    Raises:
      ValueError: for maps of different shapes, negative bins, a static bin that lies in more than
        one dynamic bin, or q and phi of another length than there are dynamic bins.

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
        if mask is None:
            self.mask = np.ones(self.shape, bool)
        else:
            self.mask = np.asarray(mask).astype(bool)
            _check_shape("mask", self.mask, self.shape)
        self.blemish: NDArray[np.bool_] | None = None
        if blemish is not None:
            self.blemish = np.asarray(blemish).astype(bool)
            _check_shape("blemish", self.blemish, self.shape)
        self._layout = layout
        self.n_dynamic = int(self.dynamic.max(initial=0))
        self.n_static = int(self.static.max(initial=0))
        self.q = _labels("q", q, self.n_dynamic)
        self.phi = _labels("phi", phi, self.n_dynamic)
        _ = self.dynamic_of_static  # checks that each lies in one

    def __repr__(self) -> str:
        return (
            f"QMap({self.shape[0]} x {self.shape[1]}, {self.n_dynamic} dynamic and "
            f"{self.n_static} static bins, {self.n_pixels} pixels)"
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str], group: str | None = None) -> Self:
        """The map of a file of simplemask's or pysimplemask's, or of results made with one.

        q and phi are those of the cell that `dynamic_index_mapping` gives each bin.

        Args:
          path: the HDF5 file.
          group: its group; by default `/qmap`, or `/xpcs/qmap` of results.

        Raises:
          FileNotFoundError: no such file.
          DetectorFileError: not an HDF5 file, groups or maps that are missing or of other shapes,
            and what `QMap` refuses; it is a ValueError.
        """
        given = read_qmap(path, group)
        try:
            return cls(**given)
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
        """The map of a flat detector that stands upright to the beam.

        q is 4 pi / lambda sin(theta) with tan(2 theta) = r / distance, lambda = 12.39842 Angstrom /
        energy. phi is 0 to the right of the beam and 90 degrees above it, as row 0 is on top.
        A bin holds its lower edge; the last one its upper edge too. Cells of the grid without
        pixels get no bin.

        Args:
          shape: (H, W) of a frame.
          beam_center: (x, y) in pixels, x along a row; the middle of the first pixel is (0, 0).
          distance: from sample to detector, in m.
          pixel_size: in m.
          energy: of the photons, in keV.
          q_edges: [n + 1] increasing edges of the dynamic bins, in 1/Angstrom.
          phi_edges: [m + 1] increasing edges in degrees, of one turn at most; without them a bin is
            a whole ring, and the map has no phi.
          static: into how many static bins of equal width a dynamic one is cut, in q and in phi.
          mask: [H, W], true where a pixel is good.

        Raises:
          ValueError: for edges that do not increase, and other numbers that make no sense.

        Example:
          >>> import jaxkern as jk, numpy as np
          >>> qmap = jk.xpcs.QMap.from_geometry(
          ...     (64, 64), beam_center=(31.5, 31.5), distance=5.0, pixel_size=75e-6, energy=10.0,
          ...     q_edges=[1e-3, 2e-3], phi_edges=[-90, 0, 90], static=(4, 1))
          >>> qmap, qmap.q.tolist(), qmap.phi.tolist()
          (QMap(64 x 64, 2 dynamic and 8 static bins, 816 pixels), [0.0015, 0.0015], [-45.0, 45.0])
        """
        return cls(
            **geometry_bins(
                shape,
                beam_center=beam_center,
                distance=distance,
                pixel_size=pixel_size,
                energy=energy,
                q_edges=q_edges,
                phi_edges=phi_edges,
                static=static,
                mask=mask,
            )
        )

    def without(self, pixels: Any) -> Self:
        """Returns this map with some pixels masked.

        Args:
          pixels: [H, W], true for the pixels to leave out; or [n] numbers row * W + column; or
            [n, 2] pairs (row, column). An array of the map's shape is always the first of these.
            None is none.

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
        """Returns this map with fewer pixels.

        Args:
          mask: [H, W], true where a pixel is good, besides the map's own mask; None is all.
          blemish: the same, of the detector; it becomes the `blemish` of the map, too.

        Raises:
          ValueError: a mask of another shape than the map.
        """
        good, blemished = self.mask, self.blemish
        for name, given in (("mask", mask), ("blemish", blemish)):
            if given is not None:
                wanted = np.asarray(given).astype(bool)
                _check_shape(name, wanted, self.shape)
                good = good & wanted
                if name == "blemish":
                    blemished = wanted if blemished is None else blemished & wanted
        if good is self.mask:
            return self
        return self._masked(good, blemished)

    def _masked(self, mask: NDArray[np.bool_], blemish: NDArray[np.bool_] | None) -> Self:
        layout = None if self._layout is None else {**self._layout, "mask": mask.astype(np.uint8)}
        return type(self)(self.dynamic, self.static, mask, self.q, self.phi, blemish, layout)

    def _marked(self, pixels: NDArray[Any]) -> NDArray[np.bool_]:
        """[H, W], true for the pixels that `without` was given."""
        if pixels.shape == self.shape:
            return pixels.astype(bool)
        marked = np.zeros(self.shape, bool)
        if pixels.size == 0 and pixels.ndim == 1:
            return marked
        pairs = pixels.ndim == 2 and pixels.shape[1] == 2
        if pixels.dtype.kind not in "ui" or not (pairs or pixels.ndim == 1):
            raise ValueError(
                f"pixels: expected a mask {self.shape}, whole numbers row * W + column [n], or "
                f"pairs (row, column) [n, 2]; got {pixels.dtype} of the shape {pixels.shape}"
            )
        places = pixels if pairs else np.stack(np.divmod(pixels, self.shape[1]), axis=1)
        outside = (places < 0).any(axis=1) | (places >= self.shape).any(axis=1)
        if outside.any():
            row, column = places[np.flatnonzero(outside)[0]].tolist()
            raise ValueError(
                f"pixels: expected pixels of a map of {self.shape[0]} x {self.shape[1]}, got row "
                f"{row}, column {column}"
            )
        marked[places[:, 0], places[:, 1]] = True
        return marked

    def write(self, path: str | os.PathLike[str], group: str = "/qmap") -> None:
        """Writes the map into a new HDF5 file, as pysimplemask does.

        Raises:
          FileExistsError: the file is there.
          OSError: the disk is full or fails; no file is left.
        """
        with new_hdf5(Path(path), overwrite=False) as file:
            self.write_group(file.create_group(group))

    def write_group(self, group: Any) -> None:
        """Writes the map into an empty HDF5 group of an open file."""
        write_layout(group, self.layout, __version__)

    @cached_property
    def layout(self) -> dict[str, Any]:
        """What a file of this map holds, by the names of pysimplemask: maps, lists of q and phi.

        `dynamic_roi_map`, `static_roi_map`, `mask` (and `blemish`) [H, W]; of each kind of bins
        `num_pts`, `v_list_dim0`, `v_list_dim1` and `index_mapping`; `map_names`, `map_units`; what
        the file that it was read from had besides, or the geometry.
        """
        if self._layout is not None:
            layout = {key: value for key, value in self._layout.items() if value is not None}
        else:
            layout = default_layout(self.dynamic, self.static, self.mask, self.q, self.phi)
        if self.blemish is not None:
            layout["blemish"] = self.blemish.astype(np.uint8)
        return layout

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """[H, W], true where a pixel counts."""
        used: NDArray[np.bool_] = self.mask & (self.dynamic > 0) & (self.static > 0)
        return used

    @cached_property
    def pixels(self) -> NDArray[np.int32]:
        """[n_pixels] numbers row * W + column of the pixels that count, ordered by static bin."""
        flat = np.flatnonzero(self.used)
        order = np.argsort(self.static.ravel()[flat], kind="stable")
        return flat[order].astype(np.int32)

    @property
    def n_pixels(self) -> int:
        return len(self.pixels)

    @cached_property
    def pixels_of_bin(self) -> NDArray[np.int64]:
        """[n_dynamic] how many pixels count in each dynamic bin."""
        bins = self.dynamic.ravel()[self.pixels]
        return np.bincount(bins, minlength=self.n_dynamic + 1)[1:].astype(np.int64)

    @cached_property
    def pixels_of_static(self) -> NDArray[np.int64]:
        """[n_static] how many pixels count in each static bin."""
        bins = self.static.ravel()[self.pixels]
        return np.bincount(bins, minlength=self.n_static + 1)[1:].astype(np.int64)

    @cached_property
    def dynamic_of_static(self) -> NDArray[np.int32]:
        """[n_static] the dynamic bin that each static bin lies in; 0 where it has no pixels."""
        static, dynamic = self.static[self.used], self.dynamic[self.used]
        found = np.zeros(self.n_static + 1, np.int32)
        found[static] = dynamic
        if (wrong := static[found[static] != dynamic]).size:
            bins = np.unique(dynamic[static == wrong[0]])
            raise ValueError(
                f"static bin {wrong[0]} has pixels of the dynamic bins {bins.tolist()}; wanted "
                "each static bin inside one dynamic bin"
            )
        return found[1:]


def _bins(name: str, given: Any, shape: tuple[int, int] | None = None) -> NDArray[np.int32]:
    array = np.asarray(given)
    if array.ndim != 2:
        raise ValueError(f"{name} has the shape {array.shape}; wanted [H, W]")
    if shape is not None:
        _check_shape(name, array, shape)
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} holds numbers that are not whole; wanted bins 1, 2, ..., 0 none")
    if array.size and (array.min() < 0 or array.max() > array.size):
        raise ValueError(
            f"{name} holds bins from {array.min()} to {array.max()}; wanted 0 (none) to at most "
            f"the number of pixels, {array.size}"
        )
    return array.astype(np.int32)


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, int]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}; wanted {shape}, that of dynamic")


def _labels(name: str, given: Any, n_bins: int) -> NDArray[np.float64] | None:
    if given is None:
        return None
    values = np.asarray(given, np.float64)
    if values.shape != (n_bins,):
        raise ValueError(
            f"{name} has the shape {values.shape}; wanted [{n_bins}], one for each dynamic bin"
        )
    return values
