"""Full disks and Ctrl-C while HDF5 files are written.

Would catch a process that crashes at its end, files that remain, and half of new results in place
of old ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from support import SUPPORT
from support.errors import raises

import jaxkern as jk
from jaxkern.core.paths import atomic_write
from jaxkern.xpcs.detectors.hdf5_access import new_hdf5


def test_every_writer_at_every_size(tmp_path):
    script = SUPPORT / "xpcs" / "full_disk.py"
    result = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 11, result.stderr[-2000:]
    lines = result.stderr.rpartition("correlate:\n")[2].splitlines()
    assert len(lines) == 1
    assert "cli.hdf" in lines[0]
    assert len(jk.xpcs.read_results(tmp_path / "results.hdf").twotime.bins) == 16
    assert jk.xpcs.QMap.read(tmp_path / "map.hdf").n_dynamic == 16
    assert jk.xpcs.load_aps(tmp_path / "matrices.hdf").c2.shape == (4, 60, 60)


def test_what_a_kill_leaves_is_removed(tmp_path):
    path = tmp_path / "results.hdf"
    leftover, others = tmp_path / "results.hdf.0123abcd.tmp", tmp_path / "results.hdf.mine.tmp"
    leftover.write_bytes(b"half")
    others.write_bytes(b"of the user")
    with atomic_write(path) as first, atomic_write(path) as second:
        assert not leftover.exists()
        first.write_bytes(b"first")  # which the second call does not remove
        second.write_bytes(b"second")
    assert path.read_bytes() == b"first"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["results.hdf", "results.hdf.mine.tmp"]


def write_rows_of_a_wrong_length(path):
    with jk.xpcs.ApsWriter(path, q=0.01, phi=[0.0], n_t=9) as writer:
        writer.write_rows(0, 0, np.ones((9, 7)))


def test_a_writer_whose_block_fails_leaves_the_old_file(tmp_path):
    path = jk.xpcs.write_aps(tmp_path / "a.h5", np.ones((1, 8, 8)), q=0.01, phi=[0.0])
    whole = path.read_bytes()
    with raises(TypeError, "(9, 7)"):
        write_rows_of_a_wrong_length(path)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]


def test_metadata_of_the_newest_format_are_copied(tmp_path):
    source, path = tmp_path / "metadata.hdf", tmp_path / "results.hdf"
    with h5py.File(source, "w", libver="latest") as file:  # as detectors write files for readers
        file.create_dataset("entry/log", data=np.arange(8.0), maxshape=(None,), chunks=(4,))
    qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01], phi=[0.0])
    frames = np.random.default_rng(0).poisson(1.0, (20, 4, 4)).astype("u1")
    jk.xpcs.write_results(path, jk.xpcs.multitau(frames, qmap), metadata=source)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["entry/log"], np.arange(8.0))


def write_until_interrupted(path):
    with new_hdf5(path) as file:
        file["a"] = np.arange(10_000)
        file.flush()
        while True:
            time.sleep(0.01)


def test_ctrl_c_while_hdf5_writes_arrives_after_it(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    path.write_bytes(b"before")
    before, write = signal.getsignal(signal.SIGINT), os.pwrite
    written = []

    def interrupted_write(*args):
        if not written:
            signal.raise_signal(signal.SIGINT)
        written.append(write(*args))
        return written[-1]

    monkeypatch.setattr(os, "pwrite", interrupted_write)
    with pytest.raises(KeyboardInterrupt):
        write_until_interrupted(path)
    assert len(written) > 1
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    assert signal.getsignal(signal.SIGINT) is before
