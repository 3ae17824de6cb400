"""Two-time correlations of frames against sums of Python's integers.

Would catch: a sum that exceeds the precision of float32, a static bin that is normalized by the
mean of another one, a frame or pixel that is skipped or counted twice at the edge of a tile, and
results that depend on tiles, pieces or passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import h5py
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from support.errors import raises
from support.hypotheses import check_examples, few_or_many
from support.xpcs import correlator_oracle as oracle
from support.xpcs.correlator_frames import Blocks, check_fields

import jaxkern as jk
from jaxkern.core import memory
from jaxkern.xpcs.correlators import two_time_dense
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import ArrayFrames

# `test_empty_frames.py` tests the warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* no counts in:jaxkern.xpcs.CorrelationWarning"),
    pytest.mark.filterwarnings("ignore:bins .* have no pixels:jaxkern.xpcs.CorrelationWarning"),
]


def bins_of(shape, n_dynamic, n_static, seed=0):
    """Draw a dynamic and a static map; some pixels are in neither."""
    draw = np.random.default_rng(seed)
    static = draw.integers(0, min(n_dynamic * n_static, np.prod(shape)), shape, endpoint=True)
    return np.where(static > 0, (static - 1) // n_static + 1, 0), static


def counts(shape, dtype, most, seed=0):
    draw = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return draw.gamma(1.0, most, shape).astype(dtype)
    low = -most if np.dtype(dtype).kind == "i" else 0
    return draw.integers(low, most, shape, endpoint=True).astype(dtype)


def check(frames, dynamic, static, mask=None, rtol=1e-12, **how):
    qmap = jk.xpcs.QMap(dynamic, static, mask)
    result = jk.xpcs.twotime(frames, qmap, **how)
    expected = oracle.twotime(frames, dynamic, static, mask, **how)
    check_fields(result, expected, ("c2", "g2", "g2_parts"), rtol)
    check_fields(result, expected, ("n_pairs", "n_pairs_parts"))
    return result, expected


@pytest.mark.parametrize("smoothing", ["static", "none"])
@pytest.mark.parametrize(
    ("dtype", "most"),
    [("uint8", 3), ("uint8", 255), ("uint16", 300), ("uint16", 65535), ("uint32", 2**32 - 1),
     ("int32", 2**20), ("float32", 3), ("float64", 3)],
)  # fmt: skip
def test_the_definition(dtype, most, smoothing):
    dynamic, static = bins_of((5, 7), 2, 2)
    frames = counts((11, 5, 7), dtype, most)
    frames[3] = 0  # sums of 0
    frames[5][static == 2] = 0
    mask = np.random.default_rng(1).random((5, 7)) < 0.8
    # Negative counts cancel: a mean near 0 has fewer digits.
    check(frames, dynamic, static, mask, 1e-9 if dtype == "int32" else 1e-12, smoothing=smoothing)


@few_or_many(20, 150)
def test_random_small_cases(examples):
    check_examples(examples, random_case, data=st.data())


def random_case(data):
    n = data.draw(st.integers(1, 24))
    shape = data.draw(st.sampled_from([(1, 1), (3, 4), (2, 9)]))
    dynamic, static = bins_of(shape, *data.draw(st.sampled_from([(1, 1), (3, 2)])), seed=n)
    how = {
        "begin": data.draw(st.integers(0, n // 3)),
        "stride": data.draw(st.integers(1, 2)),
        "average": data.draw(st.integers(1, 3)),
        "bad_frames": data.draw(st.lists(st.integers(0, n - 1), max_size=4)),
        "smoothing": data.draw(st.sampled_from(["static", "none"])),
    }
    if (n - how["begin"]) // (how["stride"] * how["average"]) < 1 or not dynamic.any():
        return
    dtype = data.draw(st.sampled_from(["uint8", "uint16", "float64"]))
    check(counts((n, *shape), dtype, 5, n), dynamic, static, **how)


def frames_read(source):
    return sum(stop - first for first, stop, _ in source.reads)


@pytest.mark.parametrize(
    ("most", "pixels"),
    [(127, 2500), (127, 16384), (128, 1000), (128, 2500), (255, 258), (255, 2500),
     (361, 700), (363, 700), (65535, 2500), (2**21, 2500), (2**32 - 1, 60)],
)  # fmt: skip
def test_matrices_of_whole_counts_are_exact(most, pixels):
    """At the largest sums that a number of pixels can have, on either side of each limit."""
    draw = np.random.default_rng(most)
    dtype = np.min_scalar_type(most)
    frames = draw.integers(0, most, (10, 1, pixels), dtype, endpoint=True)
    frames[2:5] = most
    frames[3] -= draw.integers(0, 2, pixels).astype(dtype)
    tiles = two_time_dense.Tiles.for_frames(10)
    with jax.enable_x64(True):
        source, numbers = ArrayFrames(frames), np.arange(pixels, dtype=np.int32)
        (piece,) = two_time_dense.stage(source, FrameSelection(10), None, [numbers], tiles)
        result = two_time_dense.multiply(piece.tiles[0], piece.tiles[0], piece.product)
    whole = frames.reshape(10, pixels).astype(object)
    expected = whole @ whole.T
    result = np.asarray(result)[:10, :10]
    if expected.max() < 2**53:
        assert result.astype(np.uint64).tolist() == expected.tolist()
        assert (result == np.floor(result)).all()
    else:  # the sum of three exact parts, rounded
        np.testing.assert_allclose(result, expected.astype(np.float64), 4e-16)
    assert piece.sums.tolist() == whole.sum(axis=1).tolist()


@pytest.mark.parametrize("dtype", ["uint8", "float64"])
@pytest.mark.parametrize("form", ["full", ("t1t2", 7), ("age-lag", 5, 8, 4)])
def test_tiles_pieces_and_passes_change_no_bit(monkeypatch, dtype, form):
    """Tiles of 16 frames against one of 64, pieces of 30 pixels, passes for a few rows of tiles."""
    dynamic, static = bins_of((12, 16), 2, 2)
    frames = counts((61, 12, 16), dtype, 200)
    frames[[7, 40]] = 255
    qmap = jk.xpcs.QMap(dynamic, static)
    how = {"form": form, "bad_frames": [7, 40]}
    whole = jk.xpcs.twotime(frames, qmap, **how)
    reader = Blocks(frames)
    second = jk.xpcs.twotime(reader, qmap, **how)
    assert frames_read(reader) == 61
    names = ("c2", "g2", "g2_parts", "c2_pairs", "n_pairs")
    check_fields(second, whole, names)
    monkeypatch.setattr(two_time_dense, "TILE", 16)
    tiled = jk.xpcs.twotime(frames, qmap, **how)
    if dtype == "uint8":
        monkeypatch.setattr(two_time_dense, "_PIECE", 30)
    monkeypatch.setattr(two_time_dense, "_STAGED_BYTES", 5000)
    reader = Blocks(frames)
    in_parts = jk.xpcs.twotime(reader, qmap, **how)
    assert frames_read(reader) > 10 * 61
    check_fields(in_parts, tiled, names)
    if form == "full":
        np.testing.assert_array_equal(tiled.c2, whole.c2)
        np.testing.assert_array_equal(tiled.c2, tiled.c2.transpose(0, 2, 1))
    np.testing.assert_allclose(tiled.c2, whole.c2, 1e-12)
    np.testing.assert_allclose(tiled.g2_parts, whole.g2_parts, 1e-12)


def test_counts_of_long_runs_are_kept_in_small_pieces(monkeypatch):
    """A piece of pixels in all frames would else take more than memory has."""
    frames = counts((50, 20, 20), "uint8", 9)
    qmap = jk.xpcs.QMap(np.ones((20, 20), int))
    expected = jk.xpcs.twotime(frames, qmap)
    stage, sizes = two_time_dense.stage, []

    def seen(source, selection, divisor, pixels, tiles):
        sizes.extend(map(len, pixels))
        return stage(source, selection, divisor, pixels, tiles)

    monkeypatch.setattr(two_time_dense, "stage", seen)
    monkeypatch.setattr(two_time_dense, "_PIECE_BYTES", 100 * 50)
    np.testing.assert_array_equal(jk.xpcs.twotime(frames, qmap).c2, expected.c2)
    assert sizes == [100, 100, 100, 100]


@pytest.mark.parametrize("n", [1, 2, 9, 37])
def test_forms_are_means_of_the_full_matrix(n):
    dynamic, static = bins_of((4, 9), 2, 2)
    frames = counts((n, 4, 9), "uint8", 6)
    qmap = jk.xpcs.QMap(dynamic, static)
    bad = [k for k in (3, 20) if k < n]
    full = jk.xpcs.twotime(frames, qmap, bad_frames=bad)
    square = jk.xpcs.twotime(frames, qmap, form=("t1t2", min(5, n)), bad_frames=bad)
    form = ("age-lag", min(3, n), 4, 3)
    aged = jk.xpcs.twotime(frames, qmap, form=form, bad_frames=bad)
    assert aged.t2[0] == 0
    assert aged.t2[-1] == n
    for b in range(2):
        expected = oracle.t1t2(full.c2[b], square.t1)
        upper = np.triu_indices(min(5, n))
        np.testing.assert_allclose(square.c2[b][upper], expected[upper], 1e-12)
        np.testing.assert_array_equal(square.c2[b], square.c2[b].T)
        expected = oracle.age_lag(full.c2[b], aged.t1, aged.t2)
        np.testing.assert_allclose(aged.c2[b], expected, 1e-12)
        good = n - len(bad)
        assert aged.c2_pairs[b].sum() == good * (good + 1) // 2
        assert np.triu(square.c2_pairs[b]).sum() == good * (good + 1) // 2
        np.testing.assert_allclose(square.g2, full.g2, 1e-12)


def test_lags_are_linear_and_then_logarithmic():
    c = jk.xpcs.twotime(
        np.ones((200, 1, 2), np.uint8), jk.xpcs.QMap([[1, 1]]), form=("age-lag", 4, 10, 3)
    )
    assert c.t2.tolist() == [*range(11), 22, 47, 101, 200]
    assert c.t1.tolist() == [0, 50, 100, 150, 200]


@pytest.mark.parametrize("kind", ["array", "memmap", "hdf5"])
def test_the_result_goes_where_it_is_asked_to(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(two_time_dense, "TILE", 16)
    dynamic, _ = bins_of((3, 5), 2, 1)
    dynamic[dynamic == 1] = 0  # a bin without pixels
    frames, qmap = counts((35, 3, 5), "uint8", 5), jk.xpcs.QMap(dynamic, dynamic)
    expected = jk.xpcs.twotime(frames, qmap).c2
    assert np.isnan(expected[0]).all()
    shape = (2, 35, 35)
    if kind == "array":
        out = np.empty(shape, np.float32)
    elif kind == "memmap":
        out = np.memmap(tmp_path / "c2", np.float32, "w+", shape=shape)
    else:
        out = h5py.File(tmp_path / "c2.h5", "w").create_dataset("c2", shape, np.float32)
    c = jk.xpcs.twotime(frames, qmap, out=out)
    assert c.c2 is out
    np.testing.assert_array_equal(out[...], expected.astype(np.float32))
    if kind == "hdf5":
        out.file.close()
    single = jk.xpcs.twotime(frames, qmap, dtype=np.float32, bins=[2])
    np.testing.assert_array_equal(single.c2, expected.astype(np.float32)[1:])
    assert single.bins.tolist() == [2]


def test_wrong_arguments():
    frames, qmap = counts((6, 2, 3), "uint8", 5), jk.xpcs.QMap(np.ones((2, 3), int))
    for arguments, facts in [
        ({"form": "half"}, ["form", "'half'"]),
        ({"form": ("t1t2", 0)}, ["form", "0"]),
        ({"form": ("age-lag", 3)}, ["form", "('age-lag', 3)"]),
        ({"form": ("t1t2", 7)}, ["form", "6 cells", "('t1t2', 7)"]),
        ({"form": ["t1t2", 4], "average": 2}, ["form", "3 cells", "('t1t2', 4)"]),
        ({"form": ("age-lag", 7, 2, 2)}, ["form", "6 cells", "('age-lag', 7, 2, 2)"]),
        ({"smoothing": "dynamic"}, ["smoothing", "'dynamic'"]),
        ({"dtype": np.int32}, ["dtype", "int32"]),
        ({"out": np.empty((1, 5, 5))}, ["out", "(1, 6, 6)", "(1, 5, 5)"]),
        ({"bins": [2]}, ["bins", "1 to 1", "[2]"]),
        ({"begin": 6}, ["begin", "at least 1", "got 0 of the 6"]),
    ]:
        with raises(ValueError, *facts):
            jk.xpcs.twotime(frames, qmap, **arguments)
    with raises(ValueError, "qmap", "3 x 2", "2 x 3"):
        jk.xpcs.twotime(frames.transpose(0, 2, 1), qmap)
    # As many cells as frames are all of C.
    cells, every = (jk.xpcs.twotime(frames, qmap, form=form) for form in (("t1t2", 6), "full"))
    np.testing.assert_array_equal(cells.c2, every.c2)


def test_matrices_that_memory_has_no_room_for(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 287)
    frames, qmap = counts((6, 2, 3), "uint8", 5), jk.xpcs.QMap(np.ones((2, 3), int))
    with raises(MemoryError, "[1, 6, 6]", "2.88e-07 GB"):
        jk.xpcs.twotime(frames, qmap)
    assert jk.xpcs.twotime(frames, qmap, dtype=np.float32).c2.shape == (1, 6, 6)


def test_frames_are_normalized_before_they_are_summed():
    """The scale of a sum cancels, that of a frame in it does not."""
    frames = counts((12, 3, 4), "uint8", 9)
    qmap = jk.xpcs.QMap(np.ones((3, 4), int))
    how = {"average": 3, "begin": 2, "bad_frames": [4]}
    result = jk.xpcs.twotime(frames, qmap, normalize=True, **how)
    divided = frames / frames.mean(axis=(1, 2), keepdims=True)
    expected = oracle.twotime(divided, np.ones((3, 4), int), **how)
    np.testing.assert_allclose(result.c2, expected.c2, 1e-12)
    assert (jk.xpcs.twotime(frames, qmap, **how).c2 != result.c2).any()
    plain = [jk.xpcs.twotime(frames, qmap, normalize=x).c2 for x in (False, True)]
    np.testing.assert_array_equal(*plain)


def test_frames_beyond_an_intensity_cut_and_the_overview():
    frames = counts((12, 3, 4), "uint8", 9) + np.uint8(20)
    frames[5] *= 4
    frames[8] = 0
    qmap = jk.xpcs.QMap(np.ones((3, 4), int))
    c = jk.xpcs.twotime(frames, qmap, intensity_cut=(0.5, 2.0), overview=True)
    assert c.config["bad_frames"] == [5, 8]
    np.testing.assert_array_equal(c.c2, jk.xpcs.twotime(frames, qmap, bad_frames=[5, 8]).c2)
    good = np.delete(frames, [5, 8], axis=0)
    np.testing.assert_allclose(c.overview.mean_image, good.mean(axis=0), 1e-15)


def test_what_results_say_besides():
    frames = counts((10, 2, 6), "uint8", 5)
    bins = np.repeat([[1, 2, 3]], 2, 0).repeat(2, 1)
    qmap = jk.xpcs.QMap(bins, q=[0.01, 0.02, 0.01], phi=[0, 0, 90])
    c = jk.xpcs.twotime(frames, qmap, bins=[3, 2, 1], stride=2, frame_time=0.5)
    assert c.frame_time == 1.0
    assert c.q.tolist() == [0.01, 0.02, 0.01]
    assert c.n_pixels.tolist() == [4, 4, 4]
    np.testing.assert_array_equal(c.tau, np.arange(5.0))
    ring = c.fit_data(0.0102)
    assert (ring.q, ring.dt, ring.phi.tolist(), ring.t.tolist()) == (
        0.01,
        1.0,
        [90.0, 0.0],
        [0.0, 1.0, 2.0, 3.0, 4.0],
    )
    np.testing.assert_array_equal(ring.data, c.c2[[0, 2]])
    coarse = jk.xpcs.twotime(frames, qmap, form=("t1t2", 5), frame_time=0.5)
    assert coarse.fit_data(0.02).dt == 1.0
    for q in (None, 0.03):
        with raises(ValueError, "q:", "0.01, 0.02", f"got {q}"):
            c.fit_data(q)
    with raises(ValueError, "frame_time", "None"):
        jk.xpcs.twotime(frames, qmap).fit_data(0.01)
    with raises(ValueError, "form", "('age-lag', 2, 2, 2)"):
        jk.xpcs.twotime(frames, qmap, form=("age-lag", 2, 2, 2), frame_time=1).fit_data(0.01)


RUN = """
import sys, hashlib, numpy as np, jaxkern as jk
draw = np.random.default_rng(0)
for dtype in ("uint8", "uint16", "float64"):
    frames = draw.gamma(1.0, 30, (700, 1, 1500)).astype(dtype)
    c = jk.xpcs.twotime(frames, jk.xpcs.QMap(np.ones((1, 1500), int)), progress=False)
    print(hashlib.sha256(c.c2.tobytes() + c.g2.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_threads_change_no_bit():
    """XLA's own threads, whose number NPROC is."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", RUN],
            env={**os.environ, "NPROC": str(threads)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in (1, 3, 64)
    ]
    assert len(runs[0].split()) == 3
    assert runs[0] == runs[1] == runs[2]


def test_fits_of_one_time_correlations():
    """Rates of simulated frames; errors are those of a fit of the same frames by `multitau`."""
    frames = jk.xpcs.simulate_frames([0.02, 0.1], n_frames=600, pixels=300)
    result = jk.xpcs.twotime(frames, frames.qmap, frame_time=1e-3)
    fit, other = result.fit_g2(), jk.xpcs.multitau(frames, frames.qmap, parts=5, frame_time=1e-3)
    error = fit.errors["rate"]
    assert (np.abs(fit.params["rate"] - [20, 100]) < 4 * error).all()
    ratio = error / other.fit_g2().errors["rate"]
    assert ((ratio > 0.4) & (ratio < 2.5)).all(), ratio
    with pytest.raises(ValueError, match="frame_time: expected the time"):
        replace(result, frame_time=None).fit_g2()


def test_fits_of_one_time_correlations_without_some_frames():
    """NaN at the lags without pairs removed the errors of all lags."""
    frames = jk.xpcs.simulate_frames([0.05], n_frames=300, pixels=300)
    for bad in ([k for k in range(300) if k % 3], list(range(150))):
        result = jk.xpcs.twotime(frames, frames.qmap, frame_time=1e-3, bad_frames=bad)
        fit = result.fit_g2()
        assert fit.success.all(), fit.messages
        assert abs(fit.params["rate"][0] - 50) < 4 * fit.errors["rate"][0]
    with pytest.raises(ValueError, match="2 or more of the 5 parts of the run, got 0 of 4 frames"):
        jk.xpcs.twotime(frames.read(0, 4), frames.qmap, frame_time=1e-3).fit_g2()
