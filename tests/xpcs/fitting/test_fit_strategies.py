"""Strategies, sources and dtypes of data give the same fit, in the memory of the estimate."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from support import SUPPORT
from support.errors import raises
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs import run_program
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.core.arrays import aligned_array
from jaxkern.xpcs.files.sources import RowBuffers
from jaxkern.xpcs.fitting.options import choose_strategy
from jaxkern.xpcs.fitting.sampling import (
    estimate_contrast_offset,
    estimate_sigma,
    mirrored_angles,
    read_sample,
)

N = 96
LARGE = 2048  # 2 angles in float32: 32 MiB
MIB = 2**20
PROGRAM = SUPPORT / "xpcs" / "memory_fit.py"
SMALL_CHUNKS = jk.xpcs.StreamingOptions(chunk_points=32 * N)


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=21)


def fit(case, strategy="memory", streaming=SMALL_CHUNKS, data=None, **options):
    data = case.data if data is None else data
    how = {"p0": problems.START, "strategy": strategy, "streaming": streaming, **options}
    return checks.fit(model_of(case), data, **how)


@pytest.fixture(scope="module")
def in_memory_fit(case):
    return fit(case, streaming=None)


def assert_same(result, expected):
    """Compare up to rounding: another call may sum the points of a row in another order."""
    np.testing.assert_array_less(np.abs(result.popt - expected.popt), 1e-7 * expected.perr)
    np.testing.assert_allclose(result.perr, expected.perr, rtol=1e-8)
    assert result.chi2 == pytest.approx(expected.chi2, rel=1e-12)
    assert (result.count, result.nfev) == (expected.count, expected.nfev)


@pytest.mark.parametrize("strategy", ["STANDARD", "LARGE", "CHUNKED", "STREAMING", "Stream"])
@pytest.mark.parametrize("streaming", [None, SMALL_CHUNKS])
def test_every_strategy_gives_the_same_fit(case, in_memory_fit, strategy, streaming):
    name = "memory" if strategy in ("STANDARD", "LARGE") else "stream"
    result = fit(case, strategy, streaming)
    assert result.strategy == name
    assert_same(result, in_memory_fit)
    chunks = 1 if name == "memory" else 3 if streaming is None else 9
    assert result.n_batches == chunks * (result.nfev + result.error_passes)


def test_chunks_that_are_no_multiple_of_a_block():
    """A last chunk of fewer rows, and matrices whose size is not a multiple of a block."""
    odd = problems.simulate(75, seed=22)
    streamed = fit(odd, "stream", jk.xpcs.StreamingOptions(chunk_points=64 * 75))
    assert_same(streamed, fit(odd, streaming=None))


def at_offset(array, offset):
    """Copy an array to `offset` bytes after an aligned address."""
    buffer = aligned_array((array.nbytes + 64,), np.uint8)
    copy = buffer[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def test_alignment_does_not_change_the_result(case, monkeypatch):
    """Aligned data are not copied and need no reading thread; other data are copied by it."""

    def run(offset):
        return fit(case, "stream", data=at_offset(case.data, offset))

    copied = run(8)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda *_: pytest.fail("a thread was used"))
    result = run(0)
    assert result.popt.tobytes() == copied.popt.tobytes()
    assert result.pcov.tobytes() == copied.pcov.tobytes()
    with raises(pytest.fail.Exception, "a thread was used"):
        run(8)


def test_copies_of_mirrored_data_contain_the_upper_triangle():
    rows = at_offset(np.arange(1.0, 64 * 96 + 1).reshape(64, 96), 8)
    copy = RowBuffers().ready(rows, upper_from=32, row_block=32)
    np.testing.assert_array_equal(np.triu(copy, 32), np.triu(rows, 32))
    assert (copy[:32, :32] == 0).all()
    assert (copy[32:, :64] == 0).all()


def test_sources(case, in_memory_fit, tmp_path):
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
            for strategy in ("stream", "memory"):
                assert_same(fit(case, strategy, data=source), in_memory_fit)


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
    exact = fit(case, data=values, sigma=0.004, **expected)
    for strategy in ("memory", "stream"):
        result = fit(case, strategy, data=data, sigma=0.004, **options)
        np.testing.assert_array_less(np.abs(result.popt - exact.popt), 1e-3 * exact.perr)


def test_user_sources_are_read_ahead_by_another_thread(case, in_memory_fit):
    threads = set()
    source = checks.WatchedSource(case.data, lambda *_: threads.add(threading.current_thread()))
    assert_same(fit(case, "stream", data=source), in_memory_fit)
    assert any(thread is not threading.main_thread() for thread in threads)


def test_buffers_copy_only_unaligned_rows():
    buffers = RowBuffers()
    rows = aligned_array((4, 8), np.float32)
    rows[:] = 1
    assert buffers.ready(rows) is rows
    shifted = aligned_array((33,), np.float64)[1:].reshape(4, 8)
    shifted[:] = 2
    copy = buffers.ready(shifted)
    assert copy.ctypes.data % 64 == 0
    np.testing.assert_array_equal(copy, shifted)
    assert buffers.ready(np.ones((4, 8), ">f4")).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint16"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_mirrored_data_are_detected(dtype, in_memory):
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


def test_count_of_a_mix_of_mirrored_and_other_angles(case):
    data = case.data.copy()
    data[1, 3, 50] += 1e-9
    result = fit(case, data=data)
    assert result.count == 3 * N * (N - 1)
    assert result.independent_count == 2 * N * (N - 1)


def test_estimates_from_the_data(case):
    frames = np.ones(N, bool)
    sample = read_sample(jk.xpcs.as_source(case.data), frames)
    np.testing.assert_allclose(estimate_sigma(sample), case.noise, rtol=0.1)
    contrast, offset = estimate_contrast_offset(sample)
    np.testing.assert_allclose(offset, case.offset, atol=0.01)
    assert (np.abs(contrast / case.contrast - 1) < 0.5).all()


def test_the_origin_of_an_estimated_sigma_is_reported(in_memory_fit):
    assert in_memory_fit.sigma_method.startswith("estimated from the data, per angle")
    np.testing.assert_allclose(in_memory_fit.sigma, 0.004, rtol=0.1)
    assert in_memory_fit.reduced_chi2 == pytest.approx(1.0, abs=0.2)
    assert "estimated from the data" in str(in_memory_fit)


def test_choice_by_size_and_memory(monkeypatch):
    sizes = (10**6, 10**7 - 1, 10**7, 10**8)
    # A file of up to 100M points is loaded once if it fits.
    expected = [("memory", True), ("memory", True), ("stream", True), ("stream", False)]
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "1e6")
    assert [choose_strategy(n) for n in sizes] == expected
    # A copy of 9M points does not fit in memory next to them.
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "0.19")
    assert choose_strategy(9 * 10**6)[0] == "stream"
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "0.3")
    assert choose_strategy(5 * 10**7) == ("stream", False)


def test_estimate_memory():
    estimate = jk.xpcs.estimate_memory(23 * 1001**2, 53, n_phi=23)
    assert estimate.dense_jacobian == 23 * 1001**2 * 54 * 16 / 2**30
    assert estimate.fit < 1.5 * 23 * 1001**2 * 8 / 2**30
    streaming = [
        jk.xpcs.estimate_memory(n, 53, in_memory=False, itemsize=4).fit for n in (10**9, 4 * 10**9)
    ]
    assert streaming[0] == pytest.approx(streaming[1], rel=0.05)
    with raises(ValueError, "n_points", "0"):
        jk.xpcs.estimate_memory(0, 3)


def test_a_good_fit_has_no_warnings(case):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fit(case)
    assert result.warnings == ()
    assert result.timings.total > 0
    assert result.timings.compute > 0


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "c2.npy"
    data = np.empty((2, LARGE, LARGE), np.float32)
    for k in range(2):
        data[k] = problems.correlation(
            problems.TRUTH, [0.3], [1.0], LARGE, problems.PHI[k : k + 1]
        )[0]
    data += 0.01 * np.random.default_rng(0).standard_normal(data.shape, np.float32)
    np.save(path, data)
    return path


@pytest.mark.parametrize("strategy", ["stream", pytest.param("memory", marks=pytest.mark.slow)])
def test_memory_agrees_with_the_estimate(stored, strategy):
    """Compare the anonymous memory that the fit adds with `estimate_memory`."""
    seen = run_program(PROGRAM, stored, strategy)
    estimate = jk.xpcs.estimate_memory(
        2 * LARGE * LARGE,
        11,
        n_phi=2,
        itemsize=4,
        in_memory=strategy != "stream",
        strategy=strategy,
    )
    added = max(*seen["samples"], seen["peak"]) - seen["before"]
    assert added < 1.3 * estimate.fit * 2**30
    assert added > 0.3 * estimate.fit * 2**30
    if strategy == "stream":
        assert added < 32 * MIB + 1.3 * jk.xpcs.estimate_memory(1, 1).fit * 2**30
    # After compilation of the first pass, memory is constant.
    steady = np.array(seen["samples"][len(seen["samples"]) * 2 // 3 :])
    assert steady.std() < 0.2 * steady.mean()
    assert seen["peak"] >= 0.9 * np.median(steady)


def streamed(path: Path, n: int) -> dict:
    """Return the anonymous memory of a streamed fit of a mapped file of 2 angles, n^2 points."""
    data = np.lib.format.open_memmap(path, "w+", np.float32, (2, n, n))
    random = np.random.default_rng(0)
    for k in range(2):
        clean = problems.correlation(problems.TRUTH, [0.3], [1.0], n, problems.PHI[k : k + 1])[0]
        data[k] = clean + 0.01 * random.standard_normal((n, n), np.float32)
    data.flush()
    seen = run_program(PROGRAM, path, "stream")
    path.unlink()
    return seen


@pytest.mark.slow
def test_memory_does_not_depend_on_the_size_of_the_file(tmp_path):
    # Both have many chunks of 2^21 points: one in the kernel, one being read.
    small, large = streamed(tmp_path / "small.npy", 2048), streamed(tmp_path / "large.npy", 4096)
    extra_data = 4 * 2 * (4096**2 - 2048**2)
    added = [max(seen["samples"]) - seen["before"] for seen in (small, large)]
    assert extra_data == 96 * MIB
    assert added[1] - added[0] < 24 * MIB
    # After compilation, memory is constant.
    steady = np.array(large["samples"][len(large["samples"]) // 2 :])
    assert steady.std() < 0.2 * (steady.mean() - 0.5 * large["before"])
