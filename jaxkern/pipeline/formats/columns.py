"""Records whose fields are columns: rows of arrays, and bytes that lie somewhere in memory."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from jaxkern.core.failures import described, note
from jaxkern.core.mapped import check_mapped
from jaxkern.core.progress import ProgressBar
from jaxkern.pipeline.encoded import EncodedImages
from jaxkern.pipeline.rows import Data, canonical, ragged_of
from jaxkern.pipeline.shared import Shared
from jaxkern.pipeline.source import ArraySource, BatchSource, RecordSource

#: from the bytes of one record's field to a number, an array, or a dict of those
Decode = Callable[[bytes], Any]


class ImageOptions(TypedDict, total=False):
    """What a source may be told of its encoded images, as `Encoded` is.

    Attributes:
      channels: 3 for RGB, 1 for gray, 4 for RGBA; images are converted.
      on_bad_record: "raise", or "mask" for zeros where an image does not decode.
    """

    channels: int
    on_bad_record: Literal["raise", "mask"]


def masks(images: ImageOptions) -> bool:
    """Whether images that do not decode are masked."""
    return images.get("on_bad_record") == "mask"


class Chunks:
    """A column [N, ...] whose rows lie in several arrays, one behind the other."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return sum(array.nbytes for array in self._arrays)

    def whole(self) -> np.ndarray:
        """All rows as one array; a copy where there are several."""
        return self._arrays[0] if len(self._arrays) == 1 else np.concatenate(self._arrays)

    def picked(self, rows: np.ndarray) -> Chunks:
        """These rows as a column; a copy."""
        return Chunks([self.take(rows)])

    def take(self, records: np.ndarray) -> np.ndarray:
        """The rows of these records."""
        first = self._arrays[0]
        rows = np.empty((len(records), *first.shape[1:]), first.dtype)
        which = np.searchsorted(self._ends, records, "right")
        for chunk in np.unique(which):
            array, here = self._arrays[chunk], which == chunk
            check_mapped("a column", array)
            rows[here] = array[records[here] - (self._ends[chunk] - len(array))]
        return rows


@dataclasses.dataclass(frozen=True, eq=False)
class Bytes:
    """A column of bytes: of encoded images, or what a function decodes.

    Attributes:
      blobs, place, in_files: where the bytes are, as in `EncodedImages`.
      decode: what they are; None for encoded images.
    """

    blobs: Sequence[np.ndarray]
    place: np.ndarray
    decode: Decode | None = None
    in_files: bool = False

    def __len__(self) -> int:
        return len(self.place)

    def at(self, record: int) -> np.ndarray:
        """uint8 [length]: the bytes of a record; a view where they are in memory."""
        blob, start, length = self.place[record].tolist()
        data: np.ndarray = self.blobs[blob][start : start + length]
        if self.in_files:
            return np.fromfile(os.fsdecode(data.tobytes()), np.uint8)
        check_mapped("the record", data)
        return data


Column = np.ndarray | Chunks | Bytes


class ColumnSource(BatchSource):
    """Records whose fields are columns of one length; what the formats here are made of.

    Args:
      columns: field -> rows, or bytes.
      name_of: a record's file and place there, for messages.
      images: see `ImageOptions`.

    Attributes:
      bad_records: record -> error of each whose image did not decode, where they are masked.
    """

    fresh = True

    def __init__(
        self,
        columns: Mapping[str, Column],
        name_of: Callable[[int], str],
        **images: Unpack[ImageOptions],
    ) -> None:
        channels = images.get("channels", 3)
        on_bad_record = images.get("on_bad_record", "raise")
        if on_bad_record not in ("raise", "mask"):
            raise ValueError(f"on_bad_record is {on_bad_record!r}; wanted 'raise' or 'mask'")
        if channels not in (1, 3, 4):
            raise ValueError(f"channels={channels}; wanted 1, 3 or 4")
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the fields have different numbers of records: {lengths}")
        self.on_bad_record = on_bad_record
        self.bad_records: dict[int, str] = {}
        self._columns = dict(columns)
        self._name_of = name_of
        self._channels = channels
        self._length = next(iter(lengths.values()))
        arrays = {
            name: column for name, column in columns.items() if isinstance(column, np.ndarray)
        }
        self._arrays = ArraySource(arrays) if arrays else None
        self._decoded = RecordSource(_Decoded(self))
        self._header_cache = Shared(keep=len(columns))

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._columns)}; {len(self)} records)"

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """The columns that are arrays, where all others are images."""
        if self.on_bad_record == "mask" or any(
            not isinstance(column, np.ndarray) and not _is_image(column)
            for column in self._columns.values()
        ):
            return None
        return {} if self._arrays is None else self._arrays.arrays

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """The columns of images, where all of their headers are JPEG's."""
        found: dict[str, EncodedImages] = {}
        for name, column in self._columns.items():
            if isinstance(column, Bytes) and _is_image(column):
                size, jpeg = self._headers(name)
                if not jpeg:
                    return {}
                found[name] = EncodedImages(
                    tuple(column.blobs),
                    column.place,
                    column.in_files,
                    size,
                    channels=self._channels,
                )
        return found

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """Rows of the arrays; decoded images as Ragged; stacked values of what is decoded."""
        if records.size and not (records.min() >= 0 and records.max() < len(self)):
            raise IndexError(f"records {records.min()} to {records.max()} of {len(self)}")
        found: Data = {}
        valid = np.ones(len(records), bool)
        if self._arrays is not None:
            here = None if out is None else {name: out[name] for name in self._arrays.arrays}
            found.update(self._arrays.gather(records, here))
        if any(isinstance(c, Bytes) and c.decode is not None for c in self._columns.values()):
            found.update(self._decoded.gather(records, out))
        for name, column in self._columns.items():
            if isinstance(column, Chunks):
                found[name] = canonical(column.take(records))
            elif isinstance(column, Bytes) and _is_image(column):
                images = [self._image_if_any(name, record) for record in records.tolist()]
                valid &= [image is not None for image in images]
                whole = [
                    self._zeros(name, record) if image is None else image
                    for record, image in zip(records.tolist(), images, strict=True)
                ]
                found[name] = ragged_of(whole, *self._max_size(name))
        return found if self.on_bad_record == "raise" else {**found, "valid": valid}

    def _decoded_fields(self, record: int) -> Data:
        """What the functions make of a record's bytes."""
        fields: Data = {}
        for name, column in self._columns.items():
            if isinstance(column, Bytes) and column.decode is not None:
                try:
                    value = column.decode(column.at(record).tobytes())
                except BaseException as error:
                    note(error, "while decoding {!r} of {}", name, self._name_of(record))
                    raise
                if isinstance(value, Mapping):
                    fields.update({f"{name}.{key}": part for key, part in value.items()})
                else:
                    fields[name] = value
        return fields

    def _image_if_any(self, name: str, record: int) -> np.ndarray | None:
        """The pixels; None for an image that does not decode, where those are masked."""
        column = self._columns[name]
        assert isinstance(column, Bytes)
        try:
            return decoded_image(column.at(record), self._channels)
        except Exception as error:
            note(error, "while reading {!r} of record {}: {}", name, record, self._name_of(record))
            if self.on_bad_record == "raise" or is_of_the_system(error):
                raise
            self.bad_records[record] = described(error)
            return None

    def _zeros(self, name: str, record: int) -> np.ndarray:
        size = self._headers(name)[0][record]
        sides = size.tolist() if size.all() else self._max_size(name)
        return np.zeros((*sides, self._channels), np.uint8)

    def _max_size(self, name: str) -> tuple[int, int]:
        height, width = self._headers(name)[0].max(0, initial=0).tolist()
        if not height:
            raise ValueError(f"{self!r} has no image in {name!r} whose header can be read")
        return height, width

    def _headers(self, name: str) -> tuple[np.ndarray, bool]:
        """Height and width int32 [N, 2] of a field's images, zeros where not told; whether JPEG."""
        found: tuple[np.ndarray, bool] = self._header_cache.get(
            name, lambda: self._read_headers(name)
        )
        return found

    def _read_headers(self, name: str) -> tuple[np.ndarray, bool]:
        column = self._columns[name]
        assert isinstance(column, Bytes)
        size = np.zeros((len(self), 2), np.int32)
        jpeg = np.zeros(len(self), bool)

        def read(record: int) -> None:
            data = column.at(record)
            size[record] = image_size(data)
            jpeg[record] = data[:3].tobytes() == b"\xff\xd8\xff"

        with (
            ProgressBar(True, "headers", "images") as bar,
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads,
        ):
            for done, _ in enumerate(threads.map(read, range(len(self)))):
                if done % 1000 == 0:
                    bar.update(done, len(self))
        return size, bool(jpeg.all())


class _Decoded:
    """The decoded fields of a source, record by record."""

    def __init__(self, source: ColumnSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, record: int) -> Data:
        return self._source._decoded_fields(record)


def _is_image(column: Column) -> bool:
    return isinstance(column, Bytes) and column.decode is None


def is_image(data: bytes) -> bool:
    """Whether bytes begin as those of an image do."""
    marks = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF", b"P6")
    return data.startswith(marks)


def decoded_image(data: np.ndarray, channels: int) -> np.ndarray:
    """u8 [H, W, C] of an encoded image uint8 [length], upright."""
    import PIL.Image
    import PIL.ImageOps

    with PIL.Image.open(io.BytesIO(data.tobytes())) as image:
        upright = PIL.ImageOps.exif_transpose(image)
        pixels = np.asarray(upright.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


def image_size(data: np.ndarray) -> tuple[int, int]:
    """Height and width of an encoded image as it stands upright; zeros where it does not say."""
    import PIL.Image

    try:
        with PIL.Image.open(io.BytesIO(data.tobytes())) as image:
            turned = image.getexif().get(0x0112, 1) >= 5
            return (image.width, image.height) if turned else (image.height, image.width)
    except Exception as error:
        if is_of_the_system(error):
            raise
        return 0, 0


def is_of_the_system(error: Exception) -> bool:
    """Whether there was nothing to decode: a file that is gone or forbidden, no memory."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
