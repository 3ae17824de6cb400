"""Maps of bins compared with pysimplemask: reading its files, and q and phi of a geometry."""

from __future__ import annotations

import types

import h5py
import numpy as np
from pysimplemask.core import partition
from pysimplemask.core.qmap import compute_transmission_qmap

import jaxkern as jk

SHAPE, CENTER, DISTANCE, PIXEL, ENERGY = (60, 80), (31.25, 22.5), 0.8, 1e-3, 9.5


def made_map():
    values, _ = compute_transmission_qmap(ENERGY, CENTER[::-1], SHAPE, PIXEL, DISTANCE, 0.0)
    mask = np.ones(SHAPE, bool)
    mask[:, :25] = False  # so that cells of the grid are empty
    return values, mask


def test_q_and_phi():
    values, mask = made_map()
    q_edges, phi_edges = np.linspace(0.01, 0.15, 9), np.linspace(-180, 180, 7)
    qmap = jk.xpcs.QMap.from_geometry(
        SHAPE, beam_center=CENTER, distance=DISTANCE, pixel_size=PIXEL, energy=ENERGY,
        q_edges=q_edges, phi_edges=phi_edges, mask=mask,
    )  # fmt: skip
    used = qmap.used
    cell = np.digitize(values["q"], q_edges) - 1, np.digitize(values["phi"], phi_edges) - 1
    assert used.sum() > 1000
    center = (q_edges[1:] + q_edges[:-1]) / 2, (phi_edges[1:] + phi_edges[:-1]) / 2
    bins = qmap.dynamic[used] - 1
    np.testing.assert_allclose(qmap.q[bins], center[0][cell[0][used]])
    np.testing.assert_allclose(qmap.phi[bins], center[1][np.minimum(cell[1][used], 5)])


def test_what_it_writes(tmp_path):
    """Its partition of q and phi, saved by its own code, with cells that are empty."""
    from pysimplemask.core.model import SimpleMaskModel

    values, mask = made_map()
    packs = {}
    for kind, (n_q, n_phi) in {"dynamic": (6, 12), "static": (24, 24)}.items():
        packs[kind] = partition.combine_partitions(
            partition.generate_partition("q", mask, values["q"], n_q),
            partition.generate_partition("phi", mask, values["phi"], n_phi),
            prefix=kind,
        )
    model = types.SimpleNamespace(
        new_partition={
            "beam_center_x": CENTER[0], "beam_center_y": CENTER[1], "pixel_size": PIXEL,
            "mask": mask, "blemish": np.ones(SHAPE, bool), "energy": ENERGY,
            "detector_distance": DISTANCE, "map_names": ["q", "phi"],
            "map_units": ["1/A", "deg"], "source_file": "raw.bin",
            **packs["dynamic"], **packs["static"],
        }
    )  # fmt: skip
    path = tmp_path / "qmap.hdf"
    SimpleMaskModel.save_partition(model, str(path))
    qmap = jk.xpcs.QMap.read(path)
    assert qmap.n_dynamic < 6 * 12  # some cells are empty
    assert qmap.layout["energy"] == ENERGY
    np.testing.assert_array_equal(qmap.mask, mask)
    # The label of a pixel's bin is the center of the cell that contains the pixel.
    width = np.ptp(values["q"][mask]) / 6, np.ptp(values["phi"][mask]) / 12
    bins = qmap.dynamic[qmap.used] - 1
    assert (np.abs(qmap.q[bins] - values["q"][qmap.used]) <= 0.5001 * width[0]).all()
    assert (np.abs(qmap.phi[bins] - values["phi"][qmap.used]) <= 0.5001 * width[1]).all()
    qmap.write(tmp_path / "again.hdf")
    with h5py.File(path) as before, h5py.File(tmp_path / "again.hdf") as after:
        assert set(before["qmap"]) == set(after["qmap"])
