"""The cases of frozen.npz with targets: boxes, keypoints and masks as torchvision moves them, and
elastic warps with the displacement of given seeds.

torchvision's elastic warps of points are left out: they are approximate, by integer pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from support.image.torchvision_functions import by_name, of_image

from jaxkern import image as im

FORMATS = ("xyxy", "xywh", "cxcywh")
ALL = ("boxes", "keypoints", "mask")
AFFINE = {
    "angle": np.float32([12.3, -40.1, 0.0]),
    "translate_x": np.float32([2, -3, 0]),
    "translate_y": np.float32([-1, 2, 4]),
    "scale": np.float32([1.1, 0.8, 1.3]),
    "shear_x": np.float32([5.5, -11.2, 0.0]),
    "shear_y": np.float32([0.0, 7.3, -20.1]),
}


def endpoints(size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return parameters of perspectives of three images."""
    last, right = size[0] - 1, size[1] - 1
    ends = [
        [[2, 1], [right - 3, 2], [right - 1, last - 3], [1, last]],
        [[0, 3], [right, 0], [right - 4, last - 2], [4, last - 1]],
        [[4, 0], [right - 2, 3], [right, last], [0, last - 3]],
    ]
    return {"endpoints": np.asarray(ends, np.int32)}


def target_cases(v2: Any, base: np.ndarray) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return a description of each case and its arrays, for images u8 [3, H, W, 3]."""
    from torchvision import tv_tensors

    size = base.shape[1:3]
    values, functions = _given(size), by_name(v2)
    functions["ElasticTransform"] = _elastic(v2, size)
    arrays = {f"given.{name}": value for name, value in values.items()}
    listed = []
    for number, (name, options, params, fields) in enumerate(_transforms(size)):
        form, transform = FORMATS[number % 3], getattr(im, name)(**options)
        created: dict[str, list[Any]] = {}
        for n in range(3):
            own, F = of_image(params, n), v2.functional
            corners = tv_tensors.BoundingBoxes(
                torch.from_numpy(values["boxes"][n]), format="XYXY", canvas_size=size
            )
            inputs = {
                "boxes": F.convert_bounding_box_format(corners, new_format=form.upper()),
                "keypoints": tv_tensors.KeyPoints(
                    torch.from_numpy(values["keypoints"][n]), canvas_size=size
                ),
                "mask": tv_tensors.Mask(torch.from_numpy(values["mask"][n])),
                "image": tv_tensors.Image(torch.from_numpy(base[n].transpose(2, 0, 1).copy())),
            }
            moved = {field: functions[name](transform, own, inputs[field]) for field in fields}
            if "boxes" in fields:
                boxes = F.clamp_bounding_boxes(moved["boxes"])
                moved |= {"boxes": boxes, "boxes_valid": F.sanitize_bounding_boxes(boxes)[1]}
            if "keypoints" in fields:
                points = moved["keypoints"]
                moved["keypoints_visible"] = F.sanitize_keypoints(points)[1]
            for field, value in moved.items():
                array = np.asarray(value)
                created.setdefault(field, []).append(
                    array.transpose(1, 2, 0) if field == "image" else array
                )
        arrays |= {f"target.{number}.{field}": np.stack(rows) for field, rows in created.items()}
        arrays |= {f"target.{number}.param.{key}": value for key, value in params.items()}
        listed.append({"transform": name, "options": options, "boxes": form})
    return listed, arrays


def _given(size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return boxes xyxy [3, 7, 4], keypoints [3, 8, 2] and masks [3, H, W] with integer labels."""
    height, width = size
    rng = np.random.default_rng(11)
    first = rng.uniform(-3, 0.8 * height, (3, 7, 2))
    boxes = np.concatenate([first, first + rng.uniform(0.4, 9, (3, 7, 2))], axis=-1)
    boxes[:, 0] = [0, 0, width, height]
    boxes[:, 1] = [width + 2, 1, width + 5, 6]  # outside the image
    points = rng.uniform(-2, (width + 2, height + 2), (3, 8, 2))
    points[:, :4] = np.round(points[:, :4])
    points[:, 0] = [0, height - 1]
    labels = np.arange(1, 3 * height * width + 1).reshape(3, height, width)
    return {
        "boxes": boxes.astype(np.float32),
        "keypoints": points.astype(np.float32),
        "mask": labels.astype(np.int32),
    }


def _transforms(size: tuple[int, int]) -> Any:
    """Return (transform, options, parameters of three images, fields)."""

    def rows(names, *images, dtype=np.int32):
        return dict(zip(names, np.asarray(images, dtype).T, strict=True))

    flips = {"flip": np.asarray([True, False, True])}
    yield "RandomHorizontalFlip", {}, flips, ALL
    yield "RandomVerticalFlip", {}, flips, ALL
    yield "Resize", {"size": [21, 11]}, {}, ALL
    yield "CenterCrop", {"size": [7, 22]}, {}, ALL
    yield "Pad", {"padding": [1, 2, 3, 4]}, {}, ALL
    positions = rows(["top", "left"], [0, 9], [5, 0], [2, 3])
    yield "RandomCrop", {"size": [11, 14], "padding": [4, 3]}, positions, ALL
    names = ["top", "left", "height", "width"]
    boxes = rows(names, [0, 0, 13, 18], [2, 1, 5, 9], [4, 3, 8, 12])
    yield "RandomResizedCrop", {"size": [10, 15]}, boxes, ALL
    angles = {"angle": np.asarray([23.7, -51.3, 160.9], np.float32)}
    yield "RandomRotation", {"degrees": 180}, angles, ALL
    yield "RandomRotation", {"degrees": 180, "center": [3.0, 4.5]}, angles, ALL
    yield "RandomAffine", {"degrees": 45}, AFFINE, ALL
    yield "RandomPerspective", {"interpolation": "nearest"}, endpoints(size), ALL
    sizes = rows(["height", "width"], [10, 14], [26, 36], [17, 24])
    yield "ScaleJitter", {"target_size": [20, 20], "canvas": [40, 40]}, sizes, ("boxes",)
    seeds = {"seed": np.asarray([[1, 2], [-3, 4], [5, 2**31 - 1]], np.int32)}
    options = {"alpha": [30.0, 18.0], "sigma": 1.2, "fill": [10, 200, 90]}
    yield "ElasticTransform", options, seeds, ("image", "mask")


def _elastic(v2: Any, size: tuple[int, int]) -> Any:
    F, modes = v2.functional, v2.InterpolationMode
    from torchvision import tv_tensors

    def warped(t, p, x):
        pixels = np.asarray(t.displacement(p["seed"][None], size))
        shares = 2 * pixels / np.float32([size[1], size[0]])
        mask = isinstance(x, tv_tensors.Mask)
        mode, fill = (modes.NEAREST, 0) if mask else (modes.BILINEAR, list(t.fill))
        return F.elastic(x, torch.from_numpy(shares), mode, fill)

    return warped
