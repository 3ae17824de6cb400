"""Sources of other formats: would catch fields that are read from the wrong place of a file or
table, rows that a slice or a chunk shifts, and damage that passes for data or names no file.

What every source promises is in `test_promises.py`."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile

import jax
import numpy as np
import PIL.Image
import pytest
from support import FORMATS
from support.errors import raises
from support.pipeline.batches import column, epoch_of
from support.pipeline.written import (
    encoded,
    savez,
    write_array_record,
    write_arrow,
    write_tar,
    write_tfrecord,
)

import jaxkern as jk
from jaxkern.pipeline.rows import images_of
from jaxkern.pipeline.sources import files
from jaxkern.pipeline.sources import source as source_module
from jaxkern.pipeline.sources.formats import arrow as arrow_format
from jaxkern.pipeline.sources.formats import webdataset

libraries = pytest.mark.skipif(
    not FORMATS, reason="the test extra installs them below Python 3.14 and with the GIL only"
)
ALL = np.arange(12)
ORDER = np.array([7, 0, 11, 7, 3])


@pytest.fixture(scope="module")
def photos():
    """Twelve JPEG and PNG images of twelve sizes."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (8 + k, 20 - k, 3), np.uint8) for k in range(12)]
    return [encoded(image, ("jpeg", "png")[k % 3 == 2]) for k, image in enumerate(pixels)]


def pillow(data):
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def assert_images(ragged, photos, records=ORDER):
    for image, record in zip(images_of(ragged, range(len(records))), records, strict=True):
        np.testing.assert_array_equal(image, pillow(photos[record]))


def shards(folder, photos, **more):
    """Three shards of four samples, jpg or png."""
    for shard in range(3):
        samples = []
        for k in range(4 * shard, 4 * shard + 4):
            fields = {"png" if k % 3 == 2 else "jpg": photos[k], "cls": b"%d" % (k * k)}
            samples.append((f"a/{k:03}", {**fields, **{n: make(k) for n, make in more.items()}}))
        write_tar(folder / f"x-{shard:02}.tar", samples)
    return folder / "x-{00..02}.tar"


def test_tar_shards(tmp_path, photos):
    source = jk.pipeline.WebDatasetSource(shards(tmp_path, photos))
    data = source.gather(ORDER)
    assert data["label"].tolist() == [k * k for k in ORDER]
    assert_images(data["image"], photos)
    assert [path.name for path in source.files] == ["x-00.tar", "x-01.tar", "x-02.tar"]
    # The encoded bytes are views of the mapped files, without a copy.
    one = jk.pipeline.WebDatasetSource(tmp_path / "x-00.tar", fields={"x": "jpg;png"})
    images = one.images["x"].images
    assert all(isinstance(blob, np.memmap) for blob in images.blobs)
    assert [bytes(images[k]) for k in range(4)] == photos[:4]


def test_members_of_tar_shards_are_decoded(tmp_path, photos):
    def npy(k):
        file = io.BytesIO()
        np.save(file, np.full((2, 3), k, np.float32))
        return file.getvalue()

    more = {
        "json": lambda k: b'{"a": %d, "b": [%d, 2.5]}' % (k, k),
        **{"left.npy": npy, "txt": lambda k: b"%d.25\n" % k, "bin": lambda k: bytes([k, k + 1])},
    }
    path = shards(tmp_path, photos, **more)
    with raises(TypeError, "'.bin'", "x-00.tar"):
        jk.pipeline.WebDatasetSource(path)
    with raises(KeyError, "['exe']", "['cls']"):
        jk.pipeline.WebDatasetSource(path, fields=["cls"], decoders={"cls": len, "exe": len})
    one = jk.pipeline.WebDatasetSource(path, {"x": "jpg;png"}, decoders={"png": len})
    assert one.gather(ALL)["x"].tolist() == [len(photo) for photo in photos]
    fields, decoders = ("cls", *more), {"bin": lambda data: np.frombuffer(data, np.uint8)}
    source = jk.pipeline.WebDatasetSource(path, fields, decoders)
    batch = epoch_of(jk.from_source(source, 12, num_workers=2))[0]
    assert sorted(batch) == ["bin", "cls", "json.a", "json.b", "left.npy", "txt"]
    np.testing.assert_array_equal(batch["json.a"], ALL)
    np.testing.assert_array_equal(batch["json.b"], [[k, 2.5] for k in ALL])
    np.testing.assert_array_equal(batch["left.npy"], np.tile(ALL[:, None, None], (1, 2, 3)))
    np.testing.assert_array_equal(batch["txt"], ALL + 0.25)
    np.testing.assert_array_equal(batch["bin"], np.stack([ALL, ALL + 1], 1))
    write_tar(tmp_path / "text.tar", [("a", {"txt": b"a photo of a cat"})])
    with raises(ValueError, "a photo of a cat") as caught:
        jk.pipeline.WebDatasetSource(tmp_path / "text.tar").gather(np.array([0]))
    assert any("text.tar: a" in note for note in caught.value.__notes__)


def test_a_tar_shard_that_was_cut_anywhere_is_named(tmp_path, photos):
    whole = (tmp_path / "whole.tar", [(f"{'long' * 40}/{k}", {"jpg": photos[0]}) for k in range(2)])
    data = write_tar(*whole).read_bytes()
    end = data.rindex(photos[0]) + len(photos[0])
    cut = tmp_path / "cut.tar"
    for length in [0, 1, 511, *range(512, end + 512, 171)]:
        cut.write_bytes(data[:length])
        with raises(ValueError, "cut.tar"):
            jk.pipeline.WebDatasetSource(cut)
    cut.write_bytes(data[: -(-end // 512) * 512 + 1024])
    assert len(jk.pipeline.WebDatasetSource(cut)) == 2
    second = data.index(b"ustar", 2048)
    cut.write_bytes(data[:second] + b"damaged" + data[second + 7 :])
    with raises(ValueError, "cut.tar"):
        jk.pipeline.WebDatasetSource(cut)


def test_a_tar_shard_that_is_cut_while_it_is_open(tmp_path, photos):
    path = write_tar(tmp_path / "x.tar", [(f"{k}", {"jpg": photos[k]}) for k in range(12)])
    for read in (0, 4):  # headers are read with the first batch
        source = jk.pipeline.WebDatasetSource(shutil.copy(path, tmp_path / "cut.tar"))
        if read:
            source.gather(np.arange(read))
        os.truncate(tmp_path / "cut.tar", 600)
        with raises(OSError, "600 bytes"):
            source.gather(np.array([3]))


def test_tar_shards_that_cannot_be_read(tmp_path, photos):
    import gzip

    path = tmp_path / "x.tar"
    write_tar(path, [("a", {"jpg": photos[0]})])
    path.write_bytes(gzip.compress(path.read_bytes()))
    with raises(ValueError, "x.tar", "decompress"):
        jk.pipeline.WebDatasetSource(path)
    write_tar(path, [("a", {"jpg": photos[0], "cls": b"1"}), ("b", {"jpg": photos[1]})])
    with raises(ValueError, "x.tar: b", "['jpg']"):
        jk.pipeline.WebDatasetSource(path)
    write_tar(path, [("a", {"cls": b"1"}), ("a", {"cls": b"2"})])
    with raises(ValueError, "a.cls"):
        jk.pipeline.WebDatasetSource(path)
    write_tar(path, [("a", {"cls": b"one"})])
    with raises(ValueError, "'label'", "x.tar: a"):
        jk.pipeline.WebDatasetSource(path)
    with tarfile.open(path, "w") as tar:
        for name, kind in (("a.cls", tarfile.REGTYPE), ("b.cls", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.cls"
            tar.addfile(member, io.BytesIO())
    with raises(ValueError, "x.tar", "b.cls"):
        jk.pipeline.WebDatasetSource(path)
    write_tar(path, [("a", {"cls": b"1"})])
    path.write_bytes(path.read_bytes() * 2)  # by `cat`: its reader would end before the second
    with raises(ValueError, "x.tar", "concatenation"):
        jk.pipeline.WebDatasetSource(path)
    write_tar(path, [])
    with raises(ValueError, "no samples"):
        jk.pipeline.WebDatasetSource(path)


def test_the_index_of_a_shard_is_kept_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "x.tar"

    def written(first):
        write_tar(path, [(f"{k:03}", {"cls": b"%d" % (first + k)}) for k in range(1000)])
        os.utime(path, (1, first))  # long ago

    def labels():
        return jk.pipeline.WebDatasetSource(path).gather(np.array([0, 999]))["label"].tolist()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    written(5)
    assert labels() == [5, 1004]
    (kept,) = (tmp_path / "cache" / "jaxkern" / "shards").iterdir()
    content = kept.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(webdataset, "_read_headers", None)
        assert labels() == [5, 1004]
    for damaged in (b"", content[: len(content) // 2], content[:500] + b"damaged" + content[507:]):
        kept.write_bytes(damaged)
        assert labels() == [5, 1004]
    written(7)
    assert labels() == [7, 1006]
    written(5)
    with np.load(kept) as archive:
        arrays = {name: value for name, value in archive.items() if name != "about"}
    outside = webdataset._checked_index(arrays, 100)
    assert outside is None  # its members would be outside the file


def test_images_that_do_not_decode_are_masked(tmp_path, photos):
    broken = [data[: len(data) // 2] if k == 5 else data for k, data in enumerate(photos)]
    path = shards(tmp_path, broken)
    with pytest.raises(OSError, match=r"truncated|premature|a/005") as caught:
        jk.pipeline.WebDatasetSource(path).gather(ALL)
    assert any("x-01.tar: a/005" in note for note in caught.value.__notes__)
    source = jk.pipeline.WebDatasetSource(path, on_bad_record="mask")
    batches = iter(jk.from_source(source, 4))
    assert column(epoch_of(batches), "valid").tolist() == [k != 5 for k in range(12)]
    assert batches.bad_records == 1
    assert list(source.bad_images) == [("image", 5)]


def test_native_threads_decode_images_where_they_lie(tmp_path, photos):
    jpegs = [encoded(pillow(data), "jpeg") for data in photos]
    crop = jk.OperatorNode(jk.image.Compose([jk.image.RandomResizedCrop(6)]), on="host")

    def batches(data, **options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))  # others are mapped into memory
        folder.mkdir()
        source = jk.pipeline.WebDatasetSource(shards(folder, data), **options)
        return source, jk.from_source(source, 4, shuffle=True, seed=1) >> crop

    source, pipe = batches(jpegs)
    found = epoch_of(pipe)
    order = jk.pipeline.order.Permutation(12, 1, 0)(ALL)
    data = source.gather(order)
    chain = jk.image.Compose([jk.image.RandomResizedCrop(6)])
    np.testing.assert_array_equal(
        column(found, "image"), chain(jk.random.record_keys(1, 0, order), data["image"])
    )
    assert column(found, "label").tolist() == [k * k for k in order]
    broken = [data[: len(data) // 2] if k == 5 else data for k, data in enumerate(jpegs)]
    iterator = iter(batches(broken)[1])
    with pytest.raises((OSError, jk.ring.ProducerError)) as caught:
        list(iterator)
    assert any("x-01.tar: a/005" in note for note in caught.value.__notes__)
    source, masked = batches(broken, on_bad_record="mask")
    assert column(epoch_of(masked), "valid").tolist() == [k != 5 for k in order]
    assert list(source.bad_images) == [("image", 5)]


def table_of(photos):
    """Twelve rows of every kind of column that is read, and what they are."""
    import pyarrow as pa

    rng = np.random.default_rng(1)
    expected = {
        "u8": rng.integers(0, 256, 12, np.uint8),
        "f16": rng.random(12).astype(np.float16),
        "flag": rng.random(12) < 0.5,
        "list": rng.random((12, 3), np.float32),
        "fixed": rng.integers(0, 9, (12, 4), np.int16),
        "nested": rng.integers(0, 9, (12, 2, 3), np.int32),
        "tensor": rng.random((12, 2, 2), np.float32),
    }
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(expected["tensor"])
    table = pa.table(
        {
            **{name: expected[name] for name in ("u8", "f16", "flag")},
            "list": pa.array(expected["list"].tolist(), pa.list_(pa.float32())),
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(expected["fixed"].ravel()), 4),
            "nested": pa.array(expected["nested"].tolist(), pa.large_list(pa.list_(pa.int32(), 3))),
            "tensor": tensor,
            "class": pa.DictionaryArray.from_arrays(pa.array(ALL % 2), pa.array([30, 40])),
            "image": [{"bytes": data, "path": None} for data in photos],
            "raw": pa.array(photos, pa.large_binary()),
        }
    )
    return table, {**expected, "class": 30 + 10 * (ALL % 2)}


@libraries
@pytest.mark.parametrize("copied", [0, 2**28])
@pytest.mark.parametrize(
    "how", ["table", "chunks", "slice", "file", "stream", "feather", "parquet"]
)
def test_arrow_and_parquet(tmp_path, photos, how, copied, monkeypatch):
    import pyarrow as pa
    from pyarrow import feather, parquet

    monkeypatch.setattr(source_module, "CONCATENATED_BYTES", copied)
    table, expected = table_of(photos)
    given = table
    if how == "chunks":
        given = pa.concat_tables([table[:5], table[5:5], table[5:6], table[6:]])
    elif how == "slice":
        given = pa.concat_tables([table[3:], table])[9:21]
    elif how in ("parquet", "feather"):
        given = tmp_path / f"x.{how}"
        if how == "parquet":
            parquet.write_table(table, given, row_group_size=5)
        else:
            feather.write_feather(table, given, chunksize=5)
    elif how != "table":
        given = write_arrow(tmp_path / "x.arrow", table, 5, stream=how == "stream")
    found = epoch_of(jk.from_source(given, 5, num_workers=2))
    for name, values in expected.items():
        values = values.astype(jax.dtypes.canonicalize_dtype(values.dtype))
        assert column(found, name).dtype == values.dtype, name
        np.testing.assert_array_equal(column(found, name), values, err_msg=name)
    for name in ("image", "raw"):
        images = [image for b in found for image in images_of(b[name], range(len(b["u8"])))]
        for image, data in zip(images, photos, strict=True):
            np.testing.assert_array_equal(image, pillow(data))


@libraries
def test_arrow_files_are_not_copied(tmp_path, photos):
    table, expected = table_of(photos)
    path = write_arrow(tmp_path / "x.arrow", table, 12)
    source = jk.pipeline.ArrowSource(path, columns=["u8", "fixed", "tensor"])
    rows = source.row_arrays()
    for name, array in rows.items():
        assert isinstance(array, np.memmap), name
        np.testing.assert_array_equal(array, expected[name])
    with path.open("r+b") as file:
        file.truncate(100)
    with raises(OSError, "x.arrow", "100 bytes"):
        source.gather(ORDER)
    images = jk.pipeline.ArrowSource(table.select(["raw"])).images["raw"].images
    (buffer,) = (table.column("raw").chunk(0).buffers()[2],)
    assert images.blobs[0].ctypes.data == buffer.address


@libraries
def test_columns_of_arrow_that_cannot_be_read(tmp_path, photos):
    import pyarrow as pa

    def source(options=(), /, **columns):
        return jk.pipeline.ArrowSource(pa.table(columns), **dict(options))

    with raises(ValueError, "'x'", "1 missing values"):
        source(x=[1, None, 3])
    with raises(ValueError, "'x'", "lists of 2 and of 1"):
        source(x=[[1, 2], [3]])
    with raises(ValueError, "missing values", "on_bad"):
        source(x=[b"a", None])
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), (2,)), pa.array([[1, None]], pa.list_(pa.int32(), 2))
    )
    with raises(ValueError, "'x'", "1 missing values"):
        source(x=tensors)
    with raises(TypeError, "'x'", "int64"):
        source({"decoders": {"x": len}}, x=[1])
    with raises(TypeError, "'x'", "string", "decoders="):
        source(x=["a"])
    with raises(TypeError, "'x'", "timestamp"):
        source(x=pa.array([1], pa.timestamp("ns")))
    with raises(ValueError, "no rows"):
        source(x=pa.array([], pa.int32()))
    with raises(KeyError, "'y'", "['x']"):
        source({"columns": ["y"]}, x=[1])
    with raises(KeyError, "['y']", "['x']"):
        source({"decoders": {"y": len}}, x=[1])
    masked = source({"on_bad_record": "mask"}, x=[photos[0], None, photos[1]])
    assert masked.gather(np.arange(3))["valid"].tolist() == [True, False, True]
    text = source({"decoders": {"x": lambda data: {"length": len(data)}}}, x=["a", "bcd"])
    assert text.gather(np.array([1, 0]))["x.length"].tolist() == [3, 1]
    for values in (pa.array([b"a", b"b"], pa.binary(1)), pa.array(["a", "b"]).dictionary_encode()):
        coded = source({"decoders": {"x": lambda data: data[0]}}, x=values)
        assert coded.gather(np.array([1, 0]))["x"].tolist() == [98, 97]
    empty = pa.array([[], []], pa.list_(pa.list_(pa.int32())))
    assert source(x=empty).gather(np.array([1]))["x"].shape == (1, 0, 0)
    for number, data in enumerate(photos[:3]):
        (tmp_path / f"{number}.img").write_bytes(data)
    files = [{"bytes": None, "path": str(tmp_path / f"{k}.img")} for k in range(3)]
    assert_images(source(x=files).gather(np.array([2, 0]))["x"], photos, [2, 0])
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    with raises(ValueError, "bytes", "paths"):
        source(x=pa.chunked_array([files, [{"bytes": photos[0], "path": None}]], kind))


@libraries
@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_damaged_arrow_and_parquet_files_are_named(tmp_path, photos, suffix):
    from pyarrow import parquet

    path = tmp_path / f"x.{suffix}"
    table = table_of(photos)[0].select(["u8", "list", "raw"])
    if suffix == "arrow":
        write_arrow(path, table, 12)
    else:
        parquet.write_table(table, path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    whole = 0
    for trial in range(60):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 20):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged if trial % 4 else data[: rng.integers(len(data))])
        try:
            jk.from_source(path, 4)
            whole += 1
        except ValueError as error:
            assert f"x.{suffix}" in str(error)  # noqa: PT017
    assert whole <= 45  # none of those that were cut


@libraries
def test_parquet_takes_no_memory_that_is_not_there(tmp_path, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"x": np.arange(100)}), tmp_path / "x.parquet", row_group_size=10)
    with raises(KeyError, "'z'", "['x']"):
        jk.pipeline.ParquetSource(tmp_path / "x.parquet", columns=["x", "z"])
    monkeypatch.setattr(arrow_format, "available_bytes", lambda: 50)
    with raises(MemoryError, "1 of 10", "x.parquet"):
        jk.pipeline.ParquetSource(tmp_path / "x.parquet")


@libraries
def test_zarr_reads_each_chunk_once(tmp_path, monkeypatch):
    import zarr

    group = zarr.create_group(tmp_path / "x.zarr")
    values = np.arange(12 * 6, dtype=np.float32).reshape(12, 6)
    array = group.create_array("x", data=values, chunks=(4, 3))
    group.create_array("y", data=ALL, chunks=(5,), shards=(10,))
    with raises(FileNotFoundError, "y.zarr"):
        jk.pipeline.ZarrSource(tmp_path / "y.zarr")
    with raises(KeyError, "'z'", "['x', 'y']"):
        jk.pipeline.ZarrSource(group, fields=["z"])
    read = []
    plain = zarr.Array.__getitem__
    counted = lambda self, key: read.append(key) or plain(self, key)  # noqa: E731
    monkeypatch.setattr(zarr.Array, "__getitem__", counted)
    source = jk.pipeline.ZarrSource(array, cache_bytes=2 * 4 * 6 * 4)
    np.testing.assert_array_equal(source.gather(ORDER)["x"], values[ORDER])
    assert len(read) == 3  # each chunk once; the last two are kept
    np.testing.assert_array_equal(source.gather(np.array([8, 5]))["x"], values[[8, 5]])
    assert len(read) == 3
    np.testing.assert_array_equal(source.gather(np.array([1]))["x"], values[[1]])
    assert len(read) == 4
    for given in (group, tmp_path / "x.zarr"):
        data = jk.pipeline.ZarrSource(given).gather(ORDER)
        np.testing.assert_array_equal(data["x"], values[ORDER])
        np.testing.assert_array_equal(data["y"], ORDER)


@libraries
def test_array_records(tmp_path):
    path = tmp_path / "x.array_record"
    write_array_record(path, [np.full(3, k, np.float32).tobytes() for k in range(12)])
    decode = lambda data: {"x": np.frombuffer(data, np.float32)}  # noqa: E731
    source = jk.pipeline.ArrayRecordSource(path, decode)
    np.testing.assert_array_equal(source.gather(ORDER)["x"], np.tile(ORDER[:, None], (1, 3)))
    with raises(TypeError, "12 bytes", "numpy.savez", "decode=") as caught:
        next(iter(jk.from_source(path, 4)))
    assert any(f"record 0 of {path}" in note for note in caught.value.__notes__)
    data = path.read_bytes()
    for damaged in (b"", data[:100], data[:-3], b"\1" * len(data)):
        path.write_bytes(damaged)
        with raises(ValueError, "x.array_record"):
            jk.pipeline.ArrayRecordSource(path)
    write_array_record(path, [savez(x=1), savez(x=2)])
    assert epoch_of(jk.from_source([str(path), path], 4))[0]["x"].tolist() == [1, 2, 1, 2]


@libraries
def test_tfrecords(tmp_path, photos):
    path = tmp_path / "x.tfrecord-00000-of-00001"
    more = [{"image": photo, "text": b"abc"} for photo in photos]
    write_tfrecord(path, [{"id": k, "pair": [k + 0.5, 2.0], **more[k]} for k in range(12)])
    with raises(TypeError, "byte 12", "'text'"):
        jk.from_source(path, 4)
    source = jk.pipeline.TFRecordSource(path, features={"n": "id", "pair": "pair", "x": "image"})
    data = source.gather(ORDER)
    assert data["n"].tolist() == ORDER.tolist()
    np.testing.assert_array_equal(data["pair"], [[k + 0.5, 2.0] for k in ORDER])
    assert_images(data["x"], photos)
    text = jk.pipeline.TFRecordSource(path, features=("text",), decoders={"text": len})
    assert text.gather(ORDER)["text"].tolist() == [3] * 5
    with raises(KeyError, "['id']", "['text"):
        jk.pipeline.TFRecordSource(path, ("id", "text"), decoders={"text": len, "id": len})
    with raises(ValueError, "'label'", "['id', 'image'"):
        jk.pipeline.TFRecordSource(path, features=["label"])
    write_tfrecord(path, [{"x": [1, 2]}, {"x": [3]}])
    with raises(ValueError, "1 values", "'x'"):
        jk.pipeline.TFRecordSource(path)


@libraries
def test_a_sequence_example_is_an_error(tmp_path):
    """Its context looks like an Example, but its sequences would be missing."""
    import tfrecord

    writer = tfrecord.TFRecordWriter(str(tmp_path / "x.tfrecord"))
    writer.write({"label": (7, "int")}, {"tokens": ([[1], [2, 3]], "int")})
    writer.close()
    with raises(ValueError, "SequenceExample"):
        jk.pipeline.TFRecordSource(tmp_path / "x.tfrecord")


@libraries
def test_every_damaged_byte_of_a_tfrecord_is_found(tmp_path):
    path = tmp_path / "x.tfrecord"
    write_tfrecord(path, [{"x": k} for k in range(3)])
    data = path.read_bytes()
    assert epoch_of(jk.from_source(path, 3))[0]["x"].tolist() == [0, 1, 2]
    starts = {0, len(data) // 3, 2 * len(data) // 3}
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with raises(ValueError, "x.tfrecord"):
            jk.pipeline.TFRecordSource(path)
        path.write_bytes(data[:place])
        if place not in starts:
            with raises(ValueError, "x.tfrecord"):
                jk.pipeline.TFRecordSource(path)


def test_files_of_patterns(tmp_path):
    for name in ("x-8.tar", "x-9.tar", "x-10.tar", "y-a.tar", "y-b.tar", "odd[1].tar", "note.txt"):
        (tmp_path / name).touch()

    def found(given):
        return [path.name for path in files.expand_paths(given, (".tar",), "shards")]

    def inside(name):
        return str(tmp_path / name)

    assert found(inside("x-{8..10}.tar")) == ["x-8.tar", "x-9.tar", "x-10.tar"]
    assert found(inside("y-{b,a}.tar")) == ["y-b.tar", "y-a.tar"]
    assert found(inside("[y]-?.tar")) == ["y-a.tar", "y-b.tar"]
    assert found(inside("odd[1].tar")) == ["odd[1].tar"]
    assert len(found(tmp_path)) == 6
    assert found([inside("y-a.tar"), tmp_path / "x-9.tar"]) == ["y-a.tar", "x-9.tar"]
    with raises(FileNotFoundError, "x-11.tar"):
        found(inside("x-{8..11}.tar"))
    with raises(FileNotFoundError, "z-*.tar"):
        found(inside("z-*.tar"))
    with raises(ValueError, "1000000000"):
        found(inside("x-{0..999999999}.tar"))
    with raises(FileNotFoundError, "[] matches no file"):
        found([])
    with raises(TypeError, "got 3"):
        found([3])


def test_an_unknown_path_says_which_there_are(tmp_path):
    with raises(TypeError, ".array_record", ".tar", "ImageFolder"):
        jk.from_source(tmp_path / "x.csv", 4)
    with raises(FileNotFoundError, "x.tar"):
        jk.from_source(tmp_path / "x.tar", 4)


@pytest.mark.parametrize(
    ("name", "extra", "module"),
    [
        ("ArrowSource", "parquet", "pyarrow"), ("ParquetSource", "parquet", "pyarrow"),
        ("ZarrSource", "zarr", "zarr"), ("ArrayRecordSource", "arrayrecord", "array_record"),
        ("TFRecordSource", "tfrecord", "tfrecord"),
        ("HuggingFaceSource", "huggingface", "datasets"),
    ],
)  # fmt: skip
def test_a_missing_library_is_named(tmp_path, monkeypatch, name, extra, module):
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / "x"
    path.touch()
    with pytest.raises(
        ImportError, match=rf"needs {module}: pip install 'jaxkern-native\[{extra}\]'"
    ):
        getattr(jk.pipeline, name)(path)
