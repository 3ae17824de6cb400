"""Both APS layouts, read from files that the tests write with h5py.

Would catch a diagonal or a full matrix that counts twice, bins decoded with q and phi exchanged or
numbered with the empty cells, matrices in alphabetical order, and errors without a file name.
"""

from __future__ import annotations

import importlib
import inspect

import h5py
import numpy as np
import pytest
from support.errors import raises

from jaxkern import xpcs
from jaxkern.xpcs import ApsFile, ApsFormatError, ApsWriter, load_aps, write_aps

N_T = 17
Q, PHI = [0.003, 0.005, 0.007], [-30.0, 0.0, 30.0, 60.0]


def matrices(count, dtype=np.float64):
    c2 = 1 + np.random.default_rng(count).random((count, N_T, N_T))
    return ((c2 + c2.transpose(0, 2, 1)) / 2).astype(dtype)


def write(path, entries, more):
    with h5py.File(path, "w") as file:
        for name, value in (entries | more).items():
            file[name.replace("__", "/")] = value
    return path


def aps(path, halves, q, phi, names=None, **more):
    """Write a file in the older layout, without changes of the triangles."""
    names = [f"g2_{k:05d}" for k in range(len(halves))] if names is None else names
    maps = {f"exchange/C2T_all/{name}": half for name, half in zip(names, halves, strict=True)}
    lists = {"xpcs/dqlist": [q, np.zeros(len(q))], "xpcs/dphilist": [phi]}
    return write(path, maps | lists, more)


def aps_u(path, c2, bins, q=Q, phi=PHI, names=None, **more):
    """Write a file in the layout of boost-corr, with the upper triangles and the diagonals."""
    numbers = range(1, len(c2) + 1) if names is None else names
    maps = [f"xpcs/twotime/correlation_map/c2_{number:05d}" for number in numbers]
    entries = dict(zip(maps, np.triu(c2), strict=True))
    entries |= {f"xpcs/qmap/dynamic_v_list_dim{k}": labels for k, labels in enumerate((q, phi))}
    return write(path, entries | {"xpcs/twotime/processed_bins": bins}, more)


@pytest.mark.parametrize("triangle", [np.triu, np.tril])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_old_layout(tmp_path, triangle, dtype):
    c2 = matrices(3, dtype)
    path = aps(tmp_path / "old.h5", triangle(c2), [0.005, 0.005, 0.007], [0.0, 90.0, 0.0])
    data = load_aps(path)
    np.testing.assert_array_equal(data.c2, c2)
    assert data.c2.dtype == dtype
    np.testing.assert_array_equal(data.q, [0.005, 0.005, 0.007])
    np.testing.assert_array_equal(data.phi, [0.0, 90.0, 0.0])


@pytest.mark.parametrize("named", [False, True])
def test_new_layout_decodes_bins(tmp_path, named):
    # Of 2 q times 3 phi: (q1, phi2), (q0, phi1), (q0, phi2), (q1, phi0).
    c2, bins = matrices(4), [6, 2, 3, 4]
    names = bins if named else None
    path = aps_u(tmp_path / "new.h5", c2, bins, [0.005, 0.007], [-30.0, 0.0, 30.0], names)
    data = load_aps(path)
    np.testing.assert_array_equal(data.c2, c2)
    np.testing.assert_array_equal(data.q, [0.007, 0.005, 0.005, 0.007])
    np.testing.assert_array_equal(data.phi, [30.0, 0.0, 30.0, -30.0])


@pytest.mark.parametrize("layout", ["aps", "aps-u"])
def test_writer_stores_one_triangle_in_the_documented_places(tmp_path, layout):
    c2 = matrices(2)
    path = tmp_path / "file.h5"
    with ApsWriter(
        path, q=[0.01, 0.02], phi=[0.0, 5.0], n_t=N_T, layout=layout, dtype="f8"
    ) as writer:
        for angle in range(2):
            for first in (0, 6, 12):
                writer.write_rows(angle, first, c2[angle, first : first + 6])
    with h5py.File(path) as file:
        if layout == "aps":
            half = file["exchange/C2T_all"]["g2_00002"][()]
            np.testing.assert_array_equal(file["xpcs/dqlist"][0, :], [0.01, 0.02])
            np.testing.assert_array_equal(file["xpcs/dphilist"][0, :], [0.0, 5.0])
        else:
            half = file["xpcs/twotime/correlation_map/c2_00002"][()]
            np.testing.assert_array_equal(file["xpcs/twotime/processed_bins"][()], [1, 2])
            cells = file["xpcs/qmap/dynamic_index_mapping"][()]
            np.testing.assert_array_equal(cells, [0, 3])
    np.testing.assert_array_equal(half, np.triu(c2[1]))
    with ApsFile(path) as file:
        assert (file.layout, file.shape, file.symmetric) == (layout, (2, N_T, N_T), True)
        for first, stop in [(0, 1), (0, N_T), (5, 9), (16, 17), (3, 3)]:
            np.testing.assert_array_equal(file.read(1, first, stop), c2[1, first:stop])
        with raises(IndexError, "rows", "0 to 17", "5 to 18"):
            file.read(0, 5, 18)


def test_larger_than_a_tile_and_a_slab(tmp_path):
    n = 1100
    c2 = np.random.default_rng(1).random((1, n, n))
    c2 += c2.transpose(0, 2, 1)
    path = write_aps(tmp_path / "file.h5", c2, q=0.01, phi=[0.0])
    np.testing.assert_array_equal(load_aps(path).c2, c2)
    # The tiles of the empty triangle were never written.
    assert path.stat().st_size < 0.9 * c2.nbytes


class Counted:
    """A data set that counts how often it is read."""

    def __init__(self, dataset):
        self._dataset, self.reads = dataset, 0

    def __getattr__(self, name):
        return getattr(self._dataset, name)

    def __getitem__(self, where):
        self.reads += 1
        return self._dataset[where]


@pytest.mark.parametrize("chunk", [N_T, 2])
def test_a_matrix_in_one_chunk_is_decompressed_once(tmp_path, chunk):
    """boost-corr stores a matrix as one chunk, so reading three rows decompresses all of it."""
    c2 = matrices(2)
    path = aps(tmp_path / "old.h5", [], [0.1, 0.1], [0.0, 1.0])
    options = {"chunks": (chunk, chunk), "compression": "lzf"}
    with h5py.File(path, "a") as file:
        for k, matrix in enumerate(np.triu(c2)):
            file.create_dataset(f"exchange/C2T_all/{k}", data=matrix, **options)
    with ApsFile(path) as file:
        file._sets = [Counted(item) for item in file._sets]
        for angle in (0, 1):
            for first in range(0, N_T - 2, 3):
                rows = file.read(angle, first, first + 3)
                np.testing.assert_array_equal(rows, c2[angle, first : first + 3])
        reads = [item.reads for item in file._sets]
    assert reads == ([1, 1] if chunk == N_T else [11, 11])  # five slabs twice, and the diagonal


def test_errors_list_missing_and_existing_groups(tmp_path):
    path = tmp_path / "half.h5"
    with h5py.File(path, "w") as file:
        file["xpcs/dqlist"] = np.ones((1, 2))
        file["exchange/norm-0-g2"] = np.ones(3)
    with pytest.raises(ApsFormatError) as caught:
        load_aps(path)
    text = str(caught.value)
    assert "'aps' misses xpcs/dphilist, exchange/C2T_all" in text
    assert "'aps-u' misses xpcs/qmap/dynamic_v_list_dim0" in text
    assert "exchange/ (norm-0-g2); xpcs/ (dqlist)" in text
    with pytest.raises(ApsFormatError) as caught:
        load_aps(path, layout="aps")
    assert "aps-u" not in str(caught.value)


def test_bad_files(tmp_path):
    with raises(FileNotFoundError, "nowhere.h5"):
        ApsFile(tmp_path / "nowhere.h5")
    text = tmp_path / "text.h5"
    text.write_text("not HDF5")
    with raises(ApsFormatError, "text.h5", "HDF5"):
        ApsFile(text)
    with raises(ValueError, "layout", "'esrf'"):
        load_aps(aps(tmp_path / "a.h5", matrices(1), [1.0], [0.0]), layout="esrf")


def test_lists_and_matrices_that_disagree(tmp_path):
    with raises(ApsFormatError, "a.h5", "xpcs/dqlist", "xpcs/dphilist", "got 2, 1 and 1"):
        load_aps(aps(tmp_path / "a.h5", matrices(1), [1.0, 2.0], [0.0]))
    with raises(ApsFormatError, "b.h5", "processed_bins", "1 to 4", "5 to 5"):
        load_aps(aps_u(tmp_path / "b.h5", matrices(1), [5], [1, 2], [0, 1]))
    with raises(ApsFormatError, "c.h5", "2 bins", "c2_00001, c2_00004"):
        load_aps(aps_u(tmp_path / "c.h5", matrices(2), [3, 4], [1, 2], [0, 1], names=[1, 4]))
    path = aps(tmp_path / "d.h5", matrices(2), [1.0, 2.0], [0.0, 1.0])
    for shape, facts in [((5, 5), ["[17, 17]", "[5, 5]"]), ((5, 7), ["[5, 7]"])]:
        with h5py.File(path, "a") as file:
            del file["exchange/C2T_all/g2_00001"]
            file["exchange/C2T_all/g2_00001"] = np.ones(shape)
        with raises(ApsFormatError, "d.h5", "g2_00001", *facts):
            load_aps(path)


def test_wrong_arguments_of_write_aps(tmp_path):
    path = tmp_path / "x.h5"
    with raises(ValueError, "q, phi", "'aps-u'"):
        write_aps(path, matrices(2), q=0.01, phi=[3.0, 3.0])
    with raises(ValueError, "phi", "2 values", "got 1"):
        write_aps(path, matrices(2), q=0.01, phi=[3.0])
    with raises(ValueError, "c2", "[17, 17]"):
        write_aps(path, matrices(1)[0], q=0.01, phi=[3.0])


def grid(roi):
    """Return the cells and bins of pixels in the cells `roi`, numbered as in pysimplemask."""
    cells, numbers = np.unique(roi[roi >= 0], return_inverse=True)
    bins = np.zeros(roi.shape, int)
    bins[roi >= 0] = numbers + 1
    return cells, bins


def test_bins_are_numbered_without_the_empty_cells(tmp_path):
    # A detector that sees 8 of the 12 cells, and a pixel in none (-1).
    roi = np.array([[0, 1, 3, -1], [4, 6, 7, 7], [9, 11, 11, 0]])
    cells, bins = grid(roi)
    processed = [2, 4, 8, 5]
    c2 = matrices(4)
    path = aps_u(tmp_path / "u.h5", c2, processed, xpcs__qmap__dynamic_index_mapping=cells)
    data = load_aps(path)
    for k, b in enumerate(processed):
        cell = roi[bins == b][0]
        assert data.q[k] == Q[cell // len(PHI)], b
        assert data.phi[k] == PHI[cell % len(PHI)], b
        np.testing.assert_array_equal(data.c2[k], c2[k])


@pytest.mark.parametrize("layout", ["aps", "aps-u"])
def test_a_written_file_is_read_back(tmp_path, layout):
    q, phi = [0.007, 0.003, 0.007, 0.003], [10.0, -5.0, 0.0, 10.0]
    c2 = matrices(4)
    path = write_aps(tmp_path / "w.h5", c2, q=q, phi=phi, dt=0.0125, layout=layout)
    data = load_aps(path)
    assert (data.q.tolist(), data.phi.tolist(), data.dt) == (q, phi, 0.0125)
    np.testing.assert_array_equal(data.c2, c2)
    some = load_aps(path, entries=[2, 0])
    np.testing.assert_array_equal(some.c2, c2[[2, 0]])
    assert some.phi.tolist() == [0.0, 10.0]
    assert load_aps(write_aps(path, c2, q=q, phi=phi, layout=layout)).dt is None
    for dt in (0.0, -1.0, np.nan):
        with raises(ValueError, "dt", "above 0 s", f"got {dt}"):
            write_aps(path, c2, q=q, phi=phi, dt=dt, layout=layout)


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({"dynamic_index_mapping": [0, 1, 2]}, ["processed_bins", "1 to 3", "2 to 4"]),
        ({"dynamic_index_mapping": np.arange(13)}, ["0 to 11", "13 cells from 0 to 12"]),
        ({"dynamic_index_mapping": [0, 1, 1, 5]}, ["0 to 11", "4 cells from 0 to 5"]),
        ({"dynamic_index_mapping": [0.5, 1, 2, 3]}, ["dynamic_index_mapping", "integers"]),
        ({"dynamic_num_pts": [4, 3]}, ["dynamic_num_pts", "[3, 4]", "got [4, 3]"]),
        ({"map_names": ["x", "y"]}, ["map_names", "['x', 'y']"]),
    ],
)
def test_an_inconsistent_qmap(tmp_path, more, facts):
    more = {f"xpcs__qmap__{name}": value for name, value in more.items()}
    with raises(ApsFormatError, "u.h5", "xpcs/", *facts):
        ApsFile(aps_u(tmp_path / "u.h5", matrices(2), [2, 4], **more))


def test_inconsistent_lengths_and_bins(tmp_path):
    with raises(ApsFormatError, "u.h5", "processed_bins", "bin 4"):
        ApsFile(aps_u(tmp_path / "u.h5", matrices(3), [4, 2, 4]))
    with raises(ApsFormatError, "u.h5", "correlation_map", "2 bins", "got 3"):
        ApsFile(aps_u(tmp_path / "u.h5", matrices(3), [1, 2]))
    old = aps(tmp_path / "o.h5", matrices(2), [0.1] * 3, [1.0, 2.0, 3.0], ["1", "2"])
    with h5py.File(old, "a") as file:
        file["xpcs/qphi_bin_to_process"] = [[3], [3]]
    with raises(ApsFormatError, "o.h5", "qphi_bin_to_process", "bin 3"):
        ApsFile(old)
    with h5py.File(old, "a") as file:
        file["xpcs/qphi_bin_to_process"][...] = [[4], [3]]
    with raises(ApsFormatError, "o.h5", "qphi_bin_to_process", "1 to 3", "3 to 4"):
        ApsFile(old)


@pytest.mark.parametrize("prefix", ["", "g2_"])
def test_names_of_the_older_layout_are_in_natural_order(tmp_path, prefix):
    c2 = matrices(12)
    phi = 10.0 * np.arange(12)
    names = [f"{prefix}{k + 1}" for k in range(12)]
    data = load_aps(aps(tmp_path / "o.h5", np.triu(c2), [0.1] * 12, phi, names))
    np.testing.assert_array_equal(data.c2, c2)
    np.testing.assert_array_equal(data.phi, phi)


@pytest.mark.parametrize("named", ["counted", "by bin"])
def test_the_older_layouts_own_index_is_used(tmp_path, named):
    bins = [7, 2, 11]
    q, phi = 0.001 * np.arange(1, 13), 10.0 * np.arange(1, 13)
    c2 = matrices(3)
    names = [f"g2_{k + 1 if named == 'counted' else b:05d}" for k, b in enumerate(bins)]
    index = np.array([bins], np.uint64)
    path = aps(tmp_path / "o.h5", np.triu(c2), q, phi, names, xpcs__qphi_bin_to_process=index)
    data = load_aps(path)
    np.testing.assert_array_equal(data.c2, c2)
    np.testing.assert_array_equal(data.phi, [70.0, 20.0, 110.0])
    np.testing.assert_array_equal(data.q, q[[6, 1, 10]])
    # Lists of the processed bins alone are in the matrices' order.
    short = aps(
        tmp_path / "s.h5", np.triu(c2), q[:3], phi[:3], names, xpcs__qphi_bin_to_process=index
    )
    np.testing.assert_array_equal(load_aps(short).phi, phi[:3])


def test_time_steps(tmp_path):
    nexus = {
        "entry__instrument__detector_1__frame_time": 0.02,
        "xpcs__twotime__config__stride_frame": 3,
        "xpcs__twotime__config__avg_frame": np.array([2]),
        # The stride of the other correlator does not apply.
        "xpcs__multitau__config__stride_frame": 7,
    }
    assert ApsFile(aps_u(tmp_path / "1.h5", matrices(1), [1], **nexus)).dt == pytest.approx(0.12)
    del nexus["xpcs__twotime__config__stride_frame"]
    assert ApsFile(aps_u(tmp_path / "2.h5", matrices(1), [1], **nexus)).dt == pytest.approx(0.04)
    assert ApsFile(aps_u(tmp_path / "3.h5", matrices(1), [1])).dt is None
    old = {
        "measurement__instrument__detector__exposure_period": [[0.5]],
        "measurement__instrument__detector__exposure_time": [[0.1]],
        "xpcs__stride_frames": [[2]],
        "xpcs__avg_frames": [[3]],
    }
    assert ApsFile(aps(tmp_path / "4.h5", matrices(1), [1], [1], ["1"], **old)).dt == 3.0
    nexus["entry__instrument__detector_1__frame_time"] = -1.0
    with raises(ApsFormatError, "5.h5", "frame_time", "-1.0"):
        ApsFile(aps_u(tmp_path / "5.h5", matrices(1), [1], **nexus))


@pytest.mark.parametrize("stored", ["whole", "nearly mirrored", "upper", "lower"])
def test_a_matrix_is_never_doubled(tmp_path, stored):
    c2 = matrices(1)[0]
    half = {"whole": c2, "upper": np.triu(c2), "lower": np.tril(c2)}.get(stored)
    if half is None:
        # A matrix product on a GPU rounds the two triangles differently; the upper one is used.
        half = np.triu(c2) + np.tril(c2, -1) * (1 + 3e-7)
    with ApsFile(aps(tmp_path / "o.h5", [half], [1], [1])) as file:
        for first, stop in [(0, N_T), (0, 2), (2, 5), (N_T - 1, N_T), (3, 3)]:
            np.testing.assert_array_equal(file.read(0, first, stop), c2[first:stop])


def test_a_frame_without_counts_is_not_an_empty_triangle(tmp_path):
    c2 = matrices(1)[0]
    c2[3], c2[:, 3] = 0, 0
    c2[0, 5] = c2[5, 0] = np.nan
    read = c2.copy()
    read[3], read[:, 3] = np.nan, np.nan
    for half in (np.triu(c2), c2, np.tril(c2)):
        with ApsFile(aps(tmp_path / "o.h5", [half], [1], [1], ["1"])) as file:
            rows = np.concatenate([file.read(0, k, k + 1) for k in range(N_T)])
        np.testing.assert_array_equal(rows, read)


@pytest.mark.parametrize("what", ["another number", "zero", "NaN below"])
def test_matrices_that_are_not_symmetric(tmp_path, what):
    c2 = matrices(1)[0]
    if what == "NaN below":
        c2[np.tril_indices(N_T, -1)] = np.nan
    else:
        c2[4, 1] = 0.0 if what == "zero" else 1.001 * c2[1, 4]
    path = aps(tmp_path / "o.h5", [c2], [1], [1], ["1"])
    with raises(ApsFormatError, "o.h5", "/exchange/C2T_all/1"):
        load_aps(path)


LINKS = [h5py.SoftLink("/no"), h5py.ExternalLink("no.h5", "/no")]
LISTS = ["text", 2.0, np.full((1, 2), np.nan), np.zeros((1, 0))]


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, link) for name in ("exchange/C2T_all/2", "xpcs/dqlist") for link in LINKS]
    + [("xpcs/dphilist", value) for value in LISTS],
)
def test_broken_links_and_invalid_lists(tmp_path, name, value):
    path = aps(tmp_path / "o.h5", matrices(2), [1, 1], [1, 2], ["1", "2"])
    with h5py.File(path, "a") as file:
        del file[name]
        file[name] = value
    with raises(ApsFormatError, "o.h5", name if name == "xpcs/dphilist" else ""):
        ApsFile(path)


@pytest.mark.parametrize("signature", [b"TREE", b"SNOD", b"HEAP"])
def test_damaged_groups(tmp_path, signature):
    path = aps(tmp_path / "o.h5", matrices(2), [1, 1], [1, 2], ["1", "2"])
    content = path.read_bytes()
    assert signature in content
    # All groups are damaged, so the test does not depend on the order of reads.
    path.write_bytes(content.replace(signature, b"XXXX"))
    with raises(ApsFormatError, "o.h5"):
        ApsFile(path)


def test_damaged_matrices_and_types(tmp_path):
    path = write_aps(tmp_path / "o.h5", matrices(2), q=0.1, phi=[1, 2], layout="aps")
    content = path.read_bytes()
    # The type of a 64-bit float with a mantissa that no NumPy type has.
    float64 = bytes([0, 64, 0, 52, 11, 0, 52])
    assert float64 in content
    path.write_bytes(content.replace(float64, bytes([0, 64, 0, 52, 11, 0, 63])))
    with raises(ApsFormatError, "o.h5"):
        ApsFile(path)
    # The last B-tree is the index of chunks; those of the groups precede it.
    place = content.rindex(b"TREE")
    path.write_bytes(content[:place] + b"XXXX" + content[place + 4 :])
    with ApsFile(path) as file, raises(OSError, "o.h5", "/exchange/C2T_all/"):
        np.stack([file.read(angle, 0, N_T) for angle in range(2)])


MODULES = ("files.aps", "analysis.settings", "files.prepare", "files.simulation")


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.xpcs.{name}"))


def test_every_public_name_is_there():
    assert all(hasattr(xpcs, name) for name in xpcs.__all__)
    assert len(set(xpcs.__all__)) == len(xpcs.__all__)


def test_both_ways_to_simulate_give_the_same(tmp_path):
    """The mirrored noise has the size that was asked for and does not depend on where it goes."""
    t = 0.1 * np.arange(300)
    geometry = xpcs.Geometry(q=0.0054, gap=2e6, dt=0.1, t=t, phi=[0.0, 40.0])
    model = xpcs.LaminarFlow(geometry)
    how = {"noise": 0.02, "diagonal_artifact": 0.5, "seed": 4}
    held = xpcs.simulate(model, model.defaults, 0.3, [1.0, 1.1], **how)
    path = xpcs.simulate_to_file(
        tmp_path / "s.h5", model, model.defaults, 0.3, [1.0, 1.1], dtype="f8", **how
    )
    np.testing.assert_array_equal(load_aps(path).c2, held)
    np.testing.assert_array_equal(held, held.transpose(0, 2, 1))
    clean = xpcs.simulate(model, model.defaults, 0.3, [1.0, 1.1])
    upper = (held - clean)[:, *np.triu_indices(300, 1)]
    assert np.std(upper) == pytest.approx(0.02, rel=0.02)
    assert abs(np.mean(upper)) < 5 * 0.02 / np.sqrt(upper.size)
    k = np.arange(300)
    assert np.mean((held - clean)[:, k, k]) == pytest.approx(0.5, abs=0.01)
