"""Photographs for benchmarks: crops of pictures that scikit-image and scikit-learn ship."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

LONG, SHORT = 500, 375  # sides of the files, in pixels


def pictures() -> list[np.ndarray]:
    """Return the pictures, u8 [H, W, 3], that the installed packages ship; the first are four."""
    images: list[np.ndarray] = []
    with contextlib.suppress(ImportError):
        from skimage import data

        images += [data.astronaut(), data.chelsea(), data.coffee(), data.rocket()]
    with contextlib.suppress(ImportError):
        from sklearn.datasets import load_sample_images

        images += list(load_sample_images().images)
    if not images:
        raise SystemExit("no pictures: pip install scikit-image scikit-learn")
    return [np.ascontiguousarray(image[..., :3]) for image in images]


def crops(count: int = 64, side: int = 256) -> np.ndarray:
    """Return crops of four photographs, u8 [count, side, side, 3]."""
    shots, random, images = pictures()[:4], np.random.default_rng(0), []
    for i in range(count):
        shot = shots[i % len(shots)]
        top = random.integers(0, shot.shape[0] - side + 1)
        left = random.integers(0, shot.shape[1] - side + 1)
        images.append(shot[top : top + side, left : left + side])
    return np.ascontiguousarray(images, np.uint8)


def make_folder(root: Path, count: int) -> list[Path]:
    """Write ``count`` JPEG files of about 500 x 375 to ``root/class/file``; return sorted paths.

    Each is a different crop of a picture at 90% to 100% of its resolution, every fourth one in
    portrait format, quality 90, 4:2:0, like photographs in a data set.
    """
    from PIL import Image

    sources = [Image.fromarray(picture) for picture in pictures()]

    def make(i: int) -> Path:
        random = np.random.default_rng(i)
        source = sources[i % len(sources)]
        width, height = (LONG, SHORT) if i % 4 else (SHORT, LONG)
        height -= int(random.integers(0, 40))  # sizes differ, as those of photographs
        fit = min(source.width / width, source.height / height) * random.uniform(0.9, 1.0)
        w, h = width * fit, height * fit
        left, top = random.uniform(0, source.width - w), random.uniform(0, source.height - h)
        box = (left, top, left + w, top + h)
        image = source.resize((width, height), Image.Resampling.BICUBIC, box=box)
        path = root / f"class{i % 10}" / f"{i:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=90)
        return path

    with ThreadPoolExecutor(2) as threads:
        return sorted(threads.map(make, range(count)))


def megabytes(paths: list[Path]) -> float:
    return sum(path.stat().st_size for path in paths) / 1e6
