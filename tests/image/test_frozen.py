"""Transforms against what torchvision made of small images: torchvision/frozen.npz.

Would catch: what `make test-torchvision` does, op by op, where torchvision is not installed: a rule
of a colour that is another, a warp about another point, rounding at another place, a box, keypoint
or mask that goes another way than its image. Natively only: the twin's levels are those of the
kernels, which the tests of colours, warps and policies show.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from jaxkern import image as im

FROZEN = dict(np.load(pathlib.Path(__file__).parent / "torchvision" / "frozen.npz"))
CASES = json.loads(FROZEN["cases"].tobytes())
TARGET_CASES = json.loads(FROZEN["target_cases"].tobytes())


def as_float(images):
    """As freeze.py has it."""
    return ((images.astype(np.float32) + np.float32(0.37)) / 256).astype(np.float32)


@pytest.mark.parametrize("backend", ["native"], indirect=True)
@pytest.mark.parametrize("dtype", ["u8", "f32"])
@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["transform"] for case in CASES])
def test_as_torchvision_made_it(run, number, dtype):
    case = CASES[number]
    images = FROZEN["images"][case["images"]][..., : case["channels"]]
    prefix = f"{number}.param."
    params = {key[len(prefix) :]: FROZEN[key] for key in FROZEN if key.startswith(prefix)}
    options = case["of_floats"] if dtype == "f32" and case["of_floats"] else case["options"]
    aug = im.Compose([getattr(im, case["transform"])(**options)])
    expected = FROZEN[f"{number}.{dtype}"]
    if dtype == "u8":
        out = np.asarray(run(aug, images, (params,)))
        assert out.dtype == np.uint8
        # A level where torchvision's order of float operations decides.
        away = np.abs(out.astype(int) - expected)
        rows = np.argwhere(away.max(axis=(1, 2, 3)) > 1).reshape(-1).tolist()
        assert not rows, f"images {rows} of the batch are more than one level off"
        # Those that resample are computed in fixed point there, and rounded between two passes.
        resampled = case["options"].get("interpolation") == "bicubic"
        assert resampled or (away > 0).sum() <= 1 + away.size // 1000
    else:
        out = np.asarray(run(aug, as_float(images), (params,)))
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, expected / 65535, rtol=0, atol=2e-4)


_QUICK = "HorizontalFlip RandomCrop RandomResizedCrop Affine Perspective ScaleJitter Elastic"


def _targets(number, name):
    quick = any(word in name for word in _QUICK.split())
    marks = () if quick else pytest.mark.slow
    return pytest.param(number, id=f"{number}-{name}", marks=marks)


@pytest.mark.parametrize(
    "number", [_targets(number, case["transform"]) for number, case in enumerate(TARGET_CASES)]
)
def test_targets_as_torchvision_moved_them(number):
    case, images = TARGET_CASES[number], FROZEN["images"]
    prefix = f"target.{number}."
    expected = {key.removeprefix(prefix): FROZEN[key] for key in FROZEN if key.startswith(prefix)}
    names = [key for key in expected if key.startswith("param.")]
    params = {name.removeprefix("param."): expected.pop(name) for name in names}
    given = {name: FROZEN[f"given.{name}"] for name in ("boxes", "keypoints", "mask")}
    given["boxes"] = _as(case["boxes"], given["boxes"])
    aug = im.Compose([getattr(im, case["transform"])(**case["options"])], boxes=case["boxes"])
    out = aug.apply(
        {"image": images, **{n: v for n, v in given.items() if n in expected}}, (params,)
    )
    for name, value in expected.items():
        found = np.asarray(out[name])
        if name in ("mask", "image"):
            away = np.abs(found.astype(int) - value)
            # A level, or a pixel of the nearest, where torchvision's float32 decides.
            assert (away > (name == "image")).sum() <= away.size // 500
        elif value.dtype == bool:
            np.testing.assert_array_equal(found, value)
        else:
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-4)


def _as(form, boxes):
    first, sides = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
    if form == "cxcywh":
        first = first + sides / 2
    return boxes if form == "xyxy" else np.concatenate([first, sides], axis=-1)
