"""`xpcs check`: would catch damage that is not reported or that crashes the process."""

from __future__ import annotations

import json

import numpy as np
import pytest

import jaxkern as jk
from jaxkern.cli import main

NAMES = ("results.hdf", "qmap.h5", "aps.h5", "frames.npy", "events.npz")
QMAP = jk.xpcs.QMap(np.repeat([[1, 2]], 4, 0), q=[0.01, 0.02])
FRAMES = np.random.default_rng(0).poisson(9.0, (64, 4, 2)).astype("u1")


def write_results(path):
    result = jk.xpcs.multitau(FRAMES, QMAP), jk.xpcs.twotime(FRAMES, QMAP)
    return jk.xpcs.write_results(path, *result)


def damage(path, pattern):
    """Change a byte after the first occurrence of a pattern."""
    content = bytearray(path.read_bytes())
    content[content.index(pattern) + 8] ^= 255
    path.write_bytes(content)


def test_damaged_results(tmp_path, capsys):
    damaged = write_results(tmp_path / "damaged.hdf")
    damage(damaged, b"OHDR")
    assert main(["xpcs", "check", str(damaged), "--json"]) == 1
    assert "damaged.hdf" in json.loads(capsys.readouterr().out)["files"][0]["error"]
    assert main(["xpcs", "check", str(tmp_path / "none.hdf")]) == 2


def test_a_crash_is_damage(tmp_path, capsys, monkeypatch):
    """Of a library that stands for HDF5's, as which damage crashes that depends on its version."""
    path = write_results(tmp_path / "results.hdf")
    (tmp_path / "h5py").mkdir()
    crash = "import os, signal\ndef File(*a, **k): os.kill(os.getpid(), signal.SIGSEGV)\n"
    (tmp_path / "h5py" / "__init__.py").write_text(crash)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["xpcs", "check", str(path)]) == 1
    assert "SIGSEGV" in capsys.readouterr().out


@pytest.mark.slow
def test_every_kind_of_file(tmp_path, capsys):
    write_results(tmp_path / "results.hdf")
    QMAP.write(tmp_path / "qmap.h5")
    jk.xpcs.write_aps(tmp_path / "aps.h5", np.ones((2, 8, 8)), q=0.01, phi=[0, 90])
    np.save(tmp_path / "frames.npy", FRAMES)
    frame, pixel = np.nonzero(FRAMES.reshape(64, 8))
    np.savez(tmp_path / "events.npz", frame=frame, pixel=pixel, shape=FRAMES.shape)
    files = [str(tmp_path / n) for n in NAMES]
    assert main(["xpcs", "check", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, kind in zip(
        lines,
        ("g2 of 2 bins, two-time", "a map of bins", "two-time", "64 x 4 x 2", "events"),
        strict=True,
    ):
        assert kind in line
    for file in files[3:]:
        with open(file, "rb+") as opened:
            opened.truncate(200)
    assert main(["xpcs", "check", *files, "--quiet"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
