"""Maps of bins in HDF5 files of simplemask and pysimplemask, and in files of results.

Bins are numbered without the empty cells of the (q, phi) grid: bin b is the cell
g = index_mapping[b - 1] with q = v_list_dim0[g // n1] and phi = v_list_dim1[g % n1], where n1 is
the length of v_list_dim1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.frames import MAX_INDEX, DetectorFileError
from jaxkern.xpcs.detectors.hdf5_access import find_object, hdf5_errors, open_hdf5

if TYPE_CHECKING:
    import h5py

_GROUPS = ("qmap", "xpcs/qmap")
_MAPS = ("dynamic_roi_map", "static_roi_map", "mask", "blemish")
# Lists of bins are short; a damaged header may claim any length.
_LONGEST = 10**7


def read_qmap(path: str | os.PathLike[str], group: str | None = None) -> dict[str, Any]:
    """Read the arguments of `QMap`: dynamic, static, mask, q, phi, blemish and layout."""
    name = os.fspath(path)
    with open_hdf5(name) as file, hdf5_errors(name):
        paths = _GROUPS if group is None else (group,)
        objects = (find_object(file, path) for path in paths)
        stored = next((item for item in objects if hasattr(item, "keys")), None)
        if stored is None:
            raise DetectorFileError(
                f"{name}: expected a group {' or '.join('/' + p.strip('/') for p in paths)}, got "
                f"{sorted(file)[:20]}. Is it a file of simplemask?"
            )
        where = stored.name
        layout = {key: _value(name, stored, key) for key in stored}
    dynamic, static, mask, blemish = (layout.get(key) for key in _MAPS)
    if dynamic is None:
        raise DetectorFileError(f"{name}: {where} has no dynamic_roi_map: {sorted(layout)[:20]}")
    q, phi = _bin_labels(name, layout)
    maps = {"dynamic": dynamic, "static": static, "mask": mask, "blemish": blemish}
    return {**maps, "q": q, "phi": phi, "layout": layout}


def _value(name: str, group: h5py.Group, key: str) -> Any:
    """Return an array, a number, a string or a list of strings; None for groups and other types."""
    stored = find_object(group, key)
    shape, dtype = getattr(stored, "shape", None), getattr(stored, "dtype", None)
    if shape is None or dtype is None:
        return None
    if key in _MAPS:
        # Older files have a leading axis of length 1.
        squeezed = tuple(n for n in shape if n != 1) if len(shape) > 2 else tuple(shape)
        if len(squeezed) != 2 or dtype.kind not in "uifb" or stored.size > MAX_INDEX:
            raise DetectorFileError(
                f"{name}: {stored.name}: expected numbers [H, W], got {dtype} {shape}"
            )
        return np.asarray(stored[()]).reshape(squeezed)
    if stored.size > _LONGEST:
        raise DetectorFileError(
            f"{name}: {stored.name}: expected {_LONGEST} values or fewer, got {shape}"
        )
    value = stored[()]
    if dtype.kind in "uifb":
        return np.asarray(value) if shape else value[()]
    texts = [t.decode("utf-8", "replace") if isinstance(t, bytes) else str(t)
             for t in np.ravel(value)]  # fmt: skip
    return texts if shape else texts[0]


def _bin_labels(
    name: str, layout: Mapping[str, Any]
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Return q and phi of the dynamic bins; None for missing labels."""
    axes = [layout.get(f"dynamic_v_list_dim{axis}") for axis in range(2)]
    if axes[0] is None:
        return None, None
    values = [np.ravel(np.asarray([0.0] if axis is None else axis)) for axis in axes]
    n_bins, n1 = int(layout["dynamic_roi_map"].max(initial=0)), len(values[1])
    mapping = layout.get("dynamic_index_mapping")
    cells = np.arange(n_bins) if mapping is None else np.ravel(np.asarray(mapping))
    if cells.dtype.kind not in "ui" or len(cells) < n_bins:
        raise DetectorFileError(
            f"{name}: dynamic_index_mapping: expected an integer for each of the {n_bins} bins, "
            f"got {len(cells)} {cells.dtype}"
        )
    cells = cells[:n_bins].astype(np.int64)
    if any(v.dtype.kind not in "uif" for v in values) or (
        n_bins and not 0 <= cells.min() <= cells.max() < len(values[0]) * n1
    ):
        raise DetectorFileError(
            f"{name}: dynamic_index_mapping: expected cells of a grid of {len(values[0])} x {n1}, "
            f"got {cells.min(initial=0)} to {cells.max(initial=0)}"
        )
    labels = [values[0][cells // n1].astype(np.float64), values[1][cells % n1].astype(np.float64)]
    names = layout.get("map_names")
    if not isinstance(names, list) or len(names) != 2:
        names = ["q", "phi"]
    by_name = dict(zip(names, labels, strict=True))
    return by_name.get("q"), None if axes[1] is None else by_name.get("phi")


def default_layout(
    dynamic: NDArray[Any],
    static: NDArray[Any],
    mask: NDArray[Any],
    q: NDArray[np.float64] | None,
    phi: NDArray[np.float64] | None,
) -> dict[str, Any]:
    """Return the file entries of a map that was not read from a file: a grid of its q and phi.

    A static bin has the q and phi of its dynamic bin. For an unknown q, an axis "bin" counts bins.
    """
    layout: dict[str, Any] = {
        "mask": mask.astype(np.uint8),
        "dynamic_roi_map": dynamic.astype(np.uint32),
        "static_roi_map": static.astype(np.uint32),
        "map_names": ["bin" if q is None else "q", "phi"],
        "map_units": ["" if q is None else "1/Angstrom", "deg"],
    }
    n_dynamic, n_static = int(dynamic.max(initial=0)), int(static.max(initial=0))
    inside = np.zeros(n_static + 1, np.int64)
    inside[static[dynamic > 0]] = dynamic[dynamic > 0]
    # The q of a bin without pixels may be NaN, and files store numbers.
    rows = np.append(np.arange(1.0, n_dynamic + 1) if q is None else np.nan_to_num(q), 0.0)
    columns = np.append(np.zeros(n_dynamic) if phi is None else np.nan_to_num(phi), 0.0)
    for kind, bins in (("dynamic", np.arange(1, n_dynamic + 1)), ("static", inside[1:])):
        dim0, row = np.unique(rows[bins - 1], return_inverse=True)
        dim1, column = np.unique(columns[bins - 1], return_inverse=True)
        cells = row * len(dim1) + column
        if len(np.unique(cells)) < len(cells):
            # Bins with the same q and phi, such as static bins, get separate rows.
            dim0, cells = rows[bins - 1], np.arange(len(bins)) * len(dim1) + column
        layout |= {
            f"{kind}_num_pts": np.array([len(dim0), len(dim1)]),
            f"{kind}_v_list_dim0": dim0,
            f"{kind}_v_list_dim1": dim1,
            f"{kind}_index_mapping": cells,
        }
    return layout


def write_layout(group: h5py.Group, layout: Mapping[str, Any], version: str) -> None:
    """Write the entries of a map to a group, with the attributes `hash` and `version`."""
    digest = hashlib.sha256()
    for key in sorted(layout):
        value = layout[key]
        if value is None:
            continue
        digest.update(key.encode())
        if isinstance(value, np.ndarray):
            digest.update(str((value.shape, value.dtype.str)).encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(repr(value).encode())
        numbers = isinstance(value, np.ndarray) and value.ndim > 0 and value.size > 0
        large = numbers and value.size > 1024
        stored = group.create_dataset(
            key, data=value, compression="lzf" if large else None, fletcher32=numbers or None
        )
        if "_v_list_dim" in key and key[-1] in "01":
            for attribute, texts in (("name", "map_names"), ("unit", "map_units")):
                names = layout.get(texts)
                if isinstance(names, list) and len(names) == 2:
                    stored.attrs[attribute] = names[int(key[-1])]
            stored.attrs["size"] = np.size(value)
    group.attrs["hash"] = digest.hexdigest()
    group.attrs["version"] = version
