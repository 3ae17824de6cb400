"""Multi-tau g2 of whole runs against the O(N^2) oracle: whole counts give its very bits.

Would catch a sum that is off by a frame at any level or delay, bad frames that still count in pairs
or lengths, pixels of a wrong bin, bins without pixels or light that are confused, sums that
round or wrap, and results that depend on blocks, threads, passes over a file, or the backend.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from support.xpcs import correlator_oracle as oracle
from support.xpcs.correlator_frames import DYNAMIC, STATIC, Blocks, check_g2, photons

import jaxkern as jk
from jaxkern.execution import execution_options
from jaxkern.xpcs.correlators import multitau, multitau_sums, selection

# Bin 4 of the common map has no pixels.
pytestmark = pytest.mark.filterwarnings("ignore:bins .* have no :jaxkern.xpcs.CorrelationWarning")

DTYPES = ["u1", "u2", "u4", "i4", "i2", "u8", ">u2", "f4", "f8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["array", "blocks"])
def test_every_dtype(backend, dtype, kind):
    frames = photons(61, dtype)
    expected = oracle.multitau(frames, DYNAMIC, STATIC)
    source = frames if kind == "array" else Blocks(frames)
    result = jk.xpcs.multitau(source, jk.xpcs.QMap(DYNAMIC, STATIC))
    check_g2(result, expected)  # floating-point counts too, whose sums are whole here


@pytest.mark.parametrize(
    ("n", "dpl"),
    [
        *itertools.product([2, 3, 8, 9, 15, 16, 17, 31, 64, 130], [4]),
        *itertools.product([2, 17, 130], [1, 7, 64]),
    ],
)
def test_every_length_has_all_its_delays(backend, n, dpl):
    frames = photons(n, "u1")
    result = jk.xpcs.multitau(frames, jk.xpcs.QMap(DYNAMIC), dpl)
    np.testing.assert_array_equal(result.delay, jk.xpcs.multitau_delays(n, dpl))
    check_g2(result, oracle.multitau(frames, DYNAMIC, dpl=dpl))


def test_masks_dark_pixels_and_empty_bins(backend):
    frames = photons(40)
    mask = np.ones(DYNAMIC.shape, bool)
    mask[0, 0] = mask[2, 1] = False
    mask[DYNAMIC == 5] = False  # and no pixel has bin 4
    frames[:, 0, 1] = 0  # dead, in a static bin with light
    frames[:, STATIC == 8] = 0  # a static bin without light counts as 0 in the mean
    result = jk.xpcs.multitau(frames, jk.xpcs.QMap(DYNAMIC, STATIC, mask))
    check_g2(result, oracle.multitau(frames, DYNAMIC, STATIC, mask))
    assert np.isnan(result.g2[:, [3, 4]]).all()
    assert np.isfinite(result.g2[:, :3]).all()
    assert result.n_pixels.tolist() == [5, 4, 3, 0, 0]


def test_dark_and_single_pixels(backend):
    frames = photons(20, shape=(1, 2))
    frames[:, 0, 0] = 0
    result = jk.xpcs.multitau(frames, jk.xpcs.QMap([[1, 2]]))
    assert (result.g2[:, 0] == 0).all()
    assert (result.g2[:, 1] > 0).all()
    assert np.isnan(result.g2_err).all()  # no spread of one pixel


@pytest.mark.parametrize("bad", [[], [0], [39], [3, 4, 5, 6, 7, 20], range(0, 40, 2), range(39)])
@pytest.mark.parametrize("average", [1, 3])
def test_bad_frames_are_in_no_pair_and_no_length(backend, bad, average):
    frames = photons(40)
    spoilt = frames.copy()
    spoilt[list(bad)] = 60000
    expected = oracle.multitau(frames, DYNAMIC, STATIC, bad_frames=bad, average=average)
    result = jk.xpcs.multitau(
        spoilt, jk.xpcs.QMap(DYNAMIC, STATIC), bad_frames=list(bad), average=average
    )
    check_g2(result, expected)
    left_out = [k for k in bad if k < 40 // average * average]
    assert result.config["bad_frames"] == left_out
    assert np.isnan(result.g2[result.n_pairs == 0]).all()


SELECTIONS = [
    {"begin": 3},
    {"begin": 2, "end": 57, "stride": 2},
    {"begin": 1, "stride": 9},
    {"end": 50, "average": 4},
    {"begin": 5, "end": 80, "stride": 3, "average": 2, "bad_frames": [5, 11, 41]},
]


@pytest.mark.parametrize("options", SELECTIONS)
@pytest.mark.parametrize("normalize", [False, True])
def test_begin_end_stride_average(backend, options, normalize):
    frames = photons(90)
    frames[12] = 0  # no light to normalize by
    expected = oracle.multitau(frames, DYNAMIC, STATIC, normalize=normalize, **options)
    for source in (frames, Blocks(frames)):
        qmap = jk.xpcs.QMap(DYNAMIC, STATIC)
        result = jk.xpcs.multitau(source, qmap, normalize=normalize, frame_time=0.1, **options)
        check_g2(result, expected, exactly=not normalize)
        step = 0.1 * options.get("stride", 1) * options.get("average", 1)
        np.testing.assert_allclose(result.tau, result.delay * step)
        assert {k: result.config[k] for k in options} == options


def test_frames_are_normalized_by_the_mean_of_the_mask(backend):
    """A beam that flickers does not show, and pixels outside the mask have no say."""
    frames = photons(50).astype(np.float64)
    mask = DYNAMIC != 2
    flicker = np.linspace(1, 2, 50)[:, None, None]
    steady = jk.xpcs.multitau(frames, jk.xpcs.QMap(DYNAMIC, mask=mask), normalize=True)
    frames[:, ~mask] = 1e6
    result = jk.xpcs.multitau(frames * flicker, jk.xpcs.QMap(DYNAMIC, mask=mask), normalize=True)
    np.testing.assert_allclose(result.g2, steady.g2, rtol=1e-12)


def test_floats_within_rounding(backend):
    frames = np.random.default_rng(1).normal(10, 3, (77, *DYNAMIC.shape)).astype(np.float32)
    check_g2(
        jk.xpcs.multitau(frames, jk.xpcs.QMap(DYNAMIC, STATIC)),
        oracle.multitau(frames, DYNAMIC, STATIC),
        exactly=False,
    )


def test_large_counts_are_exact(backend):
    """Sums of products beyond 2^53, and over the pixels of a bin beyond 2^64."""
    frames = photons(64, "u4") + np.uint32(2**25)
    check_g2(
        jk.xpcs.multitau(frames, jk.xpcs.QMap(DYNAMIC, STATIC)),
        oracle.multitau(frames, DYNAMIC, STATIC),
    )
    wide = np.full((12, 1, 400), 2**28, np.uint32)
    wide[::2, :, ::3] += 1
    result = jk.xpcs.multitau(wide, jk.xpcs.QMap(np.ones((1, 400), int)))
    check_g2(result, oracle.multitau(wide, np.ones((1, 400), int)))


@pytest.mark.parametrize("size", [1, 2, 7, 128, 1000])
def test_blocks_of_any_size(backend, monkeypatch, size):
    frames = photons(150, "u1")
    monkeypatch.setattr(selection, "BLOCK_BYTES", size * DYNAMIC.size)
    options = {"average": 2, "bad_frames": [7, 8, 30]}
    source = Blocks(frames)
    qmap = jk.xpcs.QMap(DYNAMIC, STATIC)
    result = jk.xpcs.multitau(source, qmap, parts=2, **options)
    check_g2(result, oracle.multitau(frames, DYNAMIC, STATIC, **options))
    check_g2(
        result.parts[1], oracle.multitau(frames, DYNAMIC, STATIC, begin=74, end=148, **options)
    )
    longest = max(stop - first for first, stop, _ in source.reads)
    assert longest == min(max(size // 2, 1) * 2, 150)
    assert {thread.rsplit("_")[0] for *_, thread in source.reads} == {"jaxkern-frames"}


@pytest.mark.parametrize("threads", ["1", "2", "64"])
def test_threads_change_no_bit(monkeypatch, threads):
    frames = photons(200, "u2", shape=(24, 40))
    dynamic = np.arange(24 * 40).reshape(24, 40) // 250 + 1
    static = np.arange(24 * 40).reshape(24, 40) // 50 + 1
    qmap = jk.xpcs.QMap(dynamic, static)
    one = jk.xpcs.multitau(frames, qmap)
    monkeypatch.setenv("JAXKERN_NUM_THREADS", threads)
    for source in (frames, Blocks(frames)):
        with execution_options(max_workers=int(threads)):
            result = jk.xpcs.multitau(source, qmap)
        np.testing.assert_array_equal(result.g2, one.g2)
        np.testing.assert_array_equal(result.g2_err, one.g2_err)


@pytest.mark.parametrize("used", [0.9, 0.2])  # of the pixels; few are gathered
@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_g2_does_not_depend_on_memory_or_source(backend, monkeypatch, dtype, used):
    """Pixels of a file are read in groups if memory is short, those of an array all at once."""
    monkeypatch.setattr(multitau_sums, "_TILE", 300)
    frames = photons(30, dtype, shape=(45, 64))
    rng = np.random.default_rng(1)
    static = np.where(rng.random((45, 64)) < used, rng.integers(1, 13, (45, 64)), 0)
    qmap = jk.xpcs.QMap((static + 3) // 4, static)
    expected = jk.xpcs.multitau(frames, qmap)
    for memory in (100_000, 400_000, 10**9):
        monkeypatch.setattr(multitau, "available_bytes", lambda memory=memory: memory)
        source = Blocks(frames)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = jk.xpcs.multitau(source, qmap, overview=True)
        passes = len(source.reads)
        assert passes > 1 if memory == 100_000 else passes == 1 or memory < 10**9
        assert [str(w.message) for w in caught] == [*result.warnings]
        assert len(caught) == (passes > 1)
        assert passes == 1 or f"all frames are read {passes} times" in result.warnings[0]
        np.testing.assert_array_equal(result.g2, expected.g2)
        np.testing.assert_array_equal(result.g2_err, expected.g2_err)
        image = frames.mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(result.overview.mean_image, image, rtol=1e-14)


def test_sums_are_conserved():
    """Raw counts of the frames, the pixels and the bins are those of the overview and of g2."""
    frames = photons(64, "u2")
    qmap = jk.xpcs.QMap(DYNAMIC, STATIC)
    r = jk.xpcs.multitau(frames, qmap, overview=True, bad_frames=[9], average=2, dpl=2)
    good = np.delete(frames, 9, 0).astype(np.int64)
    np.testing.assert_array_equal(r.overview.mean_image, good.sum(axis=0) / 63)
    light = good[:, qmap.used].sum()
    counts = np.full(32, 2.0)
    counts[4] = 1
    np.testing.assert_array_equal(
        np.rint(r.overview.intensity * counts * qmap.n_pixels).sum(), light
    )
    pixels = qmap.pixels_of_static
    of_static = np.rint(r.overview.static_means * 63 * pixels)
    expected = [good[:, qmap.used & (s == STATIC)].sum() for s in range(1, 9)]
    np.testing.assert_array_equal(of_static[pixels > 0], np.array(expected)[pixels > 0])
    edges = [2 * (k * 32 // 10) for k in range(11)]
    for k, means in enumerate(r.overview.static_means_parts):
        part = [f for f in range(edges[k], edges[k + 1]) if f != 9]
        for s in range(1, 9):
            inside = frames[part][:, qmap.used & (s == STATIC)]
            if inside.size:
                assert means[s - 1] == pytest.approx(inside.mean(), rel=1e-15)
    # All pairs of a delay weigh the same: G of ones is the number of pairs.
    ones = jk.xpcs.multitau(np.ones_like(frames), qmap)
    np.testing.assert_array_equal(ones.g2[:, [0, 1, 2, 4]], 1)
    np.testing.assert_array_equal(ones.g2_err[:, [0, 1, 2, 4]], 0)
