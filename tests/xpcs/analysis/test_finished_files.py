"""`xpcs correlate` of files with existing results: which are computed again, and which are kept.

Would catch: finished files that are computed again, stale results that are kept, an option or a
linked file that is ignored, a foreign file that is replaced.
"""

from __future__ import annotations

import os
import re

import h5py
import numpy as np
import pytest
from support.xpcs import correlation_results as made
from support.xpcs.correlated_files import (
    NAMES,
    called,
    correlate,
    files_of_frames,
    listed,
    table_of,
)

from jaxkern import xpcs
from jaxkern.xpcs.analysis import many
from jaxkern.xpcs.files.provenance import read_provenance


@pytest.fixture
def data(tmp_path):
    return files_of_frames(tmp_path / "data", NAMES)


def test_a_file_without_its_plots_is_not_finished(data, monkeypatch):
    """Plots that were not asked for at first, that failed, or that a kill left out."""
    files, plots = data / "run2.npy", data / "plots"
    how = {"qmap": made.qmap(), "folder": data / "new", "retries": 1}
    fails = ["run2.npy"] * 3

    def draw(folder, *_, title, **__):
        if title in fails:
            fails.remove(title)
            raise OSError("the disk is full")
        folder.mkdir(parents=True)
        (folder / "detector.png").touch()
        return []

    monkeypatch.setattr("jaxkern.xpcs.analysis.correlate.plot_correlations", draw)
    assert xpcs.correlate_files(files, **how).count("done") == 1
    found = xpcs.correlate_files(files, **how, plots=plots)
    assert found.errors == {files: "the disk is full"}
    (found,) = xpcs.correlate_files(files, **how, plots=plots).outcomes
    assert (found.status, found.rerun_reason) == ("done", "it has no plots")
    assert xpcs.correlate_files(files, **how, plots=plots).count("skipped") == 1
    # Plots of earlier results do not count.
    fails += ["run2.npy"] * 2
    assert xpcs.correlate_files(files, **how, plots=plots, average=2).count("failed") == 1
    assert listed(plots / "run2") == []


def test_a_second_start_does_nothing_and_says_so(data, capsys, monkeypatch):
    correlate(data, "--bins", "2,3")
    results = data.parent / "results"
    before = {name: (results / name).stat().st_mtime_ns for name in listed(results)}
    first = table_of(results / "results.csv")
    monkeypatch.setattr(many, "correlate_file", None)
    assert correlate(data, "--bins", "2-3", quiet=False) == 0
    said = capsys.readouterr().out
    for name in NAMES:
        assert f"{data / name}.npy: {results / name}.hdf is finished, skipped" in said
        assert (results / f"{name}.hdf").stat().st_mtime_ns == before[f"{name}.hdf"]
    second = table_of(results / "results.csv")
    assert {row.pop("status") for row in first} == {"done"}
    assert {row.pop("status") for row in second} == {"skipped"}
    assert first == second
    assert len(first) == 6


def test_what_has_changed_is_done_again(data, capsys, monkeypatch):
    correlate(data)
    seen = called(monkeypatch)
    np.save(data / "run10.npy", made.frames(41, 1))
    assert correlate(data, quiet=False) == 0
    assert seen == ["run10"]
    said = capsys.readouterr().out
    assert "run10.hdf (rerun: file (stored run10.npy, 2,048 bytes of 20" in said
    assert not re.search("[0-9]{12}", said)  # no time in nanoseconds
    os.utime(data / "run11.npy", (1, 1))
    correlate(data)
    assert seen == ["run10", "run11"]

    def all_again(*flags):
        """Correlate all files again, and return what the command prints."""
        seen.clear()
        assert correlate(data, *flags, quiet=False) == 0
        assert seen == list(NAMES)
        return capsys.readouterr().out

    assert "(rerun: average (stored 1, now 2))" in all_again("--average", "2")
    all_again("--average", "2", "--force")
    (data / "qmap.h5").unlink()
    xpcs.QMap(*made.maps()).write(data / "qmap.h5")
    assert "(rerun: qmap (stored " in all_again("--average", "2")


@pytest.mark.parametrize(
    "choice",
    [
        {"dpl": 3},
        {"normalize": True},
        {"bad_frames": range(22)},
        {"begin": 1},
        {"end": 39},
        {"stride": 2},
        {"intensity_cut": (None, 9.0)},
        {"bins": np.array([2])},
        {"parts": 2},
        {"twotime": "full"},
        {"twotime": ("t1t2", 4)},
        {"frame_time": 0.5},
    ],
    ids=str,
)
def test_every_choice_counts(data, choice):
    """Another one is done again; the same one, of other types too, is not."""
    files, results = data / "run2.npy", data.parent / "results"
    how = {"qmap": made.qmap(), "folder": results}
    xpcs.correlate_files(files, **how)
    (rerun,) = xpcs.correlate_files(files, **how, **choice).outcomes
    assert rerun.status == "done"
    assert rerun.rerun_reason.startswith(f"{next(iter(choice))} (stored ")
    same = {
        name: list(value) if isinstance(value, range | np.ndarray) else value
        for name, value in choice.items()
    }
    assert xpcs.correlate_files(files, **how, **same).count("skipped") == 1


def test_a_map_without_labels_has_one_table(data):
    """The same one when results are made and when they are found."""
    how = {"qmap": made.qmap(labelled=False), "folder": data.parent / "results"}
    tables = [xpcs.correlate_files(data / "run2.npy", **how).table for _ in range(2)]
    assert [[row.pop("status") for row in table] for table in tables] == [
        ["done"] * 5,
        ["skipped"] * 5,
    ]
    assert tables[0] == tables[1]


def test_files_behind_links_count(tmp_path, data):
    counts = made.frames(40)
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["frames"] = counts
    with h5py.File(tmp_path / "master.h5", "w") as file:
        file["entry/data/data_000001"] = h5py.ExternalLink("part.h5", "frames")
    how = {"qmap": data / "qmap.h5", "folder": tmp_path / "results"}
    xpcs.correlate_files(tmp_path / "master.h5", **how)
    said = read_provenance(tmp_path / "results" / "master.hdf")
    assert list(said["linked"]) == ["part.h5"]
    (skipped,) = xpcs.correlate_files(tmp_path / "master.h5", **how).outcomes
    assert (skipped.status, skipped.rerun_reason) == ("skipped", "")
    os.utime(tmp_path / "part.h5", (1, 1))
    (rerun,) = xpcs.correlate_files(tmp_path / "master.h5", **how).outcomes
    assert rerun.rerun_reason.startswith("linked (stored part.h5, ")
    assert "now part.h5, 3,968 bytes of 19" in rerun.rerun_reason


def test_damaged_results_are_made_again(data):
    how = {"qmap": made.qmap(), "folder": data.parent / "results"}
    xpcs.correlate_files(data / "run2.npy", **how)
    with h5py.File(data.parent / "results" / "run2.hdf", "a") as file:
        del file["xpcs/multitau/delay_list"]
    (rerun,) = xpcs.correlate_files(data / "run2.npy", **how).outcomes
    assert (rerun.status, "delay_list" in rerun.rerun_reason) == ("done", True)


def test_what_others_wrote_stays(data, capsys):
    results = data.parent / "results"
    results.mkdir()
    (results / "run10.hdf").write_text("mine")
    assert correlate(data) == 2
    assert "run10.hdf exists and has no provenance" in capsys.readouterr().err
    assert listed(results) == ["run10.hdf"]
    assert (results / "run10.hdf").read_text() == "mine"
    assert correlate(data, "--force") == 0
    assert listed(results) == ["results.csv", "run10.hdf", "run11.hdf", "run2.hdf"]
