"""Entries of a file of either APS layout: data sets of matrices, q, phi and the time step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import natural_order

if TYPE_CHECKING:
    import h5py

Array = NDArray[Any]

_REQUIRED = {
    "aps": ("xpcs/dqlist", "xpcs/dphilist", "exchange/C2T_all"),
    "aps-u": (
        "xpcs/qmap/dynamic_v_list_dim0",
        "xpcs/qmap/dynamic_v_list_dim1",
        "xpcs/twotime/processed_bins",
        "xpcs/twotime/correlation_map",
    ),
}
LAYOUTS = tuple(_REQUIRED)
# Lists of bins, wavevectors and angles are short, but a damaged header may claim any length.
_LONGEST_LIST = 10**7
# Paths of the time step and of its factors. Newer files of the older layout use the newer paths.
_NEXUS_TIMES = ("entry/instrument/detector_1/frame_time",)
_NEXUS_STEPS = ("config/stride_frame", "config/avg_frame")
_OLD_TIMES = (
    "measurement/instrument/detector/exposure_period",
    "measurement/instrument/detector/exposure_time",
)
_OLD_STEPS = ("xpcs/stride_frames", "xpcs/avg_frames")
#: unit of `frame_time` if the time between frames is unknown; its value is 1 then
FRAMES = "frame"


class ApsFormatError(ValueError):
    """Error in a file of either APS layout; names missing and existing entries.

    Example:
      >>> import h5py, tempfile, jaxkern as jk
      >>> path = tempfile.mkdtemp() + "/empty.h5"
      >>> h5py.File(path, "w").close()
      >>> try:
      ...     jk.xpcs.load_aps(path)
      ... except jk.xpcs.ApsFormatError as error:
      ...     print("empty.h5" in str(error))
      True
    """


def find_layout(file: h5py.File, layout: str | None) -> str:
    """Return the layout of a file, or the requested one, after a check of its names."""
    candidates = LAYOUTS if layout is None else (layout,)
    missing = {name: [p for p in _REQUIRED[name] if p not in file] for name in candidates}
    for name in candidates:
        if not missing[name]:
            return name
    problems = "; ".join(
        f"the layout {name!r} misses {', '.join(paths)}" for name, paths in missing.items()
    )
    hint = ""
    if "xpcs/twotime_binned" in file:
        hint = (
            ". Its two-time correlations are averages over cells (--twotime t1t2:N or age-lag:...) "
            "and a fit needs each pair of frames: run xpcs correlate again with --twotime full"
        )
    elif "xpcs/multitau" in file and "xpcs/twotime" not in file:
        hint = ". It has only g2: run xpcs correlate with --twotime"
    raise ApsFormatError(f"{problems}. The file has {_contents(file)}{hint}")


def check_names(file: h5py.File, names: Iterable[str]) -> None:
    """Raise ApsFormatError if any of the names is missing."""
    missing = [name for name in names if name not in file]
    if missing:
        raise ApsFormatError(f"{', '.join(missing)} is missing. The file has {_contents(file)}")


def read_entries(
    file: h5py.File, layout: str
) -> tuple[list[h5py.Dataset], Array, Array, float | None]:
    """Return n data sets [n_t, n_t] in the file's order, q [n], phi [n], and the time step in s."""
    sets, q, phi = (_aps if layout == "aps" else _aps_u)(file)
    check_alike(sets)
    return sets, q, phi, read_time_step(file, layout)


def _contents(file: h5py.File) -> str:
    """Return a description of the first two levels of a file."""
    items = []
    for name, item in file.items():
        if hasattr(item, "keys"):
            members = list(item)
            more = ", ..." if len(members) > 8 else ""
            name += f"/ ({', '.join(members[:8]) or 'empty'}{more})"
        items.append(name)
    return "; ".join(items) or "no entries"


def read_numbers(file: h5py.File, name: str, most: int = _LONGEST_LIST) -> Array:
    """Read a data set of at most `most` numbers of any shape."""
    item = file[name]
    if hasattr(item, "keys"):
        raise ApsFormatError(f"{name}: expected a data set, got a group")
    shape = item.shape
    if shape is None or item.dtype.kind not in "biuf" or not 0 < item.size <= most:
        raise ApsFormatError(
            f"{name}: expected 1 to {most} numbers, [n] or [1, n], got {item.dtype} "
            f"{None if shape is None else list(shape)}"
        )
    return np.asarray(item[()])


def _list(file: h5py.File, name: str) -> Array:
    """Read a list of finite numbers, stored as [n], or as the first row of [m, n]."""
    values = read_numbers(file, name)
    if values.ndim == 0:
        raise ApsFormatError(f"{name}: expected numbers [n] or [1, n], got one number")
    numbers = np.asarray(values.reshape(-1, values.shape[-1])[0], np.float64)
    if not np.isfinite(numbers).all():
        raise ApsFormatError(f"{name}: expected finite numbers, got NaN or infinity")
    return numbers


def read_integers(file: h5py.File, name: str) -> Array:
    """Read a list of integers, stored as [n], [n, 1] or [1, n]."""
    values = np.ravel(read_numbers(file, name))
    integers = values.astype(np.int64)
    if not np.array_equal(integers, values):
        raise ApsFormatError(f"{name}: expected integers, got other numbers")
    return integers


def read_bins(file: h5py.File, name: str, most: int | None = None, what: str = "") -> Array:
    """Read the bins of matrices, which are different; with `most`, in 1 .. most (`what`)."""
    bins = read_integers(file, name)
    different, counts = np.unique(bins, return_counts=True)
    if (counts > 1).any():
        raise ApsFormatError(f"{name}: bin {different[counts > 1][0]} occurs more than once")
    if most is not None:
        check_bins(bins, most, name, what)
    return bins


def check_bins(bins: Array, most: int, name: str, what: str) -> None:
    """Raise ApsFormatError for bins that are not in 1 .. most."""
    if bins.min() < 1 or bins.max() > most:
        raise ApsFormatError(
            f"{name}: expected 1 to {most} ({what}), got {bins.min()} to {bins.max()}"
        )


def _aps(file: h5py.File) -> tuple[list[h5py.Dataset], Array, Array]:
    q, phi = _list(file, "xpcs/dqlist"), _list(file, "xpcs/dphilist")
    group = _group(file, "exchange/C2T_all")
    names = natural_order(group)
    index = "xpcs/qphi_bin_to_process"
    if index in file and len(q) == len(phi):
        bins = read_bins(file, index)
        names = _names_of_bins(group, bins, index, r"([0-9]+)[^0-9]*$")
        # If the lists are too short for all bins, they are lists of the processed bins.
        if len(q) != len(bins) or bins.max() <= len(q):
            check_bins(bins, len(q), index, f"{len(q)} values of xpcs/dqlist")
            q, phi = q[bins - 1], phi[bins - 1]
    if not (len(q) == len(phi) == len(names)) or not names:
        raise ApsFormatError(
            "expected the same number, at least 1, of values of xpcs/dqlist and xpcs/dphilist and "
            f"matrices of exchange/C2T_all, got {len(q)}, {len(phi)} and {len(names)}"
        )
    return [group[name] for name in names], q, phi


def _aps_u(file: h5py.File) -> tuple[list[h5py.Dataset], Array, Array]:
    q_list = _list(file, "xpcs/qmap/dynamic_v_list_dim0")
    phi_list = _list(file, "xpcs/qmap/dynamic_v_list_dim1")
    n_q, n_phi = len(q_list), len(phi_list)
    _check_grid(file, n_q, n_phi)
    cells, what = _cells(file, n_q, n_phi)
    bins, sets = read_matrices(file, len(cells), what)
    cells = cells[bins - 1]
    return sets, q_list[cells // n_phi], phi_list[cells % n_phi]


def read_matrices(file: h5py.File, n_bins: int, what: str) -> tuple[Array, list[h5py.Dataset]]:
    """Return the bins of the matrices, in 1 .. n_bins (`what` in errors), and the matrices."""
    index = "xpcs/twotime/processed_bins"
    bins = read_bins(file, index, n_bins, what)
    group = _group(file, "xpcs/twotime/correlation_map")
    names = _names_of_bins(group, bins, index, r"^c2_([0-9]+)$")
    return bins, [group[name] for name in names]


def _check_grid(file: h5py.File, n_q: int, n_phi: int) -> None:
    """Check that the axes of the grid are q and phi, and have the lengths of their lists."""
    names, numbers = "xpcs/qmap/map_names", "xpcs/qmap/dynamic_num_pts"
    if names in file:
        axes = np.ravel(file[names].asstr(errors="replace")[()]).tolist()
        if axes[:2] != ["q", "phi"]:
            raise ApsFormatError(f"{names}: expected ['q', 'phi'], got {axes}")
    if numbers in file and (points := read_integers(file, numbers).tolist()) != [n_q, n_phi]:
        raise ApsFormatError(
            f"{numbers}: expected {[n_q, n_phi]}, the lengths of dynamic_v_list_dim0 and _dim1, "
            f"got {points}"
        )


def _cells(file: h5py.File, n_q: int, n_phi: int) -> tuple[Array, str]:
    """Return the cell of the (q, phi) grid of each bin from 1; empty cells have no bin."""
    name, most = "xpcs/qmap/dynamic_index_mapping", n_q * n_phi
    if name not in file:
        return np.arange(most), f"{n_q} q times {n_phi} phi"
    cells = read_integers(file, name)
    if cells.min() < 0 or cells.max() >= most or len(np.unique(cells)) != len(cells):
        raise ApsFormatError(
            f"{name}: expected different cells from 0 to {most - 1} ({n_q} q times {n_phi} phi), "
            f"got {len(cells)} cells from {cells.min()} to {cells.max()}"
        )
    return cells, f"{len(cells)} cells of dynamic_index_mapping"


def _group(file: h5py.File, name: str) -> h5py.Group:
    group = file[name]
    if not hasattr(group, "keys"):
        raise ApsFormatError(f"{name}: expected a group of matrices, got a data set")
    return group


def _names_of_bins(group: h5py.Group, bins: Array, index: str, pattern: str) -> list[str]:
    """Return the name of each bin's matrix.

    Matrices are numbered from 1 in the order of the bins, or have the numbers of the bins.
    `pattern` extracts the number from a name. Other names are ignored.
    """
    matches = {name: re.search(pattern, name) for name in group}
    matrices = [name for name, match in matches.items() if match]
    numbered = {int(match[1]): name for name, match in matches.items() if match}
    if len(matrices) == len(numbered) == len(bins):
        for numbers in (range(1, len(bins) + 1), bins.tolist()):
            if set(numbered) == set(numbers):
                return [numbered[k] for k in numbers]
    raise ApsFormatError(
        f"{group.name.lstrip('/')}: expected one matrix for each of the {len(bins)} bins of "
        f"{index} ({', '.join(str(b) for b in bins[:4])} ...), with the bin's number or counted "
        f"from 1, got {len(matrices)} ({', '.join(natural_order(matrices)[:4])} ...)"
    )


def check_alike(sets: Sequence[Any]) -> None:
    """Raise ApsFormatError unless all objects are square matrices of one shape and dtype."""
    for item in sets:
        if hasattr(item, "keys"):
            raise ApsFormatError(f"{item.name}: expected a matrix, got a group")
        shape = () if item.shape is None else tuple(item.shape)
        actual = f"got {item.dtype} {list(shape)}"
        if len(shape) != 2 or shape[0] != shape[1] or item.dtype.kind != "f":
            raise ApsFormatError(f"{item.name}: expected a square matrix of floats, {actual}")
        first = sets[0]
        if shape != tuple(first.shape) or item.dtype != first.dtype:
            raise ApsFormatError(
                f"{item.name}: expected {first.dtype} {list(first.shape)} as {first.name}, {actual}"
            )


def read_time_step(file: h5py.File, layout: str, analysis: str = "twotime") -> float | None:
    """Return the seconds between the frames of an analysis; None if the file has no time."""
    nexus = (_NEXUS_TIMES, tuple(f"xpcs/{analysis}/{step}" for step in _NEXUS_STEPS))
    for times, steps in [(_OLD_TIMES, _OLD_STEPS), nexus] if layout == "aps" else [nexus]:
        # The period, or the exposure if the file has no period.
        known = [name for name in times if name in file and not _in_frames(file[name])]
        seconds = max((_read_number(file, name) for name in known), default=0.0)
        if seconds > 0:
            for name in steps:
                # A missing step is 1, as in the software that writes these files.
                seconds *= _read_number(file, name, least=1) if name in file else 1
            return seconds
    return None


def time_step_entries(dt: float, layout: str) -> dict[str, Any]:
    """Return the entries for the time between frames, with stride and average of 1."""
    if layout == "aps":
        return {_OLD_TIMES[0]: [[dt]], **dict.fromkeys(_OLD_STEPS, np.ones((1, 1), np.uint64))}
    return {_NEXUS_TIMES[0]: dt, **{f"xpcs/twotime/{step}": 1 for step in _NEXUS_STEPS}}


def _in_frames(item: Any) -> bool:
    units = item.attrs.get("units")
    return isinstance(units, str | bytes) and units in (FRAMES, FRAMES.encode())


def _read_number(file: h5py.File, name: str, least: float = 0) -> float:
    """Read one finite number of `least` or more."""
    values = np.ravel(read_numbers(file, name))
    number = float(values[0])
    if values.size != 1 or not np.isfinite(number) or number < least:
        raise ApsFormatError(
            f"{name}: expected one number of {least} or more, got {values[:4].tolist()}"
        )
    return number
