"""torchvision's functional transforms by the names of ours: (transform, parameters, input) ->
output, where an input is an image or a target of one image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Apply = Callable[[Any, dict[str, Any], Any], Any]


def tensor(images: np.ndarray) -> torch.Tensor:
    """Convert images [..., H, W, C] to a tensor [..., C, H, W]."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, -3)))


def array(images: torch.Tensor) -> np.ndarray:
    """Convert a tensor [..., C, H, W] to images [..., H, W, C]."""
    return np.moveaxis(images.numpy(), -3, -1)


def by_name(v2: Any) -> dict[str, Apply]:
    """Of torchvision.transforms.v2; the parameters of one image, as Python numbers or arrays."""
    from torchvision import tv_tensors

    F, exact = v2.functional, v2.InterpolationMode.NEAREST_EXACT

    def resize(x, size):
        # torchvision takes the first of the pixels; ours, of masks too, the middle one.
        mask = isinstance(x, tv_tensors.Mask)
        return F.resize(x, size, interpolation=exact) if mask else F.resize(x, size)

    def crop(t, p, x):
        x = F.crop(x, p["top"], p["left"], p["height"], p["width"])
        return resize(x, list(t.size))

    def perspective(t, p, x):
        height, width = F.get_size(x)
        start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        return F.perspective(x, start, p["endpoints"].tolist(), interpolation=exact.NEAREST)

    def affine(t, p, x):
        move, shear = [p["translate_x"], p["translate_y"]], [p["shear_x"], p["shear_y"]]
        return F.affine(x, p["angle"], move, p["scale"], shear)

    def zoomed(t, p, x):
        height, width = F.get_size(x)
        left, top = p["left"], p["top"]
        return F.pad(x, [left, top, p["width"] - left - width, p["height"] - top - height])

    def own_size(t, p, x):
        return resize(x, [p["height"], p["width"]])

    return {
        "RandomResizedCrop": crop,
        "Resize": lambda t, p, x: resize(x, list(t.size)),
        "CenterCrop": lambda t, p, x: F.center_crop(x, list(t.size)),
        "Pad": lambda t, p, x: F.pad(x, list(t.padding)),
        "RandomCrop": lambda t, p, x: F.crop(
            F.pad(x, list(t.padding)), p["top"], p["left"], *t.size
        ),
        "RandomHorizontalFlip": lambda t, p, x: F.horizontal_flip(x) if p["flip"] else x,
        "RandomVerticalFlip": lambda t, p, x: F.vertical_flip(x) if p["flip"] else x,
        "RandomRotation": lambda t, p, x: F.rotate(x, p["angle"], center=t.center),
        "RandomAffine": affine,
        "RandomPerspective": perspective,
        "RandomZoomOut": zoomed,
        "ScaleJitter": own_size,
        "RandomShortestSize": own_size,
        "SanitizeBoundingBoxes": lambda t, p, x: x,
    }


def of_image(params: dict[str, Any], n: int) -> dict[str, Any]:
    """The parameters of image n of a batch."""
    own = {name: value[n] for name, value in params.items()}
    return {name: value if value.ndim else value.item() for name, value in own.items()}
