"""Batches that native threads assemble from rows of arrays.

Would catch: a row in the wrong place, a batch out of order, a lost or padded remainder, a record
that is read although it does not exist, an error that comes at the wrong batch or ends the stream
silently, a cast that differs from NumPy's.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import library
from support.errors import raises

import jaxkern as jk
from jaxkern.ring.rows import byte_rows

PARTS = jk.ring.RowParts((np.zeros((2, 3)), np.zeros((2, 4))))
DTYPES = ["uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]
DTYPES += ["complex64", "complex128", "bfloat16", "float8_e4m3fn"]


def array_of(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype in ("int64", "uint64"):  # beyond 32 bits too
        return rng.integers(0, 1 << 40, shape).astype(dtype)
    if dtype.startswith("complex"):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    kind = getattr(ml_dtypes, dtype, None)
    return (rng.normal(size=shape) * 50).astype(np.dtype(kind or dtype))


def canonical(array: np.ndarray) -> np.ndarray:
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def bits(array) -> bytes:
    return np.ascontiguousarray(np.asarray(array)).tobytes()


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    row=st.sampled_from([(), (1,), (3,), (5, 7), (40, 33), (0,), (2, 0)]),
    batch=st.integers(1, 9),
    count=st.integers(0, 40),
    workers=st.integers(1, 3),
    capacity=st.integers(1, 4),
    remainder=st.sampled_from(["drop", "pad", "partial"]),
    step=st.sampled_from([1, 2, -1]),
    seed=st.integers(0, 99),
)
def test_equals_indexing(dtype, row, batch, count, workers, capacity, remainder, step, seed):
    rows = array_of(dtype, (23, *row), seed)[::step]
    order = np.random.default_rng(seed).integers(0, len(rows), count)
    options = {"workers": workers, "capacity": capacity, "remainder": remainder}
    with jk.ring.Assembly({"x": rows}, order, batch, **options) as batches:
        got = list(batches)
        assert len(batches) == len(got)
    whole = count // batch
    assert len(got) == whole + (remainder != "drop" and count % batch > 0)
    for i, found in enumerate(got):
        expected = canonical(rows[order[i * batch : (i + 1) * batch]])
        x = np.asarray(found["x"])
        assert x.dtype == expected.dtype
        assert bits(x[: len(expected)]) == bits(expected)
        if remainder == "pad":
            assert x.shape[0] == batch
            assert np.asarray(found["mask"]).tolist() == [k < len(expected) for k in range(batch)]
            assert not any(bits(x[len(expected) :]))
        else:
            assert x.shape == expected.shape


def test_batches_larger_than_the_caches():
    """Rows go past the caches there, in whole lines, from and to addresses that are not aligned."""
    memory = np.random.default_rng(0).integers(0, 256, 300 * 50_001 + 1, np.uint8)
    rows = memory[1:].reshape(300, 50_001)
    order = np.random.default_rng(1).permutation(300)
    with jk.ring.Assembly({"x": rows}, order, 60, workers=2, capacity=3) as batches:
        for i, batch in enumerate(batches):
            np.testing.assert_array_equal(batch["x"], rows[order[i * 60 : i * 60 + 60]])
        assert i == 4


def test_64_bit_rows_stay_where_jax_has_64_bits():
    rows = np.arange(6, dtype=np.int64) << 40
    with jax.enable_x64(True), jk.ring.Assembly({"x": rows}, [5, 1], 2) as batches:
        x = next(batches)["x"]
        assert x.dtype == jnp.int64
        assert np.asarray(x).tolist() == [5 << 40, 1 << 40]


def test_fields_keep_their_names_and_rows():
    arrays = {"z": np.arange(10), "a": np.arange(10) * 2.0, "m": np.arange(20).reshape(10, 2)}
    with jk.ring.Assembly(arrays, np.arange(9, -1, -1), 5, remainder="pad") as batches:
        assert list(batches.struct) == ["z", "a", "m", "mask"]
        first, second = batches
    assert list(first) == ["z", "a", "m", "mask"]
    assert second["z"].tolist() == [4, 3, 2, 1, 0]
    assert second["a"].tolist() == [8, 6, 4, 2, 0]
    assert second["m"][:, 1].tolist() == [9, 7, 5, 3, 1]


def test_memory_maps(tmp_path: Path):
    h5py = library("h5py")
    rows = np.random.default_rng(0).normal(size=(50, 6, 5)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    with h5py.File(tmp_path / "rows.h5", "w", userblock_size=512) as file:
        file.attrs["pad"] = "x" * 33
        file["group/rows"] = rows
        mapped = jk.ring.map_hdf5(file["group/rows"])
    assert isinstance(mapped, np.memmap)
    arrays = {"npy": np.load(tmp_path / "rows.npy", mmap_mode="r"), "h5": mapped}
    order = np.random.default_rng(1).permutation(50)
    with jk.ring.Assembly(arrays, order, 10) as batches:
        for i, batch in enumerate(batches):
            for name in arrays:
                np.testing.assert_array_equal(batch[name], rows[order[10 * i : 10 * i + 10]])


def test_data_sets_that_cannot_be_mapped(tmp_path: Path):
    h5py = library("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("chunked", data=np.zeros((4, 4)), chunks=(2, 2), compression="gzip")
        file.create_dataset("empty", (4, 4), "f4")
        with raises(ValueError, "'/chunked'", "chunked"):
            jk.ring.map_hdf5(file["chunked"])
        with raises(ValueError, "/empty"):
            jk.ring.map_hdf5(file["empty"])


def test_a_record_that_does_not_exist_is_refused_with_its_number():
    """By the native side too."""
    rows = np.zeros((10, 2), np.float32)
    for bad in (10, -1):
        with raises(IndexError, f"record {bad}", "position 5", "0 to 9"):
            jk.ring.Assembly({"x": rows}, [0, 1, 2, 3, 4, bad, 5, 6], 2)
    with jk.ring.Assembly({"x": rows}, iter([np.arange(4)]), 2) as batches:
        assert len(list(batches)) == 2
    ring = jk.ring.Ring([jax.ShapeDtypeStruct((2, 2), np.float32)])
    leaves = [([byte_rows(rows)], 0, None)]
    native = type(batches._native)(ring._key, leaves, 2, False, 0, 1, [], False)
    with raises(IndexError, "record 10", "position 1"):
        native.submit(np.array([0, 10]), [[]])
    native.submit(np.array([3, 9]), [[]])
    native.finish()
    assert len(list(ring)) == 1
    native.close()


def test_a_bad_record_in_a_stream_is_raised_in_its_place():
    rows = np.arange(10)
    chunks = iter([np.array([1, 2, 3]), np.array([4, 5, 10, 6, 7])])
    with jk.ring.Assembly({"x": rows}, chunks, 2) as batches:
        assert next(batches)["x"].tolist() == [1, 2]
        assert next(batches)["x"].tolist() == [3, 4]
        with raises(IndexError, "record 10", "position 5"):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)


def test_an_endless_order():
    order = itertools.repeat(np.arange(7))
    with jk.ring.Assembly({"x": np.arange(7)}, order, 5, workers=3) as batches:
        got = np.concatenate([next(batches)["x"] for _ in range(200)])
    assert got.tolist() == [i % 7 for i in range(1000)]


def test_an_order_in_a_list_of_arrays():
    with jk.ring.Assembly({"x": np.arange(7)}, [np.arange(7), np.arange(3)], 5) as batches:
        assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 0, 1, 2]]


@pytest.mark.parametrize(
    ("arrays", "options", "problem"),
    [
        ({}, {}, "at least one field"),
        ({"x": np.float32(1)}, {}, "field 'x'"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, {}, "different numbers of records"),
        ({"x": np.array(["a"])}, {}, "dtype <U1"),
        ({"x": np.zeros(3, ">f4")}, {}, "byte order"),
        ({"x": np.zeros((3, 4), np.float32)[:, ::2]}, {}, "strides"),
        ({"x": np.zeros(3)}, {"remainder": "wrap"}, "remainder"),
        ({"x": np.zeros(3)}, {"workers": 0}, "workers"),
        ({"x": np.zeros(3)}, {"capacity": 0}, "capacity"),
        ({"mask": np.zeros(3)}, {"remainder": "pad"}, "rename"),
        ({"x": np.zeros(3)}, {"producers": {"y": None}}, "producers"),
        ({"x": PARTS}, {}, r"'x' .* float64\[3\] and float64\[4\]"),
    ],
)
def test_bad_arguments(arrays, options, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        jk.ring.Assembly(arrays, [0, 1], 2, **options)


@pytest.mark.parametrize("order", [np.zeros((2, 2), int), np.zeros(2), "ab"])
def test_bad_orders(order):
    with raises(TypeError, "order"):
        jk.ring.Assembly({"x": np.zeros(3)}, order, 2)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    steps=st.lists(st.sampled_from([1, 2, -1]), min_size=5, max_size=5),
    dtype=st.sampled_from(["uint8", "int64"]),
    seed=st.integers(0, 99),
)
def test_rows_of_several_arrays(lengths, steps, dtype, seed):
    """Would catch a row of the wrong part, at its edges above all."""
    parts = [
        array_of(dtype, (2 * n, 3), seed + i)[::step][:n]
        for i, (n, step) in enumerate(zip(lengths, steps, strict=False))
    ]
    rows = np.concatenate(parts)
    order = np.random.default_rng(seed).integers(0, len(rows), 40) + 1000
    parted = {"x": jk.ring.RowParts(tuple(parts))}
    options = {"remainder": "partial", "rows_of": lambda numbers: numbers - 1000}
    with jk.ring.Assembly(parted, order, 7, **options) as batches:
        found = np.concatenate([np.asarray(batch["x"]) for batch in batches])
    assert bits(found) == bits(canonical(rows[order - 1000]))
