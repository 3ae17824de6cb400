"""Folders of photographs for benchmarks: crops of pictures that scikit-image and scikit-learn ship.

python benchmarks/photographs.py FOLDER --count 2000
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

CLASSES, QUALITY, LONG, SHORT = 10, 90, 500, 375


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


def make_folder(root: Path, count: int) -> list[Path]:
    """Write ``count`` JPEG files of about 500 x 375 to ``root/class/file``; keep existing ones.

    Each is a different crop of a picture at 90% to 100% of its resolution, every fourth one in
    portrait format, quality 90, 4:2:0, like photographs in a data set.
    """
    from PIL import Image

    sources = [Image.fromarray(picture) for picture in pictures()]
    paths = [root / f"class{i % CLASSES}" / f"{i:06d}.jpg" for i in range(count)]
    for name in {path.parent for path in paths}:
        name.mkdir(parents=True, exist_ok=True)

    def make(i: int) -> None:
        if paths[i].exists():
            return
        random = np.random.default_rng(i)
        source = sources[i % len(sources)]
        width, height = (LONG, SHORT) if i % 4 else (SHORT, LONG)
        height -= int(random.integers(0, 40))  # sizes differ, as those of photographs
        fit = min(source.width / width, source.height / height) * random.uniform(0.9, 1.0)
        w, h = width * fit, height * fit
        left, top = random.uniform(0, source.width - w), random.uniform(0, source.height - h)
        box = (left, top, left + w, top + h)
        image = source.resize((width, height), Image.Resampling.BICUBIC, box=box)
        image.save(paths[i], quality=QUALITY)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(make, range(count)))
    return paths


def megabytes(paths: list[Path]) -> float:
    return sum(path.stat().st_size for path in paths) / 1e6


def main() -> None:
    import harness

    options = harness.parse(
        __doc__, ("folder", {"type": Path}), ("--count", {"type": int, "default": 2000})
    )
    paths = make_folder(options.folder, options.count)
    print(f"{len(paths)} files, {megabytes(paths):.0f} MB")


if __name__ == "__main__":
    main()
