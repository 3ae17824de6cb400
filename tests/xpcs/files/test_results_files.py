"""Files of results: the layout that xpcs-viewer opens, and what is read back.

Would catch a missing or transposed field, bins in another order than their matrices, a time step
without its stride and average, a traceback of h5py, and a half file left by a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import replace

import h5py
import numpy as np
import pytest
from support.errors import raises
from support.xpcs import correlation_results as samples
from support.xpcs.correlator_frames import check_fields

from jaxkern import xpcs
from jaxkern.xpcs import ApsFormatError, read_results, write_results

N, SHAPE = samples.N, samples.SHAPE

#: every field of docs/reference/results-files.md with its shape
FIELDS = {
    "entry": {
        "schema_version start_time instrument/incident_beam/incident_energy": (),
        "instrument/detector_1/frame_time instrument/detector_1/count_time": (),
        "instrument/detector_1/x_pixel_size instrument/detector_1/y_pixel_size": (),
    },
    "xpcs/qmap": {
        "mask dynamic_roi_map static_roi_map": SHAPE,
        "dynamic_num_pts static_num_pts dynamic_v_list_dim0 map_names map_units": (2,),
        "dynamic_v_list_dim1": (3,),
        "dynamic_index_mapping": (5,),
        "static_index_mapping": (10,),
        "beam_center_x beam_center_y pixel_size detector_distance energy": (),
    },
    "xpcs/temporal_mean": {
        "scattering_2d": (1, *SHAPE),
        "scattering_1d": (1, 10),
        "scattering_1d_segments": (10, 10),
    },
    "xpcs/spatial_mean": {"intensity_vs_time": (2, N)},
    "xpcs/multitau": {
        "normalized_g2 normalized_g2_err": (11, 5),
        "delay_list": (11,),
        "config/stride_frame config/avg_frame": (),
    },
    "xpcs/twotime": {
        "correlation_map/c2_00001 correlation_map/c2_00003": (N, N),
        "processed_bins": (3,),
        "normalized_g2": (N, 3),
        "normalized_g2_segments": (N // 5, 5, 3),
        "config/stride_frame config/avg_frame": (),
    },
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Both results, and their file."""
    multitau, twotime = samples.multitau(), samples.twotime()
    path = tmp_path_factory.mktemp("results") / "results.hdf"
    assert write_results(path, multitau, twotime) == path
    return multitau, twotime, path


def same(result, expected):
    """All fields of two results."""
    for name, value in vars(expected).items():
        other = getattr(result, name)
        if name == "qmap":
            check_fields(other, value, ("dynamic", "static", "mask", "q", "phi"))
        elif name == "overview":
            check_fields(other, value, vars(value) if value else ())
        elif name == "config":
            for key in value:
                np.testing.assert_array_equal(other[key], value[key])
        else:
            np.testing.assert_array_equal(other, value, err_msg=name)


def test_every_field_is_where_the_viewer_looks(written):
    multitau, twotime, path = written
    with h5py.File(path) as file:
        for group, fields in FIELDS.items():
            for names, shape in fields.items():
                for name in names.split():
                    assert file[f"{group}/{name}"].shape == shape, name
        assert {"hash", "version"} <= set(file["xpcs/qmap"].attrs)
        maps = file["xpcs/twotime/correlation_map"]
        assert list(maps) == ["c2_00001", "c2_00002", "c2_00003"]
        for k, name in enumerate(maps):
            np.testing.assert_array_equal(maps[name][()], np.triu(twotime.c2[k]))
        np.testing.assert_array_equal(file["xpcs/twotime/processed_bins"][()], [4, 1, 5])
        np.testing.assert_array_equal(file["xpcs/twotime/normalized_g2"], twotime.g2)
        segments = file["xpcs/twotime/normalized_g2_segments"][()]
        np.testing.assert_array_equal(segments, twotime.g2_parts.transpose(1, 0, 2))
        np.testing.assert_array_equal(file["xpcs/multitau/normalized_g2"][()], multitau.g2)
        assert file["xpcs/multitau/delay_list"][0] == 1
        cells = file["xpcs/qmap/dynamic_index_mapping"][()]
        q, phi = (file[f"xpcs/qmap/dynamic_v_list_dim{k}"][()] for k in range(2))
        assert cells.tolist() == samples.CELLS
        np.testing.assert_array_equal(q[cells // 3], multitau.q)
        np.testing.assert_array_equal(phi[cells % 3], multitau.phi)
        intensity = file["xpcs/spatial_mean/intensity_vs_time"][()]
        np.testing.assert_array_equal(intensity[0], np.arange(N))
        assert file["xpcs/qmap/map_names"][()].tolist() == [b"q", b"phi"]


def test_what_is_written_is_read(written):
    multitau, twotime, path = written
    result = read_results(path)
    same(result.multitau, multitau)
    assert result.twotime.overview is not None  # that of the file, which multitau brought
    for name, value in vars(twotime).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(result.twotime, name), value, err_msg=name)
    assert result.twotime.config["smoothing"] == "static"
    assert result.twotime.frame_time == twotime.frame_time
    some = read_results(path, bins=[5, 4]).twotime
    np.testing.assert_array_equal(some.c2, twotime.c2[[2, 0]])
    np.testing.assert_array_equal(some.g2_parts, twotime.g2_parts[:, :, [2, 0]])
    assert some.bins.tolist() == [5, 4]
    for bins in ([2], [], [4, 9]):
        with raises(ValueError, "bins", "4, 1, 5", f"got {bins}"):
            read_results(path, bins=bins)


def test_bins_that_were_left_out_are_nan_and_stay_out(tmp_path):
    path = write_results(tmp_path / "r.hdf", samples.multitau(bins=(2, 5), average=2))
    with h5py.File(path) as file:
        g2 = file["xpcs/multitau/normalized_g2"][()]
        assert file["entry/instrument/detector_1/frame_time"][()] == 1e-3
        assert file["xpcs/multitau/config/avg_frame"][()] == 2
    assert np.isnan(g2[:, [0, 2, 3]]).all()
    assert not np.isnan(g2[:, [1, 4]]).any()
    same(read_results(path).multitau, samples.multitau(bins=(2, 5), average=2))


def test_bad_frames_cells_and_missing_labels(tmp_path):
    bad = samples.twotime(bad_frames=(3, 4))
    assert np.isnan(bad.c2[0, 3]).all()
    result = read_results(write_results(tmp_path / "b.hdf", twotime=bad)).twotime
    np.testing.assert_array_equal(result.c2, bad.c2)
    assert result.config["bad_frames"] == [3, 4]
    np.testing.assert_array_equal(result.n_pairs, bad.n_pairs)
    cells = samples.twotime(form=("t1t2", 4))
    path = write_results(tmp_path / "c.hdf", twotime=cells)
    result = read_results(path, bins=[1]).twotime
    np.testing.assert_array_equal(result.c2[0], cells.c2[1])
    assert result.config["form"] == ("t1t2", 4)
    np.testing.assert_array_equal(result.fit_data().data, result.c2)  # which looks at the form
    np.testing.assert_array_equal(result.t1, cells.t1)
    with h5py.File(path) as file:
        assert "xpcs/twotime" not in file  # which the viewer would take for matrices of frames
    nameless = samples.multitau(frame_time=None, labelled=False)
    path = write_results(
        tmp_path / "n.hdf", nameless, samples.twotime(frame_time=None, labelled=False)
    )
    result = read_results(path).multitau
    assert (result.q, result.tau, result.frame_time) == (None, None, None)
    np.testing.assert_array_equal(result.g2, nameless.g2)
    assert read_results(path).metadata == {}
    with raises(ApsFormatError, "n.hdf", "map_names", "['bin', 'phi']"):
        xpcs.ApsFile(path)


def test_what_the_correlators_give_is_read_as_it_was(tmp_path):
    """Settings of the same types too, so that what is read goes through JSON and into fits."""
    how = {"intensity_cut": (0.1, None), "bad_frames": [3, 8], "frame_time": 1e-3}
    g2 = xpcs.multitau(samples.frames(40), samples.qmap(), parts=2, **how)
    for form in ("full", ("t1t2", 8), ("age-lag", 3, 4, 2)):
        c2 = xpcs.twotime(samples.frames(40), samples.qmap(), bins=[4, 1, 5], form=form, **how)
        result = read_results(write_results(tmp_path / "r.hdf", g2, c2))
        same(result.twotime, c2)
        assert {name: result.twotime.config.get(name) for name in c2.config} == c2.config
        picked = read_results(tmp_path / "r.hdf", bins=[1]).twotime
        if form != "full":
            np.testing.assert_array_equal(picked.c2_pairs, c2.c2_pairs[[1]])
    same(result.multitau, replace(g2, parts=result.multitau.parts))
    assert json.loads(json.dumps(result.multitau.to_dict()))["config"]["bad_frames"] == [3, 8]
    assert {name: result.multitau.config.get(name) for name in g2.config} == g2.config


def test_two_times_of_frames_that_are_not_alike(tmp_path):
    path = tmp_path / "r.hdf"
    with raises(ValueError, "multitau, twotime", "0.001 s", "0.002 s"):
        write_results(path, samples.multitau(), samples.twotime(frame_time=2e-3))
    with raises(ValueError, "multitau, twotime", "None"):
        write_results(path)
    with raises(TypeError, "multitau", "MultiTauResult", "TwoTimeResult"):
        write_results(path, samples.twotime())
    assert list(tmp_path.iterdir()) == []


def test_metadata_are_copied_without_the_frames(tmp_path):
    source = tmp_path / "run_metadata.hdf"
    with h5py.File(source, "w") as file:
        file["entry/schema_version"] = "1.7"
        file["entry/sample/name"] = "silica"
        file["entry/sample"].attrs["NX_class"] = "NXsample"
        file["entry/instrument/detector_1/frame_time"] = 5.0
        file["entry/instrument/detector_1/count_time"] = 0.9e-3
        file["entry/instrument/detector_1/distance"] = 4.5
        file["entry/data/data"] = np.zeros((4, 4))
        file["entry/far"] = h5py.ExternalLink("nowhere.h5", "/x")
        file["other"] = 1
    path = write_results(tmp_path / "r.hdf", samples.multitau(), metadata=source)
    with h5py.File(path) as file:
        entry = file["entry"]
        assert entry["sample/name"][()] == b"silica"
        assert entry["sample"].attrs["NX_class"] == "NXsample"
        assert entry["schema_version"][()] == b"1.7"
        # The time that the frames were correlated with counts.
        assert entry["instrument/detector_1/frame_time"][()] == 1e-3
        assert isinstance(entry.get("far", getlink=True), h5py.ExternalLink)
        assert "data" not in entry
        assert "other" not in file
        assert file["xpcs/qmap/detector_distance"][()] == 4.5
    result = read_results(path).metadata
    assert result == {"frame_time": 1e-3, "count_time": 0.9e-3, "distance": 4.5}
    known = {"energy": 10.9, "pixel_size": 75e-6, "start_time": "2026-11-22T10:00:00"}
    path = write_results(tmp_path / "k.hdf", samples.multitau(frame_time=None), metadata=known)
    assert read_results(path).metadata == known
    with h5py.File(source, "w") as file:
        file["nothing"] = 1
    with raises(ApsFormatError, "run_metadata.hdf", "/entry"):
        write_results(tmp_path / "x.hdf", samples.multitau(), metadata=source)
    assert not (tmp_path / "x.hdf").exists()


def test_units_of_copied_metadata(tmp_path):
    """Those of the file that was copied, as the readers of frames take them."""
    source = tmp_path / "run_metadata.hdf"
    with h5py.File(source, "w") as file:
        file["entry/instrument/detector_1/count_time"] = 0.9
        file["entry/instrument/detector_1/count_time"].attrs["units"] = "ms"
        file["entry/instrument/incident_beam/incident_energy"] = 10900.0
        file["entry/instrument/incident_beam/incident_energy"].attrs["units"] = "eV"
    path = write_results(tmp_path / "r.hdf", samples.multitau(), metadata=source)
    result = read_results(path).metadata
    assert result == {"frame_time": 1e-3, "count_time": pytest.approx(0.9e-3), "energy": 10.9}


def test_parts_of_the_run(tmp_path):
    """With the public function, whose parts are shorter and reach fewer delays."""
    expected = xpcs.multitau(
        samples.frames(40), samples.qmap(), bins=[2, 4], parts=3, progress=False
    )
    assert len(expected.parts[0].delay) < len(expected.delay)
    result = read_results(write_results(tmp_path / "p.hdf", expected)).multitau
    assert len(result.parts) == 3
    for one, other in zip(result.parts, expected.parts, strict=True):
        check_fields(one, other, ("delay", "g2", "g2_err", "n_pairs", "n_frames", "q"))


def test_a_fit_reads_them_as_an_aps_file(written):
    _, twotime, path = written
    with xpcs.ApsFile(path) as file:
        assert (file.layout, file.dt) == ("aps-u", 1e-3)
        np.testing.assert_array_equal(file.q, [0.006, 0.004, 0.006])
        np.testing.assert_array_equal(file.phi, [10.0, -30.0, 50.0])
        np.testing.assert_array_equal(file.read(1, 3, 9), twotime.c2[1, 3:9])


def test_a_file_of_boost_corrs(tmp_path):
    """Lists of one row, float32, no n_pairs, chunks as large as a matrix, several averages."""
    path = tmp_path / "boost_results.hdf"
    c2 = samples.twotime().c2.astype(np.float32)
    dynamic, static, mask = samples.maps()
    entries = {
        "entry/instrument/detector_1/frame_time": 2e-3,
        "xpcs/qmap/mask": mask,
        "xpcs/qmap/dynamic_roi_map": dynamic.astype(np.uint16),
        "xpcs/qmap/static_roi_map": static.astype(np.uint16),
        "xpcs/qmap/dynamic_v_list_dim0": samples.Q,
        "xpcs/qmap/dynamic_v_list_dim1": samples.PHI,
        "xpcs/qmap/dynamic_index_mapping": samples.CELLS,
        "xpcs/qmap/static_index_mapping": np.arange(10),
        "xpcs/qmap/map_names": ["q", "phi"],
        "xpcs/temporal_mean/scattering_2d": np.ones((1, *SHAPE)),
        "xpcs/temporal_mean/scattering_1d": np.ones((1, 10)),
        "xpcs/temporal_mean/scattering_1d_segments": np.ones((3, 10)),
        "xpcs/spatial_mean/intensity_vs_time": np.ones((2, 40)),
        "xpcs/multitau/delay_list": np.array([1, 2, 8, 10, 16, 20, 32], np.int32),
        "xpcs/multitau/normalized_g2": 1.5 * np.ones((7, 5)),
        "xpcs/multitau/normalized_g2_err": 0.5 * np.ones((7, 5)),
        "xpcs/multitau/config/stride_frame": 3,
        "xpcs/multitau/config/avg_frame": 2,
        "xpcs/multitau/config/analysis_type": "multitau",
        "xpcs/twotime/processed_bins": [4, 1, 5],
        "xpcs/twotime/normalized_g2": np.ones((N, 3)),
        "xpcs/twotime/normalized_g2_segments": np.ones((N // 5, 5, 3)),
    }
    with h5py.File(path, "w") as file:
        for name, value in entries.items():
            floats = isinstance(value, np.ndarray) and value.dtype == np.float64
            file[name] = value.astype(np.float32) if floats else value
        for k, matrix in enumerate(np.triu(c2), 1):
            name, options = f"xpcs/twotime/correlation_map/c2_{k:05d}", {"compression": "lzf"}
            file.create_dataset(name, data=matrix, chunks=(N, N), **options)
    multitau, twotime, metadata = read_results(path)
    np.testing.assert_allclose(multitau.tau, 12e-3 * multitau.delay)
    # 40 frames; sums of 2 from the delay 10 on, of 4 from 20.
    assert multitau.n_pairs.tolist() == [39, 38, 32, 15, 12, 5, 2]
    np.testing.assert_array_equal(multitau.q, [0.004, 0.004, 0.006, 0.006, 0.006])
    assert multitau.config["analysis_type"] == "multitau"
    assert twotime.frame_time == 2e-3
    np.testing.assert_array_equal(twotime.c2, c2)
    assert twotime.c2.dtype == np.float32
    assert metadata == {"frame_time": 2e-3}


#: what replaces an entry of /xpcs (None: it is removed), and facts of the error
HOSTILE = [
    ("multitau", None, ["xpcs/multitau", "xpcs/twotime"]),  # twotime is removed too
    ("qmap", None, ["xpcs/qmap"]),
    ("qmap/dynamic_roi_map", np.ones((2, 6, 8), int), ["dynamic_roi_map", "(2, 6, 8)"]),
    ("qmap/mask", np.ones((6, 9), int), ["mask", "(6, 8)", "(6, 9)"]),
    ("qmap/dynamic_index_mapping", [0, 2, 3], ["dynamic_index_mapping", "5 bins", "got 3"]),
    ("qmap/dynamic_index_mapping", [0, 2, 3, 4, 60], ["dynamic_index_mapping", "0 to 60"]),
    ("multitau/delay_list", None, ["xpcs/multitau/delay_list", "missing"]),
    ("multitau/delay_list", [1, 2], ["xpcs/multitau/delay_list", "[2, bins]", "[11, 5]"]),
    ("multitau/normalized_g2", np.ones(5), ["normalized_g2", "2 dimensions", "[5]"]),
    ("multitau/normalized_g2", "text", ["normalized_g2", "object"]),
    ("multitau/processed_bins", [1, 99], ["processed_bins", "1 to 5", "1 to 99"]),
    ("multitau/normalized_g2_err", h5py.SoftLink("/nowhere"), ["broken link"]),
    ("twotime/correlation_map/c2_00002", None, ["3 bins", "got 2", "c2_00001, c2_00003"]),
    ("twotime/correlation_map/c2_00002", np.ones((N, N + 1)), ["c2_00002", "[17, 18]"]),
    ("twotime/normalized_g2_segments", np.ones((3, 5)), ["_segments", "3 dimensions", "[3, 5]"]),
    ("twotime/normalized_g2", np.ones((N, 2)), ["normalized_g2", "[N, 3]", "[17, 2]"]),
    ("temporal_mean/scattering_2d", np.ones((1, 3, 3)), ["_2d", "[1, 6, 8]", "[1, 3, 3]"]),
    ("spatial_mean/intensity_vs_time", h5py.Group, ["intensity_vs_time", "group"]),
    ("/entry/instrument/detector_1/frame_time", -1.0, ["frame_time", "-1.0"]),
]


@pytest.mark.parametrize(("name", "value", "facts"), HOSTILE)
def test_invalid_files(written, tmp_path, name, value, facts):
    path = tmp_path / "hostile.hdf"
    path.write_bytes(written[2].read_bytes())
    with h5py.File(path, "a") as file:
        group = file["xpcs"]
        for removed in (name, "twotime") if name == "multitau" else (name,):
            del group[removed]
        if value is h5py.Group:
            group.create_group(name)
        elif value is not None:
            group[name] = value
    with raises(ValueError, "hostile.hdf", *facts):
        read_results(path)


def test_missing_and_damaged_files(written, tmp_path):
    with raises(FileNotFoundError, "nowhere.hdf"):
        read_results(tmp_path / "nowhere.hdf")
    content = written[2].read_bytes()
    path = tmp_path / "cut.hdf"
    rng = np.random.default_rng(0)
    for cut in (0, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with raises(ApsFormatError, "cut.hdf"):
            read_results(path)
    path.write_bytes(content[:8] + b"\1" * (len(content) - 8))  # a superblock of nonsense
    with raises(ApsFormatError, "cut.hdf", "HDF5"):
        read_results(path)
    for _ in range(40):
        wrong = bytearray(content)
        for place in rng.integers(0, len(content), 30):
            wrong[place] = rng.integers(256)
        path.write_bytes(bytes(wrong))
        with contextlib.suppress(ValueError, MemoryError):  # what was hit may be numbers
            read_results(path)


def test_a_header_that_claims_more_than_memory(written, tmp_path):
    path = tmp_path / "large.hdf"
    path.write_bytes(written[2].read_bytes())
    n = 10**7
    with h5py.File(path, "a") as file:
        for k in range(1, 4):
            del file[f"xpcs/twotime/correlation_map/c2_{k:05d}"]
            name = f"xpcs/twotime/correlation_map/c2_{k:05d}"
            file.create_dataset(name, (n, n), np.float64, chunks=(100, 100))
    with raises(MemoryError, "large.hdf", "3 bins", "2.4e+06 GB"):
        read_results(path)


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("killed", ["in the middle", "before the rename"])
def test_a_kill_leaves_the_old_file(written, tmp_path, killed):
    path = write_results(tmp_path / "r.hdf", written[0])
    before = path.read_bytes()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            if killed == "before the rename":
                os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            else:
                h5py.Group.create_dataset = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
            write_results(path, written[0], written[1])
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.glob("*.hdf")] == ["r.hdf"]


def test_an_error_leaves_the_old_file_and_nothing_else(written, tmp_path):
    path = write_results(tmp_path / "r.hdf", written[0])
    before = path.read_bytes()
    with pytest.raises(FileNotFoundError):
        write_results(path, written[0], metadata=tmp_path / "nowhere.hdf")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.hdf"]
