"""g2 of frames that are still being acquired.

Would catch: g2 of frames added in parts that is not bit-identical to g2 of all frames, an
incomplete file that is read as complete, and files of a folder in alphabetical order.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.errors import raises
from support.xpcs import correlation_results as samples
from support.xpcs.correlator_frames import check_fields
from support.xpcs.detector_files import rigaku_bytes, write_arrays

from jaxkern import xpcs
from jaxkern.xpcs.analysis.watching import watch
from jaxkern.xpcs.detectors.frames import DetectorFileError

MEANS = ("mean_image", "intensity", "static_means")


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("steps", [[1] * 70, [3, 40, 27], [70]])
def test_updates_are_bit_identical_to_one_call(steps, normalize):
    """Includes begin, average, bad frames not acquired yet, and more frames than the maximum."""
    counts, qmap = samples.frames(70), samples.qmap()
    how = {"normalize": normalize, "bad_frames": [0, 12, 50], "begin": 1, "average": 2}
    live = xpcs.LiveMultiTau(qmap, 61, frame_time=0.1, bins=[1, 3], **how)
    for n in np.cumsum(steps):
        assert live.update(xpcs.as_frames(counts[:n])) == n
    expected = xpcs.multitau(counts[:61], qmap, frame_time=0.1, bins=[1, 3], overview=True, **how)
    result = live.result()
    names = ("g2", "g2_err", "delay", "tau", "n_pairs", "n_frames", "bins", "q")
    check_fields(result, expected, names)
    check_fields(result.overview, expected.overview, MEANS, 1e-15)
    parts = result.overview.static_means_parts
    assert 10 <= len(parts) < 20
    np.testing.assert_allclose(parts[0], _static_means(counts, qmap, 1, [1, 2], 2), rtol=1e-15)


def _static_means(counts, qmap, begin, numbers, average):
    """Return the static means over the frames of the first sums, all of which are good."""
    first = counts[begin : begin + len(numbers) * average]
    return [first[:, qmap.used & (qmap.static == s)].mean() for s in range(1, qmap.n_static + 1)]


def test_a_result_of_the_frames_so_far():
    counts, qmap = samples.frames(40), samples.qmap()
    live = xpcs.LiveMultiTau(qmap, 10_000)
    with raises(ValueError, "at least 2 frames", "got 0"):
        live.result()
    for n in (2, 17, 33, 40):
        live.update(xpcs.as_frames(counts[:n]))
        np.testing.assert_array_equal(live.result().g2, xpcs.multitau(counts[:n], qmap).g2)
    with raises(ValueError, "qmap", "3 x 3", "6 x 8"):
        xpcs.LiveMultiTau(qmap).update(xpcs.as_frames(np.ones((4, 3, 3), np.uint8)))


def settled(frames):
    """Search for new frames now, and return the number of complete frames."""
    frames._next_search = 0.0
    return frames.poll()


def test_bins_without_pixels_and_wrong_arguments():
    counts, empty = samples.frames(20), samples.qmap().without(np.ones(samples.qmap().shape))
    live = xpcs.LiveMultiTau(empty, 100)
    live.update(xpcs.as_frames(counts))
    result = live.result()
    assert np.isnan(result.g2).all()
    with raises(ValueError, "no pixels", "bins [1, 2, 3, 4, 5]"):
        live.finish(xpcs.as_frames(counts))
    with raises(ValueError, "no pixels", "bins [1, 2, 3, 4, 5]"):
        xpcs.multitau(counts, empty)
    with raises(ValueError, "dpl", "65"):
        xpcs.LiveMultiTau(empty, 100, dpl=65)


def test_files_of_a_folder_in_numerical_order(tmp_path):
    counts = samples.frames(30)
    frames = xpcs.GrowingFrames(tmp_path, exclude=[tmp_path / "qmap.h5"])
    assert settled(frames) == 0
    samples.qmap().write(tmp_path / "qmap.h5")
    (tmp_path / "notes.txt").write_text("no frames")
    np.save(tmp_path / "run_9.npy", counts[:10])
    assert settled(frames) == 10
    np.save(tmp_path / "run_10.npy", counts[10:25])
    assert settled(frames) == 25
    whole = (tmp_path / "run_10.npy").read_bytes()
    (tmp_path / "run_11.npy").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "run_12.npy", counts[:1])
    assert settled(frames) == 25  # files after an incomplete one are not read
    with raises(DetectorFileError, "run_11.npy"):
        frames.finish()
    np.save(tmp_path / "run_11.npy", counts[25:])
    assert settled(frames) == 31
    np.testing.assert_array_equal(frames.read(5, 28), counts[5:28])
    assert frames.finish() == 31
    np.save(tmp_path / "run_8.npy", counts[:1])
    with raises(DetectorFileError, "run_9.npy", "run_8.npy"):
        settled(frames)
    (tmp_path / "run_8.npy").unlink()
    np.save(tmp_path / "run_13.npy", counts[:1].astype(np.uint16))
    with raises(DetectorFileError, "run_13.npy", "6 x 8 (uint8)", "6 x 8 (uint16)"):
        settled(frames)


def test_a_file_of_events_that_grows(tmp_path):
    counts = np.zeros((20, 512, 1024), np.uint8)
    counts[:, :4, :4] = np.random.default_rng(0).poisson(2.0, (20, 4, 4))
    path = tmp_path / "run.bin"
    frames = xpcs.GrowingFrames(path)
    bins = np.zeros((512, 1024), int)
    bins[:4, :3], bins[:4, 3] = 1, 2
    live = xpcs.LiveMultiTau(xpcs.QMap(bins), 50)
    assert settled(frames) == 0
    words = rigaku_bytes(counts)
    path.write_bytes(words[: len(rigaku_bytes(counts[:12]))])
    assert settled(frames) == 11  # more of the last frame may come
    live.update(frames)
    path.write_bytes(words)
    assert settled(frames) == 19
    assert frames.finish() == 20
    np.testing.assert_array_equal(frames.read(9, 20), counts[9:20])
    result, expected = live.finish(frames), xpcs.multitau(path, xpcs.QMap(bins))
    np.testing.assert_array_equal(result.g2, expected.g2)
    np.testing.assert_array_equal(result.g2_err, expected.g2_err)
    path.write_bytes(path.read_bytes()[:800])
    with raises(DetectorFileError, "run.bin", "20 frames", "got 7"):
        settled(frames)


SWMR = """
import sys, h5py, numpy as np
counts = np.load(sys.argv[1])
with h5py.File(sys.argv[2], "w", libver="latest") as file:
    frames = file.create_dataset(
        "entry/data/data", (0, *counts.shape[1:]), counts.dtype, maxshape=(None, *counts.shape[1:]),
        chunks=(1, *counts.shape[1:]),
    )
    file.swmr_mode = True
    for first in range(0, len(counts), 10):
        frames.resize(first + 10, axis=0)
        frames[first:] = counts[first : first + 10]
        file.flush()
        print(first + 10, flush=True)
        sys.stdin.readline()
"""


def test_an_hdf5_file_that_another_process_writes(tmp_path):
    counts = samples.frames(30)
    np.save(tmp_path / "counts.npy", counts)
    path = tmp_path / "run.h5"
    with (
        subprocess.Popen(
            [sys.executable, "-c", SWMR, tmp_path / "counts.npy", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child,
        xpcs.GrowingFrames(path) as frames,
    ):
        for n in (10, 20, 30):
            assert child.stdout.readline() == f"{n}\n"
            assert settled(frames) == n
            np.testing.assert_array_equal(frames.read(0, n), counts[:n])
            child.stdin.write("continue\n")
            child.stdin.flush()
    assert child.returncode == 0


def replace(path, counts):
    """Replace or create an HDF5 file of frames."""
    write_arrays(path.with_suffix(".half"), ".h5", {"entry/data/data": counts})
    path.with_suffix(".half").replace(path)


@pytest.mark.parametrize("normalize", [False, True])
def test_dead_pixels_are_those_of_the_complete_file(tmp_path, normalize):
    """A pixel of an HDF5 file is dead if it is at its limit in the first, middle and last frame, so
    the dead pixels change as the file grows."""
    counts, qmap = samples.frames(40), samples.qmap()
    counts[:, 1, 0] = 255  # dead
    counts[0, 2, 2] = 255  # dead after the first update only
    counts[[0, 20, 39], 3, 3] = 255  # dead after the last update only
    counts[5:, 4, 4] = 255  # later than the first frame: not dead, as offline
    path = tmp_path / "run.h5"
    growing = xpcs.GrowingFrames(path)
    live = xpcs.LiveMultiTau(qmap, 100, normalize=normalize)
    dead = []
    for n in (1, 10, 15, 40):
        replace(path, counts[:n])
        settled(growing)
        live.update(growing)
        dead.append(int(growing.dead.sum()))
    assert dead[:3] == [3, 1, 1]
    growing.finish()
    result = live.finish(growing)
    growing.close()
    with xpcs.open_frames(path) as whole:
        assert whole.dead.sum() == 2
        np.testing.assert_array_equal(growing.dead, whole.dead)
    expected = xpcs.multitau(path, qmap, normalize=normalize, overview=True)
    check_fields(result, expected)
    check_fields(result.overview, expected.overview, MEANS, 1e-15)


def test_dead_pixels_are_updated_at_the_end(tmp_path):
    """The end of the run counts even if the frames have not doubled since the last update."""
    counts, qmap = samples.frames(40), samples.qmap()
    counts[[0, 15, 29], 3, 3] = 255  # dead in the first 30 frames
    path = tmp_path / "run.h5"
    replace(path, counts[:30])
    with xpcs.GrowingFrames(path) as growing:
        live = xpcs.LiveMultiTau(qmap, 40)
        settled(growing)
        live.update(growing)
        assert growing.dead.sum() == 1
        replace(path, counts)
        pauses = {"idle": 10, "every": 10}
        result = watch(growing, lambda *_: live, 40, lambda _: None, **pauses).result
    expected = xpcs.multitau(path, qmap)
    np.testing.assert_array_equal(result.n_pixels, expected.n_pixels)
    np.testing.assert_array_equal(result.g2, expected.g2)


def test_a_pixel_that_is_marked_in_every_file_is_dead(tmp_path):
    counts = samples.frames(6)
    counts[:, 0, 0] = 255
    counts[0, 1, 1] = 255
    growing = xpcs.GrowingFrames(tmp_path)
    for number, frame in enumerate(counts):
        replace(tmp_path / f"run_{number}.h5", frame[None])
        settled(growing)
        marked = 2 if number == 0 else 1
        assert growing.dead.sum() == marked
    growing.close()


@pytest.mark.parametrize("normalize", [False, True])
def test_an_intensity_cut_is_applied_at_the_end(normalize):
    counts, qmap = samples.frames(60), samples.qmap()
    counts[33] *= 7
    counts[50] = 0
    how = {"intensity_cut": (0.4, 2.0), "normalize": normalize, "bins": [1, 3]}
    live = xpcs.LiveMultiTau(qmap, 1000, bad_frames=[3, 700], **how)
    for n in (20, 55, 60):
        live.update(xpcs.as_frames(counts[:n]))
    assert live.result().config["bad_frames"] == [3]
    result = live.finish(xpcs.as_frames(counts))
    expected = xpcs.multitau(counts, qmap, bad_frames=[3], **how)
    assert result.config == expected.config
    assert result.config["bad_frames"] == [3, 33, 50]
    np.testing.assert_array_equal(result.g2, expected.g2)
    np.testing.assert_array_equal(result.g2_err, expected.g2_err)
