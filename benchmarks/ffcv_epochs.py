"""Batches from ffcv's packed files, for an interpreter with ffcv, which needs an older NumPy.

    PYTHON benchmarks/ffcv_epochs.py FOLDER PACKED raw|jpg MAX_SIDE SIZE BATCH

Packs the files of FOLDER to PACKED unless it exists. Then runs one epoch for each line of standard
input and prints its number of images. ffcv draws its own boxes and flips.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


class Folder:
    """Files in the order of their paths, as (image, label)."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[object, int]:
        from PIL import Image

        return Image.open(self.paths[i]), int(self.paths[i].parent.name.removeprefix("class"))


def main() -> None:
    root, packed, mode, side, size, batch = sys.argv[1:]
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip
    from ffcv.writer import DatasetWriter

    if not Path(packed).exists():
        image = RGBImageField(write_mode=mode, max_resolution=int(side), jpeg_quality=90)
        writer = DatasetWriter(packed, {"image": image, "label": IntField()}, num_workers=2)
        writer.from_indexed_dataset(Folder(Path(root)))
    mean, std = np.array([0.485, 0.456, 0.406]) * 255, np.array([0.229, 0.224, 0.225]) * 255
    image = [
        RandomResizedCropRGBImageDecoder((int(size), int(size))),
        RandomHorizontalFlip(),
        NormalizeImage(mean, std, np.float32),
    ]
    loader = Loader(
        packed, batch_size=int(batch), num_workers=2, order=OrderOption.RANDOM, os_cache=True,
        drop_last=True, pipelines={"image": image, "label": None},
    )  # fmt: skip
    for _ in loader:  # it compiles
        pass
    for _ in sys.stdin:
        count = 0
        for (images,) in loader:
            assert images.shape[1:] == (int(size), int(size), 3)
            assert images.dtype == np.float32
            count += len(images)
        print(count, flush=True)


if __name__ == "__main__":
    main()
