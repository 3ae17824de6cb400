"""Which matrices a file of either APS layout holds: their data sets, q, phi and the time step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import natural_order

if TYPE_CHECKING:
    import h5py

Array = NDArray[Any]

LAYOUTS = ("aps", "aps-u")
_WANTED = {
    "aps": ("xpcs/dqlist", "xpcs/dphilist", "exchange/C2T_all"),
    "aps-u": (
        "xpcs/qmap/dynamic_v_list_dim0",
        "xpcs/qmap/dynamic_v_list_dim1",
        "xpcs/twotime/processed_bins",
        "xpcs/twotime/correlation_map",
    ),
}
# Lists of bins, wavevectors and angles are short; a damaged header may claim any length.
_LONGEST_LIST = 10**7
# Where a time step stands, and what it is multiplied with. Newer files of the older layout have it
# in the newer place.
_NEXUS_TIMES: tuple[str, ...] = ("entry/instrument/detector_1/frame_time",)
_NEXUS_STEPS = ("config/stride_frame", "config/avg_frame")
_OLD_TIMES = (
    "measurement/instrument/detector/exposure_period",
    "measurement/instrument/detector/exposure_time",
)
_OLD_STEPS = ("xpcs/stride_frames", "xpcs/avg_frames")
#: the unit of `frame_time` in a file of frames of which nobody knows the time: it is 1 then
FRAMES = "frame"


class ApsFormatError(ValueError):
    """A file that is not laid out as either APS layout says; names what is missing and is there."""


@dataclass(frozen=True)
class Entries:
    """A file's matrices: data sets [n, n_t, n_t], q [n] and phi [n], and seconds between frames."""

    sets: list[h5py.Dataset]
    q: Array
    phi: Array
    dt: float | None


def find_layout(file: h5py.File, layout: str | None) -> str:
    """The layout of a file, or the one that was asked for.

    Raises:
      ApsFormatError: groups or data sets are missing.
    """
    candidates = LAYOUTS if layout is None else (layout,)
    missing = {name: [p for p in _WANTED[name] if p not in file] for name in candidates}
    for name in candidates:
        if not missing[name]:
            return name
    wanted = "; ".join(
        f"the layout {name!r} misses {', '.join(paths)}" for name, paths in missing.items()
    )
    hint = ""
    if "xpcs/twotime_binned" in file:
        hint = (
            ". Its two-time correlations are averages over cells (--twotime t1t2:N or age-lag:...) "
            "and a fit needs each pair of frames: run xpcs correlate again with --twotime full"
        )
    elif "xpcs/multitau" in file and "xpcs/twotime" not in file:
        hint = ". It holds g2 alone: give xpcs correlate --twotime"
    raise ApsFormatError(f"{wanted}. The file holds {_contents(file)}{hint}")


def find_missing(file: h5py.File, names: Iterable[str]) -> None:
    """Raises ApsFormatError where any of these is missing."""
    missing = [name for name in names if name not in file]
    if missing:
        raise ApsFormatError(f"{', '.join(missing)} is missing. The file holds {_contents(file)}")


def read_entries(file: h5py.File, layout: str) -> Entries:
    """The matrices of a file, in its own order.

    Raises:
      ApsFormatError: lists and data sets that disagree.
    """
    sets, q, phi = (_aps if layout == "aps" else _aps_u)(file)
    check_alike(sets)
    return Entries(sets, q, phi, read_time_step(file, layout))


def _contents(file: h5py.File) -> str:
    """The first two levels of a file, in words."""
    import h5py

    found = []
    for name, item in file.items():
        if isinstance(item, h5py.Group) and len(item):
            below = list(item)
            more = ", ..." if len(below) > 8 else ""
            found.append(f"{name}/ ({', '.join(below[:8])}{more})")
        else:
            found.append(f"{name}/ (empty)" if isinstance(item, h5py.Group) else name)
    return "; ".join(found) or "nothing"


def read_numbers(file: h5py.File, name: str, most: int = _LONGEST_LIST) -> Array:
    """The numbers of a data set, of any shape and at most `most` of them."""
    import h5py

    item = file[name]
    if not isinstance(item, h5py.Dataset):
        raise ApsFormatError(f"{name} is a group; wanted a data set")
    shape = item.shape
    if shape is None or item.dtype.kind not in "biuf" or not 0 < item.size <= most:
        raise ApsFormatError(
            f"{name} is {item.dtype} {None if shape is None else list(shape)}; wanted "
            "numbers, [n] or [1, n]"
        )
    return np.asarray(item[()])


def _list(file: h5py.File, name: str) -> Array:
    """A list of finite numbers, stored as [n], [1, n] or more rows of which the first counts."""
    values = read_numbers(file, name)
    if values.ndim == 0:
        raise ApsFormatError(f"{name} is one number; wanted numbers, [n] or [1, n]")
    first = values if values.ndim == 1 else values.reshape(-1, values.shape[-1])[0]
    numbers = first.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ApsFormatError(f"{name} holds numbers that are not finite")
    return numbers


def read_whole_numbers(file: h5py.File, name: str) -> Array:
    """A list of whole numbers, stored as [n], [n, 1] or [1, n]."""
    values = np.ravel(read_numbers(file, name))
    whole = values.astype(np.int64)
    if not np.array_equal(whole, values):
        raise ApsFormatError(f"{name} is not of whole numbers")
    return whole


def read_bins(file: h5py.File, name: str) -> Array:
    """The bins that the matrices are of, from 1, each once."""
    bins = read_whole_numbers(file, name)
    different, counts = np.unique(bins, return_counts=True)
    if (counts > 1).any():
        raise ApsFormatError(
            f"{name} has the bin {different[counts > 1][0]} more than once; wanted each "
            "bin once, since it says which matrix is which"
        )
    return bins


# The older layout ----------------------------------------------------------------------------


def _aps(file: h5py.File) -> tuple[list[h5py.Dataset], Array, Array]:
    q = _list(file, "xpcs/dqlist")
    phi = _list(file, "xpcs/dphilist")
    group = _group(file, "exchange/C2T_all")
    names = natural_order(group)
    index = "xpcs/qphi_bin_to_process"
    if index in file and len(q) == len(phi):
        bins = read_bins(file, index)
        names = _names_of_bins(group, bins, index, r"([0-9]+)[^0-9]*$")
        # Lists of the processed bins alone are too short to be of all bins.
        if len(q) != len(bins) or bins.max() <= len(q):
            check_bins(bins, len(q), index, f"{len(q)} values of xpcs/dqlist")
            q, phi = q[bins - 1], phi[bins - 1]
    if not (len(q) == len(phi) == len(names)) or not names:
        raise ApsFormatError(
            f"xpcs/dqlist has {len(q)} values, xpcs/dphilist {len(phi)}, and "
            f"exchange/C2T_all {len(names)} matrices; wanted the same number of each, at least 1"
        )
    return [group[name] for name in names], q, phi


# The layout of APS-U -------------------------------------------------------------------------


def _aps_u(file: h5py.File) -> tuple[list[h5py.Dataset], Array, Array]:
    q, phi, what = read_labels(file)
    bins, sets = read_matrices(file, len(q), what)
    return sets, q[bins - 1], phi[bins - 1]


def read_labels(file: h5py.File) -> tuple[Array, Array, str]:
    """q and phi of every bin, from 1, and how many these are in words.

    Raises:
      ApsFormatError: lists and grid that disagree, or are not of q and phi.
    """
    q_list = _list(file, "xpcs/qmap/dynamic_v_list_dim0")
    phi_list = _list(file, "xpcs/qmap/dynamic_v_list_dim1")
    _check_grid(file, (len(q_list), len(phi_list)))
    cells, what = _cells(file, len(q_list), len(phi_list))
    return q_list[cells // len(phi_list)], phi_list[cells % len(phi_list)], what


def read_matrices(file: h5py.File, n_bins: int, what: str) -> tuple[Array, list[h5py.Dataset]]:
    """The bins whose matrices a file holds, and these.

    Args:
      n_bins: how many bins there are; `what` they are in words.

    Raises:
      ApsFormatError: bins that are not there, or not one matrix a bin.
    """
    index = "xpcs/twotime/processed_bins"
    bins = read_bins(file, index)
    check_bins(bins, n_bins, index, what)
    group = _group(file, "xpcs/twotime/correlation_map")
    names = _names_of_bins(group, bins, index, r"^c2_([0-9]+)$")
    return bins, [group[name] for name in names]


def _check_grid(file: h5py.File, sizes: tuple[int, int]) -> None:
    """The grid must be of q and phi, and as large as its own lists."""
    names, numbers = "xpcs/qmap/map_names", "xpcs/qmap/dynamic_num_pts"
    if names in file:
        given = [
            n.decode(errors="replace") if isinstance(n, bytes) else str(n)
            for n in np.ravel(np.asarray(file[names][()])).tolist()
        ]
        if given[:2] != ["q", "phi"]:
            raise ApsFormatError(
                f"{names} is {given}; wanted ['q', 'phi'], bins of wavevector and angle"
            )
    if numbers in file:
        points = read_whole_numbers(file, numbers)
        if points.tolist() != list(sizes):
            raise ApsFormatError(
                f"{numbers} is {points.tolist()}, but dynamic_v_list_dim0 has {sizes[0]} "
                f"values and dynamic_v_list_dim1 {sizes[1]}; wanted the same numbers"
            )


def _cells(file: h5py.File, n_q: int, n_phi: int) -> tuple[Array, str]:
    """The cell of the (q, phi) grid of each bin: bins are numbered without the empty cells."""
    name, most = "xpcs/qmap/dynamic_index_mapping", n_q * n_phi
    if name not in file:
        return np.arange(most), f"{n_q} q times {n_phi} phi"
    cells = read_whole_numbers(file, name)
    if cells.min() < 0 or cells.max() >= most or len(np.unique(cells)) != len(cells):
        raise ApsFormatError(
            f"{name} has {len(cells)} cells from {cells.min()} to {cells.max()}; wanted "
            f"different cells of 0 to {most - 1} ({n_q} q times {n_phi} phi)"
        )
    return cells, f"{len(cells)} cells of dynamic_index_mapping"


def check_bins(bins: Array, most: int, name: str, what: str) -> None:
    if bins.min() < 1 or bins.max() > most:
        raise ApsFormatError(
            f"{name} has {bins.size} bins from {bins.min()} to {bins.max()}; wanted bins "
            f"of 1 to {most} ({what})"
        )


# Both layouts --------------------------------------------------------------------------------


def _group(file: h5py.File, name: str) -> h5py.Group:
    import h5py

    group = file[name]
    if not isinstance(group, h5py.Group):
        raise ApsFormatError(f"{name} is a data set; wanted a group of matrices")
    return group


def _names_of_bins(group: h5py.Group, bins: Array, index: str, pattern: str) -> list[str]:
    """The matrix of each bin: matrices count from 1 in the bins' order, or carry the bin's number.

    `pattern` finds the number in a name; names that it does not match are of something else.
    """
    matches = {name: re.search(pattern, name) for name in group}
    found = [name for name, match in matches.items() if match]
    numbered = {int(match[1]): name for name, match in matches.items() if match}
    if len(found) == len(numbered) == len(bins):
        if sorted(numbered) == list(range(1, len(bins) + 1)):
            return [numbered[k + 1] for k in range(len(bins))]
        if set(numbered) == {int(b) for b in bins}:
            return [numbered[int(b)] for b in bins]
    raise ApsFormatError(
        f"{group.name.lstrip('/')} has {len(found)} numbered matrices "
        f"({', '.join(natural_order(found)[:4])} ...) and {index} {len(bins)} bins "
        f"({', '.join(str(b) for b in bins[:4])} ...); wanted one matrix a bin, with the bin's "
        "number or counted from 1"
    )


def check_alike(sets: Sequence[Any]) -> None:
    import h5py

    for item in sets:
        if not isinstance(item, h5py.Dataset):
            raise ApsFormatError(f"{item.name} is a group; wanted a matrix")
        shape = () if item.shape is None else tuple(item.shape)
        if len(shape) != 2 or shape[0] != shape[1] or item.dtype.kind != "f":
            raise ApsFormatError(
                f"{item.name} is {item.dtype} {list(shape)}; wanted a square matrix of "
                "floating-point numbers"
            )
        if shape != tuple(sets[0].shape) or item.dtype != sets[0].dtype:
            raise ApsFormatError(
                f"{item.name} is {item.dtype} {list(shape)} and {sets[0].name} is "
                f"{sets[0].dtype} {list(sets[0].shape)}; wanted all matrices alike"
            )


def read_time_step(file: h5py.File, layout: str, analysis: str = "twotime") -> float | None:
    """Seconds between the frames that were correlated; None where the file has no time.

    Args:
      analysis: "twotime" or "multitau", whose steps count in the layout "aps-u".
    """
    places = {_NEXUS_TIMES: tuple(f"xpcs/{analysis}/{step}" for step in _NEXUS_STEPS)}
    if layout == "aps":
        places = {_OLD_TIMES: _OLD_STEPS, **places}
    for times, steps in places.items():
        # The period, and the exposure alone where a detector gives no period.
        there = [name for name in times if name in file and not _in_frames(file[name])]
        seconds = max((read_number(file, name) for name in there), default=0.0)
        if seconds > 0:
            for name in steps:
                # Left out, a step is 1, as in the software that writes these files.
                seconds *= read_number(file, name, least=1) if name in file else 1
            return seconds
    return None


def _in_frames(item: Any) -> bool:
    units = item.attrs.get("units")
    return isinstance(units, str | bytes) and units in (FRAMES, FRAMES.encode())


def read_number(file: h5py.File, name: str, least: float = 0) -> float:
    values = np.ravel(read_numbers(file, name))
    number = float(values[0])
    if values.size != 1 or not np.isfinite(number) or number < least:
        raise ApsFormatError(
            f"{name} is {values[:4].tolist()}; wanted one number of {least} or more"
        )
    return number
