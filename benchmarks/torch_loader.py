"""The same batches by a torch DataLoader; a separate module, which its workers import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


class Crops(torch.utils.data.Dataset):  # type: ignore[misc]
    """Crops, resizes, flips and normalizes with OpenCV; of images in shared memory."""

    def __init__(
        self, images: torch.Tensor, boxes: np.ndarray, flips: np.ndarray, size: int,
        scale: np.ndarray, bias: np.ndarray,
    ):  # fmt: skip
        self.images, self.boxes, self.flips = images, boxes, flips
        self.size, self.scale, self.bias = size, scale, bias

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, record: int) -> torch.Tensor:
        import cv2

        cv2.setNumThreads(1)
        top, left, height, width = self.boxes[record]
        crop = self.images.numpy()[record, top : top + height, left : left + width]
        resized = cv2.resize(crop, (self.size, self.size), interpolation=cv2.INTER_LINEAR)
        if self.flips[record]:
            resized = cv2.flip(resized, 1)
        out = np.multiply(resized, self.scale, dtype=np.float32)
        out += self.bias
        return torch.from_numpy(out)


class Loader:
    """Epochs of batches, by worker processes that live through all of them."""

    def __init__(self, crops: Crops, order: np.ndarray, batch: int, workers: int):
        self._loader = torch.utils.data.DataLoader(
            crops,
            batch_size=batch,
            sampler=order.tolist(),
            num_workers=workers,
            persistent_workers=True,
            multiprocessing_context="spawn",
        )

    def __call__(self) -> Iterator[Any]:
        """The batches as NumPy arrays, which torch's tensors are without a copy."""
        for batch in self._loader:
            yield batch.numpy()
