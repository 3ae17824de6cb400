"""A folder of image files, one subfolder a class, as Ragged batches."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxkern.pipeline.rows import Data, ragged_of
from jaxkern.pipeline.source import BatchSource

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class ImageFolder(BatchSource):
    """Images of any size from ``root/class/.../file``, decoded by Pillow, which releases the GIL.

    Records are ``{"image": u8 [H, W, C], "label": int32}``; in a batch "image" is a
    `jaxkern.image.Ragged`, which `jaxkern.image.Compose` takes as it is. Files are in the order of
    their sorted paths; labels count the sorted names of the subfolders, see `classes`.

    Args:
      root: the folder.
      channels: 3 for RGB, 1 for gray, 4 for RGBA; files are converted.
      max_size: (height, width) that no image exceeds; None reads the header of every file, at the
        first use.
    Raises: ImportError without Pillow; FileNotFoundError for a folder without images.
    """

    fresh = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
    ) -> None:
        import PIL.Image

        if channels not in _MODES:
            raise ValueError(f"channels={channels}; wanted 1, 3 or 4")
        self.root = Path(root).absolute()  # another working directory must not lead elsewhere
        self.channels = channels
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.root} is no folder")
        #: the names of the classes, by label
        self.classes = sorted(entry.name for entry in self.root.iterdir() if entry.is_dir())
        self.files: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.classes):
            paths = (self.root / name).rglob("*")
            found = sorted(p for p in paths if p.suffix.lower() in _SUFFIXES and p.is_file())
            self.files += found
            labels += [label] * len(found)
        if not self.files:
            raise FileNotFoundError(
                f"{self.root} has no images in its subfolders; wanted root/class/file with one of "
                f"{', '.join(sorted(_SUFFIXES))}"
            )
        self.labels = np.asarray(labels, np.int32)
        self._max_size = max_size
        self._pillow = PIL.Image

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"ImageFolder({self.root.name}; {len(self.classes)} classes, {len(self)} images)"

    @property
    def max_size(self) -> tuple[int, int]:
        """(height, width) that no image exceeds."""
        if self._max_size is None:
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
                sizes = list(threads.map(self._size, range(len(self))))
            self._max_size = (max(h for h, _ in sizes), max(w for _, w in sizes))
        return self._max_size

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The decoded images as Ragged, and their labels."""
        del out
        images = [self._decoded(record) for record in records.tolist()]
        return {"image": ragged_of(images, *self.max_size), "label": self.labels[records]}

    def _decoded(self, record: int) -> np.ndarray:
        with self._open(record) as image:
            pixels = np.asarray(image.convert(_MODES[self.channels]))
        return pixels.reshape(*pixels.shape[:2], self.channels)

    def _size(self, record: int) -> tuple[int, int]:
        with self._open(record) as image:
            return int(image.height), int(image.width)

    @contextlib.contextmanager
    def _open(self, record: int) -> Iterator[Any]:
        try:
            with self._pillow.open(self.files[record]) as image:
                yield image
        except BaseException as error:
            error.add_note(f"while reading record {record} of {self!r}: {self.files[record]}")
            raise
