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
    read_numbers,
    read_time_step,
    read_whole_numbers,
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
    """Mean image, intensity and static means; None where one of them is missing."""
    if any(name not in file for name in _OVERVIEW):
        return None
    image, means, parts, intensity = (read_array(file, name) for name in _OVERVIEW)
    if image.shape[-2:] != qmap.shape or intensity.shape[:-1] != (2,):
        raise ApsFormatError(
            f"{_OVERVIEW[0]} is {list(image.shape)} and {_OVERVIEW[3]} {list(intensity.shape)}; "
            f"wanted [1, {qmap.shape[0]}, {qmap.shape[1]}] and [2, n]"
        )
    n = means.size
    if n == 0 or parts.size % n:
        raise ApsFormatError(
            f"{_OVERVIEW[1]} has {n} values and {_OVERVIEW[2]} {parts.size}; wanted a value for "
            "each static bin, and as many for each part in time"
        )
    # A value for each static bin of the map, of those that have one.
    static = np.full((1 + parts.size // n, qmap.n_static), np.nan)
    shown = min(n, qmap.n_static)
    static[:, :shown] = np.concatenate([means.reshape(1, n), parts.reshape(-1, n)])[:, :shown]
    return Overview(image.reshape(qmap.shape), intensity[1], static[0], static[1:])


def read_config(file: h5py.File, analysis: str) -> dict[str, Any]:
    """The settings of a correlation by our names; those of other programs by theirs."""
    import h5py

    ours = {theirs: name for name, theirs in CONFIG_NAMES.items()}
    found: dict[str, Any] = {"stride": 1, "average": 1}
    group = file.get(f"xpcs/{analysis}/config")
    for name, item in group.items() if isinstance(group, h5py.Group) else ():
        if isinstance(item, h5py.Dataset) and item.shape is not None and item.size < 10**7:
            value = item[()]
            if isinstance(value, np.generic):
                value = value.item()
            if isinstance(value, bytes):
                value = value.decode(errors="replace")
            found[ours.get(name, name)] = value
    if "smoothing" in found:
        back = {theirs: name for name, theirs in SMOOTHINGS.items()}
        found["smoothing"] = back.get(found["smoothing"], found["smoothing"])
    for name in ("bad_frames", "hot_pixels"):
        if isinstance(found.get(name), np.ndarray):
            found[name] = found[name].tolist()
    if isinstance(found.get("intensity_cut"), np.ndarray):
        cut = found["intensity_cut"].tolist()
        found["intensity_cut"] = tuple(None if x != x else x for x in cut)
    if analysis != "multitau":
        # Other programs have one form, and no word for it.
        kind, *sizes = str(found.get("form", "full")).split()
        whole = all(size.isdecimal() for size in sizes)
        found["form"] = (kind, *map(int, sizes)) if sizes and whole else kind
    return found


def read_warnings(file: h5py.File, analysis: str) -> tuple[str, ...]:
    """What was doubtful about a correlation."""
    stored = file.get(f"xpcs/{analysis}/warnings")
    shape = getattr(stored, "shape", None)
    if shape is None or len(shape) != 1 or shape[0] > 10**4 or stored.dtype.kind != "O":
        return ()
    return tuple(str(text) for text in stored.asstr(errors="replace")[()])


def read_metadata(file: h5py.File) -> dict[str, Any]:
    """What /entry says that is known, in the units of `FrameSource.metadata`."""
    found = detector_metadata(file)
    if read_time_step(file, "aps-u") is None:
        found.pop("frame_time", None)
    return {name: value for name, value in found.items() if value != ""}


def of_bins(values: Array | None, bins: Array) -> Array | None:
    """What a list of the dynamic bins has for some of them."""
    return None if values is None else values[bins - 1]


def read_n_frames(file: h5py.File, analysis: str, overview: Overview | None, least: int) -> int:
    """How many frames were correlated; `least` where nothing says it."""
    name = f"xpcs/{analysis}/n_frames"
    if name in file:
        return int(read_whole_numbers(file, name)[0])
    return least if overview is None else len(overview.intensity)


def read_array(file: h5py.File, name: str, ndim: int | None = None) -> Array:
    """Numbers of a rank; whole ones stay so."""
    import h5py

    item = file[name]
    if isinstance(item, h5py.Dataset) and item.size == 0 and ndim in (None, len(item.shape)):
        return np.zeros(item.shape)  # as of 5 parts of 4 frames
    values = read_numbers(file, name, most=available_bytes() // 8)
    if ndim is not None and values.ndim != ndim:
        raise ApsFormatError(f"{name} is {list(values.shape)}; wanted {ndim} dimensions")
    return values if values.dtype.kind in "biu" else values.astype(np.float64)
