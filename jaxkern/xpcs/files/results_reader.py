"""Reads correlations from files of results: our own, and those of boost-corr."""

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
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.aps import (
    complete_rows,
    find_empty_frames,
    format_errors,
    mark_empty_frames,
    open_hdf5,
)
from jaxkern.xpcs.files.aps_entries import (
    ApsFormatError,
    check_alike,
    check_bins,
    find_missing,
    read_bins,
    read_matrices,
    read_time_step,
    read_whole_numbers,
)
from jaxkern.xpcs.files.results_entries import (
    of_bins,
    read_array,
    read_config,
    read_metadata,
    read_n_frames,
    read_overview,
    read_warnings,
)

if TYPE_CHECKING:
    import h5py

Array = NDArray[Any]

# Rows of a matrix that are completed at a time.
_SLAB = 512
_ANALYSES = ("multitau", "twotime", "twotime_binned")
_OF_MAP = "the bins of xpcs/qmap/dynamic_roi_map"


class CorrelationResults(NamedTuple):
    """What a file of results holds; None of what it does not.

    multitau: g2 at the multi-tau delays. twotime: two-time correlations. metadata: what the file
    says of the measurement, as `FrameSource.metadata`.
    """

    multitau: MultiTauResult | None
    twotime: TwoTimeResult | None
    metadata: dict[str, Any]


def read_results(path: str | Path, bins: Sequence[int] | None = None) -> CorrelationResults:
    """Reads what `write_results` or boost-corr wrote.

    q and phi of a bin follow the qmap's `dynamic_index_mapping`; a frame takes the detector's time
    times `stride_frame` and `avg_frame`. `ApsFile` reads two-time correlations row by row where
    they are larger than memory.

    Args:
      path: the HDF5 file.
      bins: the bins whose two-time correlations are read; None: all that are there.

    Raises:
      FileNotFoundError: no such file.
      ApsFormatError: not an HDF5 file, a damaged one, or groups and data sets that are missing or
        disagree.
      ValueError: bins that the file does not have.
      MemoryError: two-time correlations that memory does not hold.

    Example:
      >>> import numpy as np, pathlib, tempfile
      >>> import jaxkern as jk
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01], phi=[0.0])
      >>> frames = np.random.default_rng(0).poisson(1.0, (40, 4, 4)).astype("u1")
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "results.hdf"
      >>> _ = jk.xpcs.write_results(path, jk.xpcs.multitau(frames, qmap))
      >>> found = jk.xpcs.read_results(path)
      >>> found.multitau.q.tolist(), found.twotime
      ([0.01], None)
    """
    path = home_path(path)
    with open_hdf5(path) as file:
        with format_errors(path):
            qmap, overview, multitau = _read_common(file, path)
            analysis = next((name for name in _ANALYSES[1:] if f"xpcs/{name}" in file), None)
            stored = None if analysis is None else _find_matrices(file, analysis, qmap)
        twotime = None
        if analysis is not None and stored is not None:
            picked = _picked(stored, bins, path)
            with format_errors(path):
                twotime = _read_twotime(file, analysis, stored, picked, qmap, overview)
        with format_errors(path):
            return CorrelationResults(multitau, twotime, read_metadata(file))


def read_multitau(path: Path) -> MultiTauResult | None:
    """g2 of a file of results, or None; its two-time correlations are not read."""
    with open_hdf5(path) as file, format_errors(path):
        return _read_common(file, path)[2]


def read_two_time_doubts(path: Path) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return frames without counts by bin, and the warnings, of two-time correlations.

    Both are empty if the file has no two-time correlations or does not store them.
    """
    empty_frames: dict[int, int] = {}
    with open_hdf5(path) as file, format_errors(path):
        analysis = next((name for name in _ANALYSES[1:] if f"xpcs/{name}" in file), None)
        if analysis is None:
            return empty_frames, ()
        names = [f"xpcs/{analysis}/{name}" for name in ("processed_bins", "n_empty")]
        if all(name in file for name in names):
            bins = read_bins(file, names[0])
            numbers = _read_numbers(file, names[1], bins.shape)
            if numbers is not None:
                empty_frames = dict(zip(bins.tolist(), numbers.tolist(), strict=True))
        return empty_frames, read_warnings(file, analysis)


def _read_common(
    file: h5py.File, path: Path
) -> tuple[QMap, Overview | None, MultiTauResult | None]:
    if not any(f"xpcs/{name}" in file for name in _ANALYSES):
        raise ApsFormatError(
            "there is neither xpcs/multitau nor xpcs/twotime; wanted a file of results, as "
            "write_results or boost-corr writes it"
        )
    find_missing(file, ("xpcs/qmap/dynamic_index_mapping", "xpcs/qmap/mask"))
    qmap = QMap.read(path, "xpcs/qmap")
    overview = read_overview(file, qmap)
    there = "xpcs/multitau" in file
    return qmap, overview, _read_multitau(file, qmap, overview) if there else None


# Multi-tau ---------------------------------------------------------------------------------------


def _read_multitau(file: h5py.File, qmap: QMap, overview: Overview | None) -> MultiTauResult:
    names = [f"xpcs/multitau/{n}" for n in ("delay_list", "normalized_g2", "normalized_g2_err")]
    find_missing(file, names)
    delay = read_whole_numbers(file, names[0])
    g2, error = (read_array(file, name, 2) for name in names[1:])
    if g2.shape != error.shape or len(g2) != len(delay) or (delay < 1).any():
        raise ApsFormatError(
            f"{names[0]} has {len(delay)} delays from {delay.min()}, {names[1]} is "
            f"{list(g2.shape)} and {names[2]} {list(error.shape)}; wanted delays from 1 and "
            f"[{len(delay)}, bins] twice"
        )
    index = "xpcs/multitau/processed_bins"
    if index in file:
        bins = read_bins(file, index)
    else:
        bins = np.arange(1, 1 + min(g2.shape[1], qmap.n_dynamic))
    check_bins(bins, qmap.n_dynamic, index, _OF_MAP)
    if bins.max() > g2.shape[1]:
        raise ApsFormatError(
            f"{index} has the bin {bins.max()} and {names[1]} {g2.shape[1]} columns; wanted a "
            "column for each bin"
        )
    config = read_config(file, "multitau")
    n_frames = read_n_frames(file, "multitau", overview, int(delay.max()) + 1)
    frame_time = read_time_step(file, "aps-u", "multitau")
    pairs = "xpcs/multitau/n_pairs"
    n_pairs = read_whole_numbers(file, pairs) if pairs in file else None
    if n_pairs is None or len(n_pairs) != len(delay):
        n_pairs = _pairs(delay, n_frames, config.get("dpl", 4))
    whole = MultiTauResult(
        delay=delay,
        tau=None if frame_time is None else delay * frame_time,
        bins=bins,
        g2=g2[:, bins - 1],
        g2_err=error[:, bins - 1],
        q=of_bins(qmap.q, bins),
        phi=of_bins(qmap.phi, bins),
        n_pixels=qmap.pixels_of_bin[bins - 1],
        n_pairs=n_pairs,
        n_frames=n_frames,
        frame_time=frame_time,
        qmap=qmap,
        overview=overview,
        config=config,
        warnings=read_warnings(file, "multitau"),
    )
    return replace(whole, parts=_read_parts(file, whole))


def _read_parts(file: h5py.File, whole: MultiTauResult) -> tuple[MultiTauResult, ...]:
    """g2 of parts of the run; nothing of boost-corr's, which are of the frames up to one."""
    endings = ("normalized_g2_partial", "normalized_g2_partial_err", "n_pairs_partial")
    names = [f"xpcs/multitau/{ending}" for ending in endings]
    if names[2] not in file:
        return ()
    labels = "xpcs/multitau/normalized_g2_partial_labels"
    find_missing(file, [*names, labels])
    g2, error, pairs = (
        read_array(file, name, ndim) for name, ndim in zip(names, (3, 3, 2), strict=True)
    )
    ends = read_whole_numbers(file, labels)
    wanted = (len(ends), len(whole.delay))
    if g2.shape != error.shape or not g2.shape[:2] == pairs.shape == wanted:
        raise ApsFormatError(
            f"{names[0]} is {list(g2.shape)}, {names[1]} {list(error.shape)} and {names[2]} "
            f"{list(pairs.shape)}; wanted {list(wanted)} and the bins"
        )
    check_bins(whole.bins, g2.shape[2], names[0], f"{g2.shape[2]} columns")
    parts = []
    for k, n_frames in enumerate(np.diff(ends, prepend=0).tolist()):
        reached = np.isin(whole.delay, multitau_delays(n_frames, whole.config.get("dpl", 4)))
        there = np.ix_(reached, whole.bins - 1)
        parts.append(
            replace(
                whole,
                delay=whole.delay[reached],
                tau=None if whole.tau is None else whole.tau[reached],
                g2=g2[k][there],
                g2_err=error[k][there],
                n_pairs=pairs[k][reached],
                n_frames=n_frames,
                overview=None,
                warnings=(),
            )
        )
    return tuple(parts)


def _pairs(delay: Array, n_frames: int, dpl: Any) -> Array:
    """How many pairs of sums a delay's mean is over: see the delays of multi-tau."""
    pairs = []
    for d in delay.tolist():
        level = 0
        while isinstance(dpl, int) and dpl > 0 and d > (2 * dpl) << level:
            level += 1
        pairs.append((n_frames >> level) - (d >> level))
    return np.array(pairs, np.int64)


# Two-time ----------------------------------------------------------------------------------------


class _Matrices(NamedTuple):
    """Where two-time correlations are stored: bins [n], and a data set each, or one for all."""

    bins: Array
    sets: list[h5py.Dataset]


def _find_matrices(file: h5py.File, analysis: str, qmap: QMap) -> _Matrices:
    names = ["normalized_g2", "normalized_g2_segments", "processed_bins"]
    names += ["correlation_map"] if analysis == "twotime" else ["c2", "t1", "t2"]
    find_missing(file, [f"xpcs/{analysis}/{name}" for name in names])
    if analysis == "twotime":
        found = read_matrices(file, qmap.n_dynamic, _OF_MAP)
        check_alike(found[1])
        return _Matrices(*found)
    name = f"xpcs/{analysis}/processed_bins"
    bins = read_bins(file, name)
    check_bins(bins, qmap.n_dynamic, name, _OF_MAP)
    return _Matrices(bins, [file[f"xpcs/{analysis}/c2"]])


def _picked(stored: _Matrices, chosen: Sequence[int] | None, path: Path) -> list[int]:
    """Where the chosen bins stand; looks whether memory holds their matrices."""
    there = {int(b): k for k, b in enumerate(stored.bins)}
    chosen = list(there) if chosen is None else list(chosen)
    if not chosen or any(b not in there for b in chosen):
        raise ValueError(
            f"bins is {chosen!r:.80}; wanted some of {', '.join(map(str, there))}, those of "
            f"{path} that have a two-time correlation"
        )
    needed = sum(item.size * item.dtype.itemsize for item in stored.sets)
    needed = needed * len(chosen) // len(there)
    if needed > (free := available_bytes()):
        raise MemoryError(
            f"{path}: two-time correlations of {len(chosen)} bins take {needed / 1e9:,.3g} GB and "
            f"{free / 1e9:,.3g} GB of memory are left: read some of the bins, or by rows with "
            "ApsFile"
        )
    return [there[b] for b in chosen]


def _read_twotime(
    file: h5py.File,
    analysis: str,
    stored: _Matrices,
    picked: list[int],
    qmap: QMap,
    overview: Overview | None,
) -> TwoTimeResult:
    names = [f"xpcs/{analysis}/{name}" for name in ("normalized_g2", "normalized_g2_segments")]
    n, g2, parts = len(stored.bins), read_array(file, names[0], 2), read_array(file, names[1], 3)
    full = analysis == "twotime"
    n_frames = int(stored.sets[0].shape[0]) if full else read_n_frames(file, analysis, overview, 1)
    if g2.shape[1] != n or parts.shape[1:] != (5, n) or (full and len(g2) != n_frames):
        raise ApsFormatError(
            f"{names[0]} is {list(g2.shape)} and {names[1]} {list(parts.shape)}; wanted [N, {n}] "
            f"and [N // 5, 5, {n}], of the bins of xpcs/{analysis}/processed_bins"
        )
    if full:
        c2 = _read_matrices([stored.sets[k] for k in picked])
        t1 = t2 = np.arange(n_frames + 1.0)
    else:
        c2, t1, t2 = (read_array(file, f"xpcs/{analysis}/{name}") for name in ("c2", "t1", "t2"))
        if c2.shape != (n, len(t1) - 1, len(t2) - 1):
            raise ApsFormatError(
                f"xpcs/{analysis}/c2 is {list(c2.shape)}, with {len(t1)} and {len(t2)} edges; "
                f"wanted [{n}, edges - 1, edges - 1]"
            )
        c2 = c2[picked]
    bins = stored.bins[picked]
    shapes = {
        "n_pairs": g2.shape,
        "n_pairs_segments": parts.shape,
        "n_empty": (n,),
        "c2_pairs": (n, *c2.shape[1:]),
    }
    numbers = {key: _read_numbers(file, f"xpcs/{analysis}/{key}", shapes[key]) for key in shapes}
    segments = numbers["n_pairs_segments"]
    return TwoTimeResult(
        c2=c2,
        g2=g2[:, picked],
        g2_parts=np.swapaxes(parts[:, :, picked], 0, 1),
        bins=bins,
        t1=t1,
        t2=t2,
        q=of_bins(qmap.q, bins),
        phi=of_bins(qmap.phi, bins),
        n_pixels=qmap.pixels_of_bin[bins - 1],
        n_frames=n_frames,
        frame_time=read_time_step(file, "aps-u", analysis),
        qmap=qmap,
        overview=overview,
        config=read_config(file, analysis),
        n_pairs=_of_columns(numbers["n_pairs"], picked),
        n_pairs_parts=_of_columns(None if segments is None else segments.swapaxes(0, 1), picked),
        n_empty=_of_columns(numbers["n_empty"], picked),
        c2_pairs=None if numbers["c2_pairs"] is None else numbers["c2_pairs"][picked],
        warnings=read_warnings(file, analysis),
    )


def _read_numbers(file: h5py.File, name: str, shape: tuple[int, ...]) -> Array | None:
    """Whole numbers of a shape; None where the file has none."""
    if name not in file:
        return None
    found = read_array(file, name)
    if found.ndim == 1 and len(shape) == 2 and len(found) == shape[0]:  # once, for all bins
        found = np.repeat(found[:, None], shape[1], axis=1)
    if found.shape != shape:
        raise ApsFormatError(f"{name} is {list(found.shape)}; wanted {list(shape)}")
    return found


def _of_columns(numbers: Array | None, picked: list[int]) -> Array | None:
    return None if numbers is None else numbers[..., picked]


def _read_matrices(sets: list[h5py.Dataset]) -> Array:
    """[bins, N, N], both triangles."""
    n = int(sets[0].shape[0])
    c2 = np.empty((len(sets), n, n), sets[0].dtype)
    for matrix, stored in zip(c2, sets, strict=True):
        whole = stored[()]
        for first in range(0, n, _SLAB):
            rows = slice(first, first + _SLAB)
            matrix[rows] = complete_rows(whole[rows], whole[:, rows].T, first, stored.name)
        mark_empty_frames(matrix, find_empty_frames(matrix), 0)
    return c2
