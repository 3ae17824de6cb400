"""Writing of correlations to HDF5 files of results, for xpcs-viewer and for fits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path
from jaxkern.xpcs.correlators.results import MultiTauResult, Overview, TwoTimeResult
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.hdf5_access import new_hdf5, open_hdf5
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.aps import format_errors
from jaxkern.xpcs.files.aps_entries import FRAMES, ApsFormatError
from jaxkern.xpcs.files.aps_writer import TILE, store_upper
from jaxkern.xpcs.files.provenance import NAME as PROVENANCE

if TYPE_CHECKING:
    import h5py

Array = NDArray[Any]

# Settings of a correlation -> their names in files of boost-corr.
CONFIG_NAMES = {
    "begin": "begin_frame",
    "end": "end_frame",
    "stride": "stride_frame",
    "average": "avg_frame",
    "normalize": "normalize_frame",
    "smoothing": "smooth",
}
SMOOTHINGS = {"static": "sqmap", "dynamic": "dqmap", "none": "none"}
#: metadata of a source -> their names in /entry, and their units
METADATA_NAMES = {
    "frame_time": ("instrument/detector_1/frame_time", "s"),
    "count_time": ("instrument/detector_1/count_time", "s"),
    "distance": ("instrument/detector_1/distance", "m"),
    "energy": ("instrument/incident_beam/incident_energy", "keV"),
    "start_time": ("start_time", None),
}
PIXEL_SIZES = ("instrument/detector_1/x_pixel_size", "instrument/detector_1/y_pixel_size")
# Entries that the viewer expects in the map -> their names in /entry.
_OF_DETECTOR = {
    "beam_center_x": "instrument/detector_1/beam_center_x",
    "beam_center_y": "instrument/detector_1/beam_center_y",
    "detector_distance": METADATA_NAMES["distance"][0],
    "energy": METADATA_NAMES["energy"][0],
    "pixel_size": PIXEL_SIZES[0],
}
# Larger arrays are compressed.
_PACKED = 8192


def write_results(
    path: str | Path,
    multitau: MultiTauResult | None = None,
    twotime: TwoTimeResult | None = None,
    metadata: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    source: FrameSource | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write correlations atomically in the layout of boost-corr, and return the path.

    xpcs-viewer opens the file, `read_results` reads it, and `python -m jaxkern xpcs fit` fits its
    two-time correlations. Bins that were not correlated are NaN in `normalized_g2`. Two-time
    correlations that are not full matrices are stored in /xpcs/twotime_binned.

    Args:
      path: the file, replaced if it exists.
      multitau: result of `multitau`, or None.
      twotime: result of `twotime`, or None.
      metadata: the path of a ``*_metadata.hdf`` file, from which /entry is copied (without
        /entry/data), or a mapping such as `FrameSource.metadata`: "frame_time" and "count_time" in
        s, "energy" in keV, "distance" and "pixel_size" in m, "start_time". The time between frames
        of the results takes precedence.
      source: source of the frames; its metadata are written if `metadata` does not have them.
      provenance: files and settings of the results, stored as JSON in /xpcs/provenance;
        `correlate_files` recognizes finished files by it.

    Raises:
      TypeError: results of another type.
      ValueError: no result, or two results of different detectors or times.
      FileNotFoundError, ApsFormatError: a metadata file that does not exist or has no /entry.
      OSError: the disk is full or fails; an existing file is unchanged.

    Example:
      >>> import numpy as np, pathlib, tempfile
      >>> import jaxkern as jk
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01], phi=[0.0])
      >>> frames = np.random.default_rng(0).poisson(1.0, (40, 4, 4)).astype("u1")
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "results.hdf"
      >>> jk.xpcs.write_results(path, jk.xpcs.multitau(frames, qmap)).name
      'results.hdf'
    """
    _check("multitau", multitau, MultiTauResult)
    _check("twotime", twotime, TwoTimeResult)
    first = multitau or twotime
    if first is None:
        raise ValueError("multitau, twotime: expected at least one result, got None for both")
    _check_together(multitau, twotime)
    known = dict(metadata) if isinstance(metadata, Mapping) else {}
    frame_time = next((_frame_time(r) for r in (multitau, twotime) if _frame_time(r)), None)
    if frame_time is not None:
        known["frame_time"] = frame_time
    path = home_path(path)
    with new_hdf5(path) as file:
        entry = file.create_group("entry")
        if isinstance(metadata, str | os.PathLike):
            _copy_entry(home_path(metadata), entry)
        _write_entry(entry, known)
        _write_entry(entry, {} if source is None else source.metadata, replace=False)
        _write_entry(entry, _geometry_metadata(first.qmap), replace=False)
        _complete_entry(entry)
        _write_qmap(file.create_group("xpcs/qmap"), first.qmap, entry)
        overview = next((r.overview for r in (multitau, twotime) if r and r.overview), None)
        if overview is not None:
            _write_overview(file["xpcs"], overview)
        if multitau is not None:
            _write_multitau(file.create_group("xpcs/multitau"), multitau)
        if twotime is not None:
            _write_twotime(file["xpcs"], twotime)
        if provenance is not None:
            file[PROVENANCE] = json.dumps(dict(provenance))
    return path


def _check(name: str, result: Any, kind: type) -> None:
    if result is not None and not isinstance(result, kind):
        raise TypeError(f"{name}: expected a {kind.__name__}, got a {type(result).__name__}")


def _check_together(multitau: MultiTauResult | None, twotime: TwoTimeResult | None) -> None:
    if multitau is None or twotime is None:
        return
    one, other = multitau.qmap, twotime.qmap
    if one is not other and not (
        np.array_equal(one.dynamic, other.dynamic) and np.array_equal(one.static, other.static)
    ):
        raise ValueError(f"multitau, twotime: {one} and {other} differ; write two files")
    first, second = _frame_time(multitau), _frame_time(twotime)
    if first and second and abs(first - second) > 1e-6 * first:
        raise ValueError(
            "multitau, twotime: expected the same time between the detector's frames, got "
            f"{first:.9g} s and {second:.9g} s; write two files"
        )


def _frame_time(result: MultiTauResult | TwoTimeResult | None) -> float | None:
    """Return the time between the detector's frames in s."""
    if result is None or result.frame_time is None:
        return None
    stride, average = (int(result.config.get(name, 1)) for name in ("stride", "average"))
    return result.frame_time / (stride * average)


# /entry ----------------------------------------------------------------------------------------


def _copy_entry(path: Path, entry: h5py.Group) -> None:
    import h5py

    with open_hdf5(path, ApsFormatError) as source, format_errors(path):
        stored = source.get("entry")
        if not isinstance(stored, h5py.Group):
            raise ApsFormatError(f"{path}: expected a file of metadata with a group /entry")
        entry.attrs.update(stored.attrs)
        for name in stored:
            link = stored.get(name, getlink=True)
            if name == "data":
                continue  # this may hold the frames themselves
            if isinstance(link, h5py.HardLink):
                stored.copy(name, entry)
            else:
                entry[name] = link


def _write_entry(entry: h5py.Group, known: Mapping[str, Any], replace: bool = True) -> None:
    """Write known metadata; existing entries are overwritten only if `replace` is true."""
    values = [(*METADATA_NAMES[name], known.get(name)) for name in METADATA_NAMES]
    sizes = np.broadcast_to(np.asarray(known.get("pixel_size"), np.float64), (2,))
    if np.isfinite(sizes).all():
        values += [(name, "m", size) for name, size in zip(PIXEL_SIZES, sizes, strict=True)]
    for name, unit, value in values:
        if value is None or (name in entry and not replace):
            continue
        if name in entry:
            del entry[name]
        entry[name] = value
        if unit:
            entry[name].attrs["units"] = unit


def _geometry_metadata(qmap: QMap) -> dict[str, Any]:
    """Return the metadata of a map that was computed from a geometry."""
    names = {"energy": "energy", "distance": "detector_distance", "pixel_size": "pixel_size"}
    values = {name: qmap.layout.get(key) for name, key in names.items()}
    numbers = (int, float, np.number)
    return {name: x for name, x in values.items() if isinstance(x, numbers) and np.isfinite(x)}


def _complete_entry(entry: h5py.Group) -> None:
    """Write placeholders for unknown entries that the viewer expects."""
    name = METADATA_NAMES["frame_time"][0]
    if name not in entry:
        entry[name] = 1.0
        entry[name].attrs["units"] = FRAMES
    for name in (METADATA_NAMES["count_time"][0], METADATA_NAMES["energy"][0], *PIXEL_SIZES):
        if name not in entry:
            entry[name] = np.nan
    for name, text in (("schema_version", "1.0"), ("start_time", "")):
        if name not in entry:
            entry[name] = text


# /xpcs -----------------------------------------------------------------------------------------


def _write_qmap(group: h5py.Group, qmap: QMap, entry: h5py.Group) -> None:
    qmap.write_group(group)
    # A map that was not computed from a geometry does not have these entries.
    for name, entry_name in _OF_DETECTOR.items():
        if name not in group:
            group[name] = _number(entry, entry_name)


def _number(entry: h5py.Group, name: str) -> float:
    """Return a number of /entry, or NaN; an entry copied from a file may have any type."""
    item = entry.get(name)
    if getattr(item, "size", None) != 1 or item.dtype.kind not in "iuf":
        return np.nan
    return float(np.ravel(item[()])[0])


def _write_overview(xpcs: h5py.Group, overview: Overview) -> None:
    n = len(xpcs["qmap/static_index_mapping"])
    means = np.full((1 + len(overview.static_means_parts), n), np.nan)
    count = min(n, len(overview.static_means))
    means[0, :count] = overview.static_means[:count]
    means[1:, :count] = overview.static_means_parts[:, :count]
    _store(xpcs, "temporal_mean/scattering_2d", overview.mean_image[None])
    _store(xpcs, "temporal_mean/scattering_1d", means[:1])
    _store(xpcs, "temporal_mean/scattering_1d_segments", means[1:])
    numbered = np.stack([np.arange(len(overview.intensity)), overview.intensity])
    _store(xpcs, "spatial_mean/intensity_vs_time", numbered)


def _write_multitau(group: h5py.Group, result: MultiTauResult) -> None:
    _store(group, "delay_list", result.delay)
    _store(group, "processed_bins", result.bins)
    _store(group, "n_pairs", result.n_pairs)
    group["n_frames"] = result.n_frames
    if result.warnings:
        group["warnings"] = list(result.warnings)
    n = len(group.parent["qmap/dynamic_index_mapping"])
    for name, values in (("normalized_g2", result.g2), ("normalized_g2_err", result.g2_err)):
        # The viewer expects a column for each bin of the map.
        columns = np.full((len(result.delay), n), np.nan)
        columns[:, result.bins - 1] = values
        _store(group, name, columns)
    if result.parts:
        _write_parts(group, result)
    _write_config(group, result.config)


def _write_parts(group: h5py.Group, result: MultiTauResult) -> None:
    """Write g2 of parts of the run; the viewer labels them by the number of their last frame."""
    n = len(group.parent["qmap/dynamic_index_mapping"])
    g2 = np.full((len(result.parts), len(result.delay), n), np.nan)
    error, pairs = g2.copy(), np.zeros(g2.shape[:2], np.int64)
    for k, part in enumerate(result.parts):
        delays = slice(len(part.delay))  # a shorter run has the first delays
        g2[k, delays, part.bins - 1] = part.g2.T
        error[k, delays, part.bins - 1] = part.g2_err.T
        pairs[k, delays] = part.n_pairs
    _store(group, "normalized_g2_partial", g2)
    _store(group, "normalized_g2_partial_err", error)
    ends = np.cumsum([part.n_frames for part in result.parts])
    _store(group, "normalized_g2_partial_labels", ends)
    _store(group, "n_pairs_partial", pairs)


def _write_twotime(xpcs: h5py.Group, result: TwoTimeResult) -> None:
    full = result.config.get("form", "full") == "full"
    group = xpcs.create_group("twotime" if full else "twotime_binned")
    _store(group, "processed_bins", result.bins)
    group["n_frames"] = result.n_frames
    if result.warnings:
        group["warnings"] = list(result.warnings)
    segments = result.n_pairs_parts
    numbers = {
        "n_pairs": result.n_pairs,
        "n_pairs_segments": None if segments is None else np.swapaxes(segments, 0, 1),
        "n_empty": result.n_empty,
        "c2_pairs": result.c2_pairs,
    }
    for name, values in numbers.items():
        if values is not None:
            _store(group, name, values)
    _store(group, "normalized_g2", result.g2)
    _store(group, "normalized_g2_segments", np.swapaxes(result.g2_parts, 0, 1))
    if full:
        maps = group.create_group("correlation_map")
        tile = min(TILE, result.c2.shape[1])
        for number, matrix in enumerate(result.c2, 1):
            # Tiles of the empty triangle are not written.
            stored = maps.create_dataset(
                f"c2_{number:05d}",
                matrix.shape,
                matrix.dtype,
                chunks=(tile, tile),
                compression="lzf",
                shuffle=True,
                fletcher32=True,
            )
            store_upper(stored, 0, matrix)
    else:
        _store(group, "c2", result.c2)
        _store(group, "t1", result.t1)
        _store(group, "t2", result.t2)
    _write_config(group, result.config)


def _write_config(group: h5py.Group, config: Mapping[str, Any]) -> None:
    stored = group.create_group("config")
    for name, value in {"stride": 1, "average": 1, **config}.items():
        if name == "smoothing":
            value = SMOOTHINGS.get(value, value)
        if isinstance(value, tuple) and any(isinstance(part, str) for part in value):
            value = " ".join(map(str, value))  # a form such as ("t1t2", 100)
        if name == "bad_frames":
            value = np.asarray(value, np.int64)
        if name == "hot_pixels":
            value = np.asarray(value, np.int64).reshape(-1, 2)  # rows and columns
        if name == "intensity_cut" and value is not None:
            value = np.asarray(value, np.float64)  # None becomes NaN
        if value is not None:
            stored[CONFIG_NAMES.get(name, name)] = value


def _store(group: h5py.Group, name: str, values: Any) -> None:
    """Store a list or an array with checksums, which HDF5 verifies when it is read."""
    values = np.asarray(values)
    compress = values.size > _PACKED
    options: dict[str, Any] = {"compression": "lzf", "shuffle": True} if compress else {}
    if values.ndim and values.size:
        options["fletcher32"] = True
    group.create_dataset(name, data=values, **options)
