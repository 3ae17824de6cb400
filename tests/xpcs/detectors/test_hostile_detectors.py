"""Damaged or inconsistent detector files: an error that names the file, or arrays within bounds.

Would catch a size that is read from a header and not checked against the file, a pixel that is
written outside a frame, an endless loop, and errors of NumPy, zipfile or h5py without a file name.
"""

from __future__ import annotations

import io

import h5py
import numpy as np
import pytest
from support.errors import raises
from support.xpcs.detector_files import (
    imm_bytes,
    imm_header,
    random_frames,
    rigaku_bytes,
    write_arrays,
)

import jaxkern as jk

SHAPE = (6, 4, 8)
FRAMES = random_frames(0, SHAPE, most=9)


def event_bytes(suffix):
    frame, row, column = np.nonzero(FRAMES)
    buffer = io.BytesIO()
    arrays = {"pixel": row * SHAPE[2] + column, "frame": frame, "count": FRAMES[FRAMES > 0]}
    write_arrays(buffer, suffix, {**arrays, "shape": SHAPE})
    return buffer.getvalue()


def hdf5_bytes():
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("entry/data/data", data=FRAMES, chunks=(2, 4, 8), compression="gzip")
        file["entry/instrument/detector/frame_time"] = 0.1
    return buffer.getvalue()


NPY = io.BytesIO()
np.save(NPY, FRAMES)
FORMATS = {
    "rigaku.bin": (rigaku_bytes(FRAMES), 700),
    "sparse.imm": (imm_bytes(FRAMES, True), 700),
    "dense.imm": (imm_bytes(FRAMES, False), 500),
    "events.npz": (event_bytes(".npz"), 500),
    "frames.npy": (NPY.getvalue(), 500),
    "frames.h5": (hdf5_bytes(), 300),
    "events.h5": (event_bytes(".h5"), 200),
}


def read_all(path):
    """Read a file as a correlator does, and check every bound that it relies on."""
    with jk.xpcs.open_frames(path, SHAPE[1:]) as source:
        n, height, width = source.shape
        for first in range(0, min(n, 40), 7):
            stop = min(first + 7, n)
            events = source.events(first, stop)
            assert len(events.pixel) == len(events.frame) == len(events.count)
            if len(events.pixel):
                assert events.pixel.min() >= 0
                assert events.pixel.max() < height * width
                assert first <= events.frame.min()
                assert events.frame.max() < stop
                assert (np.diff(events.frame) >= 0).all()
                assert events.count.dtype.kind == "f" or events.count.min() > 0
            if height * width <= 4096:
                assert source.read(first, stop).shape == (stop - first, height, width)


def mutations(good, count, seed):
    """Yield copies with changed bytes, an extreme number, a missing end or repeated bytes."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        data = bytearray(good)
        kind = rng.integers(4)
        place = int(rng.integers(len(data)))
        if kind == 0:
            for _ in range(int(rng.integers(1, 6))):
                data[int(rng.integers(len(data)))] = int(rng.integers(256))
        elif kind == 1:
            extreme = [b"\xff" * 4, b"\x00" * 4, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"]
            data[place : place + 4] = extreme[int(rng.integers(4))]
        elif kind == 2:
            del data[place:]
        else:
            other = int(rng.integers(len(data)))
            data[place:place] = data[other : other + int(rng.integers(1, 64))]
        yield bytes(data)


@pytest.mark.filterwarnings("ignore:Reading .*created on Python 2")
@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files(tmp_path, name):
    good, count = FORMATS[name]
    path = tmp_path / name
    path.write_bytes(good)
    read_all(path)
    refused = 0
    for data in mutations(good, count, seed=len(good)):
        path.write_bytes(data)
        try:
            read_all(path)
            continue
        except jk.xpcs.DetectorFileError as error:
            message = str(error)
        refused += 1
        assert name in message
    assert count / 10 < refused < count


def words(*events):
    return np.array([f << 40 | p << 16 | c for p, f, c in events], "<u8").tobytes()


RIGAKU = [
    (b"", ["empty"]),
    (words((0, 0, 1))[:7], ["8 bytes", "7 bytes"]),
    (words((0, 0, 1), (32, 1, 1)), ["event 1", "pixels 0 to 31", "4 x 8", "got 32"]),
    (words((1 << 20, 0, 1), ((1 << 20) + 32, 1, 1)), ["event 1", "got 32"]),
    (words((1 << 20, 0, 1), (3, 1, 1)), ["event 0", "1048576"]),
    (words((0, 3, 1), (0, 5, 1), (0, 4, 1)), ["event 2", "frame 4", "frame 5"]),
    # The number of the frame wraps around after the largest one.
    (words((0, 2**24 - 1, 1), (0, 0, 1)), ["event 1", "frame 0", "frame 16777215"]),
    (words(*[(0, 7, 1)] * 32768, (0, 6, 1)), ["event 32768", "frame 6", "frame 7"]),
]


def test_the_largest_frame_number_of_a_word(tmp_path):
    path = tmp_path / "run.bin"
    path.write_bytes(words((1, 0, 1), (2, 2**24 - 1, 3)))
    source = jk.xpcs.open_frames(path, (4, 8))
    assert len(source) == 2**24
    assert source.events(2**24 - 1, 2**24).count.tolist() == [3]
    assert source.events(1, 2**24 - 1).count.tolist() == []


EVENT = np.array([5], "<i4").tobytes() + np.array([2], "<i2").tobytes()
IMM = [
    (b"x" * 1000, ["1024 bytes", "1000 bytes"]),
    (bytes(1024), ["0 rows and 0 columns"]),
    (imm_header(6, 2**30, 2**30, 0), ["1073741824 rows"]),
    (imm_header(0, 4, 8, 32, size=4) + bytes(128), ["2 bytes per pixel", "got 4 bytes"]),
    (imm_header(0, 4, 8, 31) + bytes(62), ["frame 0", "32 numbers", "got 31"]),
    (imm_header(6, 4, 8, 2**32 - 1) + EVENT, ["frame 0", "32 numbers", "4294967295"]),
    (imm_header(6, 4, 8, 2) + EVENT, ["frame 0", "2 numbers of 6 bytes", "byte 1030"]),
    (2 * (imm_header(6, 4, 8, 1) + EVENT) + b"x", ["frame 2", "byte 2060", "byte 2061"]),
    (imm_header(6, 4, 8, 1) + EVENT + imm_header(6, 4, 9, 0), ["[6, 4, 8]", "[6, 4, 9]"]),
]


@pytest.mark.parametrize(
    ("name", "data", "facts"),
    [*(("run.bin", *case) for case in RIGAKU), *(("run.imm", *case) for case in IMM)],
)
def test_invalid_binary_files(tmp_path, name, data, facts):
    path = tmp_path / name
    path.write_bytes(data)
    with raises(jk.xpcs.DetectorFileError, name, *facts):
        jk.xpcs.open_frames(path, (4, 8))


@pytest.mark.parametrize(("pixel", "count"), [(32, 1), (-1, 1), (3, -1), (2**31 - 1, 1)])
def test_invalid_imm_events(tmp_path, pixel, count):
    path = tmp_path / "run.imm"
    good = imm_header(6, 4, 8, 1) + EVENT
    bad = np.array([pixel], "<i4").tobytes() + np.array([count], "<i2").tobytes()
    # Opening reads the first, the middle and the last frame.
    path.write_bytes(good + imm_header(6, 4, 8, 1) + bad + 2 * good)
    with jk.xpcs.open_frames(path) as source:
        source.events(0, 1)
        facts = "run.imm", "frame 1", f"count {count}", f"pixel {pixel}"
        with raises(jk.xpcs.DetectorFileError, *facts):
            source.read(0, 2)


EVENTS = [
    ({"pixel": [1, 32], "frame": [0, 0], "count": [1, 1]}, ["pixel", "32 in event 1"]),
    ({"pixel": [1, -1], "frame": [0, 0], "count": [1, 1]}, ["pixel", "-1 in event 1"]),
    ({"pixel": [1, 2], "frame": [0, -2], "count": [1, 1]}, ["frame", "-2 in event 1"]),
    ({"pixel": [1, 2], "frame": [0, 2**31], "count": [1, 1]}, ["frames", "2147483649"]),
    ({"pixel": [1, 2], "frame": [0, 6], "count": [1, 1], "shape": [6, 4, 8]}, ["frame", "6"]),
    ({"pixel": [1, 2], "frame": [0, 1], "count": [1, -1]}, ["count", "-1 in event 1"]),
    ({"pixel": [1, 2], "frame": [0, 1], "count": [1, 2**32]}, ["count", "4294967296 in event 1"]),
    ({"pixel": [1, 2], "frame": [0], "count": [1, 1]}, ["'pixel': 2", "'frame': 1"]),
    ({"pixel": [[1, 2]], "frame": [0, 1], "count": [1, 1]}, ["pixel", "int64", "(1, 2)"]),
    ({"pixel": [1.5, 2], "frame": [0, 1], "count": [1, 1]}, ["pixel", "float64"]),
    ({"pixel": 1, "frame": 0}, ["pixel", "int64", "()"]),
    ({"pixel": [1], "frame": [0], "shape": [4, 8]}, ["shape"]),
    ({"pixel": [1], "frame": [0], "shape": [2, 2**16, 2**16]}, ["pixels", "65536"]),
]


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize(("arrays", "facts"), EVENTS)
def test_invalid_events(tmp_path, arrays, facts, suffix):
    path = tmp_path / f"run{suffix}"
    write_arrays(path, suffix, arrays)
    with raises(jk.xpcs.DetectorFileError, path.name, *facts):
        jk.xpcs.open_frames(path, (4, 8))


def test_pickled_arrays_are_rejected(tmp_path):
    path = tmp_path / "run.npy"
    np.save(path, np.array([{}], object))
    with raises(jk.xpcs.DetectorFileError, "run.npy"):
        jk.xpcs.open_frames(path)
    np.savez(tmp_path / "run.npz", pixel=np.array([{}], object), frame=[0])
    with raises(jk.xpcs.DetectorFileError, "run.npz"):
        jk.xpcs.open_frames(tmp_path / "run.npz", (4, 8))
    np.savez(tmp_path / "other.npz", frame=[0], frames=[1])
    with raises(jk.xpcs.DetectorFileError, "other.npz", "pixel"):
        jk.xpcs.open_frames(tmp_path / "other.npz", (4, 8))


DATA, PART = "entry/data/data", "entry/data/data_{:06d}"
ZEROS = np.zeros((2, 4, 8), "u2")


def virtual_layout():
    layout = h5py.VirtualLayout((2, 4, 8), "u2")
    layout[:] = h5py.VirtualSource("gone.h5", "data", (2, 4, 8))
    return layout


def linked(target, file=None):
    return h5py.SoftLink(target) if file is None else h5py.ExternalLink(file, target)


# Objects by name: an array, a link, a virtual data set, the shape of a data set, None for a group.
HDF5 = {
    "flat": ({DATA: ZEROS[0]}, ["(4, 8)", "uint16"]),
    "complex counts": ({DATA: ZEROS.astype(complex)}, ["complex128"]),
    "texts": ({DATA: ["a", "b"]}, ["numbers"]),
    "empty": ({DATA: h5py.Empty("u2")}, ["numbers"]),
    "group": ({DATA: None}, ["data set", "three axes"]),
    "loop": (
        {DATA: linked("/entry/data/other"), "entry/data/other": linked("/entry/data/data")},
        ["/entry/data/data", "link", "/entry/data/other"],
    ),
    "loop of groups": ({DATA: linked("/entry/data/data/data")}, ["/entry/data/data", "link"]),
    "missing file": (
        {PART.format(1): linked("/entry/data/data", "run_data_000001.h5")},
        ["data_000001", "link", "run_data_000001.h5", "/entry/data/data"],
    ),
    "itself": ({PART.format(1): linked(PART.format(1), "run.h5")}, ["data_000001", "link"]),
    "other shapes": (
        {PART.format(1): ZEROS, PART.format(2): np.zeros((2, 4, 9), "u2")},
        ["data_000002", "(2, 4, 9)"],
    ),
    "other dtypes": (
        {PART.format(1): ZEROS, PART.format(2): ZEROS.astype("u4")},
        ["data_000002", "uint16", "uint32"],
    ),
    "missing part": ({PART.format(k): ZEROS for k in (1, 2, 4)}, ["data_000004", "2"]),
    "two of a number": ({"entry/data/data_1": ZEROS, PART.format(1): ZEROS}, ["data_1"]),
    "too many frames": ({DATA: (2**40, 4, 8)}, ["2147483647 frames", "1099511627776"]),
    "too many pixels": ({DATA: (2, 2**20, 2**20)}, ["1048576"]),
    "no pixels": ({DATA: ZEROS[:, :0]}, ["2147483647 pixels"]),
    "virtual without its file": ({DATA: virtual_layout()}, ["gone.h5"]),
    "other mask": (
        {DATA: ZEROS, "entry/instrument/detector/pixel_mask": np.zeros((8, 4), "u4")},
        ["pixel_mask", "(4, 8)", "(8, 4)"],
    ),
    "nothing": ({}, ["data set"]),
}


@pytest.mark.parametrize(("contents", "facts"), HDF5.values(), ids=HDF5)
def test_invalid_hdf5_files(tmp_path, contents, facts):
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        for name, value in contents.items():
            if value is None:
                file.create_group(name)
            elif isinstance(value, tuple):
                file.create_dataset(name, value, "u2", chunks=(1, 4, 8))
            elif isinstance(value, h5py.VirtualLayout):
                file.create_virtual_dataset(name, value)
            else:
                file[name] = value
    with raises(jk.xpcs.DetectorFileError, "run.h5", *facts):
        jk.xpcs.open_frames(path)
    # The file was closed: it can be opened for writing.
    with h5py.File(path, "w"):
        pass


def test_a_damaged_chunk_is_named(tmp_path):
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        stored = file.create_dataset(
            "entry/data/data", data=FRAMES, chunks=(1, 4, 8), fletcher32=True
        )
        place = stored.id.get_chunk_info(1).byte_offset
    with open(path, "r+b") as file:
        file.seek(place + 3)
        file.write(b"\xa5")
    with jk.xpcs.open_frames(path) as source:
        source.read(0, 1)
        with raises(jk.xpcs.DetectorFileError, "run.h5", "/entry/data/data", "frames 1 to 1"):
            source.read(1, 2)


@pytest.mark.parametrize("content", [b"not at all", b"\x89HDF\r\n\x1a\n" + b"\1" * 500])
def test_a_file_with_invalid_hdf5_content(tmp_path, content):
    path = tmp_path / "run.h5"
    path.write_bytes(content)
    with raises(jk.xpcs.DetectorFileError, "run.h5", "HDF5"):
        jk.xpcs.open_frames(path)
