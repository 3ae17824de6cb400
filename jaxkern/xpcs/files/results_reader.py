"""Reading of correlations from files of results by this package or boost-corr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes, check_memory
from jaxkern.core.paths import home_path
from jaxkern.xpcs.correlators.results import (
    MultiTauResult,
    Overview,
    TwoTimeResult,
    multitau_delays,
)
from jaxkern.xpcs.detectors.hdf5 import detector_metadata
from jaxkern.xpcs.detectors.hdf5_access import open_hdf5
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.aps import complete_matrix, format_errors
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
from jaxkern.xpcs.files.results_writer import CONFIG_NAMES, OVERVIEW, SMOOTHINGS

if TYPE_CHECKING:
    import h5py

Array = NDArray[Any]

_MULTITAU, _TWO_TIMES = "xpcs/multitau", ("xpcs/twotime", "xpcs/twotime_binned")
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
            analysis = next((name for name in _TWO_TIMES if name in file), None)
            stored, sets = _find_matrices(file, analysis, qmap)
        picked = _select_matrices(stored, sets, bins, path) if sets else []
        with format_errors(path):
            twotime = None
            if analysis is not None:
                twotime = _read_twotime(file, analysis, stored, sets, picked, qmap, overview)
            return CorrelationResults(multitau, twotime, _read_metadata(file))


def read_g2(path: Path) -> CorrelationResults:
    """Read a file of results without its two-time correlations."""
    with open_hdf5(path, ApsFormatError) as file, format_errors(path):
        return CorrelationResults(_read_common(file, path)[2], None, _read_metadata(file))


def read_summary(path: Path) -> tuple[MultiTauResult | None, dict[int, int], tuple[str, ...]]:
    """Read a file of results without its two-time correlations.

    Returns g2 or None, and of the two-time correlations the numbers of frames without counts by bin
    and the warnings; both are empty if the file does not store them.
    """
    with open_hdf5(path, ApsFormatError) as file, format_errors(path):
        multitau, empty_frames = _read_common(file, path)[2], {}
        analysis = next((name for name in _TWO_TIMES if name in file), _TWO_TIMES[0])
        names = [f"{analysis}/{name}" for name in ("processed_bins", "n_empty")]
        if all(name in file for name in names):
            bins = read_bins(file, names[0])
            numbers = _read_array(file, names[1], shape=bins.shape)
            empty_frames = dict(zip(bins.tolist(), numbers.tolist(), strict=True))
        return multitau, empty_frames, _read_warnings(file, analysis)


def _read_common(
    file: h5py.File, path: Path
) -> tuple[QMap, Overview | None, MultiTauResult | None]:
    if not any(name in file for name in (_MULTITAU, *_TWO_TIMES)):
        raise ApsFormatError(
            "expected a file of results, got one with neither xpcs/multitau nor xpcs/twotime"
        )
    check_names(file, ("xpcs/qmap/dynamic_index_mapping", "xpcs/qmap/mask"))
    qmap = QMap.read(path, "xpcs/qmap")
    overview = _read_overview(file, qmap)
    return qmap, overview, _read_multitau(file, qmap, overview) if _MULTITAU in file else None


def _common_fields(
    file: h5py.File, analysis: str, qmap: QMap, overview: Overview | None, bins: Array, n: int
) -> dict[str, Any]:
    """Return the fields of both results; n is the number of frames if the file has none."""
    n_frames = f"{analysis}/n_frames"
    if overview is not None:
        n = len(overview.intensity)
    return {
        "bins": bins,
        "q": None if qmap.q is None else qmap.q[bins - 1],
        "phi": None if qmap.phi is None else qmap.phi[bins - 1],
        "n_pixels": qmap.pixels_of_bin[bins - 1],
        "n_frames": int(read_integers(file, n_frames)[0]) if n_frames in file else n,
        "frame_time": read_time_step(file, "aps-u", analysis.removeprefix("xpcs/")),
        "qmap": qmap,
        "overview": overview,
        "config": _read_config(file, analysis),
        "warnings": _read_warnings(file, analysis),
    }


def _read_multitau(file: h5py.File, qmap: QMap, overview: Overview | None) -> MultiTauResult:
    names = [f"{_MULTITAU}/{n}" for n in ("delay_list", "normalized_g2", "normalized_g2_err")]
    check_names(file, names)
    delay = read_integers(file, names[0])
    g2, error = (_read_array(file, name, 2) for name in names[1:])
    if g2.shape != error.shape or len(g2) != len(delay) or (delay < 1).any():
        raise ApsFormatError(
            f"{', '.join(names)}: expected delays from 1 and [{len(delay)}, bins] twice, got "
            f"delays from {delay.min()}, {list(g2.shape)} and {list(error.shape)}"
        )
    index, bins = f"{_MULTITAU}/processed_bins", np.arange(1, 1 + min(g2.shape[1], qmap.n_dynamic))
    if index in file:
        bins = read_bins(file, index, qmap.n_dynamic, _OF_MAP)
    if bins.max() > g2.shape[1]:
        raise ApsFormatError(
            f"{names[1]}: expected a column for bin {bins.max()} of {index}, got {g2.shape[1]}"
        )
    common = _common_fields(file, _MULTITAU, qmap, overview, bins, int(delay.max()) + 1)
    pairs = f"{_MULTITAU}/n_pairs"
    n_pairs = read_integers(file, pairs) if pairs in file else None
    if n_pairs is None or len(n_pairs) != len(delay):
        n_pairs = _pairs(delay, common["n_frames"], common["config"].get("dpl", 4))
    step = common["frame_time"]
    tau = None if step is None else delay * step
    g2, error = g2[:, bins - 1], error[:, bins - 1]
    result = MultiTauResult(delay=delay, tau=tau, g2=g2, g2_err=error, n_pairs=n_pairs, **common)
    return replace(result, parts=_read_parts(file, result), g2_groups=_read_groups(file, result))


def _read_groups(file: h5py.File, complete: MultiTauResult) -> Array | None:
    """Read the means of groups of pixels; None if the file has none."""
    name = f"{_MULTITAU}/g2_groups"
    if name not in file:
        return None
    groups = _read_array(file, name, 3)
    if len(groups) < 2 or groups.shape[1] != len(complete.delay):
        raise ApsFormatError(
            f"{name}: expected [groups, {len(complete.delay)}, bins] of at least 2 groups, got "
            f"{list(groups.shape)}"
        )
    check_bins(complete.bins, groups.shape[2], name, f"{groups.shape[2]} columns")
    return groups[:, :, complete.bins - 1]


def _read_parts(file: h5py.File, complete: MultiTauResult) -> tuple[MultiTauResult, ...]:
    """Read g2 of parts of the run; () for boost-corr, whose parts all begin at the first frame."""
    endings = ("normalized_g2_partial", "normalized_g2_partial_err", "n_pairs_partial")
    names = [f"{_MULTITAU}/{ending}" for ending in endings]
    if names[2] not in file:
        return ()
    labels = f"{_MULTITAU}/normalized_g2_partial_labels"
    check_names(file, [*names, labels])
    g2, error, pairs = map(_read_array, [file] * 3, names, (3, 3, 2))
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
        part = replace(
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
        parts.append(part)
    return tuple(parts)


def _pairs(delay: Array, n_frames: int, dpl: Any) -> Array:
    """Return the number of pairs of sums at each delay, see `multitau_delays`."""
    known = isinstance(dpl, int) and dpl > 0
    level = np.ceil(np.log2(np.maximum(delay / (2 * dpl), 1))).astype(np.int64) if known else 0
    return np.asarray((n_frames >> level) - (delay >> level))


def _find_matrices(
    file: h5py.File, analysis: str | None, qmap: QMap
) -> tuple[Array, list[h5py.Dataset]]:
    """Return the bins [n] of two-time correlations, and a data set for each, or one for all."""
    if analysis is None:
        return np.zeros(0, np.int64), []
    full = analysis == _TWO_TIMES[0]
    names = ["normalized_g2", "normalized_g2_segments", "processed_bins"]
    names += ["correlation_map"] if full else ["c2", "t1", "t2"]
    check_names(file, [f"{analysis}/{name}" for name in names])
    if full:
        bins, sets = read_matrices(file, qmap.n_dynamic, _OF_MAP)
        check_alike(sets)
        return bins, sets
    bins = read_bins(file, f"{analysis}/processed_bins", qmap.n_dynamic, _OF_MAP)
    return bins, [file[f"{analysis}/c2"]]


def _select_matrices(
    stored: Array, sets: list[h5py.Dataset], bins: Sequence[int] | None, path: Path
) -> list[int]:
    """Return the indices of bins, after a check that their matrices fit into memory."""
    indices = {int(b): k for k, b in enumerate(stored)}
    bins = list(indices) if bins is None else list(bins)
    if not bins or any(b not in indices for b in bins):
        raise ValueError(
            f"bins: expected some of {', '.join(map(str, indices))}, the bins of {path} with a "
            f"two-time correlation, got {bins!r:.80}"
        )
    check_memory(
        f"{path}: two-time correlations of {len(bins)} bins",
        sum(item.size * item.dtype.itemsize for item in sets) * len(bins) // len(indices),
        "read some of the bins, or read rows with ApsFile",
    )
    return [indices[b] for b in bins]


def _read_twotime(
    file: h5py.File,
    analysis: str,
    stored: Array,
    sets: list[h5py.Dataset],
    picked: list[int],
    qmap: QMap,
    overview: Overview | None,
) -> TwoTimeResult:
    names = [f"{analysis}/{name}" for name in ("normalized_g2", "normalized_g2_segments")]
    n, g2, parts = len(stored), _read_array(file, names[0], 2), _read_array(file, names[1], 3)
    full = analysis == _TWO_TIMES[0]
    n_frames = int(sets[0].shape[0]) if full else 1
    if g2.shape[1] != n or parts.shape[1:] != (5, n) or (full and len(g2) != n_frames):
        raise ApsFormatError(
            f"{names[0]}, {names[1]}: expected [N, {n}] and [N // 5, 5, {n}], as "
            f"{analysis}/processed_bins, got {list(g2.shape)} and {list(parts.shape)}"
        )
    common = _common_fields(file, analysis, qmap, overview, stored[picked], n_frames)
    if full:
        common["n_frames"] = n_frames
        c2 = np.empty((len(picked), n_frames, n_frames), sets[0].dtype)
        for matrix, k in zip(c2, picked, strict=True):
            complete_matrix(sets[k][()], matrix, sets[k].name)
        t1 = t2 = np.arange(n_frames + 1.0)
    else:
        t1, t2 = (_read_array(file, f"{analysis}/{name}") for name in ("t1", "t2"))
        c2 = _read_array(file, f"{analysis}/c2", shape=(n, len(t1) - 1, len(t2) - 1))[picked]

    shapes: dict[str, tuple[int, ...]] = {"n_pairs": g2.shape, "n_pairs_segments": parts.shape}
    shapes |= {"n_empty": (n,), "c2_pairs": (n, *c2.shape[1:])}
    for name, shape in shapes.items():
        if (path := f"{analysis}/{name}") in file:
            axis = 0 if name == "c2_pairs" else -1
            common[name] = _read_array(file, path, shape=shape).take(picked, axis)
    segments = common.pop("n_pairs_segments", None)
    return TwoTimeResult(
        c2=c2,
        g2=g2[:, picked],
        g2_parts=np.swapaxes(parts[:, :, picked], 0, 1),
        t1=t1,
        t2=t2,
        n_pairs_parts=None if segments is None else segments.swapaxes(0, 1),
        **common,
    )


def _read_overview(file: h5py.File, qmap: QMap) -> Overview | None:
    """Read the mean image, intensity and static means; None if one of them is missing."""
    names = [f"xpcs/{name}" for name in OVERVIEW]
    if any(name not in file for name in names):
        return None
    image, means, parts, intensity = (_read_array(file, name) for name in names)
    if image.shape[-2:] != qmap.shape or intensity.shape[:-1] != (2,):
        raise ApsFormatError(
            f"{names[0]}, {names[3]}: expected [1, {qmap.shape[0]}, {qmap.shape[1]}] and [2, n], "
            f"got {list(image.shape)} and {list(intensity.shape)}"
        )
    n = means.size
    if n == 0 or parts.size % n:
        raise ApsFormatError(
            f"{names[1]}, {names[2]}: expected a value for each static bin, in each part in time, "
            f"got {n} and {parts.size} values"
        )
    # Static bins of the map without a stored value are NaN.
    static = np.full((1 + parts.size // n, qmap.n_static), np.nan)
    count = min(n, qmap.n_static)
    static[:, :count] = np.concatenate([means.reshape(1, n), parts.reshape(-1, n)])[:, :count]
    return Overview(image.reshape(qmap.shape), intensity[1], static[0], static[1:])


def _read_config(file: h5py.File, analysis: str) -> dict[str, Any]:
    """Read the settings of a correlation; settings unknown here keep the name in the file."""
    names = {stored: name for name, stored in CONFIG_NAMES.items()}
    config: dict[str, Any] = {"stride": 1, "average": 1}
    group = file.get(f"{analysis}/config")
    for name, item in group.items() if hasattr(group, "items") else ():
        if getattr(item, "shape", None) is not None and item.size < 10**7:
            value = item[()]
            if isinstance(value, np.ndarray | np.generic):
                value = value.tolist()
            if isinstance(value, bytes):
                value = value.decode(errors="replace")
            config[names.get(name, name)] = value
    if "smoothing" in config:
        smoothings = {stored: name for name, stored in SMOOTHINGS.items()}
        config["smoothing"] = smoothings.get(config["smoothing"], config["smoothing"])
    if isinstance(config.get("intensity_cut"), list):
        config["intensity_cut"] = tuple(None if x != x else x for x in config["intensity_cut"])
    if analysis != _MULTITAU:
        # Other programs only write full matrices, and do not store a form.
        kind, *sizes = str(config.get("form", "full")).split()
        valid = all(size.isdecimal() for size in sizes)
        config["form"] = (kind, *map(int, sizes)) if sizes and valid else kind
    return config


def _read_warnings(file: h5py.File, analysis: str) -> tuple[str, ...]:
    """Read the warnings about a correlation."""
    stored = file.get(f"{analysis}/warnings")
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


def _read_array(
    file: h5py.File, name: str, ndim: int | None = None, shape: tuple[int, ...] | None = None
) -> Array:
    """Read numbers of a rank or a shape, integers with their dtype and others as float64."""
    item = file[name]
    if getattr(item, "size", None) == 0 and ndim in (None, len(item.shape)):
        values = np.zeros(item.shape)  # such as g2 of 5 parts of 4 frames
    else:
        values = read_numbers(file, name, most=available_bytes() // 8)
    if ndim is not None and values.ndim != ndim:
        raise ApsFormatError(f"{name}: expected {ndim} dimensions, got {list(values.shape)}")
    if shape is not None and len(shape) == 2 and values.shape == shape[:1]:
        values = np.repeat(values[:, None], shape[1], axis=1)  # the same for all bins
    if shape is not None and values.shape != shape:
        raise ApsFormatError(f"{name}: expected {list(shape)}, got {list(values.shape)}")
    return values if values.dtype.kind in "biu" else values.astype(np.float64)
