"""Recipes of image_policies.py as users of other libraries write them; each library is optional.

Each peer is a function of a recipe's name. It returns a function of batches u8 [n, H, W, 3], or
None if the library does not have the recipe. Parameters are drawn per image, except by kornia's
policies, which draw the ops of a batch at once. Magnitudes are those of the recipe; where a library
has none of a kind (albumentations draws signed ones from a range), the op is the same and so is its
work. Functions with ``parameters`` also apply what jaxkern drew, so that values can be compared.

Two worker processes work on halves of a batch, so that no interpreter delays another.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import peers

SIZE = 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
AFFINE: dict[str, Any] = {"degrees": 30, "translate": (0.1, 0.1), "scale": (0.8, 1.2), "shear": 10}
JITTER: dict[str, Any] = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
KERNEL, SIGMA = 23, (0.1, 2.0)
WORKERS = 2
AFFINE_PARAMETERS = ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y")

Run = Callable[[np.ndarray], Any]


def torchvision(recipe: str, parameters: Any = None, pil: bool = False) -> Run:
    """transforms.v2 on u8 tensors or PIL images, one by one, so that each has its own draw."""
    import torch
    from PIL import Image

    peers.declare_torchvision_operators(torch)
    from torchvision.transforms import v2

    if parameters is not None:
        return lambda images: _with_parameters(recipe, images, parameters)
    to_tensor = [v2.PILToTensor()] if pil else []
    crop = [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]
    to_float = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    bilinear = v2.InterpolationMode.BILINEAR
    jitter = v2.RandomApply([v2.ColorJitter(**JITTER)], 0.8)
    blur = v2.RandomApply([v2.GaussianBlur(KERNEL, SIGMA)], 0.5)
    last = [*to_tensor, *to_float, v2.RandomErasing(0.25)]
    steps: dict[str, list[Any]] = {
        "RandAugment": [v2.RandAugment(2, 9), *to_tensor],
        "training": [*crop, v2.RandAugment(2, 9), *last],
        "TrivialAugmentWide": [v2.TrivialAugmentWide(), *to_tensor],
        "AugMix": [v2.AugMix(), *to_tensor],
        "SimCLR": [*crop, jitter, v2.RandomGrayscale(0.2), blur, *to_tensor],
        "RandomAffine": [v2.RandomAffine(**AFFINE, interpolation=bilinear), *to_tensor],
        "RandomPerspective": [
            v2.RandomPerspective(0.5, p=1.0, interpolation=bilinear), *to_tensor
        ],
    }  # fmt: skip
    transform = v2.Compose(steps[recipe])

    def run(images: np.ndarray) -> Any:
        if pil:
            return torch.stack([transform(Image.fromarray(image)) for image in images]).numpy()
        batch = torch.from_numpy(images).permute(0, 3, 1, 2)
        return torch.stack([transform(image) for image in batch]).numpy()

    return run


def _with_parameters(recipe: str, images: np.ndarray, parameters: Any) -> np.ndarray:
    """Apply torchvision's functions with parameters that jaxkern drew."""
    import torch
    from torchvision.transforms import InterpolationMode, v2
    from torchvision.transforms.v2 import functional as f

    policy, names = v2.RandAugment(), parameters["names"]
    nearest, bilinear = InterpolationMode.NEAREST, InterpolationMode.BILINEAR

    def ops(image: Any, op: Any, magnitude: Any, mode: Any = nearest) -> Any:
        apply = policy._apply_image_or_video_transform
        for k, strength in zip(op, magnitude, strict=True):
            image = apply(image, names[int(k)], float(strength), mode, {}) if k >= 0 else image
        return image

    def one(image: Any, p: Any) -> Any:
        if recipe in ("training", "SimCLR"):
            box = [int(p[0][name]) for name in peers.BOX]
            image = f.resized_crop(image, *box, [SIZE, SIZE], interpolation=bilinear)
            image = f.horizontal_flip(image) if p[1]["flip"] else image
        if recipe == "training":
            image = ops(image, p[2]["op"], p[2]["magnitude"])
            image = f.normalize(f.to_dtype(image, torch.float32, scale=True), MEAN, STD)
            box = [int(p[4][name]) for name in peers.BOX]
            return f.erase(image, *box, torch.zeros(3, 1, 1)) if p[4]["erase"] else image
        if recipe == "SimCLR":
            factors = [float(p[2]["0." + name]) for name in JITTER]
            turns = (f.adjust_brightness, f.adjust_contrast, f.adjust_saturation, f.adjust_hue)
            if p[2]["apply"]:
                for k in p[2]["0.order"]:
                    image = turns[int(k)](image, factors[int(k)])
            image = f.rgb_to_grayscale(image, 3) if p[3]["apply"] else image
            sigma = float(p[4]["0.sigma"])
            return f.gaussian_blur(image, [KERNEL] * 2, [sigma] * 2) if p[4]["apply"] else image
        if recipe == "RandomAffine":
            angle, x, y, scale, *shear = (float(p[0][name]) for name in AFFINE_PARAMETERS)
            shift = [int(x), int(y)]
            return f.affine(image, angle, shift, scale, shear, interpolation=bilinear, fill=0)
        if recipe == "RandomPerspective":
            side = SIZE - 1
            corners = [[0, 0], [side, 0], [side, side], [0, side]]
            ends = np.asarray(p[0]["endpoints"]).tolist()
            return f.perspective(image, corners, ends, interpolation=bilinear, fill=0)
        if recipe == "AugMix":
            m, weights = float(p[0]["m"]), p[0]["weights"]
            mix = m * image
            for op, magnitude, weight in zip(p[0]["op"], p[0]["magnitude"], weights, strict=True):
                chain = ops(image, op, magnitude, bilinear)
                mix += (1 - m) * float(weight) * chain
            return mix.to(torch.uint8)
        return ops(image, p[0]["op"], p[0]["magnitude"])

    batch = torch.from_numpy(images).permute(0, 3, 1, 2)
    done = [
        one(image, [{n: v[i] for n, v in step.items()} for step in parameters["params"]])
        for i, image in enumerate(batch)
    ]
    return torch.stack(done).permute(0, 2, 3, 1).numpy()


def albumentations(recipe: str) -> Run | None:
    """Its transforms on arrays, composed once."""
    import albumentations as a
    import cv2

    cv2.setNumThreads(1)
    steps = _albumentations_recipe(a, cv2, recipe)
    if steps is None:
        return None
    transform = a.Compose(steps)
    return lambda images: np.stack([transform(image=image)["image"] for image in images])


def _albumentations_recipe(a: Any, cv2: Any, recipe: str) -> list[Any] | None:
    crop = [a.RandomResizedCrop((SIZE, SIZE), scale=(0.08, 1.0)), a.HorizontalFlip(p=0.5)]

    def some_of(bin_: float, degrees: float, shear: float, shift: int, bits: int) -> list[Any]:
        def affine(**given: Any) -> Any:
            none = {"scale": 1.0, "rotate": 0.0, "shear": 0.0}
            return a.Affine(**{**none, **given}, interpolation=cv2.INTER_NEAREST, p=1)

        def colour(name: str) -> Any:
            still = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0)}
            return a.ColorJitter(**{**still, name: (1 - bin_, 1 + bin_)}, p=1)

        still = {"x": (0, 0), "y": (0, 0)}
        return [
            a.NoOp(p=1),
            affine(shear={**still, "x": (-shear, shear)}),
            affine(shear={**still, "y": (-shear, shear)}),
            affine(translate_px={**still, "x": (-shift, shift)}),
            affine(translate_px={**still, "y": (-shift, shift)}),
            affine(rotate=(-degrees, degrees)),
            *map(colour, ("brightness", "saturation", "contrast")),
            a.Sharpen(alpha=(0, bin_), p=1),
            a.Posterize(num_bits=bits, p=1),
            a.Solarize(threshold_range=(0.7, 0.7), p=1),
            a.AutoContrast(p=1),
            a.Equalize(p=1),
        ]

    if recipe in ("RandAugment", "training"):
        shear = math.degrees(math.atan(0.09))
        ops = some_of(0.27, 9.0, shear, round(0.3 * 150 / 331 * SIZE), 7)
        policy = a.SomeOf(ops, n=2, replace=True, p=1)
        if recipe == "RandAugment":
            return [policy]
        erasing = a.Erasing(scale=(0.02, 0.33), ratio=(0.3, 3.3), p=0.25)
        return [*crop, policy, a.Normalize(MEAN, STD), erasing]
    if recipe == "TrivialAugmentWide":
        shear = math.degrees(math.atan(0.99))
        return [a.OneOf(some_of(0.99, 135.0, shear, 32, 4), p=1)]
    if recipe == "SimCLR":
        jitter = {name: (1 - f, 1 + f) if name != "hue" else (-f, f) for name, f in JITTER.items()}
        blur = a.GaussianBlur(blur_limit=(KERNEL, KERNEL), sigma_limit=SIGMA, p=0.5)
        return [*crop, a.ColorJitter(**jitter, p=0.8), a.ToGray(p=0.2), blur]
    if recipe == "RandomAffine":
        shift = {"x": (-0.1, 0.1), "y": (-0.1, 0.1)}
        slant = {"x": (-10, 10), "y": (0, 0)}
        return [
            a.Affine(scale=(0.8, 1.2), translate_percent=shift, rotate=(-30, 30), shear=slant, p=1)
        ]
    if recipe == "RandomPerspective":
        return [a.Perspective(scale=(0.05, 0.25), keep_size=True, p=1)]
    return None


def kornia(recipe: str) -> Run | None:
    """Its modules on a float batch, which it wants; the batch is made before."""
    import kornia.augmentation as k
    import torch

    torch.set_num_threads(1)
    crop = [k.RandomResizedCrop((SIZE, SIZE)), k.RandomHorizontalFlip()]
    policy = k.auto.RandAugment(n=2, m=9)
    norm, erasing = k.Normalize(MEAN, STD), k.RandomErasing(p=0.25)
    steps: dict[str, list[Any]] = {
        "RandAugment": [policy],
        "training": [*crop, policy, norm, erasing],
        "TrivialAugmentWide": [k.auto.TrivialAugment()],
        "SimCLR": [
            *crop,
            k.ColorJitter(**JITTER, p=0.8),
            k.RandomGrayscale(p=0.2),
            k.RandomGaussianBlur((KERNEL, KERNEL), SIGMA, p=0.5),
        ],
        "RandomAffine": [k.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10, p=1.0)],
        "RandomPerspective": [k.RandomPerspective(0.5, p=1.0)],
    }
    if recipe not in steps:
        return None
    transform = torch.nn.Sequential(*steps[recipe])

    def run(images: np.ndarray) -> Any:
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float().div_(255)
        with torch.no_grad():
            return transform(batch).numpy()

    return run


def dali(recipe: str) -> Run | None:
    """A CPU pipeline with two threads that takes the whole batch and does not work ahead."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    if recipe == "AugMix" or recipe == "RandomPerspective":
        return None
    given: dict[str, Any] = {}

    @pipeline_def(
        batch_size=64, num_threads=peers.THREADS, device_id=None, prefetch_queue_depth=1,
        exec_pipelined=False, exec_async=False, enable_conditionals=True,
    )  # fmt: skip
    def pipeline() -> Any:
        images = fn.external_source(lambda: given["images"], layout="HWC")
        if recipe in ("training", "SimCLR"):
            images = fn.random_resized_crop(
                images, size=(SIZE, SIZE), random_area=(0.08, 1.0), antialias=True
            )
            if recipe == "SimCLR":
                images = fn.flip(images, horizontal=fn.random.coin_flip())
        if recipe in ("RandAugment", "training"):
            images = rand_augment.rand_augment(images, n=2, m=9, shape=(SIZE, SIZE))
        if recipe == "TrivialAugmentWide":
            images = trivial_augment.trivial_augment_wide(images, shape=(SIZE, SIZE))
        if recipe == "training":
            images = fn.crop_mirror_normalize(
                images, dtype=types.FLOAT, output_layout="HWC", mirror=fn.random.coin_flip(),
                mean=[255 * m for m in MEAN], std=[255 * s for s in STD],
            )  # fmt: skip
            if fn.random.coin_flip(probability=0.25, dtype=types.BOOL):
                images = fn.erase(
                    images, anchor=fn.random.uniform(range=(0.0, 0.6), shape=2),
                    shape=fn.random.uniform(range=(0.15, 0.5), shape=2), normalized=True,
                    axes=(0, 1), fill_value=0.0,
                )  # fmt: skip
        if recipe == "SimCLR":
            if fn.random.coin_flip(probability=0.8, dtype=types.BOOL):
                images = fn.color_twist(
                    images,
                    brightness=fn.random.uniform(range=(0.2, 1.8)),
                    contrast=fn.random.uniform(range=(0.2, 1.8)),
                    saturation=fn.random.uniform(range=(0.2, 1.8)),
                    hue=fn.random.uniform(range=(-72.0, 72.0)),
                )
            if fn.random.coin_flip(probability=0.2, dtype=types.BOOL):
                images = fn.hsv(images, saturation=0.0)
            if fn.random.coin_flip(dtype=types.BOOL):
                images = fn.gaussian_blur(
                    images, window_size=KERNEL, sigma=fn.random.uniform(range=SIGMA)
                )
        if recipe == "RandomAffine":
            centre = (SIZE / 2, SIZE / 2)
            matrix = fn.transforms.rotation(
                angle=fn.random.uniform(range=(-30.0, 30.0)), center=centre
            )
            scale = fn.random.uniform(range=(0.8, 1.2))
            matrix = fn.transforms.scale(matrix, scale=fn.stack(scale, scale), center=centre)
            shift = fn.random.uniform(range=(-0.1 * SIZE, 0.1 * SIZE), shape=2)
            matrix = fn.transforms.translation(matrix, offset=shift)
            images = fn.warp_affine(images, matrix=matrix, fill_value=0, inverse_map=False)
        return images

    built = pipeline()
    built.build()

    def run(images: np.ndarray) -> Any:
        given["images"] = list(images)
        return built.run()[0].as_array()

    return run


def opencv_warp(recipe: str, parameters: Any = None) -> Run | None:
    """cv2's fixed-point warps by matrices that are drawn before."""
    if recipe not in ("RandomAffine", "RandomPerspective"):
        return None
    import cv2

    cv2.setNumThreads(1)
    warp = cv2.warpAffine if recipe == "RandomAffine" else cv2.warpPerspective
    flags, matrices = cv2.INTER_LINEAR, []
    if parameters is not None:
        matrices, flags = parameters["matrices"], flags | cv2.WARP_INVERSE_MAP
    random = np.random.default_rng(0)
    corners = np.array([[0, 0], [SIZE, 0], [SIZE, SIZE], [0, SIZE]], np.float32)
    centre = (SIZE - 1) / 2
    while len(matrices) < 64 and parameters is None:
        if recipe == "RandomPerspective":
            ends = corners + random.uniform(0, 56, (4, 2)) * np.sign(centre - corners)
            matrices.append(cv2.getPerspectiveTransform(corners, ends.astype(np.float32)))
        else:
            angle, scale = random.uniform(-30, 30), random.uniform(0.8, 1.2)
            matrix = cv2.getRotationMatrix2D((centre, centre), angle, scale)
            matrix[:, 2] += random.uniform(-22.4, 22.4, 2)
            matrices.append(matrix)

    def run(images: np.ndarray) -> np.ndarray:
        out = np.empty_like(images)
        for image, matrix, to in zip(images, matrices, out, strict=False):
            warp(image, matrix, (SIZE, SIZE), to, flags=flags)
        return out

    return run


# Name, package, function of a recipe, and True if it processes the complete batch itself.
PEERS: list[tuple[str, str, Callable[..., Run | None], bool]] = [
    ("torchvision v2, tensors", "torchvision", torchvision, False),
    ("torchvision v2, PIL", "torchvision", functools.partial(torchvision, pil=True), False),
    ("albumentations", "albumentations", albumentations, False),
    ("kornia", "kornia", kornia, False),
    ("DALI CPU", "nvidia-dali-cuda130", dali, True),
    ("OpenCV warps", "opencv-python-headless", opencv_warp, False),
]


class Workers:
    """Processes that each work on a part of a batch u8 [N, H, W, 3], which is sent once."""

    def __init__(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        spawn = multiprocessing.get_context("spawn")
        self._pools = [ProcessPoolExecutor(1, spawn) for _ in range(WORKERS)]

    def load(self, images: np.ndarray) -> None:
        """Send the batch that the following calls use."""
        for number, pool in enumerate(self._pools):
            pool.submit(_load, images, number).result()

    def has(self, peer: int, recipe: str) -> bool:
        """Prepare a recipe; return False if the peer lacks it.

        Raises:
          ImportError: the peer is not installed.
        """
        return all(self._all(_make, peer, recipe))

    def run(self, peer: int, recipe: str) -> None:
        """Run the recipe on the batch, without transferring the results."""
        self._all(_run, peer, recipe)

    def result(self, peer: int, recipe: str, parameters: Any) -> np.ndarray:
        """Return the batch transformed with these parameters."""
        return np.concatenate(self._all(_check, peer, recipe, parameters))

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()

    def _all(self, work: Callable[..., Any], peer: int, *arguments: Any) -> list[Any]:
        pools = self._pools[:1] if PEERS[peer][3] else self._pools
        futures = [pool.submit(work, peer, *arguments) for pool in pools]
        return [future.result() for future in futures]


# The state of a worker process: the batch, its number, and the prepared recipes.
_batch, _number = np.empty(0), 0
_recipes: dict[tuple[int, str], Run | None] = {}


def _load(images: np.ndarray, number: int) -> None:
    global _batch, _number
    _batch, _number = images, number


def _part(peer: int) -> slice:
    """Return the images of this worker."""
    n = len(_batch)
    if PEERS[peer][3]:
        return slice(0, n)
    return slice(n * _number // WORKERS, n * (_number + 1) // WORKERS)


def _make(peer: int, recipe: str) -> bool:
    _recipes[peer, recipe] = PEERS[peer][2](recipe)
    return _recipes[peer, recipe] is not None


def _run(peer: int, recipe: str) -> None:
    run = _recipes[peer, recipe]
    assert run is not None
    run(_batch[_part(peer)])


def _check(peer: int, recipe: str, parameters: Any) -> np.ndarray:
    part = _part(peer)
    own = _select(parameters, part)
    return np.asarray(PEERS[peer][2](recipe, own)(_batch[part]))  # type: ignore[misc]


def _select(parameters: Any, part: slice) -> Any:
    """Return the parameters of some images: arrays [N, ...] in dicts and lists."""
    if isinstance(parameters, dict):
        return {name: _select(value, part) for name, value in parameters.items()}
    if isinstance(parameters, list):
        return [_select(value, part) for value in parameters]
    return parameters[part] if isinstance(parameters, np.ndarray) else parameters
