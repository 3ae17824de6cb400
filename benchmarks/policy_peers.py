"""Recipes of image_policies.py as users of other libraries write them; each library is optional.

Each peer is a function of a recipe's name. It returns a function of batches u8 [n, H, W, 3], or
None if the library does not have the recipe. Parameters are drawn per image. Magnitudes are those
of the recipe; where a library has none of a kind (albumentations draws signed ones from a range),
the op is the same and so is its work.

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
MEAN, STD = peers.MEAN.tolist(), peers.STD.tolist()
AFFINE: dict[str, Any] = {"degrees": 30, "translate": (0.1, 0.1), "scale": (0.8, 1.2), "shear": 10}
JITTER: dict[str, Any] = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
KERNEL, SIGMA = 23, (0.1, 2.0)

# The steps of each recipe, by names that the libraries share.
RECIPES = {
    "RandAugment": ("rand_augment",),
    "training": ("crop", "flip", "rand_augment", "normalize", "erase"),
    "TrivialAugmentWide": ("trivial_augment",),
    "AugMix": ("aug_mix",),
    "ColorJitter": ("colours",),
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
        "colours": v2.ColorJitter(**JITTER),
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
        "colours": a.ColorJitter(**factors, p=1),
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


# Worker processes --------------------------------------------------------------------------------


TENSORS, PIL, ALBUMENTATIONS = "torchvision v2, tensors", "torchvision v2, PIL", "albumentations"
PEERS: dict[str, Callable[[str], Run | None]] = {
    TENSORS: torchvision,
    PIL: functools.partial(torchvision, pil=True),
    ALBUMENTATIONS: albumentations,
}


class Workers:
    """Two processes that each work on half of a batch u8 [N, H, W, 3], which is sent once."""

    def __init__(self, images: np.ndarray) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        spawn, halves = multiprocessing.get_context("spawn"), np.split(images, 2)
        self._pools = [ProcessPoolExecutor(1, spawn, _load, (half,)) for half in halves]

    def run(self, peer: str, recipe: str) -> bool:
        """Run a recipe on the batch, without transferring the results.

        Returns:
          False if the peer lacks the recipe.

        Raises:
          ImportError: the peer is not installed.
        """
        futures = [pool.submit(_run, peer, recipe) for pool in self._pools]
        return all(future.result() for future in futures)

    def result(self, peer: str, recipe: str) -> np.ndarray:
        """Return the transformed batch, N... with channels last."""
        futures = [pool.submit(_result, peer, recipe) for pool in self._pools]
        batch = np.concatenate([future.result() for future in futures])
        return np.moveaxis(batch, 1, -1) if batch.shape[1] == 3 else batch

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()


_half = np.empty(0)  # the part of the batch that a worker process has


def _load(half: np.ndarray) -> None:
    global _half
    _half = half


@functools.cache
def _prepared(peer: str, recipe: str) -> Run | None:
    return PEERS[peer](recipe)


def _run(peer: str, recipe: str) -> bool:
    if run := _prepared(peer, recipe):
        run(_half)
    return run is not None


def _result(peer: str, recipe: str) -> np.ndarray:
    run = _prepared(peer, recipe)
    assert run is not None
    return np.asarray(run(_half))
