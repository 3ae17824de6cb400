"""What a file of results says of a detector's bins: the fields of the group /xpcs/qmap."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.version import __version__
from jaxkern.xpcs.detectors.qmap import QMap

Array = NDArray[Any]


def qmap_fields(qmap: QMap, known: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of /xpcs/qmap, by its name.

    Args:
      qmap: with what its own file said, or only with q and phi of the dynamic bins.
      known: what is known of the detector, see `FrameSource.metadata`; "beam_center" is (x, y) in
        pixels.
    """
    named = qmap.q is not None
    dynamic = _grid(qmap.n_dynamic, qmap.q, qmap.phi)
    # Of a static bin only the dynamic bin that it lies in is known.
    lies_in = np.maximum(qmap.dynamic_of_static, 1) - 1
    static_q = None if qmap.q is None else qmap.q[lies_in]
    static = (_labels(static_q, qmap.n_static), np.zeros(1), np.arange(qmap.n_static))
    x, y = np.broadcast_to(known.get("beam_center", np.nan), (2,))
    pixel_size = np.broadcast_to(known.get("pixel_size", np.nan), (2,))[0]
    fields: dict[str, Any] = {
        "mask": qmap.mask.astype(np.uint8),
        "dynamic_roi_map": qmap.dynamic.astype(np.uint32),
        "static_roi_map": qmap.static.astype(np.uint32),
        "map_names": ["q" if named else "bin", "phi"],
        "map_units": ["1/A" if named else "", "degree"],
        "beam_center_x": float(x),
        "beam_center_y": float(y),
        "pixel_size": float(pixel_size),
        "detector_distance": float(known.get("distance", np.nan)),
        "energy": float(known.get("energy", np.nan)),
    }
    for name, (first, second, cells) in (("dynamic", dynamic), ("static", static)):
        fields[f"{name}_v_list_dim0"], fields[f"{name}_v_list_dim1"] = first, second
        fields[f"{name}_num_pts"] = np.array([len(first), len(second)])
        fields[f"{name}_index_mapping"] = cells.astype(np.int64)
    return fields


def qmap_attributes(fields: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of the group: by the hash, programs tell maps from each other."""
    digest = hashlib.sha256()
    for name in sorted(fields):
        values = np.asarray(fields[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
        digest.update(values.tobytes())
    return {"hash": digest.hexdigest(), "version": f"jaxkern {__version__}"}


def _labels(values: Array | None, n: int) -> Array:
    """[n] finite labels; of a bin without pixels, which may have none, 0."""
    return np.arange(1.0, n + 1) if values is None else np.nan_to_num(values)


def _grid(n: int, q: Array | None, phi: Array | None) -> tuple[Array, Array, Array]:
    """Distinct q, distinct phi, and each bin's cell of their grid."""
    momenta = _labels(q, n)
    angles = np.zeros(n) if phi is None else _labels(phi, n)
    first, row = np.unique(momenta, return_inverse=True)
    second, column = np.unique(angles, return_inverse=True)
    cells = row * len(second) + column
    if len(np.unique(cells)) < n:
        # Bins of the same q and phi: a row of its own for each.
        first, cells = momenta, np.arange(n) * len(second) + column
    return first, second, cells
