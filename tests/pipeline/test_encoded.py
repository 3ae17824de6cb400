"""Encoded images that native threads decode, against the JAX program on fully decoded images.

Would catch: a region that leaves out a pixel that the chain reads, a crop drawn with another
record's size or from another orientation, a band of a tall image whose erasures are shifted,
a broken file that takes its batch's neighbours with it or is not named, a flag of the wrong row.
"""

from __future__ import annotations

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from support import TESTS
from support.pipeline.batches import assert_same, epoch_of, is_native
from support.pipeline.encoded_sources import PillowSource, jpeg, native_jpeg, photograph

import jaxkern as jk
from jaxkern import image as im
from jaxkern import performance
from jaxkern.ring import ProducerError

pytestmark = native_jpeg

CHAINS = {
    "crop, flip, normalize": im.Compose(
        [im.RandomResizedCrop(16), im.RandomHorizontalFlip(), im.Normalize(0.4, 0.3)]
    ),
    "evaluation": im.Compose([im.Resize(24), im.CenterCrop(16), im.Normalize(0.5, 0.2)]),
    "padding": im.Compose(
        [im.RandomCrop(40, padding=9, pad_if_needed=True), im.RandomVerticalFlip()]
    ),
    "small windows": im.Compose([im.CenterCrop((3, 5)), im.RandomVerticalFlip(), im.Pad(2)]),
    "bf16 NCHW, enlarged": im.Compose(
        [im.RandomResizedCrop((90, 31), antialias=False), im.RandomHorizontalFlip(),
         im.Normalize([0.1, 0.2, 0.3], 0.5)],
        dtype=jnp.bfloat16, layout="NCHW",
    ),
    "u8, erased": im.Compose(
        [im.RandomResizedCrop(20), im.RandomErasing(0.7, value=3), im.RandomErasing(0.7)]
    ),
    "nearest": im.Compose([im.Resize((13, 70), interpolation="nearest"), im.Pad(3)]),
    "policy": im.Compose(
        [im.RandomResizedCrop(14), im.RandAugment(2, 9), im.Normalize(0.5, 0.2),
         im.RandomErasing(0.7)]
    ),
    "two passes": im.Compose(
        [im.RandomResizedCrop(24), im.Pad(4, fill=9), im.RandomResizedCrop(12)]
    ),
}  # fmt: skip


def alone(pipe):
    """Return the same pipeline without threads, which runs the JAX program on decoded images."""
    return pipe.with_workers(0)


def assert_native(pipe, epochs=1):
    """Return the batches, made by native threads and equal to those of the program."""
    found = []
    for _ in range(epochs):
        found += epoch_of(pipe)
    assert is_native(pipe)
    other = alone(pipe)
    assert_same(found, [batch for _ in range(epochs) for batch in epoch_of(other)])
    return found


def sizes_of(count, low, high, seed=0):
    rng = np.random.default_rng(seed)
    return [(int(h), int(w)) for h, w in rng.integers(low, high, (count, 2))]


@pytest.fixture(scope="module")
def photographs():
    """JPEG of many sizes and kinds."""
    sizes = sizes_of(21, 17, 95)
    kinds = [{"subsampling": s, "progressive": p} for s in (0, 1, 2) for p in (False, True)]
    data = [
        jpeg(photograph(*size, 1 if i % 5 == 4 else 3, i), **kinds[i % len(kinds)])
        for i, size in enumerate(sizes)
    ]
    return data, sizes


def quick(names, *fast):
    """Parameters, of which all but some are slow: each compiles a program for the comparison."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", quick(CHAINS, "crop, flip, normalize", "small windows"))
def test_jpeg_in_memory(name, photographs):
    source = PillowSource(*photographs)
    pipe = jk.from_source(source, 5, True, 3, shard=(1, 2), drop_remainder=True)
    assert_native(pipe >> CHAINS[name], epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels(channels, photographs):
    chain = im.Compose([im.RandomResizedCrop(16), im.RandomHorizontalFlip()], layout="NCHW")
    source = PillowSource(*photographs, channels=channels)
    assert_native(jk.from_source(source, 8, True) >> chain)


@pytest.mark.parametrize("name", quick(["padding", "crop, flip, normalize"], "padding"))
def test_raw_pixels_are_read_where_they_lie(name):
    sizes = sizes_of(19, 5, 60)
    pixels = [photograph(*size, seed=i).tobytes() for i, size in enumerate(sizes)]
    source = PillowSource(pixels, sizes, codec="raw")
    assert_native(jk.from_source(source, 4, drop_remainder=True) >> CHAINS[name])


def test_files_as_cameras_turn_them(tmp_path):
    sizes, files = [], []
    for orientation in range(1, 9):
        height, width = 30 + orientation, 50 - 2 * orientation
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        files.append(tmp_path / f"{orientation} é.jpg")
        files[-1].write_bytes(jpeg(photograph(height, width), exif=exif))
        sizes.append((width, height) if orientation >= 5 else (height, width))
    source = PillowSource(files, sizes)
    assert_native(jk.from_source(source, 4, True) >> CHAINS["evaluation"])


TALL = {
    "crop": [im.RandomResizedCrop((40, 16), scale=(0.7, 1)), im.RandomHorizontalFlip()],
    "upside down": [im.Resize((50, 33)), im.RandomVerticalFlip(0.5), im.RandomErasing(1.0)],
    "padded window": [im.RandomCrop((2500, 30), padding=200, pad_if_needed=True, fill=7)],
    "rows left out": [im.Resize((30, 200), antialias=False), im.Pad(3, fill=1)],
}


@pytest.mark.parametrize("layout", ["NHWC", pytest.param("NCHW", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", quick(TALL, "upside down"))
def test_large_regions_come_in_bands(name, layout):
    """Above a megabyte of decoded pixels."""
    sizes = [(2100, 180), (1700, 230), (60, 70), (2000, 190)]
    exif = PIL.Image.Exif()
    exif[0x0112] = 3
    kinds = [{}, {"progressive": True}, {}, {"exif": exif}]
    data = [jpeg(photograph(*size), **kind) for size, kind in zip(sizes, kinds, strict=True)]
    chain = im.Compose([*TALL[name], im.Normalize(0.5, 0.2)], layout=layout)
    assert_native(jk.from_source(PillowSource(data, sizes), 4) >> chain)


@pytest.mark.parametrize("remainder", quick(["pad", "drop", "partial"], "pad"))
def test_other_fields_remainders_and_resume(remainder, photographs):
    more = {"pad_remainder": remainder == "pad", "drop_remainder": remainder == "drop"}
    pipe = jk.from_source(PillowSource(*photographs), 8, True, 1, **more)
    pipe = pipe >> im.Compose([im.RandomCrop(9, pad_if_needed=True), im.RandomHorizontalFlip()])
    batches = assert_native(pipe)
    numbers = np.concatenate([batch["record"] for batch in batches])
    assert len(set(numbers.tolist())) == (16 if remainder == "drop" else 21)
    for done in range(len(batches)):
        pipe.epoch = 0
        first = iter(pipe)
        for _ in range(done):
            next(first)
        later = iter(pipe)
        later.set_state(first.get_state())
        first.close()
        assert_same(epoch_of(later), batches[done:])


def test_a_place_for_decoding_is_named(photographs):
    source = PillowSource(*photographs)
    base = jk.from_source(source, 8)
    pipe = base >> CHAINS["evaluation"]
    assert [where for *_, where in pipe.explain().nodes] == ["native threads"] * 2
    assert not is_native(base)  # without a Compose, images are decoded in Python
    after_function = base >> CHAINS["evaluation"] >> (lambda batch: batch)
    assert not is_native(after_function)
    with jk.backend("jax"):
        small = base >> im.Compose([im.Resize((2, 2))])
        assert not is_native(small)
        assert len(list(small)) == len(small)


def test_one_program_draws_for_images_of_all_sizes(photographs):
    chain = im.Compose([im.RandomResizedCrop(7), im.RandomHorizontalFlip()])
    compiled = []
    for part in (slice(None), slice(3, 14)):
        data, sizes = photographs
        source = PillowSource(data[part], sizes[part])
        pipe = jk.from_source(source, 4, drop_remainder=True) >> chain
        with performance.watch_compiles() as watch:
            epoch_of(pipe)
        compiled.append((watch["trace"].compiles, watch.compiles))
    assert compiled[0][0] == 1
    assert compiled[1] == (0, 0)


def batches_with_errors(pipe):
    found, batches = [], iter(pipe)
    while True:
        try:
            found.append(epoch_of([next(batches)])[0])
        except StopIteration:
            return found, batches
        except Exception as error:
            found.append(error)


def broken_files(tmp_path, photographs):
    """21 files: 4 is truncated, 9 has changed its size since, 13 is not a JPEG file."""
    data, sizes = photographs
    data = list(data)
    data[4] = data[4][: len(data[4]) // 2]
    data[9] = jpeg(photograph(64, 99))
    data[13] = b"GIF89a"
    files = [tmp_path / f"{i}.jpg" for i in range(len(data))]
    for file, content in zip(files, data, strict=True):
        file.write_bytes(content)
    return files, sizes


def test_a_broken_file_is_an_error_in_its_batch(tmp_path, photographs):
    files, sizes = broken_files(tmp_path, photographs)
    pipe = jk.from_source(PillowSource(files, sizes), 3) >> CHAINS["padding"]
    found, _ = batches_with_errors(pipe)
    texts = {k: str(x) for k, x in enumerate(found) if isinstance(x, ProducerError)}
    assert list(texts) == [1, 3, 4]
    assert f"record 4: {files[4]}: it is truncated" in texts[1]
    assert f"record 9: {files[9]}: " in texts[3]
    assert "64 x 99" in texts[3]
    assert f"record 13: {files[13]}: " in texts[4]
    good = PillowSource(*photographs)
    expected = epoch_of(jk.from_source(good, 3) >> CHAINS["padding"])
    kept = [k for k in range(7) if k not in texts]
    assert_same([found[k] for k in kept], [expected[k] for k in kept])


@pytest.mark.parametrize(
    "name", quick(["crop, flip, normalize", "padding", "two passes", "policy"], "policy")
)
def test_masked_files_are_zeros_and_counted(name, tmp_path, photographs):
    files, sizes = broken_files(tmp_path, photographs)
    source = PillowSource(files, sizes, on_bad_record="mask")
    pipe = jk.from_source(source, 4, True, 5, pad_remainder=True) >> CHAINS[name]
    good = PillowSource(*photographs)
    good = epoch_of(jk.from_source(good, 4, True, 5, pad_remainder=True) >> CHAINS[name])
    batches = iter(pipe)
    found = epoch_of(batches)
    assert batches.bad_records == 3
    assert_same(found, epoch_of(alone(pipe)))
    for batch in found:
        assert batch["valid"].tolist() == [r not in (4, 9, 13) for r in batch["record"].tolist()]
    for batch, clean in zip(found, good, strict=True):
        rows = np.flatnonzero(batch["valid"])
        np.testing.assert_array_equal(batch["image"][rows], clean["image"][rows])


def test_what_is_no_readable_file_is_an_error_at_once(tmp_path, photographs):
    """Also where broken images are masked: there is nothing to decode."""
    data, _ = photographs
    good = tmp_path / "good.jpg"
    good.write_bytes(data[0])
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    names = ["good.jpg", "missing.jpg", "pipe.jpg", "folder.jpg", "good.jpg"]
    files = [tmp_path / name for name in names]
    height, width = photographs[1][0]
    source = PillowSource(files, [(height, width)] * 5, on_bad_record="mask")
    found, _ = batches_with_errors(jk.from_source(source, 1) >> CHAINS["evaluation"])
    assert "missing.jpg: cannot be opened: No such file" in str(found[1])
    assert "pipe.jpg: is not a regular file" in str(found[2])
    assert "folder.jpg: is not a regular file" in str(found[3])
    assert_same([found[0]["image"]], [found[4]["image"]])


def test_a_limit_of_pixels(photographs):
    data, sizes = photographs
    pixels = [h * w for h, w in sizes]
    source = PillowSource(data, sizes, max_pixels=max(pixels) - 1)
    found, _ = batches_with_errors(jk.from_source(source, 1) >> CHAINS["evaluation"])
    failed = [k for k, x in enumerate(found) if isinstance(x, ProducerError)]
    assert failed == [k for k, n in enumerate(pixels) if n == max(pixels)]
    assert "max_pixels" in str(found[failed[0]])
    assert str(max(pixels) - 1) in str(found[failed[0]])


def test_places_outside_the_bytes_are_refused():
    sizes = [(4, 5), (6, 7), (8, 9), (3, 3)]
    source = PillowSource([bytes(3 * h * w) for h, w in sizes], sizes, codec="raw")
    ranges = source.images.ranges
    ranges[1], ranges[2], ranges[3, 2] = (9, 0, 126), (0, -1, 216), 26
    found, _ = batches_with_errors(jk.from_source(source, 1) >> im.Compose([im.Resize((4, 4))]))
    assert found[0]["image"].shape == (1, 4, 4, 3)
    for k, fact in enumerate(("blob 0 to 0, got 9", "216 bytes at -1", "27 bytes"), 1):
        assert f"record {k}: " in str(found[k])
        assert fact in str(found[k])


_PEAK = """
import gc, sys
sys.path.insert(0, {folder!r})
import jaxkern as jk
from jaxkern import image as im
from support.pipeline.encoded_sources import PillowSource, jpeg, photograph

def resident(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10

# One for all runs: the program that draws its parameters is compiled once, in the first.
chain = im.Compose([im.Resize((224, 224)), im.Normalize(0.5, 0.2)])

def run(rows):
    source = PillowSource([{file!r} if rows > 1000 else {small!r}], [(rows, 500)])
    for batch in jk.from_source(source, 1, num_workers=1, prefetch_size=1) >> chain:
        assert batch["image"].shape == (1, 224, 224, 3)

for _ in range(3):
    run(700)
gc.collect()
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")  # resets the peak
before = resident("VmRSS")
run(20000)
print(resident("VmHWM") - before)
"""


@pytest.mark.slow
def test_a_tall_file_takes_little_memory(tmp_path):
    """20,000 rows of 500 pixels are 30 MB decoded; streaming takes 2 MB plus the encoded file."""
    for name, rows in (("file", 20000), ("small", 700)):
        pixels = np.tile(photograph(100, 500), (rows // 100, 1, 1))
        (tmp_path / name).write_bytes(jpeg(pixels, quality=50))
    script = _PEAK.format(
        folder=str(TESTS), file=tmp_path / "file", small=tmp_path / "small"
    ).replace("PosixPath", "__import__('pathlib').Path")
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < (tmp_path / "file").stat().st_size + (2 << 20)
