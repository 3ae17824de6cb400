"""A pipeline's fields that move with its images.

Would catch: masks or boxes that a pipeline leaves where they were, or moves by another record's
draw; the mask of padded records taken for labels of pixels.
"""

from __future__ import annotations

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
        wanted = AUG(jk.random.record_keys(4, 0, records), given)
        for name, field in {"image": "image", "mask": "mask", "boxes": "things"}.items():
            np.testing.assert_allclose(batch[field], wanted[name], atol=1e-5)
        np.testing.assert_array_equal(batch["things_valid"], wanted["boxes_valid"])


def test_a_mask_of_records_is_none_of_pixels():
    data = {"image": DATA["image"], "boxes": DATA["id"]}
    flip = jk.image.Compose([jk.image.RandomHorizontalFlip(1.0)])
    pipe = jk.from_source(data, batch_size=4, pad_remainder=True) >> flip
    batch = list(pipe)[-1]
    assert np.asarray(batch["mask"]).tolist() == [True, True, False, False]
    np.testing.assert_array_equal(batch["image"][:2], DATA["image"][4:, :, ::-1])
    assert np.asarray(batch["boxes"])[:2].tolist() == [4, 5]
