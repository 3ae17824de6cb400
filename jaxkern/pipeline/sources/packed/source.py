"""Source of packed files (.jkp): memory maps, with checksums verified at the first read."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import check_mapped
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.rows import Data, canonical, ragged_of
from jaxkern.pipeline.sources.files import Paths
from jaxkern.pipeline.sources.images.decoding import (
    CHANNELS,
    MAX_PIXELS,
    decode_image,
    jpeg_decoding,
)
from jaxkern.pipeline.sources.images.sources import is_image_error
from jaxkern.pipeline.sources.packed.layout import (
    PackedField,
    check_same_set,
    open_packed,
    packed_paths,
)
from jaxkern.pipeline.sources.source import (
    BatchSource,
    EncodedImages,
    check_choice,
    check_records,
    locate,
)
from jaxkern.ring.rows import gather_rows

_CONCATENATED_BYTES = 1 << 28  # maximum size of columns of several files that are concatenated
_RECORDS_PER_THREAD = 64  # minimum number of records per thread that verifies checksums


class Damage(NamedTuple):
    """A record whose checksum is wrong."""

    path: Path
    record: int
    field: str
    begin: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.path}: record {self.record}, field {self.field!r}, is damaged: its {self.size} "
            f"bytes at offset {self.begin} have a wrong checksum"
        )


class PackedSource(BatchSource):
    """Source of the records of a packed file, or of a set of packed files, mapped into memory.

    If all records of a field have one shape, its batches are arrays; images (uint8 [H, W, C], or
    JPEG) of different sizes are `jaxkern.image.Ragged`. The checksum of each record is verified
    when the process reads it for the first time, see docs/packed.md.

    Args:
      path: path of a file; or of several files: a pattern such as ``"train-*-of-00064.jkp"``, a
        folder, or a list. Shards must be a complete set.
      channels: channels of decoded JPEG images: 3 for RGB, 1 for gray, 4 for RGBA; None: as in the
        packed source.
      verify: "first"; or "never" to skip the verification.
      on_bad_record, max_pixels: as for `ImageFiles`; "mask" also masks damaged records.

    Attributes:
      paths: paths of the files.

    Raises:
      FileNotFoundError: a file does not exist, or a shard is missing.
      ValueError: a file, or a record that is read, is truncated or damaged; the message names it.

    >>> import tempfile, numpy as np, jaxkern as jk
    >>> path = tempfile.mkdtemp() + "/x.jkp"
    >>> _ = jk.pipeline.pack({"x": np.arange(8).reshape(4, 2)}, path, progress=False)
    >>> jk.pipeline.PackedSource(path)[3]["x"].tolist()
    [6, 7]
    """

    fresh = True

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
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)
        self.on_bad_record = on_bad_record
        files, indices = zip(*map(open_packed, self.paths), strict=True)
        check_same_set(self.paths, indices)
        self._files: Sequence[np.ndarray] = files
        self._counts = [index.records for index in indices]
        self._ends, self._length = np.cumsum(self._counts), sum(self._counts)
        #: metadata of the first file, including its position in a set
        self.shard_metadata: Mapping[str, Any] = indices[0].metadata
        #: storage of each field
        self.fields: tuple[PackedField, ...] = indices[0].fields
        self._values: dict[str, list[np.ndarray]] = {}  # field -> column of each file
        self._columns: dict[str, dict[str, np.ndarray]] = {}  # field -> columns of all files
        for field in self.fields:
            columns = [index.columns[field.name] for index in indices]
            if field.codec == "column":
                self._values[field.name] = [part["value"] for part in columns]
            else:
                self._columns[field.name] = {
                    name: np.concatenate([part[name] for part in columns]) for name in columns[0]
                }
        self._shapes = {field.name: self._shape_of(field) for field in self.fields}
        self._unread = None if verify == "never" else np.ones(len(self), bool)

    def __repr__(self) -> str:
        name = self.paths[0].name
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"PackedSource({name}{more}; {', '.join(self._shapes)}; {len(self)} records)"

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
            for name, column in self._columns.get(field.name, {}).items():
                if name != "offset":
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
                columns = self._columns[field.name]
                size = int(columns["size"].sum())
                low, high = columns["shape"].min(0).tolist(), columns["shape"].max(0).tolist()
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
        self._files, self._values = (), {}
        for name in ("_native", "_rows"):
            self.__dict__.pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        self._check_open()
        valid = self._valid(records)
        data: Data = {}
        for field in self.fields:
            target = None if out is None else out.get(field.name)
            data[field.name] = self._gather_field(field, records, valid, target)
        if self.on_bad_record == "mask":
            data["valid"] = valid & np.asarray(data.get("valid", True), bool)
        return data

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        return None if self._native is None else self._native[0]

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        return {} if self._native is None else self._native[1]

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        if (field, "jpeg") not in [(each.name, each.codec) for each in self.fields]:
            return None
        self.check(np.array([record]))
        return self._stored(field, record).tobytes()

    def remarks(self) -> Sequence[str]:
        decoder = jpeg_decoding()
        why = f" ({decoder.reason})" if decoder.reason else ""
        jpeg = [field.name for field in self.fields if field.codec == "jpeg"]
        return [f"{name}: packed JPEG by {decoder.name}{why}" for name in jpeg]

    def check(self, records: np.ndarray) -> None:
        """Raise ValueError for the first damaged record; each record is verified once."""
        self._check_open()
        check_records(records, len(self))
        self._check_mapped(np.unique(np.searchsorted(self._ends, records, "right")).tolist())
        if self._unread is None:
            return
        unread = records[self._unread[records]]
        parts = np.array_split(unread, min(num_threads(), 1 + len(unread) // _RECORDS_PER_THREAD))
        if len(parts) == 1:
            damages = [self._first_damage(unread)]
        else:  # concurrent reads from the disk
            with concurrent.futures.ThreadPoolExecutor(len(parts)) as threads:
                damages = list(threads.map(self._first_damage, parts))
        if damage := next(filter(None, damages), None):
            raise ValueError(str(damage))

    def damaged(self, progress: Any = None) -> Iterator[Damage]:
        """Yield all damaged records in order; `progress` is called with the number of verified."""
        self._check_open()
        self._check_mapped(range(len(self._files)))
        blocks = [range(i, min(i + 64, len(self))) for i in range(0, len(self), 64)]
        with concurrent.futures.ThreadPoolExecutor(num_threads()) as threads:
            damages = threads.map(lambda block: [self._damage(r) for r in block], blocks)
            for block, results in zip(blocks, damages, strict=True):
                yield from filter(None, results)
                if progress is not None:
                    progress(block.stop)

    def _check_open(self) -> None:
        if not self._files:
            raise ValueError(f"{self.paths[0]} was closed")

    def _check_mapped(self, shards: Iterable[int]) -> None:
        for number in shards:
            check_mapped("the source", self._files[number])

    def _shape_of(self, field: PackedField) -> tuple[int, ...] | None:
        if field.codec == "column":
            return field.shape
        if field.codec == "jpeg":
            return None
        shapes = self._columns[field.name]["shape"]
        return tuple(shapes[0].tolist()) if (shapes == shapes[0]).all() else None

    def _channels(self, field: PackedField) -> int:
        if field.codec == "jpeg":
            return self.channels or field.shape[2]
        return int(self._columns[field.name]["shape"][0, 2])

    def _is_image(self, field: PackedField) -> bool:
        """True if records are images that may differ in size but not in channels."""
        if field.codec == "jpeg":
            return True
        if field.codec != "array" or field.dtype != np.uint8 or len(field.shape) != 3:
            return False
        shapes = self._columns[field.name]["shape"]
        channels = shapes[0, 2]
        same = (shapes[:, 2] == channels).all() and (shapes > 0).all()
        return bool(channels in CHANNELS and same)

    @functools.cached_property
    def _largest(self) -> dict[str, list[int]]:
        """Return field -> maximum (height, width) of images."""
        images = [field.name for field in self.fields if self._is_image(field)]
        return {name: self._columns[name]["shape"].max(0)[:2].tolist() for name in images}

    @functools.cached_property
    def _rows(self) -> dict[str, list[Any]]:
        """Return field -> view of all records in each file, if they have one shape and stride."""
        rows: dict[str, list[Any]] = {**self._values}
        for field in self.fields:
            if self._shapes[field.name] is not None and field.codec == "array":
                views = [self._view(field, number) for number in range(len(self._files))]
                if all(view is not None for view in views):
                    rows[field.name] = views
        return rows

    def _view(self, field: PackedField, number: int) -> np.ndarray | None:
        file, count, shape = self._files[number], self._counts[number], self._shapes[field.name]
        first = int(self._ends[number]) - count
        offset = self._columns[field.name]["offset"][first : first + count]
        size = int(self._columns[field.name]["size"][first])
        steps = np.diff(offset)
        if shape is None or (steps != steps[:1]).any() or (steps[:1] < size).any():
            return None
        dense = np.ndarray(shape, field.dtype, file, int(offset[0])).strides
        strides = (int(steps[0]) if steps.size else size, *dense)
        return np.ndarray((count, *shape), field.dtype, file, int(offset[0]), strides)

    def _stored(self, field: str, record: int) -> np.ndarray:
        """Return the stored bytes of a record."""
        begin = int(self._columns[field]["offset"][record])
        end = begin + int(self._columns[field]["size"][record])
        return np.asarray(self._files[locate(self._ends, record)[0]][begin:end])

    def _array(self, field: PackedField, record: int) -> np.ndarray:
        """Return a view of a record."""
        shape = self._columns[field.name]["shape"][record].tolist()
        return self._stored(field.name, record).view(field.dtype).reshape(shape)

    def _damage(self, record: int) -> Damage | None:
        """Return the first damaged field of a record."""
        for name, columns in self._columns.items():
            stored = self._stored(name, record)
            if zlib.crc32(stored.data) != columns["crc32"][record]:
                path = self.paths[locate(self._ends, record)[0]]
                return Damage(path, record, name, int(columns["offset"][record]), stored.size)
        return None

    def _first_damage(self, records: np.ndarray) -> Damage | None:
        assert self._unread is not None
        for record in records.tolist():
            if damage := self._damage(record):
                return damage
            self._unread[record] = False
        return None

    def _valid(self, records: np.ndarray) -> np.ndarray:
        """Return bool [N], False for damaged records; raise if those are errors."""
        try:
            self.check(records)
            return np.ones(len(records), bool)
        except ValueError:
            if self.on_bad_record == "raise":
                raise
            return np.array([self._damage(record) is None for record in records.tolist()])

    def _gather_field(
        self, field: PackedField, records: np.ndarray, valid: np.ndarray, out: np.ndarray | None
    ) -> Any:
        shape = self._shapes[field.name]
        if shape is None and self._is_image(field):
            pixels = [self._image(field, r, row, valid) for row, r in enumerate(records.tolist())]
            return ragged_of(pixels, *self._largest[field.name])
        if shape is None:
            shape = tuple(self._columns[field.name]["shape"][records[0]].tolist())
        if out is None or out.shape != (len(records), *shape):
            out = canonical(np.empty((len(records), *shape), field.dtype.newbyteorder("=")))
        if field.name in self._rows:
            gather_rows(self._rows[field.name], records, out)
        else:
            for position, record in enumerate(records.tolist()):
                value = self._array(field, record)
                if value.shape != shape:
                    raise ValueError(
                        f"record {record} of {self!r} has {field.name!r} of shape {value.shape}, "
                        f"and record {records[0]} of shape {shape}; read batches of 1"
                    )
                out[position] = value
        if field.codec != "column":  # columns are part of the verified index
            out[~valid] = 0
        return out

    def _image(self, field: PackedField, record: int, row: int, valid: np.ndarray) -> np.ndarray:
        """Return uint8 [H, W, C]; zeros if invalid. Set `valid` to False if decoding fails."""
        shape = tuple(self._columns[field.name]["shape"][record].tolist())
        if field.codec == "array":
            return self._array(field, record) if valid[row] else np.zeros(shape, np.uint8)
        channels = self._channels(field)
        if valid[row]:
            path = self.paths[locate(self._ends, record)[0]]
            name = f"record {record}, field {field.name!r}, of {path}"
            try:
                stored = self._stored(field.name, record).data
                pixels = decode_image(stored, channels, self.max_pixels, name)
                if pixels.shape[:2] == shape:
                    return pixels
                raise ValueError(f"{name}: the image is {pixels.shape[:2]}, the index has {shape}")
            except Exception as error:
                if self.on_bad_record == "raise" or not is_image_error(error):
                    raise
                valid[row] = False
        if math.prod(shape) > self.max_pixels:  # a damaged index may have any shape
            shape = (1, 1)
        return np.zeros((*shape, channels), np.uint8)

    @functools.cached_property
    def _native(self) -> tuple[dict[str, np.ndarray], dict[str, EncodedImages]] | None:
        if self.on_bad_record == "mask":
            return None
        rows, images = {}, {}
        for field in self.fields:
            parts = self._rows.get(field.name, [])
            small = field.codec == "column" and sum(p.nbytes for p in parts) <= _CONCATENATED_BYTES
            if len(parts) == 1:
                rows[field.name] = parts[0]
            elif small:
                rows[field.name] = np.concatenate(parts)
            elif self._is_image(field) and (field.codec == "array" or jpeg_decoding().native):
                images[field.name] = self._encoded(field)
            else:
                return None
        return rows, images

    def _encoded(self, field: PackedField) -> EncodedImages:
        columns = self._columns[field.name]
        file = np.repeat(np.arange(len(self._files)), self._counts)
        place = np.stack([file, columns["offset"], columns["size"]], axis=1)
        codec: Literal["jpeg", "raw"] = "jpeg" if field.codec == "jpeg" else "raw"
        options = (codec, self._channels(field), self.max_pixels)
        size = np.ascontiguousarray(columns["shape"][:, :2])
        return EncodedImages(tuple(self._files), place, False, size, *options)
