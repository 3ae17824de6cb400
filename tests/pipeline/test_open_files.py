"""Files that are open while their names change: would catch a source that opens its file again by
name, and so reads another one after a change of the working directory or an `os.replace`, and a map
that keeps HDF5's lock on a file that was closed, or takes stored bits for other numbers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support import library
from support.errors import raises
from support.pipeline.batches import column, epoch_of

import jaxkern as jk

h5py = library("h5py")

ROWS = np.arange(12, dtype=np.int32).reshape(6, 2)


def write(path: Path, rows: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = rows


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another working directory, where the same name is another file."""
    (folder / "other").mkdir()
    write(folder / "other" / "data.h5", -ROWS)
    monkeypatch.chdir(folder / "other")


def replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "new.h5", -ROWS)
    os.replace(folder / "new.h5", folder / "data.h5")


def removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.remove(folder / "data.h5")


@pytest.mark.parametrize("happens", [elsewhere, replaced, removed])
def test_hdf5_is_read_from_the_file_that_is_open(happens, tmp_path, monkeypatch):
    write(tmp_path / "data.h5", ROWS)
    monkeypatch.chdir(tmp_path)
    with h5py.File("data.h5") as file:
        happens(tmp_path, monkeypatch)
        mapped = jk.ring.map_hdf5(file["x"])
        pipe = jk.from_source({"x": file["x"]}, 4)
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, ROWS)  # also after the file was closed
    np.testing.assert_array_equal(column(epoch_of(pipe), "x"), ROWS)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_map_leaves_the_file_to_others(mode, tmp_path):
    """HDF5 locks a file while it is open, and no longer."""
    write(tmp_path / "data.h5", ROWS)
    with h5py.File(tmp_path / "data.h5", mode) as file:
        mapped = jk.ring.map_hdf5(file["x"])
    assert mapped.filename is None  # a name would lead to another file in time
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        file["x"][0] = 7
    np.testing.assert_array_equal(mapped, [[7, 7], *ROWS[1:].tolist()])


def test_other_drivers_are_read_through_h5py(tmp_path):
    write(tmp_path / "data.h5", ROWS)
    for driver in ("stdio", "core"):
        with h5py.File(tmp_path / "data.h5", driver=driver) as file:
            with raises(ValueError, f"driver '{driver}'"):
                jk.ring.map_hdf5(file["x"])
            found = epoch_of(jk.from_source({"x": file["x"]}, 4))
        np.testing.assert_array_equal(column(found, "x"), ROWS)


@pytest.mark.parametrize("stored", ["12 bits", "bfloat16"])
def test_numbers_that_numpy_does_not_have_are_read_through_h5py(stored, tmp_path):
    if stored == "12 bits":
        kind = h5py.h5t.STD_I32LE.copy()
        kind.set_precision(12)
        kind.set_offset(4)
    else:
        kind = h5py.h5t.IEEE_F32LE.copy()
        kind.set_fields(15, 7, 8, 0, 7)
        kind.set_precision(16)
        kind.set_size(2)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        created = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple(ROWS.shape))
        h5py.Dataset(created)[...] = ROWS
        with raises(ValueError, "NumPy"):
            jk.ring.map_hdf5(file["x"])
        found = epoch_of(jk.from_source({"x": file["x"]}, 4))
    np.testing.assert_array_equal(column(found, "x"), ROWS)


def test_texts_of_any_length_are_not_mapped(tmp_path):
    """The strings are stored elsewhere in the file; mapped pointers would crash the process."""
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", data=["cat", "tortoise"], dtype=h5py.string_dtype())
        with raises(ValueError, "NumPy"):
            jk.ring.map_hdf5(file["x"])
