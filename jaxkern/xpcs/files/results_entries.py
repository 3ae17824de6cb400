"""Entries of files of results other than correlations: settings, overview, numbers of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators.results import Overview
from jaxkern.xpcs.detectors.hdf5 import detector_metadata
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.aps_entries import (
    ApsFormatError,
    read_integers,
    read_numbers,
    read_time_step,
)
from jaxkern.xpcs.files.results_writer import CONFIG_NAMES, SMOOTHINGS

if TYPE_CHECKING:
    import h5py


Array = NDArray[Any]

_OVERVIEW = (
    "xpcs/temporal_mean/scattering_2d",
    "xpcs/temporal_mean/scattering_1d",
    "xpcs/temporal_mean/scattering_1d_segments",
    "xpcs/spatial_mean/intensity_vs_time",
)


def read_overview(file: h5py.File, qmap: QMap) -> Overview | None:
    """Read the mean image, intensity and static means; None if one of them is missing."""
    if any(name not in file for name in _OVERVIEW):
        return None
    image, means, parts, intensity = (read_array(file, name) for name in _OVERVIEW)
    if image.shape[-2:] != qmap.shape or intensity.shape[:-1] != (2,):
        raise ApsFormatError(
            f"{_OVERVIEW[0]}, {_OVERVIEW[3]}: expected [1, {qmap.shape[0]}, {qmap.shape[1]}] and "
            f"[2, n], got {list(image.shape)} and {list(intensity.shape)}"
        )
    n = means.size
    if n == 0 or parts.size % n:
        raise ApsFormatError(
            f"{_OVERVIEW[1]}, {_OVERVIEW[2]}: expected a value for each static bin, in each part "
            f"in time, got {n} and {parts.size} values"
        )
    # Static bins of the map without a stored value are NaN.
    static = np.full((1 + parts.size // n, qmap.n_static), np.nan)
    count = min(n, qmap.n_static)
    static[:, :count] = np.concatenate([means.reshape(1, n), parts.reshape(-1, n)])[:, :count]
    return Overview(image.reshape(qmap.shape), intensity[1], static[0], static[1:])


def read_config(file: h5py.File, analysis: str) -> dict[str, Any]:
    """Read the settings of a correlation; settings unknown here keep the name in the file."""
    import h5py

    names = {stored: name for name, stored in CONFIG_NAMES.items()}
    config: dict[str, Any] = {"stride": 1, "average": 1}
    group = file.get(f"xpcs/{analysis}/config")
    for name, item in group.items() if isinstance(group, h5py.Group) else ():
        if isinstance(item, h5py.Dataset) and item.shape is not None and item.size < 10**7:
            value = item[()]
            if isinstance(value, np.generic):
                value = value.item()
            if isinstance(value, bytes):
                value = value.decode(errors="replace")
            config[names.get(name, name)] = value
    if "smoothing" in config:
        smoothings = {stored: name for name, stored in SMOOTHINGS.items()}
        config["smoothing"] = smoothings.get(config["smoothing"], config["smoothing"])
    for name in ("bad_frames", "hot_pixels"):
        if isinstance(config.get(name), np.ndarray):
            config[name] = config[name].tolist()
    if isinstance(config.get("intensity_cut"), np.ndarray):
        cut = config["intensity_cut"].tolist()
        config["intensity_cut"] = tuple(None if x != x else x for x in cut)
    if analysis != "multitau":
        # Other programs only write full matrices, and do not store a form.
        kind, *sizes = str(config.get("form", "full")).split()
        valid = all(size.isdecimal() for size in sizes)
        config["form"] = (kind, *map(int, sizes)) if sizes and valid else kind
    return config


def read_warnings(file: h5py.File, analysis: str) -> tuple[str, ...]:
    """Read the warnings about a correlation."""
    stored = file.get(f"xpcs/{analysis}/warnings")
    shape = getattr(stored, "shape", None)
    if shape is None or len(shape) != 1 or shape[0] > 10**4 or stored.dtype.kind != "O":
        return ()
    return tuple(str(text) for text in stored.asstr(errors="replace")[()])


def read_metadata(file: h5py.File) -> dict[str, Any]:
    """Read the metadata in /entry, in the units of `FrameSource.metadata`."""
    metadata = detector_metadata(file)
    if read_time_step(file, "aps-u") is None:
        metadata.pop("frame_time", None)
    return {name: value for name, value in metadata.items() if value != ""}


def select_bins(values: Array | None, bins: Array) -> Array | None:
    """Return the values of some dynamic bins, numbered from 1."""
    return None if values is None else values[bins - 1]


def read_n_frames(file: h5py.File, analysis: str, overview: Overview | None, least: int) -> int:
    """Return the number of frames that were correlated; `least` if the file does not store it."""
    name = f"xpcs/{analysis}/n_frames"
    if name in file:
        return int(read_integers(file, name)[0])
    return least if overview is None else len(overview.intensity)


def read_array(file: h5py.File, name: str, ndim: int | None = None) -> Array:
    """Read numbers of a rank, integers with their dtype and others as float64."""
    import h5py

    item = file[name]
    if isinstance(item, h5py.Dataset) and item.size == 0 and ndim in (None, len(item.shape)):
        return np.zeros(item.shape)  # such as g2 of 5 parts of 4 frames
    values = read_numbers(file, name, most=available_bytes() // 8)
    if ndim is not None and values.ndim != ndim:
        raise ApsFormatError(f"{name}: expected {ndim} dimensions, got {list(values.shape)}")
    return values if values.dtype.kind in "biu" else values.astype(np.float64)
