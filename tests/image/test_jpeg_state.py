"""Sequences of JPEG images that one thread decodes, against Pillow."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from PIL import Image

import jaxkern as jk
from jaxkern.core import registry
from jaxkern.pipeline.sources.images import decoding

NATIVE = registry.module("cpu")
if NATIVE is None or not NATIVE.jpeg_decoder():
    if "jpeg" not in os.environ.get("JAXKERN_REQUIRE", ""):
        pytest.skip("this installation has no native JPEG decoder", allow_module_level=True)

DQT, DHT, DRI, ADOBE = 0xDB, 0xC4, 0xDD, 0xEE
SIZE = (24, 40)


def photograph(seed, mode="RGB"):
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (6, 9, len(mode)), np.uint8).squeeze()
    return Image.fromarray(small, mode).resize(SIZE[::-1])


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


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
        yield without(
            encoded(image, progressive=True), DHT
        )  # progressive files have no standard tables
        yield encoded(photograph(seed, "CMYK"))
        yield without(encoded(photograph(seed, "CMYK")), ADOBE, DHT)


def by_pillow(data):
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
    pixels, good = zip(*map(by_pillow, files), strict=True)
    assert 0.3 < np.mean(good) < 0.7
    return files, np.stack(pixels), np.array(good)


@pytest.mark.parametrize(
    ("backend", "threads"),
    [("native", 1), pytest.param("native", 2, marks=pytest.mark.slow), ("native", 8), ("jax", 1)],
)
def test_the_op(mixture, backend, threads):
    files, pixels, good = mixture
    buffer, offsets = np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])
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
            NATIVE.jpeg_decode(np.frombuffer(before, np.uint8), out)
            with pytest.raises(ValueError, match=name):
                NATIVE.jpeg_decode(np.frombuffer(data, np.uint8), out)


def as_images(ragged):
    buffer, places = np.asarray(ragged.buffer), (ragged.offset, ragged.height, ragged.width)
    numbers = zip(*(np.asarray(place).tolist() for place in places), strict=True)
    return [buffer[o : o + h * w * 3].reshape(h, w, 3) for o, h, w in numbers]


@pytest.mark.parametrize(
    "workers", [0, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8))]
)
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
            found = image if decoder == "native threads" else as_images(image)
            np.testing.assert_array_equal(np.stack(found), pixels[number])
            seen += len(number)
        assert seen == len(files)
