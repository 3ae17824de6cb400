"""Pixels that are left out: masks in files, sentinels of every width, the flags of commands.

Would catch: a sentinel of 16 bits that counts as photons in 32, a mask of another shape or inverted
that passes in silence, a hot pixel that a command does not tell, and frames of a file that was
replaced which still count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from PIL import Image
from support.xpcs import correlation_results as samples
from support.xpcs.correlator_frames import events_of
from support.xpcs.detector_files import imm_bytes, rigaku_bytes, write_arrays

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.xpcs.detectors import opening

HOT = (3, 2)  # of bin 3


def hot_frames(n=60):
    """Bin 1 of 60 x 40 pixels has one hot pixel."""
    counts = np.random.default_rng(0).poisson(1.0, (n, 60, 40)).astype(np.uint8)
    counts[:, HOT[0], HOT[1]] = 99
    return counts


def hot_map():
    dynamic = np.ones((60, 40), int)
    dynamic[30:] = 2
    return xpcs.QMap(dynamic, q=[0.01, 0.02])


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "run1.npy", hot_frames())
    hot_map().write(tmp_path / "qmap.h5")
    return tmp_path


def flags(folder, output="r.hdf", qmap="qmap.h5"):
    return ["--qmap", str(folder / qmap), "--output", str(folder / output), "--quiet"]


def correlate(folder, *more):
    return main(["xpcs", "correlate", str(folder / "run1.npy"), *flags(folder), *more])


# Hot pixels on the command line -----------------------------------------------------------------


def test_a_hot_pixel_is_told_by_default_and_masked_on_request(folder, capsys):
    assert correlate(folder) == 0
    assert f"warning: 1 pixel differs from the other pixels of their static bins: row {HOT[0]}, " \
        f"column {HOT[1]} (" in capsys.readouterr().err  # fmt: skip
    result = xpcs.read_results(folder / "r.hdf").multitau
    assert result.config["hot_pixels"] == [list(HOT)]
    assert len(result.warnings) == 1
    assert result.g2[0, 0] > 4
    assert correlate(folder, "--force", "--hot-pixels", "mask", "--twotime", "--json") == 0
    captured = json.loads(capsys.readouterr().out)
    assert captured["hot_pixels"] == [list(HOT)]
    assert len(captured["warnings"]) == 1
    result = xpcs.read_results(folder / "r.hdf")
    expected = xpcs.multitau(hot_frames(), hot_map().without([HOT]), progress=False)
    np.testing.assert_array_equal(result.multitau.g2, expected.g2)
    assert result.twotime.qmap.n_pixels == 2399
    pairs = xpcs.twotime(hot_frames(), hot_map().without([HOT]), progress=False)
    np.testing.assert_array_equal(result.twotime.c2, pairs.c2)
    assert correlate(folder, "--force", "--hot-pixels", "ignore") == 0
    assert "pixel" not in capsys.readouterr().err
    assert "hot_pixels" not in xpcs.read_results(folder / "r.hdf").multitau.config


def test_many_files_tell_their_hot_pixels(folder, capsys):
    np.save(folder / "run2.npy", np.where(hot_frames() == 99, 1, hot_frames()).astype(np.uint8))
    files = [str(folder / name) for name in ("run1.npy", "run2.npy")]
    for _ in range(2):  # the second time they are skipped
        assert main(["xpcs", "correlate", *files, *flags(folder, "out")]) == 0
        (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("warning")]
        assert "run1.npy: 1 pixel differs" in line
        assert f"row {HOT[0]}, column {HOT[1]}" in line
    result = xpcs.correlate_files(files, folder / "qmap.h5", folder / "out", progress=False)
    assert [row["hot_pixels"] for row in result.table] == [1, 1, 0, 0]
    masked = xpcs.correlate_files(
        files, folder / "qmap.h5", folder / "out", hot_pixels="mask", progress=False
    )
    assert [row["pixels"] for row in masked.table] == [1199, 1200, 1200, 1200]


@pytest.mark.parametrize("hot_pixels", ["report", "mask"])
def test_watch(folder, capsys, hot_pixels):
    more = ["--pattern", "run*", "--idle", "0.2", "--hot-pixels", hot_pixels]
    assert main(["xpcs", "watch", str(folder), *flags(folder), *more]) == 0
    assert f"warning: 1 pixel differs from the other pixels of their static bins: row {HOT[0]}, " \
        f"column {HOT[1]} (" in capsys.readouterr().err  # fmt: skip
    left = xpcs.read_results(folder / "r.hdf").multitau.qmap.n_pixels
    assert left == 2400 - (hot_pixels == "mask")


# Masks in files ---------------------------------------------------------------------------------


def write_mask(path, good):
    name = path.name
    if name.endswith("npy"):
        np.save(path, good)
    elif name.endswith("8.tif"):
        Image.fromarray(good.astype(np.uint8) * 255).save(path)
    elif name.endswith("16.tif"):
        Image.fromarray(good.astype(np.uint16) * 7).save(path, compression="tiff_lzw")
    elif name.endswith("f.tiff"):
        Image.fromarray(good.astype(np.float32)).save(path)
    else:
        with h5py.File(path, "w") as file:
            if "nexus" in name:
                file["entry/instrument/detector/pixel_mask"] = (~good).astype(np.uint32)
            elif "only" in name:
                file["somewhere"], file["list"] = good.astype(int), np.arange(5)
            else:
                file["qmap/mask"] = file["qmap/blemish"] = good.astype(np.uint8)
    return path


@pytest.mark.parametrize(
    "name", ["m.npy", "m8.tif", "m16.tif", "mf.tiff", "m.h5", "only.h5", "nexus.nxs"]
)
@pytest.mark.parametrize("flag", ["mask", "blemish"])
def test_masks_of_files(folder, name, flag, capsys):
    good = np.random.default_rng(1).random((60, 40)) < 0.9
    good[HOT] = False
    path = write_mask(folder / name, good)
    np.testing.assert_array_equal(xpcs.read_mask(path, flag), good)
    assert correlate(folder, f"--{flag}", str(path)) == 0
    assert "pixel" not in capsys.readouterr().err
    result = xpcs.read_results(folder / "r.hdf").multitau
    np.testing.assert_array_equal(result.qmap.mask, good)
    assert (result.qmap.blemish is None) == (flag == "mask")
    expected = xpcs.multitau(hot_frames(), hot_map(), mask=good, progress=False)
    np.testing.assert_array_equal(result.g2, expected.g2)


def test_masks_that_are_refused(folder, capsys):
    np.save(folder / "small.npy", np.ones((40, 60)))
    np.save(folder / "line.npy", np.ones(60))
    (folder / "text.tif").write_text("no image")
    half = np.zeros((60, 40))
    hot_map().without(half == 0).write(folder / "none.h5")
    np.save(folder / "inverted.npy", half)
    with h5py.File(folder / "two.h5", "w") as file:
        file["a"] = file["b"] = half
    for name, words in (
        ("small.npy", r"small.npy: expected a mask of 60 x 40 pixels"),
        ("line.npy", "line.npy: expected numbers [H, W]"),
        ("text.tif", "text.tif cannot be read as a TIFF file"),
        ("gone.npy", "file not found"),
        ("run.txt", "expected a file that ends in .npy"),
        ("two.h5", "two.h5: expected data set 'mask' or one of two axes"),
        ("inverted.npy", "inverted.npy: the mask is 0 in all 2,400 pixels"),
    ):
        (folder / "run.txt").write_text("")
        assert correlate(folder, "--mask", str(folder / name)) == 2
        assert words in capsys.readouterr().err
        assert not (folder / "r.hdf").exists()
    command = ["xpcs", "correlate", str(folder / "run1.npy"), *flags(folder, qmap="none.h5")]
    assert main(command) == 2
    assert "no pixels" in capsys.readouterr().err


def test_frames_of_infinity_end_with_an_error(folder, capsys):
    np.save(folder / "run1.npy", np.full((20, 60, 40), np.inf, np.float32))
    assert correlate(folder) == 2
    assert not (folder / "r.hdf").exists()
    assert "error: no pixels" in capsys.readouterr().err


# Sentinels --------------------------------------------------------------------------------------

SENTINELS = [
    ("u1", 255), ("u2", 255), ("u2", 4095), ("u2", 65535), ("u4", 255), ("u4", 65535),
    ("u4", 2**32 - 1), ("i4", 65535), ("i4", 32767), ("i4", 2**31 - 1), ("i4", -1), ("u8", 65535),
    ("u8", 2**32 - 1), ("f4", np.nan), ("f8", -np.inf),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "sentinel"), SENTINELS)
@pytest.mark.parametrize("container", ["h5", "npy", "npz"])
def test_sentinels_in_every_container(tmp_path, dtype, sentinel, container):
    counts = samples.frames(30).astype(dtype)
    counts[:, 2, 5] = sentinel
    counts[3, 4, 1] = min(abs(sentinel), 127) if sentinel == sentinel else 9  # of one frame
    path = tmp_path / f"run.{container}"
    if container == "h5":
        write_arrays(path, ".h5", {"entry/data/data": counts})
    elif container == "npy":
        np.save(path, counts)
    elif np.dtype(dtype).kind != "u" or sentinel > 2**32 - 1:
        return
    else:
        pixel, frame, count = events_of(counts)
        np.savez(path, frame=frame, pixel=pixel, count=count, shape=counts.shape)
    with xpcs.open_frames(path) as source:
        assert np.argwhere(source.dead).tolist() == [[2, 5]]


def test_sentinels_of_imm_and_rigaku(tmp_path):
    counts = samples.frames(30).astype(np.uint16)
    counts[:, 2, 5] = 65535
    (tmp_path / "run.imm").write_bytes(imm_bytes(counts, sparse=False))
    with xpcs.open_frames(tmp_path / "run.imm") as source:
        assert np.argwhere(source.dead).tolist() == [[2, 5]]
    counts[:, 2, 5] = 4095
    whole = np.zeros((30, 512, 1024), np.uint16)
    whole[:, : samples.SHAPE[0], : samples.SHAPE[1]] = counts
    (tmp_path / "run.bin").write_bytes(rigaku_bytes(whole))
    with xpcs.open_frames(tmp_path / "run.bin") as source:
        assert np.argwhere(source.dead).tolist() == [[2, 5]]


@pytest.mark.parametrize("steady", [255, 127, 65535])
def test_a_bright_pixel_among_bright_ones_is_no_sentinel(tmp_path, steady):
    counts = np.full((20, 6, 8), steady - 20, np.uint32)
    counts[:, 2, 5] = steady
    np.save(tmp_path / "run.npy", counts)
    with xpcs.open_frames(tmp_path / "run.npy") as source:
        assert source.dead is None


# Files that are replaced, and interrupted commands ----------------------------------------------


@pytest.mark.parametrize("how", ["renamed", "written over"])
def test_a_file_that_is_replaced_is_read_again(tmp_path, monkeypatch, how):
    """By one of the same name, size and time of change."""
    monkeypatch.setattr(opening, "_SHARE", 1.0)
    first, second = samples.frames(20), samples.frames(20, seed=1)
    path = tmp_path / "run.npy"
    np.save(path, first)
    os.utime(path, ns=(10**18, 10**18))
    frames, live = xpcs.GrowingFrames(path), xpcs.LiveMultiTau(samples.qmap(), 100)
    assert frames.poll() == 20
    live.update(frames)
    if how == "renamed":
        np.save(tmp_path / "new.npy", second)
        os.utime(tmp_path / "new.npy", ns=(10**18, 10**18))
        os.replace(tmp_path / "new.npy", path)
    else:
        np.save(path, second)
    time.sleep(0.01)
    assert frames.finish() == 20
    result = live.finish(frames)
    expected = xpcs.multitau(second, samples.qmap(), progress=False)
    np.testing.assert_array_equal(result.g2, expected.g2)


INTERRUPTED = """
import signal, sys, os
import jaxkern.xpcs.files.results_writer as writer
real = writer._write_multitau
def interrupt(*args):
    real(*args)
    print("writing", flush=True)
    os.kill(os.getpid(), int(sys.argv[-1]))
    for _ in range(10**9): pass
writer._write_multitau = interrupt
from jaxkern.cli import main
sys.exit(main(sys.argv[1:-1]))
"""


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted: "), (signal.SIGTERM, 143, "")]
)
def test_an_interrupted_command_leaves_no_file(folder, number, code, words):
    before = sorted(os.listdir(folder))
    more = ["--hot-pixels", "ignore", *flags(folder)]
    command = ["xpcs", "correlate", str(folder / "run1.npy"), *more]
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *command, str(int(number))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith(words)
    assert len(ended.stderr.splitlines()) == bool(words)
    assert sorted(os.listdir(folder)) == before


# Plots ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("all_bins", "panels"), [(False, 3 + 2), (True, 8)])
def test_g2_of_the_first_nine_bins_and_a_summary(all_bins, panels):
    from jaxkern.xpcs.analysis import correlation_plots

    rows = np.repeat(np.arange(1, 25), 4).reshape(12, 8)
    q, phi = np.repeat(np.arange(1, 9) / 100, 3), np.tile([0.0, 45.0, 90.0], 8)
    counts = np.random.default_rng(0).poisson(2.0, (50, 12, 8)).astype(np.uint8)
    result = xpcs.multitau(counts, xpcs.QMap(rows, q=q, phi=phi), progress=False)
    figure = correlation_plots.plot_g2(result, all_bins)
    shown = [axes for axes in figure.get_axes() if axes.axison]
    assert len(shown) == panels
    legends = [legend for part in (figure, *figure.subfigs) for legend in part.legends]
    assert [text.get_text() for text in legends[0].get_texts()] == ["0 deg", "45 deg", "90 deg"]
    first = shown[0].lines[0].get_color()
    assert shown[1].lines[0].get_color() == first  # a colour for each angle, in all panels
