"""Rows of several arrays as one: would catch a row of another array, one past the end, bytes taken
for values of another type, arrays with gaps or backward strides copied as if they had none."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from support.errors import raises

import jaxkern as jk
from jaxkern.core import registry
from jaxkern.ring.rows import RowParts, byte_rows, gather_rows

RNG = np.random.default_rng(0)
ROWS = RNG.integers(0, 17, 40)


def parts(dtype=np.int32, shape=(3, 2)):
    return [RNG.integers(0, 99, (n, *shape)).astype(dtype) for n in (5, 0, 1, 11)]


def assert_gathered(arrays, out):
    assert gather_rows(arrays, ROWS, out) is out
    np.testing.assert_array_equal(out, np.concatenate(arrays)[ROWS])


@pytest.fixture(params=["native", "NumPy"])
def copier(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(registry, "module", lambda name: None)


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64, bool, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3, 2), (0,), (1500,)])
def test_every_row_is_its_own(dtype, shape):
    assert_gathered(parts(dtype, shape), np.empty((40, *shape), dtype))


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 12, 16, 32, 64, 65])
def test_short_rows(size):
    """Rows of some sizes have copies of their own, which must not write beyond the row."""
    array = np.random.default_rng(size).integers(0, 256, (3000, 2 * size), np.uint8)[::-1, :size]
    rows = np.random.default_rng(0).integers(0, 3000, 2500)
    out = np.zeros((2501, size), np.uint8)
    gather_rows([array], rows, out[:-1])
    np.testing.assert_array_equal(out[:-1], array[rows])
    assert not out[-1].any()


def test_arrays_that_do_not_lie_row_by_row():
    backward = [part[::-1] for part in parts()]
    assert_gathered(backward, np.empty((40, 3, 2), np.int32))
    gaps = [part[::2] for part in parts(shape=(8,))] + parts(shape=(8,))
    assert_gathered(gaps, np.empty((40, 8), np.int32))
    turned = [part.transpose(0, 2, 1) for part in parts()]
    assert_gathered(turned, np.empty((40, 2, 3), np.int32))
    assert_gathered(parts(), np.empty((40, 3, 4), np.int32)[:, :, ::2])


@pytest.mark.usefixtures("copier")
def test_values_of_another_type_are_converted():
    mixed = [part.astype(dtype) for part, dtype in zip(parts(), "hilq", strict=True)]
    assert_gathered(mixed, np.empty((40, 3, 2), np.int32))
    assert_gathered(parts(), np.empty((40, 3, 2)))


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("count", [1, 3, 40])
def test_rows_of_few_and_of_many_parts(count):
    arrays = [RNG.integers(0, 99, (k % 4, 3)) for k in range(1, count + 1)]
    several = RowParts(arrays)
    values = np.concatenate(arrays)
    assert (several.shape, several.dtype, len(several)) == (values.shape, values.dtype, len(values))
    every = np.arange(len(values))
    for chosen in (RNG.integers(0, len(values), 50), every[::-1], every[:0]):
        np.testing.assert_array_equal(several.take(chosen), values[chosen])
        out = np.empty((len(chosen), 3), values.dtype)
        assert several.take(chosen, out) is out
        np.testing.assert_array_equal(out, values[chosen])
    for row in (-1, len(values)):
        with raises(IndexError, str(row), str(len(values))):
            several.take(np.array([0, row]))


def test_only_the_parts_of_the_rows_are_checked(tmp_path):
    """Would catch a check of thousands of maps for each batch, and a read past the end of one."""
    paths = [tmp_path / f"{k}.npy" for k in range(12)]
    for number, path in enumerate(paths):
        np.save(path, np.full((2, 3), number))
    several = RowParts([np.load(path, mmap_mode="r") for path in paths])
    with open(paths[5], "r+b") as file:
        file.truncate(140)
    assert several.take(np.array([23, 0, 8]))[:, 0].tolist() == [11, 0, 4]
    with raises(OSError, "5.npy", "140 bytes"):
        several.take(np.array([0, 11]))


@pytest.mark.usefixtures("copier")
@pytest.mark.parametrize("row", [-1, 17])
def test_a_row_that_is_not_there(row):
    out = np.zeros((2, 3, 2), np.int32)
    with raises(IndexError, str(row)):
        gather_rows(parts(), np.array([0, row]), out)
    with raises(ValueError, "read-only"):
        gather_rows(parts(), np.array([0, 1]), np.broadcast_to(out[:1], out.shape))


def test_native_code_checks_sizes():
    gather = registry.module("cpu").gather_rows
    array, out = np.arange(6), np.zeros(16, np.uint8)
    part = byte_rows(array)
    with raises(ValueError, "16 bytes", "3 rows of 8"):
        gather([part], np.array([0, 1, 2]), out)
    one = np.zeros(1, np.uint8)
    huge = as_strided(one, (1, 2**62), (0, 1))
    with raises(ValueError, "16 bytes"):
        gather([huge], np.zeros(4, np.int64), out)
    for wrong in (byte_rows(array.astype(np.int32)), byte_rows(np.zeros((6, 2)))):
        with raises(ValueError, "8 bytes", str(wrong.shape[1])):
            gather([part, wrong], np.array([0, 1]), out)
    with raises(ValueError, "stride of 2"):
        gather([np.zeros((6, 16), np.uint8)[:, ::2]], np.array([0, 1]), out)
    with raises(ValueError, "2^63"):
        gather([np.broadcast_to(one, (2**62, 1))] * 2, np.array([0, 1]), out)
    with raises(ValueError, "array"):
        gather([], np.array([0, 1]), out)
    gather([part], np.array([5, 4]), out)
    assert out.view(np.int64).tolist() == [5, 4]


def test_native_code_takes_arrays_instead_of_addresses():
    library = registry.module("cpu")
    array, out = np.arange(6), np.zeros(16, np.uint8)
    for wrong in ((array.ctypes.data, 6, 8), array, array.reshape(6, 1), part_of(np.int8)):
        with pytest.raises(TypeError):
            library.gather_rows([wrong], np.array([0, 1]), out)
        with pytest.raises(TypeError):
            library.Assembly(1, [([wrong], 0, None)], 2, False, 0, 1, [])


def part_of(dtype):
    return np.zeros((6, 8), dtype)


def test_arrays_live_as_long_as_an_assembly_that_reads_them():
    rows = np.arange(6)
    alive = weakref.ref(rows)
    ring = jk.ring.Ring([np.zeros(2, np.int64).view(np.int32).reshape(2, 2)])
    leaves = [([byte_rows(rows)], 0, None)]
    native = registry.module("cpu").Assembly(ring._key, leaves, 2, False, 0, 1, [])
    leaves.clear()
    del rows
    gc.collect()
    assert alive() is not None
    native.submit(np.array([5, 4]), [[]])
    native.finish()
    assert [np.asarray(batch)[:, 0].tolist() for (batch,) in ring] == [[5, 4]]
    del native
    gc.collect()
    assert alive() is None
