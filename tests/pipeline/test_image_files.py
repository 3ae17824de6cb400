"""Image files and encoded bytes.

Would catch: decoders that disagree, images whose EXIF orientation is ignored, formats that are
dropped or confused, limits that are checked too late, and rows of another file.
"""

from __future__ import annotations

import io
import os
import warnings

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
from support import FORMATS
from support.errors import raises
from support.pipeline import written
from support.pipeline.batches import assert_same, column, epoch_of, is_native
from support.pipeline.encoded_sources import native_jpeg

import jaxkern as jk
from jaxkern import image as im
from jaxkern.core import registry
from jaxkern.pipeline import Encoded, EncodedRecords, ImageFiles, ImageFolder, Subset
from jaxkern.pipeline.rows import images_of
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.images import decoding

rng = np.random.default_rng(0)


def smooth(height, width):
    """Return a smooth image, which JPEG compresses with little loss."""
    y, x = np.mgrid[:height, :width]
    return np.stack([(y * 7) % 256, (x * 5) % 256, (x + y) * 3 % 256], -1).astype(np.uint8)


def encoded(image, kind="JPEG", mode="RGB", orientation=None, **options):
    """Return the encoded bytes of an image."""
    if orientation is not None:
        options["exif"] = PIL.Image.Exif()
        options["exif"][0x0112] = orientation
    file = io.BytesIO()
    PIL.Image.fromarray(image).convert(mode).save(file, kind, **options)
    return file.getvalue()


def decoded_by_pillow(data, channels=3):
    """Decode an image with Pillow, upright."""
    with PIL.Image.open(io.BytesIO(data)) as image:
        upright = PIL.ImageOps.exif_transpose(image)
        pixels = np.asarray(upright.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


PICTURE = smooth(37, 52)
JPEGS = {
    f"{mode} {sub} {'progressive' if progressive else 'baseline'} {orientation}": encoded(
        PICTURE, "JPEG", mode, orientation, subsampling=sub, progressive=progressive, quality=90
    )
    for mode, sub, progressive, orientation in [
        ("RGB", "4:4:4", False, 1),
        ("RGB", "4:2:2", True, 6),
        ("RGB", "4:2:0", False, 3),
        ("RGB", "4:2:0", True, 5),
        ("L", "4:4:4", False, 8),
        ("CMYK", "4:4:4", False, 1),
        ("CMYK", "4:4:4", True, 7),
    ]
}
OTHERS = {
    "png": encoded(PICTURE, "PNG", orientation=6),
    "png in gray": encoded(PICTURE, "PNG", "L"),
    "png of a palette": encoded(PICTURE, "PNG", "P"),
    "png with alpha": encoded(np.dstack([PICTURE, PICTURE[..., :1]]), "PNG", "RGBA"),
    "webp": encoded(PICTURE, "WEBP", orientation=8, lossless=True),
    "gif": encoded(PICTURE, "GIF", "P"),
    "bmp": encoded(PICTURE, "BMP"),
    "tiff": encoded(PICTURE, "TIFF", orientation=5),
}


# The test extra has simplejpeg below Python 3.14 only.
LIBRARIES = [
    pytest.param("native", marks=native_jpeg),
    *(["simplejpeg"] if FORMATS else []),
    "Pillow",
]


@pytest.fixture(params=LIBRARIES)
def decoder(request, monkeypatch):
    """Each decoder, with the preferred ones unavailable."""
    if request.param != "native":
        monkeypatch.setattr(decoding, "_native", lambda: None)
    if request.param == "Pillow":
        monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    return request.param


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_all_decoders_are_bit_identical_to_pillow(decoder, channels):
    for name, data in {**JPEGS, **OTHERS}.items():
        found = decoding.decode_image(data, channels, 10_000, name)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, decoded_by_pillow(data, channels), name)
    expected = {"native": "libjpeg-turbo"}.get(decoder, decoder)
    assert decoding.jpeg_decoding().name.startswith(expected)
    assert decoding.jpeg_decoding().native == (decoder == "native")


def test_headers_are_those_of_the_upright_images():
    data = [*JPEGS.values(), *OTHERS.values(), b"", b"no image", encoded(PICTURE)[:100]]
    headers = Encoded(data).headers
    sizes = [decoded_by_pillow(d).shape[:2] for d in data[:-3]] + [(0, 0)] * 3
    np.testing.assert_array_equal(headers.size, sizes)
    counts = {"JPEG": len(JPEGS), "PNG": 4, "": 3, "WEBP": 1, "GIF": 1, "BMP": 1, "TIFF": 1}
    assert headers.counts() == counts


def test_sixteen_bits_keep_their_high_byte():
    deep = rng.integers(0, 65536, (5, 6), np.uint16)
    found = decoding.decode_image(written.encoded(deep), 1, 100, "deep")
    np.testing.assert_array_equal(found[..., 0], deep >> 8)
    with raises(OSError, "deep:", "32 bits"):
        decoding.decode_image(written.encoded(deep.astype(np.float32), "tiff"), 1, 100, "deep")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """30 files of three kinds and their pixels."""
    folder = tmp_path_factory.mktemp("photos")
    pixels = []
    for k in range(30):
        kind = ["JPEG", "JPEG", "PNG"][k % 3]
        data = encoded(smooth(20 + k, 40 - k), kind, orientation=1 + k % 8)
        (folder / f"{k:02}.{kind.lower()}").write_bytes(data)
        pixels.append(decoded_by_pillow(data))
    return folder, pixels


def pictures(batches):
    images = (batch["image"] for batch in batches)
    return [image for ragged in images for image in images_of(ragged, range(len(ragged)))]


def test_image_files(photos):
    folder, pixels = photos
    source = ImageFiles(sorted(folder.iterdir()), {"label": np.arange(30), "x": np.ones((30, 2))})
    assert source.max_size == (max(p.shape[0] for p in pixels), max(p.shape[1] for p in pixels))
    batches = epoch_of(jk.from_source(source, 7, shuffle=True, seed=4))
    order = np.concatenate([batch["label"] for batch in batches])
    assert sorted(order) == list(range(30))
    for record, found in zip(order, pictures(batches), strict=True):
        np.testing.assert_array_equal(found, pixels[record])
    assert batches[0]["x"].shape == (7, 2)
    assert source[5]["label"] == 5
    assert source.files[29] == sorted(folder.iterdir())[29]
    assert source.files[-2:] == sorted(folder.iterdir())[-2:]


def test_relative_paths_stay_where_they_led(photos, monkeypatch, tmp_path):
    folder, pixels = photos
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    in_folder = ImageFolder("photos")
    monkeypatch.chdir(folder)
    source = ImageFiles(["00.jpeg", "05.png"])
    monkeypatch.chdir(tmp_path / "photos")
    np.testing.assert_array_equal(source[1]["image"], pixels[5])
    np.testing.assert_array_equal(in_folder[5]["image"], pixels[5])


def joined(data):
    offsets = np.cumsum([0, *map(len, data)])
    return np.frombuffer(b"".join(data), np.uint8), offsets


@pytest.mark.parametrize(
    "form",
    [list, joined, lambda data: np.array(data, object), lambda data: [*map(bytearray, data)]],
)
def test_encoded_bytes_in_memory(photos, form):
    folder, pixels = photos
    data = [path.read_bytes() for path in sorted(folder.iterdir())]
    source = {"image": Encoded(form(data)), "label": np.arange(30)}
    for record, found in enumerate(pictures(epoch_of(jk.from_source(source, 8)))):
        np.testing.assert_array_equal(found, pixels[record])


def test_a_pair_of_images_is_not_read_as_values_and_offsets():
    one, other = encoded(smooth(9, 8)), encoded(smooth(7, 6))
    for pair in ((one, other), tuple(np.frombuffer(data, np.uint8) for data in (one, other))):
        assert Encoded(pair).headers.size.tolist() == [[9, 8], [7, 6]]


@native_jpeg
def test_bytes_before_the_first_marker_are_skipped():
    data = encoded(smooth(9, 8))
    found = decoding.decode_image(data[:2] + b"\0\0" + data[2:], 3, 1000, "padded")
    np.testing.assert_array_equal(found, decoded_by_pillow(data))


def test_several_fields_of_images(photos):
    folder, pixels = photos
    data = [path.read_bytes() for path in sorted(folder.iterdir())]
    source = {"image": Encoded(data), "mirror": Encoded(data[::-1], channels=1)}
    batch = next(iter(jk.from_source(source, 30)))
    (last,) = images_of(batch["mirror"], [0])
    np.testing.assert_array_equal(last, decoded_by_pillow(data[29], 1))
    np.testing.assert_array_equal(images_of(batch["image"], [3])[0], pixels[3])


@native_jpeg
def test_the_byte_ranges_that_native_threads_read(photos):
    folder, pixels = photos
    files = [path for path in sorted(folder.iterdir()) if path.suffix == ".jpeg"]
    sizes = [pixels[int(path.stem)].shape[:2] for path in files]
    labels = np.arange(len(files))
    part = [5, 2, 2, 7]
    in_files = ImageFiles(files, {"label": labels}, channels=1, max_pixels=5000)
    data = [path.read_bytes() for path in files]
    in_memory = as_source({"image": Encoded(data), "label": labels})
    wholes = [(source, labels) for source in (in_files, in_memory)]
    for source, records in [*wholes, *((Subset(source, part), part) for source, _ in wholes)]:
        found = source.encoded_images()["image"]
        rows = source.rows_of(np.arange(len(source)))
        np.testing.assert_array_equal(found.size[rows], np.array(sizes)[records])
        np.testing.assert_array_equal(source.row_arrays()["label"][rows], records)
        for (blob, start, length), record in zip(found.ranges[rows], records, strict=True):
            text = found.blobs[blob][start : start + length].tobytes()
            is_name = text == os.fsencode(files[record])
            assert is_name if found.in_files else text == files[record].read_bytes()
    found = in_files.encoded_images()["image"]
    assert (found.channels, found.max_pixels, found.codec) == (1, 5000, "jpeg")
    mixed = ImageFiles(sorted(folder.iterdir()), {"label": np.arange(30)})
    small = ImageFiles(files, {"label": labels}, max_size=(25, 50))  # `gather` says what is wrong
    for source in (mixed, small):
        assert source.encoded_images() == {}
        assert source.row_arrays() is None


@native_jpeg
def test_zipped_parts_of_files_are_decoded_natively(photos):
    """Would catch an image of another row than its label, or a slower path without a reason."""
    folder, _ = photos
    files = [path for path in sorted(folder.iterdir()) if path.suffix == ".jpeg"]
    part = Subset(ImageFiles(files, {"number": np.arange(len(files))}), [7, 5, 3, 1])
    source = jk.zip(part, {"label": np.arange(6)})
    chain = im.Compose([im.RandomResizedCrop(8), im.RandomHorizontalFlip(0.5)])
    pipe, alone = (jk.from_source(source, 2, True, 1, num_workers=n) >> chain for n in (2, 0))
    assert is_native(pipe)
    found = epoch_of(pipe)
    assert_same(found, epoch_of(alone))
    numbers = np.array([7, 5, 3, 1])[column(found, "label")]
    np.testing.assert_array_equal(column(found, "number"), numbers)


@native_jpeg
def test_explain_says_what_decodes(photos, monkeypatch):
    folder, _ = photos
    pipe = jk.from_source(ImageFiles(sorted(folder.iterdir())), 4)
    text = str(pipe.explain())
    name = registry.module("cpu").jpeg_decoder()
    assert f"image: 20 JPEG by {name}; 10 PNG by Pillow in worker threads" in text
    assert "10 of 30 images are not JPEG" in text
    assert "02.png" in text
    monkeypatch.setattr(decoding, "_native", lambda: None)
    monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    text = str((jk.from_source(Subset(ImageFiles(sorted(folder.iterdir())), [0]), 1)).explain())
    reason = "jaxkern was built without libjpeg-turbo"
    assert f"20 JPEG by Pillow {PIL.__version__} ({reason})" in text


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_max_pixels_is_checked_before_decoding(kind, decoder):
    data = encoded(smooth(40, 50), kind)
    for place in range(len(data) - 4):  # claims a size that would take 12 GB
        if data[place : place + 4] in (b"\0\x28\0\x32", b"\0\0\0\x32"):
            high = data[:place] + b"\xff\xff\xff\xfe" + data[place + 4 :]
            break
    if kind == "JPEG":
        with pytest.raises(OSError, match=r"a\.jpg: .*(65535 x 65534|4294770690)"):
            decoding.decode_image(high, 3, decoding.MAX_PIXELS, "a.jpg")
    good = encoded(smooth(10, 10), kind)
    limit = {"max_pixels": 1999, "max_size": None}
    with raises(OSError, "max_pixels=1999") as caught:
        next(iter(jk.from_source({"image": Encoded([good, data], **limit)}, 2)))
    assert "while reading record 1" in caught.value.__notes__[0]
    masked = {"image": Encoded([good, data, high], on_bad_record="mask", **limit)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
        batches = iter(jk.from_source(masked, 3))
        batch = next(batches)
    assert np.asarray(batch["valid"]).tolist() == [True, False, False]
    assert batch["image"].height.tolist() == [10, 10, 10]  # not what the header claims
    assert batches.bad_records == 2


def test_evaluation_chain_of_mixed_files(photos):
    folder, pixels = photos
    chain = im.Compose([im.Resize(24), im.CenterCrop(16), im.Normalize(0.5, 0.5)])
    source = ImageFiles(sorted(folder.iterdir()), {"label": np.arange(30)})
    found = epoch_of(jk.from_source(source, 10, pad_remainder=True) >> chain)
    ragged = im.Ragged.from_list(pixels)
    keys = jk.random.record_keys(0, 0, np.arange(30))
    expected = np.asarray(chain(keys, ragged))
    np.testing.assert_array_equal(np.concatenate([batch["image"] for batch in found]), expected)


@native_jpeg
def test_pixels_do_not_depend_on_the_decoder(tmp_path, monkeypatch):
    for k in range(12):
        path = tmp_path / "ab"[k % 2] / f"{k}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(smooth(30 + k, 50 - k), orientation=1 + k % 8))
    chain = im.Compose([im.RandomResizedCrop(12), im.RandomHorizontalFlip(0.5)])

    def epoch(**options):
        pipe = jk.from_source(ImageFolder(tmp_path, **options), 5, shuffle=True, seed=2) >> chain
        return [batch["image"] for batch in epoch_of(pipe)]

    native = epoch()
    monkeypatch.setattr(decoding, "_native", lambda: None)
    for one, other in zip(native, epoch(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_sorted_as_paths_are(tmp_path):
    names = ["b/a-1.jpg", "b/a/z.jpg", "b/a/a.JPG", "b/a.jpg", "a/x.png", "c/d/e/f.webp", "b/n.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "c" / "loop").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    source = ImageFolder(tmp_path)
    assert source.classes == ["a", "b", "c", "linked"]
    images = sorted(tmp_path / name for name in [*names[:-1], "linked/x.png"])
    assert list(source.files) == images
    assert [source.classes[label] for label in source.labels] == [
        path.relative_to(tmp_path).parts[0] for path in images
    ]


@pytest.mark.parametrize(
    ("make", "error", "facts"),
    [
        (lambda: ImageFiles("a.jpg"), TypeError, ["paths", "'a.jpg'"]),
        (lambda: ImageFiles([]), FileNotFoundError, ["paths"]),
        (lambda: ImageFiles(["a.jpg"], {"label": [1, 2]}), ValueError, ["'label': 2"]),
        (lambda: ImageFiles(["a.jpg"], {"image": [1]}), ValueError, ["'image'"]),
        (lambda: ImageFiles(["a.jpg"], {"valid": [1]}, 3, None, "mask"), ValueError, ["'valid'"]),
        (lambda: ImageFiles(["a\0.jpg"]), ValueError, ["zero byte"]),
        (lambda: ImageFiles(["a.jpg"], max_size=5), ValueError, ["max_size", "5"]),
        (lambda: Encoded(b"abc"), TypeError, ["images", "bytes"]),
        (lambda: Encoded([b"a", "b"]), TypeError, ["image 1", "'b'"]),
        (lambda: Encoded(np.array([b"a\0"])), TypeError, ["trailing zero"]),
        (lambda: Encoded((np.zeros(5, np.uint8), [0, 3, 6])), ValueError, ["offsets"]),
        (lambda: Encoded((np.zeros(5, np.uint8), [0, 4, 3])), ValueError, ["offsets"]),
        (lambda: Encoded((np.zeros(5), [0, 4])), TypeError, ["values", "float64"]),
        (
            lambda: as_source({"image": Encoded([b""]), "label": [1, 2, 3]}),
            ValueError,
            ["'label': 3"],
        ),
    ],
)
def test_invalid_arguments(make, error, facts):
    with raises(error, *facts):
        make()


def test_a_missing_file_is_named(tmp_path):
    with raises(FileNotFoundError, "gone.jpg") as caught:
        next(iter(jk.from_source(ImageFiles([tmp_path / "gone.jpg"], max_size=(9, 9)), 1)))
    assert "while reading record 0 of ImageFiles(image; 1 records)" in caught.value.__notes__[0]


@native_jpeg
def test_scaled_decoding_is_close_and_says_so(tmp_path):
    (tmp_path / "a").mkdir()
    y, x = np.mgrid[:300, :400]
    image = np.stack([y // 2, x // 2, (x + y) // 3], -1).astype(np.uint8)
    (tmp_path / "a" / "a.jpg").write_bytes(encoded(image, quality=95))
    found = {}
    for decode in ("full", "scaled"):
        source = ImageFolder(tmp_path, decode=decode)
        assert source.encoded_images()["image"].scaled == (decode == "scaled")
        pipe = jk.from_source(source, 1) >> im.Compose([im.Resize((30, 40)), im.ToDtype("float32")])
        found[decode] = np.asarray(next(iter(pipe))["image"])
    difference = np.abs(found["full"] - found["scaled"])
    assert 0 < difference.max() < 8  # of 255
    assert source.describe() == "ImageFolder(image decoded scaled)"
    with raises(ValueError, "decode", "'half'"):
        ImageFolder(tmp_path, decode="half")


def test_records_with_encoded_images(photos):
    folder, pixels = photos
    calls = []

    class Records:
        def __len__(self):
            return 30

        def __getitem__(self, k):
            calls.append(k)
            data = sorted(folder.iterdir())[k].read_bytes()
            kinds = [data, np.frombuffer(data, np.uint8), bytearray(data)]
            return {"image": kinds[k % 3], "x": np.full(2, k), "mirror": data}

    source = EncodedRecords(Records(), ["image", "mirror"], max_size=(60, 60))
    batches = epoch_of(jk.from_source(source, 7, num_workers=1))
    assert sorted(calls) == list(range(30))  # each once, and no pass over the headers
    for record, found in enumerate(pictures(batches)):
        np.testing.assert_array_equal(found, pixels[record])
    np.testing.assert_array_equal(images_of(batches[1]["mirror"], [0])[0], pixels[7])
    np.testing.assert_array_equal(batches[1]["x"][0], [7, 7])
    assert batches[0]["image"].max_height == 60
    largest = tuple(np.max([image.shape[:2] for image in pixels], 0))
    assert EncodedRecords(Records()).images["image"].max_size == largest
    text = str(jk.from_source(source, 7).explain())
    assert "in worker threads" in text


def test_records_with_bad_images():
    good = encoded(smooth(12, 14))
    records = [{"image": good}, {"image": good[:-20]}, {"image": b""}, {"image": good}]
    source = EncodedRecords(records, max_size=(20, 20), on_bad_record="mask")
    batches = iter(jk.from_source(source, 4))
    batch = next(batches)
    assert np.asarray(batch["valid"]).tolist() == [True, False, False, True]
    assert batch["image"].height.tolist() == [12, 12, 20, 12]
    assert batches.bad_records == 2
    assert [record for _, record in source.bad_images] == [1, 2]
    with pytest.raises(OSError, match=r"record 1: it is truncated|image file is truncated"):
        next(iter(jk.from_source(EncodedRecords(records, max_size=(20, 20)), 2)))
    with raises(TypeError, "record 0 of", "['image']", "'photo'"):
        next(iter(jk.from_source(EncodedRecords(records, "photo", max_size=(9, 9)), 2)))
    with raises(TypeError, "image 0", "'text'"):
        next(iter(jk.from_source(EncodedRecords([{"image": "text"}], max_size=(9, 9)), 1)))
    with raises(ValueError, "fields", "empty"):
        EncodedRecords(records, ())
