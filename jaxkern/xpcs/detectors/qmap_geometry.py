"""Bins of q and phi from where a detector stands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import real_number, whole_number
from jaxkern.xpcs.detectors.events import check_frame_shape
from jaxkern.xpcs.detectors.hdf5_metadata import ANGSTROM_KEV


def q_and_phi(
    shape: tuple[int, int],
    beam_center: tuple[float, float],
    distance: float,
    pixel_size: float,
    energy: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """q in 1/Angstrom and phi in degrees of each pixel [H, W].

    q = 4 pi / lambda sin(theta), tan(2 theta) = r / distance; phi is 0 to the right, 90 up.
    """
    rows, columns = np.indices(shape, np.float64)
    right = (columns - beam_center[0]) * pixel_size
    up = (beam_center[1] - rows) * pixel_size
    angle = np.arctan2(np.hypot(right, up), distance)
    q = 4 * np.pi * energy / ANGSTROM_KEV * np.sin(angle / 2)
    return q, np.rad2deg(np.arctan2(up, right))


def geometry_bins(
    shape: tuple[int, int],
    *,
    beam_center: tuple[float, float],
    distance: float,
    pixel_size: float,
    energy: float,
    q_edges: Any,
    phi_edges: Any = None,
    static: tuple[int, int] = (10, 1),
    mask: Any = None,
) -> dict[str, Any]:
    """What `QMap` takes: dynamic, static, mask, q, phi and layout; see `QMap.from_geometry`."""
    shape = check_frame_shape("the detector", shape)
    center = (
        real_number("beam_center[0]", beam_center[0], -1e9, 1e9),
        real_number("beam_center[1]", beam_center[1], -1e9, 1e9),
    )
    lengths = {"distance": distance, "pixel_size": pixel_size, "energy": energy}
    for name, value in lengths.items():
        lengths[name] = real_number(name, value, 0.0, 1e9)
        if not lengths[name]:
            raise ValueError(f"{name} is 0; wanted more")
    good = np.ones(shape, bool) if mask is None else np.asarray(mask).astype(bool)
    if good.shape != shape:
        raise ValueError(f"mask has the shape {good.shape}; wanted {shape}")
    edges = [
        _edges("q_edges", q_edges),
        _edges("phi_edges", [-180.0, 180.0] if phi_edges is None else phi_edges),
    ]
    if edges[0][0] < 0:
        raise ValueError(f"q_edges begin at {edges[0][0]}; wanted 0 or more")
    if edges[1][-1] - edges[1][0] > 360:
        raise ValueError(f"phi_edges span {edges[1][-1] - edges[1][0]} degrees; wanted at most 360")
    parts = [whole_number(f"static[{axis}]", static[axis], 1, 10**6) for axis in range(2)]
    values = list(q_and_phi(shape, center, **lengths))
    # The angles of one turn from the first edge on.
    values[1] = edges[1][0] + (values[1] - edges[1][0]) % 360
    cells, fine = [], []
    for axis in range(2):
        finer = _refined(edges[axis], parts[axis])
        found = np.searchsorted(finer, values[axis], side="right") - 1
        # The last edge belongs to the last bin.
        found[values[axis] == finer[-1]] = len(finer) - 2
        found[(found < 0) | (found > len(finer) - 2)] = -1
        fine.append(found)
        cells.append(np.where(found >= 0, found // parts[axis], -1))
    inside = good & (fine[0] >= 0) & (fine[1] >= 0)
    layout: dict[str, Any] = {
        "mask": good.astype(np.uint8),
        "map_names": ["q", "phi"],
        "map_units": ["1/Angstrom", "deg"],
        "beam_center_x": center[0],
        "beam_center_y": center[1],
        "detector_distance": lengths["distance"],
        "pixel_size": lengths["pixel_size"],
        "energy": lengths["energy"],
    }
    for kind, at, of in (("dynamic", cells, [1, 1]), ("static", fine, parts)):
        axes = [_refined(edges[axis], of[axis]) for axis in range(2)]
        centers = [(axis[1:] + axis[:-1]) / 2 for axis in axes]
        grid = at[0] * len(centers[1]) + at[1]
        bins = np.zeros(shape, np.uint32)
        mapping, number = np.unique(grid[inside], return_inverse=True)
        bins[inside] = number + 1
        layout |= {
            f"{kind}_roi_map": bins,
            f"{kind}_num_pts": np.array([len(c) for c in centers]),
            f"{kind}_v_list_dim0": centers[0],
            f"{kind}_v_list_dim1": centers[1],
            f"{kind}_index_mapping": mapping.astype(np.int64),
        }
    cell = layout["dynamic_index_mapping"]
    n1 = len(layout["dynamic_v_list_dim1"])
    return {
        "dynamic": layout["dynamic_roi_map"],
        "static": layout["static_roi_map"],
        "mask": good,
        "q": layout["dynamic_v_list_dim0"][cell // n1],
        "phi": None if phi_edges is None else layout["dynamic_v_list_dim1"][cell % n1],
        "layout": layout,
    }


def _edges(name: str, given: Any) -> NDArray[np.float64]:
    edges = np.asarray(given, np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all():
        raise ValueError(f"{name} has the shape {edges.shape}; wanted two or more numbers [n + 1]")
    if not (np.diff(edges) > 0).all():
        raise ValueError(f"{name} is {edges.tolist()!s:.80}; wanted each greater than the last")
    return edges


def _refined(edges: NDArray[np.float64], parts: int) -> NDArray[np.float64]:
    """Edges of `parts` bins of equal width in each; the given ones stay as they are."""
    if parts == 1:
        return edges
    steps = edges[:-1, None] + np.diff(edges)[:, None] * np.arange(parts) / parts
    return np.append(steps.ravel(), edges[-1])
