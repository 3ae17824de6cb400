"""Sources with encoded images: in files, in folders, in memory; Ragged batches of their pixels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxkern.core.failures import describe_exception, note
from jaxkern.pipeline.rows import Data, ragged_of
from jaxkern.pipeline.sources.encoded import EncodedImages
from jaxkern.pipeline.sources.images.decoding import MAX_PIXELS
from jaxkern.pipeline.sources.images.fields import (
    Decode,
    FileColumn,
    ImageColumn,
    OnBadRecord,
    PathList,
)
from jaxkern.pipeline.sources.source import ArraySource, BatchSource

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_ENDINGS = frozenset(map(os.fsencode, _SUFFIXES))


class EncodedSource(BatchSource):
    """Records with fields of encoded images and fields of arrays; what a dict of both becomes.

    Args:
      images: field -> `Encoded`, or files of images.
      fields: field -> array [N, ...], as for `ArraySource`.

    Attributes:
      images, fields: as given.
      bad_images: (field, record) -> error of each image that did not decode so far, where they are
        masked.
    """

    fresh = True

    def __init__(self, images: Mapping[str, ImageColumn], fields: Mapping[str, Any]) -> None:
        self.images = dict(images)
        self._others = ArraySource(fields) if fields else None
        self.fields = {} if self._others is None else self._others.arrays
        lengths = {name: len(column) for name, column in self.images.items()}
        lengths |= {name: len(array) for name, array in self.fields.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the fields have different numbers of records: {lengths}")
        if any(column.on_bad_record == "mask" for column in self.images.values()):
            self.on_bad_record = "mask"
            if "valid" in lengths:
                raise ValueError(
                    "the source has a field 'valid', which on_bad_record='mask' adds: rename it"
                )
        self.bad_images: dict[tuple[str, int], str] = {}

    def __len__(self) -> int:
        return len(next(iter(self.images.values())))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join([*self.images, *self.fields])}; {len(self)} records)"
        )

    def describe(self) -> str:
        """With what changes the images' values."""
        scaled = [name for name, column in self.images.items() if column.decode == "scaled"]
        return type(self).__name__ + (f"({', '.join(scaled)} decoded scaled)" if scaled else "")

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The decoded images as Ragged, and the rows of the arrays."""
        del out
        if records.size and not (records.min() >= 0 and records.max() < len(self)):
            raise IndexError(f"records {records.min()} to {records.max()} of {len(self)}")
        data: Data = {}
        valid = np.ones(len(records), bool)
        for field in self.images:
            pixels = [self._image_if_any(field, record) for record in records.tolist()]
            valid &= np.array([image is not None for image in pixels], bool)
            data[field] = self._ragged(field, records, pixels)
        if self._others is not None:
            data |= self._others.gather(records)
        return data if self.on_bad_record == "raise" else {**data, "valid": valid}

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        """Images as Ragged, unless a subclass gathers in a way of its own."""
        if type(self).gather is not EncodedSource.gather:
            return None
        spec: Data = {name: column.spec(count, image_side) for name, column in self.images.items()}
        if self._others is not None:
            spec |= self._others.batch_spec(count, image_side) or {}
        if self.on_bad_record == "mask":
            spec["valid"] = jax.ShapeDtypeStruct((count,), np.bool_)
        return spec

    def check(self, records: np.ndarray) -> None:
        """Raises OSError where bytes of these records are no longer in the file they lie in."""
        for column in self.images.values():
            column.images.check(records)

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """The arrays, where native threads can decode the images."""
        return self.fields if self.encoded_images() else None

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """Of every field of images, or none."""
        if type(self).gather is not EncodedSource.gather:
            return {}
        found = {field: column.encoded_images() for field, column in self.images.items()}
        whole = {field: images for field, images in found.items() if images is not None}
        return whole if len(whole) == len(found) else {}

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        """The bytes of the file, or of the image in memory."""
        return bytes(self.images[field].bytes_of(record)) if field in self.images else None

    def note_masked(self, records: np.ndarray) -> None:
        """Decodes them again, once, to know why they do not."""
        for field in self.images:
            for record in records.tolist():
                if not self._is_known_bad(field, record):
                    with contextlib.suppress(Exception):  # the file is gone meanwhile
                        self._image_if_any(field, record)

    def remarks(self) -> Sequence[str]:
        """What decodes the images, and why."""
        return [f"{name}: {'; '.join(column.remarks())}" for name, column in self.images.items()]

    def _image_if_any(self, field: str, record: int) -> np.ndarray | None:
        """The pixels; None for an image that does not decode, where those are masked."""
        column = self.images[field]
        try:
            return column.image(record)
        except BaseException as error:
            said = "while reading record {} of {!r}: {}"
            note(error, said, record, self, column.name_of(record))
            if column.on_bad_record == "raise" or not is_of_the_image(error):
                raise
            self._note_bad(field, record, describe_exception(error))
            return None

    def _is_known_bad(self, field: str, record: int) -> bool:
        return (field, record) in self.bad_images

    def _note_bad(self, field: str, record: int, error: str) -> None:
        self.bad_images[field, record] = error

    def _ragged(self, field: str, records: np.ndarray, pixels: Sequence[np.ndarray | None]) -> Any:
        column = self.images[field]
        height, width = column.max_size
        whole: list[np.ndarray] = []
        for record, image in zip(records.tolist(), pixels, strict=True):
            if image is None:
                sides = zip(column.size_of(record) or (height, width), (height, width), strict=True)
                shape = (*(min(side, most) for side, most in sides), column.channels)
                image = np.zeros(shape, np.uint8)
            if image.shape[0] > height or image.shape[1] > width:
                raise ValueError(
                    f"{column.name_of(record)} is {image.shape[0]}x{image.shape[1]} and max_size "
                    f"is {(height, width)}; wanted the (height, width) that no image exceeds, or "
                    "None to find it"
                )
            whole.append(image)
        return ragged_of(whole, height, width)


class ImageFiles(EncodedSource):
    """Image files of any size, and further fields: JPEG, PNG, WebP and what else Pillow reads.

    Records are ``{"image": u8 [H, W, C], **fields}``, upright as EXIF says; in a batch "image" is a
    `jaxkern.image.Ragged`, which `jaxkern.image.Compose` takes as it is. JPEG files are decoded by
    native code where jaxkern was built with libjpeg-turbo, by simplejpeg or Pillow otherwise, and
    the rest by Pillow; ``print(pipe.explain())`` says which does and why.

    Args:
      paths: of N files.
      fields: field -> array [N, ...], such as labels.
      channels: 3 for RGB, 1 for gray, 4 for RGBA; files are converted.
      max_size: (height, width) that no image exceeds; None reads the header of every file, once, as
        native threads need it in any case.
      on_bad_record: "raise": a file that does not decode is an error in its batch's place. "mask":
        its row is zeros, of the size that the file's header says (`max_size` where it says none),
        and a field "valid" (bool) is False there; no other row or batch changes, and the iterator's
        `bad_records` counts them. A file that cannot be read at all is an error in any case.
      max_pixels: height * width above which an image is refused, before it is decoded. Pillow has a
        limit of its own for what it decodes, `PIL.Image.MAX_IMAGE_PIXELS`.
      index: the file that keeps what the headers say, so that they are not read again while a
        file's size and time of change are the same; one that cannot be written is as none. None:
        in ``$XDG_CACHE_HOME/jaxkern/images`` (``~/.cache/jaxkern/images``) for 1,000 files and
        more; True: there for any number; False: none.
      decode: "full", or "scaled": where native threads run a Compose that makes less than half of
        an image's sides, JPEG is decoded at 1/2, 1/4 or 1/8, which is faster. That averages pixels
        before colours are interpolated, so that values differ from those of a full decode, and
        depend on whether native threads decode: `num_workers=0` decodes in full.

    Attributes:
      files: absolute paths of the records.
      bad_files: path -> error of each file that did not decode so far, where they are masked.

    Raises: FileNotFoundError for no files; TypeError or ValueError for other fields. `gather`:
      ValueError that names a file that exceeds `max_size`.

    >>> import pathlib, tempfile, numpy as np, PIL.Image, jaxkern as jk
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for k in range(3):
    ...     PIL.Image.fromarray(np.zeros((4, 5 + k, 3), np.uint8)).save(folder / f"{k}.png")
    >>> files = jk.pipeline.ImageFiles(sorted(folder.iterdir()), {"label": [0, 1, 1]})
    >>> batch = next(iter(jk.from_source(files, 3)))
    >>> batch["image"].width.tolist(), batch["label"].tolist()
    ([5, 6, 7], [0, 1, 1])
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        fields: Mapping[str, Any] | None = None,
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
        on_bad_record: OnBadRecord = "raise",
        *,
        max_pixels: int = MAX_PIXELS,
        index: str | os.PathLike[str] | bool | None = None,
        decode: Decode = "full",
    ) -> None:
        if isinstance(paths, str | os.PathLike):
            raise TypeError(
                f"paths is {os.fspath(paths)!r:.80}; wanted a sequence of "
                "paths, such as sorted(pathlib.Path(folder).rglob('*.jpg'))"
            )
        files = PathList(_absolute(paths))
        if not files:
            raise FileNotFoundError("paths is empty; wanted at least one file")
        self._set_up(
            FileColumn(files, channels, max_size, max_pixels, on_bad_record, index, decode=decode),
            fields or {},
        )

    def _set_up(self, column: FileColumn, fields: Mapping[str, Any]) -> None:
        if "image" in fields:
            raise ValueError("fields has 'image', which holds the files' pixels: rename it")
        EncodedSource.__init__(self, {"image": column}, fields)
        self._column = column
        self.files: Sequence[Path] = column.paths
        self.bad_files: dict[Path, str] = {}

    @property
    def channels(self) -> int:
        """1, 3 or 4."""
        return self._column.channels

    @property
    def max_size(self) -> tuple[int, int]:
        """(height, width) that no image exceeds."""
        return self._column.max_size

    def _is_known_bad(self, field: str, record: int) -> bool:
        return self.files[record] in self.bad_files

    def _note_bad(self, field: str, record: int, error: str) -> None:
        self.bad_files[self.files[record]] = error


class ImageFolder(ImageFiles):
    """The `ImageFiles` of ``root/class/.../file``, whose field "label" (int32) is the class.

    Files are in the order of their sorted paths; labels count the sorted names of the subfolders.

    Args:
      root: the folder.
      channels, max_size, on_bad_record, max_pixels, index, decode: as for `ImageFiles`.

    Attributes:
      root, files: absolute paths; of the folder, and of each record.
      labels: int32 [N].
      classes: their names, by label.
      bad_files: path -> error of each file that did not decode so far, where they are masked.

    Raises: FileNotFoundError for a folder without images. `gather`: ValueError that names a file
      that exceeds `max_size`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
        on_bad_record: OnBadRecord = "raise",
        *,
        max_pixels: int = MAX_PIXELS,
        index: str | os.PathLike[str] | bool | None = None,
        decode: Decode = "full",
    ) -> None:
        self.root = Path(root).absolute()  # another working directory must not lead elsewhere
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.root} is no folder")
        self.classes: list[str] = []
        names: list[bytes] = []
        counts: list[int] = []
        with os.scandir(self.root) as entries:
            folders = sorted((entry.name, entry.path) for entry in entries if entry.is_dir())
        for name, path in folders:
            self.classes.append(name)
            before = len(names)
            names += _images_below(os.fsencode(path))
            counts.append(len(names) - before)
        if not names:
            raise FileNotFoundError(
                f"{self.root} has no images in its subfolders; wanted root/class/file with one of "
                f"{', '.join(sorted(_SUFFIXES))}; files without classes are ImageFiles(paths)"
            )
        self.labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        column = FileColumn(
            PathList(names), channels, max_size, max_pixels, on_bad_record, index, self.root, decode
        )
        self._set_up(column, {"label": self.labels})

    def __repr__(self) -> str:
        return f"ImageFolder({self.root.name}; {len(self.classes)} classes, {len(self)} images)"


def is_of_the_image(error: BaseException) -> bool:
    """Whether it is the image's fault: not that a file is gone or forbidden, nor of memory."""
    of_the_system = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
    return isinstance(error, Exception) and not isinstance(error, ImportError) and not of_the_system


def _images_below(folder: bytes) -> Iterator[bytes]:
    """Image files of a folder and those below it, sorted; not through links to folders."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _images_below(entry.path)
        elif name[name.rfind(b".", 1) :].lower() in _ENDINGS and entry.is_file():
            yield entry.path


def _absolute(paths: Sequence[str | os.PathLike[str]]) -> Iterator[bytes]:
    here = os.path.join(os.fsencode(Path.cwd()), b"")
    for path in paths:
        name = os.fsencode(path)
        if b"\0" in name:
            raise ValueError(f"path {path!r} holds a zero byte")
        yield name if name.startswith(b"/") else here + name
