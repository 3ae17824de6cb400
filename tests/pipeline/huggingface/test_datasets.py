"""Hugging Face data sets as sources: would catch rows that are not those of the data set's own
order, images or classes that differ from what it decodes, and a format that is passed over.

`make test-huggingface` runs it, with a library that brings many others."""

from __future__ import annotations

import datasets
import numpy as np
import PIL.Image
import pytest
from support.errors import raises
from support.pages import ROOT, blocks
from support.pipeline.batches import assert_same, column, epoch_of
from support.pipeline.written import encoded

import jaxkern as jk
from jaxkern.pipeline import HuggingFaceSource, Subset
from jaxkern.pipeline.rows import images_of

PIXELS = [np.random.default_rng(k).integers(0, 256, (8 + k % 3, 9, 3), np.uint8) for k in range(17)]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images, classes, lists and arrays, in several files that are mapped into memory."""
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=list("abcde")),
        "tokens": datasets.List(datasets.Value("int32")),
        "grid": datasets.Array2D((2, 3), "float32"),
    }
    rows = {
        "image": [PIL.Image.fromarray(image) for image in PIXELS],
        "label": [k % 5 for k in range(17)],
        "tokens": [[k, 2 * k, 3 * k] for k in range(17)],
        "grid": [np.full((2, 3), k, np.float32) for k in range(17)],
    }
    folder = tmp_path_factory.mktemp("data")
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    made.save_to_disk(folder, num_shards=3)
    return datasets.load_from_disk(folder)


def assert_is(batches, dataset):
    """Assert that the batches equal the rows that the data set decodes, in its order."""
    assert sum(len(batch["label"]) for batch in batches) == len(dataset)
    np.testing.assert_array_equal(column(batches, "label"), dataset["label"])
    np.testing.assert_array_equal(column(batches, "tokens"), dataset["tokens"])
    np.testing.assert_array_equal(column(batches, "grid"), dataset["grid"])
    images = [image for b in batches for image in images_of(b["image"], range(len(b["label"])))]
    for image, expected in zip(images, dataset["image"], strict=True):
        np.testing.assert_array_equal(image, np.asarray(expected))


@pytest.mark.parametrize(
    "pick",
    [
        lambda d: d,
        lambda d: d.shuffle(seed=3),
        lambda d: d.select([5, 3, 3, 11]),
        lambda d: d.select(range(4, 9)),
        lambda d: d.shuffle(seed=3).select(range(2, 9)),
        lambda d: d.train_test_split(5, seed=1)["test"],
        lambda d: d.filter(lambda row: row["label"] == 2),
        lambda d: d.shard(3, 1, contiguous=False),
        lambda d: datasets.concatenate_datasets([d.select([2, 1]), d]),
    ],
)
def test_what_was_picked_comes_in_its_order(data, pick):
    for workers in (0, 2):
        assert_is(epoch_of(jk.from_source(pick(data), 4, num_workers=workers)), pick(data))


def test_images_stay_encoded_where_they_lie(data):
    images = HuggingFaceSource(data).images["image"].images
    buffers = [c.field("bytes").buffers()[2].address for c in data.data.table["image"].chunks]
    assert [blob.ctypes.data for blob in images.blobs] == buffers
    expected = data.cast_column("image", datasets.Image(decode=False))["image"]
    assert [bytes(images[k]) for k in range(17)] == [row["bytes"] for row in expected]
    gray = data.cast_column("image", datasets.Image(mode="L"))
    np.testing.assert_array_equal(
        HuggingFaceSource(gray)[3]["image"][..., 0], np.asarray(gray[3]["image"])
    )


def test_formats(data):
    expected = epoch_of(jk.from_source(data, 4))
    for name in ("numpy", "arrow", "pandas"):
        found = epoch_of(jk.from_source(data.with_format(name), 4))
        np.testing.assert_array_equal(column(found, "grid"), column(expected, "grid"))
    chosen = data.with_format("numpy", columns=["label"])
    assert {name for batch in epoch_of(jk.from_source(chosen, 4)) for name in batch} == {"label"}
    doubled = data.with_transform(lambda rows: {"x": [2 * label for label in rows["label"]]})
    np.testing.assert_array_equal(
        column(epoch_of(jk.from_source(doubled.select([4, 3]), 4)), "x"), [8, 6]
    )
    with raises(TypeError, "'custom'"):
        HuggingFaceSource(doubled)
    narrow = data.select_columns("grid").with_format("numpy", dtype=np.float16)
    assert column(epoch_of(jk.from_source(narrow, 4)), "grid").dtype == np.float16


def test_epochs_resume_and_subsets(data):
    pipe = jk.from_source(data, 4, shuffle=True, seed=2)
    expected = epoch_of(pipe)
    pipe.epoch = 0
    iterator = iter(pipe)
    next(iterator)
    state = iterator.get_state()
    resumed = iter(jk.from_source(data, 4, shuffle=True, seed=2))
    resumed.set_state(state)
    assert_same(epoch_of(resumed), expected[1:])
    iterator = iter(jk.from_source(data.shuffle(seed=1), 4))
    next(iterator)
    with pytest.raises(ValueError, match="the state is of another pipeline"):
        iter(jk.from_source(data.shuffle(seed=2), 4)).set_state(iterator.get_state())
    assert sorted(column(expected, "grid")[:, 0, 0].tolist()) == list(range(17))
    part = Subset(data, [3, 1])
    np.testing.assert_array_equal(part.gather(np.array([0, 1]))["label"], [3, 1])


def test_paths_and_bad_images(tmp_path, data):
    paths = []
    for k in range(3):
        paths.append(str(tmp_path / f"{k}.png"))
        PIL.Image.fromarray(PIXELS[k]).save(paths[-1])
    images = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    batch = next(iter(jk.from_source(images, 3)))
    for image, pixels in zip(images_of(batch["image"], range(3)), PIXELS, strict=False):
        np.testing.assert_array_equal(image, pixels)
    whole = encoded(PIXELS[0], "jpeg")
    rows = {"image": [{"bytes": whole}, {"bytes": whole[:200]}], "n": [0, 1]}
    features = datasets.Features({"image": datasets.Image(), "n": datasets.Value("int32")})
    broken = datasets.Dataset.from_dict(rows, features=features)
    with raises(OSError, "row 1 of") as caught:
        next(iter(jk.from_source(broken, 2)))
    assert any("row 1 of the data set" in text for text in caught.value.__notes__)
    masked = HuggingFaceSource(broken, on_bad_record="mask")
    assert masked.gather(np.arange(2))["valid"].tolist() == [True, False]


def test_what_is_no_data_set_with_a_length(data):
    with raises(TypeError, "dataset['train']", "dataset['test']"):
        jk.from_source(data.train_test_split(4), 4)
    with raises(TypeError, "length"):
        jk.from_source(data.to_iterable_dataset(), 4)
    text = datasets.Dataset.from_dict({"text": ["a"]})
    with raises(TypeError, "'text'", "string"):
        jk.from_source(text, 1)
    audio = data.select_columns("image").cast_column("image", datasets.Image(decode=False))
    assert len(HuggingFaceSource(audio)) == 17
    with raises(ValueError, "no rows"):
        jk.from_source(data.select([]), 1)


def test_the_page_runs(tmp_path, monkeypatch):
    """Its other examples run in the tests of all pages, where this library is not installed."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in blocks(ROOT / "docs" / "how-to" / "read-data-sets.md", "python"):
        if "s3://" not in block.text:  # needs a server
            exec(block.text, names)
    assert "dataset" in names
