"""`python -m jaxkern xpcs watch`: results of frames that are still being acquired.

Would catch: a watch that never ends, results that Ctrl-C loses, ones of fewer frames than came or
of other bits than those of all, an error at the end that takes what was read with it.
"""

from __future__ import annotations

import json
import signal
import threading
import time

import h5py
import numpy as np
from support.errors import raises
from support.xpcs import correlation_results as samples

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.cli.xpcs_watch import curve, rows
from jaxkern.xpcs.detectors.frames import DetectorFileError


def watched(folder, *more):
    (folder / "qmap.h5").unlink(missing_ok=True)
    samples.qmap().write(folder / "qmap.h5")
    options = ["--qmap", str(folder / "qmap.h5"), "--output", str(folder / "results.hdf")]
    return ["xpcs", "watch", str(folder), *options, "--every", "0", *more]


def wait_for_results(folder):
    end = time.monotonic() + 30
    while not (folder / "results.hdf").exists() and time.monotonic() < end:
        time.sleep(0.02)


def writer(folder, parts, wait=lambda: time.sleep(0.1)):
    """A thread that saves frames as a detector does: under another name first."""

    def write():
        for number, part in enumerate(parts, 2):
            wait()
            np.save(folder / ".half.npy", part)
            (folder / ".half.npy").rename(folder / f"run_{number}.npy")

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_watch_writes_what_a_writer_appends(tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "jaxkern.xpcs.analysis.correlation_plots.plot_correlations",
        lambda folder, *results, title, **_: drawn.append((folder, title)) or [],
    )
    counts = samples.frames(60)
    thread = writer(tmp_path, [counts[k : k + 10] for k in range(0, 60, 10)])
    flags = ["--idle", "0.6", "--frame-time", "0.5", "--average", "2", "--twotime", "--bins", "2"]
    assert main(watched(tmp_path, *flags, "--plots", str(tmp_path / "plots"))) == 0
    thread.join()
    captured = capsys.readouterr().out
    assert "60 frames, " in captured
    assert len(captured.splitlines()) >= 3  # progress was reported
    result = xpcs.read_results(tmp_path / "results.hdf")
    how = {"average": 2, "frame_time": 0.5, "progress": False}
    expected = xpcs.multitau(counts, samples.qmap(), **how)
    np.testing.assert_array_equal(result.multitau.g2, expected.g2)
    np.testing.assert_array_equal(result.multitau.tau, expected.tau)
    pairs = xpcs.twotime(counts, samples.qmap(), bins=[2], **how)
    np.testing.assert_array_equal(result.twotime.c2, pairs.c2)
    assert drawn[-1] == (tmp_path / "plots", f"{tmp_path.name}, 60 frames")


def test_watch_leaves_frames_out_at_the_end(tmp_path, capsys):
    counts = samples.frames(40)
    counts[12] *= 9
    np.save(tmp_path / "run_1.npy", counts)
    flags = ["--idle", "0.1", "--intensity-cut", ",3", "--twotime"]
    assert main(watched(tmp_path, *flags)) == 0
    result = xpcs.read_results(tmp_path / "results.hdf")
    assert result.multitau.config["bad_frames"] == [12]
    expected = xpcs.multitau(counts, samples.qmap(), intensity_cut=(None, 3))
    np.testing.assert_array_equal(result.multitau.g2, expected.g2)
    assert np.isnan(result.twotime.c2[:, 12]).all()


def test_ctrl_c_writes_what_there_is(tmp_path, capsys):
    counts = samples.frames(20)
    thread = writer(tmp_path, [counts], lambda: None)
    main_thread = threading.main_thread().ident

    def interrupt():
        wait_for_results(tmp_path)
        signal.pthread_kill(main_thread, signal.SIGINT)

    stopper = threading.Thread(target=interrupt, daemon=True)
    stopper.start()
    assert main(watched(tmp_path, "--json", "--idle", "40")) == 0
    thread.join()
    stopper.join()
    record = json.loads(capsys.readouterr().out)
    assert record["interrupted"] is True
    assert record["frames"] == 20
    assert record["files"] == [str(tmp_path / "results.hdf")]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    expected = xpcs.multitau(counts, samples.qmap(), progress=False)
    result = xpcs.read_results(tmp_path / "results.hdf").multitau
    np.testing.assert_array_equal(result.g2, expected.g2)


def test_watch_refits(tmp_path, capsys):
    """Frames that have not come yet put a fit off; what the last one says is the exit code."""
    counts = samples.frames(40)
    np.save(tmp_path / "run_1.npy", counts[:10])

    thread = writer(tmp_path, [counts[10:]], lambda: wait_for_results(tmp_path))
    (tmp_path / "fit.yaml").write_text(
        "data_files: {file: elsewhere.h5, q: 0.006}\n"
        "analysis: {model: static, frames: {start: 20}}\n"
        "optimization: {errors: independent, max_nfev: 20}\n"
    )
    flags = ["--idle", "1", "--frame-time", "0.1", "--output-dir", str(tmp_path / "fit")]
    code = main(watched(tmp_path, *flags, "--config", str(tmp_path / "fit.yaml")))
    thread.join()
    captured = capsys.readouterr()
    assert "no fit yet: start, end" in captured.out
    assert "fit of 21 frames: D0 " in captured.out
    record = json.loads((tmp_path / "fit" / "results.json").read_text())
    assert code == (0 if record["success"] else 1)
    assert (code == 1) == ("did not succeed" in captured.err)


def test_watch_ends_and_tells_what_is_wrong(tmp_path, capsys):
    assert main(watched(tmp_path, "--idle", "0.1")) == 2
    assert "got no frames" in capsys.readouterr().err
    assert not (tmp_path / "results.hdf").exists()
    np.save(tmp_path / "run_1.npy", samples.frames(12))
    assert main(watched(tmp_path, "--idle", "0.1", "--begin", "11")) == 2
    error = capsys.readouterr().err
    assert "got 12" in error
    assert "--begin, --stride and --average" in error
    (tmp_path / "run_2.npy").write_bytes(b"\x93NUMPY, and no more")
    assert main(watched(tmp_path, "--idle", "0.1")) == 2
    assert "run_2.npy" in capsys.readouterr().err
    # What could be read is there all the same.
    assert xpcs.read_results(tmp_path / "results.hdf").multitau.n_frames == 12


def test_a_file_that_is_unreadable_just_now(tmp_path, monkeypatch, capsys):
    """For example while it is being rewritten: g2 so far is saved, and the error is reported."""
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file["entry/data/data"] = samples.frames(12)
    content = (tmp_path / "run.h5").read_bytes()
    finish = xpcs.GrowingFrames.finish

    def broken(frames):
        (tmp_path / "run.h5").unlink()
        (tmp_path / "run.h5").write_bytes(content[:-100])
        with raises(DetectorFileError, "run.h5", "HDF5"):
            finish(frames)
        with raises(DetectorFileError, "run.h5", "unfinished"):
            frames.read(0, 12)

    monkeypatch.setattr(xpcs.GrowingFrames, "finish", broken)
    assert main(watched(tmp_path, "--idle", "0.1", "--twotime")) == 2
    assert "is unfinished" in capsys.readouterr().err
    assert xpcs.read_results(tmp_path / "results.hdf").multitau.n_frames == 12


def test_curves():
    assert curve([2.0, 1.5, np.nan, 1.0]) == "█▅ ▁"
    assert curve([1.0, 1.0]) == "▁▁"
    assert curve([np.nan]) == ""
    table = rows(samples.multitau())
    assert len(table) == 5
    assert table[1][:3] == ("2", "0.004", "50")


def test_rotate_closes_a_file_of_results_every_n_frames(tmp_path, capsys):
    counts = samples.frames(50)
    for k in range(0, 50, 10):
        np.save(tmp_path / f"run_{k}.npy", counts[k : k + 10])
    flags = ["--idle", "0.1", "--frame-time", "0.5", "--rotate", "20", "--begin", "2", "--twotime"]
    assert main(watched(tmp_path, *flags, "--json")) == 0
    record = json.loads(capsys.readouterr().out)
    parts = [tmp_path / f"results-{k:04d}.hdf" for k in (1, 2, 3)]
    assert record["files"] == [str(path) for path in parts]
    for path, first in zip(parts, (2, 22, 42), strict=True):
        result = xpcs.read_results(path)
        how = {"frame_time": 0.5, "begin": first, "end": min(first + 20, 50), "progress": False}
        expected = xpcs.multitau(counts, samples.qmap(), **how)
        np.testing.assert_array_equal(result.multitau.g2, expected.g2)
        pairs = xpcs.twotime(counts, samples.qmap(), **how)
        np.testing.assert_array_equal(result.twotime.c2, pairs.c2)
    assert not (tmp_path / "results.hdf").exists()
    assert main(watched(tmp_path, *flags)) == 2  # the parts exist
    assert main(watched(tmp_path, "--rotate", "3", "--average", "2", "--force")) == 2
