"""Source of packed files (.jkp): memory maps, with checksums verified at the first read."""

from __future__ import annotations

import bisect
import concurrent.futures
import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

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
from jaxkern.pipeline.sources.packed.files import Damage, PackedFile, check_same_set, packed_paths
from jaxkern.pipeline.sources.packed.layout import PackedField
from jaxkern.pipeline.sources.source import BatchSource, EncodedImages

_CONCATENATED_BYTES = 1 << 28  # maximum size of columns of several files that are concatenated
_RECORDS_PER_THREAD = 64  # minimum number of records per thread that verifies checksums


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
      on_bad_record: "raise": a damaged record is an error of its batch. "mask": the record is
        zeros, and a field "valid" (bool) is False there.
      max_pixels: maximum height * width of JPEG images; larger ones raise OSError before they are
        decoded.

    Attributes:
      paths: paths of the files.

    Raises:
      FileNotFoundError: a file does not exist, or a shard is missing.
      ValueError: a file is not a packed file, has a newer version, or is truncated or damaged; the
        message names it. Reads of damaged records raise ValueError, too.

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
        if channels not in (None, *CHANNELS):
            raise ValueError(f"channels={channels}; expected 1, 3, 4 or None")
        if verify not in ("first", "never"):
            raise ValueError(f"verify is {verify!r}; expected 'first' or 'never'")
        if on_bad_record not in ("raise", "mask"):
            raise ValueError(f"on_bad_record is {on_bad_record!r}; expected 'raise' or 'mask'")
        self.paths = packed_paths(path)
        self.channels = channels
        self.max_pixels = check_integer("max_pixels", max_pixels, 1)
        self.on_bad_record = on_bad_record
        self._shards = [PackedFile(path) for path in self.paths]
        check_same_set(self._shards)
        self._ends = np.cumsum([shard.index.records for shard in self._shards]).tolist()
        self._fields = self._shards[0].index.fields
        self._shapes = {field.name: self._shape_of(field) for field in self._fields}
        self._unread = None if verify == "never" else np.ones(len(self), bool)

    def __len__(self) -> int:
        return int(self._ends[-1])

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

    @property
    def shard_metadata(self) -> Mapping[str, Any]:
        """Return the metadata of the first file, including its position in a set."""
        self._check_open()
        return self._shards[0].index.metadata

    @property
    def fields(self) -> tuple[PackedField, ...]:
        """Return how each field is stored."""
        return self._fields

    @functools.cached_property
    def digest(self) -> str:
        """Return a digest of all values, independent of the number of files."""
        self._check_mapped(range(len(self._shards)))
        digest = hashlib.blake2b(digest_size=8)
        for field in self._fields:
            digest.update(f"{field.name} {field.codec} {field.dtype} {len(field.shape)}".encode())
            for name in field.columns:
                if name != "offset":
                    for shard in self._shards:
                        digest.update(shard.index.columns[field.name][name].tobytes())
        return digest.hexdigest()

    def info(self) -> dict[str, Any]:
        """Describe the contents of the files as JSON-compatible values."""
        self._check_open()
        fields = []
        for field in self._fields:
            columns = [shard.index.columns[field.name] for shard in self._shards]
            if field.codec == "column":
                size = sum(part["value"].nbytes for part in columns)
                low = high = list(field.shape)
            else:
                size = sum(int(part["size"].sum()) for part in columns)
                low = np.min([part["shape"].min(axis=0) for part in columns], axis=0).tolist()
                high = np.max([part["shape"].max(axis=0) for part in columns], axis=0).tolist()
            shapes = str(low) if low == high else f"{low} to {high}"
            fields.append({**field.as_dict(), "shapes": shapes, "bytes": size})
        return {
            "files": [str(path) for path in self.paths],
            "records": len(self),
            "bytes": sum(shard.file.size for shard in self._shards),
            "digest": self.digest,
            "metadata": dict(self.metadata),
            "fields": fields,
        }

    def close(self) -> None:
        """Close the files; arrays that refer to a map keep it open. Idempotent."""
        self._shards = []
        self.__dict__.pop("_native", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        self._check_open()
        valid = self._valid(records)
        data: Data = {}
        for field in self._fields:
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
        codecs = {field.name: field.codec for field in self._fields}
        if codecs.get(field) != "jpeg":
            return None
        self.check(np.array([record]))
        file, row = self._locate(record)
        return file.stored(field, row).tobytes()

    def remarks(self) -> Sequence[str]:
        decoder = jpeg_decoding()
        why = f" ({decoder.reason})" if decoder.reason else ""
        jpeg = [field.name for field in self._fields if field.codec == "jpeg"]
        return [f"{name}: packed JPEG by {decoder.name}{why}" for name in jpeg]

    def check(self, records: np.ndarray) -> None:
        """Raise ValueError for the first damaged record.

        Each record is verified once. Native threads rely on this before they read the maps.
        """
        self._check_open()
        self._check_mapped(np.unique(self._shard_numbers(records)).tolist())
        if self._unread is None:
            return
        unread = records[self._unread[records]]
        parts = np.array_split(unread, min(num_threads(), 1 + len(unread) // _RECORDS_PER_THREAD))
        if len(parts) == 1:
            damages = [self._first_damage(unread)]
        else:  # concurrent reads from the disk
            with concurrent.futures.ThreadPoolExecutor(len(parts)) as threads:
                damages = list(threads.map(self._first_damage, parts))
        for damage in damages:
            if damage is not None:
                raise ValueError(str(damage))

    def damaged(self, progress: Any = None) -> Iterator[Damage]:
        """Yield all damaged records in order; read all records with several threads.

        Args:
          progress: called with the number of verified records.
        """
        self._check_open()
        self._check_mapped(range(len(self._shards)))
        blocks = [range(i, min(i + 64, len(self))) for i in range(0, len(self), 64)]
        with concurrent.futures.ThreadPoolExecutor(num_threads()) as threads:
            damages = threads.map(lambda block: [self._damage(r) for r in block], blocks)
            for block, results in zip(blocks, damages, strict=True):
                yield from (damage for damage in results if damage)
                if progress is not None:
                    progress(block.stop)

    def _check_open(self) -> None:
        if not self._shards:
            raise ValueError(f"{self.paths[0]} was closed")

    def _check_mapped(self, shards: Iterable[int]) -> None:
        for number in shards:
            check_mapped("the source", self._shards[number].file)

    def _shape_of(self, field: PackedField) -> tuple[int, ...] | None:
        if field.codec == "column":
            return field.shape
        if field.codec == "jpeg":
            return None
        shapes = [shard.index.columns[field.name]["shape"] for shard in self._shards]
        first = shapes[0][0]
        return tuple(first.tolist()) if all((part == first).all() for part in shapes) else None

    def _channels(self, field: PackedField) -> int:
        if field.codec == "jpeg":
            return self.channels or field.shape[2]
        return int(self._shards[0].index.columns[field.name]["shape"][0, 2])

    def _is_image(self, field: PackedField) -> bool:
        """True if records are images that may differ in size but not in channels."""
        if field.codec == "jpeg":
            return True
        if field.codec != "array" or field.dtype != np.uint8 or len(field.shape) != 3:
            return False
        shapes = [shard.index.columns[field.name]["shape"] for shard in self._shards]
        channels = shapes[0][0, 2]
        return channels in CHANNELS and all(
            (part[:, 2] == channels).all() and (part > 0).all() for part in shapes
        )

    @functools.cached_property
    def _largest(self) -> dict[str, tuple[int, int]]:
        """Return field -> maximum (height, width)."""
        largest = {}
        for field in self._fields:
            if field.codec != "column" and len(field.shape) >= 2:
                sides = [s.index.columns[field.name]["shape"].max(axis=0) for s in self._shards]
                height, width, *_ = np.max(sides, axis=0).tolist()
                largest[field.name] = (height, width)
        return largest

    def _shard_numbers(self, records: np.ndarray) -> np.ndarray:
        outside = records[(records < 0) | (records >= len(self))]
        if outside.size:
            raise IndexError(f"record {outside[0]} is out of range for {self!r}")
        return np.searchsorted(self._ends, records, side="right")

    def _locate(self, record: int) -> tuple[PackedFile, int]:
        number = bisect.bisect_right(self._ends, record)
        return self._shards[number], record - (self._ends[number - 1] if number else 0)

    def _damage(self, record: int) -> Damage | None:
        file, row = self._locate(record)
        damage = file.damage(row)
        return None if damage is None else Damage(file.path, record, *damage)

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
        except ValueError:
            if self.on_bad_record == "raise":
                raise
            return np.array([self._damage(record) is None for record in records.tolist()])
        return np.ones(len(records), bool)

    def _gather_field(
        self, field: PackedField, records: np.ndarray, valid: np.ndarray, out: np.ndarray | None
    ) -> Any:
        shape = self._shapes[field.name]
        if shape is None and self._is_image(field):
            pixels = [self._image(field, r, row, valid) for row, r in enumerate(records.tolist())]
            return ragged_of(pixels, *self._largest[field.name])
        if shape is None:
            first, row = self._locate(int(records[0]))
            shape = first.shape(field.name, row)
        if out is None or out.shape != (len(records), *shape):
            out = canonical(np.empty((len(records), *shape), field.dtype.newbyteorder("=")))
        numbers = self._shard_numbers(records)
        for number in np.unique(numbers).tolist():
            selected = np.flatnonzero(numbers == number)
            rows = records[selected] - (self._ends[number - 1] if number else 0)
            array = self._shards[number].rows(field, self._shapes[field.name])
            if array is not None:
                out[selected] = array[rows]
                continue
            for position, row in zip(selected.tolist(), rows.tolist(), strict=True):
                value = self._shards[number].array(field, row)
                if value.shape != shape:
                    raise ValueError(
                        f"record {records[position]} of {self!r} has {field.name!r} of shape "
                        f"{value.shape} and record {records[0]} of shape {shape}; read batches of 1"
                    )
                out[position] = value
        if field.codec != "column":  # columns are part of the verified index
            out[~valid] = 0
        return out

    def _image(self, field: PackedField, record: int, row: int, valid: np.ndarray) -> np.ndarray:
        """Return uint8 [H, W, C]; zeros if invalid. Set `valid` to False if decoding fails."""
        file, index = self._locate(record)
        shape = file.shape(field.name, index)
        if field.codec == "array":
            return file.array(field, index) if valid[row] else np.zeros(shape, np.uint8)
        channels = self._channels(field)
        if valid[row]:
            name = f"record {record}, field {field.name!r}, of {file.path}"
            try:
                pixels = decode_image(
                    file.stored(field.name, index).data, channels, self.max_pixels, name
                )
                if pixels.shape[:2] == shape:
                    return pixels
                raise ValueError(
                    f"{name}: the image is {pixels.shape[:2]}, but the index has {shape}"
                )
            except Exception as error:
                if self.on_bad_record == "raise" or not is_image_error(error):
                    raise
                valid[row] = False
        if math.prod(shape) > self.max_pixels:  # a damaged index may have any shape
            shape = (1, 1)
        return np.zeros((*shape, channels), np.uint8)

    @functools.cached_property
    def _native(self) -> tuple[dict[str, np.ndarray], dict[str, EncodedImages]] | None:
        if type(self).gather is not PackedSource.gather or self.on_bad_record == "mask":
            return None
        rows, images = {}, {}
        for field in self._fields:
            array = self._as_array(field)
            if array is not None:
                rows[field.name] = array
            elif self._is_image(field) and (field.codec == "array" or jpeg_decoding().native):
                images[field.name] = self._encoded(field)
            else:
                return None
        return rows, images

    def _as_array(self, field: PackedField) -> np.ndarray | None:
        if len(self._shards) == 1:
            return self._shards[0].rows(field, self._shapes[field.name])
        if field.codec != "column":
            return None
        parts = [shard.index.columns[field.name]["value"] for shard in self._shards]
        is_small = sum(part.nbytes for part in parts) <= _CONCATENATED_BYTES
        return np.concatenate(parts) if is_small else None

    def _encoded(self, field: PackedField) -> EncodedImages:
        columns = [shard.index.columns[field.name] for shard in self._shards]
        place = [
            np.stack([np.full_like(part["size"], n), part["offset"], part["size"]], axis=1)
            for n, part in enumerate(columns)
        ]
        size = np.concatenate([part["shape"][:, :2] for part in columns])
        blobs = tuple(shard.file for shard in self._shards)
        codec: Literal["jpeg", "raw"] = "jpeg" if field.codec == "jpeg" else "raw"
        options = (codec, self._channels(field), self.max_pixels)
        return EncodedImages(blobs, np.concatenate(place), False, size, *options)
