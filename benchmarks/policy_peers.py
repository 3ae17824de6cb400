"""Recipes of image_policies.py as users of other libraries write them; each library is optional.

Each peer is a function of a recipe's name. It returns a function of batches u8 [n, H, W, 3], or
None if the library does not have the recipe. Parameters are drawn per image, except by kornia's
policies, which draw the ops of a batch at once. Magnitudes are those of the recipe; where a library
has none of a kind (albumentations draws signed ones from a range), the op is the same and so is its
work. The functions of `APPLY` apply what jaxkern drew, so that values can be compared.

Two worker processes work on halves of a batch, so that no interpreter delays another.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import numpy as np
import peers

SIZE = 224
MEAN, STD = peers.MEAN.tolist(), peers.STD.tolist()
AFFINE: dict[str, Any] = {"degrees": 30, "translate": (0.1, 0.1), "scale": (0.8, 1.2), "shear": 10}
JITTER: dict[str, Any] = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
KERNEL, SIGMA = 23, (0.1, 2.0)
AFFINE_PARAMETERS = ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y")

# The steps of each recipe, by names that the libraries share.
RECIPES = {
    "RandAugment": ("rand_augment",),
    "training": ("crop", "flip", "rand_augment", "normalize", "erase"),
    "TrivialAugmentWide": ("trivial_augment",),
    "AugMix": ("aug_mix",),
    "SimCLR": ("crop", "flip", "jitter", "gray", "blur"),
    "RandomAffine": ("affine",),
    "RandomPerspective": ("perspective",),
}
Run = Callable[[np.ndarray], Any]


def select(steps: dict[str, Any], recipe: str) -> list[Any] | None:
    """Return the steps of a recipe; None if one is missing."""
    names = RECIPES[recipe]
    return [steps[name] for name in names] if all(name in steps for name in names) else None


# torchvision -------------------------------------------------------------------------------------


def torchvision(recipe: str, pil: bool = False) -> Run:
    """transforms.v2 on u8 tensors or PIL images, one by one, so that each has its own draw."""
    import torch
    from PIL import Image

    v2 = peers.torchvision_v2()
    bilinear = v2.InterpolationMode.BILINEAR
    to_tensor = v2.PILToTensor()  # does not change tensors
    to_float = v2.ToDtype(torch.float32, scale=True)
    steps = {
        "crop": v2.RandomResizedCrop(SIZE),
        "flip": v2.RandomHorizontalFlip(),
        "rand_augment": v2.RandAugment(2, 9),
        "trivial_augment": v2.TrivialAugmentWide(),
        "aug_mix": v2.AugMix(),
        "jitter": v2.RandomApply([v2.ColorJitter(**JITTER)], 0.8),
        "gray": v2.RandomGrayscale(0.2),
        "blur": v2.RandomApply([v2.GaussianBlur(KERNEL, SIGMA)], 0.5),
        "normalize": v2.Compose([to_tensor, to_float, v2.Normalize(MEAN, STD)]),
        "erase": v2.RandomErasing(0.25),
        "affine": v2.RandomAffine(**AFFINE, interpolation=bilinear),
        "perspective": v2.RandomPerspective(0.5, 1.0, bilinear),
    }
    transform = v2.Compose([*select(steps, recipe), to_tensor])

    def run(images: np.ndarray) -> Any:
        if pil:
            return torch.stack([transform(Image.fromarray(image)) for image in images]).numpy()
        batch = torch.from_numpy(images).permute(0, 3, 1, 2)
        return torch.stack([transform(image) for image in batch]).numpy()

    return run


def apply_torchvision(recipe: str, images: np.ndarray, params: Any) -> np.ndarray:
    """Apply torchvision's functions with the parameters of each transform of jaxkern."""
    import torch

    v2 = peers.torchvision_v2()
    f, nearest, bilinear = v2.functional, *map(v2.InterpolationMode, ("nearest", "bilinear"))
    kind = {"AugMix": v2.AugMix, "TrivialAugmentWide": v2.TrivialAugmentWide}
    chosen = kind.get(recipe, v2.RandAugment)()
    names = list(chosen._AUGMENTATION_SPACE)

    def policy(image: Any, p: Any, mode: Any = nearest) -> Any:
        for k, magnitude in zip(p["op"], p["magnitude"], strict=True):
            if k >= 0:
                image = chosen._apply_image_or_video_transform(
                    image, names[int(k)], float(magnitude), mode, {}
                )
        return image

    def aug_mix(image: Any, p: Any) -> Any:
        m = float(p["m"])
        mixed = m * image
        for op, magnitude, weight in zip(p["op"], p["magnitude"], p["weights"], strict=True):
            chain = policy(image, {"op": op, "magnitude": magnitude}, bilinear)
            mixed += (1 - m) * float(weight) * chain
        return mixed.to(torch.uint8)

    def box(p: Any) -> list[int]:
        return [int(p[name]) for name in peers.BOX]

    def jitter(image: Any, p: Any) -> Any:
        adjust = (f.adjust_brightness, f.adjust_contrast, f.adjust_saturation, f.adjust_hue)
        factors = [float(p[f"0.{name}"]) for name in JITTER]
        for k in p["0.order"] if p["apply"] else ():
            image = adjust[int(k)](image, factors[int(k)])
        return image

    def affine(image: Any, p: Any) -> Any:
        angle, x, y, scale, *shear = (float(p[name]) for name in AFFINE_PARAMETERS)
        shift = [int(x), int(y)]
        return f.affine(image, angle, shift, scale, shear, interpolation=bilinear, fill=0)

    def perspective(image: Any, p: Any) -> Any:
        side = SIZE - 1
        corners = [[0, 0], [side, 0], [side, side], [0, side]]
        ends = p["endpoints"].tolist()
        return f.perspective(image, corners, ends, interpolation=bilinear, fill=0)

    # Functions of an image and the parameters of the step.
    steps: dict[str, Callable[[Any, Any], Any]] = {
        "crop": lambda x, p: f.resized_crop(x, *box(p), [SIZE, SIZE], interpolation=bilinear),
        "flip": lambda x, p: f.horizontal_flip(x) if p["flip"] else x,
        "rand_augment": policy,
        "trivial_augment": policy,
        "aug_mix": aug_mix,
        "jitter": jitter,
        "gray": lambda x, p: f.rgb_to_grayscale(x, 3) if p["apply"] else x,
        "blur": lambda x, p: (
            f.gaussian_blur(x, [KERNEL] * 2, [float(p["0.sigma"])] * 2) if p["apply"] else x
        ),
        "normalize": lambda x, p: f.normalize(f.to_dtype(x, torch.float32, True), MEAN, STD),
        "erase": lambda x, p: f.erase(x, *box(p), torch.zeros(3, 1, 1)) if p["erase"] else x,
        "affine": affine,
        "perspective": perspective,
    }
    results = []
    for i, image in enumerate(torch.from_numpy(images).permute(0, 3, 1, 2)):
        for step, p in zip(select(steps, recipe), params, strict=True):
            image = step(image, {name: values[i] for name, values in p.items()})
        results.append(image)
    return torch.stack(results).permute(0, 2, 3, 1).numpy()


# Other libraries ---------------------------------------------------------------------------------


def albumentations(recipe: str) -> Run | None:
    """Its transforms on arrays, composed once."""
    import albumentations as a
    import cv2

    cv2.setNumThreads(1)

    def affine(**changed: Any) -> Any:
        identity = {"scale": 1.0, "rotate": 0.0, "shear": 0.0}
        return a.Affine(**{**identity, **changed}, interpolation=cv2.INTER_NEAREST, p=1)

    def colour(name: str, strength: float) -> Any:
        unchanged = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0)}
        return a.ColorJitter(**{**unchanged, name: (1 - strength, 1 + strength)}, p=1)

    def ops(strength: float, slope: float, degrees: float, shift: int, bits: int) -> list[Any]:
        """Return the ops of a policy with magnitudes up to these."""
        shear = math.degrees(math.atan(slope))
        return [
            a.NoOp(p=1),
            affine(shear={"x": (-shear, shear), "y": (0, 0)}),
            affine(shear={"x": (0, 0), "y": (-shear, shear)}),
            affine(translate_px={"x": (-shift, shift), "y": (0, 0)}),
            affine(translate_px={"x": (0, 0), "y": (-shift, shift)}),
            affine(rotate=(-degrees, degrees)),
            *(colour(name, strength) for name in ("brightness", "saturation", "contrast")),
            a.Sharpen(alpha=(0, strength), p=1),
            a.Posterize(num_bits=bits, p=1),
            a.Solarize(threshold_range=(0.7, 0.7), p=1),
            a.AutoContrast(p=1),
            a.Equalize(p=1),
        ]

    policy = ops(0.27, 0.09, 9.0, round(0.3 * 150 / 331 * SIZE), 7)
    factors = {name: (1 - f, 1 + f) if name != "hue" else (-f, f) for name, f in JITTER.items()}
    shift, shear = {"x": (-0.1, 0.1), "y": (-0.1, 0.1)}, {"x": (-10, 10), "y": (0, 0)}
    steps = {
        "crop": a.RandomResizedCrop((SIZE, SIZE), scale=(0.08, 1.0)),
        "flip": a.HorizontalFlip(p=0.5),
        "rand_augment": a.SomeOf(policy, n=2, replace=True, p=1),
        "trivial_augment": a.OneOf(ops(0.99, 0.99, 135.0, 32, 4), p=1),
        "jitter": a.ColorJitter(**factors, p=0.8),
        "gray": a.ToGray(p=0.2),
        "blur": a.GaussianBlur(blur_limit=(KERNEL, KERNEL), sigma_limit=SIGMA, p=0.5),
        "normalize": a.Normalize(MEAN, STD),
        "erase": a.Erasing(scale=(0.02, 0.33), ratio=(0.3, 3.3), p=0.25),
        "affine": a.Affine(
            scale=(0.8, 1.2), translate_percent=shift, rotate=(-30, 30), shear=shear, p=1
        ),
        "perspective": a.Perspective(scale=(0.05, 0.25), keep_size=True, p=1),
    }
    if (chosen := select(steps, recipe)) is None:
        return None
    transform = a.Compose(chosen)
    return lambda images: np.stack([transform(image=image)["image"] for image in images])


def kornia(recipe: str) -> Run | None:
    """Its modules on a float batch, which it needs; the batch is made before."""
    import kornia.augmentation as k
    import torch

    torch.set_num_threads(1)
    steps = {
        "crop": k.RandomResizedCrop((SIZE, SIZE)),
        "flip": k.RandomHorizontalFlip(),
        "rand_augment": k.auto.RandAugment(n=2, m=9),
        "trivial_augment": k.auto.TrivialAugment(),
        "jitter": k.ColorJitter(**JITTER, p=0.8),
        "gray": k.RandomGrayscale(p=0.2),
        "blur": k.RandomGaussianBlur((KERNEL, KERNEL), SIGMA, p=0.5),
        "normalize": k.Normalize(MEAN, STD),
        "erase": k.RandomErasing(p=0.25),
        "affine": k.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10, p=1.0),
        "perspective": k.RandomPerspective(0.5, p=1.0),
    }
    if (chosen := select(steps, recipe)) is None:
        return None
    transform = torch.nn.Sequential(*chosen)

    def run(images: np.ndarray) -> Any:
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float().div_(255)
        with torch.no_grad():
            return transform(batch).numpy()

    return run


def dali(recipe: str) -> Run | None:
    """A CPU pipeline with two threads that processes the whole batch and does not work ahead."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    coin, uniform = fn.random.coin_flip, fn.random.uniform
    size, centre = (SIZE, SIZE), (SIZE / 2, SIZE / 2)

    def sometimes(probability: float, apply: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def step(images: Any) -> Any:
            if coin(probability=probability, dtype=types.BOOL):
                images = apply(images)
            return images

        return step

    def erase(images: Any) -> Any:
        anchor, shape = uniform(range=(0.0, 0.6), shape=2), uniform(range=(0.15, 0.5), shape=2)
        return fn.erase(
            images, anchor=anchor, shape=shape, normalized=True, axes=(0, 1), fill_value=0.0
        )

    def jitter(images: Any) -> Any:
        names = ("brightness", "contrast", "saturation")
        factors = {name: uniform(range=(0.2, 1.8)) for name in names}
        return fn.color_twist(images, **factors, hue=uniform(range=(-72.0, 72.0)))

    def affine(images: Any) -> Any:
        matrix = fn.transforms.rotation(angle=uniform(range=(-30.0, 30.0)), center=centre)
        scale = uniform(range=(0.8, 1.2))
        matrix = fn.transforms.scale(matrix, scale=fn.stack(scale, scale), center=centre)
        shift = uniform(range=(-0.1 * SIZE, 0.1 * SIZE), shape=2)
        matrix = fn.transforms.translation(matrix, offset=shift)
        return fn.warp_affine(images, matrix=matrix, fill_value=0, inverse_map=False)

    steps: dict[str, Callable[[Any], Any]] = {
        "crop": lambda x: fn.random_resized_crop(
            x, size=size, random_area=(0.08, 1.0), antialias=True
        ),
        "flip": lambda x: fn.flip(x, horizontal=coin()),
        "rand_augment": lambda x: rand_augment.rand_augment(x, n=2, m=9, shape=size),
        "trivial_augment": lambda x: trivial_augment.trivial_augment_wide(x, shape=size),
        "jitter": sometimes(0.8, jitter),
        "gray": sometimes(0.2, lambda x: fn.hsv(x, saturation=0.0)),
        "blur": sometimes(
            0.5, lambda x: fn.gaussian_blur(x, window_size=KERNEL, sigma=uniform(range=SIGMA))
        ),
        "normalize": lambda x: fn.crop_mirror_normalize(
            x, dtype=types.FLOAT, output_layout="HWC", mirror=coin(),
            mean=[255 * m for m in MEAN], std=[255 * s for s in STD],
        ),
        "erase": sometimes(0.25, erase),
        "affine": affine,
    }  # fmt: skip
    if recipe == "training":
        steps["flip"] = lambda x: x  # normalize mirrors
    if (chosen := select(steps, recipe)) is None:
        return None
    batches: list[list[np.ndarray]] = []

    @pipeline_def(
        batch_size=64, num_threads=peers.THREADS, device_id=None, prefetch_queue_depth=1,
        exec_pipelined=False, exec_async=False, enable_conditionals=True,
    )  # fmt: skip
    def pipeline() -> Any:
        images = fn.external_source(lambda: batches.pop(), layout="HWC")
        for step in chosen:
            images = step(images)
        return images

    built = pipeline()
    built.build()

    def run(images: np.ndarray) -> Any:
        batches.append(list(images))
        return built.run()[0].as_array()

    return run


def opencv_warp(recipe: str) -> Run | None:
    """cv2's fixed-point warps by matrices that are drawn before."""
    if recipe not in ("RandomAffine", "RandomPerspective"):
        return None
    import cv2

    random = np.random.default_rng(0)
    corners = np.array([[0, 0], [SIZE, 0], [SIZE, SIZE], [0, SIZE]], np.float32)
    centre, matrices = (SIZE - 1) / 2, []
    for _ in range(64):
        if recipe == "RandomPerspective":
            ends = corners + random.uniform(0, 56, (4, 2)) * np.sign(centre - corners)
            matrices.append(cv2.getPerspectiveTransform(corners, ends.astype(np.float32)))
        else:
            angle, scale = random.uniform(-30, 30), random.uniform(0.8, 1.2)
            matrix = cv2.getRotationMatrix2D((centre, centre), angle, scale)
            matrix[:, 2] += random.uniform(-22.4, 22.4, 2)
            matrices.append(matrix)
    return lambda images: apply_opencv(recipe, images, matrices, inverse=False)


def apply_opencv(recipe: str, images: np.ndarray, matrices: Any, inverse: bool = True) -> Any:
    """Warp images by matrices, of which the inverse ones map output to input pixels."""
    import cv2

    cv2.setNumThreads(1)
    warp = cv2.warpAffine if recipe == "RandomAffine" else cv2.warpPerspective
    flags = cv2.INTER_LINEAR | (cv2.WARP_INVERSE_MAP if inverse else 0)
    out = np.empty_like(images)
    for image, matrix, to in zip(images, matrices, out, strict=False):
        warp(image, matrix, (SIZE, SIZE), to, flags=flags)
    return out


# Worker processes --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library: its package, its recipes, and True if it processes the complete batch itself."""

    package: str
    make: Callable[[str], Run | None]
    whole_batch: bool = False


TENSORS, PIL, WARPS = "torchvision v2, tensors", "torchvision v2, PIL", "OpenCV warps"
PEERS = {
    TENSORS: Peer("torchvision", torchvision),
    PIL: Peer("torchvision", functools.partial(torchvision, pil=True)),
    "albumentations": Peer("albumentations", albumentations),
    "kornia": Peer("kornia", kornia),
    "DALI CPU": Peer("nvidia-dali-cuda130", dali, whole_batch=True),
    WARPS: Peer("opencv-python-headless", opencv_warp),
}
APPLY: dict[str, Callable[..., Any]] = {TENSORS: apply_torchvision, WARPS: apply_opencv}


class Workers:
    """Two processes that each work on half of a batch u8 [N, H, W, 3], which is sent once."""

    def __init__(self, images: np.ndarray) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        spawn, half = multiprocessing.get_context("spawn"), len(images) // 2
        self._halves = [slice(0, half), slice(half, None)]
        self._pools = [ProcessPoolExecutor(1, spawn, _load, (images, h)) for h in self._halves]

    def run(self, peer: str, recipe: str) -> bool:
        """Run a recipe on the batch, without transferring the results.

        Returns:
          False if the peer lacks the recipe.
        Raises:
          ImportError: the peer is not installed.
        """
        pools = self._pools[:1] if PEERS[peer].whole_batch else self._pools
        futures = [pool.submit(_run, peer, recipe) for pool in pools]
        return all(future.result() for future in futures)

    def result(self, peer: str, recipe: str, params: Any) -> np.ndarray:
        """Return the batch transformed with parameters, a tree of arrays [N, ...]."""
        futures = [
            pool.submit(_apply, peer, recipe, jax.tree.map(lambda x, half=half: x[half], params))
            for pool, half in zip(self._pools, self._halves, strict=True)
        ]
        return np.concatenate([future.result() for future in futures])

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()


# The state of a worker process: the batch, and its half of it.
_batch = _half = np.empty(0)


def _load(images: np.ndarray, half: slice) -> None:
    global _batch, _half
    _batch, _half = images, images[half]


@functools.cache
def _prepared(peer: str, recipe: str) -> Run | None:
    return PEERS[peer].make(recipe)


def _run(peer: str, recipe: str) -> bool:
    if run := _prepared(peer, recipe):
        run(_batch if PEERS[peer].whole_batch else _half)
    return run is not None


def _apply(peer: str, recipe: str, params: Any) -> np.ndarray:
    return np.asarray(APPLY[peer](recipe, _half, params))
