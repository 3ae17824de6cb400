"""`xpcs correlate` of several files, and `correlate_files`, one after the other in this process.

Would catch results that differ from those of single runs, a failure that stops the other files,
incomplete files, wrong numbers in the table, finished files that are computed again, stale results,
an option or a linked file that is ignored, and a foreign file that is replaced.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading

import h5py
import numpy as np
import pytest
from support.xpcs import correlation_results as samples
from support.xpcs.correlated_files import (
    NAMES,
    called,
    correlate,
    files_of_frames,
    listed,
    paths,
    table_of,
)

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.core.paths import lock_output
from jaxkern.xpcs.analysis import many
from jaxkern.xpcs.files import results_writer
from jaxkern.xpcs.files.provenance import NAME, read_provenance


@pytest.fixture
def data(tmp_path):
    return files_of_frames(tmp_path / "data", NAMES)


def content(path):
    """Everything in an HDF5 file, to the bit."""
    result = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            value = np.asarray(item[()])
            bits = value.tolist() if value.dtype == object else value.tobytes()
            result[name] = (str(value.dtype), value.shape, bits)

    with h5py.File(path) as file:
        file.visititems(visit)
    return result


def test_the_bits_of_single_runs(data, capsys):
    flags = "--twotime --bins 1,4 --average 2 --bad-frames 7,20-21 --parts 2 --frame-time 0.5"
    flags = flags.split()
    assert correlate(data, *flags) == 0
    assert capsys.readouterr().out == ""
    assert listed(data.parent / "results") == [
        "results.csv", "run10.hdf", "run11.hdf", "run2.hdf",
    ]  # fmt: skip
    for name in NAMES:
        assert correlate(data, *flags, files=[name], output=f"{name}.hdf") == 0
        one, many = (content(data.parent / f"{where}{name}.hdf") for where in ("", "results/"))
        # It says what it was made of too.
        assert one == many
        assert NAME in one


def test_a_flag_of_several_files_and_one_file(data, monkeypatch):
    """One file is treated as several are; each has a folder of plots."""
    drawn = []
    draw = lambda folder, *_, title, **__: drawn.append((folder, title)) or []  # noqa: E731
    monkeypatch.setattr("jaxkern.xpcs.analysis.correlate.plot_correlations", draw)
    plots = ["--plots", str(data.parent / "plots")]
    assert correlate(data, "--retries", "0", *plots, files=["run2"]) == 0
    assert listed(data.parent / "results") == ["results.csv", "run2.hdf"]
    assert drawn == [(data.parent / "plots" / "run2", "run2.npy")]


def test_one_file_fails_and_the_others_go_on(data, capsys):
    (data / "run10.npy").write_bytes(b"\x93NUMPY and no more")
    assert correlate(data, quiet=False) == 1
    captured = capsys.readouterr()
    results = data.parent / "results"
    assert listed(results) == ["results.csv", "run11.hdf", "run2.hdf"]
    assert f"failed: {data / 'run10.npy'}: " in captured.err
    assert f"2 done, 0 skipped, 1 failed; wrote {results / 'results.csv'}" in captured.out
    np.save(data / "run10.npy", samples.frames(40, 1))
    assert correlate(data, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [record[name] for name in ("done", "skipped", "failed")] == [1, 2, 0]
    assert record["files"] == [str(results / f"{name}.hdf") for name in NAMES]


def test_what_failed_is_tried_again_behind_the_others(data, monkeypatch):
    seen = called(monkeypatch, fails=["run2"])
    result = xpcs.correlate_files(paths(data), data / "qmap.h5", data / "new")
    assert seen == [*NAMES, "run2"]
    assert (result.count("done"), result.errors) == (3, {})
    for fails, retries, calls in ((["run2"] * 2, 1, [*NAMES, "run2"]), (["run2"], 0, [*NAMES])):
        seen = called(monkeypatch, fails)
        folder = data / f"retries{retries}"
        result = xpcs.correlate_files(paths(data), data / "qmap.h5", folder, retries=retries)
        assert seen == calls
        assert result.errors == {data / "run2.npy": "the disk is away"}
        assert result.table[0]["error"] == "the disk is away"
        assert "1 failed" in repr(result)


def test_ctrl_c_leaves_whole_files(data, capsys, monkeypatch):
    """In the middle of writing the second file; and what a kill left is swept away."""
    results, count, real = data.parent / "results", [], results_writer._write_multitau
    results.mkdir()
    (results / "run2.hdf.0123abcd.tmp").write_text("half")

    def write(*args):
        count.append(listed(results))
        if len(count) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(results_writer, "_write_multitau", write)
    assert correlate(data) == 130
    assert "interrupted: the same command" in capsys.readouterr().err
    assert any(name.endswith(".tmp") for name in count[1])
    assert listed(results) == ["run2.hdf"]
    assert correlate(data) == 0
    rows = table_of(results / "results.csv")
    assert [row["status"] for row in rows if row["bin"] == "1"] == ["skipped", "done", "done"]


def test_a_folder_is_its_files_in_order(data, capsys):
    np.savez(data / "events.npz", pixel=[3, 0], frame=[0, 5], count=[1, 2], shape=[6, 6, 8])
    with h5py.File(data / "run_metadata.hdf", "w") as file:
        file["entry/instrument/detector_1/frame_time"] = 0.25
    (data / "notes.txt").write_text("no frames")
    options = ["--qmap", str(data / "qmap.h5"), "--metadata", str(data / "run_metadata.hdf")]
    output = ["--output", str(data / "new"), "--json"]
    assert main(["xpcs", "correlate", str(data), *options, *output]) == 0
    record = json.loads(capsys.readouterr().out)
    names = [path.rsplit("/", 1)[1] for path in record["files"]]
    assert names == ["events.hdf", "run2.hdf", "run10.hdf", "run11.hdf"]
    rows = table_of(data / "new" / "results.csv")
    assert {row["frame_time"] for row in rows} == {"0.25"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--retries", "-1"], "retries is -1; expected an integer from 0"),
        (["--workers", "2"], 'engine: expected "dask"'),
        (["--engine", "dask", "--workers", "0"], "workers is 0"),
        (["--engine", "dask", "--scheduler", "none.json"], "'none.json'"),
        (["--table", "t.txt"], "t.txt"),
        (["--metadata", "data/qmap.h5"], "/entry"),
        (["--qmap", "data/run2.npy"], "run2.npy"),
        (["--qmap", "data/none.h5"], "none.h5"),
        (["--output", "data/run2.npy"], "run2.npy"),
        (["--plots", "data/run2.npy"], "plots: expected a folder"),
        (["--dpl", "0"], "dpl is 0; expected an integer from 1 to 64"),
        (["data/run3.npy"], "data/run3.npy"),
        (["other/run2.npy"], "would both be"),
        (["results"], "folder"),
        (["hdf/run3.hdf", "--output", "hdf"], "also an input file"),
    ],
)
def test_errors_come_before_the_work(data, monkeypatch, capsys, flags, words):
    """Flags, or one more file or folder."""
    monkeypatch.chdir(data.parent)
    for name in ("other/run2.npy", "results/x", "hdf/run3.hdf"):
        (data.parent / name).parent.mkdir()
        (data.parent / name).write_text("mine")
    monkeypatch.setattr(many, "correlate_file", None)
    also = [flag for flag in flags[:1] if not flag.startswith("--")]
    files = [*also, *(f"data/{name}.npy" for name in NAMES)]
    options = ["--qmap", "data/qmap.h5", "--output", "results", *flags[len(also) :]]
    assert main(["xpcs", "correlate", *files, *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert words in captured.err
    assert captured.out == ""
    assert listed(data.parent / "results") == ["x"]


def test_without_dask_its_extra_is_named(data, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "jaxkern.core.dask_engine", raising=False)
    monkeypatch.delattr("jaxkern.core.dask_engine", raising=False)
    assert correlate(data, "--engine", "dask") == 2
    assert "pip install 'jaxkern-native[dask]'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"engine.*None.*dask.*spark"):
        xpcs.correlate_files(paths(data), samples.qmap(), data / "new", engine="spark")


# The test extra has pyarrow below Python 3.14 only.
@pytest.mark.parametrize(
    "name", ["table.csv", "new/table.parquet"][: 1 + (sys.version_info < (3, 14))]
)
def test_the_table(data, name):
    """Each number against the frames and the results."""
    counts = [samples.frames(40, seed) for seed in range(3)]
    (data / "run11.npy").write_bytes(b"")
    how = {"bins": [2, 5], "bad_frames": [3], "frame_time": 0.5, "retries": 0}
    result = xpcs.correlate_files(paths(data), samples.qmap(), data / "results", **how)
    path = result.write(data.parent / name)
    if name.endswith("csv"):
        rows = table_of(path)
    else:
        from pyarrow import parquet

        rows = parquet.read_table(path).to_pylist()
    assert [row["file"].rsplit("/", 1)[1] for row in rows] == [
        "run2.npy", "run2.npy", "run10.npy", "run10.npy", "run11.npy",
    ]  # fmt: skip
    failed = rows.pop()
    assert (failed["status"], failed["bin"], failed["g2"]) == ("failed", None, None)
    assert "run11.npy" in failed["error"]
    qmap, good = samples.qmap(), np.delete(np.arange(40), 3)
    for k, row in enumerate(rows):
        expected = xpcs.multitau(counts[k // 2], qmap, bad_frames=[3], frame_time=0.5)
        column = (1, 4)[k % 2]
        assert (row["status"], row["error"]) == ("done", None)
        assert row["results"] == str(data / "results" / f"{NAMES[k // 2]}.hdf")
        assert int(row["bin"]) == column + 1
        assert [float(row[key]) for key in ("q", "phi")] == [qmap.q[column], qmap.phi[column]]
        assert int(row["pixels"]) == qmap.pixels_of_bin[column]
        assert [int(row[key]) for key in ("frames", "bad_frames", "delay")] == [40, 1, 1]
        assert float(row["frame_time"]) == 0.5
        inside = qmap.used & (qmap.dynamic == column + 1)
        light = counts[k // 2][good][:, inside].mean()
        np.testing.assert_allclose(float(row["mean_counts"]), light, rtol=1e-12)
        curve = expected.g2[:, column]
        assert float(row["g2"]) == curve[0]
        assert float(row["g2_err"]) == expected.g2_err[0, column]
        np.testing.assert_allclose(float(row["baseline"]), curve[-4:].mean(), rtol=1e-12)
        np.testing.assert_allclose(float(row["contrast"]), curve[0] - curve[-4:].mean())


def test_a_table_in_parquet_without_pyarrow_is_told_before_the_work(data, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(many, "correlate_file", None)
    assert correlate(data, "--table", "t.parquet") == 2
    assert "pip install 'jaxkern-native[parquet]'" in capsys.readouterr().err


def test_bins_without_light_have_no_numbers_but_a_row(data):
    np.save(data / "run2.npy", np.zeros((40, *samples.SHAPE), np.uint8))
    result = xpcs.correlate_files(data / "run2.npy", samples.qmap(), data / "results")
    assert [row["mean_counts"] for row in result.table] == [0.0] * 5
    everything = xpcs.correlate_files(
        data / "run10.npy", samples.qmap(), data / "results", bad_frames=range(40)
    )
    assert [row["g2"] for row in everything.table] == [None] * 5
    everything.write(data / "table.csv")


def test_a_file_without_its_plots_is_not_finished(data, monkeypatch):
    """Plots that were not asked for at first, that failed, or that a kill left out."""
    files, plots = data / "run2.npy", data / "plots"
    how = {"qmap": samples.qmap(), "folder": data / "new", "retries": 1}
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
    result = xpcs.correlate_files(files, **how, plots=plots)
    assert result.errors == {files: "the disk is full"}
    (result,) = xpcs.correlate_files(files, **how, plots=plots).outcomes
    assert (result.status, result.rerun_reason) == ("done", "it has no plots")
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
    captured = capsys.readouterr().out
    for name in NAMES:
        assert f"{data / name}.npy: {results / name}.hdf is finished, skipped" in captured
        assert (results / f"{name}.hdf").stat().st_mtime_ns == before[f"{name}.hdf"]
    second = table_of(results / "results.csv")
    assert {row.pop("status") for row in first} == {"done"}
    assert {row.pop("status") for row in second} == {"skipped"}
    assert first == second
    assert len(first) == 6


def test_what_has_changed_is_done_again(data, capsys, monkeypatch):
    correlate(data)
    seen = called(monkeypatch)
    np.save(data / "run10.npy", samples.frames(41, 1))
    assert correlate(data, quiet=False) == 0
    assert seen == ["run10"]
    captured = capsys.readouterr().out
    assert "run10.hdf (rerun: file (stored run10.npy, 2,048 bytes of 20" in captured
    assert not re.search("[0-9]{12}", captured)  # no time in nanoseconds
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
    xpcs.QMap(*samples.maps()).write(data / "qmap.h5")
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
    how = {"qmap": samples.qmap(), "folder": results}
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
    how = {"qmap": samples.qmap(labelled=False), "folder": data.parent / "results"}
    tables = [xpcs.correlate_files(data / "run2.npy", **how).table for _ in range(2)]
    assert [[row.pop("status") for row in table] for table in tables] == [
        ["done"] * 5,
        ["skipped"] * 5,
    ]
    assert tables[0] == tables[1]


def test_files_behind_links_count(tmp_path, data):
    counts = samples.frames(40)
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["frames"] = counts
    with h5py.File(tmp_path / "master.h5", "w") as file:
        file["entry/data/data_000001"] = h5py.ExternalLink("part.h5", "frames")
    how = {"qmap": data / "qmap.h5", "folder": tmp_path / "results"}
    xpcs.correlate_files(tmp_path / "master.h5", **how)
    captured = read_provenance(tmp_path / "results" / "master.hdf")
    assert list(captured["linked"]) == ["part.h5"]
    (skipped,) = xpcs.correlate_files(tmp_path / "master.h5", **how).outcomes
    assert (skipped.status, skipped.rerun_reason) == ("skipped", "")
    os.utime(tmp_path / "part.h5", (1, 1))
    (rerun,) = xpcs.correlate_files(tmp_path / "master.h5", **how).outcomes
    assert rerun.rerun_reason.startswith("linked (stored part.h5, ")
    assert "now part.h5, 3,968 bytes of 19" in rerun.rerun_reason


def test_damaged_results_are_made_again(data):
    how = {"qmap": samples.qmap(), "folder": data.parent / "results"}
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


def test_two_processes_share_a_folder(tmp_path):
    """Each file is correlated once; the lock of a killed process does not block."""
    data = files_of_frames(tmp_path / "data", NAMES)
    script = (
        "import pathlib, sys; from jaxkern.xpcs.analysis import many; import jaxkern as jk\n"
        "real = many.correlate_file\n"
        "def counted(path, *a, **k):\n"
        "    with open(sys.argv[2], 'a') as log: log.write(path.stem + '\\n')\n"
        "    return real(path, *a, **k)\n"
        "many.correlate_file = counted\n"
        "paths = sorted(pathlib.Path(sys.argv[1]).glob('*.npy'))\n"
        "r = jk.xpcs.correlate_files(paths, sys.argv[1] + '/qmap.h5', sys.argv[3])\n"
        "assert len(r.table) and not r.errors\n"
    )
    results, log = tmp_path / "results", tmp_path / "log"
    results.mkdir()
    (results / "run2.hdf.lock").touch()  # of a killed process
    command = [sys.executable, "-c", script, str(data), str(log), str(results)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert sorted(log.read_text().split()) == sorted(NAMES)
    assert listed(results) == sorted(f"{name}.hdf" for name in NAMES)


def test_a_file_in_use_is_postponed(tmp_path):
    data = files_of_frames(tmp_path / "data", ["run2", "run10"])
    order = []
    with lock_output(tmp_path / "results" / "run2.hdf"):
        released = threading.Event()

        def shown(outcome):
            order.append(outcome.file.stem)
            released.set()

        frames = [data / "run2.npy", data / "run10.npy"]
        arguments = (frames, data / "qmap.h5", tmp_path / "results")
        worker = threading.Thread(
            target=xpcs.correlate_files, args=arguments, kwargs={"shown": shown}
        )
        worker.start()
        assert released.wait(60)
    worker.join(60)
    assert order == ["run10", "run2"]
