"""Correlations of events against those of the equivalent dense frames, and against the oracle.

Would catch an event that sorting loses or assigns to another pixel or frame, a wrong sum where the
kernel switches from a list of events to an array, counts of one pixel and frame that are not added,
results that are not bit-identical to those of dense frames or that depend on the threads, the
memory or the order of events, and reads out of bounds of the arrays of events.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import strategies as st
from support.errors import raises
from support.hypotheses import check_examples, few_or_many
from support.xpcs import correlator_oracle as oracle
from support.xpcs.correlator_frames import DYNAMIC, STATIC, check_fields, check_g2

import jaxkern as jk
from jaxkern.core import memory
from jaxkern.core.registry import module
from jaxkern.xpcs.correlators import native, two_time
from jaxkern.xpcs.correlators.selection import EventMemory
from jaxkern.xpcs.detectors.frames import EventFrames

# `test_empty_frames.py` and `test_hot_pixels.py` test the warnings.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* no counts in:jaxkern.xpcs.CorrelationWarning"),
    pytest.mark.filterwarnings("ignore:bins .* have no :jaxkern.xpcs.CorrelationWarning"),
]

QMAP = jk.xpcs.QMap(DYNAMIC, STATIC)
PIXELS = DYNAMIC.size


def drawn(n_frames, n_events, seed=0, most=3, pixels=PIXELS):
    """Draw unsorted events; some share a pixel and frame, and some have a count of 0."""
    draw = np.random.default_rng(seed)
    pixel, frame = draw.integers(0, pixels, n_events), draw.integers(0, n_frames, n_events)
    return pixel, frame, draw.integers(0, most, n_events, endpoint=True)


def frames_of(events, n_frames, shape=DYNAMIC.shape):
    pixel, frame, count = events
    frames = np.zeros((n_frames, shape[0] * shape[1]), np.uint32)
    np.add.at(frames, (frame, pixel), count.astype(np.uint32))
    return frames.reshape(n_frames, *shape)


def words_of(events, base=0):
    pixel, frame, count = (x.astype(np.uint64) for x in events)
    return count | pixel + np.uint64(base) << np.uint64(16) | frame << np.uint64(40)


class Words(jk.xpcs.FrameSource):
    """Source over Rigaku's 64-bit words in memory."""

    is_sparse = True
    dtype = np.dtype(np.uint16)

    def __init__(self, words, n_frames, base=0):
        super().__init__()
        self.words, self.pixel_base = words, base
        self.shape = (n_frames, *DYNAMIC.shape)


@pytest.mark.parametrize("n_events", [0, 1, 30, 1000, 20000])
@pytest.mark.parametrize("n_frames", [2, 17, 300])
def test_events_equal_dense_frames(backend, n_frames, n_events):
    events = drawn(n_frames, n_events)
    frames = frames_of(events, n_frames)
    result = jk.xpcs.multitau_events(*events, n_frames, QMAP, overview=True)
    check_g2(result, oracle.multitau(frames, DYNAMIC, STATIC))
    dense = jk.xpcs.multitau(frames, QMAP, overview=True)
    check_fields(result, dense)
    names = ("mean_image", "intensity", "static_means", "static_means_parts")
    check_fields(result.overview, dense.overview, names)


RUNS = {
    "n_frames": st.integers(2, 400),
    "occupancy": st.floats(-3, 0.5),
    "most": st.sampled_from([1, 3, 200, 5000, 10**6]),
    "dpl": st.integers(1, 9),
    "seed": st.integers(0, 2**31),
    "kind": st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", ">i4", "words"]),
    "options": st.fixed_dictionaries(
        {},
        optional={
            "begin": st.integers(0, 5),
            "stride": st.integers(1, 3),
            "average": st.integers(1, 4),
            "bad_frames": st.lists(st.integers(0, 1), max_size=2),
            "bins": st.just([3, 1]),
        },
    ),
}


def check_the_bits(n_frames, occupancy, most, dpl, seed, kind, options):
    n_events = min(int(n_frames * PIXELS * 10**occupancy), 20000)
    limit = 4095 if kind == "words" else min(np.iinfo(kind).max, 2**31)
    events = drawn(n_frames, n_events, seed, min(most, limit))
    begin, step = options.get("begin", 0), options.get("stride", 1) * options.get("average", 1)
    if (n_frames - begin) // step < 2:
        return
    dense = jk.xpcs.multitau(frames_of(events, n_frames), QMAP, dpl, **options)
    if kind == "words":
        base = seed % 2 << 20
        source = Words(words_of(events, base), n_frames, base)
        check_fields(jk.xpcs.multitau(source, QMAP, dpl, **options), dense)
        return
    narrow = np.dtype(kind).itemsize < 2  # too narrow for frames
    dtypes = ["i4", "u8" if narrow else kind, kind]
    columns = [x.astype(dtype) for x, dtype in zip(events, dtypes, strict=True)]
    if narrow or n_frames <= np.iinfo(kind).max:
        # The columns of a structured array are strided.
        record = np.rec.fromarrays(columns, names="pixel,frame,count")
        columns = [record["pixel"], record["frame"], record["count"]]
    else:
        columns[1] = events[1]
    check_fields(jk.xpcs.multitau_events(*columns, n_frames, QMAP, dpl, **options), dense)


@few_or_many(50, 300)
def test_results_are_bit_identical_to_dense_frames(examples):
    check_examples(examples, check_the_bits, **RUNS)


@pytest.mark.parametrize("options", [{}, {"parts": 3}, {"normalize": True}, {"average": 2}])
def test_cuts_parts_and_normalization(backend, options):
    events = drawn(200, 5000)
    options = {**options, "intensity_cut": (0.9, 1.1)}
    result = jk.xpcs.multitau_events(*events, 200, QMAP, **options)
    dense = jk.xpcs.multitau(frames_of(events, 200), QMAP, **options)
    check_fields(result, dense)
    assert result.config == dense.config
    for part, other in zip(result.parts, dense.parts, strict=True):
        check_fields(part, other)


def called(events, threads=1, memory=1e9, pixels=4096, n_frames=500):
    """Call the native function over many tiles of pixels."""
    pixel = np.arange(pixels, dtype=np.int32)[np.arange(pixels) % 5 != 3]
    static = pixel // 100
    columns = None, 0, False, *events, n_frames, n_frames, 0, None, None, pixels
    bins = pixel, static, static // 3, int(static.max()) + 1, int(static.max()) // 3 + 1
    return native.native_module().multitau_events(*columns, *bins, 4, memory, threads)


def test_results_do_not_depend_on_threads_memory_or_order():
    events = drawn(500, 60000, pixels=4096)
    expected = called(events)
    order = np.argsort(events[1], kind="stable")
    for result in (
        called(events, threads=64),
        called(events, threads=2, memory=20000.0),  # in several passes
        called(tuple(x[order] for x in events)),
        called(tuple(x[::-1] for x in events)),
    ):
        for x, y in zip(result, expected, strict=True):
            np.testing.assert_array_equal(x, y)
    used = np.arange(4096) % 5 != 3
    counts = np.bincount(events[0], events[2], 4096)
    _, (products, early, late), _, _ = expected
    # The sums of the first delay exclude one frame, the last or the first.
    first, last = (np.bincount(*(x[events[1] == at] for x in events[::2]), 4096) for at in (0, 499))
    assert early[0].sum() == (counts - last)[used].sum()
    assert late[0].sum() == (counts - first)[used].sum()
    assert (products >= 0).all()


HOSTILE = [
    ("pixel", -1), ("pixel", PIXELS), ("pixel", 2**62), ("frame", -(2**63)), ("frame", 50),
    ("frame", 2**31), ("frame", 2**32 + 1), ("count", -1), ("count", 2**32 - 1),
    ("count", 2**63 - 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), HOSTILE)
@pytest.mark.parametrize("correlate", [jk.xpcs.multitau_events, jk.xpcs.twotime_events])
def test_events_out_of_range(correlate, name, value):
    pixel, frame, count = (x.astype(np.int64) for x in drawn(50, 100))
    columns = {"pixel": pixel, "frame": frame, "count": count}
    columns[name][[7, 60]] = value
    with raises(ValueError, "event 7", f"{name} {value}", f"0 to {PIXELS - 1}", "0 to 49"):
        correlate(**columns, n_frames=50, qmap=QMAP)


def test_words_out_of_range():
    words = words_of(drawn(50, 100), base=5)
    words[3] &= ~(np.uint64(0x1FFFFF) << np.uint64(16))  # below the base
    with raises(ValueError, "event 3", "pixel -5"):
        jk.xpcs.multitau(Words(words, 50, 5), QMAP)


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        (([0.0], [1], [1]), ["pixel", "float64"]),
        (([0], [1], [True]), ["count", "bool"]),
        (([[0]], [[1]], [[1]]), ["pixel", "(1, 1)"]),
        (([0, 1], [1], [1]), ["'pixel': 2", "'frame': 1"]),
    ],
)
def test_columns_of_a_wrong_dtype_or_shape(columns, facts):
    with raises(ValueError, *facts):
        jk.xpcs.multitau_events(*columns, 10, QMAP)


@pytest.mark.parametrize("nothing", [[], np.array([]), np.zeros(0, bool), np.zeros(0, "M8[s]")])
def test_empty_columns_of_any_dtype(nothing):
    """`np.array([])` is float64."""
    result = jk.xpcs.multitau_events(nothing, nothing, nothing, 10, QMAP)
    check_fields(result, jk.xpcs.multitau(np.zeros((10, *DYNAMIC.shape), np.uint8), QMAP))
    assert EventFrames(nothing, nothing, nothing, (4, 5)).shape == (0, 4, 5)


@pytest.mark.parametrize("n_frames", [-1, 2**31, 1.5, None])
def test_n_frames_out_of_range(n_frames):
    for correlate in (jk.xpcs.multitau_events, jk.xpcs.twotime_events):
        with raises(ValueError, "n_frames", str(n_frames), "0 to 2147483647"):
            correlate([0], [0], [1], n_frames, QMAP)


def test_help_shows_the_options_of_frames():
    for frames, events in (
        (jk.xpcs.multitau, jk.xpcs.multitau_events),
        (jk.xpcs.twotime, jk.xpcs.twotime_events),
    ):
        options = list(inspect.signature(frames).parameters.values())[2:]
        assert list(inspect.signature(events).parameters.values())[5:] == options


def test_memory_of_frames_made_from_events(monkeypatch):
    """Frames of one sum are in memory at the same time, and events are sorted by frame."""
    events = [np.zeros(10**7, np.int64)] * 3
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**8)
    with raises(MemoryError, "10,000,000 events", "0.44 GB", "normalize="):
        jk.xpcs.multitau_events(*events, 1000, QMAP, normalize=True)
    wide = jk.xpcs.QMap(np.ones((512, 512), int))
    with raises(MemoryError, "sums of 400", "0.839 GB", "average="):
        jk.xpcs.multitau_events([0], [0], [1], 800, wide, normalize=True, average=400)
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**10)
    result = jk.xpcs.multitau_events([0], [0], [1], 24, wide, normalize=True, average=8)
    assert result.n_frames == 3


@pytest.mark.parametrize("n_frames", [0, 1])
def test_fewer_than_two_frames(n_frames):
    with raises(ValueError, "at least 2", f"got {n_frames}"):
        jk.xpcs.multitau_events(*np.zeros((3, 0), int), n_frames, QMAP)


def test_memory_of_2_billion_frames_depends_on_the_events_only():
    """The expected g2 is computed from the nonzero counts of one pixel, by the definition."""
    n, frame = 2**31 - 1, np.array([0, 3, 9, 10, 11, 2**30, 2**31 - 50, 2**31 - 12, 2**31 - 2])
    count = np.arange(1, 10)
    light = jk.xpcs.multitau_events(frame * 0, frame, count, n, jk.xpcs.QMap([[1]]))
    level = np.repeat(np.arange(30), [8] + [4] * 29)[: len(light.delay)]
    expected = []
    for power, t in zip(level, light.delay >> level, strict=True):
        places, size = frame >> power, n >> power
        inside = places < size
        lag = places[None, :] - places[:, None]
        pairs = (count[:, None] * count * inside * inside[:, None])[lag == t].sum()
        ends = [count[inside & at].sum() for at in (places < size - t, places >= t)]
        expected.append(pairs * float(size - t) / (ends[0] * ends[1]) if pairs else 0.0)
    np.testing.assert_allclose(light.g2[:, 0], expected, 1e-14)
    np.testing.assert_array_equal(light.n_pairs, (n >> level) - (light.delay >> level))


@pytest.mark.parametrize("options", [{"bad_frames": [5]}, {"stride": 2}, {"average": 3},
                                   {"normalize": True}, {"intensity_cut": (0.5, 2)},
                                   {"overview": True}])  # fmt: skip
def test_options_that_need_an_array_of_all_frames(options, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    with raises(MemoryError, "2,147,483,647 frames", "68.7 GB"):
        jk.xpcs.multitau_events([0], [0], [1], 2**31 - 1, QMAP, **options)
    with raises(MemoryError, "2,147,483,647 frames"):
        jk.xpcs.twotime_events([0], [0], [1], 2**31 - 1, QMAP, form=("t1t2", 4))


def test_counts_at_the_limit_of_64_bits():
    """The largest total count of a pixel is exact, and one more count is an error."""
    most = 2**32 - 2
    half = [most // 2, most - most // 2]
    for correlate in (jk.xpcs.multitau_events, jk.xpcs.twotime_events):
        correlate([0, 0], [3, 4], half, 9, QMAP)
        with raises(ValueError, "pixel 0", f"{most + 1} counts"):
            correlate([0, 0, 0], [3, 4, 8], [*half, 1], 9, QMAP)
    pixels = np.array([0, 1, 5], np.int32), np.zeros(3, np.int32), np.zeros(3, np.int32), 1, 1
    columns = np.array([0, 0, 1, 1]), np.array([3, 4, 3, 4]), np.array(half * 2)
    arguments = None, 0, False, *columns, 9, 9, 0, None, None, PIXELS, *pixels, 4, 1e9
    with raises(ValueError, "2147483647", "33554432 frames"):
        native.native_module().multitau_events(
            None, 0, False, *columns, 2**25, 2**25, 0, None, None, PIXELS, *pixels, 4, 1e9
        )
    _, sums, _, _ = native.native_module().multitau_events(*arguments)
    assert sums[0, 0, 0] == float(2 * half[0] * half[1])
    assert sums[1, 0, 0] == float(2 * most)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"smoothing": "none"},
        {"average": 3, "bad_frames": [5, 6, 7, 8, 9]},
        {"begin": 2, "end": 37, "stride": 2},
    ],
)
@pytest.mark.parametrize("n_events", [0, 60, 4000])
def test_twotime_events(n_events, options):
    events = drawn(40, n_events)
    expected = oracle.twotime(frames_of(events, 40), DYNAMIC, STATIC, **options)
    for n_blocks in (1, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(two_time, "_MAX_ROWS", -(-40 // n_blocks))
            result = jk.xpcs.twotime_events(*events, 40, QMAP, **options)
        check_fields(result, expected, ("c2", "g2", "g2_parts"), 1e-13)
        check_fields(result, expected, ("n_pairs", "n_pairs_parts"))


@pytest.mark.parametrize("form", [("t1t2", 7), ("age-lag", 3, 5, 4)])
def test_twotime_in_coarser_cells(backend, form):
    events = drawn(60, 3000)
    options = {"form": form, "intensity_cut": (0.5, 1.4), "overview": True, "dtype": np.float32}
    result = jk.xpcs.twotime_events(*events, 60, QMAP, **options)
    dense = jk.xpcs.twotime(frames_of(events, 60), QMAP, **options)
    check_fields(result, dense, ("c2", "g2", "g2_parts"), 1e-6)
    check_fields(
        result, dense, ("c2_pairs", "t1", "t2", "n_pairs", "n_pairs_parts", "n_empty", "bins")
    )
    check_fields(result.overview, dense.overview, ("mean_image", "intensity"))
    assert result.config == dense.config


def test_twotime_of_large_counts_and_few_bins_at_a_time(monkeypatch):
    events = drawn(30, 2000, most=100000)
    frames = frames_of(events, 30)
    monkeypatch.setattr(two_time, "available_bytes", lambda: 20000)
    result = jk.xpcs.twotime_events(*events, 30, QMAP, bins=[5, 1, 2])
    expected = oracle.twotime(frames, DYNAMIC, STATIC)
    np.testing.assert_allclose(result.c2, expected.c2[[4, 0, 1]], 1e-13)


def test_sources_of_events():
    events = drawn(50, 400)
    dense = jk.xpcs.multitau(frames_of(events, 50), QMAP)
    check_fields(jk.xpcs.multitau(EventFrames(*events, DYNAMIC.shape, 50), QMAP), dense)

    class Read(EventFrames):  # reads its events instead of holding them in memory
        def __init__(self, *args):
            super().__init__(*args)
            self.columns = None

    check_fields(jk.xpcs.multitau(Read(*events, DYNAMIC.shape, 50), QMAP), dense)


def test_events_of_mapped_files(tmp_path):
    events = drawn(50, 400)
    for name, column in zip("pfc", events, strict=True):
        np.save(tmp_path / f"{name}.npy", column)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "pfc"]
    check_fields(
        jk.xpcs.multitau_events(*mapped, 50, QMAP), jk.xpcs.multitau(frames_of(events, 50), QMAP)
    )
    with open(tmp_path / "c.npy", "r+b") as file:
        file.truncate(200)
    with raises(OSError, "c.npy", "200 bytes"):
        jk.xpcs.multitau_events(*mapped, 50, QMAP)


def test_words_of_a_mapped_file(tmp_path):
    """Pages of a mapped file are released after reading, except pages that were written to."""
    events = drawn(3000, 300000)
    expected = jk.xpcs.multitau(Words(words_of(events), 3000), QMAP)
    words_of(events).tofile(tmp_path / "run.bin")
    for mode in ("r", "c", "r+"):
        words = np.memmap(tmp_path / "run.bin", "<u8", mode)
        if mode != "r":
            words[5] = words[5]  # copies the page
        check_fields(jk.xpcs.multitau(Words(np.asarray(words), 3000), QMAP), expected)
        np.testing.assert_array_equal(words, words_of(events))
        source = Words(np.asarray(words), 3000)
        assert EventMemory.from_source(source).arguments[2] == (mode == "r")


def test_native_calls_check_their_arguments():
    native = module("cpu")
    pixels = np.array([0, 1], np.int32), np.zeros(2, np.int32), np.zeros(2, np.int32), 1, 1
    column = np.zeros(3, np.int64)

    def call(n_frames=5, n_sums=5, first=0, sums=None, good=None, size=4, pixels=pixels, dpl=4):
        frames = n_frames, n_sums, first, sums, good, size
        return native.multitau_events(None, 0, False, *[column] * 3, *frames, *pixels, dpl, 1e6)

    call()
    for wrong, fact in (
        ({"sums": np.zeros(4, np.int32)}, "sum"),
        ({"sums": np.full(5, 5, np.int32)}, "sum"),
        ({"good": np.zeros(4, np.uint32)}, "good"),
        ({"n_frames": -1}, "frames"),
        ({"n_frames": 2**31}, "frames"),
        ({"n_sums": -1}, "frames"),
        ({"size": 1}, "pixel"),
        ({"size": -1}, "pixel"),
        ({"dpl": 0}, "dpl"),
        ({"dpl": 65}, "dpl"),
        ({"pixels": (np.array([1, 0], np.int32), *pixels[1:])}, "pixel"),
        ({"pixels": (*pixels[:3], 0, 1)}, "bin"),
    ):
        with raises(ValueError, fact):
            call(**wrong)
    events = None, 0, False, column, column, column, 5, 5, 0, None, None, 4
    for pixel, ends, fact in (
        ([0, 1], [1], "group_ends"),
        ([0, 0], [2], "pixel"),
        ([0, 4], [2], "pixel"),
        ([0, 1], [2, 1], "group_ends"),
    ):
        with raises(ValueError, fact):
            native.EventPairs(*events, np.array(pixel, np.int32), np.array(ends, np.int64))
    pairs = native.EventPairs(*events, np.array([0, 1], np.int32), np.array([1, 2], np.int64))
    ones = np.ones((2, 5))
    for first, factors, divisors, row, out in (
        (1, ones, ones[0], 0, np.zeros((5, 5))),
        (-1, ones, ones[0], 0, np.zeros((5, 5))),
        (0, ones[:, :4].copy(), ones[0], 0, np.zeros((5, 5))),
        (0, ones, ones[0, :4].copy(), 0, np.zeros((5, 5))),
        (0, ones, ones[0], 1, np.zeros((5, 4))),
        (0, ones, ones[0], 6, np.zeros((0, 0))),
    ):
        with raises(ValueError, "factors, divisors, out"):
            pairs.rows(first, factors, divisors, 2.0, row, out)
