"""Recipes of image_policies.py as users of other libraries write them; each library is optional.

Each peer takes a recipe's name and returns a function of batches u8 [n, H, W, 3], or None where
the library does not have the recipe. Draws are per image, but for kornia's policies, which
draw the ops of a batch at once. Magnitudes are those of the recipe; where a library has none of a
kind (albumentations draws signed ones from a range), the op is the same and so is its work.

PEERS with `given` also take parameters that jaxkern drew, which is how values are checked.

Run as a program this is a worker: two processes work on halves of a batch, so that no interpreter
holds up another. They get names and a batch in a file; only a result to be checked is sent back.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peers

SIZE = 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
AFFINE: dict[str, Any] = {"degrees": 30, "translate": (0.1, 0.1), "scale": (0.8, 1.2), "shear": 10}
JITTER: dict[str, Any] = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
KERNEL, SIGMA = 23, (0.1, 2.0)
WORKERS = 2

Run = Callable[[np.ndarray], Any]


def torchvision(recipe: str, given: Any = None) -> Run:
    """transforms.v2 on u8 tensors, image by image, so that each gets its own draw."""
    import torch

    peers.declare_torchvision_operators(torch)
    from torchvision.transforms import v2

    if given is not None:
        return lambda images: _given(recipe, images, given)
    transform = _torchvision_recipe(v2, torch, recipe, [])

    def run(images: np.ndarray) -> Any:
        batch = torch.from_numpy(images).permute(0, 3, 1, 2)
        return torch.stack([transform(image) for image in batch]).numpy()

    return run


def torchvision_pil(recipe: str) -> Run:
    """transforms.v2 on PIL images, which become tensors at the end."""
    import torch
    from PIL import Image

    peers.declare_torchvision_operators(torch)
    from torchvision.transforms import v2

    transform = _torchvision_recipe(v2, torch, recipe, [v2.PILToTensor()])

    def run(images: np.ndarray) -> Any:
        return torch.stack([transform(Image.fromarray(image)) for image in images]).numpy()

    return run


def _torchvision_recipe(v2: Any, torch: Any, recipe: str, to_tensor: list[Any]) -> Any:
    crop = [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]
    bilinear = v2.InterpolationMode.BILINEAR
    if recipe == "training":
        to_float = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        erasing = v2.RandomErasing(0.25)
        return v2.Compose([*crop, v2.RandAugment(2, 9), *to_tensor, *to_float, erasing])
    steps: dict[str, list[Any]] = {
        "RandAugment": [v2.RandAugment(2, 9)],
        "TrivialAugmentWide": [v2.TrivialAugmentWide()],
        "AugMix": [v2.AugMix()],
        "SimCLR": [
            *crop,
            v2.RandomApply([v2.ColorJitter(**JITTER)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(KERNEL, SIGMA)], 0.5),
        ],
        "RandomAffine": [v2.RandomAffine(**AFFINE, interpolation=bilinear)],
        "RandomPerspective": [v2.RandomPerspective(0.5, p=1.0, interpolation=bilinear)],
    }
    return v2.Compose([*steps[recipe], *to_tensor])


def _given(recipe: str, images: np.ndarray, given: Any) -> np.ndarray:
    """torchvision's functions with what jaxkern drew: u8 [n, H, W, 3], or normalized floats."""
    import torch
    from torchvision.transforms import InterpolationMode, v2
    from torchvision.transforms.v2 import functional as f

    policy = v2.RandAugment()
    nearest, bilinear = InterpolationMode.NEAREST, InterpolationMode.BILINEAR

    def ops(image: Any, op: Any, magnitude: Any, names: Any, mode: Any = nearest) -> Any:
        for k, strength in zip(op, magnitude, strict=True):
            if k >= 0:
                name = names[int(k)]
                image = policy._apply_image_or_video_transform(
                    image, name, float(strength), mode, {}
                )
        return image

    def one(image: Any, p: Any) -> Any:
        if recipe in ("training", "SimCLR"):
            box = [int(p[0][name]) for name in ("top", "left", "height", "width")]
            image = f.resized_crop(image, *box, [SIZE, SIZE], interpolation=bilinear)
            image = f.horizontal_flip(image) if p[1]["flip"] else image
        if recipe == "training":
            image = ops(image, p[2]["op"], p[2]["magnitude"], given["names"])
            image = f.normalize(f.to_dtype(image, torch.float32, scale=True), MEAN, STD)
            top, left, height, width = (
                int(p[4][name]) for name in ("top", "left", "height", "width")
            )
            if p[4]["erase"]:
                image = f.erase(image, top, left, height, width, torch.zeros(3, 1, 1))
            return image
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
            angle, x, y, scale, shear_x, shear_y = (
                float(p[0][name])
                for name in ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y")
            )
            shift, shear = [int(x), int(y)], [shear_x, shear_y]
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
                chain = ops(image, op, magnitude, given["names"], bilinear)
                mix += (1 - m) * float(weight) * chain
            return mix.to(torch.uint8)
        return ops(image, p[0]["op"], p[0]["magnitude"], given["names"])

    batch = torch.from_numpy(images).permute(0, 3, 1, 2)
    done = [
        one(image, [{n: v[i] for n, v in step.items()} for step in given["params"]])
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


def opencv_warp(recipe: str, given: Any = None) -> Run | None:
    """cv2's fixed-point warps by matrices that are drawn before."""
    if recipe not in ("RandomAffine", "RandomPerspective"):
        return None
    import cv2

    cv2.setNumThreads(1)
    matrices = None if given is None else given["matrices"]
    if matrices is None:
        random = np.random.default_rng(0)
        corners = np.array([[0, 0], [SIZE, 0], [SIZE, SIZE], [0, SIZE]], np.float32)
        centre = (SIZE - 1) / 2
        matrices = []
        for _ in range(64):
            if recipe == "RandomPerspective":
                ends = corners + random.uniform(0, 56, (4, 2)) * np.sign(centre - corners)
                matrices.append(cv2.getPerspectiveTransform(corners, ends.astype(np.float32)))
            else:
                turn, grow = random.uniform(-30, 30), random.uniform(0.8, 1.2)
                matrix = cv2.getRotationMatrix2D((centre, centre), turn, grow)
                matrix[:, 2] += random.uniform(-22.4, 22.4, 2)
                matrices.append(matrix)
    warp = cv2.warpAffine if recipe == "RandomAffine" else cv2.warpPerspective
    flags = cv2.INTER_LINEAR | (0 if given is None else cv2.WARP_INVERSE_MAP)

    def run(images: np.ndarray) -> np.ndarray:
        out = np.empty_like(images)
        for image, matrix, to in zip(images, matrices, out, strict=False):
            warp(image, matrix, (SIZE, SIZE), to, flags=flags)
        return out

    return run


# Name, package, arm, and True if it processes the complete batch with two threads.
PEERS: list[tuple[str, str, Callable[..., Run | None], bool]] = [
    ("torchvision v2, tensors", "torchvision", torchvision, False),
    ("torchvision v2, PIL", "torchvision", torchvision_pil, False),
    ("albumentations", "albumentations", albumentations, False),
    ("kornia", "kornia", kornia, False),
    ("DALI CPU", "nvidia-dali-cuda130", dali, True),
    ("OpenCV warps", "opencv-python-headless", opencv_warp, False),
]


class NotThereError(RuntimeError):
    """A peer is not installed."""


class Workers:
    """Worker processes; a batch u8 [N, H, W, 3] is given to them once, and worked on by name."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, self._folder.name, str(place)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # warnings of libraries; errors are answers
                env=environment,
            )
            for place in range(WORKERS)
        ]

    def give(self, images: np.ndarray) -> None:
        """The batch that following calls work on."""
        np.save(Path(self._folder.name) / "images.npy", images)
        self._all({"load": True})

    def has(self, peer: int, recipe: str) -> bool:
        """Prepare a recipe; return False if the peer lacks it, raise if it is not installed."""
        return all(self._all({"make": (peer, recipe)}, self._used(peer)))

    def run(self, peer: int, recipe: str) -> None:
        """Run the recipe on the batch, without transferring the results."""
        self._all({"run": (peer, recipe)}, self._used(peer))

    def result(self, peer: int, recipe: str, parameters: Any) -> np.ndarray:
        """Return the batch transformed with these parameters."""
        return np.concatenate(self._all({"check": (peer, recipe, parameters)}, self._used(peer)))

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
            process.wait()
            process.stdout.close()
        self._folder.cleanup()

    def _used(self, peer: int) -> int:
        return 1 if PEERS[peer][3] else WORKERS

    def _all(self, message: Any, workers: int = WORKERS) -> list[Any]:
        for process in self._processes[:workers]:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
        answers = [pickle.load(process.stdout) for process in self._processes[:workers]]
        for answer in answers:
            if isinstance(answer, ImportError):
                raise NotThereError(str(answer)) from answer
            if isinstance(answer, str):
                raise RuntimeError(answer)
        return answers


def part(images: int, whole: bool, place: int) -> slice:
    """Which images a worker gets."""
    if whole:
        return slice(0, images)
    return slice(images * place // WORKERS, images * (place + 1) // WORKERS)


def worker(folder: Path, place: int, source: Any, sink: Any) -> None:
    """Answers messages until there are no more."""
    made: dict[Any, Any] = {}
    images = np.empty(0)

    def answer(message: dict[str, Any]) -> Any:
        nonlocal images
        ((what, given),) = message.items()
        if what == "load":
            images = np.load(folder / "images.npy")
            return True
        peer, recipe, *more = given
        _, _, make, whole = PEERS[peer]
        mine = images[part(len(images), whole, place)]
        if what == "check":
            return np.asarray(
                make(recipe, _part_of(more[0], part(len(images), whole, place)))(mine)
            )
        if what == "make":
            made[peer, recipe] = make(recipe)
            return made[peer, recipe] is not None
        made[peer, recipe](mine)
        return True

    while True:
        try:
            message = pickle.load(source)
        except EOFError:
            return
        try:
            found = answer(message)
        except ImportError as error:
            found = ImportError(str(error))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        pickle.dump(found, sink)
        sink.flush()


def _part_of(given: Any, images: slice) -> Any:
    """The parameters of some images: of arrays [N, ...] in dicts and lists."""
    if isinstance(given, dict):
        return {name: _part_of(value, images) for name, value in given.items()}
    if isinstance(given, list):
        return [_part_of(value, images) for value in given]
    return given[images] if isinstance(given, np.ndarray) else given


def main() -> None:
    # Output of libraries goes to stderr, not into the answers.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker(Path(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
