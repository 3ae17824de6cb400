"""Sources of encoded images in files, folders and records."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jaxkern.core.progress import ProgressBar
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.files import check_local
from jaxkern.pipeline.sources.images.columns import EncodedSource
from jaxkern.pipeline.sources.images.decoding import MAX_PIXELS, jpeg_decoding
from jaxkern.pipeline.sources.images.fields import (
    Decode,
    Encoded,
    FileColumn,
    ImageColumn,
    ImageOptions,
    OnBadRecord,
    PathList,
)
from jaxkern.pipeline.sources.images.headers import ByteRanges, Headers, read_headers
from jaxkern.pipeline.sources.source import read_record, record_arrays, stack_records
from jaxkern.ring.rows import check_records

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_ENDINGS = frozenset(map(os.fsencode, _SUFFIXES))
_CHUNK = 256  # maximum number of records in memory while headers are read


class ImageFiles(EncodedSource):
    """Source of image files of any size and further fields: JPEG, PNG, WebP and others of Pillow.

    Records are ``{"image": u8 [H, W, C], **fields}``, upright according to EXIF. In a batch "image"
    is a `jaxkern.image.Ragged`, which `jaxkern.image.Compose` accepts. ``print(pipe.explain())``
    reports the decoder and the reason.

    Args:
      paths: paths of N files.
      fields: field -> array [N, ...], such as labels.
      channels: 3 for RGB, 1 for gray, 4 for RGBA; files are converted.
      max_size: maximum (height, width) of all images; None reads the headers of all files, once.
        Native threads need the headers in any case.
      on_bad_record: "raise": a file that cannot be decoded raises an error for its batch. "mask":
        its row is zeros, with the size from its header (`max_size` if unknown), a field "valid"
        (bool) is False there, and the iterator's `bad_records` counts it. An unreadable file always
        raises an error.
      max_pixels: maximum height * width; larger images raise OSError before they are decoded.
      index: path of a file that stores headers, so that they are read again only for files whose
        size or modification time changed; ignored if it cannot be written. None: a file in
        ``$XDG_CACHE_HOME/jaxkern/images`` (``~/.cache/jaxkern/images``) for 1,000 files and more;
        True: such a file for any number of files; False: no index.
      decode: "full"; or "scaled": if native threads run a Compose that shrinks an image to less
        than half, JPEG is decoded at 1/2, 1/4 or 1/8. This is faster and changes values, since
        pixels are averaged before chroma is upsampled.

    Attributes:
      files: absolute paths of the records.

    Raises:
      FileNotFoundError: ``paths`` is empty.
      TypeError, ValueError: fields are invalid, or in `gather` a file exceeds `max_size`.

    >>> import pathlib, tempfile, numpy as np, PIL.Image, jaxkern as jk
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for k in range(3):
    ...     PIL.Image.fromarray(np.zeros((4, 5 + k, 3), np.uint8)).save(folder / f"{k}.png")
    >>> files = jk.pipeline.ImageFiles(sorted(folder.iterdir()), {"label": [0, 1, 1]})
    >>> batch = next(iter(jk.from_source(files, 3)))
    >>> batch["image"].width.tolist(), batch["label"].tolist()
    ([5, 6, 7], [0, 1, 1])
    """

    _root: Path | None = None  # the folder, if these are all of its files

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
            raise TypeError(f"paths is {os.fspath(paths)!r:.80}; expected a sequence of paths")
        files = paths if isinstance(paths, PathList) else PathList(_absolute(paths))
        if not files:
            raise FileNotFoundError("paths is empty; expected at least one file")
        if "image" in (fields or {}):
            raise ValueError("the field name 'image' is reserved for the files' pixels; rename it")
        options: ImageOptions = {"channels": channels, "max_size": max_size, "decode": decode}
        options |= {"max_pixels": max_pixels, "on_bad_record": on_bad_record}
        column = FileColumn(files, index, self._root, **options)
        super().__init__({"image": column, **(fields or {})})
        self.files: Sequence[Path] = files

    @property
    def channels(self) -> int:
        """Return the number of channels: 1, 3 or 4."""
        return self.images["image"].channels

    @property
    def max_size(self) -> tuple[int, int]:
        """Return the maximum (height, width) of all images."""
        return self.images["image"].max_size

    @property
    def bad_files(self) -> dict[Path, str]:
        """Return path -> error for each file masked so far."""
        return {self.files[record]: error for (_, record), error in [*self.bad_images.items()]}


class ImageFolder(ImageFiles):
    """Source of image files ``root/class/.../file``, with the field "label" (int32) for the class.

    Files are sorted by path; labels number the sorted names of the subfolders.

    Args:
      root: the folder.
      channels, max_size, on_bad_record, max_pixels, index, decode: as for `ImageFiles`.

    Attributes:
      root: absolute path of the folder.
      files: absolute paths of the records.
      labels: int32 [N].
      classes: class names by label.

    Raises:
      FileNotFoundError: the folder has no images.

    Example:
      >>> import pathlib, tempfile, PIL.Image, jaxkern as jk
      >>> root = pathlib.Path(tempfile.mkdtemp())
      >>> for name in ("cat", "dog"):
      ...     (root / name).mkdir()
      ...     PIL.Image.new("RGB", (5, 4)).save(root / name / "1.jpg")
      >>> source = jk.pipeline.ImageFolder(root)
      >>> source.classes, source.labels.tolist()
      (['cat', 'dog'], [0, 1])
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
        self.root = self._root = Path(root).absolute()  # the working directory may change
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.root} is not a folder")
        with os.scandir(self.root) as entries:
            folders = sorted((entry.name, entry.path) for entry in entries if entry.is_dir())
        self.classes = [name for name, _ in folders]
        files = [[*_images_below(os.fsencode(path))] for _, path in folders]
        if not any(files):
            raise FileNotFoundError(
                f"{self.root} has no images in its subfolders, root/class/file with one of "
                f"{', '.join(sorted(_SUFFIXES))}; ImageFiles(paths) needs no subfolders"
            )
        counts = [len(names) for names in files]
        self.labels = np.repeat(np.arange(len(files), dtype=np.int32), counts)
        options: dict[str, Any] = {"max_pixels": max_pixels, "index": index, "decode": decode}
        paths, fields = PathList(itertools.chain(*files)), {"label": self.labels}
        super().__init__(paths, fields, channels, max_size, on_bad_record, **options)


class EncodedRecords(EncodedSource):
    """Source of records with fields of encoded images, decoded in worker threads.

    For images in memory or in files use `Encoded` or `ImageFiles`, which native threads decode.

    Args:
      source: object with ``len`` and ``[i]`` that returns dicts.
      fields: names of the image fields: bytes, or uint8 [n].
      channels, max_pixels, on_bad_record: as for `ImageFiles`.
      max_size: maximum (height, width) of all images; None reads all records at the first use.

    Raises:
      TypeError, ValueError: in `gather`, a record lacks a field, or exceeds `max_size`.

    >>> import io, numpy as np, PIL.Image, jaxkern as jk
    >>> file = io.BytesIO()
    >>> PIL.Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(file, "png")
    >>> records = [{"image": file.getvalue(), "label": k} for k in range(3)]
    >>> source = jk.pipeline.EncodedRecords(records, max_size=(8, 8))
    >>> batch = next(iter(jk.from_source(source, 3)))
    >>> batch["image"].height.tolist(), batch["label"].tolist()
    ([4, 4, 4], [0, 1, 2])
    """

    def __init__(
        self,
        source: Any,
        fields: str | Sequence[str] = "image",
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
        *,
        max_pixels: int = MAX_PIXELS,
        on_bad_record: OnBadRecord = "raise",
    ) -> None:
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        if not names:
            raise ValueError("fields is empty; expected the name of at least one field")
        self.source, self._length = source, len(source)
        options: ImageOptions = {"channels": channels, "max_size": max_size}
        options |= {"max_pixels": max_pixels, "on_bad_record": on_bad_record}
        super().__init__({name: _EncodedField(self, name, **options) for name in names})

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        check_records(records, len(self))
        numbers = records.tolist()
        rows = {record: self.record(record) for record in numbers}
        data = self._gather(records, None, np.ones(len(records), bool), rows)
        others = [{k: v for k, v in rows[r].items() if k not in self.images} for r in numbers]
        if any(others):
            arrays = [record_arrays(o, r, repr(self)) for o, r in zip(others, numbers, strict=True)]
            data = {**stack_records(arrays, numbers, repr(self)), **data}
        return data

    def record(self, record: int) -> dict[str, Any]:
        """Return a record with its encoded images."""
        fields = read_record(self.source, record, self)
        if missing := [name for name in self.images if name not in fields]:
            raise TypeError(
                f"record {record} of {self!r} has the fields {sorted(fields)!r:.200}; expected "
                f"also {missing[0]!r}"
            )
        return dict(fields)


class _EncodedField(ImageColumn):
    """A field of encoded images of the records of a sequence."""

    def __init__(self, source: EncodedRecords, name: str, **options: Unpack[ImageOptions]) -> None:
        nowhere = np.broadcast_to(np.zeros(3, np.int64), (len(source), 3))
        super().__init__(ByteRanges((), nowhere, False), "record {}".format, **options)
        self._source, self._name = source, name

    def bytes_of(self, record: int) -> Any:
        return Encoded([self._source.record(record)[self._name]]).bytes_of(0)

    def image(self, record: int, data: Any = None) -> np.ndarray:
        return super().image(record, None if data is None else Encoded([data]).bytes_of(0))

    def size_of(self, record: int) -> tuple[int, int] | None:
        return Encoded([self.bytes_of(record)], max_pixels=self.max_pixels).size_of(0)

    def _read(self) -> Headers:
        sizes = []
        pool = concurrent.futures.ThreadPoolExecutor(num_threads())
        with ProgressBar(True, "headers", "record") as bar, pool as threads:
            for start in range(0, len(self), _CHUNK):
                records = range(start, min(start + _CHUNK, len(self)))
                part = Encoded([*threads.map(self.bytes_of, records)])
                sizes.append(read_headers(part.images).size)
                bar.update(records.stop, len(self))
        return dataclasses.replace(Headers.unknown(len(self)), size=np.concatenate(sizes))

    def native_problem(self) -> str:
        return "the records are read in Python"

    def remarks(self) -> list[str]:
        name = jpeg_decoding().name
        return [f"JPEG by {name}, others by Pillow, in worker threads: {self.native_problem()}"]


def _images_below(folder: bytes) -> Iterator[bytes]:
    """Yield image files of a folder and its subfolders, sorted; do not follow links to folders."""
    with os.scandir(folder) as unsorted:
        entries = sorted(unsorted, key=lambda entry: entry.name)
    for entry in entries:
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _images_below(entry.path)
        elif name[name.rfind(b".", 1) :].lower() in _ENDINGS and entry.is_file():
            yield entry.path


def _absolute(paths: Sequence[str | os.PathLike[str]]) -> Iterator[bytes]:
    cwd = os.path.join(os.fsencode(Path.cwd()), b"")
    for path in paths:
        check_local(path, "images")
        name = os.fsencode(path)
        if b"\0" in name:
            raise ValueError(f"path {path!r} contains a zero byte")
        yield name if name.startswith(b"/") else cwd + name
