"""What HDF5 files of detectors say beside their frames: times, energy, distances, dead pixels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.frames import DetectorFileError
from jaxkern.xpcs.detectors.hdf5_access import look

if TYPE_CHECKING:
    import h5py

#: wavelength in Angstrom times energy in keV
ANGSTROM_KEV = 12.398419843320026

_DETECTORS = ("entry/instrument/detector_1/", "entry/instrument/detector/")
# LIMA's detectors, each in a group of its own name.
_LIMA = "entry_0000/instrument"
_UNITS = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "length": {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6},
    "energy": {"kev": 1.0, "ev": 1e-3},
    "wavelength": {"angstrom": 1.0, "a": 1.0, "nm": 10.0, "m": 1e10},
}
# name -> places, the kind of its unit, and the unit where the file names none.
_NUMBERS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "frame_time": (
        (*(f"{place}frame_time" for place in _DETECTORS), "entry/instrument/detector/frame_period"),
        "time",
        "s",
    ),
    "count_time": (
        tuple(f"{place}count_time" for place in _DETECTORS),
        "time",
        "s",
    ),
    "distance": (
        tuple(
            f"{place}{name}" for place in _DETECTORS for name in ("distance", "detector_distance")
        ),
        "length",
        "m",
    ),
    "pixel_size": (tuple(f"{place}x_pixel_size" for place in _DETECTORS), "length", "m"),
}
_ENERGIES = (
    ("entry/instrument/incident_beam/incident_energy", "kev"),
    ("entry/instrument/beam/incident_energy", "ev"),
    ("entry/instrument/detector/detectorSpecific/photon_energy", "ev"),
)
_WAVELENGTHS = (
    "entry/instrument/beam/incident_wavelength",
    "entry/instrument/monochromator/wavelength",
)
_STARTS = ("entry/start_time", "entry_0000/start_time")
MASKS = tuple(
    f"{place}{name}"
    for place in _DETECTORS
    for name in ("pixel_mask", "detectorSpecific/pixel_mask")
)


def detector_metadata(file: h5py.File) -> dict[str, Any]:
    """What `FrameSource.metadata` has, as far as the file says it and it makes sense."""
    told: dict[str, Any] = {}
    for name, (places, kind, unit) in _NUMBERS.items():
        for place in places:
            if (value := _quantity(file, place, kind, unit)) is not None:
                told[name] = value
                break
    for name, value in _lima_times(file).items():
        told.setdefault(name, value)
    for place, unit in _ENERGIES:
        if "energy" not in told and (value := _quantity(file, place, "energy", unit)) is not None:
            told["energy"] = value
    for place in _WAVELENGTHS:
        if "energy" not in told:
            if (value := _quantity(file, place, "wavelength", "angstrom")) is not None:
                told["energy"] = ANGSTROM_KEV / value
    for place in _STARTS:
        value = _scalar(file, place)
        if "start_time" not in told and isinstance(value, bytes | str) and len(value) < 100:
            told["start_time"] = (
                value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            )
    return told


def _lima_times(file: h5py.File) -> dict[str, float]:
    """Of the first of LIMA's detectors: a frame takes its exposure and the latency behind it."""
    group = _optional(file, _LIMA)
    for detector in group if hasattr(group, "keys") else ():
        place = f"{_LIMA}/{detector}/acquisition/"
        exposure = _quantity(file, place + "exposure_time", "time", "s")
        if exposure is not None:
            latency = _quantity(file, place + "latency_time", "time", "s")
            return {"count_time": exposure, "frame_time": exposure + (latency or 0.0)}
    return {}


def pixel_mask(file: h5py.File, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
    """[H, W], true where the file's mask of pixels has a reason not to use one; None without."""
    for place in MASKS:
        stored = _optional(file, place)
        if getattr(stored, "shape", None) is not None and stored.dtype.kind in "uib":
            if tuple(stored.shape) != tuple(shape):
                raise DetectorFileError(
                    f"{file.filename}: {stored.name} has the shape {stored.shape}; wanted {shape}, "
                    "that of a frame"
                )
            found: NDArray[np.bool_] = stored[()] != 0
            return found
    return None


def _optional(file: h5py.File, place: str) -> Any:
    """What is there; what cannot be reached counts as not there."""
    try:
        return look(file, place)
    except DetectorFileError:
        return None


def _scalar(file: h5py.File, place: str) -> Any:
    stored = _optional(file, place)
    if getattr(stored, "size", None) != 1:
        return None
    return stored[()].reshape(-1)[0] if stored.shape else stored[()]


def _quantity(file: h5py.File, place: str, kind: str, unit: str) -> float | None:
    """A number above 0 in the unit of `FrameSource.metadata`."""
    value = _scalar(file, place)
    if not isinstance(value, int | float | np.integer | np.floating):
        return None
    stored = _optional(file, place)
    said = stored.attrs.get("units", unit)
    said = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    factor = _UNITS[kind].get(said.lower() if isinstance(said, str) else unit)
    if factor is None or not math.isfinite(value) or value <= 0:
        return None
    return float(value) * factor
