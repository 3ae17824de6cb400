"""Transforms against what torchvision made of small images: torchvision/frozen.npz.

Would catch: what `make test-torchvision` does, op by op, where torchvision is not installed: a rule
of a colour that is another, a warp about another point, rounding at another place. Natively only:
the twin's levels are those of the kernels, which the tests of colours, warps and policies show.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from jaxkern import image as im

FROZEN = dict(np.load(pathlib.Path(__file__).parent / "torchvision" / "frozen.npz"))
CASES = json.loads(FROZEN["cases"].tobytes())


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
    wanted = FROZEN[f"{number}.{dtype}"]
    if dtype == "u8":
        out = np.asarray(run(aug, images, (params,)))
        assert out.dtype == np.uint8
        # A level where torchvision's order of float operations decides.
        away = np.abs(out.astype(int) - wanted)
        rows = np.argwhere(away.max(axis=(1, 2, 3)) > 1).reshape(-1).tolist()
        assert not rows, f"images {rows} of the batch are more than one level off"
        # Those that resample are computed in fixed point there, and rounded between two passes.
        resampled = case["options"].get("interpolation") == "bicubic"
        assert resampled or (away > 0).sum() <= 1 + away.size // 1000
    else:
        out = np.asarray(run(aug, as_float(images), (params,)))
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, wanted / 65535, rtol=0, atol=2e-4)
