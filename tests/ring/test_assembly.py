"""Batches that native threads assemble from rows of arrays.

Would catch: a row in the wrong place, a batch out of order, a lost or padded remainder, a record
that is read although it does not exist, an error that comes at the wrong batch or ends the stream
silently, a close that hangs or leaves threads that read freed arrays, threads that wait for the
interpreter, an augmentation that differs from `Compose.apply`, parameters of another record.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxkern as jk
from jaxkern.image import (
    ChainProducer,
    Compose,
    MixUp,
    Normalize,
    Pad,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
)

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


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


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
        wanted = canonical(rows[order[i * batch : (i + 1) * batch]])
        x = np.asarray(found["x"])
        assert x.dtype == wanted.dtype
        assert bits(x[: len(wanted)]) == bits(wanted)
        if remainder == "pad":
            assert x.shape[0] == batch
            assert np.asarray(found["mask"]).tolist() == [k < len(wanted) for k in range(batch)]
            assert not any(bits(x[len(wanted) :]))
        else:
            assert x.shape == wanted.shape


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
    h5py = pytest.importorskip("h5py")
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
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("chunked", data=np.zeros((4, 4)), chunks=(2, 2), compression="gzip")
        file.create_dataset("empty", (4, 4), "f4")
        with pytest.raises(ValueError, match=r"'/chunked' is chunked and compressed .gzip"):
            jk.ring.map_hdf5(file["chunked"])
        with pytest.raises(ValueError, match="nothing was written"):
            jk.ring.map_hdf5(file["empty"])


def test_a_record_that_does_not_exist_is_refused_with_its_number():
    rows = np.zeros((10, 2), np.float32)
    for bad in (10, -1):
        with pytest.raises(IndexError, match=f"record {bad} at place 5 of order.*records 0 to 9"):
            jk.ring.Assembly({"x": rows}, [0, 1, 2, 3, 4, bad, 5, 6], 2)


def test_the_native_side_refuses_records_itself():
    rows = np.zeros((10, 2), np.float32)
    with jk.ring.Assembly({"x": rows}, iter([np.arange(4)]), 2) as batches:
        assert len(list(batches)) == 2
    ring = jk.ring.Ring([jax.ShapeDtypeStruct((2, 2), np.float32)])
    native = type(batches._native)(
        ring._key, [(rows.ctypes.data, 10, 8, 8, 0, None)], 2, False, 0, 1, [rows]
    )
    with pytest.raises(IndexError, match="record 10 at place 1"):
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
        with pytest.raises(IndexError, match="record 10 at place 5"):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)


def test_an_error_of_the_order_is_raised_in_its_place():
    def order():
        yield np.arange(4)
        raise KeyError("no more numbers")

    with jk.ring.Assembly({"x": np.arange(10)}, order(), 2) as batches:
        assert len([next(batches), next(batches)]) == 2
        with pytest.raises(KeyError, match="no more numbers"):
            next(batches)


def test_an_endless_order():
    def order():
        while True:
            yield np.arange(7)

    with jk.ring.Assembly({"x": np.arange(7)}, order(), 5, workers=3) as batches:
        got = np.concatenate([next(batches)["x"] for _ in range(200)])
    assert got.tolist() == [i % 7 for i in range(1000)]


def test_a_producer_that_refuses_fails_its_batch_only():
    """Parameters that the kernel refuses: the batch's error, and the next ones go on."""

    class Broken(ChainProducer):
        def operands(self, records):
            operands = super().operands(records)
            operands[0] = operands[0].copy()
            operands[0][records == 5, 0, 0] = 99  # a crop outside the image
            return operands

    images = np.zeros((12, 8, 8, 3), np.uint8)
    aug = Compose([RandomCrop(4), Normalize(0.5, 0.5)])
    producers = {"x": Broken(aug, images[0])}
    with jk.ring.Assembly({"x": images}, np.arange(12), 2, producers=producers) as batches:
        assert len([next(batches), next(batches)]) == 2
        with pytest.raises(jk.ring.ProducerError, match=r"batch 2: records 4 to 5: .*'geometry'"):
            next(batches)
        assert len(list(batches)) == 3


CHAINS = {
    "crop": Compose([RandomResizedCrop(16), RandomHorizontalFlip(), Normalize(0.4, 0.3)]),
    "u8": Compose([RandomCrop(20, padding=3), RandomVerticalFlip()]),
    "bf16 NCHW": Compose(
        [RandomResizedCrop(9, antialias=False), Normalize([0.1, 0.2, 0.3], 0.5)],
        dtype=jnp.bfloat16,
        layout="NCHW",
    ),
    "erase": Compose([Pad(2), Normalize(0.5, 0.5), RandomErasing(1.0)]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_equals_apply_on_the_same_parameters(name):
    aug = CHAINS[name]
    images = np.random.default_rng(0).integers(0, 256, (30, 24, 32, 3), np.uint8)
    order = np.random.default_rng(1).permutation(30)
    producer = ChainProducer(aug, images[0], seed=7, epoch=2)
    arrays = {"image": images, "label": np.arange(30)}
    batches = jk.ring.Assembly(
        arrays, order, 8, remainder="pad", producers={"image": producer}, workers=2
    )
    with batches:
        for i, batch in enumerate(batches):
            records = order[8 * i : 8 * i + 8]
            params = aug.sample(jk.random.record_keys(7, 2, records), (24, 32))
            wanted = jax.jit(aug.apply)(images[records], params)
            assert batch["image"].dtype == wanted.dtype
            assert batch["image"].shape[1:] == wanted.shape[1:]
            assert bits(batch["image"][: len(records)]) == bits(wanted)
            assert not any(bits(batch["image"][len(records) :]))
            assert batch["label"][: len(records)].tolist() == records.tolist()
        assert i == 3


def test_another_epoch_draws_anew_and_compiles_nothing():
    images = np.zeros((4, 16, 16, 3), np.uint8)
    producer = ChainProducer(CHAINS["crop"], images[0])
    first = producer.operands(np.arange(4))
    compiled = producer._sample._cache_size()
    other = producer.at(0, 1)
    assert bits(other.operands(np.arange(4))[0]) != bits(first[0])
    assert bits(other.at(0, 0).operands(np.arange(4))[0]) == bits(first[0])
    assert other._sample._cache_size() == compiled


def test_a_chain_that_changes_nothing_copies():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), np.uint8)
    producer = ChainProducer(Compose([RandomHorizontalFlip(0.0)]).eval(), images[0])
    with jk.ring.Assembly({"x": images}, np.arange(6), 3, producers={"x": producer}) as batches:
        np.testing.assert_array_equal(np.concatenate([b["x"] for b in batches]), images)


def test_chains_that_cannot_be_run_record_by_record():
    with pytest.raises(ValueError, match="mixes the images of a batch"):
        ChainProducer(Compose([MixUp(0.2)]), np.zeros((4, 4, 3), np.uint8))
    producer = ChainProducer(CHAINS["crop"], np.zeros((4, 4, 3), np.uint8))
    arrays = {"x": np.zeros((5, 4, 5, 3), np.uint8)}
    with pytest.raises(ValueError, match="reads 48"):  # rows of other images
        jk.ring.Assembly(arrays, np.arange(4), 2, producers={"x": producer})


def test_plans_are_checked_natively():
    library = jk.core.registry.module("cpu")
    plan = {"filter": [0], "size": [4, 4], "erasures": [0], "rounding": [0], "layout": 0}
    rest = {"channels": 3, "source_dtype": 0, "output_dtype": 3, "height": 4, "width": 4}
    assert library.image_chain_producer(**plan, **rest) is not None
    for changed, problem in (
        ({"filter": [9]}, "'filter' in segment 0"),
        ({"size": [4]}, "1 segments with 1 sizes"),
        ({"size": [0, 4]}, "'height'"),
        ({"erasures": [99]}, "'erasures'"),
        ({"channels": 2}, "'channels'"),
        ({"output_dtype": 0}, "'rounding'"),
        ({"height": 0}, "0 x 4"),
    ):
        with pytest.raises(ValueError, match=problem):
            library.image_chain_producer(**{**plan, **rest, **changed})


@pytest.mark.parametrize(
    ("arrays", "options", "problem"),
    [
        ({}, {}, "at least one field"),
        ({"x": np.float32(1)}, {}, "one number"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, {}, "different numbers of records"),
        ({"x": np.array(["a"])}, {}, "wanted numbers"),
        ({"x": np.zeros(3, ">f4")}, {}, "byte order"),
        ({"x": np.zeros((3, 4), np.float32)[:, ::2]}, {}, "gaps within a row"),
        ({"x": np.zeros(3)}, {"remainder": "wrap"}, "remainder"),
        ({"x": np.zeros(3)}, {"workers": 0}, "workers"),
        ({"x": np.zeros(3)}, {"capacity": 0}, "capacity"),
        ({"mask": np.zeros(3)}, {"remainder": "pad"}, "rename"),
        ({"x": np.zeros(3)}, {"producers": {"y": None}}, "producers names"),
    ],
)
def test_bad_arguments(arrays, options, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        jk.ring.Assembly(arrays, [0, 1], 2, **options)


@pytest.mark.parametrize("order", [np.zeros((2, 2), int), np.zeros(2), "ab"])
def test_bad_orders(order):
    with pytest.raises(TypeError, match="wanted integers"):
        jk.ring.Assembly({"x": np.zeros(3)}, order, 2)


@pytest.mark.parametrize("streamed", [False, True])
def test_close_at_every_point(streamed):
    images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), np.uint8)
    producers = {"x": ChainProducer(CHAINS["crop"], images[0])} if streamed else None
    list(jk.ring.Assembly({"x": images}, np.arange(64), 4, producers=producers))
    gc.collect()
    before, python = threads(), threading.active_count()
    for taken in range(17):
        order = np.arange(64)
        batches = jk.ring.Assembly(
            {"x": images}, order, 4, capacity=2, workers=3, producers=producers
        )
        for _ in range(taken):
            next(batches)
        if taken % 3 == 0:
            time.sleep(0.002)
        batches.close()
        batches.close()
        with pytest.raises(jk.ring.RingClosed):
            next(batches)
    assert threads() == before
    assert threading.active_count() == python


def test_dropped_without_a_close():
    rows = np.zeros((1000, 1000), np.float32)

    def endless():
        while True:
            yield np.arange(1000)

    gc.collect()
    before = threads()
    for order in (np.arange(1000), endless()):
        batches = jk.ring.Assembly({"x": rows}, order, 10, capacity=2)
        kept = next(batches)
        del batches
        gc.collect()
        assert not np.asarray(kept["x"]).any()
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() <= before


def test_a_thousand_assemblies_leave_nothing():
    rows = np.ones((64, 4096), np.float32)

    def use(count):
        for i in range(count):
            batches = jk.ring.Assembly({"x": rows}, np.arange(64), 16, capacity=2)
            next(batches)
            if i % 2:
                batches.close()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    use(100)
    gc.collect()
    memory, before = resident(), threads()
    use(1000)
    gc.collect()
    assert resident() - memory < 16 << 20
    assert threads() == before


def test_jitted_programs_take_the_batches():
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    order = np.random.default_rng(0).permutation(20)
    with jk.ring.Assembly({"x": rows}, order, 4) as batches:

        @jax.jit
        def epoch(token):
            def step(token, _):
                batch, token = batches.pop(token)
                return token, batch["x"].sum()

            return jax.lax.scan(step, token, length=5)[1]

        sums = epoch(batches.token())
    np.testing.assert_array_equal(sums, rows[order].reshape(5, 8).sum(1))


def test_batches_are_made_while_a_thread_holds_the_interpreter():
    """The whole ring fills in one C call that never lets go of the lock."""
    rows = np.random.default_rng(0).normal(size=(256, 1000)).astype(np.float32)
    libc = ctypes.PyDLL(None)  # its calls keep the lock
    with jk.ring.Assembly({"x": rows}, np.tile(np.arange(256), 8), 16, capacity=8) as batches:
        for i in range(12):
            np.testing.assert_array_equal(batches.get()["x"], rows[16 * i % 256 :][:16])
        assert batches.stats().ready <= 8
        for _ in range(100):  # long enough however slow the machine is
            libc.usleep(20_000)
            if batches.stats().ready >= 7:
                break
        assert batches.stats().ready >= 7
        assert len(list(batches)) == 128 - 12


def test_an_epoch_passes_while_a_thread_spins():
    rows = np.random.default_rng(0).normal(size=(256, 1000)).astype(np.float32)
    images = np.random.default_rng(0).integers(0, 256, (256, 16, 16, 3), np.uint8)
    producer = ChainProducer(CHAINS["crop"], images[0])
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            sum(range(10_000))

    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        order = np.random.default_rng(1).permutation(256)
        arrays = {"x": rows, "image": images}
        with jk.ring.Assembly(arrays, order, 16, producers={"image": producer}) as batches:
            got = np.concatenate([batch["x"] for batch in batches])
    finally:
        stop.set()
        spinner.join()
    np.testing.assert_array_equal(got, rows[order])


FORK = """
import os, numpy as np, jaxkern as jk
rows = np.zeros((10, 2), np.float32)
with jk.ring.Assembly({"x": rows}, np.arange(10), 2) as batches:
    next(batches)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = ""
        for call in (lambda: batches.get(1), lambda: batches._native.submit(np.arange(2), [[]])):
            try:
                call()
            except RuntimeError as error:
                told += str(error) + " / "
        batches.close()
        del batches
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 10_000).decode(), os.waitpid(child, 0)[1], len(list(batches)))
"""

EXIT = """
import threading, numpy as np, jaxkern as jk
rows = np.zeros((1000, 100000), np.float32)
def endless():
    while True:
        yield np.arange(1000)
batches = jk.ring.Assembly({"x": rows}, endless(), 100, workers=3)
threading.Thread(target=lambda: [None for _ in batches], daemon=True).start()
next(batches)
print("leaves")
"""


def process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


def test_a_fork_gets_a_clear_error():
    told = process(FORK).strip()
    assert "make a new ring in the child" in told
    assert "make a new one in the child" in told
    assert told.endswith("0 4")


def test_an_exit_in_the_middle():
    for _ in range(3):
        assert process(EXIT) == "leaves\n"
