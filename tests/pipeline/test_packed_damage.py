"""Packed files that are damaged, truncated, foreign or hostile.

Would catch: wrong values that are returned silently, an error that does not name its file and
record, an error in the wrong batch, and a read beyond the end of the file.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct

import numpy as np
import PIL.Image
import pytest
from support.errors import raises
from support.pipeline.batches import assert_same, epoch_of, is_native

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import ImageFolder, PackedSource, pack
from jaxkern.pipeline.sources.packed.layout import encode_header, encode_index, open_packed

BAD = 5


def write(path, source, **how):
    pack(source, path, progress=False, **how)
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A packed file of each kind, and its records."""
    root = tmp_path_factory.mktemp("sources")
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (11, 40, 40, 3), np.uint8)
    vectors = random.random((11, 90), np.float32)
    for k in range(11):
        path = root / "photos" / "ab"[k % 2] / f"{k:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(pixels[k, : 10 + k]).save(path)
    fixed = {"image": pixels, "vector": vectors, "id": np.arange(11)}
    photos = ImageFolder(root / "photos")
    paths = {
        "one size": write(root / "one size.jkp", fixed, format="raw"),
        "raw": write(root / "raw.jkp", photos, format="raw"),
        "jpeg": write(root / "jpeg.jkp", photos, format="jpeg"),
    }
    return {name: (path, list(PackedSource(path))) for name, path in paths.items()}


@pytest.fixture(params=["one size", "raw", "jpeg"])
def whole(request, sources):
    return sources[request.param]


def damaged_copy(path, folder, at=9, field="image"):
    """A copy in which bytes of a record are others."""
    copy = folder / "damaged.jkp"
    shutil.copy(path, copy)
    offset = int(open_packed(path)[1].columns[field]["offset"][BAD])
    with open(copy, "r+b") as file:
        file.seek(offset + at)
        byte = file.read(1)[0]
        file.seek(offset + at)
        file.write(bytes([byte ^ 4]))
    return copy, offset


def test_a_damaged_record_is_named(whole, tmp_path):
    path, records = whole
    copy, offset = damaged_copy(path, tmp_path)
    said = rf"damaged.jkp: record {BAD}, field 'image', is damaged: .* at offset {offset}"
    source = PackedSource(copy)
    with pytest.raises(ValueError, match=said):
        source[BAD]
    with pytest.raises(ValueError, match=said):
        source.check(np.arange(11))
    (found,) = source.damaged()
    assert (found.path, found.record, found.field, found.begin) == (copy, BAD, "image", offset)
    for record in range(11):
        if record != BAD:
            assert_same([source[record]], [records[record]])
    assert not list(PackedSource(path).damaged())


def test_the_first_of_many_is_named(tmp_path, monkeypatch):
    """Those are compared by several threads."""
    monkeypatch.setenv("JAXKERN_NUM_THREADS", "3")
    path = write(tmp_path / "x.jkp", {"x": np.arange(400 * 65).reshape(400, 65)})
    with open(path, "r+b") as file:
        for record in (351, 180, 21):
            file.seek(int(open_packed(path)[1].columns["x"]["offset"][record]))
            file.write(b"damaged")
    source = PackedSource(path)
    for records, first in ((np.arange(400), 21), (np.arange(400)[::-1], 351), (np.r_[:400], 21)):
        with raises(ValueError, f"record {first}", "field 'x'"):
            source.check(records)
    source.check(np.setdiff1d(np.arange(400), [351, 180, 21]))
    assert [damage.record for damage in source.damaged()] == [21, 180, 351]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_error_is_raised_for_its_batch(sources, tmp_path, workers):
    """With workers, native threads read the map; without, Python does."""
    path, _ = sources["one size"]
    copy, _ = damaged_copy(path, tmp_path, field="vector")
    chain = im.Compose([im.RandomCrop(20)]) if workers else lambda batch: batch
    expected = epoch_of(jk.from_source(path, 2, num_workers=workers) >> chain)
    pipe = jk.from_source(copy, 2, num_workers=workers) >> chain
    assert (is_native(pipe)) == (workers > 0)
    for _ in range(2):  # what is damaged stays so in the next epoch
        pipe.epoch = 0
        batches, found = iter(pipe), []
        for k in range(6):
            if k == BAD // 2:
                with raises(ValueError, f"record {BAD}", "field 'vector'"):
                    next(batches)
                found.append(expected[k])
            else:
                found += epoch_of([next(batches)])
        assert_same(found, expected)
        assert next(batches, None) is None


def test_who_trusts_a_file_reads_what_is_there(sources, tmp_path):
    path, records = sources["raw"]
    copy, _ = damaged_copy(path, tmp_path)
    found = PackedSource(copy, verify="never")[BAD]["image"]
    assert (found != records[BAD]["image"]).sum() == 1
    with raises(ValueError, "verify", "'always'"):
        PackedSource(path, verify="always")


def test_a_damaged_record_is_masked(whole, tmp_path):
    path, _ = whole
    copy, _ = damaged_copy(path, tmp_path)
    pipe = jk.from_source(PackedSource(copy, on_bad_record="mask"), 4, True, 3)
    batches = iter(pipe)
    expected = epoch_of(jk.from_source(path, 4, True, 3))
    order = [r for b in epoch_of(jk.from_source({"r": np.arange(11)}, 4, True, 3)) for r in b["r"]]
    valid = []
    for found, same in zip(epoch_of(batches), expected, strict=True):
        rows = len(found["valid"])
        here = order[len(valid) : len(valid) + rows]
        valid += found.pop("valid").tolist()
        for row, record in enumerate(here):
            for field in found:
                one, other = (jk.pipeline.rows.row_of(b, row)[field] for b in (found, same))
                masked = record == BAD and field in ("image", "vector")
                np.testing.assert_array_equal(one, np.zeros_like(other) if masked else other)
    assert valid == [record != BAD for record in order]
    assert batches.bad_records == 1


def test_a_jpeg_that_is_none(tmp_path, sources):
    """Whole by its checksum, since it was packed so."""
    path, _ = sources["jpeg"]
    index = open_packed(path)[1]
    forged = forge(path, tmp_path, {"shape": index.columns["image"]["shape"] + 1})
    said = r"record 2, field 'image', of .*forged.jkp: .* index has"
    with pytest.raises(ValueError, match=said):
        PackedSource(forged)[2]
    with raises(OSError, "max_pixels=99"):
        PackedSource(path, max_pixels=99)[2]
    masked = PackedSource(forged, on_bad_record="mask")
    assert not masked[2]["valid"]
    assert not masked[2]["image"].any()
    # Of sides that no memory has.
    forged = forge(path, tmp_path, {"shape": np.full_like(index.columns["image"]["shape"], 2**30)})
    masked = PackedSource(forged, on_bad_record="mask")[2]
    assert not masked["valid"]
    assert masked["image"].shape == (1, 1, 3)


def test_any_damage_is_right_values_or_an_error(whole, tmp_path):
    path, records = whole
    bytes_of = np.fromfile(path, np.uint8)
    random = np.random.default_rng(0)
    copy = tmp_path / "fuzzed.jkp"
    errors = []
    index_at = struct.unpack_from("<Q", bytes_of, 24)[0]
    for turn in range(150):
        data = bytes_of.copy()
        if turn % 3 == 0:
            data = data[: random.integers(0, len(data))]
        else:  # in the header, the index or anywhere
            low, high = [(0, 68), (index_at, len(data)), (0, len(data))][turn % 5 % 3]
            data[random.integers(low, high, turn % 4 + 1)] ^= np.uint8(1 << turn % 8)
        data.tofile(copy)
        try:
            found = [PackedSource(copy)[record] for record in range(11)]
        except ValueError as error:
            errors.append(str(error))
        else:
            assert_same(found, records)
    assert all(str(copy) in error for error in errors), errors
    assert len(errors) > 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: bytes(5000), "is empty or incomplete"),
        (lambda data: b"PK" + data, "is not a packed file"),
        (lambda data: data[:40], "is truncated within its header"),
        (lambda data: data[:-1], "is truncated: it has"),
        (lambda data: data + b"x", "has grown: it has"),
        (lambda data: data[:8] + b"\x02\0\0\0" + data[12:], "has version 2.* reads 1; upgrade"),
        (lambda data: data[:20] + b"x" + data[21:], "has a damaged header"),
        (lambda data: data[:-9] + b"x" + data[-8:], "has a damaged index"),
    ],
)
def test_what_is_no_packed_file(change, message, sources, tmp_path):
    path = tmp_path / "other.jkp"
    path.write_bytes(change(sources["one size"][0].read_bytes()))
    with pytest.raises(ValueError, match=f"other.jkp {message}"):
        jk.from_source(path, 2)


def forge(path, folder, columns=None, text=None, records=None):
    """The file with another index, whose checksums are right."""
    _, old = open_packed(path)
    changed = {**old.columns, "image": {**old.columns["image"], **(columns or {})}}
    index = encode_index(dataclasses.replace(old, columns=changed))
    if text is not None:
        (length,) = struct.unpack_from("<Q", index)
        about = text if isinstance(text, bytes) else json.dumps(text).encode()
        index = struct.pack("<Q", len(about)) + about + index[8 + length :]
    at = struct.unpack_from("<Q", path.read_bytes(), 24)[0]
    count = old.records if records is None else records
    forged = folder / "forged.jkp"
    body = path.read_bytes()[:at]
    head = encode_header(count, at, index)
    forged.write_bytes(head + body[len(head) :] + index)
    return forged


FIELD = {"name": "x", "codec": "column", "dtype": "float32", "shape": []}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"offset": -1}}, "are not within the file"),
        ({"columns": {"offset": 2**62}}, "are not within the file"),
        ({"columns": {"size": 2**63 - 1}}, "are not within the file"),
        ({"columns": {"size": -4096}}, "are not within the file"),
        ({"columns": {"offset": 4097}}, "are not aligned"),
        ({"columns": {"shape": -1}}, "have invalid shapes"),
        ({"columns": {"shape": 2**31 - 1}}, "sizes that contradict"),
        ({"columns": {"shape": 1 << 22}}, "sizes that contradict"),
        # Whose product is that size in 64 bits.
        ({"columns": {"shape": [5630056, 3646834, 4492220]}}, "sizes that contradict"),
        ({"columns": {"shape": 7}}, "sizes that contradict"),
        ({"records": 2**63}, "inconsistent header"),
        ({"records": 0}, "inconsistent header"),
        ({"records": 2**61}, "too short for its records"),
        ({"records": 3}, "too long for its records"),
        ({"text": b"[" * 100_000}, "invalid text"),
        ({"text": b"\xff"}, "invalid text"),
        ({"text": []}, "invalid text"),
        ({"text": {"fields": [], "metadata": {}}}, "invalid text"),
        ({"text": {"fields": [FIELD, FIELD], "metadata": {}}}, "invalid text"),
        ({"text": {"fields": [FIELD], "metadata": 3}}, "invalid text"),
        *(
            ({"text": {"fields": [{**FIELD, **change}], "metadata": {}}}, "invalid text")
            for change in (
                {"dtype": "object"}, {"dtype": "O"}, {"dtype": ["f4"]}, {"dtype": "datetime64"},
                {"codec": "pickle"}, {"name": 3}, {"shape": 3}, {"shape": [-1]}, {"shape": [1.5]},
                {"shape": [True]}, {"shape": [2**40]}, {"shape": [1] * 40},
                {"shape": [0] + [2**31 - 1] * 3}, {"codec": "jpeg", "dtype": "uint8"},
            )
        ),
        ({"text": {"fields": [{**FIELD, "shape": [2**31 - 1] * 9}], "metadata": {}}}, "too short"),
    ],
)  # fmt: skip
def test_an_index_that_lies(changes, message, sources, tmp_path):
    path, _ = sources["one size"]
    whole = open_packed(path)[1].columns["image"]
    columns = {
        name: np.broadcast_to(np.asarray(value, whole[name].dtype), whole[name].shape)
        for name, value in changes.get("columns", {}).items()
    }
    forged = forge(path, tmp_path, **{**changes, "columns": columns})
    with pytest.raises(ValueError, match=f"forged.jkp has .*{message}"):
        PackedSource(forged)


def test_an_index_in_any_order_is_valid(sources, tmp_path):
    """Records in reverse order, or that overlap, are within the file."""
    path, records = sources["one size"]
    columns = open_packed(path)[1].columns["image"]
    for order in (np.arange(11)[::-1], np.zeros(11, int), np.arange(11) ** 2 % 11):
        forged = forge(path, tmp_path, {name: column[order] for name, column in columns.items()})
        found = epoch_of(jk.from_source(forged, 3))
        images = np.concatenate([batch["image"] for batch in found])
        np.testing.assert_array_equal(images, [records[k]["image"] for k in order])


@pytest.mark.parametrize("kind", ["one size", "jpeg"])
def test_a_file_that_is_cut_while_it_is_open(kind, sources, tmp_path):
    shutil.copy(sources[kind][0], tmp_path / "x.jkp")
    pipe = jk.from_source(tmp_path / "x.jkp", 4)
    source = PackedSource(shutil.copy(sources[kind][0], tmp_path / "y.jkp"))
    for path in ("x.jkp", "y.jkp"):
        with open(tmp_path / path, "r+b") as file:
            file.truncate(5000)
    said = r"5000 bytes"
    with pytest.raises(OSError, match=said):
        next(iter(pipe))
    for look in (source.describe, source.info, lambda: list(source.damaged())):
        with pytest.raises(OSError, match=said):
            look()
