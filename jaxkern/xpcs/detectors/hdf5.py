"""Frames in HDF5 files: one data set, or several that follow each other, of the usual layouts.

Searched in this order: ``/entry/data/data``; ``/entry/data/data_000001``, ... of an Eiger's or
another NeXus master, also in other files; the data set that ``signal`` names in the group of data;
``/entry/instrument/detector/data`` (Lambda); ``/entry_0000/measurement/data`` (LIMA);
``/1.1/measurement/NAME`` of any scan and detector (ID10).
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.events import MAX_INDEX, EventFrames, shape_of_events
from jaxkern.xpcs.detectors.frames import DetectorFileError, FrameSource, sentinel_pixels
from jaxkern.xpcs.detectors.hdf5_access import (
    check_filters,
    check_virtual,
    find_object,
    hdf5_errors,
    linked_files,
    open_hdf5,
)

if TYPE_CHECKING:
    import h5py

_FIXED = (
    "entry/data/data",
    "entry/instrument/detector/data",
    "entry/instrument/detector_1/data",
    "entry_0000/measurement/data",
    "entry_0000/measurement/data/array",
)
_PARTS = ("entry/data", "entry")
_PART = re.compile(r"data_(\d{1,12})")
_SCAN = re.compile(r"\d{1,9}\.\d{1,9}")
_EVENT_GROUPS = ("/", "events", "entry/events", "entry/data")


class Hdf5Frames(FrameSource):
    """Frames [N, H, W] of one data set or of several behind each other.

    `dead` marks pixels with a sentinel, see `sentinel_pixels`, and those of a mask in the file.
    Frames of a part are numbered on behind those of the part before it, whatever numbers its file
    has.

    Args:
      path: the file, or the master of several.
      dataset: name of the data set, or of a group of parts; found where it is None.

    Raises:
      FileNotFoundError: no such file.
      DetectorFileError: not an HDF5 file, a damaged one, none or several data sets of frames, other
        ranks or dtypes, a link to a file that is missing, or a compression that needs `hdf5plugin`.
    """

    def __init__(self, path: str | os.PathLike[str], dataset: str | None = None):
        super().__init__()
        self.name = os.fspath(path)
        self._file = open_hdf5(self.name)
        try:
            with hdf5_errors(self.name):
                self._parts = _find_frames(self.name, self._file, dataset)
                self._check_parts()
                self.linked = linked_files(self.name, self._parts)
                self._starts = np.cumsum([0] + [part.shape[0] for part in self._parts])
                height, width = self._parts[0].shape[1:]
                self.shape = (int(self._starts[-1]), int(height), int(width))
                self.dtype = self._parts[0].dtype.newbyteorder("=")
                self.metadata = detector_metadata(self._file)
                self.dead = self._find_dead()
        except BaseException:
            self._file.close()
            raise

    def _check_parts(self) -> None:
        first = self._parts[0]
        total = 0
        for part in self._parts:
            where = f"{self.name}: {part.name} has the shape {part.shape} and dtype {part.dtype}"
            if part.shape is None or len(part.shape) != 3 or part.dtype.kind not in "uif":
                raise DetectorFileError(f"{where}; wanted numbers [N, H, W]")
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
                raise DetectorFileError(
                    f"{where}; wanted [N, {first.shape[1]}, {first.shape[2]}] and {first.dtype} as "
                    f"of {first.name}"
                )
            total += part.shape[0]
            if total > MAX_INDEX or not 1 <= part.shape[1] * part.shape[2] <= MAX_INDEX:
                raise DetectorFileError(
                    f"{where}; wanted at most {MAX_INDEX} frames and 1 to {MAX_INDEX} pixels"
                )
            check_filters(self.name, part)
            check_virtual(self.name, part)

    def _find_dead(self) -> NDArray[np.bool_] | None:
        mask = pixel_mask(self._file, (self.shape[1], self.shape[2]))
        marked = sentinel_pixels(self.shape, self.dtype, lambda k: self._stored(k, k + 1)[0])
        dead = mask if marked is None else marked if mask is None else mask | marked
        return dead if dead is not None and dead.any() else None

    def _stored(self, first: int, stop: int) -> NDArray[Any]:
        """Frames as the file has them."""
        pieces = []
        for part, start in zip(self._parts, self._starts[:-1].tolist(), strict=True):
            begin, end = max(first - start, 0), min(stop - start, part.shape[0])
            if begin < end:
                with hdf5_errors(self.name, f"{part.name}, frames {begin} to {end - 1}"):
                    pieces.append(part[begin:end])
        if not pieces:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return np.asarray(found, self.dtype)

    def read(self, first: int, stop: int) -> NDArray[Any]:
        """Frames first .. stop - 1; those of dead pixels as the file has them."""
        self.check_range(first, stop)
        frames = self._stored(first, stop)
        if self.dtype.kind == "i" and (frames < 0).any():
            wrong = frames < 0
            if self.dead is not None:
                wrong &= ~self.dead
            if wrong.any():
                frame, row, column = (int(n[0]) for n in np.nonzero(wrong))
                raise DetectorFileError(
                    f"{self.name}: frame {first + frame} has the count "
                    f"{frames[frame, row, column]} in row {row}, column {column}; wanted 0 or more "
                    "where the pixel is not dead"
                )
        return frames

    def close(self) -> None:
        self._file.close()


def hdf5_frames(
    path: str | os.PathLike[str],
    frame_shape: tuple[int, int] | None = None,
    dataset: str | None = None,
) -> FrameSource:
    """Frames of an HDF5 file, or its events: arrays pixel, frame and count in one group."""
    name = os.fspath(path)
    with open_hdf5(name) as file, hdf5_errors(name):
        groups = _EVENT_GROUPS if dataset is None else (dataset,)
        group = next((g for g in groups if _holds_events(file, g)), None)
        if group is not None:
            return _read_events(name, file[group], file, frame_shape)
    return Hdf5Frames(path, dataset)


def _holds_events(file: h5py.File, name: str) -> bool:
    import h5py

    group = find_object(file, name)
    return isinstance(group, h5py.Group) and {"pixel", "frame"} <= set(group)


def _read_events(
    name: str, group: h5py.Group, file: h5py.File, frame_shape: tuple[int, int] | None
) -> EventFrames:
    columns = {key: find_object(group, key) for key in ("pixel", "frame", "count")}
    for key, column in columns.items():
        if column is not None:
            shape, dtype = getattr(column, "shape", None), getattr(column, "dtype", None)
            numbers = shape == (0,) or (dtype is not None and dtype.kind in "ui")
            if shape is None or len(shape) != 1 or not numbers:
                raise DetectorFileError(
                    f"{name}: {group.name}/{key} is {dtype} of the shape {shape}; wanted whole "
                    "numbers [M]"
                )
            check_filters(name, column)
    arrays = [None if column is None else column[()] for column in columns.values()]
    said = group.attrs.get("shape")
    if said is None and (stored := find_object(group, "shape")) is not None:
        if getattr(stored, "shape", None) != (3,):
            raise DetectorFileError(
                f"{name}: {stored.name} does not hold the shape; wanted the numbers N, H and W"
            )
        said = stored[()]
    shape, n_frames = shape_of_events(name, said, frame_shape)
    return EventFrames(
        arrays[0], arrays[1], arrays[2], shape, n_frames, name, detector_metadata(file)
    )


def _find_frames(name: str, file: h5py.File, dataset: str | None) -> list[h5py.Dataset]:
    import h5py

    if dataset is not None:
        found = find_object(file, dataset)
        if isinstance(found, h5py.Dataset):
            return [found]
        if isinstance(found, h5py.Group) and (parts := _parts_of(found)):
            return parts
        raise DetectorFileError(
            f"{name} has no data set {dataset!r}, and no group of that name with data_000001, ...; "
            f"it has {_shown(file)}"
        )
    if isinstance(found := find_object(file, _FIXED[0]), h5py.Dataset):
        return [found]
    for place in _PARTS:
        group = find_object(file, place)
        if isinstance(group, h5py.Group):
            if parts := _parts_of(group):
                return parts
            signal = group.attrs.get("signal")
            if isinstance(signal, str) and isinstance(
                found := find_object(group, signal), h5py.Dataset
            ):
                return [found]
    for place in _FIXED[1:]:
        if isinstance(found := find_object(file, place), h5py.Dataset):
            return [found]
    scans = list(_of_scans(file))
    if len(scans) == 1:
        return scans
    if scans:
        raise DetectorFileError(
            f"{name} holds the frames {', '.join(repr(found.name) for found in scans[:20])}; name "
            "one of them (dataset=, --dataset)"
        )
    raise DetectorFileError(
        f"{name} has no frames where they are looked for; it has {_shown(file)}. Name "
        "the data set (dataset=, --dataset)"
    )


def _parts_of(group: h5py.Group) -> list[h5py.Dataset]:
    """data_000001, data_000002, ... in the order of their numbers."""
    import h5py

    numbered = sorted((int(match[1]), key) for key in group if (match := _PART.fullmatch(key)))
    for (before, _), (number, key) in itertools.pairwise(numbered):
        if number != before + 1:
            raise DetectorFileError(
                f"{group.file.filename}: {group.name}/{key} follows on number {before}; wanted "
                f"parts {numbered[0][0]} to {numbered[-1][0]} once each"
            )
    found = [find_object(group, key) for _, key in numbered]
    return [part for part in found if isinstance(part, h5py.Dataset)]


def _of_scans(file: h5py.File) -> Iterator[h5py.Dataset]:
    """Data sets of three axes in the measurements of scans."""
    import h5py

    for scan in file:
        if _SCAN.fullmatch(scan):
            group = find_object(file, f"{scan}/measurement")
            for key in group if isinstance(group, h5py.Group) else ():
                found = find_object(group, key)
                if isinstance(found, h5py.Dataset) and found.ndim == 3:
                    yield found


def _shown(file: h5py.File) -> str:
    """Names of data sets with three axes, or of what stands at the top, for errors."""
    import h5py

    found: list[str] = []

    def visit(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset) and item.ndim == 3:
            found.append(f"/{name} {item.shape}")
        return True if len(found) == 10 else None

    file.visititems(visit)
    return ", ".join(found) or f"no data set of three axes, and at the top {sorted(file)[:20]}"


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
        return find_object(file, place)
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
