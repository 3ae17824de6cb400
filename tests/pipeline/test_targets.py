"""A pipeline's fields that move with its images.

Would catch: masks or boxes that a pipeline leaves where they were, or moves by another record's
draw; the mask of padded records taken for labels of pixels.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxkern as jk

RNG = np.random.default_rng(6)
DATA = {
    "image": RNG.integers(0, 256, (6, 10, 12, 3)).astype(np.uint8),
    "mask": RNG.integers(0, 9, (6, 10, 12)).astype(np.int32),
    "things": np.float32([0, 0, 5, 5]) + RNG.uniform(0, 4, (6, 3, 4)).astype(np.float32),
    "id": np.arange(6),
}
AUG = jk.image.Compose([jk.image.RandomIoUCrop(), jk.image.Resize((8, 8))])


@pytest.mark.parametrize("on", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_targets_move_with_their_record(on):
    node = jk.OperatorNode(AUG, on=on, boxes="things")
    pipe = jk.from_source(DATA, batch_size=3, seed=4, shuffle=True) >> node
    for batch in pipe:
        records = np.asarray(batch["id"])
        given = {"image": DATA["image"], "mask": DATA["mask"], "boxes": DATA["things"]}
        given = {name: value[records] for name, value in given.items()}
        expected = AUG(jk.random.record_keys(4, 0, records), given)
        for name, field in {"image": "image", "mask": "mask", "boxes": "things"}.items():
            np.testing.assert_allclose(batch[field], expected[name], atol=1e-5)
        np.testing.assert_array_equal(batch["things_valid"], expected["boxes_valid"])


def test_a_mask_of_records_is_none_of_pixels():
    data = {"image": DATA["image"], "boxes": DATA["id"]}
    flip = jk.image.Compose([jk.image.RandomHorizontalFlip(1.0)])
    pipe = jk.from_source(data, batch_size=4, pad_remainder=True) >> flip
    batch = list(pipe)[-1]
    assert np.asarray(batch["mask"]).tolist() == [True, True, False, False]
    np.testing.assert_array_equal(batch["image"][:2], DATA["image"][4:, :, ::-1])
    assert np.asarray(batch["boxes"])[:2].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("name", "numbers"), [("boxes", 4), pytest.param("keypoints", 2, marks=pytest.mark.slow)]
)
def test_one_place_a_record_is_not_left_where_it_was(name, numbers):
    """[N, 4] is a box of each image that nobody would move: said, unless it is to stay."""
    data = {"image": DATA["image"], name: np.ones((6, numbers), np.float32)}
    source = jk.from_source(data, batch_size=3)
    flip = jk.image.Compose([jk.image.RandomHorizontalFlip(1.0)])
    with pytest.raises(ValueError, match=rf"field '{name}' has shape \(3, {numbers}\)"):
        next(iter(source >> flip))
    kept = source >> jk.OperatorNode(flip, boxes=None, keypoints=None)
    assert (np.asarray(next(iter(kept))[name]) == 1).all()
    colours = source >> jk.image.Compose([jk.image.RandomInvert(1.0)])
    assert (np.asarray(next(iter(colours))[name]) == 1).all()


@pytest.mark.parametrize("dtype", [np.int32, pytest.param(np.uint8, marks=pytest.mark.slow)])
def test_native_threads_make_masks_too(dtype):
    """Of the same draw as the image's, bit by bit what the program makes."""
    data = {name: DATA[name] for name in ("image", "id")}
    data["mask"] = (DATA["mask"] * (1 if dtype is np.uint8 else 12345)).astype(dtype)
    aug = jk.image.Compose(
        [jk.image.Normalize(0.5, 0.5), jk.image.RandomResizedCrop(8), jk.image.RandomRotation(30)],
        mask_fill=250,
    )
    pipe = jk.from_source(data, batch_size=3, seed=4, shuffle=True)
    pipe = pipe >> jk.OperatorNode(aug, on="host")
    assert "native threads" in str(pipe.explain())
    for batch in pipe:
        records = np.asarray(batch["id"])
        given = {name: data[name][records] for name in ("image", "mask")}
        expected = aug(jk.random.record_keys(4, 0, records), given)
        assert batch["mask"].dtype == dtype
        np.testing.assert_array_equal(batch["mask"], expected["mask"])
        np.testing.assert_allclose(batch["image"], expected["image"], atol=1e-5)


def test_boxes_and_keypoints_with_native_threads():
    """Targets follow the random draws of their images, whose sizes may differ."""
    data = {"image": DATA["image"], "id": DATA["id"], "keypoints": DATA["things"][..., :2].copy()}
    data["things"] = np.zeros(DATA["things"].nbytes + 1, np.uint8)[1:].view(np.float32)
    data["things"] = data["things"].reshape(DATA["things"].shape)  # not aligned, as in some files
    data["things"][:] = DATA["things"]
    aug = jk.image.Compose(
        [jk.image.RandomHorizontalFlip(), jk.image.ScaleJitter((12, 10), (0.6, 1.4))]
    )
    pipe = jk.from_source(data, batch_size=3, seed=4, shuffle=True)
    pipe = pipe >> jk.OperatorNode(aug, on="host", boxes="things")
    assert "Compose  native threads" in str(pipe.explain())
    given = {name: data[name] for name in ("image", "keypoints")} | {"boxes": data["things"]}
    expected = jax.jit(aug)(jk.random.record_keys(4, 0, data["id"]), given)
    expected["things"], expected["things_valid"] = (
        expected.pop("boxes"),
        expected.pop("boxes_valid"),
    )
    for batch in pipe:
        assert batch.keys() == expected.keys() | {"id"}
        for name, value in expected.items():
            assert batch[name].dtype == value.dtype
            np.testing.assert_allclose(batch[name], value[batch["id"]], atol=1e-5)
