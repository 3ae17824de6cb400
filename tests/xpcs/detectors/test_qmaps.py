"""Maps of bins: files of simplemask, maps from the geometry, and written files.

Would catch labels that ignore the empty cells of the grid, rows and columns that are exchanged, an
angle of the wrong sign, and a static bin that is in two dynamic bins.
"""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from support.errors import raises, warns
from support.xpcs.correlator_frames import check_fields
from support.xpcs.detector_files import write_simplemask

import jaxkern as jk

Q, PHI = [0.01, 0.02, 0.03], [-90.0, 0.0, 90.0, 180.0]
DYNAMIC = np.array([[1, 1, 2, 2], [3, 3, 0, 4]], np.uint32)
STATIC = np.array([[1, 2, 3, 3], [4, 4, 0, 5]], np.uint32)
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.uint8)
# The cells (0, 1), (0, 3), (2, 0), (2, 2) of 3 x 4; the others are empty.
CELLS = [1, 3, 8, 10]
GRIDS = {"dynamic": (Q, PHI, CELLS), "static": ([0.01, 0.03], [0.0, 9.0, 18.0], [0, 1, 2, 3, 5])}


@pytest.mark.parametrize("group", ["qmap", "xpcs/qmap"])
def test_labels_skip_the_empty_cells(tmp_path, group):
    path = write_simplemask(
        tmp_path / "q.h5", DYNAMIC, STATIC, MASK, GRIDS, group,
        blemish=np.ones((2, 4), np.uint8), energy=10.0, beam_center_x=1.5, source_file="a.bin",
    )  # fmt: skip
    qmap = jk.xpcs.QMap.read(path)
    assert qmap.q.tolist() == [0.01, 0.01, 0.03, 0.03]
    assert qmap.phi.tolist() == [0.0, 180.0, -90.0, 90.0]
    np.testing.assert_array_equal(qmap.dynamic, DYNAMIC)
    np.testing.assert_array_equal(qmap.static, STATIC)
    assert qmap.n_pixels == 6
    assert qmap.pixels_of_bin.tolist() == [2, 1, 2, 1]
    assert qmap.blemish.all()
    assert qmap.layout["energy"] == 10.0
    assert qmap.layout["source_file"] == "a.bin"
    assert qmap.layout["static_index_mapping"].tolist() == [0, 1, 2, 3, 5]
    assert jk.xpcs.QMap.read(path, group).q.tolist() == qmap.q.tolist()


def test_a_written_map_is_read_back(tmp_path):
    path = write_simplemask(tmp_path / "q.h5", DYNAMIC, STATIC, MASK, GRIDS, energy=10.0)
    qmap = jk.xpcs.QMap.read(path)
    qmap.write(tmp_path / "again.h5")
    second = jk.xpcs.QMap.read(tmp_path / "again.h5")
    check_fields(second, qmap, ("dynamic", "static", "mask", "q", "phi"))
    with h5py.File(path) as before, h5py.File(tmp_path / "again.h5") as after:
        assert set(before["qmap"]) == set(after["qmap"])
        for key in before["qmap"]:
            np.testing.assert_array_equal(before["qmap"][key][()], after["qmap"][key][()])
        assert len(after["qmap"].attrs["hash"]) == 64
        assert after["qmap"].attrs["version"] == jk.__version__
        assert after["qmap/dynamic_v_list_dim1"].attrs["unit"] == "deg"
    with pytest.raises(FileExistsError):
        qmap.write(tmp_path / "again.h5")


@pytest.mark.parametrize("labels", [{}, {"q": [0.03, 0.01, 0.03]}, {"phi": [5.0, 5.0, -5.0]}])
def test_a_map_made_in_memory_is_written_and_read(tmp_path, labels):
    dynamic = np.array([[1, 2, 2], [3, 3, 0]])
    static = np.array([[1, 2, 3], [4, 4, 0]])
    qmap = jk.xpcs.QMap(dynamic, static, q=labels.get("q"), phi=labels.get("phi"))
    qmap.write(tmp_path / "q.h5", "/xpcs/qmap")
    second = jk.xpcs.QMap.read(tmp_path / "q.h5")
    np.testing.assert_array_equal(second.dynamic, dynamic)
    np.testing.assert_array_equal(second.static, static)
    for key, expected in labels.items():
        assert getattr(second, key).tolist() == expected
    for kind, n in (("dynamic", 3), ("static", 4)):
        assert len(second.layout[f"{kind}_index_mapping"]) == n


def test_a_map_without_some_pixels(tmp_path):
    path = write_simplemask(tmp_path / "q.h5", DYNAMIC, STATIC, MASK, GRIDS)
    qmap = jk.xpcs.QMap.read(path)
    dead = np.zeros((2, 4), bool)
    dead[0, :2] = True
    less = qmap.without(dead)
    assert less.pixels_of_bin.tolist() == [0, 1, 2, 1]
    assert less.q.tolist() == qmap.q.tolist()
    assert less.layout["mask"].tolist() == less.mask.tolist()
    assert qmap.without(None) is qmap
    with raises(ValueError, "pixels", "bool", "(1, 4)"):
        qmap.without(dead[:1])


@pytest.mark.parametrize(
    "pixels",
    [
        np.array([[1, 1, 0, 0], [0, 0, 0, 0]]),
        [0, 1],
        np.array([1, 0], np.uint16),
        [(0, 0), (0, 1)],
        np.array([[0, 1], [0, 0], [0, 1]]),
    ],
    ids=["mask", "numbers", "uint16", "pairs", "array of pairs"],
)
def test_a_map_without_pixels_by_mask_number_or_pair(pixels):
    mask = jk.xpcs.QMap(DYNAMIC, STATIC, MASK).without(pixels).mask
    np.testing.assert_array_equal(mask, [[0, 0, 1, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("pixels", "fact"),
    [
        ([8], "row 2, column 0"),
        ([-1], "row -1, column 3"),
        ([(0, 4)], "row 0, column 4"),
        ([0.5], "float64"),
        (np.zeros((3, 3), int), "(3, 3)"),
    ],
)
def test_pixels_outside_the_map(pixels, fact):
    with raises(ValueError, fact):
        jk.xpcs.QMap(DYNAMIC, STATIC, MASK).without(pixels)
    assert jk.xpcs.QMap(DYNAMIC).without([]).n_pixels == 7


FLAT = {
    "beam_center": (31.5, 31.5),
    "distance": 5.0,
    "pixel_size": 75e-6,
    "energy": 10.0,
    "q_edges": np.linspace(5e-4, 2.3e-3, 5),
}


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"energy": 10_000.0}, ["energy", "keV, got 10000", "in eV, give 10"]),
        ({"distance": 5000.0}, ["distance", "m, got 5000", "in mm, give 5"]),
        ({"pixel_size": 75.0}, ["pixel_size", "m, got 75", "in um, give 7.5e-05"]),
        ({"pixel_size": 0.075}, ["pixel_size", "m, got 0.075", "in mm, give 7.5e-05"]),
        ({"q_edges": 10 * np.linspace(5e-4, 2.3e-3, 5)}, ["q_edges", "1/nm", "by 0.1"]),
        ({"q_edges": 1e10 * np.linspace(5e-4, 2.3e-3, 5)}, ["no pixel", "q_edges in 1/Angstrom"]),
        ({"distance": 450.0}, ["no pixel", "a factor of", "distance and pixel_size in m"]),
        ({"phi_edges": [200.5, 200.6]}, ["no pixel", "radians"]),
        ({"mask": np.zeros((64, 64))}, ["mask", "got 0 in all"]),
        ({"mask": np.pad(np.zeros((44, 44)), 10, constant_values=1)}, ["mask", "inverted"]),
        ({"q_edges": [0.1]}, ["q_edges", "(1,)"]),
        ({"q_edges": [0.1, 0.1]}, ["q_edges", "0.1, 0.1"]),
        ({"q_edges": [-0.1, 0.1]}, ["q_edges", "-0.1"]),
        ({"q_edges": [0.1, np.nan]}, ["q_edges", "finite"]),
        ({"phi_edges": [0, 361]}, ["phi_edges", "361"]),
        ({"energy": 0}, ["energy", "keV", "got 0"]),
        ({"distance": -1}, ["distance", "-1"]),
        ({"pixel_size": "x"}, ["pixel_size", "'x'"]),
        ({"beam_center": (np.nan, 0)}, ["beam_center[0]", "nan"]),
        ({"static": (0, 1)}, ["static[0]", "0"]),
        ({"mask": np.ones((3, 3))}, ["mask", "(64, 64)", "(3, 3)"]),
    ],
)
def test_invalid_geometry(change, facts):
    if "phi_edges" in change:
        change = {**change, "q_edges": [5e-4, 6e-4]}
    if "mask" in change and change["mask"].any():
        change = {**change, "q_edges": [2e-4, 1e-3]}
    with raises(ValueError, *facts):
        jk.xpcs.QMap.from_geometry((64, 64), **{**FLAT, **change})


def test_rings_outside_the_detector_are_reported():
    with warns(UserWarning, "3 of 5 rings", "1/nm"):
        jk.xpcs.QMap.from_geometry(
            (64, 64), **{**FLAT, "q_edges": [1e-3, 2e-3, 4e-3, 8e-3, 1e-2, 2e-2]}
        )


def test_maps_of_x_and_y_have_no_q(tmp_path):
    path = write_simplemask(tmp_path / "q.h5", DYNAMIC, STATIC, MASK, GRIDS)
    with h5py.File(path, "r+") as file:
        del file["qmap/map_names"]
        file["qmap/map_names"] = ["x", "y"]
    qmap = jk.xpcs.QMap.read(path)
    assert qmap.q is None
    assert qmap.phi is None
    assert qmap.n_dynamic == 4


def test_geometry():
    """Each pixel's q and phi against the formulas in another form, and the bins against them."""
    shape, center, distance, pixel, energy = (40, 60), (20.25, 17.5), 0.4, 2e-3, 11.0
    q_edges, phi_edges = np.linspace(0.2, 0.9, 4), np.array([-30.0, 60.0, 150.0, 240.0])
    mask = np.ones(shape, bool)
    mask[5:9] = False
    qmap = jk.xpcs.QMap.from_geometry(
        shape, beam_center=center, distance=distance, pixel_size=pixel, energy=energy,
        q_edges=q_edges, phi_edges=phi_edges, static=(4, 3), mask=mask,
    )  # fmt: skip
    k = 2 * np.pi * energy / 12.398419843320026
    bins: dict[tuple[int, int], set] = {}
    n_inside = 0
    for row in range(shape[0]):
        for column in range(shape[1]):
            x, y = (column - center[0]) * pixel, (center[1] - row) * pixel
            # |k_out - k_in| with unit vectors, without half angles.
            out = np.array([x, y, distance]) / np.sqrt(x * x + y * y + distance**2)
            q = k * np.linalg.norm(out - [0, 0, 1])
            phi = (np.degrees(np.angle(complex(x, y))) + 30) % 360 - 30
            inside = q_edges[0] <= q <= q_edges[-1] and phi <= 240 and mask[row, column]
            result = qmap.dynamic[row, column]
            assert (result > 0) == inside == (qmap.static[row, column] > 0)
            if inside:
                n_inside += 1
                cell = (np.searchsorted(q_edges, q, "right") - 1, int((phi + 30) // 90))
                bins.setdefault(cell, set()).add(result)
                assert qmap.q[result - 1] == pytest.approx(q_edges[cell[0] : cell[0] + 2].mean())
                assert qmap.phi[result - 1] == pytest.approx(15 + 90 * cell[1])
    assert n_inside == qmap.n_pixels > 500
    assert all(len(result) == 1 for result in bins.values())
    assert len(bins) == qmap.n_dynamic
    # Bins are numbered by q, then by phi, without gaps; each static bin is within one dynamic bin.
    assert [next(iter(bins[cell])) for cell in sorted(bins)] == list(range(1, len(bins) + 1))
    assert qmap.n_static > 6 * qmap.n_dynamic
    assert qmap.dynamic_of_static.all()
    # xpcs-viewer reads a cell for each static bin.
    layout = qmap.layout
    assert len(layout["static_index_mapping"]) == qmap.n_static
    assert layout["static_num_pts"].tolist() == [12, 9]


def test_geometry_of_rings():
    qmap = jk.xpcs.QMap.from_geometry(
        (8, 8), beam_center=(0, 0), distance=5, pixel_size=1e-4, energy=8.0, q_edges=[0, 1]
    )
    assert qmap.phi is None
    assert qmap.n_dynamic == 1
    assert qmap.n_pixels == 64


def replaced(**values):
    def change(group):
        for key, value in values.items():
            if key in group:
                del group[key]
            if value is not None:
                group[key] = value

    return change


BAD = [
    (replaced(dynamic_roi_map=None), ["dynamic_roi_map"]),
    (replaced(dynamic_roi_map=np.zeros(8)), ["dynamic_roi_map", "float64", "(8,)"]),
    (replaced(dynamic_roi_map=DYNAMIC + 0.5), ["dynamic", "integers"]),
    (replaced(dynamic_roi_map=DYNAMIC.astype(int) - 2), ["dynamic", "0 to 8", "-2 to 2"]),
    (replaced(static_roi_map=STATIC[:, :3]), ["static", "(2, 4)", "(2, 3)"]),
    (replaced(static_roi_map=np.minimum(STATIC, 2)), ["static", "bin 2", "[1, 2, 3, 4]"]),
    (replaced(mask=MASK[:1]), ["mask", "(2, 4)", "(1, 4)"]),
    (replaced(mask=["a"]), ["mask", "object", "(1,)"]),
    (replaced(dynamic_index_mapping=[0, 1, 2]), ["dynamic_index_mapping", "4 bins", "got 3"]),
    (replaced(dynamic_index_mapping=[0, 1, 2, 12]), ["dynamic_index_mapping", "0 to 12"]),
    (replaced(dynamic_index_mapping=[0, 1, 2, -1]), ["dynamic_index_mapping", "-1 to 2"]),
    (replaced(dynamic_index_mapping=[0.0, 1, 2, 3]), ["dynamic_index_mapping", "float64"]),
    (replaced(dynamic_v_list_dim0=["a", "b", "c"]), ["cells", "3 x 4"]),
    (
        replaced(dynamic_v_list_dim0=h5py.SoftLink("/qmap/dynamic_v_list_dim0")),
        ["/qmap/dynamic_v_list_dim0", "link"],
    ),
]


@pytest.mark.parametrize(("change", "facts"), BAD)
def test_invalid_maps(tmp_path, change, facts):
    path = write_simplemask(tmp_path / "q.h5", DYNAMIC, STATIC, MASK, GRIDS)
    with h5py.File(path, "r+") as file:
        change(file["qmap"])
    with raises(jk.xpcs.DetectorFileError, "q.h5", *facts):
        jk.xpcs.QMap.read(path)


def test_files_without_a_map(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["other"] = 1
    with raises(jk.xpcs.DetectorFileError, "x.h5", "/qmap", "/xpcs/qmap", "['other']"):
        jk.xpcs.QMap.read(tmp_path / "x.h5")
    with pytest.raises(FileNotFoundError):
        jk.xpcs.QMap.read(tmp_path / "none.h5")
