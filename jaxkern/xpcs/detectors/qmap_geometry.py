"""Bins of q and phi from the geometry of a detector."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.xpcs.detectors.frames import check_frame_shape
from jaxkern.xpcs.detectors.hdf5 import ANGSTROM_KEV


def q_and_phi(
    shape: tuple[int, int],
    beam_center: tuple[float, float],
    distance: float,
    pixel_size: float,
    energy: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return q in 1/Angstrom and phi in degrees of each pixel [H, W].

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
    center = (
        check_number("beam_center[0]", beam_center[0], -1e9, 1e9),
        check_number("beam_center[1]", beam_center[1], -1e9, 1e9),
    )
    numbers = {"distance": distance, "pixel_size": pixel_size, "energy": energy}
    lengths = {name: _quantity(name, value) for name, value in numbers.items()}
    good = np.ones(shape, bool) if mask is None else np.asarray(mask).astype(bool)
    if good.shape != shape:
        raise ValueError(f"mask: expected the shape {shape}, got {good.shape}")
    edges = [
        _edges("q_edges", q_edges),
        _edges("phi_edges", [-180.0, 180.0] if phi_edges is None else phi_edges),
    ]
    if edges[0][0] < 0:
        raise ValueError(f"q_edges: expected edges of 0 or more, got {edges[0][0]}")
    if edges[1][-1] - edges[1][0] > 360:
        raise ValueError(
            f"phi_edges: expected at most 360 degrees, got {edges[1][-1] - edges[1][0]}"
        )
    parts = [check_integer(f"static[{axis}]", static[axis], 1, 10**6) for axis in range(2)]
    values = list(q_and_phi(shape, center, **lengths))
    # Shift the angles to the interval of 360 degrees that begins at the first edge.
    values[1] = edges[1][0] + (values[1] - edges[1][0]) % 360
    cells, fine = [], []
    for axis in range(2):
        finer = _refined(edges[axis], parts[axis])
        indices = np.searchsorted(finer, values[axis], side="right") - 1
        # The last edge belongs to the last bin.
        indices[values[axis] == finer[-1]] = len(finer) - 2
        indices[(indices < 0) | (indices > len(finer) - 2)] = -1
        fine.append(indices)
        cells.append(np.where(indices >= 0, indices // parts[axis], -1))
    inside = good & (fine[0] >= 0) & (fine[1] >= 0)
    _check_pixels(inside, good, values, edges)
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
    for kind, at, divisions in (("dynamic", cells, [1, 1]), ("static", fine, parts)):
        axes = [_refined(edges[axis], divisions[axis]) for axis in range(2)]
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


# (least, most, unit, sizes of the units that a number out of this range may be in)
_PLAUSIBLE: dict[str, tuple[float, float, str, dict[str, float]]] = {
    "energy": (1e-3, 500.0, "keV", {"eV": 1e-3, "MeV": 1e3}),
    "distance": (1e-3, 500.0, "m", {"mm": 1e-3, "um": 1e-6, "km": 1e3}),
    "pixel_size": (1e-7, 5e-3, "m", {"um": 1e-6, "mm": 1e-3, "nm": 1e-9}),
}


def _quantity(name: str, number: Any) -> float:
    """Return a number in the unit of `_PLAUSIBLE`."""
    least, most, unit, others = _PLAUSIBLE[name]
    value = check_number(name, number, 0.0, 1e15)
    if least <= value <= most:
        return value
    likely = next((u for u, size in others.items() if least <= value * size <= most), None)
    hint = ""
    if likely is not None:
        hint = f"; if it is in {likely}, give {value * others[likely]:.6g}"
    raise ValueError(f"{name}: expected {least:g} to {most:g} {unit}, got {value:.6g}{hint}")


def _check_pixels(
    inside: NDArray[np.bool_],
    good: NDArray[np.bool_],
    values: list[NDArray[np.float64]],
    edges: list[NDArray[np.float64]],
) -> None:
    """Check that the bins have pixels."""
    q, phi = values
    low, high = float(q.min()), float(q.max())
    available = f"the detector's pixels have q from {low:.4g} to {high:.4g} 1/Angstrom"
    requested = f"q_edges span {edges[0][0]:.4g} to {edges[0][-1]:.4g}"
    tenth = edges[0] * 0.1
    nanometres = "; if q_edges are in 1/nm, multiply them by 0.1"
    if inside.any():
        # Rings outside of the detector, regardless of the mask.
        outside = int((edges[0][:-1] > high).sum() + (edges[0][1:] < low).sum())
        if outside:
            warnings.warn(
                f"{outside} of {len(edges[0]) - 1} rings have no pixels: {requested}, and "
                + available
                + (nanometres if tenth[-1] <= high else ""),
                stacklevel=4,
            )
        return
    if not good.any():
        raise ValueError("mask: expected 1 for good pixels, got 0 in all of them")
    ring = (q >= edges[0][0]) & (q <= edges[0][-1])
    if not ring.any():
        hint = "; check distance, pixel_size and energy"
        if edges[0][0] > high and tenth[0] <= high:
            hint = nanometres
        elif (ratio := edges[0][-1] / high) > 30 or ratio < 1 / 30:
            hint = (
                f"; they differ by a factor of {max(ratio, 1 / ratio):.3g}: are distance and "
                "pixel_size in m, energy in keV and q_edges in 1/Angstrom?"
            )
        raise ValueError(f"no pixel is in any bin: {requested}, and {available}{hint}")
    if not (ring & (phi >= edges[1][0]) & (phi <= edges[1][-1])).any():
        raise ValueError(
            f"no pixel is in any bin: phi_edges span {edges[1][0]:g} to {edges[1][-1]:g} degrees, "
            "and no pixel with these q has such an angle; are they in radians?"
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
