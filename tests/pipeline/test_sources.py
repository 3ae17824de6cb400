"""Sources: would catch rows read from the wrong place of a file, types that change on the way, and
images that are mixed up, converted wrongly or given the wrong label."""

from __future__ import annotations

import time
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import library
from support.errors import raises
from support.pipeline.batches import arrays, assert_same, column, epoch_of

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import ArraySource, BatchSource, Cache, HDF5Source, ImageFolder, Rebatch


def shuffled(source, num_workers=2):
    return epoch_of(jk.from_source(source, 5, shuffle=True, seed=6, num_workers=num_workers))


@pytest.fixture(scope="module")
def expected_epoch():
    return shuffled(arrays(), num_workers=0)


DTYPES = [np.uint8, np.int32, np.float16, np.float32, np.bool_, ml_dtypes.bfloat16, np.complex64]


@settings(deadline=None, max_examples=30)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 4), max_size=3),
    records=st.integers(1, 20),
    order=st.sampled_from("CF"),
    reverse=st.booleans(),
    workers=st.sampled_from([0, 2]),
)
def test_arrays_of_any_dtype_and_layout(dtype, shape, records, order, reverse, workers):
    values = np.arange(records * int(np.prod(shape)) + 1)[1:].reshape(records, *shape)
    values = np.asarray(values.astype(dtype), order=order)[:: -1 if reverse else 1]
    found = column(epoch_of(jk.from_source({"x": values}, 4, num_workers=workers)), "x")
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def test_wide_types_as_jax_has_them():
    source = {"x": np.arange(5) + 2**33, "y": np.arange(5) / 3}
    for workers in (0, 2):
        for enabled, names in ((False, ("int32", "float32")), (True, ("int64", "float64"))):
            with jax.enable_x64(enabled):
                batch = next(iter(jk.from_source(source, 5, num_workers=workers)))
                assert (batch["x"].dtype, batch["y"].dtype) == names
                if enabled:
                    np.testing.assert_array_equal(batch["x"], source["x"])


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_of_foreign_byte_order(workers):
    source = {"x": np.arange(9, dtype=">f4"), "y": np.arange(9, dtype=">i8")}
    found = epoch_of(jk.from_source(source, 4, num_workers=workers))
    for field, values in source.items():
        np.testing.assert_array_equal(column(found, field), values)
        assert column(found, field).dtype.isnative


def test_strided_arrays_are_not_copied_for_every_batch():
    whole = np.zeros((4000, 2000), np.uint8)
    records = np.arange(8)
    for name, array in {"columns": np.asfortranarray(whole), "every second": whole[:, ::2]}.items():
        source = ArraySource({"x": array})
        source.gather(records)
        tracemalloc.start()
        found = source.gather(records)["x"]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000, (name, peak)
        np.testing.assert_array_equal(found, array[:8])


@pytest.mark.parametrize("later", [np.uint8(200), 0.5, np.zeros(3, np.int8), np.float16(2)])
def test_records_that_change_are_what_they_are_whatever_the_workers(later):
    # The first batch gives the slots their shapes; another kind must not be cast to it.
    records = [{"i": i, "x": np.int8(-1) if i < 4 or i > 35 else later} for i in range(40)]
    one, other = (epoch_of(jk.from_source(records, 4, num_workers=n)) for n in (0, 3))
    assert_same(other, one)
    np.testing.assert_array_equal(one[1]["x"], np.stack([later] * 4))
    np.testing.assert_array_equal(column(one, "i"), range(40))


def test_a_source_that_fills_a_part_of_its_slot():
    class Partly(BatchSource):
        def __len__(self):
            return 60

        def gather(self, records, out=None):
            x = np.zeros(len(records), np.int32) if out is None else out["x"]
            x[:] = records
            return {"x": x, "y": np.zeros((len(records), 1 + int(records[0]) % 3), np.int8)}

    iterator = iter(jk.from_source(Partly(), 4, num_workers=3, prefetch_size=2))
    found = []
    for batch in iterator:
        time.sleep(0.005)  # workers fill every slot that is free
        found += np.asarray(batch["x"]).tolist()
    assert found == list(range(60))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mesh", [False, True])
def test_a_batch_is_not_the_memory_of_its_source(workers, mesh):
    space = np.zeros(64 * 16 + 64, np.uint8)
    start = -space.ctypes.data % 64  # JAX takes aligned memory without a copy
    whole = space[start : start + 64 * 16].view(np.int32).reshape(16, 16)

    class Slices(BatchSource):
        def __len__(self):
            return 16

        def gather(self, records, out=None):
            return {"x": whole[records[0] : records[-1] + 1]}

    options = {}
    if mesh:
        sharding = jax.NamedSharding(jax.make_mesh((4,), ("data",)), jax.P("data"))
        options = {"drop_remainder": True, "sharding": sharding}
    batches = list(jk.from_source(Slices(), 4, num_workers=workers, **options))
    whole[:] = 1
    assert all((np.asarray(batch["x"]) == 0).all() for batch in batches)


def test_npy_files(tmp_path, expected_epoch):
    fields = arrays()
    for name, array in fields.items():
        np.save(tmp_path / name, array)
    paths = {name: tmp_path / f"{name}.npy" for name in fields}
    assert isinstance(ArraySource(paths).arrays["image"], np.memmap)
    assert_same(shuffled({**paths, "label": str(paths["label"])}), expected_epoch)


@pytest.mark.parametrize("storage", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}])
def test_hdf5(tmp_path, expected_epoch, storage):
    h5py = library("h5py")
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        for name, array in arrays().items():
            file.create_dataset(f"group/{name}", data=array, **storage)
    source = HDF5Source({name: f"group/{name}" for name in arrays()}, path)
    assert len(source) == 23
    assert_same(shuffled(source), expected_epoch)
    with h5py.File(path) as file:
        assert_same(shuffled({name: file["group"][name] for name in arrays()}), expected_epoch)


def test_hdf5_that_is_still_being_written(tmp_path):
    h5py = library("h5py")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = np.arange(10, dtype=np.int32)
        for number in (1, 2):
            file["x"][...] = np.arange(10) + number
            found = column(epoch_of(jk.from_source({"x": file["x"]}, 4)), "x")
            np.testing.assert_array_equal(found, np.arange(10) + number)


def test_hdf5_errors(tmp_path):
    h5py = library("h5py")
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"], file["text"] = np.zeros(3), np.zeros(4), ["a", "b", "c"]
    with raises(KeyError, "'z'", "['text', 'x', 'y']"):
        HDF5Source({"z": "z"}, path)
    with raises(ValueError, "different numbers"):
        HDF5Source({"x": "x", "y": "y"}, path)
    with raises(TypeError, "'text'"):
        HDF5Source({"text": "text"}, path)


def test_records_and_a_custom_source(expected_epoch):
    fields = arrays()
    records = [{name: array[i] for name, array in fields.items()} for i in range(23)]
    assert_same(shuffled(records), expected_epoch)

    class Mirrored(BatchSource):
        def __len__(self):
            return 23

        def gather(self, records, out=None):
            return {name: array[records] for name, array in arrays().items()}

    assert_same(shuffled(Mirrored()), expected_epoch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of 12 sizes in three classes, one in a subfolder; and what they hold."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    pixels = []
    for k in range(12):
        name = f"{['cat', 'dog', 'eel'][k // 4]}/{'more/' if k % 4 == 3 else ''}{k:02}.png"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image = rng.integers(0, 256, (5 + k, 9 + k * 2 % 7, 3), np.uint8)
        pixels.append(image)
        PIL.Image.fromarray(image).save(root / name)
    (root / "cat" / "notes.txt").write_text("no image")
    return root, pixels


def test_image_folder_through_nodes(folder):
    """Cache, Rebatch, element operators and a Compose take the Ragged images."""
    root, pixels = folder
    assert ImageFolder(root).classes == ["cat", "dog", "eel"]
    assert ImageFolder(root).max_size == (16, 15)
    resize = im.Compose([im.RandomResizedCrop(4, scale=(0.5, 1.0))])
    one_hot = jk.ElementOperator(
        fn=lambda e, key: e.update_data({"label": jax.nn.one_hot(e["label"], 3)})
    )
    source = jk.from_source(ImageFolder(root), 5, True, 3, pad_remainder=True)
    pipe = source >> Cache() >> Rebatch(4) >> one_hot >> jk.OperatorNode(resize)
    for _ in range(2):
        batches = epoch_of(pipe)
        assert {batch["image"].shape for batch in batches} == {(4, 4, 4, 3)}
        labels = column(batches, "label")[column(batches, "mask")]
        np.testing.assert_array_equal(labels.sum(0), [4, 4, 4])
    order = jk.pipeline.order.Permutation(12, 3, 1)(np.arange(12))
    keys = jk.random.record_keys(3, 1, order)
    ragged = im.Ragged.from_list([pixels[r] for r in order])
    np.testing.assert_array_equal(column(batches, "image")[:12], resize(keys, ragged))
    np.testing.assert_array_equal(column(batches, "label")[:12].argmax(1), order // 4)


def test_image_folder_errors(folder, tmp_path):
    with raises(FileNotFoundError, "folder"):
        ImageFolder(tmp_path / "none")
    with raises(FileNotFoundError, "subfolders"):
        ImageFolder(tmp_path)
    with raises(ValueError, "channels", "2"):
        ImageFolder(folder[0], channels=2)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    iterator = iter(jk.from_source(ImageFolder(tmp_path, max_size=(9, 9)), 1))
    with pytest.raises(PIL.UnidentifiedImageError) as caught:
        next(iterator)
    assert "while reading record 0" in caught.value.__notes__[0]
    assert "broken.png" in caught.value.__notes__[0]
    iterator = iter(jk.from_source(ImageFolder(folder[0], max_size=(9, 9)), 12))
    with raises(ValueError, "max_size", "(9, 9)"):
        next(iterator)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (np.arange(10), "'x': array"),
        (({"x": n} for n in range(3)), "jaxkern.from_stream reads"),
        (lambda: iter([]), "jaxkern.from_stream accepts a function"),
        ("photos/1.jpg", r"ImageFiles\(paths\)"),
        ({"image": [b"\xff\xd8", b"\xff\xd8"]}, "jaxkern.pipeline.Encoded"),
    ],
    ids=["array", "generator", "function", "image", "bytes"],
)
def test_an_unsupported_source_raises_with_a_hint(source, hint):
    with pytest.raises(TypeError, match=hint):
        jk.from_source(source, 2)
