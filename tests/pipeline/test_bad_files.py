"""Image files that do not decode.

Would catch: a bad file that changes other rows, that is counted without being delivered or is not
counted at all, or that hides a file that could not be read.
"""

from __future__ import annotations

import concurrent.futures
import os

import numpy as np
import PIL.Image
import pytest
from support.errors import raises
from support.pipeline.batches import assert_same, epoch_of, is_native
from support.pipeline.encoded_sources import native_jpeg

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import Cache, Encoded, ImageFiles, ImageFolder, Rebatch, Subset

BAD = {3: "truncated", 9: "empty", 10: "text"}
SIZE = im.Compose([im.RandomResizedCrop(6), im.Normalize(0.5, 0.5)])


def write(root, damaged):
    """14 photographs of 14 sizes in two classes."""
    rng = np.random.default_rng(0)
    for k in range(14):
        path = root / "ab"[k % 2] / f"{k:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = rng.integers(0, 256, (20 + k, 40 - k, 3), np.uint8)
        PIL.Image.fromarray(image).save(path)
        if damaged and k in BAD:
            kept = {"truncated": path.read_bytes()[:-300], "empty": b"", "text": b"no image"}
            path.write_bytes(kept[BAD[k]])
    return root


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same images, whole and damaged, and the records that are."""
    whole = write(tmp_path_factory.mktemp("whole"), False)
    damaged = write(tmp_path_factory.mktemp("damaged"), True)
    order = [int(path.stem) for path in ImageFolder(whole).files]
    return whole, damaged, [order.index(k) for k in BAD]


def rows_where(valid, batch):
    return {name: np.asarray(values)[valid] for name, values in batch.items()}


def masked(root):
    return ImageFolder(root, max_size=(40, 40), on_bad_record="mask")


@pytest.mark.parametrize(("where", "workers"), [("device", 0), ("host", 2)])
def test_no_other_row_changes(folders, workers, where):
    whole, damaged, bad = folders
    found, expected = (
        jk.from_source(masked(root), 4, True, 5, workers, pad_remainder=True)
        >> (lambda batch: {**batch, "size": batch["image"].height})
        >> jk.OperatorNode(SIZE, on=where)
        for root in (damaged, whole)
    )
    order = [jk.pipeline.order.Permutation(14, 5, epoch)(np.arange(14)) for epoch in (0, 1)]
    for records in order:
        batches = iter(found)
        seen = 0
        for number, (one, other) in enumerate(zip(batches, expected, strict=True)):
            rows = records[4 * number : 4 * number + 4]
            valid = np.asarray(one.pop("valid"))
            assert np.asarray(other.pop("valid")).all()
            assert valid[: len(rows)].tolist() == [r not in bad for r in rows]
            assert (valid[len(rows) :] == (rows[-1] not in bad)).all()
            assert (np.asarray(one["image"])[~valid] == -1).all()  # zeros, normalized
            assert_same([rows_where(valid, one)], [rows_where(valid, other)])
            seen += int((~valid[: len(rows)]).sum())
            assert batches.bad_records == seen  # of what was delivered, not of what was made
        assert seen == len(bad)


@native_jpeg
@pytest.mark.parametrize("part", [False, True])
def test_native_threads_name_them_too(folders, part):
    whole, damaged, bad = folders

    def batches(root):
        photos = ImageFolder(root, on_bad_record="mask")
        source = Subset(photos, [13, 0, *range(1, 13)]) if part else photos
        pipe = jk.from_source(source, 4, pad_remainder=True) >> SIZE
        assert is_native(pipe)
        return photos, iter(pipe)

    (photos, found), (_, expected) = batches(damaged), batches(whole)
    seen = 0
    for one, other in zip(found, expected, strict=True):
        valid = np.asarray(one["valid"])
        assert (np.asarray(one["image"])[~valid] == -1).all()
        good = valid & one["mask"]
        np.testing.assert_array_equal(one["image"][good], other["image"][good])
        seen += int((~valid & one["mask"]).sum())
        assert found.bad_records == seen
    assert seen == 3
    assert sorted(photos.bad_files) == sorted(photos.files[k] for k in bad)
    assert "truncated" in photos.bad_files[photos.files[bad[0]]]
    strict = ImageFolder(damaged)
    broken = iter(jk.from_source(strict, 1) >> SIZE)
    failed = []
    for path in strict.files:
        try:
            next(broken)
        except Exception as error:
            failed.append((path, str(error)))
    assert [path for path, _ in failed] == [strict.files[k] for k in sorted(bad)]
    assert all(str(path) in text for path, text in failed)


@pytest.mark.parametrize("workers", [0, 2])
def test_sources_that_are_combined_name_them(folders, workers):
    _, damaged, bad = folders
    first, second, zipped = (masked(damaged) for _ in range(3))
    numbers = {"number": np.arange(14)}
    for source in (jk.concat([first, second]), jk.zip(zipped, numbers)):
        batches = iter(jk.from_source(source, 4, num_workers=workers) >> SIZE)
        epoch_of(batches)
        assert batches.bad_records == len(bad) * len(source) // 14
    for each in (first, second, zipped):
        assert sorted(record for _, record in each.bad_images) == sorted(bad)


def test_rows_are_zeros_of_the_headers_size(folders):
    _, damaged, bad = folders
    source = masked(damaged)
    data = source.gather(np.array(bad))
    assert data["valid"].tolist() == [False] * 3
    assert data["image"].height.tolist() == [20 + 3, 40, 40]
    assert data["image"].width.tolist() == [40 - 3, 40, 40]
    assert not data["image"].buffer.any()
    assert sorted(path.name for path in source.bad_files) == ["03.jpg", "09.jpg", "10.jpg"]
    assert "truncated" in source.bad_files[source.files[bad[0]]]
    # The largest of the others, where nobody says how large they are.
    assert ImageFolder(damaged, on_bad_record="mask").max_size == (33, 40)


def test_they_are_counted_through_nodes_and_after_resuming(folders):
    _, damaged, bad = folders
    part = Subset(masked(damaged), [*bad, 0, 1])
    pipe = jk.from_source(part, 2) >> Cache() >> Rebatch(3)
    for _ in range(2):  # the second epoch comes from the cache
        batches = iter(pipe)
        counts = [batches.bad_records for _ in batches]
        assert counts == [3, 3]
    batches.set_state({**batches.get_state(), "batch": 1, "finished": False})
    assert batches.bad_records == 0
    epoch_of(batches)
    assert batches.bad_records == 0  # no bad records after that batch
    dropped = iter(jk.from_source(part, 2) >> (lambda batch: {"label": batch["label"]}))
    epoch_of(dropped)
    assert dropped.bad_records == 0


def test_they_can_be_read_while_another_thread_iterates():
    class Bad(jk.pipeline.BatchSource):
        on_bad_record = "mask"

        def __len__(self):
            return 400

        def gather(self, records, out=None):
            return {"valid": np.zeros(len(records), bool)}

    batches = iter(jk.from_source(Bad(), 1))
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        delivered = other.submit(lambda: sum(1 for _ in batches))
        counts = [0]
        while not delivered.done():
            counts.append(batches.bad_records)
    assert counts == sorted(counts)
    assert batches.bad_records == delivered.result() == 400


def test_what_could_not_be_read_is_an_error(folders, tmp_path):
    root = write(tmp_path, True)
    source = masked(root)
    os.remove(source.files[1])
    with pytest.raises(FileNotFoundError):
        source.gather(np.arange(3))
    with raises(OSError, "truncated"):  # unless it is asked for
        ImageFolder(folders[1], max_size=(40, 40)).gather(np.array(folders[2]))
    with raises(ValueError, "on_bad_record", "'skip'"):
        ImageFolder(root, on_bad_record="skip")
    for mode in ("raise", "mask"):  # the file is good, and what was said of it is not
        small = ImageFolder(folders[0], max_size=(20, 39), on_bad_record=mode)
        with raises(ValueError, "00.jpg", "20x40", "(20, 39)"):
            small.gather(np.arange(2))
    for path in source.files:
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="no image can be decoded"):
        _ = ImageFolder(root, on_bad_record="mask").max_size


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_bad_record", ["raise", "mask"])
def test_what_is_no_regular_file_is_not_waited_for(folders, tmp_path, workers, on_bad_record):
    """A pipe would be read until somebody writes, and /dev/zero until memory ends."""
    os.mkfifo(tmp_path / "pipe.jpg")
    paths = [*ImageFolder(folders[0]).files[:2], tmp_path / "pipe.jpg", "/dev/zero"]
    source = ImageFiles(paths, max_size=(40, 40), on_bad_record=on_bad_record)
    batches = iter(jk.from_source(source, 2, num_workers=workers))
    assert len(next(batches)["image"]) == 2
    with raises(OSError, "pipe.jpg"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_that_were_cut_while_they_are_mapped(folders, tmp_path, workers):
    """Reading them would end the process."""
    files = [path.read_bytes() for path in ImageFolder(folders[0]).files[:4]]
    path = tmp_path / "bytes"
    path.write_bytes(b"".join(files))
    values = np.memmap(path, np.uint8, "r")
    column = Encoded((values, np.cumsum([0, *map(len, files)])))
    pipe = jk.from_source({"image": column}, 2, num_workers=workers) >> SIZE
    assert len(epoch_of(pipe)) == 2
    os.truncate(path, 3)
    with raises(OSError, "3 bytes"):
        epoch_of(pipe)
    again = Encoded((values, np.cumsum([0, *map(len, files)])))
    with raises(OSError, "3 bytes"):
        again.max_size  # noqa: B018 - reads the headers


def test_explain_passes_over_what_does_not_decode(folders):
    _, damaged = folders[:2]
    pipe = jk.from_source(ImageFolder(damaged), 3) >> SIZE
    assert "Compose" in str(pipe.explain())
