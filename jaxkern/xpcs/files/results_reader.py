"""Reading of correlations from files of results by this package or boost-corr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.core.paths import home_path
from jaxkern.xpcs.correlators.g2 import multitau_delays
from jaxkern.xpcs.correlators.results import MultiTauResult, Overview, TwoTimeResult
from jaxkern.xpcs.detectors.hdf5 import detector_metadata
from jaxkern.xpcs.detectors.hdf5_access import open_hdf5
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.aps import (
    complete_rows,
    find_empty_frames,
    format_errors,
    mark_empty_frames,
)
from jaxkern.xpcs.files.aps_entries import (
    ApsFormatError,
    check_alike,
    check_bins,
    check_names,
    read_bins,
    read_integers,
    read_matrices,
    read_numbers,
    read_time_step,
)
from jaxkern.xpcs.files.results_writer import CONFIG_NAMES, SMOOTHINGS

if TYPE_CHECKING:
    import h5py

Array = NDArray[Any]

# Rows of a matrix that are mirrored at a time.
_SLAB = 512
_ANALYSES = ("multitau", "twotime", "twotime_binned")
_OVERVIEW = (
    "xpcs/temporal_mean/scattering_2d",
    "xpcs/temporal_mean/scattering_1d",
    "xpcs/temporal_mean/scattering_1d_segments",
    "xpcs/spatial_mean/intensity_vs_time",
)
_OF_MAP = "the bins of xpcs/qmap/dynamic_roi_map"


class CorrelationResults(NamedTuple):
    """Content of a file of results.

    Args:
      multitau: g2 at the multi-tau delays, or None.
      twotime: two-time correlations, or None.
      metadata: metadata of the measurement, see `FrameSource.metadata`.
    """

    multitau: MultiTauResult | None
    twotime: TwoTimeResult | None
    metadata: dict[str, Any]


def read_results(path: str | Path, bins: Sequence[int] | None = None) -> CorrelationResults:
    """Read a file of results by `write_results` or boost-corr.

    q and phi of a bin are those of its cell in the qmap's `dynamic_index_mapping`. The time between
    frames is that of the detector times `stride_frame` and `avg_frame`. `ApsFile` reads two-time
    correlations that are larger than memory, row by row.

    Args:
      path: the HDF5 file.
      bins: the bins whose two-time correlations are read; None for all.

    Raises:
      FileNotFoundError: no such file.
      ApsFormatError: not an HDF5 file, a damaged one, or groups and data sets that are missing or
        inconsistent.
      ValueError: bins that the file does not have.
      MemoryError: the two-time correlations do not fit into memory.

    Example:
      >>> import numpy as np, pathlib, tempfile
      >>> import jaxkern as jk
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01], phi=[0.0])
      >>> frames = np.random.default_rng(0).poisson(1.0, (40, 4, 4)).astype("u1")
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "results.hdf"
      >>> _ = jk.xpcs.write_results(path, jk.xpcs.multitau(frames, qmap))
      >>> results = jk.xpcs.read_results(path)
      >>> results.multitau.q.tolist(), results.twotime
      ([0.01], None)
    """
    path = home_path(path)
    with open_hdf5(path, ApsFormatError) as file:
        with format_errors(path):
            qmap, overview, multitau = _read_common(file, path)
            analysis = next((name for name in _ANALYSES[1:] if f"xpcs/{name}" in file), None)
            stored = None if analysis is None else _find_matrices(file, analysis, qmap)
        twotime = None
        if analysis is not None and stored is not None:
            picked = _select_matrices(stored, bins, path)
            with format_errors(path):
                twotime = _read_twotime(file, analysis, stored, picked, qmap, overview)
        with format_errors(path):
            return CorrelationResults(multitau, twotime, _read_metadata(file))


def read_multitau(path: Path) -> MultiTauResult | None:
    """Read g2 of a file of results, or None; its two-time correlations are not read."""
    with open_hdf5(path, ApsFormatError) as file, format_errors(path):
        return _read_common(file, path)[2]


def read_two_time_warnings(path: Path) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the numbers of frames without counts by bin, and the warnings of two-time results.

    Both are empty if the file has no two-time correlations or does not store them.
    """
    empty_frames: dict[int, int] = {}
    with open_hdf5(path, ApsFormatError) as file, format_errors(path):
        analysis = next((name for name in _ANALYSES[1:] if f"xpcs/{name}" in file), None)
        if analysis is None:
            return empty_frames, ()
        names = [f"xpcs/{analysis}/{name}" for name in ("processed_bins", "n_empty")]
        if all(name in file for name in names):
            bins = read_bins(file, names[0])
            numbers = _read_numbers(file, names[1], bins.shape)
            if numbers is not None:
                empty_frames = dict(zip(bins.tolist(), numbers.tolist(), strict=True))
        return empty_frames, _read_warnings(file, analysis)


def _read_common(
    file: h5py.File, path: Path
) -> tuple[QMap, Overview | None, MultiTauResult | None]:
    if not any(f"xpcs/{name}" in file for name in _ANALYSES):
        raise ApsFormatError(
            "expected a file of results, got one with neither xpcs/multitau nor xpcs/twotime"
        )
    check_names(file, ("xpcs/qmap/dynamic_index_mapping", "xpcs/qmap/mask"))
    qmap = QMap.read(path, "xpcs/qmap")
    overview = _read_overview(file, qmap)
    multitau = _read_multitau(file, qmap, overview) if "xpcs/multitau" in file else None
    return qmap, overview, multitau


# Multi-tau ---------------------------------------------------------------------------------------


def _read_multitau(file: h5py.File, qmap: QMap, overview: Overview | None) -> MultiTauResult:
    names = [f"xpcs/multitau/{n}" for n in ("delay_list", "normalized_g2", "normalized_g2_err")]
    check_names(file, names)
    delay = read_integers(file, names[0])
    g2, error = (_read_array(file, name, 2) for name in names[1:])
    if g2.shape != error.shape or len(g2) != len(delay) or (delay < 1).any():
        raise ApsFormatError(
            f"{', '.join(names)}: expected delays from 1 and [{len(delay)}, bins] twice, got "
            f"delays from {delay.min()}, {list(g2.shape)} and {list(error.shape)}"
        )
    index = "xpcs/multitau/processed_bins"
    if index in file:
        bins = read_bins(file, index)
    else:
        bins = np.arange(1, 1 + min(g2.shape[1], qmap.n_dynamic))
    check_bins(bins, qmap.n_dynamic, index, _OF_MAP)
    if bins.max() > g2.shape[1]:
        raise ApsFormatError(
            f"{names[1]}: expected a column for bin {bins.max()} of {index}, got {g2.shape[1]}"
        )
    config = _read_config(file, "multitau")
    n_frames = _read_n_frames(file, "multitau", overview, int(delay.max()) + 1)
    frame_time = read_time_step(file, "aps-u", "multitau")
    pairs = "xpcs/multitau/n_pairs"
    n_pairs = read_integers(file, pairs) if pairs in file else None
    if n_pairs is None or len(n_pairs) != len(delay):
        n_pairs = _pairs(delay, n_frames, config.get("dpl", 4))
    result = MultiTauResult(
        delay=delay,
        tau=None if frame_time is None else delay * frame_time,
        bins=bins,
        g2=g2[:, bins - 1],
        g2_err=error[:, bins - 1],
        q=_select_bins(qmap.q, bins),
        phi=_select_bins(qmap.phi, bins),
        n_pixels=qmap.pixels_of_bin[bins - 1],
        n_pairs=n_pairs,
        n_frames=n_frames,
        frame_time=frame_time,
        qmap=qmap,
        overview=overview,
        config=config,
        warnings=_read_warnings(file, "multitau"),
    )
    return replace(result, parts=_read_parts(file, result))


def _read_parts(file: h5py.File, complete: MultiTauResult) -> tuple[MultiTauResult, ...]:
    """Read g2 of parts of the run; () for boost-corr, whose parts all begin at the first frame."""
    endings = ("normalized_g2_partial", "normalized_g2_partial_err", "n_pairs_partial")
    names = [f"xpcs/multitau/{ending}" for ending in endings]
    if names[2] not in file:
        return ()
    labels = "xpcs/multitau/normalized_g2_partial_labels"
    check_names(file, [*names, labels])
    g2, error, pairs = (
        _read_array(file, name, ndim) for name, ndim in zip(names, (3, 3, 2), strict=True)
    )
    ends = read_integers(file, labels)
    shape = (len(ends), len(complete.delay))
    if g2.shape != error.shape or not g2.shape[:2] == pairs.shape == shape:
        raise ApsFormatError(
            f"{', '.join(names)}: expected {list(shape)} and the bins, got {list(g2.shape)}, "
            f"{list(error.shape)} and {list(pairs.shape)}"
        )
    check_bins(complete.bins, g2.shape[2], names[0], f"{g2.shape[2]} columns")
    parts = []
    for k, n_frames in enumerate(np.diff(ends, prepend=0).tolist()):
        reached = np.isin(complete.delay, multitau_delays(n_frames, complete.config.get("dpl", 4)))
        selected = np.ix_(reached, complete.bins - 1)
        parts.append(
            replace(
                complete,
                delay=complete.delay[reached],
                tau=None if complete.tau is None else complete.tau[reached],
                g2=g2[k][selected],
                g2_err=error[k][selected],
                n_pairs=pairs[k][reached],
                n_frames=n_frames,
                overview=None,
                warnings=(),
            )
        )
    return tuple(parts)


def _pairs(delay: Array, n_frames: int, dpl: Any) -> Array:
    """Return the number of pairs of sums at each delay, see `multitau_delays`."""
    pairs = []
    for d in delay.tolist():
        level = 0
        while isinstance(dpl, int) and dpl > 0 and d > (2 * dpl) << level:
            level += 1
        pairs.append((n_frames >> level) - (d >> level))
    return np.array(pairs, np.int64)


# Two-time ----------------------------------------------------------------------------------------


class _Matrices(NamedTuple):
    """Stored two-time correlations: bins [n], and a data set for each, or one for all."""

    bins: Array
    sets: list[h5py.Dataset]


def _find_matrices(file: h5py.File, analysis: str, qmap: QMap) -> _Matrices:
    names = ["normalized_g2", "normalized_g2_segments", "processed_bins"]
    names += ["correlation_map"] if analysis == "twotime" else ["c2", "t1", "t2"]
    check_names(file, [f"xpcs/{analysis}/{name}" for name in names])
    if analysis == "twotime":
        bins, sets = read_matrices(file, qmap.n_dynamic, _OF_MAP)
        check_alike(sets)
        return _Matrices(bins, sets)
    name = f"xpcs/{analysis}/processed_bins"
    bins = read_bins(file, name)
    check_bins(bins, qmap.n_dynamic, name, _OF_MAP)
    return _Matrices(bins, [file[f"xpcs/{analysis}/c2"]])


def _select_matrices(stored: _Matrices, bins: Sequence[int] | None, path: Path) -> list[int]:
    """Return the indices of bins, after a check that their matrices fit into memory."""
    indices = {int(b): k for k, b in enumerate(stored.bins)}
    bins = list(indices) if bins is None else list(bins)
    if not bins or any(b not in indices for b in bins):
        raise ValueError(
            f"bins: expected some of {', '.join(map(str, indices))}, the bins of {path} with a "
            f"two-time correlation, got {bins!r:.80}"
        )
    needed = sum(item.size * item.dtype.itemsize for item in stored.sets)
    needed = needed * len(bins) // len(indices)
    if needed > (free := available_bytes()):
        raise MemoryError(
            f"{path}: two-time correlations of {len(bins)} bins need {needed / 1e9:,.3g} GB, and "
            f"{free / 1e9:,.3g} GB of memory are free; read some of the bins, or read rows with "
            "ApsFile"
        )
    return [indices[b] for b in bins]


def _read_twotime(
    file: h5py.File,
    analysis: str,
    stored: _Matrices,
    picked: list[int],
    qmap: QMap,
    overview: Overview | None,
) -> TwoTimeResult:
    names = [f"xpcs/{analysis}/{name}" for name in ("normalized_g2", "normalized_g2_segments")]
    n, g2, parts = len(stored.bins), _read_array(file, names[0], 2), _read_array(file, names[1], 3)
    full = analysis == "twotime"
    n_frames = int(stored.sets[0].shape[0]) if full else _read_n_frames(file, analysis, overview, 1)
    if g2.shape[1] != n or parts.shape[1:] != (5, n) or (full and len(g2) != n_frames):
        raise ApsFormatError(
            f"{names[0]}, {names[1]}: expected [N, {n}] and [N // 5, 5, {n}], as "
            f"xpcs/{analysis}/processed_bins, got {list(g2.shape)} and {list(parts.shape)}"
        )
    if full:
        c2 = _read_matrices([stored.sets[k] for k in picked])
        t1 = t2 = np.arange(n_frames + 1.0)
    else:
        c2, t1, t2 = (_read_array(file, f"xpcs/{analysis}/{name}") for name in ("c2", "t1", "t2"))
        if c2.shape != (n, len(t1) - 1, len(t2) - 1):
            raise ApsFormatError(
                f"xpcs/{analysis}/c2: expected [{n}, {len(t1) - 1}, {len(t2) - 1}], as t1 and t2, "
                f"got {list(c2.shape)}"
            )
        c2 = c2[picked]
    bins = stored.bins[picked]
    shapes = {
        "n_pairs": g2.shape,
        "n_pairs_segments": parts.shape,
        "n_empty": (n,),
        "c2_pairs": (n, *c2.shape[1:]),
    }
    numbers: dict[str, Any] = {}
    for key, shape in shapes.items():
        values = _read_numbers(file, f"xpcs/{analysis}/{key}", shape)
        if values is not None:
            values = values[picked] if key == "c2_pairs" else values[..., picked]
        numbers[key] = values
    segments = numbers["n_pairs_segments"]
    return TwoTimeResult(
        c2=c2,
        g2=g2[:, picked],
        g2_parts=np.swapaxes(parts[:, :, picked], 0, 1),
        bins=bins,
        t1=t1,
        t2=t2,
        q=_select_bins(qmap.q, bins),
        phi=_select_bins(qmap.phi, bins),
        n_pixels=qmap.pixels_of_bin[bins - 1],
        n_frames=n_frames,
        frame_time=read_time_step(file, "aps-u", analysis),
        qmap=qmap,
        overview=overview,
        config=_read_config(file, analysis),
        n_pairs=numbers["n_pairs"],
        n_pairs_parts=None if segments is None else segments.swapaxes(0, 1),
        n_empty=numbers["n_empty"],
        c2_pairs=numbers["c2_pairs"],
        warnings=_read_warnings(file, analysis),
    )


def _read_numbers(file: h5py.File, name: str, shape: tuple[int, ...]) -> Array | None:
    """Read numbers of a shape; None if the file does not have them."""
    if name not in file:
        return None
    numbers = _read_array(file, name)
    if numbers.ndim == 1 and len(shape) == 2 and len(numbers) == shape[0]:  # the same for all bins
        numbers = np.repeat(numbers[:, None], shape[1], axis=1)
    if numbers.shape != shape:
        raise ApsFormatError(f"{name}: expected {list(shape)}, got {list(numbers.shape)}")
    return numbers


def _read_matrices(sets: list[h5py.Dataset]) -> Array:
    """Read matrices [bins, N, N] with both triangles."""
    n = int(sets[0].shape[0])
    c2 = np.empty((len(sets), n, n), sets[0].dtype)
    for matrix, stored in zip(c2, sets, strict=True):
        values = stored[()]
        for first in range(0, n, _SLAB):
            rows = slice(first, first + _SLAB)
            matrix[rows] = complete_rows(values[rows], values[:, rows].T, first, stored.name)
        mark_empty_frames(matrix, find_empty_frames(matrix), 0)
    return c2


# Entries other than correlations ------------------------------------------------------------------


def _read_overview(file: h5py.File, qmap: QMap) -> Overview | None:
    """Read the mean image, intensity and static means; None if one of them is missing."""
    if any(name not in file for name in _OVERVIEW):
        return None
    image, means, parts, intensity = (_read_array(file, name) for name in _OVERVIEW)
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


def _read_config(file: h5py.File, analysis: str) -> dict[str, Any]:
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


def _read_warnings(file: h5py.File, analysis: str) -> tuple[str, ...]:
    """Read the warnings about a correlation."""
    stored = file.get(f"xpcs/{analysis}/warnings")
    shape = getattr(stored, "shape", None)
    if shape is None or len(shape) != 1 or shape[0] > 10**4 or stored.dtype.kind != "O":
        return ()
    return tuple(str(text) for text in stored.asstr(errors="replace")[()])


def _read_metadata(file: h5py.File) -> dict[str, Any]:
    """Read the metadata in /entry, in the units of `FrameSource.metadata`."""
    metadata = detector_metadata(file)
    if read_time_step(file, "aps-u") is None:
        metadata.pop("frame_time", None)
    return {name: value for name, value in metadata.items() if value != ""}


def _select_bins(values: Array | None, bins: Array) -> Array | None:
    """Return the values of some dynamic bins, numbered from 1."""
    return None if values is None else values[bins - 1]


def _read_n_frames(file: h5py.File, analysis: str, overview: Overview | None, least: int) -> int:
    """Return the number of frames that were correlated; `least` if the file does not store it."""
    name = f"xpcs/{analysis}/n_frames"
    if name in file:
        return int(read_integers(file, name)[0])
    return least if overview is None else len(overview.intensity)


def _read_array(file: h5py.File, name: str, ndim: int | None = None) -> Array:
    """Read numbers of a rank, integers with their dtype and others as float64."""
    import h5py

    item = file[name]
    if isinstance(item, h5py.Dataset) and item.size == 0 and ndim in (None, len(item.shape)):
        return np.zeros(item.shape)  # such as g2 of 5 parts of 4 frames
    values = read_numbers(file, name, most=available_bytes() // 8)
    if ndim is not None and values.ndim != ndim:
        raise ApsFormatError(f"{name}: expected {ndim} dimensions, got {list(values.shape)}")
    return values if values.dtype.kind in "biu" else values.astype(np.float64)
