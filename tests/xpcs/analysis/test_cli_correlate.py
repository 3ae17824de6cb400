"""`python -m jaxkern xpcs correlate`: from files of frames to results, plots and a fit, in process.

Would catch: a flag that does not reach the correlators, a time between frames that is lost, raw
data that are overwritten, an error that is a traceback.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.errors import raises
from support.xpcs import correlation_results as samples
from support.xpcs.correlator_frames import check_fields

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.cli.xpcs_command import numbers
from jaxkern.cli.xpcs_correlate import form
from jaxkern.xpcs.analysis import correlation_plots
from jaxkern.xpcs.correlators.native import CorrelationProgress
from jaxkern.xpcs.correlators.results import Overview


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("correlate")
    np.save(folder / "frames.npy", samples.frames(40))
    samples.qmap().write(folder / "qmap.h5")
    with h5py.File(folder / "run_metadata.hdf", "w") as file:
        file["entry/schema_version"] = "1.0"
        file["entry/instrument/detector_1/frame_time"] = 0.25
        file["entry/sample/name"] = "silica"
    return folder


def run(folder, output, *more, quiet=True):
    command = ["xpcs", "correlate", str(folder / "frames.npy"), "--qmap", str(folder / "qmap.h5")]
    return main([*command, "--output", str(output), *more, *(["--quiet"] if quiet else [])])


def test_both_correlations_as_the_functions_give_them(folder, tmp_path, capsys):
    output = tmp_path / "new" / "results.hdf"
    flags = "--twotime --bins 1,4-5 --average 2 --begin 3 --end 39 --bad-frames 7,20-21 --dpl 3"
    assert run(folder, output, *flags.split(), "--frame-time", "0.5", "--parts", "2") == 0
    assert capsys.readouterr().out == ""
    result = xpcs.read_results(output)
    how = {"begin": 3, "end": 39, "average": 2, "bad_frames": [7, 20, 21], "frame_time": 0.5}
    counts, qmap = samples.frames(40), samples.qmap()
    expected = xpcs.multitau(counts, qmap, 3, parts=2, overview=True, **how)
    check_fields(result.multitau, expected, ("g2", "g2_err", "tau", "bins", "n_pairs"))
    np.testing.assert_array_equal(result.multitau.overview.mean_image, expected.overview.mean_image)
    assert len(result.multitau.parts) == 2
    pairs = xpcs.twotime(counts, qmap, bins=[1, 4, 5], **how)
    np.testing.assert_array_equal(result.twotime.c2, pairs.c2)
    assert result.twotime.frame_time == 1.0
    with xpcs.ApsFile(output) as file:
        assert file.dt == 1.0


def test_the_report_is_told_or_printed_as_json(folder, tmp_path, capsys):
    output = tmp_path / "r.hdf"
    plots = ["--plots", str(tmp_path / "plots"), "--twotime", "t1t2:5", "--bins", "2"]
    assert run(folder, output, "--json", *plots) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert record["frames"] == 40
    assert record["bins"] == [1, 2, 3, 4, 5]
    assert record["two_time_bins"] == [2]
    assert record["frame_time"] is None
    assert [Path(p).name for p in record["files"]] == [
        "r.hdf", "g2.png", "twotime.png", "intensity.png", "detector.png",
    ]  # fmt: skip
    for path in record["files"]:
        assert Path(path).stat().st_size > 1000
    assert run(folder, output, "--force", quiet=False) == 0
    captured = capsys.readouterr()
    assert "frames.npy: 40 frames of 6 x 8 (uint8)" in captured.out
    assert "frames/s" in captured.out
    assert f"wrote {output}" in captured.out
    assert "--frame-time" in captured.err


def test_a_run_of_bad_frames_is_told(folder, tmp_path, capsys):
    assert run(folder, tmp_path / "r.hdf", "--bad-frames", "0-39", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["bad_frames"] == 40
    assert "40 bad frames of 40" in captured.err


def test_bad_frames_leave_no_holes_in_the_intensity_of_a_long_run():
    intensity = np.arange(20_000.0)
    intensity[::7] = np.nan
    some = np.ones((1, 1))
    figure = correlation_plots.plot_intensity(Overview(some, intensity, some[0], some))
    (line,) = figure.axes[0].lines
    y = line.get_ydata()
    assert len(y) < 20_000
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y.max(), 20_000, rtol=0.01)


def test_the_time_of_the_metadata_counts(folder, tmp_path):
    output = tmp_path / "r.hdf"
    metadata = str(folder / "run_metadata.hdf")
    assert run(folder, output, "--stride", "2", "--metadata", metadata) == 0
    result = xpcs.read_results(output)
    assert result.multitau.frame_time == 0.5
    assert result.metadata["frame_time"] == 0.25
    with h5py.File(output) as file:
        assert file["entry/sample/name"][()] == b"silica"


def test_bins_without_two_time_are_those_of_g2(folder, tmp_path):
    assert run(folder, tmp_path / "r.hdf", "--bins", "2,4", "--intensity-cut", "0.5,1.5") == 0
    result = xpcs.read_results(tmp_path / "r.hdf").multitau
    assert result.bins.tolist() == [2, 4]
    expected = xpcs.multitau(samples.frames(40), samples.qmap(), intensity_cut=(0.5, 1.5))
    np.testing.assert_array_equal(result.g2, expected.g2[:, [1, 3]])
    assert len(expected.config["bad_frames"]) > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--begin 50", "begin, end"),
        ("--end 41", "begin <= end <= 40"),
        ("--parts 30", "60 (2 for each of 30 parts)"),
        ("--average 40", "1 of the 40 frames"),
    ],
)
def test_errors_about_the_frames(folder, tmp_path, capsys, flags, words):
    assert run(folder, tmp_path / "r.hdf", *flags.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--bins 5-1", "--bins: expected numbers and ranges such as 1,5-9, got '5-1'"),
        ("--bins 99", "bins: expected 1 to 5"),
        ("--bad-frames 1,x", "got '1,x'"),
        ("--twotime age-lag:3", "got 'age-lag:3'"),
        ("--twotime --bins 6", "bins: expected 1 to 5"),
        ("--twotime t1t2:0", "n of form"),
        ("--twotime t1t2:21 --stride 2", "at most 20 cells"),
        ("--intensity-cut 3", "LOW,HIGH"),
        ("--intensity-cut 2,1", "intensity_cut's high is 1"),
        ("--frame-time -1", "frame_time is -1"),
        ("--frame-time 0", "frame_time"),
        ("--dpl 0", "dpl is 0; expected an integer from 1 to 64"),
        ("--average 0", "average is 0"),
        ("--parts -1", "parts is -1"),
        ("--begin 5 --end 1", "end is 1; expected an integer from 5"),
        ("--metadata nowhere.hdf", "nowhere.hdf"),
        ("--metadata qmap.h5 --frame-time 1", "/entry"),
        ("--qmap frames.npy", "frames.npy"),
        ("--output .", "--output"),
        ("--plots frames.npy", "frames.npy"),
    ],
)
def test_errors_come_before_the_work(folder, tmp_path, monkeypatch, capsys, flags, words):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("jaxkern.xpcs.analysis.correlate.multitau", None)
    assert run(folder, tmp_path / "r.hdf", *flags.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert not list(tmp_path.iterdir())


def test_a_fit_of_g2_alone_says_what_is_missing(folder, tmp_path, capsys):
    assert run(folder, tmp_path / "r.hdf") == 0
    (tmp_path / "fit.yaml").write_text("data_files: {file: r.hdf}")
    assert main(["xpcs", "fit", "--config", str(tmp_path / "fit.yaml")]) == 2
    assert "--twotime" in capsys.readouterr().err


def test_files_that_are_there_stay(folder, tmp_path, capsys):
    output = tmp_path / "r.hdf"
    output.write_text("mine")
    assert run(folder, output) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert output.read_text() == "mine"
    raw = (folder / "frames.npy").read_bytes()
    assert run(folder, folder / "frames.npy", "--force") == 2
    assert "one of the files that are read" in capsys.readouterr().err
    assert (folder / "frames.npy").read_bytes() == raw


def test_the_bar_tells_rates_and_the_time_left(monkeypatch):
    """Frames, bytes of frames and seconds left, of a clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr("jaxkern.xpcs.correlators.native.time.monotonic", lambda: now[0])
    updates = []
    bar = CorrelationProgress(False, "multi-tau")
    monkeypatch.setattr(bar, "update", lambda *args, text="": updates.append((args, text)))
    bar.begin(1000, 2_000_000)
    now[0] += 2.0
    bar.advance(250)
    assert updates[-1] == ((250,), "multi-tau: 125 frames/s, 250 MB/s, 0:00:06 left")
    bar.set_fraction(1.0)
    assert updates[-1] == ((1000,), "multi-tau: 500 frames/s, 1 GB/s, 0:00:00 left")


def test_lists_and_forms():
    assert numbers("1, 5-7,3", "x") == [1, 5, 6, 7, 3]
    assert numbers(None, "x") is None
    assert form("t1t2:20") == ("t1t2", 20)
    assert form("age-lag:4:8:6") == ("age-lag", 4, 8, 6)
    for wrong in ("", "1,", "-3", "0-99999999999"):
        with raises(ValueError, "x:", f"got {wrong!r}"):
            numbers(wrong, "x")


def test_a_fit_of_the_results(tmp_path, capsys):
    """Two-time correlations that a model made, as results: the ring of q with all its phi."""
    t = 0.1 * np.arange(60)
    qmap = samples.qmap()
    c2 = []
    for b in (3, 4, 5, 1):
        geometry = xpcs.Geometry(q=qmap.q[b - 1], gap=None, dt=0.1, t=t, phi=[qmap.phi[b - 1]])
        model = xpcs.Static(geometry)
        c2.append(xpcs.simulate(model, [900.0, 0.0, 0.0], 0.3, 1.0, noise=0.01, seed=b)[0])
    result = replace(
        samples.twotime(n=60, frame_time=0.1, bins=(3, 4, 5, 1)),
        c2=np.stack(c2),
        config={"form": "full", "stride": 2, "average": 5},
    )
    xpcs.write_results(tmp_path / "results.hdf", twotime=result)
    (tmp_path / "fit.yaml").write_text(
        "data_files: {file: results.hdf, q: 0.0061}\nanalysis: {model: static}\n"
        "initial_parameters: {values: {D0: 700.0, alpha: 0.0}, hold: [alpha, D_offset]}\n"
    )
    output = ["--output-dir", str(tmp_path / "out"), "--no-plots"]
    assert main(["xpcs", "fit", "--config", str(tmp_path / "fit.yaml"), *output]) == 0
    captured = capsys.readouterr().out
    assert "3 angles of 60 frames" in captured
    assert "dt 0.1 s (file)" in captured
    actual = json.loads((tmp_path / "out" / "results.json").read_text())["parameters"]["D0"]
    assert abs(actual["value"] - 900.0) < 5 * actual["error"]
