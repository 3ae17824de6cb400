"""Frames, events and metadata in HDF5 files, which are searched in the usual places."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.frames import (
    MAX_INDEX,
    DetectorFileError,
    EventFrames,
    FrameSource,
    event_shape,
    mark_sentinels,
)
from jaxkern.xpcs.detectors.hdf5_access import (
    check_filters,
    check_virtual,
    find_dataset,
    find_group,
    find_object,
    hdf5_errors,
    linked_files,
    open_hdf5,
)

if TYPE_CHECKING:
    import h5py

# Data sets of frames: NeXus, Lambda, and LIMA.
_FIXED = (
    "entry/data/data",
    "entry/instrument/detector/data",
    "entry/instrument/detector_1/data",
    "entry_0000/measurement/data",
    "entry_0000/measurement/data/array",
)
# Groups with data_000001, ... of an Eiger or another NeXus master, or with an attribute `signal`.
_PARTS = ("entry/data", "entry")
_PART = re.compile(r"data_(\d{1,12})")
# Scans of ID10 have any detector in SCAN/measurement.
_SCAN = re.compile(r"\d{1,9}\.\d{1,9}")
_EVENT_GROUPS = ("/", "events", "entry/events", "entry/data")


class Hdf5Frames(FrameSource):
    """Frames [N, H, W] of one data set or of the parts in a group; None searches for them."""

    def __init__(self, path: str | os.PathLike[str], dataset: str | None = None):
        self.name = os.fspath(path)
        self._file = open_hdf5(self.name)
        try:
            with hdf5_errors(self.name):
                self._parts = _find_frames(self.name, self._file, dataset)
                self._check_parts()
                self.linked = linked_files(self.name, self._parts)
                height, width = self._parts[0].shape[1:]
                self.shape = (sum(map(len, self._parts)), int(height), int(width))
                self.dtype = self._parts[0].dtype.newbyteorder("=")
                self.metadata = detector_metadata(self._file)
                self.dead = pixel_mask(self._file, self.shape[1:])
                mark_sentinels(self, self._stored)
        except BaseException:
            self._file.close()
            raise

    def _check_parts(self) -> None:
        first = self._parts[0]
        total = 0
        for part in self._parts:
            where = f"{self.name}: {part.name}"
            actual = f"got the shape {part.shape} and dtype {part.dtype}"
            if part.shape is None or len(part.shape) != 3 or part.dtype.kind not in "uif":
                raise DetectorFileError(f"{where}: expected numbers [N, H, W], {actual}")
            if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
                raise DetectorFileError(
                    f"{where}: expected [N, {first.shape[1]}, {first.shape[2]}] and "
                    f"{first.dtype}, as in {first.name}, {actual}"
                )
            total += part.shape[0]
            if total > MAX_INDEX or not 1 <= part.shape[1] * part.shape[2] <= MAX_INDEX:
                raise DetectorFileError(
                    f"{where}: expected up to {MAX_INDEX} frames, 1 to {MAX_INDEX} pixels, {actual}"
                )
            check_filters(self.name, part)
            check_virtual(self.name, part)

    def _stored(self, first: int, stop: int) -> NDArray[Any]:
        """Return frames without checks of their counts."""

        def read(part: h5py.Dataset, begin: int, end: int) -> NDArray[Any]:
            with hdf5_errors(self.name, f"{part.name}, frames {begin} to {end - 1}"):
                return np.asarray(part[begin:end], self.dtype)

        return self.joined([(len(part), partial(read, part)) for part in self._parts], first, stop)

    def read(self, first: int, stop: int) -> NDArray[Any]:
        """Return frames first .. stop - 1; the counts of dead pixels are unchanged."""
        self.check_range(first, stop)
        frames = self._stored(first, stop)
        negative = frames < 0 if self.dtype.kind == "i" else np.zeros(0, bool)
        if negative.any() and self.dead is not None:
            negative &= ~self.dead
        if negative.any():
            frame, row, column = (int(n[0]) for n in np.nonzero(negative))
            where = f"{self.name}: frame {first + frame}, row {row}, column {column}"
            count = frames[frame, row, column]
            raise DetectorFileError(f"{where}: expected a count of 0 or more, got {count}")
        return frames

    def close(self) -> None:
        self._file.close()


def hdf5_frames(
    path: str | os.PathLike[str],
    frame_shape: tuple[int, int] | None = None,
    dataset: str | None = None,
) -> FrameSource:
    """Open the frames of an HDF5 file, or its events: arrays pixel, frame and count in a group."""
    name = os.fspath(path)
    with open_hdf5(name) as file, hdf5_errors(name):
        for group_name in _EVENT_GROUPS if dataset is None else (dataset,):
            group = find_group(file, group_name)
            if group is not None and {"pixel", "frame"} <= set(group):
                return _read_events(name, group, file, frame_shape)
    return Hdf5Frames(path, dataset)


def _read_events(
    name: str, group: h5py.Group, file: h5py.File, frame_shape: tuple[int, int] | None
) -> EventFrames:
    arrays: list[Any] = []
    for key in ("pixel", "frame", "count"):
        column = find_object(group, key)
        if column is not None:
            if len(column.shape) != 1:
                got = f"{column.dtype} {column.shape}"
                raise DetectorFileError(f"{name}: {column.name}: expected integers [M], got {got}")
            check_filters(name, column)
        arrays.append(None if column is None else column[()])
    stored_shape = group.attrs.get("shape")
    if stored_shape is None and (stored := find_object(group, "shape")) is not None:
        stored_shape = stored[()] if stored.shape == (3,) else ()
    shape, n_frames = event_shape(name, stored_shape, frame_shape)
    pixel, frame, count = arrays
    return EventFrames(pixel, frame, count, shape, n_frames, name, detector_metadata(file))


def _find_frames(name: str, file: h5py.File, dataset: str | None) -> list[h5py.Dataset]:
    if dataset is not None:
        item, group = find_dataset(file, dataset), find_group(file, dataset)
        parts = [item] if item is not None else [] if group is None else _numbered_parts(group)
        expected = f"a data set {dataset!r}, or a group of this name with data_000001, ..."
    else:
        parts = next(filter(None, _known_datasets(file)), [])
        expected = "frames in one of the usual data sets, or the name of one (dataset=, --dataset)"
    if not parts and dataset is None:
        parts = _scan_datasets(file)
        if len(parts) > 1:
            names = ", ".join(repr(item.name) for item in parts[:20])
            raise DetectorFileError(f"{name} has {names}; select one (dataset=, --dataset)")
    if not parts:
        raise DetectorFileError(f"{name}: expected {expected}; got {_list_datasets(file)}")
    return parts


def _known_datasets(file: h5py.File) -> Iterator[list[h5py.Dataset]]:
    """Yield the data sets of one run in each of the usual places, or an empty list."""

    def dataset(group: h5py.Group, name: Any) -> list[h5py.Dataset]:
        item = find_dataset(group, name)
        return [] if item is None else [item]

    yield dataset(file, _FIXED[0])
    for path in _PARTS:
        group = find_group(file, path)
        if group is not None:
            yield _numbered_parts(group)
            yield dataset(group, group.attrs.get("signal"))
    for path in _FIXED[1:]:
        yield dataset(file, path)


def _numbered_parts(group: h5py.Group) -> list[h5py.Dataset]:
    """Return data_000001, data_000002, ... in the order of their numbers."""
    numbered = sorted((int(match[1]), key) for key in group if (match := _PART.fullmatch(key)))
    for (before, _), (number, key) in itertools.pairwise(numbered):
        if number != before + 1:
            expected, where = f"{numbered[0][0]} to {numbered[-1][0]}", group.file.filename
            raise DetectorFileError(f"{where}: expected parts {expected}, got {key} after {before}")
    parts = [find_dataset(group, key) for _, key in numbered]
    return [part for part in parts if part is not None]


def _scan_datasets(file: h5py.File) -> list[h5py.Dataset]:
    """Return the data sets of three axes in the measurements of scans."""
    groups = [find_group(file, f"{scan}/measurement") for scan in file if _SCAN.fullmatch(scan)]
    items = [find_dataset(group, key) for group in groups if group is not None for key in group]
    return [item for item in items if item is not None and item.ndim == 3]


def _list_datasets(file: h5py.File) -> str:
    """Return the names of data sets with three axes, or of the root's members, for errors."""
    names: list[str] = []

    def visit(name: str, item: Any) -> bool | None:
        if getattr(item, "ndim", None) == 3:
            names.append(f"/{name} {item.shape}")
        return True if len(names) == 10 else None

    file.visititems(visit)
    return ", ".join(names) or f"no data set of three axes, and the members {sorted(file)[:20]}"


#: wavelength in Angstrom times energy in keV
ANGSTROM_KEV = 12.398419843320026

_DETECTORS = ("entry/instrument/detector_1/", "entry/instrument/detector/")
# Group of LIMA's detectors, each of which is a group.
_LIMA = "entry_0000/instrument"
_UNITS = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "length": {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6},
    "energy": {"kev": 1.0, "ev": 1e-3},
    "wavelength": {"angstrom": 1.0, "a": 1.0, "nm": 10.0, "m": 1e10},
}


def _at_detector(*names: str) -> tuple[str, ...]:
    return tuple(f"{path}{name}" for path in _DETECTORS for name in names)


# (entry, paths, kind of the unit, default unit); the first valid number of an entry is used.
_NUMBERS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("frame_time", _at_detector("frame_time"), "time", "s"),
    ("frame_time", ("entry/instrument/detector/frame_period",), "time", "s"),
    ("count_time", _at_detector("count_time"), "time", "s"),
    ("distance", _at_detector("distance", "detector_distance"), "length", "m"),
    ("pixel_size", _at_detector("x_pixel_size"), "length", "m"),
    ("energy", ("entry/instrument/incident_beam/incident_energy",), "energy", "kev"),
    ("energy", ("entry/instrument/beam/incident_energy",), "energy", "ev"),
    ("energy", ("entry/instrument/detector/detectorSpecific/photon_energy",), "energy", "ev"),
    ("energy", ("entry/instrument/beam/incident_wavelength",), "wavelength", "angstrom"),
    ("energy", ("entry/instrument/monochromator/wavelength",), "wavelength", "angstrom"),
)
_STARTS = ("entry/start_time", "entry_0000/start_time")
MASKS = _at_detector("pixel_mask", "detectorSpecific/pixel_mask")


def detector_metadata(file: h5py.File) -> dict[str, Any]:
    """Return the valid entries of `FrameSource.metadata` that the file stores."""
    metadata: dict[str, Any] = {}
    for name, paths, kind, unit in _NUMBERS:
        for path in paths:
            if name not in metadata and (value := _quantity(file, path, kind, unit)) is not None:
                metadata[name] = ANGSTROM_KEV / value if kind == "wavelength" else value
    for name, value in _lima_times(file).items():
        metadata.setdefault(name, value)
    for path in _STARTS:
        value = _scalar(file, path)
        if "start_time" not in metadata and isinstance(value, bytes | str) and len(value) < 100:
            metadata["start_time"] = (
                value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            )
    return metadata


def _lima_times(file: h5py.File) -> dict[str, float]:
    """Return the times of the first LIMA detector: a frame takes exposure plus latency."""
    group = _optional(file, _LIMA)
    for detector in group if hasattr(group, "keys") else ():
        path = f"{_LIMA}/{detector}/acquisition/"
        exposure = _quantity(file, path + "exposure_time", "time", "s")
        if exposure is not None:
            latency = _quantity(file, path + "latency_time", "time", "s")
            return {"count_time": exposure, "frame_time": exposure + (latency or 0.0)}
    return {}


def pixel_mask(file: h5py.File, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Return a mask [H, W] of bad pixels according to the file; None without such pixels."""
    for path in MASKS:
        stored = _optional(file, path)
        if getattr(stored, "shape", None) is not None and stored.dtype.kind in "uib":
            if tuple(stored.shape) != tuple(shape):
                where = f"{file.filename}: {stored.name}"
                raise DetectorFileError(f"{where}: expected {shape}, got {stored.shape}")
            bad: NDArray[np.bool_] = stored[()] != 0
            return bad if bad.any() else None
    return None


def _optional(file: h5py.File, path: str) -> Any:
    """Return an object, or None if it does not exist or is a broken link."""
    try:
        return find_object(file, path)
    except DetectorFileError:
        return None


def _scalar(file: h5py.File, path: str) -> Any:
    stored = _optional(file, path)
    if getattr(stored, "size", None) != 1:
        return None
    return stored[()].reshape(-1)[0] if stored.shape else stored[()]


def _quantity(file: h5py.File, path: str, kind: str, unit: str) -> float | None:
    """Return a number above 0 in the unit of `FrameSource.metadata`, or None."""
    value = _scalar(file, path)
    if not isinstance(value, int | float | np.integer | np.floating):
        return None
    stored_unit = _optional(file, path).attrs.get("units", unit)
    if isinstance(stored_unit, bytes):
        stored_unit = stored_unit.decode("utf-8", "replace")
    factor = _UNITS[kind].get(stored_unit.lower() if isinstance(stored_unit, str) else unit)
    if factor is None or not math.isfinite(value) or value <= 0:
        return None
    return float(value) * factor
