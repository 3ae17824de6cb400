"""Ways through the data: would catch a strategy, source or dtype that gives another answer."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.xpcs.files.sources import RowBuffers, aligned_empty
from jaxkern.xpcs.fitting import strategy as strategies
from jaxkern.xpcs.fitting.starting import (
    estimate_contrast_offset,
    estimate_sigma,
    mirrored_angles,
    read_sample,
)

N = 96
SMALL_CHUNKS = jk.xpcs.StreamingOptions(chunk_points=32 * N)


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=21)


@pytest.fixture(scope="module")
def whole(case):
    return jk.xpcs.fit(
        model_of(case), case.data, p0=problems.START, strategy="STANDARD", progress=False
    )


def assert_same(found, expected):
    """Equal to rounding: a kernel may sum the points of a row in another order in another call."""
    np.testing.assert_array_less(np.abs(found.popt - expected.popt), 1e-7 * expected.perr)
    np.testing.assert_allclose(found.perr, expected.perr, rtol=1e-8)
    assert found.chi2 == pytest.approx(expected.chi2, rel=1e-12)
    assert (found.count, found.nfev) == (expected.count, expected.nfev)


@pytest.mark.parametrize("strategy", ["LARGE", "CHUNKED", "STREAMING", "streaming"])
@pytest.mark.parametrize("streaming", [None, SMALL_CHUNKS])
def test_every_strategy_gives_the_same(case, whole, strategy, streaming):
    found = jk.xpcs.fit(
        model_of(case),
        case.data,
        p0=problems.START,
        strategy=strategy,
        streaming=streaming,
        progress=False,
    )
    assert found.strategy == strategy.upper()
    assert_same(found, whole)
    chunks = {"LARGE": 1}.get(found.strategy, 3 if streaming is None else 9)
    assert found.n_batches == chunks * (found.nfev + found.error_passes)


def test_chunks_that_do_not_fit_the_blocks(whole, case):
    """A last chunk of fewer rows, and matrices whose size is no multiple of a block."""
    odd = problems.simulate(75, seed=22)
    answers = [
        jk.xpcs.fit(
            model_of(odd), odd.data, p0=problems.START, strategy=name, streaming=s, progress=False
        )
        for name, s in (
            ("STANDARD", None),
            ("STREAMING", jk.xpcs.StreamingOptions(chunk_points=64 * 75)),
        )
    ]
    assert_same(*answers)


def at_offset(array, offset):
    """A copy that begins `offset` bytes after an aligned address."""
    room = aligned_empty((array.nbytes + 64,), np.uint8)
    copy = room[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def test_where_data_lie_makes_no_difference(case, monkeypatch):
    """Aligned data go without the reading thread, others through copies of what is read of them."""

    def run(offset):
        return jk.xpcs.fit(
            model_of(case),
            at_offset(case.data, offset),
            p0=problems.START,
            strategy="CHUNKED",
            streaming=SMALL_CHUNKS,
            progress=False,
        )

    copied = run(8)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda *_: pytest.fail("a thread was used"))
    found = run(0)
    assert found.popt.tobytes() == copied.popt.tobytes()
    assert found.pcov.tobytes() == copied.pcov.tobytes()
    with pytest.raises(pytest.fail.Exception, match="a thread was used"):
        run(8)


def test_copies_hold_the_upper_triangle_where_that_is_enough():
    rows = at_offset(np.arange(1.0, 64 * 96 + 1).reshape(64, 96), 8)
    copy = RowBuffers().ready(rows, upper_from=32, row_block=32)
    np.testing.assert_array_equal(np.triu(copy, 32), np.triu(rows, 32))
    assert (copy[:32, :32] == 0).all()
    assert (copy[32:, :64] == 0).all()


def test_sources(case, whole, tmp_path):
    np.save(tmp_path / "c2.npy", case.data)
    with h5py.File(tmp_path / "c2.h5", "w") as file:
        file["stack"] = case.data
        for k, matrix in enumerate(case.data):
            file[f"maps/c2_{k:05d}"] = matrix
    with h5py.File(tmp_path / "c2.h5") as file:
        sources = {
            "path": tmp_path / "c2.npy",
            "map": np.load(tmp_path / "c2.npy", mmap_mode="r"),
            "stack": file["stack"],
            "group": file["maps"],
            "list": list(case.data),
        }
        for source in sources.values():
            for strategy in ("STREAMING", "CHUNKED", "STANDARD"):
                found = jk.xpcs.fit(
                    model_of(case),
                    source,
                    p0=problems.START,
                    strategy=strategy,
                    streaming=SMALL_CHUNKS,
                    progress=False,
                )
                assert_same(found, whole)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16", ">f8", "int32"])
def test_dtypes_of_data(case, dtype):
    step, zero = (case.data.max() - case.data.min()) / 65535, case.data.min()
    options = {}
    if dtype == "uint16":
        data = np.round((case.data - zero) / step).astype(dtype)
        values = zero + step * data
        options["quantization"] = (step, zero)
    elif dtype == "int32":
        data = np.round(case.data * 1e4).astype(dtype)
        values = data.astype(float)
        options["bounds"] = {"contrast": (0, 1e4), "offset": (0, 2e4)}
    else:
        data = case.data.astype(dtype)
        values = data.astype(float)
    expected = {k: v for k, v in options.items() if k != "quantization"}
    for strategy in ("STANDARD", "STREAMING"):
        found = jk.xpcs.fit(
            model_of(case),
            data,
            0.004,
            problems.START,
            strategy=strategy,
            progress=False,
            streaming=SMALL_CHUNKS,
            **options,
        )
        exact = jk.xpcs.fit(
            model_of(case), values, 0.004, problems.START, progress=False, **expected
        )
        np.testing.assert_array_less(np.abs(found.popt - exact.popt), 1e-3 * exact.perr)


def test_own_source_is_read_ahead_by_another_thread(case, whole):
    class Recorded:
        shape, dtype, symmetric = case.data.shape, case.data.dtype, True

        def __init__(self):
            self.threads = set()

        def read(self, angle, first_row, stop_row):
            self.threads.add(threading.current_thread())
            return case.data[angle, first_row:stop_row]

    source = Recorded()
    found = jk.xpcs.fit(
        model_of(case),
        source,
        p0=problems.START,
        strategy="STREAMING",
        progress=False,
        streaming=SMALL_CHUNKS,
    )
    assert_same(found, whole)
    assert any(thread is not threading.main_thread() for thread in source.threads)


def test_buffers_copy_only_what_they_must():
    buffers = RowBuffers()
    rows = aligned_empty((4, 8), np.float32)
    rows[:] = 1
    assert buffers.ready(rows) is rows
    shifted = aligned_empty((33,), np.float64)[1:].reshape(4, 8)
    shifted[:] = 2
    copy = buffers.ready(shifted)
    assert copy.ctypes.data % 64 == 0
    np.testing.assert_array_equal(copy, shifted)
    assert buffers.ready(np.ones((4, 8), ">f4")).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint16"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_mirrored_data_are_told_apart(dtype, in_memory):
    draw = np.random.default_rng(1)
    data = draw.integers(0, 4, (4, 150, 150)).astype(dtype)
    data = np.triu(data) + np.swapaxes(np.triu(data, 1), 1, 2)
    data[1, 7, 149] += 1
    data[2, 100, 3], data[2, 3, 100] = 1, 2
    data[2, 3, 101], data[2, 101, 3] = 2, 1
    source = jk.xpcs.as_source(data)
    if not in_memory:
        source = jk.xpcs.as_source([np.asarray(matrix) for matrix in data])
    np.testing.assert_array_equal(mirrored_angles(source), [True, False, False, True])


def test_one_angle_that_is_not_mirrored_is_counted_right(case):
    data = case.data.copy()
    data[1, 3, 50] += 1e-9
    found = jk.xpcs.fit(model_of(case), data, p0=problems.START, progress=False)
    assert found.count == 3 * N * (N - 1)
    assert found.independent_count == 2 * N * (N - 1)


def test_estimates_from_the_data(case):
    frames = np.ones(N, bool)
    sample = read_sample(jk.xpcs.as_source(case.data), frames)
    np.testing.assert_allclose(estimate_sigma(sample), case.noise, rtol=0.1)
    contrast, offset = estimate_contrast_offset(sample)
    np.testing.assert_allclose(offset, case.offset, atol=0.01)
    assert (np.abs(contrast / case.contrast - 1) < 0.5).all()


def test_sigma_of_none_is_said(whole):
    assert whole.sigma_method.startswith("estimated from the data, per angle")
    np.testing.assert_allclose(whole.sigma, 0.004, rtol=0.1)
    assert whole.reduced_chi2 == pytest.approx(1.0, abs=0.2)
    assert "estimated from the data" in str(whole)


def test_choice_by_size_and_memory(monkeypatch):
    choose = strategies.choose_strategy
    assert [choose(n, limit=1e6) for n in (10**6 - 1, 10**6, 10**7, 10**8, 10**9)] == [
        "STANDARD", "LARGE", "CHUNKED", "STREAMING", "STREAMING"
    ]  # fmt: skip
    # A copy of 9M points does not fit beside them, chunks do.
    assert choose(9 * 10**6, limit=0.19) == "CHUNKED"
    assert choose(5 * 10**7, limit=0.3, in_memory=False) == "STREAMING"
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "0.19")
    assert choose(9 * 10**6) == "CHUNKED"


def test_estimate_memory():
    estimate = jk.xpcs.estimate_memory(23 * 1001**2, 53, n_phi=23)
    assert estimate.dense_jacobian == 23 * 1001**2 * 54 * 16 / 2**30
    assert estimate.fit < 1.5 * 23 * 1001**2 * 8 / 2**30
    streaming = [
        jk.xpcs.estimate_memory(n, 53, in_memory=False, itemsize=4).fit for n in (10**9, 4 * 10**9)
    ]
    assert streaming[0] == pytest.approx(streaming[1], rel=0.05)
    with pytest.raises(ValueError, match="n_points is 0"):
        jk.xpcs.estimate_memory(0, 3)


def test_no_warning_without_reason(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = jk.xpcs.fit(model_of(case), case.data, p0=problems.START, progress=False)
    assert found.warnings == ()
    assert found.timings.total > 0
    assert found.timings.compute > 0
