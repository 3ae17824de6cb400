"""Transforms against torchvision's results on small images: torchvision/frozen.npz."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest
from support.image.comparison import boxes_as

from jaxkern import image as im

FROZEN = dict(np.load(pathlib.Path(__file__).parent / "torchvision" / "frozen.npz"))
CASES = json.loads(FROZEN["cases"].tobytes())
TARGET_CASES = json.loads(FROZEN["target_cases"].tobytes())


def as_float(images):
    """Return the arguments of a case in freeze.py."""
    return ((images.astype(np.float32) + np.float32(0.37)) / 256).astype(np.float32)


@pytest.mark.parametrize("backend", ["native"], indirect=True)
@pytest.mark.parametrize("dtype", ["u8", "f32"])
@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["transform"] for case in CASES])
def test_equals_torchvision(run, number, dtype):
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
        # torchvision's order of float operations decides single levels.
        away = np.abs(out.astype(int) - expected)
        rows = np.argwhere(away.max(axis=(1, 2, 3)) > 1).reshape(-1).tolist()
        assert not rows, f"images {rows} of the batch are more than one level off"
        # torchvision resamples in fixed point and rounds between the two passes.
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
def test_targets_equal_torchvision(number):
    case, images = TARGET_CASES[number], FROZEN["images"]
    prefix = f"target.{number}."
    expected = {key.removeprefix(prefix): FROZEN[key] for key in FROZEN if key.startswith(prefix)}
    names = [key for key in expected if key.startswith("param.")]
    params = {name.removeprefix("param."): expected.pop(name) for name in names}
    inputs = {name: FROZEN[f"given.{name}"] for name in ("boxes", "keypoints", "mask")}
    inputs["boxes"] = boxes_as(case["boxes"], inputs["boxes"])
    aug = im.Compose([getattr(im, case["transform"])(**case["options"])], boxes=case["boxes"])
    fields = {"image": images, **{n: v for n, v in inputs.items() if n in expected}}
    out = jax.jit(aug.apply)(fields, (params,))
    for name, value in expected.items():
        actual = np.asarray(out[name])
        if name in ("mask", "image"):
            away = np.abs(actual.astype(int) - value)
            # torchvision's float32 decides single levels, or nearest pixels.
            assert (away > (name == "image")).sum() <= away.size // 500
        elif value.dtype == bool:
            np.testing.assert_array_equal(actual, value)
        else:
            np.testing.assert_allclose(actual, value, rtol=0, atol=1e-4)
