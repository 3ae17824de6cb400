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
from jaxkern.xpcs.files.aps import format_errors, store_upper, tile_options
from jaxkern.xpcs.files.aps_entries import FRAMES, ApsFormatError
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
_DETECTOR, _BEAM = "instrument/detector_1", "instrument/incident_beam"
# Metadata of a source -> entry of /entry, its unit, and a placeholder that the viewer needs.
_METADATA: dict[str, tuple[str, str | None, Any]] = {
    "frame_time": (f"{_DETECTOR}/frame_time", "s", 1.0),
    "count_time": (f"{_DETECTOR}/count_time", "s", np.nan),
    "distance": (f"{_DETECTOR}/distance", "m", None),
    "x_pixel_size": (f"{_DETECTOR}/x_pixel_size", "m", np.nan),
    "y_pixel_size": (f"{_DETECTOR}/y_pixel_size", "m", np.nan),
    "energy": (f"{_BEAM}/incident_energy", "keV", np.nan),
    "start_time": ("start_time", None, ""),
    "schema_version": ("schema_version", None, "1.0"),
}
# Entries that the viewer expects in the map -> their names in /entry.
_OF_DETECTOR = {
    "beam_center_x": f"{_DETECTOR}/beam_center_x",
    "beam_center_y": f"{_DETECTOR}/beam_center_y",
    "detector_distance": f"{_DETECTOR}/distance",
    "energy": f"{_BEAM}/incident_energy",
    "pixel_size": f"{_DETECTOR}/x_pixel_size",
}
#: entries of /xpcs with the overview
OVERVIEW = (
    "temporal_mean/scattering_2d",
    "temporal_mean/scattering_1d",
    "temporal_mean/scattering_1d_segments",
    "spatial_mean/intensity_vs_time",
)
# Larger arrays are compressed.
_PACKED = 8192
_COMPRESSION: dict[str, Any] = {"compression": "lzf", "shuffle": True}


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
    _check_together(multitau, twotime)
    results = [result for result in (multitau, twotime) if result is not None]
    if not results:
        raise ValueError("multitau, twotime: expected at least one result, got None for both")
    qmap, known = results[0].qmap, dict(metadata) if isinstance(metadata, Mapping) else {}
    if times := [time for time in map(_frame_time, results) if time]:
        known["frame_time"] = times[0]
    path = home_path(path)
    with new_hdf5(path) as file:
        entry = file.create_group("entry")
        if isinstance(metadata, str | os.PathLike):
            _copy_entry(home_path(metadata), entry)
        _write_entry(entry, known, {} if source is None else source.metadata, _geometry(qmap))
        xpcs = file.create_group("xpcs")
        _write_qmap(xpcs.create_group("qmap"), qmap, entry)
        overview = next((result.overview for result in results if result.overview), None)
        if overview is not None:
            _write_overview(xpcs, overview)
        if multitau is not None:
            _write_multitau(xpcs, multitau)
        if twotime is not None:
            _write_twotime(xpcs, twotime)
        if provenance is not None:
            file[PROVENANCE] = json.dumps(dict(provenance))
    return path


def _check_together(multitau: MultiTauResult | None, twotime: TwoTimeResult | None) -> None:
    """Raise errors for results of other types, and for two of different detectors or times."""
    kinds = {"multitau": (multitau, MultiTauResult), "twotime": (twotime, TwoTimeResult)}
    for name, (result, kind) in kinds.items():
        if not isinstance(result, kind | None):
            raise TypeError(f"{name}: expected a {kind.__name__}, got a {type(result).__name__}")
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


def _frame_time(result: MultiTauResult | TwoTimeResult) -> float | None:
    """Return the time between the detector's frames in s."""
    if result.frame_time is None:
        return None
    stride, average = (int(result.config.get(name, 1)) for name in ("stride", "average"))
    return result.frame_time / (stride * average)


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


def _write_entry(entry: h5py.Group, known: Mapping[str, Any], *others: Mapping[str, Any]) -> None:
    """Write known metadata; others, and then placeholders, only if /entry does not have them."""
    known, *fallbacks = map(_split_pixel_size, (known, *others))
    for name, (path, unit, placeholder) in _METADATA.items():
        value = known.get(name)
        if value is None and path not in entry:
            value = next((x[name] for x in fallbacks if x.get(name) is not None), None)
            if value is None:
                value, unit = placeholder, FRAMES if name == "frame_time" else None
        if value is None:
            continue
        if path in entry:
            del entry[path]
        entry[path] = value
        if unit:
            entry[path].attrs["units"] = unit


def _split_pixel_size(metadata: Mapping[str, Any]) -> dict[str, Any]:
    sizes = np.broadcast_to(np.asarray(metadata.get("pixel_size"), np.float64), (2,))
    known = np.isfinite(sizes).all()
    both = zip(("x_pixel_size", "y_pixel_size"), sizes, strict=True)
    return {**metadata, **(dict(both) if known else {})}


def _geometry(qmap: QMap) -> dict[str, Any]:
    """Return the metadata of a map that was computed from a geometry."""
    names = {"energy": "energy", "distance": "detector_distance", "pixel_size": "pixel_size"}
    values = {name: qmap.layout.get(key) for name, key in names.items()}
    numbers = (int, float, np.number)
    return {name: x for name, x in values.items() if isinstance(x, numbers) and np.isfinite(x)}


def _write_qmap(group: h5py.Group, qmap: QMap, entry: h5py.Group) -> None:
    qmap.write_group(group)
    # A map that was not computed from a geometry does not have these entries.
    for name, path in _OF_DETECTOR.items():
        if name not in group:
            item = entry.get(path)  # copied from a file, and of any type
            known = getattr(item, "size", None) == 1 and item.dtype.kind in "iuf"
            group[name] = float(np.ravel(item[()])[0]) if known else np.nan


def _write_overview(xpcs: h5py.Group, overview: Overview) -> None:
    n = len(xpcs["qmap/static_index_mapping"])
    means = np.full((1 + len(overview.static_means_parts), n), np.nan)
    count = min(n, len(overview.static_means))
    means[0, :count] = overview.static_means[:count]
    means[1:, :count] = overview.static_means_parts[:, :count]
    numbered = np.stack([np.arange(len(overview.intensity)), overview.intensity])
    arrays = (overview.mean_image[None], means[:1], means[1:], numbered)
    for name, values in zip(OVERVIEW, arrays, strict=True):
        _store(xpcs, name, values)


def _write_multitau(xpcs: h5py.Group, result: MultiTauResult) -> None:
    n = len(xpcs["qmap/dynamic_index_mapping"])

    def columns(part: MultiTauResult, values: Array) -> Array:
        """Expand [delays, bins] to the delays of the run and the bins of the map, with NaN.

        A part of the run has the first delays. The viewer expects a column for each bin.
        """
        expanded = np.full((len(result.delay), n), np.nan)
        expanded[: len(part.delay), part.bins - 1] = values
        return expanded

    arrays: dict[str, Any] = {
        "delay_list": result.delay,
        "normalized_g2": columns(result, result.g2),
        "normalized_g2_err": columns(result, result.g2_err),
    }
    if result.g2_groups is not None:
        arrays["g2_groups"] = [columns(result, group) for group in result.g2_groups]
    if parts := result.parts:
        pad = [(0, len(result.delay) - len(part.delay)) for part in parts]
        arrays |= {
            "normalized_g2_partial": [columns(part, part.g2) for part in parts],
            "normalized_g2_partial_err": [columns(part, part.g2_err) for part in parts],
            # The viewer labels parts by the number of their last frame.
            "normalized_g2_partial_labels": np.cumsum([part.n_frames for part in parts]),
            "n_pairs_partial": [np.pad(p.n_pairs, w) for p, w in zip(parts, pad, strict=True)],
        }
    _write_analysis(xpcs.create_group("multitau"), result, arrays)


def _write_twotime(xpcs: h5py.Group, result: TwoTimeResult) -> None:
    segments = result.n_pairs_parts
    arrays = {
        "n_pairs_segments": None if segments is None else np.swapaxes(segments, 0, 1),
        "n_empty": result.n_empty,
        "c2_pairs": result.c2_pairs,
        "normalized_g2": result.g2,
        "normalized_g2_segments": np.swapaxes(result.g2_parts, 0, 1),
    }
    if result.config.get("form", "full") != "full":
        arrays |= {"c2": result.c2, "t1": result.t1, "t2": result.t2}
        _write_analysis(xpcs.create_group("twotime_binned"), result, arrays)
        return
    group = xpcs.create_group("twotime")
    _write_analysis(group, result, arrays)
    options = tile_options(result.c2.shape[1]) | _COMPRESSION
    for number, matrix in enumerate(result.c2, 1):
        # Tiles of the empty triangle are not written.
        name = f"correlation_map/c2_{number:05d}"
        store_upper(group.create_dataset(name, matrix.shape, matrix.dtype, **options), 0, matrix)


def _write_analysis(
    group: h5py.Group, result: MultiTauResult | TwoTimeResult, arrays: Mapping[str, Any]
) -> None:
    """Write entries of both analyses, and `arrays` other than None."""
    both = {"processed_bins": result.bins, "n_pairs": result.n_pairs, "n_frames": result.n_frames}
    for name, values in {**both, **arrays}.items():
        if values is not None:
            _store(group, name, values)
    if result.warnings:
        group["warnings"] = list(result.warnings)
    _write_config(group, result.config)


def _write_config(group: h5py.Group, config: Mapping[str, Any]) -> None:
    stored = group.create_group("config")
    for name, value in {"stride": 1, "average": 1, **config}.items():
        if name == "smoothing":
            value = SMOOTHINGS.get(value, value)
        elif name == "bad_frames":
            value = np.asarray(value, np.int64)
        elif name == "hot_pixels":
            value = np.asarray(value, np.int64).reshape(-1, 2)  # rows and columns
        elif name == "intensity_cut" and value is not None:
            value = np.asarray(value, np.float64)  # None becomes NaN
        elif isinstance(value, tuple) and any(isinstance(part, str) for part in value):
            value = " ".join(map(str, value))  # a form such as ("t1t2", 100)
        if value is not None:
            stored[CONFIG_NAMES.get(name, name)] = value


def _store(group: h5py.Group, name: str, values: Any) -> None:
    """Store a list or an array with checksums, which HDF5 verifies when it is read."""
    values = np.asarray(values)
    checked = {"fletcher32": True} if values.ndim and values.size else {}
    packed = _COMPRESSION if values.size > _PACKED else {}
    group.create_dataset(name, data=values, **checked, **packed)
