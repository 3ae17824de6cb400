"""Packed files as they are written and read: would catch values that change on the way, bytes that
are not where the format says, batches that depend on how their records are stored, images that are
compressed twice, and files of several sets taken for one."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import raises
from support.pipeline.batches import arrays, assert_same, column, epoch_of, is_native

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import ImageFolder, PackedSource, Subset, pack

PAGE = 4096
CHAIN = im.Compose([im.RandomCrop(5), im.RandomHorizontalFlip()])
DTYPES = [
    *(np.uint8, np.int16, np.int64, np.float16, np.float64, np.bool_, np.complex128),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ">i4", ">f8"),
]


def packed(source, path, **how):
    """The name of a packed file, or the pattern of its shards."""
    paths = pack(source, path, progress=False, **how)
    shards = how.get("shards")
    return path if shards is None else str(path).replace(".jkp", f"-*-of-{len(paths):05}.jkp")


@settings(deadline=None, max_examples=20)
@given(
    dtype=st.sampled_from(DTYPES),
    shapes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 70)), min_size=1, max_size=9),
    fixed=st.booleans(),
    shards=st.sampled_from([None, 1, 2]),
)
def test_arrays_of_any_dtype_and_shape(tmp_path_factory, dtype, shapes, fixed, shards):
    random = np.random.default_rng(len(shapes))
    values = [
        np.asfortranarray(random.integers(0, 2, shapes[0] if fixed else shape)).astype(dtype)
        for shape in shapes
    ]
    source = [{"x": x, "k": np.int64(2**40 + k)} for k, x in enumerate(values)]
    if fixed and shapes[0][0]:
        source = {"x": np.stack(values), "k": np.arange(len(values)) + 2**40}
    name = tmp_path_factory.mktemp("any") / "x.jkp"
    name = packed(source, name, shards=min(shards, len(values)) if shards else None)
    with PackedSource(name) as s:
        with jax.enable_x64(True):
            for k, value in enumerate(values):
                found = s[k]
                assert found["k"] == 2**40 + k
                assert found["x"].dtype == value.dtype.newbyteorder("=")
                np.testing.assert_array_equal(found["x"], value)
        assert not list(s.damaged())


def test_the_bytes_are_where_the_format_says(tmp_path):
    """Parse the file independently, following the tables in docs/reference/packed-format.md."""
    random = np.random.default_rng(0)
    pages = random.integers(0, 256, (4, 50, 40, 3), np.uint8)  # 6000 bytes
    lines = random.random((4, 30, 3), np.float32)  # 360 bytes
    path = tmp_path / "x.jkp"
    pack({"image": pages, "line": lines, "k": np.arange(4)}, path, progress=False)
    whole = path.read_bytes()
    head = struct.unpack_from("<8sIIQQQQ16sI", whole)
    magic, version, zero, records, at, size, length, _, checksum = head
    assert (magic, version, zero, records) == (b"\x89JKP\r\n\x1a\n", 1, 0, 4)
    assert checksum == zlib.crc32(whole[:64])
    assert (length, at % PAGE, at + size) == (len(whole), 0, len(whole))
    (text,) = struct.unpack_from("<Q", whole, at)
    about = json.loads(whole[at + 8 : at + 8 + text])
    assert [f["name"] for f in about["fields"]] == ["image", "line", "k"]
    assert [f["codec"] for f in about["fields"]] == ["array", "array", "column"]
    place = at + 8 + text

    def next_column(dtype, *shape):
        nonlocal place
        place += -(place - at) % 64
        found = np.frombuffer(whole, dtype, int(np.prod(shape)), place).reshape(shape)
        place += found.nbytes
        return found

    for values in (pages, lines):
        offset, sizes = next_column("<i8", 4), next_column("<i8", 4)
        sums, shapes = next_column("<u4", 4), next_column("<i4", 4, values.ndim - 1)
        for k in range(4):
            stored = whole[offset[k] : offset[k] + sizes[k]]
            assert stored == values[k].tobytes()
            assert sums[k] == zlib.crc32(stored)
            assert tuple(shapes[k]) == values.shape[1:]
            assert offset[k] % (PAGE if len(stored) >= PAGE else 64) == 0
    assert next_column("<i8", 4).tolist() == [0, 1, 2, 3]
    assert place == len(whole)


def test_records_of_one_size_are_one_array(tmp_path):
    """The page-sized field may be first, in the middle or last in a record."""
    random = np.random.default_rng(0)
    expected = {
        "small": random.random((5, 90), np.float32),
        "large": random.integers(0, 256, (5, 50, 40, 3), np.uint8),
        "middle": random.integers(0, 256, (5, 700), np.uint8),
    }
    pack(expected, tmp_path / "x.jkp", progress=False)
    found = PackedSource(tmp_path / "x.jkp").row_arrays()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
        assert not found[name].flags.owndata


def photos(root, sizes, formats):
    """A folder of two classes; and its images, by its order."""
    random = np.random.default_rng(1)
    for k, (height, width) in enumerate(sizes):
        path = root / "ab"[k % 2] / f"{k:02}.{formats[k % len(formats)]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = random.integers(0, 256, (4, 5, 3), np.uint8)
        PIL.Image.fromarray(noise).resize((width, height)).save(path)
    return ImageFolder(root)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """14 PNG files of 14 sizes."""
    return photos(tmp_path_factory.mktemp("png"), [(9 + k, 30 - k) for k in range(14)], ["png"])


@pytest.mark.parametrize("how", [{"format": "raw"}, {"shards": 3}, {"format": "raw", "shards": 5}])
def test_a_lossless_format_does_not_change_an_epoch(folder, tmp_path, how):
    name = packed(folder, tmp_path / "x.jkp", **how)
    again = packed(PackedSource(name), tmp_path / "again.jkp", format="raw")
    part = Subset(PackedSource(name), np.arange(14)), PackedSource(again)
    expected, *found = (
        [batch for _ in range(2) for batch in epoch_of(pipe)]
        for pipe in (jk.from_source(source, 4, True, 5) for source in (folder, name, *part))
    )
    for one in found:
        assert_same(one, expected)
    assert PackedSource(name).metadata["classes"] == ["a", "b"]
    assert PackedSource(name).describe() == PackedSource(again).describe()


@pytest.mark.parametrize("form", ["raw", "jpeg"])
def test_what_native_threads_make_of_images_of_any_size(folder, tmp_path, form):
    """The same as Python and the JAX program make of the packed file, and of what was packed."""
    name = packed(folder, tmp_path / "x.jkp", format=form, shards=2)
    pipe, alone = (jk.from_source(name, 7, True, 5, num_workers=n) >> CHAIN for n in (2, 0))
    assert is_native(pipe)
    found = epoch_of(pipe)
    assert_same(found, epoch_of(alone))
    if form == "raw":
        assert_same(found, epoch_of(jk.from_source(folder, 7, True, 5) >> CHAIN))


@pytest.mark.parametrize("shards", [None, 2])
def test_images_of_one_size_are_one_array(tmp_path, shards):
    """Native threads read them like arrays; the batches equal those of the original folder."""
    source = photos(tmp_path / "f", [(8, 9)] * 8, ["png"])
    name = packed(source, tmp_path / "x.jkp", format="raw", shards=shards)
    pipe = jk.from_source(name, 4, True, 5)
    assert next(iter(pipe))["image"].shape == (4, 8, 9, 3)
    pipe = jk.from_source(name, 4, True, 5) >> CHAIN
    assert_same(epoch_of(pipe), epoch_of(jk.from_source(source, 4, True, 5) >> CHAIN))
    if shards is None:
        assert [where for *_, where in pipe.explain().nodes] == ["native threads"] * 2
        rows = PackedSource(name).row_arrays()
        assert not rows["image"].flags.owndata
        np.testing.assert_array_equal(rows["image"][3], source[3]["image"])


def test_shards_are_the_records_one_behind_the_other(tmp_path):
    source = arrays(11)
    name = packed(source, tmp_path / "x.jkp", shards=4)
    paths = sorted(tmp_path.iterdir())
    assert [p.name for p in paths] == [f"x-{k:05}-of-00004.jkp" for k in range(4)]
    assert_same(list(PackedSource(name)), list(jk.pipeline.ArraySource(source)))
    parts = [epoch_of(jk.from_source(name, 2, True, 1, shard=(k, 3))) for k in range(3)]
    assert sorted(np.concatenate([column(p, "record") for p in parts])) == list(range(11))
    part = PackedSource(paths[1])  # one by itself is a source too
    assert [int(record["record"]) for record in part] == [2, 3, 4]


def stored(name, field):
    """The bytes of each record."""
    source = PackedSource(name)
    return [source.encoded_bytes(field, row) for row in range(len(source))]


def test_jpeg_files_that_fit_are_taken_as_they_are(tmp_path):
    sizes = [(20, 30), (40, 16), (33, 8), (9, 32)]
    source = photos(tmp_path / "f", sizes, ["jpg", "jpg", "jpg", "png"])
    name = packed(source, tmp_path / "x.jkp", format="jpeg:80", max_side=32)
    for record, (found, path) in enumerate(zip(stored(name, "image"), source.files, strict=True)):
        whole = path.read_bytes()
        with PIL.Image.open(path) as image:
            expected = whole
            if path.suffix != ".jpg" or max(image.size) > 32:
                scale = min(1, 32 / max(image.size))
                size = tuple(round(side * scale) for side in image.size)
                file = io.BytesIO()
                small = image.resize(size, PIL.Image.Resampling.LANCZOS)
                small.save(file, "JPEG", quality=80)
                expected = file.getvalue()
        assert found == expected
        pixels = np.asarray(PIL.Image.open(io.BytesIO(expected)))
        np.testing.assert_array_equal(PackedSource(name)[record]["image"], pixels)
    again = packed(Subset(name, [2, 0]), tmp_path / "again.jkp", format="jpeg:50")
    assert stored(again, "image") == [stored(name, "image")[k] for k in (2, 0)]
    gray = PackedSource(name, channels=1)[0]["image"]
    expected = PIL.Image.open(io.BytesIO(stored(name, "image")[0])).convert("L")
    np.testing.assert_array_equal(gray[..., 0], np.asarray(expected))


@pytest.mark.parametrize("max_side", [None, 24])
def test_exif_orientation(tmp_path, max_side):
    """A file stored unchanged retains its EXIF orientation; a recompressed image is upright."""
    path = tmp_path / "f" / "a" / "1.jpg"
    path.parent.mkdir(parents=True)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image = np.random.default_rng(0).integers(0, 256, (3, 4, 3), np.uint8)
    PIL.Image.fromarray(image).resize((40, 30)).save(path, exif=exif)
    with PIL.Image.open(path) as image:
        upright = PIL.ImageOps.exif_transpose(image)
    source = ImageFolder(tmp_path / "f")
    name = packed(source, tmp_path / "x.jkp", format="jpeg", max_side=max_side)
    if max_side is None:
        assert stored(name, "image") == [path.read_bytes()]
    else:
        upright = upright.resize((18, 24), PIL.Image.Resampling.LANCZOS)
        with PIL.Image.open(io.BytesIO(stored(name, "image")[0])) as small:
            assert small.getexif().get(0x0112, 1) == 1
    found = PackedSource(name)[0]["image"].astype(int)
    assert found.shape == (upright.height, upright.width, 3)
    assert np.abs(found - np.asarray(upright)).mean() < 8  # recompressed, or another decoder


def test_raw_images_are_resized_once(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (2, 30, 61, 1), np.uint8)
    name = packed({"image": image, "id": [0, 1]}, tmp_path / "x.jkp", format="raw", max_side=20)
    for k in (0, 1):
        large = PIL.Image.fromarray(image[k, ..., 0])
        expected = large.resize((20, 10), PIL.Image.Resampling.LANCZOS)
        np.testing.assert_array_equal(PackedSource(name)[k]["image"][..., 0], np.asarray(expected))


@pytest.mark.parametrize("source", ["arrays", "folder"])
def test_the_bytes_do_not_depend_on_threads_or_places(folder, tmp_path, source):
    form = "jpeg" if source == "folder" else "npy"
    given = folder if source == "folder" else arrays(300)
    (tmp_path / "elsewhere").mkdir()
    one, other = tmp_path / "one.jkp", tmp_path / "elsewhere" / "other.jkp"
    pack(given, one, format=form, threads=1, progress=False)
    pack(given, other, format=form, threads=5, progress=False)
    assert one.read_bytes() == other.read_bytes()


def test_what_cannot_be_packed(folder, tmp_path):
    def refused(source, kind, message, name="x.jkp", **how):
        with pytest.raises(kind, match=message):
            pack(source, tmp_path / name, progress=False, **how)
        assert not (tmp_path / name).exists()

    x = {"x": np.zeros((3, 5))}
    refused(x, ValueError, "ends in .jkp", "x.npy")
    refused(x, ValueError, "format is 'png'", format="png")
    refused(x, ValueError, "format is 'raw:3'", format="raw:3")
    refused(x, ValueError, "a quality from 1 to 100", format="jpeg:101")
    refused(x, ValueError, r"images \['image'\], and the fields are \['x'\]", format="raw")
    refused(x, ValueError, "field 'x' is float64", format="raw", images=("x",))
    refused(x, ValueError, "stores arrays unchanged", max_side=3)
    refused(x, ValueError, "shards is 4", shards=4)
    alpha = {"image": np.zeros((2, 4, 4, 4), np.uint8)}
    refused(alpha, ValueError, "use format 'raw'", format="jpeg")
    refused([{"x": 1}, {"y": 2}], ValueError, r"record 1 has the fields \['y'\]", "a.jkp")
    other = [{"x": np.zeros(3)}, {"x": np.zeros((3, 3))}]
    refused(other, ValueError, r"record 1 has 'x' float64\[3, 3\] and record 0", "b.jkp")
    refused([{"x": 1}, {"x": 2.5}], ValueError, "record 1 has .x. ", "c.jkp")
    pack(x, tmp_path / "y.jkp", progress=False)
    before = (tmp_path / "y.jkp").read_bytes()
    with raises(FileExistsError, "y.jkp"):
        pack(x, tmp_path / "y.jkp", progress=False)
    assert (tmp_path / "y.jkp").read_bytes() == before
    pack({"x": np.ones((3, 5))}, tmp_path / "y.jkp", overwrite=True, progress=False)
    assert PackedSource(tmp_path / "y.jkp")[0]["x"].tolist() == [1] * 5


def test_arrays_of_several_shapes_are_no_batch(tmp_path):
    source = [{"x": np.arange(k)} for k in (3, 3, 4)]
    batches = iter(jk.from_source(packed(source, tmp_path / "x.jkp"), 2, num_workers=0))
    assert next(batches)["x"].tolist() == [[0, 1, 2]] * 2
    assert next(batches)["x"].tolist() == [[0, 1, 2, 3]]
    with raises(ValueError, "record 2 of PackedSource", "(4,)"):
        next(iter(jk.from_source(tmp_path / "x.jkp", 3)))


def test_files_of_several_sets(tmp_path):
    packed(arrays(8), tmp_path / "x.jkp", shards=3)
    pattern = tmp_path / "x-*-of-00003.jkp"
    with raises(FileNotFoundError, "x-*-of-00003.jkp"):
        jk.from_source(tmp_path / "x.jkp", 2)
    with raises(FileNotFoundError, "y-*.jkp"):
        jk.from_source(str(tmp_path / "y-*.jkp"), 2)
    assert len(PackedSource(tmp_path)) == len(PackedSource(sorted(tmp_path.iterdir()))) == 8
    packed({"a": np.zeros(8)}, tmp_path / "other.jkp", shards=3)
    with raises(ValueError, "several sets"):
        PackedSource(tmp_path / "*.jkp")
    middle = tmp_path / "x-00001-of-00003.jkp"
    whole = middle.read_bytes()
    middle.unlink()
    with raises(FileNotFoundError, "2 of 3", "00001"):
        PackedSource(pattern)
    middle.write_bytes((tmp_path / "other-00001-of-00003.jkp").read_bytes())
    with raises(ValueError, "x-00001", "fields"):
        PackedSource(pattern)
    changed = arrays(8)
    changed["label"] += 1
    packed(changed, tmp_path / "changed.jkp", shards=3)
    middle.write_bytes((tmp_path / "changed-00001-of-00003.jkp").read_bytes())
    with raises(ValueError, "another set"):
        PackedSource(pattern)
    middle.write_bytes((tmp_path / "x-00002-of-00003.jkp").read_bytes())
    with raises(ValueError, "[2, 3]"):
        PackedSource(pattern)
    middle.write_bytes(whole)
    assert len(PackedSource(pattern)) == 8
    for k in range(2):  # files without numbers are taken in the order of their names
        pack({"x": [k, k]}, tmp_path / f"part{k}.jkp", progress=False)
    found = column(epoch_of(jk.from_source(str(tmp_path / "part*.jkp"), 4)), "x")
    assert found.tolist() == [0, 0, 1, 1]


def test_closing(tmp_path):
    with PackedSource(packed(arrays(5), tmp_path / "x.jkp")) as source:
        rows = source.row_arrays()["image"]
    np.testing.assert_array_equal(rows, arrays(5)["image"])
    with raises(ValueError, "x.jkp"):
        source.gather(np.array([0]))
    assert Path(source.paths[0]).exists()
