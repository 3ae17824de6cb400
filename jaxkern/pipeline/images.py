"""A folder of image files, one subfolder a class, as Ragged batches."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxkern.core.failures import described, note
from jaxkern.pipeline.rows import Data, ragged_of
from jaxkern.pipeline.source import BatchSource

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class ImageFolder(BatchSource):
    """Images of any size from ``root/class/.../file``, decoded by Pillow, which releases the GIL.

    Records are ``{"image": u8 [H, W, C], "label": int32}``; in a batch "image" is a
    `jaxkern.image.Ragged`, which `jaxkern.image.Compose` takes as it is. Files are in the order of
    their sorted paths; labels count the sorted names of the subfolders.

    Args:
      root: the folder.
      channels: 3 for RGB, 1 for gray, 4 for RGBA; files are converted.
      max_size: (height, width) that no image exceeds; None reads the header of every file, at the
        first use.
      on_bad_record: "raise": a file that does not decode is an error in its batch's place. "mask":
        its row is zeros, of the size that the file's header says (`max_size` where it says none),
        and a field "valid" (bool) is False there; no other row or batch changes, and the iterator's
        `bad_records` counts them. A file that cannot be read at all is an error in any case.

    Attributes:
      root, files: absolute paths; of the folder, and of each record.
      labels: int32 [N].
      classes: their names, by label.
      bad_files: path -> error of each file that did not decode so far, where they are masked.

    Raises: ImportError without Pillow; FileNotFoundError for a folder without images. `gather`:
      ValueError that names a file that exceeds `max_size`.
    """

    fresh = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
        on_bad_record: Literal["raise", "mask"] = "raise",
    ) -> None:
        import PIL.Image

        if on_bad_record not in ("raise", "mask"):
            raise ValueError(f"on_bad_record is {on_bad_record!r}; wanted 'raise' or 'mask'")
        self.on_bad_record = on_bad_record
        self.bad_files: dict[Path, str] = {}
        if channels not in _MODES:
            raise ValueError(f"channels={channels}; wanted 1, 3 or 4")
        self.root = Path(root).absolute()  # another working directory must not lead elsewhere
        self.channels = channels
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.root} is no folder")
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
            sized = self._size if self.on_bad_record == "raise" else self._size_if_any
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
                sizes = [size for size in threads.map(sized, range(len(self))) if size]
            if not sizes:
                raise ValueError(f"{self!r} has no image that can be decoded")
            self._max_size = (max(h for h, _ in sizes), max(w for _, w in sizes))
        return self._max_size

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The decoded images as Ragged, and their labels."""
        del out
        images = [self._image_if_any(record) for record in records.tolist()]
        valid = np.array([image is not None for image in images])
        height, width = self.max_size
        for record, image in zip(records.tolist(), images, strict=True):
            if image is not None and (image.shape[0] > height or image.shape[1] > width):
                raise ValueError(
                    f"{self.files[record]} is {image.shape[0]}x{image.shape[1]} and max_size is "
                    f"{self.max_size}; wanted the (height, width) that no image exceeds, or None "
                    "to find it"
                )
        whole = [
            self._zeros(record) if image is None else image
            for record, image in zip(records.tolist(), images, strict=True)
        ]
        data: Data = {"image": ragged_of(whole, height, width), "label": self.labels[records]}
        return data if self.on_bad_record == "raise" else {**data, "valid": valid}

    def _image_if_any(self, record: int) -> np.ndarray | None:
        """The pixels; None for a file that does not decode, where those are masked."""
        try:
            return self._decoded(record)
        except Exception as error:
            if self.on_bad_record == "raise" or _is_of_the_system(error):
                raise
            self.bad_files[self.files[record]] = described(error)
            return None

    def _zeros(self, record: int) -> np.ndarray:
        sides = zip(self._size_if_any(record) or self.max_size, self.max_size, strict=True)
        return np.zeros((*(min(side, most) for side, most in sides), self.channels), np.uint8)

    def _decoded(self, record: int) -> np.ndarray:
        with self._open(record) as image:
            pixels = np.asarray(image.convert(_MODES[self.channels]))
        return pixels.reshape(*pixels.shape[:2], self.channels)

    def _size(self, record: int) -> tuple[int, int]:
        with self._open(record) as image:
            return int(image.height), int(image.width)

    def _size_if_any(self, record: int) -> tuple[int, int] | None:
        """As the header says; None where it cannot be understood."""
        try:
            return self._size(record)
        except Exception as error:
            if _is_of_the_system(error):
                raise
            return None

    @contextlib.contextmanager
    def _open(self, record: int) -> Iterator[Any]:
        try:
            with self._pillow.open(self.files[record]) as image:
                yield image
        except BaseException as error:
            note(error, "while reading record {} of {!r}: {}", record, self, self.files[record])
            raise


def _is_of_the_system(error: Exception) -> bool:
    """Whether there was nothing to decode: a file that is gone or forbidden, no memory."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
