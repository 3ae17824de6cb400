"""Maps of bins in files of simplemask, pysimplemask and results, and from a detector's geometry.

Bins are numbered without the empty cells of the (q, phi) grid: bin b is the cell
g = index_mapping[b - 1] with q = v_list_dim0[g // n1] and phi = v_list_dim1[g % n1], where n1 is
the length of v_list_dim1.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.xpcs.detectors.frames import MAX_INDEX, DetectorFileError, check_frame_shape
from jaxkern.xpcs.detectors.hdf5 import ANGSTROM_KEV
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
    where = f"{name}: {stored.name}"
    if key in _MAPS:
        # Older files have a leading axis of length 1.
        squeezed = tuple(n for n in shape if n != 1) if len(shape) > 2 else tuple(shape)
        if len(squeezed) != 2 or dtype.kind not in "uifb" or stored.size > MAX_INDEX:
            raise DetectorFileError(f"{where}: expected numbers [H, W], got {dtype} {shape}")
        return np.asarray(stored[()]).reshape(squeezed)
    if stored.size > _LONGEST:
        raise DetectorFileError(f"{where}: expected up to {_LONGEST} values, got {shape}")
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
        got = f"{len(cells)} {cells.dtype}"
        raise DetectorFileError(f"{name}: dynamic_index_mapping: expected {n_bins} bins, got {got}")
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


def grid_entries(
    kind: str, axes: Sequence[NDArray[Any]], cells: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Return the file entries of a grid with two axes, in which each bin is one of the cells."""
    return {
        f"{kind}_num_pts": np.array([len(axis) for axis in axes]),
        f"{kind}_v_list_dim0": axes[0],
        f"{kind}_v_list_dim1": axes[1],
        f"{kind}_index_mapping": cells.astype(np.int64),
    }


def default_layout(
    dynamic: NDArray[Any],
    static: NDArray[Any],
    mask: NDArray[Any],
    q: NDArray[np.float64] | None,
    phi: NDArray[np.float64] | None,
) -> dict[str, Any]:
    """Return the file entries of a map that was not read from a file: a grid of its q and phi."""
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
        layout |= grid_entries(kind, (dim0, dim1), cells)
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


def geometry_bins(
    shape: tuple[int, int],
    beam_center: tuple[float, float],
    distance: float,
    pixel_size: float,
    energy: float,
    q_edges: Any,
    phi_edges: Any,
    static: tuple[int, int],
    mask: Any,
) -> dict[str, Any]:
    """Return the arguments of `QMap` for `QMap.from_geometry`."""
    shape = check_frame_shape("the detector", shape)
    center = [check_number(f"beam_center[{k}]", beam_center[k], -1e9, 1e9) for k in range(2)]
    numbers = {"distance": distance, "pixel_size": pixel_size, "energy": energy}
    lengths = {name: _quantity(name, value) for name, value in numbers.items()}
    good = np.ones(shape, bool) if mask is None else np.asarray(mask).astype(bool)
    if good.shape != shape:
        raise ValueError(f"mask: expected the shape {shape}, got {good.shape}")
    phi = [-180.0, 180.0] if phi_edges is None else phi_edges
    edges = [_edges("q_edges", q_edges), _edges("phi_edges", phi)]
    if edges[0][0] < 0:
        raise ValueError(f"q_edges: expected edges of 0 or more, got {edges[0][0]}")
    if (span := edges[1][-1] - edges[1][0]) > 360:
        raise ValueError(f"phi_edges: expected at most 360 degrees, got {span}")
    parts = [check_integer(f"static[{axis}]", static[axis], 1, 10**6) for axis in range(2)]
    divided = [_refined(*both) for both in zip(edges, parts, strict=True)]
    # q = 4 pi / lambda sin(theta), tan(2 theta) = r / distance; phi is 0 to the right, 90 up.
    rows, columns = np.indices(shape, np.float64)
    right = (columns - center[0]) * lengths["pixel_size"]
    up = (center[1] - rows) * lengths["pixel_size"]
    angle = np.arctan2(np.hypot(right, up), lengths["distance"])
    q = 4 * np.pi * lengths["energy"] / ANGSTROM_KEV * np.sin(angle / 2)
    values = [q, np.rad2deg(np.arctan2(up, right))]
    # Shift the angles to the interval of 360 degrees that begins at the first edge.
    values[1] = edges[1][0] + (values[1] - edges[1][0]) % 360
    fine = []
    for finer, value in zip(divided, values, strict=True):
        indices = np.searchsorted(finer, value, side="right") - 1
        indices[value == finer[-1]] -= 1  # the last edge belongs to the last bin
        indices[indices > len(finer) - 2] = -1
        fine.append(indices)
    inside = good & (fine[0] >= 0) & (fine[1] >= 0)
    _check_pixels(inside, good, values, edges)
    layout: dict[str, Any] = {
        "mask": good.astype(np.uint8),
        "map_names": ["q", "phi"],
        "map_units": ["1/Angstrom", "deg"],
        "beam_center_x": center[0],
        "beam_center_y": center[1],
        "detector_distance": lengths.pop("distance"),
        **lengths,
    }
    cells = [indices // n for indices, n in zip(fine, parts, strict=True)]
    for kind, at, axes in (("dynamic", cells, edges), ("static", fine, divided)):
        centers = [(axis[1:] + axis[:-1]) / 2 for axis in axes]
        grid = at[0] * len(centers[1]) + at[1]
        bins = np.zeros(shape, np.uint32)
        mapping, number = np.unique(grid[inside], return_inverse=True)
        bins[inside] = number + 1
        layout |= {f"{kind}_roi_map": bins, **grid_entries(kind, centers, mapping)}
    q_labels, phi_labels = _bin_labels("the detector", layout)
    return {
        "dynamic": layout["dynamic_roi_map"],
        "static": layout["static_roi_map"],
        "mask": good,
        "q": q_labels,
        "phi": None if phi_edges is None else phi_labels,
        "layout": layout,
    }


# (least, most, unit, sizes of the units that a number out of this range may be in)
_PLAUSIBLE: dict[str, tuple[float, float, str, dict[str, float]]] = {
    "energy": (1e-3, 500.0, "keV", {"eV": 1e-3, "MeV": 1e3}),
    "distance": (1e-3, 500.0, "m", {"mm": 1e-3, "um": 1e-6, "km": 1e3}),
    "pixel_size": (1e-7, 5e-3, "m", {"um": 1e-6, "mm": 1e-3, "nm": 1e-9}),
}


def _quantity(name: str, number: Any) -> float:
    least, most, unit, others = _PLAUSIBLE[name]
    value = check_number(name, number, 0.0, 1e15)
    if least <= value <= most:
        return value
    likely = [u for u, size in others.items() if least <= value * size <= most]
    hint = f"; if it is in {likely[0]}, give {value * others[likely[0]]:.6g}" if likely else ""
    raise ValueError(f"{name}: expected {least:g} to {most:g} {unit}, got {value:.6g}{hint}")


def _check_pixels(
    inside: NDArray[np.bool_],
    good: NDArray[np.bool_],
    values: list[NDArray[np.float64]],
    edges: list[NDArray[np.float64]],
) -> None:
    """Check that the bins have pixels; warn of rings without pixels."""
    (q, phi), (q_edges, phi_edges) = values, edges
    low, high = float(q.min()), float(q.max())
    spans = (
        f"q_edges span {q_edges[0]:.4g} to {q_edges[-1]:.4g}, and the detector's pixels have q "
        f"from {low:.4g} to {high:.4g} 1/Angstrom"
    )
    nanometres = "; if q_edges are in 1/nm, multiply them by 0.1"
    ring = (q >= q_edges[0]) & (q <= q_edges[-1])
    if inside.any():
        # Rings outside of the detector, regardless of the mask.
        outside = int((q_edges[:-1] > high).sum() + (q_edges[1:] < low).sum())
        if outside:
            hint = nanometres if q_edges[-1] * 0.1 <= high else ""
            text = f"{outside} of {len(q_edges) - 1} rings have no pixels: {spans}{hint}"
            warnings.warn(text, stacklevel=4)
        return
    if not good.any():
        raise ValueError("mask: expected 1 for good pixels, got 0 in all of them")
    if not ring.any():
        hint = "; check distance, pixel_size and energy"
        if q_edges[0] > high and q_edges[0] * 0.1 <= high:
            hint = nanometres
        elif (ratio := q_edges[-1] / high) > 30 or ratio < 1 / 30:
            hint = (
                f"; they differ by a factor of {max(ratio, 1 / ratio):.3g}: are distance and "
                "pixel_size in m, energy in keV and q_edges in 1/Angstrom?"
            )
        raise ValueError(f"no pixel is in any bin: {spans}{hint}")
    if not (ring & (phi >= phi_edges[0]) & (phi <= phi_edges[-1])).any():
        raise ValueError(
            f"no pixel is in any bin: no pixel with these q has an angle of phi_edges, "
            f"{phi_edges[0]:g} to {phi_edges[-1]:g} degrees; are they in radians?"
        )
    raise ValueError(
        f"no good pixel is in any bin: the mask is 0 in all {int(ring.sum()):,} pixels of these q "
        f"and not 0 in {int(good.sum()):,} others; is it inverted (expected 1 for good pixels)?"
    )


def _edges(name: str, values: Any) -> NDArray[np.float64]:
    edges = np.asarray(values, np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all():
        raise ValueError(f"{name}: expected two or more finite numbers, got {edges.shape}")
    if not (np.diff(edges) > 0).all():
        raise ValueError(f"{name}: expected increasing numbers, got {edges.tolist()!s:.80}")
    return edges


def _refined(edges: NDArray[np.float64], parts: int) -> NDArray[np.float64]:
    """Divide each bin into `parts` bins of equal width; the original edges are unchanged."""
    if parts == 1:
        return edges
    steps = edges[:-1, None] + np.diff(edges)[:, None] * np.arange(parts) / parts
    return np.append(steps.ravel(), edges[-1])
