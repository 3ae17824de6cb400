"""Properties of a pipeline that must not read its data: its length, its shapes and its repr.

Would catch: a pass over the headers of all images for ``len(pipe)``, a record read for a repr,
shapes that are derived without data and differ from those of the batches.
"""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from support.pipeline.encoded_sources import jpeg, photograph

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import BatchSource, Cache, Encoded, ImageFolder, Rebatch, Subset
from jaxkern.pipeline.sources.images import fields

AUGMENT = im.Compose([im.RandomResizedCrop(8), im.RandomHorizontalFlip(), im.Normalize(0.4, 0.3)])


class Forbidden(BatchSource):
    """A source that must not be read."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise AssertionError(f"record {index} was read")

    def gather(self, records, out=None):
        raise AssertionError(f"records {records} were read")


class Declared(Forbidden):
    """One that says what its batches look like."""

    def batch_spec(self, count, image_side):
        return {"x": jax.ShapeDtypeStruct((count, 3), np.float32)}


@pytest.fixture
def folder(tmp_path):
    for k in range(9):
        path = tmp_path / "photos" / "ab"[k % 2] / f"{k}.{'png' if k == 4 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if k == 4:
            PIL.Image.fromarray(photograph(20, 31, seed=k)).save(path)
        else:
            path.write_bytes(jpeg(photograph(20 + k, 30 + k, seed=k)))
    return tmp_path / "photos"


def pipelines(source, **options):
    """Of images in a field, in batches of 4; each ends in arrays of one size."""

    def start():
        return jk.from_source(source, 4, shuffle=True, **options)

    def shift(batch):
        return {**batch, "image": batch["image"].astype(jnp.bfloat16) + 1}

    def counted(batch):
        return {"label": batch["label"], "count": batch["image"].height}

    return {
        "Compose": start() >> AUGMENT,
        "on the host": start() >> jk.OperatorNode(AUGMENT, on="host") >> jk.OperatorNode(shift),
        "rebatched": start() >> jk.OperatorNode(AUGMENT, on="host") >> Rebatch(3),
        "cached": start() >> Cache() >> AUGMENT >> jk.OperatorNode(shift),
        "a function of Ragged": start() >> jk.OperatorNode(counted),
        "mixed": jk.mix({start(): 1, start(): 2}) >> AUGMENT,
    }


CASES = [
    (name, options)
    for name in ("Compose", "a function of Ragged", "on the host", "rebatched", "cached", "mixed")
    for options in ({}, {"pad_remainder": True}, {"drop_remainder": True})
]


@pytest.mark.parametrize(
    ("name", "options"),
    # Those that compile several programs are slow.
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case not in (CASES[0], CASES[3])))
        for case in CASES
    ],
)
def test_images_that_are_gone(name, options, folder, tmp_path):
    whole = ImageFolder(folder, on_bad_record="mask" if "pad_remainder" in options else "raise")
    expected = pipelines(whole, **options)[name]
    batch = next(iter(expected))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    for source in (ImageFolder, lambda *a, **k: Subset(ImageFolder(*a, **k), range(9))):
        copied = tmp_path / "copy"
        shutil.copytree(folder, copied)
        gone = source(copied, on_bad_record=whole.on_bad_record)
        shutil.rmtree(copied)
        pipe = pipelines(gone, **options)[name]
        assert len(pipe) == len(expected)
        assert pipe.element_spec == shapes
        assert "9" in repr(pipe)
        assert isinstance(pipe.compilations, dict)


def test_no_header_is_read(folder, monkeypatch):
    def read(*args):
        raise AssertionError("headers were read")

    monkeypatch.setattr(fields, "read_headers", read)
    data = [path.read_bytes() for path in folder.rglob("*.jpg")]
    for images in (Encoded(data), Encoded(data, channels=1, max_size=(50, 60))):
        pipe = jk.from_source({"image": images, "label": np.arange(len(data))}, 3) >> AUGMENT
        assert (len(pipe), pipe.element_spec["image"].shape[:3]) == (3, (3, 8, 8))
        assert repr(pipe).startswith("Pipeline(EncodedSource(image, label; 8 records) >> ")


def test_sources_that_must_not_be_read():
    base = jk.from_source(Forbidden(), 4)
    for pipe in (base, base >> (lambda batch: batch), base >> Rebatch(3), base & base):
        assert len(pipe) in (3, 4)
        assert "Forbidden(10 records)" in repr(pipe)
    with pytest.raises(AssertionError):  # nobody else knows their shapes
        _ = base.element_spec
    double = jk.OperatorNode(lambda batch: {"y": batch["x"] * 2})
    base = jk.from_source(Declared(), 4)
    pipe = (base & base >> double) >> Rebatch(7)
    assert pipe.element_spec == {
        "x": jax.ShapeDtypeStruct((7, 3), np.float32),
        "y": jax.ShapeDtypeStruct((7, 3), np.float32),
    }


def test_shapes_that_require_a_batch(folder):
    """Shapes of images that differ in size, and of the results of a Python function."""
    source = ImageFolder(folder)
    assert jk.from_source(source, 4).element_spec["image"].max_height == 28
    pipe = jk.from_source(source, 4) >> (lambda batch: {"n": batch["image"].height[:, None]})
    assert pipe.element_spec["n"].shape == (4, 1)
    side = jk.OperatorNode(lambda batch: {"x": jnp.zeros((4, batch["image"].max_height))})
    assert (jk.from_source(source, 4) >> side).element_spec["x"].shape == (4, 28)
