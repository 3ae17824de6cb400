"""Masks of pixels in files: NumPy, TIFF and HDF5."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path
from jaxkern.xpcs.detectors.frames import DetectorFileError
from jaxkern.xpcs.detectors.hdf5 import MASKS
from jaxkern.xpcs.detectors.hdf5_access import find_object, hdf5_errors, open_hdf5
from jaxkern.xpcs.detectors.qmap import QMap

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
    """
    path = home_path(path)
    name = str(path)
    if not path.exists():
        raise FileNotFoundError(f"--{kind}: file not found: {name!r}")
    suffix = path.suffix.lower()
    if suffix not in MASK_SUFFIXES:
        raise DetectorFileError(
            f"{name}: expected a mask in a file that ends in {', '.join(MASK_SUFFIXES)}"
        )
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
        raise DetectorFileError(
            f"{name}: expected numbers [H, W], got {array.dtype} of the shape {array.shape}"
        )
    mask: NDArray[np.bool_] = array != 0
    return mask


def masked_map(qmap: QMap, mask: Any = None, blemish: Any = None) -> QMap:
    """Return a map without the pixels that a mask or a blemish excludes.

    Args:
      mask, blemish: [H, W], true where a pixel is good, or the path of such a file, or None.

    Raises:
      ValueError: a mask of another shape than the map, or one that excludes all pixels.
    """
    for kind, value in (("mask", mask), ("blemish", blemish)):
        if value is None:
            continue
        is_path = isinstance(value, str | os.PathLike)
        name = os.fspath(value) if is_path else kind
        good = read_mask(value, kind) if is_path else np.asarray(value).astype(bool)
        if good.shape != qmap.shape:
            raise ValueError(
                f"{name}: expected a {kind} of {qmap.shape[0]} x {qmap.shape[1]} pixels, as the "
                f"map, got the shape {good.shape}"
            )
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
    except ModuleNotFoundError as error:
        raise ImportError(f"Pillow is required to read {path}; run pip install pillow") from error
    try:
        with Image.open(path) as image:
            return np.asarray(image)
    except Exception as error:  # damaged files give struct.error, ValueError, OSError, ...
        raise DetectorFileError(f"{path} cannot be read as a TIFF file: {error}") from error


def _read_hdf5(name: str, kind: str) -> NDArray[Any]:
    import h5py

    with open_hdf5(name) as file, hdf5_errors(name):
        for path in _IN_HDF5:
            stored = find_object(file, path.format(kind=kind))
            if isinstance(stored, h5py.Dataset):
                return np.asarray(stored[()])
        for path in MASKS:
            stored = find_object(file, path)
            if isinstance(stored, h5py.Dataset):
                return np.asarray(stored[()] == 0)
        images: list[Any] = []

        def visit(_: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.ndim == 2:
                images.append(item)

        file.visititems(visit)
        if len(images) == 1:
            return np.asarray(images[0][()])
        raise DetectorFileError(
            f"{name}: expected a data set {kind!r}, or one data set of two axes; got "
            f"{[item.name for item in images[:10]]}"
        )
