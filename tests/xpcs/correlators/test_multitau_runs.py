"""Input and output of `multitau`: sources of frames, cuts, parts, labels and errors.

Would catch a memory layout that is read wrongly, bad frames that a cut misses or does not list,
parts that overlap, labels of another bin, a reader's error that is lost or blocks the call, a call
that cannot be interrupted, and wrong arguments that are accepted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time

import h5py
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from support.errors import raises
from support.hypotheses import check_examples, few_or_many
from support.xpcs import correlator_oracle as oracle
from support.xpcs.correlator_frames import DYNAMIC, STATIC, Blocks, check_g2, photons

import jaxkern as jk
from jaxkern.core.memory import anonymous_bytes
from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.detectors import opening

# Bin 4 of the common map has no pixels.
pytestmark = pytest.mark.filterwarnings("ignore:bins .* have no :jaxkern.xpcs.CorrelationWarning")

FRAMES = photons(60)
EXPECTED = oracle.multitau(FRAMES, DYNAMIC, STATIC)
Q, PHI = [0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 90.0, 180.0, 270.0, 300.0]
QMAP = jk.xpcs.QMap(DYNAMIC, STATIC, q=Q, phi=PHI)


def records(frames):
    """Frames that each follow a header of an odd length, as in raw files."""
    dtype = [("header", "u1", 3), ("frame", frames.dtype, frames.shape[1:])]
    rows = np.zeros(len(frames), dtype)
    rows["frame"] = frames
    return rows["frame"]


@pytest.mark.parametrize(
    "layout",
    {
        "flat": lambda f, _: f.reshape(60, -1),
        "fortran": lambda f, _: np.asfortranarray(f),
        "reversed": lambda f, _: f[::-1].copy()[::-1],
        "every second pixel": lambda f, _: np.repeat(f, 2, axis=2)[:, :, ::2],
        "records": lambda f, _: records(f),
        "jax": lambda f, _: jax.numpy.asarray(f),
    }.items(),
    ids=lambda item: item[0],
)
def test_layouts_of_arrays(backend, layout):
    check_g2(jk.xpcs.multitau(layout[1](FRAMES, None), QMAP), EXPECTED)


def test_memory_maps(backend, tmp_path):
    np.save(tmp_path / "frames.npy", FRAMES)
    mapped = np.load(tmp_path / "frames.npy", mmap_mode="r")
    check_g2(jk.xpcs.multitau(mapped, QMAP), EXPECTED)
    os.truncate(tmp_path / "frames.npy", 500)
    with raises(OSError, "frames.npy", "500 bytes"):
        jk.xpcs.multitau(mapped, QMAP)


def test_a_file_opened_from_a_path_is_closed(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file.create_dataset("entry/data/data", data=FRAMES, chunks=(7, 4, 5), compression="gzip")
    opened = []
    monkeypatch.setattr(
        opening, "as_frames", lambda *args: opened.append(jk.xpcs.as_frames(*args)) or opened[-1]
    )
    r = jk.xpcs.multitau(tmp_path / "run.h5", QMAP)
    check_g2(r, EXPECTED)
    with raises(ValueError, "bins", "1 to 5", "[9]"):
        jk.xpcs.multitau(str(tmp_path / "run.h5"), QMAP, bins=[9])
    for source in opened:
        with pytest.raises((ValueError, OSError)):
            source.read(0, 1)
    with jk.xpcs.open_frames(tmp_path / "run.h5") as own:
        jk.xpcs.multitau(own, QMAP)
        assert own.read(0, 1).shape == (1, 4, 5)  # still open


def test_labels_of_results():
    r = jk.xpcs.multitau(Blocks(FRAMES, 0.5), QMAP, bins=[3, 1], stride=2, overview=True)
    assert r.bins.tolist() == [3, 1]
    assert r.q.tolist() == [0.3, 0.1]
    assert r.phi.tolist() == [180.0, 0.0]
    assert r.n_pixels.tolist() == [4, 6]
    assert (r.frame_time, r.n_frames, r.tau[0]) == (1.0, 30, 1.0)
    check_g2(r, oracle.multitau(FRAMES, DYNAMIC, STATIC, stride=2))
    assert repr(r) == "MultiTauResult(2 bins of 10 pixels, 14 delays to 24 s, 30 frames)"
    decoded = json.loads(json.dumps(r.to_dict()))
    np.testing.assert_array_equal(decoded["g2"], r.g2)
    assert decoded["config"]["stride"] == 2
    for unknown in (None, 0.0, np.nan):
        assert jk.xpcs.multitau(Blocks(FRAMES, unknown), QMAP).tau is None
    assert jk.xpcs.multitau(Blocks(FRAMES, 0.5), QMAP, frame_time=2.0).tau[1] == 4.0


@pytest.mark.parametrize("kind", ["array", "blocks"])
def test_dead_pixels_of_a_file_are_excluded(backend, kind):
    frames = FRAMES.copy()
    dead = np.zeros(DYNAMIC.shape, bool)
    dead[0, 1] = dead[3, 3] = True
    frames[:, dead] = 65535
    source = Blocks(frames) if kind == "blocks" else jk.xpcs.as_frames(frames)
    source.dead = dead
    r = jk.xpcs.multitau(source, QMAP, overview=True)
    check_g2(r, oracle.multitau(frames, DYNAMIC, STATIC, ~dead))
    assert r.n_pixels[0] == QMAP.pixels_of_bin[0] - 1
    assert r.overview.intensity.max() < 100
    less = jk.xpcs.twotime(frames, QMAP, mask=~dead)
    np.testing.assert_array_equal(jk.xpcs.twotime(source, QMAP).c2, less.c2)


@pytest.mark.parametrize("source", [FRAMES, Blocks(FRAMES)], ids=["array", "blocks"])
def test_parts_are_independent_runs(backend, source):
    r = jk.xpcs.multitau(source, QMAP, begin=3, average=2, parts=4, frame_time=0.1)
    assert len(r.parts) == 4
    for k, part in enumerate(r.parts):  # 28 sums in 4 parts of 7
        begin = 3 + 14 * k
        assert (part.config["begin"], part.config["end"]) == (begin, begin + 14)
        choices = {"begin": begin, "end": begin + 14, "average": 2}
        check_g2(part, oracle.multitau(FRAMES, DYNAMIC, STATIC, **choices))
        assert part.tau[0] == 0.2
    assert repr(r).endswith("28 frames, 4 parts)")


@pytest.mark.parametrize("average", [1, 2])
def test_an_intensity_cut_finds_flashes_and_dumps(backend, average):
    frames = photons(60) + np.uint16(5)
    frames[[7, 8, 40]] *= 5
    frames[21] = 0
    frames[:, DYNAMIC == 0] = 1000  # outside the map
    frames[30, DYNAMIC == 0] = 9999
    r = jk.xpcs.multitau(
        frames, QMAP, intensity_cut=(0.5, 2.0), bad_frames=[50, 59], average=average, begin=2
    )
    bad = [7, 8, 21, 40, 50, 59]
    assert r.config["bad_frames"] == bad
    assert r.config["intensity_cut"] == (0.5, 2.0)
    expected = {"bad_frames": bad, "average": average, "begin": 2}
    check_g2(r, oracle.multitau(frames, DYNAMIC, STATIC, **expected))
    low = jk.xpcs.multitau(frames, QMAP, intensity_cut=(0.5, None))
    assert low.config["bad_frames"] == [21]
    assert low.config["intensity_cut"] == (0.5, None)


def test_an_intensity_cut_excludes_a_frame_with_nan(backend):
    frames = FRAMES.astype(np.float32)
    frames[7, 0, :] = np.nan
    result = jk.xpcs.multitau(frames, QMAP, intensity_cut=(0.1, 10))
    assert result.config["bad_frames"] == [7]
    expected = jk.xpcs.multitau(FRAMES, QMAP, bad_frames=[7])
    np.testing.assert_allclose(result.g2, expected.g2, rtol=1e-12)


ERRORS = [
    ({"bins": [1, 6]}, ["bins", "1 to 5", "[1, 6]"]),
    ({"bins": [1, 1]}, ["bins", "[1, 1]"]),
    ({"dpl": 65}, ["dpl", "1 to 64", "65"]),
    ({"begin": 50, "end": 40}, ["begin, end", "50", "40"]),
    ({"bad_frames": [60]}, ["bad_frames", "0 to 59", "[60]"]),
    ({"average": 60}, ["average", "at least 2", "got 1 of the 60"]),
    ({"parts": 31}, ["at least 62", "31 parts", "got 60"]),
    ({"parts": -1}, ["parts", "-1"]),
    ({"intensity_cut": 3}, ["intensity_cut", "(low, high)", "got 3"]),
    ({"intensity_cut": (2, 1)}, ["intensity_cut", "high is 1", "at least 2"]),
    ({"frame_time": -1.0}, ["frame_time", "-1.0"]),
    ({"frame_time": 0.0}, ["frame_time", "above 0 s", "0.0"]),
    ({"stride": 0}, ["stride", "0"]),
]


@pytest.mark.parametrize(("arguments", "facts"), ERRORS)
def test_wrong_arguments(arguments, facts):
    with raises(ValueError, *facts):
        jk.xpcs.multitau(FRAMES, QMAP, **arguments)


def test_wrong_frames(backend):
    with raises(ValueError, "4 x 4", "4 x 5"):
        jk.xpcs.multitau(FRAMES[:, :, :4].copy(), QMAP)
    below = FRAMES.astype(np.int32)
    below[4, 1, 1] = -1
    for source in (below, Blocks(below)):
        with raises(ValueError, "pixel 6", "negative"):
            jk.xpcs.multitau(source, QMAP)
        assert np.isfinite(jk.xpcs.multitau(source, QMAP, normalize=True).g2[:, 0]).all()
    # Pixel 6 is the first pixel of this map, and not of the frame.
    with raises(ValueError, "pixel 6", "negative"):
        jk.xpcs.multitau(Blocks(below), QMAP.without(np.arange(20).reshape(4, 5) < 6))
    full = FRAMES.astype(np.uint32)
    full[5:7, 2, 1] = 2**31
    for source in (full, Blocks(full)):
        with raises(ValueError, "pixel 11", "2^32 - 1"):
            jk.xpcs.multitau(source, QMAP)
    wide = FRAMES.astype(np.int64)
    wide[3, 0, 0] = 2**40
    with raises(ValueError, "frames", "int64", "1099511627776"):
        jk.xpcs.multitau(wide, QMAP)


@pytest.mark.slow
def test_memory_is_bounded_by_tiles_of_pixels():
    """The sums of all pixels at all delays would need 700 MB."""
    frames = np.random.default_rng(0).integers(0, 3, (200, 1024, 1024), np.uint8)
    qmap = jk.xpcs.QMap(1 + np.arange(1024 * 1024).reshape(1024, 1024) // 2**17)
    jk.xpcs.multitau(frames[:20], qmap)
    before, most, ended = anonymous_bytes(), [], threading.Event()

    def watch():
        while not ended.wait(0.002):
            most.append(anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = jk.xpcs.multitau(frames, qmap)
    ended.set()
    watcher.join()
    assert max(most) - before < 100e6
    assert np.isfinite(result.g2).all()


def test_progress_counts_frames_and_bytes(monkeypatch):
    updates = []
    monkeypatch.setattr(ProgressBar, "update", lambda _, *a, **kw: updates.append((a, kw)))
    jk.xpcs.multitau(Blocks(FRAMES), QMAP)
    assert ((0, 60), {}) in updates
    (done,), options = updates[-1]
    assert done == 60
    text = options["text"]
    assert re.fullmatch(r"multi-tau: [\d,]+ frames/s, .* [kMGT]?B/s, 0:00:00 left", text)


def test_errors_of_a_reader_are_raised():
    class Broken(Blocks):
        def read(self, first, stop):
            if stop > 30:
                raise OSError("block 3 is damaged")
            return super().read(first, stop)

    with raises(OSError, "block 3 is damaged"):
        jk.xpcs.multitau(Broken(FRAMES), QMAP, overview=True)

    class Short(Blocks):
        def read(self, first, stop):
            return super().read(first, stop)[:-1]

    with raises(ValueError, "(60, 4, 5)", "(59, 4, 5)"):
        jk.xpcs.multitau(Short(FRAMES), QMAP)
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxkern-frames")]


def test_a_long_run_is_interrupted():
    """Ctrl-C stops the native computation, which releases the GIL."""
    frames = np.ones((10_000, 64, 64), np.uint8)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()

    def correlate_often():
        for _ in range(1000):
            jk.xpcs.multitau(frames, jk.xpcs.QMap(np.ones((64, 64), int)))

    with pytest.raises(KeyboardInterrupt):
        correlate_often()
    timer.join()
    assert time.monotonic() - begun < 20


@st.composite
def runs(draw):
    """Draw (frames, dynamic, static, mask, arguments) of a small run."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 5)))
    n = draw(st.integers(2, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(["u1", "u2", "u4", "i4", "f4", "f8"]))
    mean = draw(st.sampled_from([0.02, 1.0, 60.0]))
    frames = rng.poisson(mean, (n, *shape)).astype(dtype)
    static = rng.integers(0, draw(st.integers(1, 4)) + 1, shape)
    static = np.minimum(static, static.size)
    dynamic = np.minimum((static + 1) // draw(st.integers(1, 2)), static.size)
    dynamic[static == 0] = 0
    average = draw(st.integers(1, 3))
    stride = draw(st.integers(1, 3))
    begin = draw(st.integers(0, max(n - 2 * average * stride, 0)))
    choices = {
        "dpl": draw(st.integers(1, 5)),
        "average": average,
        "stride": stride,
        "begin": begin,
        "end": draw(st.integers(min(begin + 2 * average * stride, n), n)),
        "bad_frames": draw(st.lists(st.integers(0, n - 1), max_size=n)),
    }
    return frames, dynamic, static, rng.random(shape) < 0.9, choices


def check_run(run, backend, kind):
    frames, dynamic, static, mask, choices = run
    if (choices["end"] - choices["begin"]) // (choices["stride"] * choices["average"]) < 2:
        return
    source = Blocks(frames) if kind == "blocks" else frames
    if dynamic.any() and not (mask & (dynamic > 0) & (static > 0)).any():
        with raises(ValueError, "no pixels"):
            jk.xpcs.multitau(source, jk.xpcs.QMap(dynamic, static, mask), **choices)
        return
    with jk.backend(backend):
        result = jk.xpcs.multitau(source, jk.xpcs.QMap(dynamic, static, mask), **choices)
    check_g2(result, oracle.multitau(frames, dynamic, static, mask, **choices))


@few_or_many(40, 120)
def test_random_runs(examples):
    backends, kinds = (st.sampled_from(x) for x in (["native", "jax"], ["array", "blocks"]))
    check_examples(examples, check_run, runs(), backends, kinds)
