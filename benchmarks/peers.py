"""The other libraries' way to crop, resize, flip and normalize a batch; each is optional.

Every peer gets the same boxes and flips. Peers that resize in 8 bits round to levels before they
normalize, so their values may be off by a level or two: see ``LEVELS``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

THREADS = 2
# Fixed-point resizing in 8 bits: OpenCV rounds twice, DALI and torchvision once.
LEVELS = 2.0


@dataclass
class Work:
    """64 images u8 [N, H, W, 3], boxes i32 [N, 4] (top, left, height, width), flips bool [N]."""

    images: np.ndarray
    boxes: np.ndarray
    flips: np.ndarray
    size: int
    mean: np.ndarray
    std: np.ndarray


def opencv(work: Work) -> Callable[[], np.ndarray]:
    """cv2.resize of each crop, two threads, then a cast and one multiply-add."""
    import cv2

    cv2.setNumThreads(1)
    pool = ThreadPoolExecutor(THREADS)
    count = len(work.images)
    out = np.empty((count, work.size, work.size, 3), np.float32)
    scale = (1 / (255 * work.std)).astype(np.float32)
    bias = (-work.mean / work.std).astype(np.float32)

    def one(i: int) -> None:
        top, left, height, width = work.boxes[i]
        crop = work.images[i, top : top + height, left : left + width]
        resized = cv2.resize(crop, (work.size, work.size), interpolation=cv2.INTER_LINEAR)
        if work.flips[i]:
            resized = cv2.flip(resized, 1)
        np.multiply(resized, scale, out=out[i])
        out[i] += bias

    def run() -> np.ndarray:
        list(pool.map(one, range(count)))
        return out

    return run


def albumentations(work: Work) -> Callable[[], np.ndarray]:
    """Its own functions for crop, resize, flip and normalize, two threads."""
    import albumentations.augmentations.crops.functional as crops
    import albumentations.augmentations.geometric.functional as geometric
    import albumentations.augmentations.pixel.functional as pixel
    import cv2

    cv2.setNumThreads(1)
    pool = ThreadPoolExecutor(THREADS)
    mean, std = (255 * work.mean).astype(np.float32), (255 * work.std).astype(np.float32)
    factor = np.reciprocal(std).astype(np.float32)
    normalize = getattr(pixel, "normalize", None)

    def one(i: int) -> np.ndarray:
        top, left, height, width = work.boxes[i]
        image = crops.crop(work.images[i], left, top, left + width, top + height)
        image = geometric.resize(image, (work.size, work.size), cv2.INTER_LINEAR)
        if work.flips[i]:
            image = geometric.hflip(image)
        if normalize is not None:
            return normalize(image, mean, factor)
        import albucore

        return albucore.normalize(image, mean, factor)

    return lambda: np.stack(list(pool.map(one, range(len(work.images)))))


def torchvision(
    work: Work, antialias: bool = True, channels_last: bool = False
) -> Callable[[], np.ndarray]:
    """transforms.v2.functional on u8 tensors [3, H, W], two threads.

    Its resizing has a faster path for tensors whose channels are last in memory.
    """
    import torch

    declare_torchvision_operators(torch)
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(THREADS)
    images = torch.from_numpy(work.images).permute(0, 3, 1, 2)
    images = images if channels_last else images.contiguous()
    mean, std = work.mean.tolist(), work.std.tolist()

    def one(i: int) -> Any:
        top, left, height, width = (int(v) for v in work.boxes[i])
        image = functional.resized_crop(
            images[i], top, left, height, width, [work.size, work.size],
            interpolation=InterpolationMode.BILINEAR, antialias=antialias,
        )  # fmt: skip
        if work.flips[i]:
            image = functional.horizontal_flip(image)
        image = functional.to_dtype(image, torch.float32, scale=True)
        return functional.normalize(image, mean, std)

    def run() -> np.ndarray:
        return torch.stack([one(i) for i in range(len(images))]).permute(0, 2, 3, 1).numpy()

    return run


def declare_torchvision_operators(torch: Any) -> None:
    # torchvision without its compiled part registers fakes for operators that must exist.
    if _kept:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in _OPERATORS.split():
            library.define(f"{name}() -> Tensor")
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        _kept.append(library)


_OPERATORS = (
    "nms qnms roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d _roi_align_backward "
    "_roi_pool_backward _ps_roi_align_backward _ps_roi_pool_backward _deform_conv2d_backward"
)
_kept: list[Any] = []


def dali(work: Work) -> Callable[[], np.ndarray]:
    """A CPU pipeline with two threads: slice, linear resize, mirror and normalize."""
    from nvidia.dali import fn, pipeline_def, types

    count = len(work.images)
    anchors = work.boxes[:, :2].astype(np.float32)
    shapes = work.boxes[:, 2:].astype(np.float32)

    @pipeline_def(batch_size=count, num_threads=THREADS, device_id=None, prefetch_queue_depth=1)
    def pipeline() -> Any:
        images = fn.external_source(lambda: list(work.images), layout="HWC")
        anchor = fn.external_source(lambda: list(anchors))
        shape = fn.external_source(lambda: list(shapes))
        flip = fn.external_source(lambda: list(work.flips.astype(np.int32)))
        crop = fn.slice(
            images, anchor, shape, axes=[0, 1], normalized_anchor=False, normalized_shape=False
        )
        resized = fn.resize(
            crop, resize_x=work.size, resize_y=work.size, interp_type=types.INTERP_LINEAR,
            antialias=False,
        )  # fmt: skip
        return fn.crop_mirror_normalize(
            resized, mirror=flip, dtype=types.FLOAT, output_layout="HWC",
            mean=(255 * work.mean).tolist(), std=(255 * work.std).tolist(),
        )  # fmt: skip

    built = pipeline()
    built.build()
    return lambda: built.run()[0].as_array()


# Name, package that it needs, arm, whether it filters with antialias.
PEERS: list[tuple[str, str, Callable[[Work], Callable[[], np.ndarray]], bool]] = [
    ("albumentations, 2 threads", "albumentations", albumentations, False),
    ("OpenCV, 2 threads", "opencv-python-headless", opencv, False),
    ("DALI CPU, 2 threads", "nvidia-dali-cuda130", dali, False),
    ("torchvision v2, antialias", "torchvision", torchvision, True),
    ("torchvision v2, no antialias", "torchvision", lambda w: torchvision(w, False), False),
    (
        "torchvision v2, antialias, channels last",
        "torchvision",
        lambda w: torchvision(w, channels_last=True),
        True,
    ),
]
