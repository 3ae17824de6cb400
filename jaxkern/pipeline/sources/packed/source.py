"""Source of packed files (.jkp): memory maps with checksums verified at the first read, or URLs."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import check_mapped
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.files import Paths
from jaxkern.pipeline.sources.images.columns import EncodedSource, RecordColumn
from jaxkern.pipeline.sources.images.decoding import CHANNELS, MAX_PIXELS, jpeg_decoding
from jaxkern.pipeline.sources.images.fields import ImageColumn, ImageOptions
from jaxkern.pipeline.sources.images.headers import ByteRanges, Headers
from jaxkern.pipeline.sources.packed.layout import (
    PackedField,
    check_same_set,
    open_packed,
    packed_paths,
)
from jaxkern.pipeline.sources.remote import (
    File,
    RemoteFile,
    RemoteRanges,
    Url,
    in_threads,
    ranges_read,
)
from jaxkern.pipeline.sources.source import (
    EncodedImages,
    RowReader,
    check_choice,
    join_arrays,
    locate,
)
from jaxkern.ring import RowParts
from jaxkern.ring.rows import check_records

_RECORDS_PER_THREAD = 64  # minimum number of records per thread that verifies checksums


class Damage(NamedTuple):
    """A record whose checksum is wrong."""

    path: File
    record: int
    field: str
    begin: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.path}: record {self.record}, field {self.field!r}, is damaged: its {self.size} "
            f"bytes at offset {self.begin} have a wrong checksum"
        )


class PackedSource(EncodedSource):
    """Source of the records of a packed file, or of a set of packed files, mapped into memory.

    If all records of a field have equal shapes, its batches are arrays; images (uint8 [H, W, C], or
    JPEG) of different sizes are `jaxkern.image.Ragged`. The checksum of each record is verified
    when the process reads it for the first time, see docs/how-to/pack-files.md.

    Of URLs, only the index is read at first. Worker threads read the byte ranges of a batch, many
    at once, and verify their checksums each time.

    Args:
      path: path or URL of a file; or of several files: a pattern such as
        ``"train-*-of-00064.jkp"``, a folder, or a list. Shards must be a complete set.
      channels: channels of decoded JPEG images: 3 for RGB, 1 for gray, 4 for RGBA; None: as in the
        packed source.
      verify: "first"; or "never" to skip the verification.
      on_bad_record, max_pixels: as for `ImageFiles`; "mask" also masks damaged records.

    Attributes:
      paths: paths or URLs of the files.
      bad_images: (field, record) -> error of each masked image.

    Raises:
      FileNotFoundError: a file does not exist, or a shard is missing.
      OSError: a file cannot be read from its server, or was replaced meanwhile.
      ValueError: a file, or a record that is read, is truncated or damaged; the message names it.

    >>> import tempfile, numpy as np, jaxkern as jk
    >>> path = tempfile.mkdtemp() + "/x.jkp"
    >>> _ = jk.pipeline.pack({"x": np.arange(8).reshape(4, 2)}, path, progress=False)
    >>> jk.pipeline.PackedSource(path)[3]["x"].tolist()
    [6, 7]
    """

    _adds_valid = False

    def __init__(
        self,
        path: Paths,
        channels: int | None = None,
        verify: Literal["first", "never"] = "first",
        on_bad_record: Literal["raise", "mask"] = "raise",
        *,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        check_choice("channels", channels, None, *CHANNELS)
        check_choice("verify", verify, "first", "never")
        check_choice("on_bad_record", on_bad_record, "raise", "mask")
        self.paths = packed_paths(path)
        self.channels = channels
        check_integer("max_pixels", max_pixels, 1)
        open_all: Any = in_threads if isinstance(self.paths[0], Url) else map
        files, indices = zip(*open_all(open_packed, self.paths), strict=True)
        check_same_set(self.paths, indices)
        self._files: Sequence[Any] = files  # memory maps, or `RemoteFile`
        self._is_remote = isinstance(files[0], RemoteFile)
        self._counts = [index.records for index in indices]
        self._ends = np.cumsum(self._counts)
        #: metadata of the first file, including its position in a set
        self.shard_metadata: Mapping[str, Any] = indices[0].metadata
        #: storage of each field
        self.fields: tuple[PackedField, ...] = indices[0].fields
        self._values: dict[str, list[np.ndarray]] = {}  # field -> column of each file
        self._stored: dict[str, _StoredField] = {}  # fields that are not in the index
        number = np.repeat(np.arange(len(files)), self._counts)
        columns: dict[str, Any] = {}
        options: ImageOptions = {"max_pixels": max_pixels, "on_bad_record": on_bad_record}
        for field in self.fields:
            parts = [index.columns[field.name] for index in indices]
            if field.codec == "column":
                self._values[field.name] = [part["value"] for part in parts]
                columns[field.name] = join_arrays(self._values[field.name])
                continue
            joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            ranges = ByteRanges.from_columns(files, number, joined["offset"], joined["size"])
            if self._is_remote:
                ranges = RemoteRanges(ranges.blobs, ranges.ranges, False)
            stored = _StoredField(field, ranges, joined["crc32"], joined["shape"])
            self._stored[field.name] = stored
            columns[field.name] = self._column(stored, options)
        super().__init__(columns, **options)
        self.on_bad_record = on_bad_record
        self._in_python = self._is_remote or on_bad_record == "mask"
        verifies = verify == "first" or self._is_remote
        self._unread = np.ones(len(self), bool) if verifies else None

    def __repr__(self) -> str:
        name = self.paths[0].name
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"PackedSource({name}{more}; {', '.join(self._names)}; {len(self)} records)"

    def describe(self) -> str:
        return f"PackedSource#{self.digest}(channels={self.channels})"

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Return the writer's metadata: ``format``, ``max_side``, a folder's ``classes``."""
        return {k: v for k, v in self.shard_metadata.items() if k not in ("shard", "set")}

    @functools.cached_property
    def digest(self) -> str:
        """Return a digest of all values, independent of the number of files."""
        self._check_mapped(range(len(self._files)))
        digest = hashlib.blake2b(digest_size=8)
        for field in self.fields:
            digest.update(f"{field.name} {field.codec} {field.dtype} {len(field.shape)}".encode())
            for values in self._values.get(field.name, ()):
                digest.update(values.tobytes())
            if (stored := self._stored.get(field.name)) is not None:
                for column in (stored.ranges.ranges[:, 2], stored.crc32, stored.shape):
                    digest.update(column.tobytes())
        return digest.hexdigest()

    def info(self) -> dict[str, Any]:
        """Describe the contents of the files as JSON-compatible values."""
        self._check_open()
        fields = []
        for field in self.fields:
            if field.codec == "column":
                size = sum(values.nbytes for values in self._values[field.name])
                low = high = list(field.shape)
            else:
                stored = self._stored[field.name]
                size = int(stored.ranges.ranges[:, 2].sum())
                low, high = stored.shape.min(0).tolist(), stored.shape.max(0).tolist()
            shapes = str(low) if low == high else f"{low} to {high}"
            fields.append({**field.as_dict(), "shapes": shapes, "bytes": size})
        return {
            "files": [str(path) for path in self.paths],
            "records": len(self),
            "bytes": sum(file.size for file in self._files),
            "digest": self.digest,
            "metadata": dict(self.metadata),
            "fields": fields,
        }

    def close(self) -> None:
        """Close the files; arrays that refer to a map keep it open. Idempotent."""
        self._files, self._values, self._stored = (), {}, {}
        self.images, self._made, self._arrays = {}, {}, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        self._check_open()
        with self._ranges_read(records):
            readable = self._readable(records)
            data = self._gather(records, out, readable)
        if not readable.all():
            for name in self._stored.keys() - self.images.keys():
                data[name][~readable] = 0
        return data

    def row_arrays(self) -> Mapping[str, np.ndarray | RowParts] | None:
        return None if self._in_python else super().row_arrays()

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        return {} if self._in_python else super().encoded_images()

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        if field not in self._stored or self._stored[field].field.codec != "jpeg":
            return None
        with self._ranges_read(np.array([record])):
            self.check(np.array([record]))
            return bytes(self._stored[field].ranges[record])

    def check(self, records: np.ndarray) -> None:
        """Raise ValueError for the first damaged record; each record is verified once."""
        self._check_open()
        check_records(records, len(self))
        self._check_mapped(np.unique(np.searchsorted(self._ends, records, "right")).tolist())
        if self._unread is None or not (unread := records[self._unread[records]]).size:
            return
        most = 1 if self._is_remote else num_threads()  # this thread has read the bytes
        parts = np.array_split(unread, min(most, 1 + len(unread) // _RECORDS_PER_THREAD))
        if len(parts) == 1:
            damages = [self._first_damage(unread)]
        else:  # several threads read from the disk concurrently
            with concurrent.futures.ThreadPoolExecutor(len(parts)) as threads:
                damages = list(threads.map(self._first_damage, parts))
        if damage := next(filter(None, damages), None):
            raise ValueError(str(damage))

    def damaged(self, progress: Any = None) -> Iterator[Damage]:
        """Yield all damaged records in order; `progress` is called with the verified count."""
        self._check_open()
        self._check_mapped(range(len(self._files)))
        blocks = [range(i, min(i + 64, len(self))) for i in range(0, len(self), 64)]
        with concurrent.futures.ThreadPoolExecutor(num_threads()) as threads:
            damages = threads.map(self._damages, blocks)
            for block, results in zip(blocks, damages, strict=True):
                yield from filter(None, results)
                if progress is not None:
                    progress(block.stop)

    def _damages(self, records: range) -> list[Damage | None]:
        with self._ranges_read(np.array(records)):
            return [self._damage(record) for record in records]

    def _ranges_read(self, records: np.ndarray) -> Any:
        """Return a context in which this thread has read the records from their servers."""
        check_records(records, len(self))
        return ranges_read([stored.ranges for stored in self._stored.values()], records)

    def _check_open(self) -> None:
        if not self._files:
            raise ValueError(f"{self.paths[0]} was closed")

    def _check_mapped(self, shards: Iterable[int]) -> None:
        for number in shards:
            check_mapped("the source", self._files[number])

    def _column(
        self, stored: _StoredField, options: ImageOptions
    ) -> np.ndarray | RowParts | RowReader | ImageColumn | RecordColumn:
        """Return a column of arrays of equal shape, of images, or of arrays read one by one."""
        field, shapes = stored.field, stored.shape
        views = []
        if field.codec == "array" and (shapes == shapes[0]).all():
            if self._is_remote:
                return RowReader((len(shapes), *shapes[0].tolist()), field.dtype, stored.read)
            ends = zip(self._ends.tolist(), self._counts, self._files, strict=True)
            views = [stored.view(file, end - count, end) for end, count, file in ends]
            known = [view for view in views if view is not None]
            if len(known) == len(views):
                return known[0] if len(known) == 1 else RowParts(known)
        elif stored.is_image:
            return _PackedImages(
                stored, functools.partial(self._describe, field.name), self.channels, options
            )
        return RecordColumn(len(shapes), stored.array)

    def _describe(self, field: str, record: int) -> str:
        return f"record {record}, field {field!r}, of {self.paths[locate(self._ends, record)[0]]}"

    def _damage(self, record: int) -> Damage | None:
        """Return the first damaged field of a record."""
        for name, stored in self._stored.items():
            data = stored.ranges[record]
            if zlib.crc32(data) != stored.crc32[record]:
                number = locate(self._ends, record)[0]
                if isinstance(self._files[number], RemoteFile):
                    self._files[number].check_unchanged()
                path = self.paths[number]
                return Damage(path, record, name, int(stored.ranges.ranges[record, 1]), len(data))
        return None

    def _first_damage(self, records: np.ndarray) -> Damage | None:
        assert self._unread is not None
        for record in records.tolist():
            if damage := self._damage(record):
                return damage
            self._unread[record] = self._is_remote
        return None

    def _readable(self, records: np.ndarray) -> np.ndarray:
        """Return bool [N], False for damaged records; raise if these are not masked."""
        try:
            self.check(records)
            return np.ones(len(records), bool)
        except ValueError:
            if self.on_bad_record == "raise":
                raise
            return np.array([self._damage(record) is None for record in records.tolist()])


@dataclasses.dataclass(frozen=True, eq=False)
class _StoredField:
    """A field whose records are stored in the files, with their checksums and shapes."""

    field: PackedField
    ranges: ByteRanges
    crc32: np.ndarray  # uint32 [N]
    shape: np.ndarray  # int32 [N, dimensions], of decoded images without channels

    @property
    def is_image(self) -> bool:
        """True if records are images that may differ in size but not in channels."""
        if self.field.codec == "jpeg":
            return True
        if self.field.dtype != np.uint8 or len(self.field.shape) != 3:
            return False
        channels = self.shape[0, 2]
        same = (self.shape[:, 2] == channels).all() and (self.shape > 0).all()
        return bool(channels in CHANNELS and same)

    def array(self, record: int) -> np.ndarray:
        """Return a view of a record."""
        shape = self.shape[record].tolist()
        return np.frombuffer(self.ranges[record], self.field.dtype).reshape(shape)

    def read(self, records: np.ndarray, out: np.ndarray) -> None:
        """Read records of equal shape."""
        for row, record in enumerate(records.tolist()):
            out[row] = self.array(record)

    def view(self, file: np.ndarray, first: int, end: int) -> np.ndarray | None:
        """Return a view of records of equal shape in a file; None without a constant stride."""
        offset, size = self.ranges.ranges[first:end, 1], int(self.ranges.ranges[first, 2])
        steps = np.diff(offset)
        if (steps != steps[:1]).any() or (steps[:1] < size).any():
            return None
        shape = self.shape[first].tolist()
        dense = np.ndarray(shape, self.field.dtype, file, int(offset[0])).strides
        strides = (int(steps[0]) if steps.size else size, *dense)
        return np.ndarray((end - first, *shape), self.field.dtype, file, int(offset[0]), strides)


class _PackedImages(ImageColumn):
    """A field of packed images, whose sizes are in the index."""

    def __init__(
        self,
        stored: _StoredField,
        name_of: Callable[[int], str],
        channels: int | None,
        options: ImageOptions,
    ) -> None:
        self._stored, self._size = stored, np.ascontiguousarray(stored.shape[:, :2])
        if stored.field.codec == "jpeg":
            channels = channels or stored.field.shape[2]
        else:
            self.codec, channels = "raw", int(stored.shape[0, 2])
        height, width = self._size.max(0).tolist()
        options = {**options, "max_size": (height, width), "channels": channels}
        super().__init__(stored.ranges, name_of, **options)

    def image(self, record: int, data: Any = None) -> np.ndarray:
        if self.codec == "raw":
            return self._stored.array(record)
        pixels, size = super().image(record, data), tuple(self._size[record].tolist())
        if pixels.shape[:2] == size:
            return pixels
        name = self.name_of(record)
        raise ValueError(f"{name}: the image is {pixels.shape[:2]}, the index has {size}")

    def size_of(self, record: int) -> tuple[int, int] | None:
        height, width = self._size[record].tolist()
        return (height, width) if height * width <= self.max_pixels else None

    def zeros(self, record: int) -> np.ndarray:
        # A damaged index may have any size.
        return np.zeros((*(self.size_of(record) or (1, 1)), self.channels), np.uint8)

    def native_problem(self) -> str:
        return "" if self.codec == "raw" or jpeg_decoding().native else jpeg_decoding().reason

    def remarks(self) -> list[str]:
        decoder = jpeg_decoding()
        why = f" ({decoder.reason})" if decoder.reason else ""
        return [f"packed JPEG by {decoder.name}{why}"] if self.codec == "jpeg" else []

    def _read(self) -> Headers:
        return dataclasses.replace(Headers.unknown(len(self)), size=self._size)
