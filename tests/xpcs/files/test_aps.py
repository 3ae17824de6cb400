"""Both APS layouts, read from files that the tests write with h5py.

Would catch: a diagonal counted twice, a lower triangle read as an upper one, bins decoded with q
and phi exchanged, matrices in the wrong order, an error that does not list the missing groups.
"""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from support.errors import raises

from jaxkern.xpcs import ApsFile, ApsFormatError, ApsWriter, load_aps, write_aps

N_T = 17


def _matrices(count: int, dtype=np.float64) -> np.ndarray:
    c2 = 1 + np.random.default_rng(3).random((count, N_T, N_T))
    return ((c2 + c2.transpose(0, 2, 1)) / 2).astype(dtype)


def _old(path, c2, q, phi, triangle=np.triu):
    with h5py.File(path, "w") as file:
        file["xpcs/dqlist"] = np.array([q, np.zeros(len(q))])
        file["xpcs/dphilist"] = np.array([phi])
        for k, matrix in enumerate(c2):
            file[f"exchange/C2T_all/g2_{k:05d}"] = triangle(matrix)
    return path


def _new(path, c2, bins, q, phi, names=None):
    with h5py.File(path, "w") as file:
        file["xpcs/qmap/dynamic_v_list_dim0"] = np.asarray(q, np.float64)
        file["xpcs/qmap/dynamic_v_list_dim1"] = np.asarray(phi, np.float64)
        file["xpcs/twotime/processed_bins"] = np.asarray(bins)
        for k, matrix in enumerate(c2):
            number = k + 1 if names is None else names[k]
            file[f"xpcs/twotime/correlation_map/c2_{number:05d}"] = np.triu(matrix)
    return path


@pytest.mark.parametrize("triangle", [np.triu, np.tril])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_old_layout(tmp_path, triangle, dtype):
    c2 = _matrices(3, dtype)
    path = _old(tmp_path / "old.h5", c2, [0.005, 0.005, 0.007], [0.0, 90.0, 0.0], triangle)
    data = load_aps(path)
    np.testing.assert_array_equal(data.c2, c2)
    assert data.c2.dtype == dtype
    np.testing.assert_array_equal(data.q, [0.005, 0.005, 0.007])
    np.testing.assert_array_equal(data.phi, [0.0, 90.0, 0.0])


def test_new_layout_decodes_bins(tmp_path):
    c2 = _matrices(4)
    # Of 2 q times 3 phi: (q0, phi1), (q0, phi2), (q1, phi0), (q1, phi2).
    path = _new(tmp_path / "new.h5", c2, [2, 3, 4, 6], [0.005, 0.007], [-30.0, 0.0, 30.0])
    data = load_aps(path)
    np.testing.assert_array_equal(data.c2, c2)
    np.testing.assert_array_equal(data.q, [0.005, 0.005, 0.007, 0.007])
    np.testing.assert_array_equal(data.phi, [0.0, 30.0, -30.0, 30.0])


def test_maps_named_by_their_bins(tmp_path):
    c2 = _matrices(3)
    bins = [6, 2, 4]
    path = _new(tmp_path / "new.h5", c2, bins, [0.005, 0.007], [0.0, 45.0, 90.0], names=bins)
    data = load_aps(path)
    np.testing.assert_array_equal(data.c2, c2)
    np.testing.assert_array_equal(data.phi, [90.0, 45.0, 0.0])


@pytest.mark.parametrize("layout", ["aps", "aps-u"])
def test_slabs_are_rows_of_the_matrix(tmp_path, layout):
    c2 = _matrices(2)
    path = write_aps(tmp_path / "file.h5", c2, q=0.0054, phi=[10.0, 20.0], layout=layout)
    with ApsFile(path) as file:
        assert file.layout == layout
        assert file.shape == (2, N_T, N_T)
        assert file.symmetric
        for first, stop in [(0, 1), (0, N_T), (5, 9), (16, 17), (3, 3)]:
            np.testing.assert_array_equal(file.read(1, first, stop), c2[1, first:stop])
        with raises(IndexError, "rows", "0 to 17", "5 to 18"):
            file.read(0, 5, 18)


@pytest.mark.parametrize("layout", ["aps", "aps-u"])
def test_writer_stores_one_triangle_in_the_documented_places(tmp_path, layout):
    c2 = _matrices(2)
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
    np.testing.assert_array_equal(load_aps(path).c2, c2)


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
    c2 = _matrices(2)
    path = _old(tmp_path / "old.h5", c2, [0.1, 0.1], [0.0, 1.0])
    with h5py.File(path, "a") as file:
        for k, matrix in enumerate(c2):
            del file[f"exchange/C2T_all/g2_{k:05d}"]
            file.create_dataset(
                f"exchange/C2T_all/g2_{k:05d}",
                data=np.triu(matrix),
                chunks=(chunk, chunk),
                compression="lzf",
            )
    with ApsFile(path) as file:
        file._sets = [Counted(item) for item in file._sets]
        for angle in (0, 1):
            for first in range(0, N_T - 2, 3):
                rows = file.read(angle, first, first + 3)
                np.testing.assert_array_equal(rows, c2[angle, first : first + 3])
        reads = [item.reads for item in file._sets]
    assert reads == ([1, 1] if chunk == N_T else [11, 11])  # five slabs twice, and the diagonal


def test_some_entries_only(tmp_path):
    c2 = _matrices(3)
    path = write_aps(tmp_path / "file.h5", c2, q=0.01, phi=[0.0, 1.0, 2.0])
    data = load_aps(path, entries=[2, 0])
    np.testing.assert_array_equal(data.c2, c2[[2, 0]])
    np.testing.assert_array_equal(data.phi, [2.0, 0.0])


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
        load_aps(_old(tmp_path / "a.h5", _matrices(1), [1.0], [0.0]), layout="esrf")


def test_lists_and_matrices_that_disagree(tmp_path):
    with raises(ApsFormatError, "a.h5", "xpcs/dqlist", "xpcs/dphilist", "got 2, 1 and 1"):
        load_aps(_old(tmp_path / "a.h5", _matrices(1), [1.0, 2.0], [0.0]))
    with raises(ApsFormatError, "b.h5", "processed_bins", "1 to 4", "5 to 5"):
        load_aps(_new(tmp_path / "b.h5", _matrices(1), [5], [1, 2], [0, 1]))
    with raises(ApsFormatError, "c.h5", "2 bins", "c2_00001, c2_00004"):
        load_aps(_new(tmp_path / "c.h5", _matrices(2), [3, 4], [1, 2], [0, 1], names=[1, 4]))
    path = _old(tmp_path / "d.h5", _matrices(2), [1.0, 2.0], [0.0, 1.0])
    with h5py.File(path, "a") as file:
        del file["exchange/C2T_all/g2_00001"]
        file["exchange/C2T_all/g2_00001"] = np.ones((5, 5))
    with raises(ApsFormatError, "d.h5", "g2_00001", "[17, 17]", "[5, 5]"):
        load_aps(path)
    with h5py.File(path, "a") as file:
        del file["exchange/C2T_all/g2_00001"]
        file["exchange/C2T_all/g2_00001"] = np.ones((5, 7))
    with raises(ApsFormatError, "d.h5", "g2_00001", "[5, 7]"):
        load_aps(path)


def test_wrong_arguments_of_write_aps(tmp_path):
    path = tmp_path / "x.h5"
    with raises(ValueError, "q, phi", "'aps-u'"):
        write_aps(path, _matrices(2), q=0.01, phi=[3.0, 3.0])
    with raises(ValueError, "phi", "2 values", "got 1"):
        write_aps(path, _matrices(2), q=0.01, phi=[3.0])
    with raises(ValueError, "c2", "[17, 17]"):
        write_aps(path, _matrices(1)[0], q=0.01, phi=[3.0])
