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

    F, modes = v2.functional, v2.InterpolationMode
    targets = (tv_tensors.Mask, tv_tensors.BoundingBoxes, tv_tensors.KeyPoints)

    def resize(t, x, size, **options):
        # torchvision takes the first of the pixels; ours, of masks too, the middle one.
        nearest = isinstance(x, tv_tensors.Mask) or t.interpolation == "nearest"
        mode = modes.NEAREST_EXACT if nearest else modes(t.interpolation)
        return F.resize(x, size, mode, antialias=t.antialias, **options)

    def own_size(t, p, x):
        return resize(t, x, [p["height"], p["width"]])

    def crop_resized(t, p, x):
        x = F.crop(x, p["top"], p["left"], p["height"], p["width"])
        return resize(t, x, list(t.size))

    def pad(t, x):
        fill = t.fill[0] if len(t.fill) == 1 else list(t.fill)
        return F.pad(x, list(t.padding), fill, t.padding_mode)

    def zoomed(t, p, x):
        height, width = F.get_size(x)
        left, top = p["left"], p["top"]
        return F.pad(x, [left, top, p["width"] - left - width, p["height"] - top - height])

    def sampling(t, x):
        if isinstance(x, targets):
            return {"interpolation": modes.NEAREST}
        fill = None if t.fill is None else list(t.fill)
        return {"interpolation": modes(t.interpolation), "fill": fill}

    def rotated(t, p, x):
        return F.rotate(x, p["angle"], expand=t.expand, center=t.center, **sampling(t, x))

    def affine(t, p, x):
        move, shear = [p["translate_x"], p["translate_y"]], [p["shear_x"], p["shear_y"]]
        options = sampling(t, x)
        return F.affine(x, p["angle"], move, p["scale"], shear, center=t.center, **options)

    def perspective(t, p, x):
        height, width = F.get_size(x)
        start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        return F.perspective(x, start, p["endpoints"].tolist(), **sampling(t, x))

    def jittered(t, p, x):
        for position in p["order"]:
            name = ("brightness", "contrast", "saturation", "hue")[position]
            x = getattr(F, f"adjust_{name}")(x, p[name])
        return x

    def applied(function, *fields):
        return lambda t, p, x: function(x, *(getattr(t, f) for f in fields)) if p["apply"] else x

    return {
        "RandomResizedCrop": crop_resized,
        "Resize": lambda t, p, x: resize(
            t, x, list(np.atleast_1d(t.size).tolist()), max_size=t.max_size
        ),
        "CenterCrop": lambda t, p, x: F.center_crop(x, list(t.size)),
        "Pad": lambda t, p, x: pad(t, x),
        "RandomCrop": lambda t, p, x: F.crop(pad(t, x), p["top"], p["left"], *t.size),
        "RandomHorizontalFlip": lambda t, p, x: F.horizontal_flip(x) if p["flip"] else x,
        "RandomVerticalFlip": lambda t, p, x: F.vertical_flip(x) if p["flip"] else x,
        "RandomRotation": rotated,
        "RandomAffine": affine,
        "RandomPerspective": perspective,
        "RandomZoomOut": zoomed,
        "ScaleJitter": own_size,
        "RandomShortestSize": own_size,
        "SanitizeBoundingBoxes": lambda t, p, x: x,
        "GaussianBlur": lambda t, p, x: F.gaussian_blur(x, list(t.kernel_size), [p["sigma"]] * 2),
        "ColorJitter": jittered,
        "RandomGrayscale": applied(lambda x: F.rgb_to_grayscale(x, 3)),
        "RandomInvert": applied(F.invert),
        "RandomEqualize": applied(F.equalize),
        "RandomAutocontrast": applied(F.autocontrast),
        "RandomPosterize": applied(F.posterize, "bits"),
        "RandomSolarize": applied(F.solarize, "threshold"),
        "RandomAdjustSharpness": applied(F.adjust_sharpness, "sharpness_factor"),
        "RandomChannelPermutation": lambda t, p, x: F.permute_channels(
            x, p["permutation"].tolist()
        ),
    }


def of_image(params: dict[str, Any], n: int) -> dict[str, Any]:
    """The parameters of image n of a batch."""
    own = {name: np.asarray(value)[n] for name, value in params.items()}
    return {name: value if value.ndim else value.item() for name, value in own.items()}


def expected(v2: Any, transform: Any, images: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """Apply torchvision's functions to images [N, H, W, C] with the parameters of our transform."""
    one = by_name(v2)[type(transform).__name__]
    rows = [one(transform, of_image(params, n), x) for n, x in enumerate(tensor(images))]
    return array(torch.stack(rows))


def draws(transform: Any, count: int, size: tuple[int, int], boxes: Any = None) -> list[Any]:
    """Draw parameters of a transform of torchvision for images of `size`, with boxes [K, 4]."""
    from torchvision import tv_tensors

    torch.manual_seed(4)
    inputs: list[Any] = [tv_tensors.Image(torch.zeros((3, *size), dtype=torch.uint8))]
    if boxes is not None:
        corners = torch.from_numpy(boxes)
        inputs.append(tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size))
    return [transform.make_params(inputs) for _ in range(count)]
