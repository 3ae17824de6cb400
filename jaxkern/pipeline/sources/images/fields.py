"""Fields of encoded images: in memory, or in files; what is known of them, and their pixels."""

from __future__ import annotations

import functools
import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.ceilings import cache_folder
from jaxkern.image import Ragged
from jaxkern.pipeline.sources.encoded import EncodedImages
from jaxkern.pipeline.sources.images.decoding import CHANNELS, MAX_PIXELS, decoded, jpeg_decoding
from jaxkern.pipeline.sources.images.header_index import indexed_headers
from jaxkern.pipeline.sources.images.headers import JPEG, UNKNOWN, Headers, Places, read_headers

OnBadRecord = Literal["raise", "mask"]
Decode = Literal["full", "scaled"]
_WORTH_KEEPING = 1000  # files; the headers of fewer are read at once


class ImageColumn:
    """N encoded images, as a field of a source; see `Encoded` and `FileColumn`.

    Args:
      images: where they lie.
      channels, max_size, max_pixels, on_bad_record, decode: as for `Encoded`.
    """

    def __init__(
        self,
        images: Places,
        channels: int,
        max_size: tuple[int, int] | None,
        max_pixels: int,
        on_bad_record: OnBadRecord,
        decode: Decode = "full",
    ) -> None:
        if channels not in CHANNELS:
            raise ValueError(f"channels={channels}; wanted 1, 3 or 4")
        if on_bad_record not in ("raise", "mask"):
            raise ValueError(f"on_bad_record is {on_bad_record!r}; wanted 'raise' or 'mask'")
        if decode not in ("full", "scaled"):
            raise ValueError(f"decode is {decode!r}; wanted 'full' or 'scaled'")
        if max_size is not None:
            if not isinstance(max_size, tuple | list) or len(max_size) != 2:
                raise ValueError(f"max_size is {max_size!r}; wanted (height, width), or None")
            height, width = (check_integer(f"max_size[{i}]", n, 1) for i, n in enumerate(max_size))
            max_size = (height, width)
        self.images = images
        self.channels = channels
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)
        self.on_bad_record: OnBadRecord = on_bad_record
        self.decode: Decode = decode
        self._given_max_size = max_size
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.images)

    def name_of(self, record: int) -> str:
        """Of an image, in messages."""
        return f"image {record}"

    def bytes_of(self, record: int) -> Any:
        """An encoded image."""
        self.images.check(np.array([record]))
        return self.images[record]

    def image(self, record: int) -> np.ndarray:
        """The pixels of an image: uint8 [H, W, channels]."""
        return decoded(self.bytes_of(record), self.channels, self.max_pixels, self.name_of(record))

    @property
    def headers(self) -> Headers:
        """What is known of all images; read at the first use."""
        with self._lock:
            return self._headers

    @functools.cached_property
    def _headers(self) -> Headers:
        return self._read()

    def _read(self) -> Headers:
        self.images.check()
        return read_headers(self.images)

    def size_of(self, record: int) -> tuple[int, int] | None:
        """(height, width) of an image as its header says; None where it is unknown or too much."""
        if "_headers" in vars(self):
            headers, place = self._headers, record
        else:
            headers, place = read_headers(self.images.taken(np.array([record]))), 0
        height, width = headers.size[place].tolist()
        return (height, width) if 0 < height * width <= self.max_pixels else None

    @property
    def max_size(self) -> tuple[int, int]:
        """(height, width) that no image exceeds; without one given, that of the headers."""
        return self._given_max_size or self._largest

    def spec(self, count: int, image_side: int) -> Ragged:
        """The shapes of a batch of images, as far as they are known without reading any.

        Args:
          count: of images.
          image_side: stands for what only headers tell: the bound of the sizes, and the length of
            the buffer.
        """
        height, width = self._given_max_size or (image_side, image_side)
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
                f"there is no image that can be decoded: {self.name_of(0)} and the other "
                f"{len(self) - 1} are of no known kind, or above max_pixels"
            )
        height, width = size.max(0).tolist()
        return height, width

    def encoded_images(self) -> EncodedImages | None:
        """For native threads; None where they cannot decode all of them."""
        if self.native_problem():
            return None
        images = self.images
        return EncodedImages(
            images.blobs,
            images.place,
            images.in_files,
            self.headers.size,
            channels=self.channels,
            max_pixels=self.max_pixels,
            scaled=self.decode == "scaled",
        )

    def native_problem(self) -> str:
        """Why native threads cannot decode the images; "" where they can."""
        decoding = jpeg_decoding()
        if not decoding.native:
            return decoding.reason
        headers = self.headers
        others = np.flatnonzero((headers.kind != JPEG) & (headers.kind != UNKNOWN))
        if others.size:
            first = self.name_of(int(others[0]))
            return f"{others.size} of {len(self)} images are no JPEG, such as {first}"
        if self._given_max_size and (headers.size > self._given_max_size).any():
            return f"images exceed max_size={self._given_max_size}"
        return ""

    def remarks(self) -> list[str]:
        """Which decoders its images need, and why."""
        decoding = jpeg_decoding()
        found = []
        for name, count in self.headers.counts().items():
            if name == "JPEG":
                why = f" ({decoding.reason})" if decoding.reason else ""
                found.append(f"{count} JPEG by {decoding.name}{why}")
            elif name:
                found.append(f"{count} {name} by Pillow in worker threads")
            else:
                found.append(f"{count} of no known kind")
        problem = self.native_problem()
        if problem and decoding.native:
            found.append(f"no native threads, for {problem}")
        return found


class Encoded(ImageColumn):
    """A field of encoded images in memory: JPEG, PNG and what else Pillow reads.

    In batches it is a `jaxkern.image.Ragged` of uint8 pixels, upright as EXIF says.

    Args:
      images: a sequence or an object array of N bytes; or (values, offsets): uint8 [B], a memory
        map as well, and integers [N + 1] such that ``values[offsets[i] : offsets[i + 1]]`` is
        image i. They are not copied.
      channels: 3 for RGB, 1 for gray, 4 for RGBA; images are converted.
      max_size: (height, width) that no image exceeds; None reads the header of every image, at the
        first use.
      max_pixels: height * width above which an image is refused, before it is decoded. Pillow has a
        limit of its own for what it decodes, `PIL.Image.MAX_IMAGE_PIXELS`.
      on_bad_record: "raise": an image that does not decode is an error in its batch's place.
        "mask": its row is zeros and the field "valid" (bool) is False there.
      decode: see `ImageFiles`.
    Raises: TypeError for images that are no bytes; ValueError for offsets that lead elsewhere.

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
        places = _joined(*images) if _is_joined(images) else _separate(images)
        super().__init__(places, channels, max_size, max_pixels, on_bad_record, decode)

    def __repr__(self) -> str:
        return f"Encoded({len(self)} images)"


class FileColumn(ImageColumn):
    """N files of images.

    Args:
      paths: of them.
      index: see `ImageFiles`.
      root: of all the files that there are, where `paths` has them; for the index.
    """

    def __init__(
        self,
        paths: PathList,
        channels: int,
        max_size: tuple[int, int] | None,
        max_pixels: int,
        on_bad_record: OnBadRecord,
        index: str | os.PathLike[str] | bool | None,
        root: Path | None = None,
        decode: Decode = "full",
    ) -> None:
        super().__init__(paths.places, channels, max_size, max_pixels, on_bad_record, decode)
        self.paths = paths
        # Another working directory must not lead elsewhere.
        self._index = Path(index).absolute() if isinstance(index, str | os.PathLike) else index
        self._root = root

    def name_of(self, record: int) -> str:
        return str(self.paths[record])

    def bytes_of(self, record: int) -> Any:
        with self.images.opened(record) as file:
            return file.read()

    def _read(self) -> Headers:
        path = self._index_path()
        if path is None:
            return super()._read()
        names = self.paths.names()
        if self._root is not None:  # a folder may be moved with its index
            start = len(os.path.join(os.fsencode(self._root), b""))
            names = [name[start:] for name in names]
        return indexed_headers(path, self.images, names, complete=self._root is not None)

    def _folder(self) -> Path:
        if self._root is not None:
            return self._root
        names = self.paths.names()  # what the first and the last of them share, all share
        folders = [os.path.dirname(name) for name in (min(names), max(names))]
        return Path(os.fsdecode(os.path.commonpath(folders)))

    def _index_path(self) -> Path | None:
        if isinstance(self._index, Path):
            return self._index
        if self._index is False or (self._index is None and len(self) < _WORTH_KEEPING):
            return None
        cache = cache_folder()
        if cache is None:
            return None
        kind = "files" if self._root is None else "folder"
        folder = self._folder()
        digest = zlib.crc32(os.fsencode(folder))
        return cache / "images" / f"{folder.name[:40]}-{kind}-{digest:08x}.index"


class PathList(Sequence[Path]):
    """Absolute paths of files, which are made as they are asked for: there may be millions.

    Attributes:
      places: their names, as the system takes them.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        names = list(names)
        length = np.fromiter(map(len, names), np.int64, len(names))
        place = np.zeros((len(names), 3), np.int64)
        place[1:, 1] = np.cumsum(length + 1)[:-1]
        place[:, 2] = length
        self._joined = b"\0".join([*names, b""])
        self.places = Places((np.frombuffer(self._joined, np.uint8),), place, in_files=True)

    def names(self) -> list[bytes]:
        """All of them, as the system takes them."""
        return self._joined.split(b"\0")[:-1]

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Path: ...

    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...

    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        place = range(len(self))[index]
        return Path(os.fsdecode(bytes(self.places[place])))

    def __repr__(self) -> str:
        return f"PathList({len(self)} paths)"


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def _is_joined(images: Any) -> bool:
    """Whether they are (values, offsets), and no tuple of two images."""
    if not isinstance(images, tuple) or len(images) != 2 or _is_bytes(images[0]):
        return False
    return not (isinstance(images[1], np.ndarray) and images[1].dtype == np.uint8)


def _separate(images: Any) -> Places:
    if _is_bytes(images) or isinstance(images, str):
        raise TypeError(f"images is {type(images).__name__}; wanted a sequence of N bytes")
    if isinstance(images, np.ndarray) and images.dtype.kind == "S":
        raise TypeError(
            f"images is an array of dtype {images.dtype}, which drops zeros at the end of bytes; "
            "wanted an array of dtype object, or a list"
        )
    blobs = []
    for record, data in enumerate(images):
        array = data if isinstance(data, np.ndarray) else None
        if _is_bytes(data):
            array = np.frombuffer(data, np.uint8)
        if array is None or array.dtype != np.uint8 or array.ndim != 1:
            raise TypeError(
                f"image {record} is {data!r:.80}; wanted its encoded bytes, or uint8 [n] of them"
            )
        blobs.append(np.ascontiguousarray(array))
    place = np.zeros((len(blobs), 3), np.int64)
    place[:, 0] = np.arange(len(blobs))
    place[:, 2] = [len(blob) for blob in blobs]
    return Places(tuple(blobs), place, in_files=False)


def _joined(values: Any, offsets: Any) -> Places:
    values, offsets = np.asarray(values), np.asarray(offsets)
    if values.dtype != np.uint8 or values.ndim != 1:
        raise TypeError(f"values is {values.dtype}{list(values.shape)}; wanted uint8 [B]")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or not len(offsets):
        raise TypeError(f"offsets is {offsets.dtype}{list(offsets.shape)}; wanted integers [N + 1]")
    offsets = offsets.astype(np.int64)
    if offsets[0] < 0 or offsets[-1] > len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"offsets go from {offsets[0]} to {offsets[-1]}; wanted numbers that never fall, from "
            f"0 to the {len(values)} bytes of values"
        )
    place = np.zeros((len(offsets) - 1, 3), np.int64)
    place[:, 1], place[:, 2] = offsets[:-1], np.diff(offsets)
    return Places((np.ascontiguousarray(values),), place, in_files=False)
