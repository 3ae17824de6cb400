"""Maps of bins in HDF5 files, as simplemask and pysimplemask write them and results keep them.

Bins are numbered without the empty cells of the (q, phi) grid: bin b is the cell
g = index_mapping[b - 1], with q = v_list_dim0[g // n1] and phi = v_list_dim1[g % n1], n1 the length
of v_list_dim1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.events import MAX_INDEX
from jaxkern.xpcs.detectors.frames import DetectorFileError
from jaxkern.xpcs.detectors.hdf5_access import find_object, hdf5_errors, open_hdf5

if TYPE_CHECKING:
    import h5py

_GROUPS = ("qmap", "xpcs/qmap")
_MAPS = ("dynamic_roi_map", "static_roi_map", "mask", "blemish")
# Lists of bins are short; a damaged header may claim any length.
_LONGEST = 10**7
_TEXTS = ("map_names", "map_units")


def read_qmap(path: str | os.PathLike[str], group: str | None = None) -> dict[str, Any]:
    """What `QMap` takes, from a file: dynamic, static, mask, q, phi, blemish and layout."""
    name = os.fspath(path)
    with open_hdf5(name) as file, hdf5_errors(name):
        places = _GROUPS if group is None else (group,)
        found = next(
            (at for place in places if hasattr(at := find_object(file, place), "keys")), None
        )
        if found is None:
            raise DetectorFileError(
                f"{name} has no group {' or '.join('/' + p.strip('/') for p in places)}; it has "
                f"{sorted(file)[:20]}. Is it a file of simplemask's?"
            )
        where = found.name
        layout = {key: _value(name, found, key) for key in found}
    maps = {key: layout.get(key) for key in _MAPS}
    if maps["dynamic_roi_map"] is None:
        raise DetectorFileError(
            f"{name}: {where}/dynamic_roi_map is not there; found {sorted(layout)[:20]}"
        )
    q, phi = bin_labels(name, layout, "dynamic")
    return {
        "dynamic": maps["dynamic_roi_map"],
        "static": maps["static_roi_map"],
        "mask": None if maps["mask"] is None else maps["mask"] != 0,
        "q": q,
        "phi": phi,
        "blemish": None if maps["blemish"] is None else maps["blemish"] != 0,
        "layout": layout,
    }


def _value(name: str, group: h5py.Group, key: str) -> Any:
    """An array, a number, a text or a list of texts; of groups and other types nothing."""
    stored = find_object(group, key)
    shape, dtype = getattr(stored, "shape", None), getattr(stored, "dtype", None)
    if shape is None or dtype is None:
        return None
    is_map = key in _MAPS
    if is_map:
        # Older files have the axis of a single image in front.
        squeezed = tuple(n for n in shape if n != 1) if len(shape) > 2 else tuple(shape)
        if len(squeezed) != 2 or dtype.kind not in "uifb" or stored.size > MAX_INDEX:
            raise DetectorFileError(
                f"{name}: {stored.name} is {dtype} of the shape {shape}; wanted numbers [H, W]"
            )
        return np.asarray(stored[()]).reshape(squeezed)
    if stored.size > _LONGEST:
        raise DetectorFileError(f"{name}: {stored.name} has the shape {shape}; wanted a short list")
    value = stored[()]
    if dtype.kind in "uifb":
        return np.asarray(value) if shape else value[()]
    texts = [t.decode("utf-8", "replace") if isinstance(t, bytes) else str(t)
             for t in np.ravel(value)]  # fmt: skip
    return texts if shape else texts[0]


def bin_labels(
    name: str, layout: Mapping[str, Any], kind: str
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """q and phi of the bins 1, 2, ... of a kind, "dynamic" or "static"; None where there are none.

    Raises:
      DetectorFileError: for lists of other lengths, and cells outside the grid.
    """
    axes = [layout.get(f"{kind}_v_list_dim{axis}") for axis in range(2)]
    if axes[0] is None:
        return None, None
    values = [np.ravel(np.asarray([0.0] if axis is None else axis)) for axis in axes]
    n_bins = int(layout[f"{kind}_roi_map"].max(initial=0))
    mapping = layout.get(f"{kind}_index_mapping")
    cells = np.arange(n_bins) if mapping is None else np.ravel(np.asarray(mapping))
    if cells.dtype.kind not in "ui" or len(cells) < n_bins:
        raise DetectorFileError(
            f"{name}: {kind}_index_mapping holds {len(cells)} {cells.dtype}; wanted a whole number "
            f"for each of the {n_bins} bins"
        )
    cells = cells[:n_bins].astype(np.int64)
    n1 = len(values[1])
    if any(v.dtype.kind not in "uif" for v in values) or (
        n_bins and not 0 <= cells.min() <= cells.max() < len(values[0]) * n1
    ):
        raise DetectorFileError(
            f"{name}: the {kind} bins are cells {cells.min(initial=0)} to {cells.max(initial=0)} "
            f"of a grid of {len(values[0])} x {n1}; wanted cells of the grid"
        )
    by_name = {"q": values[0][cells // n1], "phi": values[1][cells % n1]}
    names = layout.get("map_names")
    if isinstance(names, list) and len(names) == 2:
        by_name = dict(zip(names, by_name.values(), strict=True))
    if axes[1] is None:
        by_name.pop("phi", None)
    q, phi = (
        None if (given := by_name.get(key)) is None else given.astype(np.float64)
        for key in ("q", "phi")
    )
    return q, phi


def default_layout(
    dynamic: NDArray[Any],
    static: NDArray[Any],
    mask: NDArray[Any],
    q: NDArray[np.float64] | None,
    phi: NDArray[np.float64] | None,
) -> dict[str, Any]:
    """The entries of a file for maps that came from none: a grid of the different q and phi.

    q and phi of a static bin are those of its dynamic bin, as there are no others. Where q is not
    known, the first axis is the bin's number, and is not called q.
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
    # A bin without pixels may have no q: labels in files are numbers.
    rows = np.append(np.arange(1.0, n_dynamic + 1) if q is None else np.nan_to_num(q), 0.0)
    columns = np.append(np.zeros(n_dynamic) if phi is None else np.nan_to_num(phi), 0.0)
    for kind, of in (("dynamic", np.arange(1, n_dynamic + 1)), ("static", inside[1:])):
        dim0, row = np.unique(rows[of - 1], return_inverse=True)
        dim1, column = np.unique(columns[of - 1], return_inverse=True)
        cells = row * len(dim1) + column
        if len(np.unique(cells)) < len(cells):
            # Bins of the same q and phi, as static ones: each in a row of its own.
            dim0, cells = rows[of - 1], np.arange(len(of)) * len(dim1) + column
        layout |= {
            f"{kind}_num_pts": np.array([len(dim0), len(dim1)]),
            f"{kind}_v_list_dim0": dim0,
            f"{kind}_v_list_dim1": dim1,
            f"{kind}_index_mapping": cells,
        }
    return layout


def write_layout(group: h5py.Group, layout: Mapping[str, Any], version: str) -> None:
    """Writes the entries of a map into a group, with its attributes `hash` and `version`."""
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
