"""Boxes, keypoints and masks against torchvision's v2 with equal parameters."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from scipy import stats
from support.image.draws import assert_same_distribution, draw, sample
from support.image.torchvision_functions import by_name, draws, of_image

from jaxkern import image as im

COUNT, SIZE = 5, (37, 53)
RNG = np.random.default_rng(8)


@pytest.fixture(scope="module")
def tv(v2):
    return by_name(v2)


CHAINS = [
    [im.RandomResizedCrop((24, 40))],
    [im.Resize((30, 61))],
    [im.CenterCrop((21, 31))],
    [im.CenterCrop((51, 31))],
    [im.Pad((3, 5, 2, 1))],
    [im.RandomCrop(32, padding=(4, 6))],
    [im.RandomHorizontalFlip()],
    [im.RandomVerticalFlip()],
    [im.RandomRotation(170)],
    [im.RandomRotation(60, center=(20, 11.5))],
    [im.RandomAffine(120, (0.2, 0.3), (0.6, 1.7), (-20, 20, -15, 15))],
    [im.RandomPerspective(0.6, 1.0, "nearest")],
    [im.RandomZoomOut(p=0.8), im.Resize((40, 40))],
    [im.ScaleJitter((40, 30)), im.RandomCrop(36, padding=(20, 30, 20, 30))],
    [im.RandomShortestSize([20, 44], 60), im.CenterCrop(20)],
    [
        im.RandomVerticalFlip(),
        im.CenterCrop((25, 40)),  # cuts boxes before the rotation
        im.RandomRotation(80),
        im.RandomHorizontalFlip(),
        im.Resize((50, 60)),
        im.RandomAffine(30),
    ],
]


def samples():
    height, width = SIZE
    first = RNG.uniform(-6, 40, (COUNT, 9, 2)) * (width / 46, height / 46)
    boxes = np.concatenate([first, first + RNG.uniform(0.5, 20, (COUNT, 9, 2))], axis=-1)
    points = RNG.uniform(-4, 50, (COUNT, 11, 2))
    points[:, ::2] = np.round(points[:, ::2])
    # torchvision warps integers as float32.
    masks = RNG.integers(0, 2**24, (COUNT, *SIZE)).astype(np.int32)
    return boxes.astype(np.float32), points.astype(np.float32), masks


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: type(chain[0]).__name__)
def test_targets(v2, tv, chain, form):
    from torchvision import tv_tensors

    boxes, points, masks = samples()
    F = v2.functional
    values = F.convert_bounding_box_format(torch.from_numpy(boxes), "xyxy", form).numpy()
    aug = im.Compose(chain, boxes=form)
    images = np.zeros((COUNT, *SIZE, 1), np.uint8)
    params = sample(aug, jax.random.split(jax.random.key(5), COUNT), SIZE)
    fields = {"image": images, "mask": masks, "boxes": values, "keypoints": points}
    out = {name: np.asarray(value) for name, value in jax.jit(aug.apply)(fields, params).items()}
    for n in range(COUNT):
        inputs = [
            tv_tensors.BoundingBoxes(
                torch.from_numpy(values[n]), format=form.upper(), canvas_size=SIZE
            ),
            tv_tensors.KeyPoints(torch.from_numpy(points[n]), canvas_size=SIZE),
            tv_tensors.Mask(torch.from_numpy(masks[n])),
        ]
        for transform, own in zip(chain, params, strict=True):
            one = tv[type(transform).__name__]
            inputs = [one(transform, of_image(own, n), x) for x in inputs]
        expected = F.clamp_bounding_boxes(inputs[0])
        np.testing.assert_allclose(out["boxes"][n], expected, atol=2e-3)
        size = expected.canvas_size
        valid = F.sanitize_bounding_boxes(expected)[1].numpy()
        corners = F.convert_bounding_box_format(expected, new_format="XYXY").numpy()
        sides = corners[:, 2:] - corners[:, :2]
        clear = (np.abs(sides - 1) > 1e-2).all(1) & (np.abs(sides.prod(1) - 1) > 1e-2)
        # Rounded centres and sides of clamped boxes may exceed the image by one ulp.
        last = corners - np.asarray([*size[::-1]] * 2)
        clear &= ~((last > 0) & (last < 1e-4)).any(1) & ~((corners < 0) & (corners > -1e-4)).any(1)
        # We also drop boxes that an earlier crop cut off, where torchvision's later warp may not.
        assert not (out["boxes_valid"][n] & ~valid)[clear].any()
        if len(chain) <= 2:
            np.testing.assert_array_equal(out["boxes_valid"][n][clear], valid[clear])
        np.testing.assert_allclose(out["keypoints"][n], inputs[1], atol=2e-3)
        moved = torch.from_numpy(out["keypoints"][n].copy())
        shown = F.sanitize_keypoints(moved, canvas_size=size)[1].numpy()
        assert not (out["keypoints_visible"][n] & ~shown).any()
        if len(chain) == 1:
            np.testing.assert_array_equal(out["keypoints_visible"][n], shown)
        off = (out["mask"][n] != inputs[2].numpy()).mean()
        assert off <= 2e-3, off


@pytest.mark.parametrize("options", [{}, {"sampler_options": [0.3, 0.7, 1.0], "trials": 9}])
def test_draws_of_iou_crops(v2, options):
    boxes = np.float32([[3, 4, 20, 30], [10, 12, 50, 33], [40, 3, 47, 9]])
    mine = draw(im.RandomIoUCrop(**options), SIZE, 10_000, boxes=boxes)
    rows = draws(v2.RandomIoUCrop(**options), 2_500, SIZE, boxes)
    remaining = np.asarray([len(row) > 0 for row in rows])
    table = np.asarray(
        [[mine["crop"].sum(), (~mine["crop"]).sum()], [remaining.sum(), (~remaining).sum()]]
    )
    assert stats.chi2_contingency(table).pvalue > 1e-3
    for name in ("top", "left", "height", "width"):
        assert_same_distribution(mine[name][mine["crop"]], [row[name] for row in rows if len(row)])
    # The remaining boxes have their centre inside.
    aug = im.Compose([im.RandomIoUCrop(**options)])
    some = {name: value[:200] for name, value in mine.items()}
    fields = {"image": np.zeros((200, *SIZE, 1), np.uint8), "boxes": np.stack([boxes] * 200)}
    valid = np.asarray(aug.apply(fields, (some,))["boxes_valid"])[some["crop"]]
    within = np.asarray([row["is_within_crop_area"].numpy() for row in rows if len(row)])
    counts = [(part[:, k].sum(), (~part[:, k]).sum()) for k in range(3) for part in (valid, within)]
    for a, b in zip(counts[::2], counts[1::2], strict=True):
        assert stats.chi2_contingency(np.asarray([a, b]) + 1).pvalue > 1e-3


def test_draws_of_zoom_outs(v2):
    mine = draw(im.RandomZoomOut(side_range=(1.2, 3.0), p=1.0), SIZE, 10_000)
    rows = draws(v2.RandomZoomOut(side_range=(1.2, 3.0)), 10_000, SIZE)
    left, top, right, bottom = np.asarray([row["padding"] for row in rows]).T
    assert_same_distribution(mine["top"], top)
    assert_same_distribution(mine["left"], left)
    assert_same_distribution(mine["height"], top + SIZE[0] + bottom)
    assert_same_distribution(mine["width"], left + SIZE[1] + right)
    half = draw(im.RandomZoomOut(side_range=(1.5, 3.0)), SIZE, 10_000)
    assert abs((half["height"] == SIZE[0]).mean() - 0.5) < 0.02


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ScaleJitter", {"target_size": (64, 40)}),
        ("ScaleJitter", {"target_size": (40, 40), "scale_range": (0.5, 1.5)}),
        ("RandomShortestSize", {"min_size": [20, 30, 41], "max_size": 50}),
        ("RandomShortestSize", {"min_size": 33}),
    ],
)
def test_draws_of_sizes(v2, name, options):
    mine = draw(getattr(im, name)(**options), SIZE, 10_000)
    rows = draws(getattr(v2, name)(**options), 10_000, SIZE)
    rows = np.asarray([row["size"] for row in rows])
    for k, side in enumerate(("height", "width")):
        if name == "ScaleJitter":
            assert_same_distribution(mine[side], rows[:, k])
        else:
            sizes, counts = np.unique(mine[side], return_counts=True)
            same, expected = np.unique(rows[:, k], return_counts=True)
            assert sizes.tolist() == same.tolist()
            if len(sizes) > 1:
                assert stats.chi2_contingency([counts, expected]).pvalue > 1e-3
