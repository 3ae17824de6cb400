"""Writes frozen.npz: small images and torchvision's results on them, for ../test_frozen.py.

    PYTHONPATH=tests .venv-torchvision/bin/python tests/image/torchvision/freeze.py

`make test-torchvision` creates that environment. A case is a transform with the parameters of a
batch. Nearest warps have no sampling position between two pixels, where rounding would decide.
"""

from __future__ import annotations

import json
import pathlib
from unittest import mock

import numpy as np
import torch
from conftest import load_v2
from freeze_targets import AFFINE, endpoints, target_cases
from support.image.torchvision_functions import expected, of_image, tensor

from jaxkern import image as im

v2 = load_v2()
HEIGHT, WIDTH = 13, 18
FLOAT_LEVELS = 65535  # floats are stored as integer multiples of 1 / 65535


def base_images() -> np.ndarray:
    """Return three images u8: smooth colours, noise, and few levels with a constant channel."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    smooth = np.stack([x * 14, y * 19, 255 - 6 * (x + y)], axis=-1)
    noise = rng.integers(0, 256, (HEIGHT, WIDTH, 3))
    few = rng.choice([31, 90, 90, 140, 203], (HEIGHT, WIDTH, 3))
    few[..., 2] = 77
    few[:4, :5] = [200, 0, 40]  # red, with more blue than green
    return np.stack([smooth, noise, few]).astype(np.uint8)


def as_float(images: np.ndarray) -> np.ndarray:
    """Return f32 images from 0 to 1 with values between the levels."""
    return ((images.astype(np.float32) + np.float32(0.37)) / 256).astype(np.float32)


class Case:
    """A transform and the parameters of its batch.

    A policy has torchvision's function of one image and its parameters.
    """

    def __init__(self, name, options, params, images=None, channels=3, of_floats=None, apply=None):
        count = len(next(iter(params.values())))
        self.name, self.options, self.params, self.apply = name, options, params, apply
        self.of_floats = {} if of_floats is None else of_floats  # options for float images
        self.images = np.arange(count) % 3 if images is None else np.asarray(images)
        self.channels = channels

    def run(self, batch: np.ndarray) -> np.ndarray:
        if self.apply is None:
            floats = batch.dtype != np.uint8 and self.of_floats
            transform = getattr(im, self.name)(**(self.of_floats if floats else self.options))
            return expected(v2, transform, batch, self.params)
        rows = [self.apply(tensor(x), of_image(self.params, n)) for n, x in enumerate(batch)]
        return np.stack([row.numpy().transpose(1, 2, 0) for row in rows])


def policy_op(policy, name, image, magnitude):
    interpolation, fill = policy.interpolation, policy._fill
    return policy._apply_image_or_video_transform(
        image, name, float(magnitude), interpolation=interpolation, fill=fill
    )


def no_ties(name, magnitude):
    """Reject nearest warps with a sampling position on the border of two pixels."""
    x, y = np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5)
    if name in ("ShearX", "ShearY"):
        moved = [x + magnitude * y] if name == "ShearX" else [y + magnitude * x]
    elif name == "Rotate":
        across, down = x - WIDTH / 2, y - HEIGHT / 2
        c, s = np.cos(np.radians(magnitude)), np.sin(np.radians(magnitude))
        moved = [c * across - s * down + WIDTH / 2, s * across + c * down + HEIGHT / 2]
    else:
        return
    for points in moved:
        assert np.abs(points - np.round(points)).min() > 1e-4, (name, magnitude)


def policy_case(name, steps, images=None, channels=3, **options):
    """Return parameters of rows [(op, magnitude), ...] an image."""
    policy = getattr(v2, name)(**options)
    names = list(policy._AUGMENTATION_SPACE)
    if policy.interpolation == "nearest":
        for step in (step for row in steps for step in row):
            no_ties(*step)
    op = [[names.index(n) if n else -1 for n, _ in row] for row in steps]
    magnitude = [[m for _, m in row] for row in steps]

    def apply(image, inputs):
        for position, m in zip(inputs["op"], inputs["magnitude"], strict=True):
            if position >= 0:
                image = policy_op(policy, names[position], image, m)
        return image

    params = {"op": np.asarray(op, np.int32), "magnitude": np.asarray(magnitude, np.float32)}
    return Case(name, options, params, images, channels, apply=apply)


SIGNED = {
    "ShearX": (0.27, -0.61),
    "ShearY": (0.13, -0.71),
    "TranslateX": (5.9, -3.2),
    "TranslateY": (4.0, -6.8),
    "Rotate": (13.5, -77.0),
    "Brightness": (0.53, -0.27),
    "Color": (0.53, -0.81),
    "Contrast": (0.87, -0.33),
    "Sharpness": (0.9, -0.6),
    "Posterize": (3.0, 6.0),
    "Solarize": (0.3, 0.61),
    "AutoContrast": (0.0, 0.0),
    "Equalize": (0.0, 0.0),
}


def every_op(names):
    """Return rows and images: each op with each of its magnitudes on two images."""
    rows, images = [], []
    for position, name in enumerate(names):
        for rotation, m in enumerate(SIGNED[name]):
            for image in (rotation, 2 - (position + rotation) % 2):
                rows.append([(name, m)])
                images.append(image)
    return rows, images


def aug_mix_case(chains, weights, m, **options):
    """Return AugMix parameters of chains [[(op, magnitude), ...], ...] and weights."""
    names = list(v2.AugMix._AUGMENTATION_SPACE)
    op = -np.ones((len(chains), 3, 3), np.int32)
    magnitude = np.zeros((len(chains), 3, 3), np.float32)
    for n, image in enumerate(chains):
        for w, chain in enumerate(image):
            for d, (name, strength) in enumerate(chain):
                op[n, w, d], magnitude[n, w, d] = names.index(name), strength
    params = {
        "op": op,
        "magnitude": magnitude,
        "weights": np.asarray(weights, np.float32),
        "m": np.asarray(m, np.float32),
    }

    def apply(image, inputs):
        """Run torchvision's forward pass with the given draws."""
        policy = v2.AugMix(**options)
        used = inputs["op"] >= 0
        depths = iter(used.sum(axis=1).tolist())
        share = float(inputs["m"])
        draws = iter([torch.tensor([[share, 1 - share]]), torch.tensor(inputs["weights"][None])])
        steps = iter(zip(inputs["op"][used], inputs["magnitude"][used], strict=True))
        policy._sample_dirichlet = lambda params: next(draws)

        real = policy._apply_image_or_video_transform

        def replaced(image, name, magnitude, interpolation, fill):
            position, strength = next(steps)
            return real(
                image, names[position], float(strength), interpolation=interpolation, fill=fill
            )

        policy._apply_image_or_video_transform = replaced
        randint = torch.randint

        def chosen(*args, **kwargs):
            return torch.tensor([next(depths)]) if "low" in kwargs else randint(*args, **kwargs)

        with mock.patch("torch.randint", chosen):
            return policy(image)

    return Case("AugMix", options, params, apply=apply)


def policies():
    """Return cases of policies: every op alone, pairs, and mixtures."""
    rows, images = every_op(SIGNED)
    yield policy_case("TrivialAugmentWide", [[("Identity", 0.0)], *rows], [0, *images])
    grey = [name for name in SIGNED if name not in ("Color", "ShearY", "TranslateX")]
    rows, images = every_op(grey)
    yield policy_case("TrivialAugmentWide", rows, images, channels=1)
    warps = [name for name in SIGNED if name[:5] in ("Shear", "Trans", "Rotat")]
    rows, images = every_op(warps)
    yield policy_case("TrivialAugmentWide", rows, images, interpolation="bilinear")
    pairs = [
        [("Rotate", 9.7), ("Brightness", -0.27)],
        [("Posterize", 7.0), ("ShearX", 0.09)],
        [("Identity", 0.0), ("Equalize", 0.0)],
    ]
    yield policy_case("RandAugment", pairs)
    pairs = [
        [("Invert", 0.0), ("Equalize", 0.0)],
        [(None, 0.0), ("Solarize", 0.5)],
        [("Invert", 0.0), (None, 0.0)],
    ]
    yield policy_case("AutoAugment", pairs)
    chains = [
        [[("Rotate", 6.5)], [("Solarize", 0.9), ("ShearX", -0.1037)], [("Equalize", 0.0)] * 3],
        [
            [("TranslateY", 1.0), ("Posterize", 4.0), ("Color", 0.2)],
            [("Contrast", -0.2)],
            [("AutoContrast", 0.0), ("ShearY", 0.0671)],
        ],
        [[("Brightness", 0.1)], [("Rotate", -3.3)], [("Sharpness", 0.2), ("TranslateX", -1.3)]],
    ]
    weights = [[0.2, 0.5, 0.3], [0.61, 0.05, 0.34], [0.1, 0.2, 0.7]]
    yield aug_mix_case(chains, weights, [0.35, 0.1, 0.83])


def f32(*values):
    return np.asarray(values, np.float32)


def colours():
    """Return cases of ColorJitter in several orders, and of each operation with a probability."""
    params = {
        "brightness": f32(1.3, 0.4, 0.8),
        "contrast": f32(0.6, 1.7, 0.2),
        "saturation": f32(1.6, 0.3, 1.2),
        "hue": f32(0.07, -0.31, 0.5),
        "order": np.asarray([[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]], np.int32),
    }
    options = {"brightness": 0.9, "contrast": 0.9, "saturation": 0.9, "hue": 0.5}
    yield Case("ColorJitter", options, params)
    apply = {"apply": np.asarray([True, True, True, False])}
    for name in ("RandomGrayscale", "RandomInvert", "RandomEqualize", "RandomAutocontrast"):
        yield Case(name, {}, apply)
    yield Case("RandomPosterize", {"bits": 3}, apply)
    yield Case("RandomSolarize", {"threshold": 90.0}, apply, of_floats={"threshold": 0.4})
    yield Case("RandomAdjustSharpness", {"sharpness_factor": 2.5}, apply)
    order = np.asarray([[2, 0, 1], [1, 0, 2], [1, 2, 0]], np.int32)
    yield Case("RandomChannelPermutation", {}, {"permutation": order})


def warps():
    """Return cases of rotations, affine maps, perspectives, bilinear and with fill, and blurs."""
    fill = {"fill": [10, 200, 90]}, {"fill": [0.1, 0.7, 0.3]}
    params = {"angle": f32(23.7, -51.3, 160.9)}
    for angle in params["angle"]:
        no_ties("Rotate", float(angle))
    yield Case("RandomRotation", {"degrees": 180}, params)
    options = {"degrees": 45, "interpolation": "bilinear"}
    yield Case("RandomAffine", options | fill[0], AFFINE, of_floats=options | fill[1])
    params = endpoints((HEIGHT, WIDTH))
    yield Case("RandomPerspective", fill[0], params, of_floats=fill[1])
    yield Case("GaussianBlur", {"kernel_size": [5, 3]}, {"sigma": f32(0.6, 1.7, 3.1)})


def resamplings():
    """Return cases of bicubic crops and resizes, and of borders from the image's own pixels."""
    boxes = np.asarray([[0, 0, 13, 18], [2, 1, 5, 9], [11, 3, 2, 15]], np.int32).T
    params = dict(zip(("top", "left", "height", "width"), boxes, strict=True))
    for antialias in (True, False):
        options = {"size": [9, 11], "interpolation": "bicubic", "antialias": antialias}
        yield Case("RandomResizedCrop", options, params)
    params = {"top": np.asarray([0, 7, 3], np.int32), "left": np.asarray([9, 0, 2], np.int32)}
    for mode in ("edge", "reflect", "symmetric"):
        options = {"size": [14, 12], "padding": [4, 3, 5, 6], "padding_mode": mode}
        yield Case("RandomCrop", options, params)


def main() -> None:
    base = base_images()
    arrays: dict[str, np.ndarray] = {"images": base}
    listed = []
    cases = [*policies(), *colours(), *warps(), *resamplings()]
    for number, case in enumerate(cases):
        batch = base[case.images][..., : case.channels]
        arrays[f"{number}.u8"] = case.run(batch)
        wide = case.run(as_float(batch)).astype(np.float64)
        assert -0.5 <= wide.min() <= wide.max() <= 1.5, (case.name, wide.min(), wide.max())
        overshoots = wide.min() < 0 or wide.max() > 1
        stored = np.int32 if overshoots else np.uint16
        arrays[f"{number}.f32"] = np.round(wide * FLOAT_LEVELS).astype(stored)
        for key, value in case.params.items():
            arrays[f"{number}.param.{key}"] = value
        row = {"transform": case.name, "options": case.options, "channels": case.channels}
        listed.append({**row, "of_floats": case.of_floats, "images": case.images.tolist()})
    arrays["cases"] = np.frombuffer(json.dumps(listed).encode(), np.uint8)
    with_targets, of_targets = target_cases(v2, base)
    arrays |= of_targets
    arrays["target_cases"] = np.frombuffer(json.dumps(with_targets).encode(), np.uint8)
    path = pathlib.Path(__file__).with_name("frozen.npz")
    np.savez_compressed(path, **arrays)
    print(f"{path}: {len(listed) + len(with_targets)} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
