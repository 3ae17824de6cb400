"""JPEG decoding and header parsing against Pillow, and errors for hostile files."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageOps
from support.errors import raises
from support.image.comparison import slow

import jaxkern as jk
from jaxkern.core import registry
from jaxkern.pipeline.sources.images import decoding

NATIVE = registry.module("cpu")
if NATIVE is None or not NATIVE.jpeg_decoder():
    if "jpeg" not in os.environ.get("JAXKERN_REQUIRE", ""):
        pytest.skip("this installation has no native JPEG decoder", allow_module_level=True)

KINDS = sorted((Path(__file__).parent / "jpeg").glob("*.jpg"))
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ORIENTATION = 0x0112


def picture(height=61, width=97, mode="RGB"):
    random = np.random.default_rng(height * width)
    shape = (height // 5 + 1, width // 5 + 1, len(mode))
    small = random.integers(0, 256, shape, dtype=np.uint8)
    bands = [Image.fromarray(small[..., c]).resize((width, height)) for c in range(len(mode))]
    return Image.merge(mode, bands) if len(mode) > 1 else bands[0]


def encoded(image, orientation=None, **options):
    file = io.BytesIO()
    if orientation is not None:
        options["exif"] = Image.Exif()
        options["exif"][ORIENTATION] = orientation
    image.save(file, "JPEG", **options)
    return file.getvalue()


def as_array(data):
    return np.frombuffer(data, np.uint8)


def decode(data, shape, **options):
    out = np.full(shape, 99, np.uint8)
    NATIVE.jpeg_decode(as_array(data), out, **options)
    return out


def by_pillow(data, channels=3):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(MODES[channels])
    return np.asarray(image).reshape(image.height, image.width, channels)


def problem_of(data, shape=(8, 8, 3), **options):
    with pytest.raises(ValueError, match=r"\w") as caught:
        decode(data, shape, **options)
    return str(caught.value)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem)
def test_every_kind_of_file_decodes_like_pillow(path, channels):
    data = path.read_bytes()
    expected = by_pillow(data, channels)
    np.testing.assert_array_equal(decode(data, expected.shape), expected)
    np.testing.assert_array_equal(decode(data, expected.shape, band=5), expected)
    region = decode(data, (9, 7, channels), top=6, left=11)
    np.testing.assert_array_equal(region, expected[6:15, 11:18])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("options", [{"subsampling": 2}, {"subsampling": 1, "progressive": True}])
def test_regions_refer_to_the_upright_image(orientation, options):
    data = encoded(picture(), orientation, quality=85, **options)
    whole = by_pillow(data)
    height, width = whole.shape[:2]
    info = NATIVE.jpeg_info(as_array(data))
    assert info == (61, 97, 3, orientation, "progressive" in options)
    random = np.random.default_rng(orientation)
    for k in range(30):
        top, left = random.integers(0, (height, width))
        h, w = random.integers(1, (height - top + 1, width - left + 1))
        region = decode(data, (h, w, 3), top=int(top), left=int(left), band=k % 3 * 4)
        np.testing.assert_array_equal(region, whole[top : top + h, left : left + w])


@pytest.mark.parametrize("denominator", [2, 4, 8])
def test_scaled_decodes_equal_libjpeg(denominator):
    data = encoded(picture(), quality=90)
    opened = Image.open(io.BytesIO(data))
    opened.draft(None, [n // denominator for n in opened.size])
    expected = np.asarray(opened)
    assert expected.shape[:2] == (-(-61 // denominator), -(-97 // denominator))
    np.testing.assert_array_equal(decode(data, expected.shape, denominator=denominator), expected)


@pytest.mark.parametrize("kept", [None, -5000])
def test_the_buffer_of_a_rotated_image_is_released(kept):
    """Such an image is decoded in full: otherwise each thread would keep 48 MB."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    data = encoded(Image.new("RGB", (4000, 4000)), 6)[:kept]
    before = resident()
    with contextlib.suppress(ValueError):  # also for a truncated image
        decode(data, (4000, 4000, 3), band=500)
    assert resident() - before < 24 << 20


def test_the_orientation_of_xmp_is_used_without_exif():
    plain = encoded(picture(6, 9))
    packet = b'http://ns.adobe.com/xap/1.0/\0<rdf tiff:Orientation="6"/>'
    segment = b"\xff\xe1" + (len(packet) + 2).to_bytes(2, "big") + packet
    data = plain[:2] + segment + plain[2:]
    assert NATIVE.jpeg_info(as_array(data))[3] == 6
    np.testing.assert_array_equal(decode(data, (9, 6, 3)), by_pillow(data))


@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_file_is_an_error_for_every_region(progressive):
    data = encoded(picture(), progressive=progressive, quality=80, restart_marker_rows=1)
    for end in [*range(0, len(data) - 2, 37), len(data) - 3]:
        for shape in ((61, 97, 3), (2, 3, 3)):
            problem = problem_of(data[:end], shape)
            assert any(word in problem for word in ("truncated", "no bytes", "begin")), problem
    rows = problem_of(data[: len(data) // 2], (61, 97, 3))
    assert f"{len(data) // 2} bytes" in rows
    assert ("end in scan" if progressive else "of 61 rows") in rows


def test_a_baseline_file_without_an_end_marker_is_decoded():
    data = encoded(picture())
    np.testing.assert_array_equal(decode(data[:-2], (61, 97, 3)), by_pillow(data))
    np.testing.assert_array_equal(decode(data[:-2], (2, 3, 3)), by_pillow(data)[:2, :3])


def test_extra_bytes_are_ignored():
    data = encoded(picture())
    for more in (data + b"\0" * 50, data[:-2] + b"\0\0\0" + data[-2:]):
        np.testing.assert_array_equal(decode(more, (61, 97, 3)), by_pillow(data))


def test_damage_is_an_error():
    data = bytearray(encoded(picture(), quality=95))
    middle = len(data) * 2 // 3
    data[middle : middle + 60] = b"\xff\xd3" * 30
    assert "damaged after" in problem_of(bytes(data), (61, 97, 3))


def frame(data, marker=None, **numbers):
    """Return the file with another frame header: type, bits, height, width, components."""
    changed = bytearray(data)
    at = next(i for i in range(len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
    if marker is not None:
        changed[at + 1] = marker
    places = {"bits": (4, 1), "height": (5, 2), "width": (7, 2), "components": (9, 1)}
    for name, number in numbers.items():
        start, count = places[name]
        changed[at + start : at + start + count] = number.to_bytes(count, "big")
    return bytes(changed)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"height": 65535, "width": 65535}, ("65535 x 65535", "max_pixels")),
        ({"height": 0}, ("0 x 97",)),
        ({"bits": 12}, ("bits", "12")),
        ({"components": 2}, ("components", "2")),
        ({"marker": 0xC3}, ("lossless",)),
        ({"marker": 0xC5}, ("hierarchical",)),
    ],
)
def test_unsupported_frames_are_errors_of_the_header(changes, facts):
    data = frame(encoded(picture()), **changes)
    assert all(fact in problem_of(data) for fact in facts)
    if "max_pixels" not in facts:
        with pytest.raises(ValueError, match=".*".join(facts)):
            NATIVE.jpeg_info(as_array(data))


def test_max_pixels_limits_the_whole_image():
    data = encoded(picture())
    problem = problem_of(data, max_pixels=61 * 97 - 1)
    assert "max_pixels" in problem
    assert "5916" in problem
    decode(data, (8, 8, 3), max_pixels=61 * 97)


def test_a_file_with_too_many_scans_is_an_error():
    data = encoded(picture(16, 16), progressive=True)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff", start + 12)  # of the first scan, which has no restart markers
    while data[end + 1] == 0:
        end = data.index(b"\xff", end + 2)
    bomb = data[:end] + data[start:end] * 600 + data[end:]
    assert "more than 500 scans" in problem_of(bomb)


@pytest.mark.parametrize(
    ("top", "left", "height", "width"), [(-1, 0, 4, 4), (60, 0, 2, 4), (0, 94, 1, 4)]
)
def test_regions_outside_are_errors(top, left, height, width):
    problem = problem_of(encoded(picture()), (height, width, 3), top=top, left=left)
    assert f"{height} x {width} at ({top}, {left})" in problem
    assert "61 x 97" in problem


def memory(name):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


def test_decoding_rows_of_a_tall_baseline_file_uses_little_memory():
    data = encoded(picture(400, 60).resize((600, 20000), Image.Resampling.NEAREST))
    out = np.ones((64, 500, 3), np.uint8)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    NATIVE.jpeg_decode(as_array(data), out, top=19000, left=50, band=8)
    assert memory("VmHWM") - before < 4 << 20  # the pixels have 36 MB


def test_symbols_of_libjpeg_are_hidden():
    module = ctypes.CDLL(NATIVE.__file__)
    with pytest.raises(AttributeError):
        module.jpeg_read_header  # noqa: B018


# The op.


@pytest.fixture(params=["jax", "native"])
def op_backend(request):
    with jk.backend(request.param):
        yield request.param


def batch_of_files():
    """Return bytes, offsets and arrays of eight files of different sizes and kinds."""
    files = [
        encoded(picture(20 + k, 33 - 2 * k, "L" if k == 3 else "RGB"), k + 1, progressive=k % 2)
        for k in range(8)
    ]
    offsets = np.cumsum([0, *map(len, files)])
    return as_array(b"".join(files)), offsets, [by_pillow(file) for file in files]


def on_canvas(arrays, size):
    images = np.zeros((len(arrays), *size, 3), np.uint8)
    for image, array in zip(images, arrays, strict=True):
        image[: array.shape[0], : array.shape[1]] = array
    return images


def test_the_op_fills_canvases_with_images_and_zeros(op_backend):
    buffer, offsets, arrays = batch_of_files()
    expected = on_canvas(arrays, (40, 36))

    @jax.jit
    def run(buffer, offsets):
        return jk.image.decode_jpeg(buffer, offsets, size=(40, 36))

    images, sizes = run(buffer, offsets)
    np.testing.assert_array_equal(images, expected)
    assert sizes.tolist() == [list(array.shape[:2]) for array in arrays]
    # Offsets in another order, with lengths.
    order = np.array([5, 0, 5])
    images, _ = jk.image.decode_jpeg(buffer, offsets[order], np.diff(offsets)[order], size=(40, 36))
    np.testing.assert_array_equal(images, expected[order])


def test_the_op_under_vmap(op_backend):
    buffer, offsets, arrays = batch_of_files()
    expected = on_canvas(arrays, (40, 40))
    two = jax.vmap(lambda o: jk.image.decode_jpeg(buffer, o, size=40)[0])
    images = two(np.stack([offsets[:4], offsets[4:8]]))
    np.testing.assert_array_equal(images, np.stack([expected[:3], expected[4:7]]))


@pytest.mark.parametrize(
    ("spoil", "fact"),
    [
        (lambda b, o: (b, np.array([*o[:2], -5, *o[3:]])), "'buffer'"),
        (lambda b, o: (b, np.array([*o[:2], 2**31 - 1, *o[3:]])), "'buffer'"),
        (lambda b, o: (np.where(np.arange(b.size) == o[2], 0, b).astype(np.uint8), o), "JPEG"),
    ],
)
def test_the_op_names_a_bad_image_or_masks_it(op_backend, spoil, fact):
    buffer, offsets, arrays = batch_of_files()
    bad, places = spoil(buffer, offsets)
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"image [12]: .*{fact}"):
        jax.block_until_ready(jk.image.decode_jpeg(bad, places, size=40))
    images, sizes = jk.image.decode_jpeg(bad, places, size=40, on_bad="mask")
    good = np.asarray(sizes)[:, 0] > 0
    assert good.tolist() == [True, places[2] == offsets[2], False, *[True] * 5]
    expected = on_canvas(arrays, (40, 40))
    expected[~good] = 0
    np.testing.assert_array_equal(images, expected)


def test_an_image_larger_than_the_canvas_or_max_pixels_is_an_error(op_backend):
    buffer, offsets, arrays = batch_of_files()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"image 0: (?=.*20 x 33)(?=.*40 x 30)"):
        jax.block_until_ready(jk.image.decode_jpeg(buffer, offsets, size=(40, 30)))
    with raises(jax.errors.JaxRuntimeError, "max_pixels", "600"):
        jax.block_until_ready(jk.image.decode_jpeg(buffer, offsets, size=40, max_pixels=600))
    _, sizes = jk.image.decode_jpeg(buffer, offsets, size=(40, 30), on_bad="mask")
    assert sizes[0].tolist() == [0, 0]
    assert sizes[7].tolist() == list(arrays[7].shape[:2])


def test_the_op_scales(op_backend):
    buffer, offsets, arrays = batch_of_files()
    _, sizes = jk.image.decode_jpeg(buffer, offsets, size=20, denominator=2, channels=1)
    assert sizes.tolist() == [[-(-n // 2) for n in array.shape[:2]] for array in arrays]


def test_arguments_of_decode_jpeg_are_checked():
    data, offsets = as_array(encoded(picture())), jnp.array([0, 5])
    for wrong, words in [
        ({"size": 0}, "size is 0"),
        ({"size": 8, "channels": 2}, "channels: .* got 2"),
        ({"size": 8, "on_bad": "skip"}, "on_bad: .* got 'skip'"),
        ({"size": 8, "denominator": 3}, "denominator: .* got 3"),
        ({"size": 8, "max_pixels": 0}, "max_pixels is 0"),
        ({"size": 8, "lengths": jnp.zeros(3, np.int32)}, "lengths: expected 2 .* got 3"),
    ]:
        with pytest.raises(ValueError, match=words):
            jk.image.decode_jpeg(data, offsets, **wrong)
    with raises(TypeError, "buffer:", "got int32[2]"):
        jk.image.decode_jpeg(offsets, offsets, size=8)
    with raises(TypeError, "offsets:", "got float32[2]"):
        jk.image.decode_jpeg(data, jnp.zeros(2), size=8)


def test_the_doctor_names_the_decoder():
    report = jk.doctor()
    assert f"{NATIVE.jpeg_decoder()}, linked" in str(report)
    assert [s.platform for s in report.ops if s.op == "jaxkern.image_decode_jpeg"] == ["cpu"]


@pytest.mark.parametrize("backend", ["auto", "jax"])
def test_a_header_with_a_huge_size_is_masked(backend):
    """The error of Pillow's limit is neither an OSError nor a ValueError."""
    data = bytearray(encoded(picture()))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xdc\xff\xdc"
    with jk.backend(backend):
        images, sizes = jk.image.decode_jpeg(
            as_array(bytes(data)), [0, len(data)], size=(4, 5), on_bad="mask"
        )
    assert sizes.tolist() == [[0, 0]]
    assert not images.any()


# Sequences of files that one thread decodes.

DQT, DHT, DRI, ADOBE = 0xDB, 0xC4, 0xDD, 0xEE
SIZE = (24, 40)


def photograph(seed, mode="RGB"):
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (6, 9, len(mode)), np.uint8).squeeze()
    return Image.fromarray(small, mode).resize(SIZE[::-1])


def without(data, *markers):
    """Return the file without the header segments of these markers."""
    parts, at = [data[:2]], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] not in markers:
            parts.append(data[at:end])
        at = end
    return b"".join([*parts, data[at:]])


def kinds():
    """Yield files with tables other than the standard ones, and files without some tables."""
    for seed in range(6):
        image = photograph(seed, "L" if seed == 3 else "RGB")
        options = [{"optimize": True}, {"progressive": True}, {"restart_marker_rows": 1}][seed % 3]
        yield encoded(image, quality=25 + 12 * seed, **options)
        frame = encoded(image, quality=90 - 12 * seed, subsampling=seed % 3)
        yield without(frame, DHT)  # like frames of Motion JPEG
        yield without(frame, DQT)
        yield without(frame, DQT, DHT)
        # Progressive files have no standard tables.
        yield without(encoded(image, progressive=True), DHT)
        yield encoded(photograph(seed, "CMYK"))
        yield without(encoded(photograph(seed, "CMYK")), ADOBE, DHT)


def pixels_of(data):
    """Return Pillow's pixels, or zeros for a file that it rejects."""
    image = Image.open(io.BytesIO(data))
    try:
        return np.asarray(image.convert("RGB")), True
    except OSError:
        return np.zeros((*SIZE, 3), np.uint8), False


@pytest.fixture(scope="module")
def mixture():
    """Return shuffled files: their bytes, Pillow's pixels, and flags of those that it decodes."""
    files = [*kinds()] * 3
    np.random.default_rng(5).shuffle(files)
    pixels, good = zip(*map(pixels_of, files), strict=True)
    assert 0.3 < np.mean(good) < 0.7
    return files, np.stack(pixels), np.array(good)


@pytest.mark.parametrize(
    ("backend", "threads"),
    [("native", 1), slow("native", 2), ("native", 8), ("jax", 1)],
)
def test_the_op(mixture, backend, threads):
    files, pixels, good = mixture
    buffer, offsets = as_array(b"".join(files)), np.cumsum([0, *map(len, files)])
    lengths = np.diff(offsets)
    jk.performance.set_num_threads(threads)
    try:
        for seed in range(4 if backend == "native" else 1):
            order = np.random.default_rng(seed).permutation(len(files))
            with jk.backend(backend):
                images, sizes = jk.image.decode_jpeg(
                    buffer, offsets[order], lengths[order], size=SIZE, on_bad="mask"
                )
            np.testing.assert_array_equal(np.asarray(sizes)[:, 0] > 0, good[order])
            np.testing.assert_array_equal(images, pixels[order])
    finally:
        jk.performance.set_num_threads(None)


def test_a_missing_table_is_named():
    jpeg = encoded(photograph(1), quality=30)
    for marker, name in [(DQT, "Quantization"), (DHT, "Huffman")]:
        data = without(encoded(photograph(1), progressive=True), marker)
        for before in (jpeg, encoded(photograph(2), progressive=True)):
            out = np.empty((*SIZE, 3), np.uint8)
            NATIVE.jpeg_decode(as_array(before), out)
            with pytest.raises(ValueError, match=name):
                NATIVE.jpeg_decode(as_array(data), out)


def as_images(ragged):
    buffer, places = np.asarray(ragged.buffer), (ragged.offset, ragged.height, ragged.width)
    numbers = zip(*(np.asarray(place).tolist() for place in places), strict=True)
    return [buffer[o : o + h * w * 3].reshape(h, w, 3) for o, h, w in numbers]


@pytest.mark.parametrize("workers", [0, 2, *(slow(n) for n in (1, 8))])
@pytest.mark.parametrize("decoder", ["native threads", "libjpeg-turbo", "simplejpeg", "Pillow"])
def test_pipelines(mixture, decoder, workers, monkeypatch):
    """Pipelines with native threads, and with worker threads and each of the libraries."""
    files, pixels, good = mixture
    if decoder in ("simplejpeg", "Pillow"):
        monkeypatch.setattr(decoding, "_native", lambda: None)
    if decoder == "Pillow":
        monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    images = jk.pipeline.Encoded(files, on_bad_record="mask")
    source = {"image": images, "number": np.arange(len(files))}
    pipe = jk.from_source(source, 9, shuffle=True, num_workers=workers)
    if decoder == "native threads":
        pipe = pipe >> jk.image.Compose([jk.image.CenterCrop(SIZE)])
    for _ in range(2):
        seen = 0
        for batch in pipe:
            image, number = batch["image"], np.asarray(batch["number"])
            np.testing.assert_array_equal(batch["valid"], good[number])
            actual = image if decoder == "native threads" else as_images(image)
            np.testing.assert_array_equal(np.stack(actual), pixels[number])
            seen += len(number)
        assert seen == len(files)
