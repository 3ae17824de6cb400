"""Fields of encoded images in memory or in files: headers and pixels."""

from __future__ import annotations

import functools
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.caches import cache_folder
from jaxkern.image import Ragged
from jaxkern.pipeline.sources.images.decoding import (
    CHANNELS,
    MAX_PIXELS,
    decode_image,
    jpeg_decoding,
)
from jaxkern.pipeline.sources.images.headers import (
    JPEG,
    UNKNOWN,
    ByteRanges,
    Headers,
    indexed_headers,
    read_headers,
)
from jaxkern.pipeline.sources.source import EncodedImages, check_choice

OnBadRecord = Literal["raise", "mask"]
Decode = Literal["full", "scaled"]
_INDEX_FILES = 1000  # minimum number of files for an index, by default


class ImageOptions(TypedDict, total=False):
    """Options for encoded images of a source, as for `Encoded`."""

    channels: int
    max_size: tuple[int, int] | None
    max_pixels: int
    on_bad_record: OnBadRecord
    decode: Decode


class ImageColumn:
    """A field of N encoded images; `name_of` returns the name of an image for error messages."""

    codec: Literal["jpeg", "raw"] = "jpeg"  # see `EncodedImages.codec`

    def __init__(
        self,
        images: ByteRanges,
        name_of: Callable[[int], str] = "image {}".format,
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
        max_pixels: int = MAX_PIXELS,
        on_bad_record: OnBadRecord = "raise",
        decode: Decode = "full",
    ) -> None:
        check_choice("channels", channels, *CHANNELS)
        check_choice("on_bad_record", on_bad_record, "raise", "mask")
        check_choice("decode", decode, "full", "scaled")
        if max_size is not None:
            if not isinstance(max_size, tuple | list) or len(max_size) != 2:
                raise ValueError(f"max_size is {max_size!r}; expected (height, width) or None")
            height, width = (check_integer(f"max_size[{i}]", n, 1) for i, n in enumerate(max_size))
            max_size = (height, width)
        self.images = images
        self.channels = channels
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)
        self.on_bad_record: OnBadRecord = on_bad_record
        self.decode: Decode = decode
        self.name_of = name_of
        self._max_size = max_size
        self._lock = threading.Lock()
        self._headers: Headers | None = None

    def __len__(self) -> int:
        return len(self.images)

    def bytes_of(self, record: int) -> Any:
        """Return the encoded bytes of an image."""
        return self.images.bytes_of(record)

    def image(self, record: int, data: Any = None) -> np.ndarray:
        """Decode an image, or its bytes `data`, to pixels uint8 [H, W, channels]."""
        data = self.bytes_of(record) if data is None else data
        return decode_image(data, self.channels, self.max_pixels, self.name_of(record))

    @property
    def headers(self) -> Headers:
        """Return the headers of all images; read at the first use."""
        with self._lock:
            self._headers = self._read() if self._headers is None else self._headers
            return self._headers

    def _read(self) -> Headers:
        self.images.check()
        return read_headers(self.images)

    def size_of(self, record: int) -> tuple[int, int] | None:
        """Return (height, width) from an image's header; None if unknown or above `max_pixels`."""
        if self._headers is not None:
            headers, number = self._headers, record
        else:
            headers, number = read_headers(self.images.select(np.array([record]))), 0
        height, width = headers.size[number].tolist()
        return (height, width) if 0 < height * width <= self.max_pixels else None

    @property
    def max_size(self) -> tuple[int, int]:
        """Return the maximum (height, width) of all images, as set or from the headers."""
        return self._max_size or self._largest

    def zeros(self, record: int) -> np.ndarray:
        """Return zeros of the size in an image's header, or of the maximum size."""
        sides = zip(self.size_of(record) or self.max_size, self.max_size, strict=True)
        return np.zeros((*map(min, sides), self.channels), np.uint8)

    def spec(self, count: int, image_side: int) -> Ragged:
        """Return the shapes of `count` images, with `image_side` for sizes only in headers."""
        height, width = self._max_size or (image_side, image_side)
        buffer = jax.ShapeDtypeStruct((image_side,), np.uint8)
        wide = jax.config.read("jax_enable_x64")
        offset = jax.ShapeDtypeStruct((count,), np.int64 if wide else np.int32)
        side = jax.ShapeDtypeStruct((count,), np.int32)
        return Ragged(buffer, offset, side, side, self.channels, height, width)

    @functools.cached_property
    def _largest(self) -> tuple[int, int]:
        size = self.headers.size.astype(np.int64)
        pixels = size.prod(1)
        size = size[(pixels > 0) & (pixels <= self.max_pixels)]
        if not len(size):
            raise ValueError(
                f"no image can be decoded: {self.name_of(0)} and {len(self) - 1} others are of "
                "unknown formats or exceed max_pixels"
            )
        height, width = size.max(0).tolist()
        return height, width

    def encoded_images(self) -> EncodedImages | None:
        if self.native_problem():
            return None
        images, scaled = self.images, self.decode == "scaled"
        ranges = (images.blobs, images.ranges, images.in_files, self.headers.size)
        return EncodedImages(*ranges, self.codec, self.channels, self.max_pixels, scaled)

    def native_problem(self) -> str:
        """Return why native threads cannot decode the images; "" if they can."""
        decoding = jpeg_decoding()
        if not decoding.native:
            return decoding.reason
        headers = self.headers
        others = np.flatnonzero((headers.kind != JPEG) & (headers.kind != UNKNOWN))
        if others.size:
            first = self.name_of(int(others[0]))
            return f"{others.size} of {len(self)} images are not JPEG, such as {first}"
        if self._max_size and (headers.size > self._max_size).any():
            return f"images exceed max_size={self._max_size}"
        return ""

    def remarks(self) -> list[str]:
        decoding = jpeg_decoding()
        remarks = []
        for name, count in self.headers.counts().items():
            decoder = "Pillow in worker threads"
            if name == "JPEG":
                decoder = decoding.name + (f" ({decoding.reason})" if decoding.reason else "")
            remarks.append(f"{count} {name} by {decoder}" if name else f"{count} of unknown format")
        problem = self.native_problem()
        if problem and decoding.native:
            remarks.append(f"no native threads: {problem}")
        return remarks


class Encoded(ImageColumn):
    """A field of encoded images in memory: JPEG, PNG and other formats of Pillow.

    In batches it is a `jaxkern.image.Ragged` of uint8 pixels, upright according to EXIF.

    Args:
      images: a sequence or an object array of N bytes objects; or (values, offsets): uint8 [B],
        for example a memory map, and integers [N + 1]; image i is
        ``values[offsets[i] : offsets[i + 1]]``. They are not copied.
      channels: 3 for RGB, 1 for gray, 4 for RGBA; images are converted.
      max_size: maximum (height, width) of all images; None reads their headers at the first use.
      max_pixels, on_bad_record, decode: see `ImageFiles`.

    Raises:
      TypeError: images are not bytes.
      ValueError: offsets decrease or are out of range.

    >>> import io, numpy as np, PIL.Image, jaxkern as jk
    >>> file = io.BytesIO()
    >>> PIL.Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(file, "png")
    >>> data = {"image": jk.pipeline.Encoded([file.getvalue()] * 3), "label": [0, 1, 2]}
    >>> batch = next(iter(jk.from_source(data, 3)))
    >>> batch["image"].height.tolist(), batch["image"].width.tolist()
    ([4, 4, 4], [5, 5, 5])
    """

    def __init__(
        self,
        images: Any,
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
        *,
        max_pixels: int = MAX_PIXELS,
        on_bad_record: OnBadRecord = "raise",
        decode: Decode = "full",
    ) -> None:
        ranges = _from_offsets(*images) if _has_offsets(images) else _from_sequence(images)
        options = (channels, max_size, max_pixels, on_bad_record, decode)
        super().__init__(ranges, "image {}".format, *options)

    def __repr__(self) -> str:
        return f"Encoded({len(self)} images)"


class FileColumn(ImageColumn):
    """A field of N image files; `root` is a folder if `paths` are all of its files."""

    def __init__(
        self,
        paths: PathList,
        index: str | os.PathLike[str] | bool | None = None,
        root: Path | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        super().__init__(paths.ranges, lambda record: str(paths[record]), **options)
        self.paths = paths
        # Absolute, because the working directory may change.
        self._index = Path(index).absolute() if isinstance(index, str | os.PathLike) else index
        self._root = root

    def bytes_of(self, record: int) -> Any:
        with self.images.open(record) as file:
            return file.read()

    def _read(self) -> Headers:
        if (path := self._index_path()) is None:
            return super()._read()
        names = self.paths.names()
        if self._root is not None:  # relative names, because a folder may be moved with its index
            start = len(os.path.join(os.fsencode(self._root), b""))
            names = [name[start:] for name in names]
        return indexed_headers(path, self.images, names, complete=self._root is not None)

    def _index_path(self) -> Path | None:
        if isinstance(self._index, Path):
            return self._index
        is_unused = self._index is False or (self._index is None and len(self) < _INDEX_FILES)
        if is_unused or (cache := cache_folder()) is None:
            return None
        kind, folder = "folder", self._root
        if folder is None:  # the common prefix of the first and last name is that of all
            names = self.paths.names()
            folders = [os.path.dirname(name) for name in (min(names), max(names))]
            kind, folder = "files", Path(os.fsdecode(os.path.commonpath(folders)))
        digest = zlib.crc32(os.fsencode(folder))
        return cache / "images" / f"{folder.name[:40]}-{kind}-{digest:08x}.index"


class PathList(Sequence[Path]):
    """Sequence of absolute paths, created on access because there may be millions."""

    def __init__(self, names: Iterable[bytes]) -> None:
        names = list(names)
        length = np.fromiter(map(len, names), np.int64, len(names))
        offset = np.cumsum(length + 1) - length - 1
        self._joined = b"\0".join([*names, b""])
        blob = np.frombuffer(self._joined, np.uint8)
        self.ranges = ByteRanges.from_columns([blob], 0, offset, length, in_files=True)

    def names(self) -> list[bytes]:
        """Return all names, in the encoding of the file system."""
        return self._joined.split(b"\0")[:-1]

    def __len__(self) -> int:
        return len(self.ranges)

    @overload
    def __getitem__(self, index: int) -> Path: ...

    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...

    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        number = range(len(self))[index]
        return Path(os.fsdecode(bytes(self.ranges[number])))


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def _has_offsets(images: Any) -> bool:
    """True for (values, offsets), False for a tuple of two images."""
    if not isinstance(images, tuple) or len(images) != 2 or _is_bytes(images[0]):
        return False
    return not (isinstance(images[1], np.ndarray) and images[1].dtype == np.uint8)


def _from_sequence(images: Any) -> ByteRanges:
    if _is_bytes(images) or isinstance(images, str):
        raise TypeError(f"images is {type(images).__name__}; expected a sequence of bytes")
    if isinstance(images, np.ndarray) and images.dtype.kind == "S":
        raise TypeError(f"images has dtype {images.dtype}, without trailing zero bytes; use object")
    blobs = []
    for record, data in enumerate(images):
        array = np.frombuffer(data, np.uint8) if _is_bytes(data) else data
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
            raise TypeError(f"image {record} is {data!r:.80}; expected encoded bytes, or uint8 [n]")
        blobs.append(np.ascontiguousarray(array))
    return ByteRanges.from_columns(blobs, np.arange(len(blobs)), 0, [len(blob) for blob in blobs])


def _from_offsets(values: Any, offsets: Any) -> ByteRanges:
    values, offsets = np.asarray(values), np.asarray(offsets)
    if values.dtype != np.uint8 or values.ndim != 1:
        raise TypeError(f"values is {values.dtype}{list(values.shape)}; expected uint8 [B]")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or not len(offsets):
        raise TypeError(f"offsets is {offsets.dtype}{[*offsets.shape]}; expected integers [N + 1]")
    offsets = offsets.astype(np.int64)
    if offsets[0] < 0 or offsets[-1] > len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"offsets decrease, or exceed 0 to {len(values)}: {offsets[0]} to {offsets[-1]}"
        )
    return ByteRanges.from_columns(
        [np.ascontiguousarray(values)], 0, offsets[:-1], np.diff(offsets)
    )
