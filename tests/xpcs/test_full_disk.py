"""A disk that becomes full while HDF5 files are written: would catch a process that crashes at its
end since HDF5 could not close a file, files that are left and are in the way of the next call, and
results that are there and are replaced by half of new ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxkern as jk
from jaxkern.core.paths import replaced_whole


def test_every_writer_at_every_size(tmp_path):
    script = Path(__file__).with_name("full_disk.py")
    found = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=False
    )
    assert found.returncode == 11, found.stderr[-2000:]
    lines = found.stderr.rpartition("correlate:\n")[2].splitlines()
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
    with replaced_whole(path) as first, replaced_whole(path) as second:
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
    with pytest.raises(TypeError, match="broadcast"):
        write_rows_of_a_wrong_length(path)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
