"""Frames and events of each detector's files against the counts that were written.

Would catch a bit, an offset or an order that is read wrongly, parts of a run that are joined in the
wrong order, a dead pixel that contributes to g2, and metadata in the wrong unit.
"""

from __future__ import annotations

import builtins

import h5py
import hdf5plugin
import numpy as np
import pytest
from support.errors import raises
from support.xpcs.detector_files import (
    imm_bytes,
    random_frames,
    rigaku_bytes,
    write_3m,
    write_arrays,
    write_master,
)

import jaxkern as jk


def check_source(source, frames):
    """Check `read` and `events` for all frames, some frames, one frame and none."""
    n = len(frames)
    assert source.shape == frames.shape
    for first, stop in ((0, n), (1, n - 1), (n - 1, n), (2, 2)):
        result = source.read(first, stop)
        assert result.dtype == source.dtype
        np.testing.assert_array_equal(result, frames[first:stop])
        events = source.events(first, stop)
        frame, row, column = np.nonzero(frames[first:stop])
        assert (np.diff(events.frame) >= 0).all()
        order = np.lexsort((events.pixel, events.frame))
        np.testing.assert_array_equal(events.frame[order], frame + first)
        np.testing.assert_array_equal(events.pixel[order], row * frames.shape[2] + column)
        np.testing.assert_array_equal(events.count[order], frames[first:stop][frame, row, column])
        assert events.pixel.dtype == events.frame.dtype == np.int32
    for first, stop in ((-1, 2), (2, 1), (0, n + 1)):
        with raises(IndexError, f"0 to {n}", f"{first} to {stop}"):
            source.read(first, stop)


@pytest.mark.parametrize("base", [0, 1 << 20])
def test_rigaku(tmp_path, base):
    frames = random_frames(1, (7, 512, 1024), occupancy=2e-4, most=4096)
    frames[3] = 0  # a gap
    frames[0, 0, 0], frames[-1, -1, -1] = 1, 4095
    path = tmp_path / "run.bin"
    path.write_bytes(rigaku_bytes(frames, base))
    with jk.xpcs.open_frames(path) as source:
        check_source(source, frames)
        assert source.is_sparse
        assert source.pixel_base == base
        assert len(source.words) == np.count_nonzero(frames)
        assert source.words.dtype == np.uint64
        assert not source.words.flags.writeable


def test_rigaku_of_another_shape(tmp_path):
    frames = random_frames(2, (5, 6, 9))
    path = tmp_path / "run.bin"
    path.write_bytes(rigaku_bytes(frames))
    check_source(jk.xpcs.open_frames(path, (6, 9)), frames)
    # A frame_shape with the pixels of one module, transposed, does not transpose the frames.
    assert jk.xpcs.as_frames(path, (1024, 512)).shape[1:] == (512, 1024)


def test_events_of_one_pixel_add_up(tmp_path):
    path = tmp_path / "run.bin"
    path.write_bytes(2 * rigaku_bytes(np.full((1, 1, 2), 3)))
    assert jk.xpcs.open_frames(path, (1, 2)).read(0, 1).tolist() == [[[6, 6]]]
    path.write_bytes(17 * rigaku_bytes(np.full((1, 1, 1), 4095)))
    with raises(jk.xpcs.DetectorFileError, "run.bin", "row 0, column 0", "uint16"):
        jk.xpcs.open_frames(path, (1, 1)).read(0, 1)


def test_rigaku_3m(tmp_path):
    modules = [random_frames(n, (3 + n % 2, 512, 1024), occupancy=1e-5) for n in range(6)]
    for n, module in enumerate(modules):
        module[-1, n, n] = n + 1  # the last frame has light
    whole = np.zeros((4, 1676, 2100), np.uint16)
    # The frame has 3 rows of 2 modules, of the files 5, 0, 4, 1, 3, 2 in row-major order.
    for place, number in enumerate((5, 0, 4, 1, 3, 2)):
        top, left = place // 2 * (512 + 70), place % 2 * (1024 + 52)
        whole[: len(modules[number]), top : top + 512, left : left + 1024] = modules[number]
    source = jk.xpcs.open_frames(write_3m(tmp_path, modules))
    check_source(source, whole)
    assert source.dead[512:582].all()
    assert source.dead[:, 1024:1076].all()
    assert source.dead.sum() == 1676 * 2100 - 6 * 512 * 1024
    (tmp_path / "run.bin.004").unlink()
    with raises(FileNotFoundError, "run.bin.004"):
        jk.xpcs.open_frames(tmp_path / "run.bin.000")


@pytest.mark.parametrize("sparse", [True, False])
def test_imm(tmp_path, sparse):
    frames = random_frames(3, (6, 5, 8), most=30_000)
    frames[2] = 0
    path = tmp_path / "run.imm"
    path.write_bytes(imm_bytes(frames, sparse))
    source = jk.xpcs.open_frames(path)
    check_source(source, frames)
    assert source.is_sparse == sparse
    assert source.metadata["frame_time"] == pytest.approx(0.1)
    assert source.metadata["count_time"] == 0.05
    assert source.metadata["start_time"] == "2024-05-01 10:00:00"


PLACES = [
    "entry/data/data",
    "entry/instrument/detector/data",
    "entry_0000/measurement/data",
    "7.1/measurement/eiger500k",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [np.uint8, ">u2", np.uint32, np.int32, np.float32])
def test_hdf5(tmp_path, place, dtype):
    frames = random_frames(4, (5, 4, 6), dtype)
    path = tmp_path / "run.hdf"
    write_arrays(path, ".h5", {place: frames, "1.1/measurement/diode": np.arange(5.0)})
    source = jk.xpcs.open_frames(path)
    check_source(source, frames)
    assert source.dtype.isnative
    assert source.dead is None


def test_master_with_external_links(tmp_path):
    frames = random_frames(5, (9, 4, 6), np.uint32)
    source = jk.xpcs.open_frames(write_master(tmp_path, frames, [4, 0, 3, 2]))
    check_source(source, frames)
    assert source.metadata == pytest.approx(
        {
            "frame_time": 2e-3, "count_time": 1.5e-3, "distance": 4.25, "pixel_size": 75e-6,
            "energy": 10.0, "start_time": "2024-05-01T10:00:00",
        }
    )  # fmt: skip


def test_times_of_lima(tmp_path):
    frames = random_frames(5, (4, 4, 6))
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file["entry_0000/measurement/data"] = frames
        file["entry_0000/instrument/Eiger/acquisition/exposure_time"] = 5.0
        file["entry_0000/instrument/Eiger/acquisition/exposure_time"].attrs["units"] = "ms"
        file["entry_0000/instrument/Eiger/acquisition/latency_time"] = 1e-3
        file["entry_0000/start_time"] = "2024-05-01"
    with jk.xpcs.open_frames(tmp_path / "run.h5") as source:
        assert source.metadata == pytest.approx(
            {"count_time": 5e-3, "frame_time": 6e-3, "start_time": "2024-05-01"}
        )


def test_twelve_parts_are_in_numerical_order(tmp_path):
    frames = random_frames(6, (12, 2, 3))
    path = tmp_path / "run.h5"
    parts = {f"entry/data/data_{number}": frame[None] for number, frame in enumerate(frames)}
    write_arrays(path, ".h5", parts)
    check_source(jk.xpcs.open_frames(path), frames)


def test_the_largest_value_marks_dead_pixels(tmp_path):
    frames = random_frames(7, (5, 4, 6), np.uint16)
    frames[:, 1, 2] = 65535
    frames[2, 0, 0] = 65535  # in one frame only: many counts, and not dead
    path, mask = tmp_path / "run.h5", np.zeros((4, 6), np.uint32)
    mask[3, 3] = 2
    arrays = {"entry/data/data": frames, "entry/instrument/detector/pixel_mask": mask}
    write_arrays(path, ".h5", arrays)
    with jk.xpcs.open_frames(path) as source:
        assert np.argwhere(source.dead).tolist() == [[1, 2], [3, 3]]
        np.testing.assert_array_equal(source.read(0, 5), frames)


def test_negative_counts_mark_dead_pixels_or_raise(tmp_path):
    frames = random_frames(8, (5, 4, 6), np.int32)
    frames[:, 1, 2], frames[3, 0, 5] = -2, -7
    path = tmp_path / "run.h5"
    write_arrays(path, ".h5", {"entry/data/data": frames})
    with jk.xpcs.open_frames(path) as source:
        source.read(0, 3)
        facts = "run.h5", "frame 3", "row 0, column 5", "-7"
        with raises(jk.xpcs.DetectorFileError, *facts):
            source.read(1, 5)


def test_one_of_several_data_sets_is_selected(tmp_path):
    frames = random_frames(9, (5, 4, 6))
    path = tmp_path / "scans.h5"
    names = ("1.1/measurement/eiger", "2.1/measurement/eiger", "processed/other")
    write_arrays(path, ".h5", {name: frames + k for k, name in enumerate(names)})
    with raises(jk.xpcs.DetectorFileError, "scans.h5", "/1.1/", "/2.1/"):
        jk.xpcs.open_frames(path)
    check_source(jk.xpcs.open_frames(path, dataset="2.1/measurement/eiger"), frames + 1)
    check_source(jk.xpcs.open_frames(path, dataset="/processed/other"), frames + 2)
    with raises(jk.xpcs.DetectorFileError, "'x'", "/processed/other"):
        jk.xpcs.open_frames(path, dataset="x")


def test_filters_of_hdf5plugin(tmp_path):
    frames = random_frames(10, (5, 16, 16))
    path = write_master(tmp_path, frames, [3, 2], chunks=(1, 16, 16), **hdf5plugin.Bitshuffle())
    check_source(jk.xpcs.open_frames(path), frames)


def test_filters_without_hdf5plugin(tmp_path, monkeypatch):
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("entry/data/data", (3, 4, 4), "u2", chunks=(1, 4, 4), shuffle=True)
    real = builtins.__import__

    def without(name, *rest):
        if name == "hdf5plugin":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)
    with raises(ImportError, "/entry/data/data", "[2]", "hdf5plugin", "pip install"):
        jk.xpcs.open_frames(path)


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_events_in_arrays(tmp_path, suffix):
    frames = random_frames(11, (6, 3, 5))
    frames[-1] = 0
    frame, row, column = np.nonzero(frames)
    order = np.random.default_rng(0).permutation(len(frame))  # written in any order
    arrays = {
        "pixel": (row * 5 + column)[order],
        "frame": frame[order].astype(np.uint32),
        "count": frames[frame, row, column][order],
    }
    for name, more in (("with_shape", {"shape": [6, 3, 5]}), ("without_shape", {})):
        path = tmp_path / f"{name}{suffix}"
        write_arrays(path, suffix, {**arrays, **more})
    check_source(jk.xpcs.open_frames(tmp_path / f"with_shape{suffix}"), frames)
    # Without a shape in the file, the last frame is the last one with an event.
    path = tmp_path / f"without_shape{suffix}"
    check_source(jk.xpcs.open_frames(path, (3, 5)), frames[:5])
    with raises(jk.xpcs.DetectorFileError, path.name, "frame_shape"):
        jk.xpcs.open_frames(path)


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_no_events_in_arrays(tmp_path, suffix):
    """Empty arrays have the default dtype of NumPy, float64."""
    path = tmp_path / f"empty{suffix}"
    none = np.array([])
    write_arrays(path, suffix, {"pixel": none, "frame": none, "count": none, "shape": [4, 3, 5]})
    check_source(jk.xpcs.open_frames(path), np.zeros((4, 3, 5), np.uint32))


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, ">u2"])
def test_npy(tmp_path, dtype):
    frames = random_frames(12, (6, 3, 5), dtype)
    path = tmp_path / "run.npy"
    np.save(path, frames)
    source = jk.xpcs.open_frames(path)
    check_source(source, frames)
    assert (source.array is None) == (dtype == ">u2")
    np.save(path, frames.reshape(6, 15))
    check_source(jk.xpcs.as_frames(path, (3, 5)), frames)
    with open(path, "r+b") as file:  # cut short while it is mapped
        source = jk.xpcs.open_frames(path, (3, 5))
        file.truncate(200)
    with raises(OSError, "run.npy", "200 bytes"):
        source.read(0, 6)


def test_the_format_is_detected_by_the_first_bytes(tmp_path):
    frames = random_frames(13, (4, 3, 5))
    np.save(tmp_path / "x.npy", frames)
    (tmp_path / "x.npy").rename(tmp_path / "x.raw")
    check_source(jk.xpcs.open_frames(tmp_path / "x.raw"), frames)
    write_arrays(tmp_path / "x.imm", ".h5", {"entry/data/data": frames})  # as APS calls some
    check_source(jk.xpcs.open_frames(tmp_path / "x.imm"), frames)
    (tmp_path / "x.dat").write_bytes(b"12345678")
    with raises(jk.xpcs.DetectorFileError, "x.dat"):
        jk.xpcs.open_frames(tmp_path / "x.dat")
    with raises(FileNotFoundError, "none.bin"):
        jk.xpcs.open_frames(tmp_path / "none.bin")
