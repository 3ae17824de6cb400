"""Packing of a source: threads encode records, and one thread writes them in order."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import io
import json
import os
import re
import types
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import check_mapped
from jaxkern.core.failures import note
from jaxkern.core.paths import OutputInUse
from jaxkern.core.progress import ProgressBar
from jaxkern.core.tasks import choose_engine
from jaxkern.core.threads import num_threads
from jaxkern.core.version import __version__
from jaxkern.pipeline.packing.writer import PackedRecord, PackedWriter, Stored, journal_of
from jaxkern.pipeline.rows import row_of
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.combined import Subset
from jaxkern.pipeline.sources.files import is_url
from jaxkern.pipeline.sources.images.decoding import CHANNELS, jpeg_size
from jaxkern.pipeline.sources.packed.layout import SUFFIX, Codec, PackedField, can_store
from jaxkern.pipeline.sources.packed.source import PackedSource
from jaxkern.pipeline.sources.source import BatchSource, RecordSource
from jaxkern.ring import RowParts

_COLUMN_BYTES = 256  # maximum size of rows of fixed shapes that are stored in the index
_BLOCK_BYTES = 1 << 20
_OPENERS = (types.FunctionType, functools.partial)  # types of functions that open a source
_FORMAT = re.compile(r"(raw|npy|jpeg)(?::(\d+))?\Z")


def pack(
    source: Any,
    path: str | os.PathLike[str],
    *,
    format: str = "npy",
    max_side: int | None = None,
    images: Sequence[str] = ("image",),
    shards: int | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    engine: Any = None,
    scheduler: str | None = None,
    workers: int | None = None,
) -> list[Path]:
    """Write the records of a source to a packed file, which `from_source` maps into memory.

    Files appear under their names only when complete. The same call resumes one that was
    interrupted or killed, with bit-identical results. The bytes do not depend on the number of
    threads.

    Args:
      source: as for `from_source`.
      path: path of the file, NAME.jkp.
      format: "npy": arrays of any shapes, unchanged. "raw": the same, and `images` are uint8
        [H, W, C] that may be resized. "jpeg:90": images as JPEG files of this quality; JPEG files
        of the source are copied unless they must be resized.
      max_side: maximum side of images; larger ones are resized once, antialiased.
      images: names of the image fields.
      shards: number of files to write instead, NAME-00000-of-00064.jkp and so on, with consecutive
        records.
      threads: number of threads that read and encode; by default the number of cores.
      overwrite: if True, replace existing files; otherwise they are errors.
      progress: if True, show a progress bar.
      engine: "dask" or a ``distributed.Client``: its workers write one shard at a time each, with
        the same bytes. The source is a path, or a function without arguments that opens it, such
        as ``functools.partial(ImageFolder, "/photos")``; all workers must have the files. A shard
        whose worker was killed is resumed by another one.
      scheduler, workers: address of a scheduler, or its file; or the number of processes of a
        cluster on this machine.

    Returns:
      The paths of the files.

    Raises:
      FileExistsError: a file exists, or another process finished it first, or a file to write is a
        link.
      BlockingIOError: another process is packing the file.
      TypeError, ValueError: a record cannot be packed; and exceptions of the source.

    >>> import tempfile, numpy as np, jaxkern as jk
    >>> path = tempfile.mkdtemp() + "/numbers.jkp"
    >>> [file] = jk.pipeline.pack({"x": np.arange(5.0)}, path, progress=False)
    >>> sorted(float(x) for batch in jk.from_source(path, 2, shuffle=True) for x in batch["x"])
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    if max_side is not None:
        max_side = check_integer("max_side", max_side, 1)
    if threads is not None:
        check_integer("threads", threads, 1)
    if engine is not None:
        if shards is None:
            raise ValueError("shards is None; expected the number of files that the engine writes")
        path = os.path.abspath(path)  # workers have other working directories
        if isinstance(source, str | os.PathLike) and not is_url(source):
            source = os.path.abspath(os.path.expanduser(source))
        elif not (is_url(source) or isinstance(source, _OPENERS)):
            raise TypeError(
                f"source is {source!r:.80}; with an engine, expected a path, or a function without "
                "arguments that opens the source, such as functools.partial(ImageFolder, path)"
            )
    runner = choose_engine(engine, scheduler, workers)
    job = _Job(source, Path(path), format, max_side, tuple(images), shards, threads, overwrite)
    if not overwrite and all(map(os.path.lexists, job.paths)):  # a part of a set may be resumed
        raise _exists(job.paths[0])
    with ProgressBar(progress, "packing", "records") as bar:
        bar.update(done=0, total=len(job.reader))
        if engine is None:
            for number in range(len(job.paths)):
                job.write(number, bar)
            return job.paths
        done, common = 0, (dataclasses.replace(job), job.digest)
        with runner as run_all:
            for _, result in run_all(_pack_shard, range(len(job.paths)), common, 1):
                if isinstance(result, BaseException):
                    raise result
                bar.update(done=(done := done + result))
    return job.paths


def _pack_shard(number: int, common: tuple[_Job, str]) -> int:
    """Write a shard on a worker, and return its number of records."""
    job, digest = common
    if job.digest != digest:
        raise RuntimeError(f"the worker has another version of jaxkern or of {job.reader!r}")
    try:
        return job.write(number, ProgressBar(False, "", ""))
    except BlockingIOError as error:
        raise OutputInUse(str(error)) from error


@dataclasses.dataclass
class _Job:
    """The arguments of `pack`, and what they determine."""

    source: Any
    path: Path
    format: str
    max_side: int | None
    images: tuple[str, ...]
    shards: int | None
    threads: int | None
    overwrite: bool

    @functools.cached_property
    def reader(self) -> BatchSource:
        reader = as_source(self.source() if isinstance(self.source, _OPENERS) else self.source)
        if len(reader) == 0:
            raise ValueError(f"the source {reader!r} is empty; expected at least one record")
        return reader

    @functools.cached_property
    def paths(self) -> list[Path]:
        return shard_paths(self.path, len(self.reader), self.shards)

    @functools.cached_property
    def encoder(self) -> RecordEncoder:
        return RecordEncoder(self.reader, self.format, self.max_side, self.images)

    @functools.cached_property
    def digest(self) -> str:
        return _digest(self.reader, _about(self.reader, self.encoder), self.encoder)

    def write(self, number: int, bar: ProgressBar) -> int:
        """Write a file unless it exists, and return its number of records."""
        reader, encoder, shard = self.reader, self.encoder, self.paths[number]
        first, last = (len(reader) * n // len(self.paths) for n in (number, number + 1))
        records = range(first, last)
        metadata = _about(reader, encoder)
        if self.shards is not None:
            metadata |= {"set": self.digest, "shard": [number, len(self.paths)]}
            if not self.overwrite and os.path.lexists(shard):
                # It was written by the call that this one resumes, or belongs to another set.
                if PackedSource(shard).shard_metadata != metadata:
                    raise _exists(shard)
                journal_of(shard).unlink(missing_ok=True)
                return len(records)
        purpose = f"{self.digest} {reader.describe()} {_files(reader, True)}".encode()
        settings = (len(records), hashlib.blake2b(purpose).digest(), self.overwrite)
        with PackedWriter(shard, encoder.fields, *settings) as writer:
            bar.update(text=shard.name)
            try:
                threads = self.threads or num_threads()
                for block in _encode(encoder, records[writer.done :], threads):
                    for record in block:
                        writer.write(record)
                    bar.update(done=records.start + writer.done)
            except BaseException as error:
                note(error, "{} of {} records are written: the same call resumes after them",
                     records.start + writer.done, len(reader))  # fmt: skip
                raise
            writer.finish(metadata)
        return len(records)


def shard_paths(path: Path, records: int, shards: int | None) -> list[Path]:
    """Return the paths of the files."""
    if path.suffix != SUFFIX:
        raise ValueError(f"path is {path}; expected a name that ends in {SUFFIX}")
    if shards is None:
        return [path]
    shards = check_integer("shards", shards, 1, min(records, 99_999), ", and a record in each")
    return [path.with_name(f"{path.stem}-{n:05}-of-{shards:05}{SUFFIX}") for n in range(shards)]


def _encode(encoder: RecordEncoder, records: range, threads: int) -> Iterator[list[PackedRecord]]:
    """Yield blocks of records in order, encoded by threads slightly ahead."""
    blocks = (records[i : i + encoder.block] for i in range(0, len(records), encoder.block))
    with concurrent.futures.ThreadPoolExecutor(threads, "jaxkern-pack") as pool:
        ahead: collections.deque[Any] = collections.deque()
        try:
            for block in blocks:
                ahead.append(pool.submit(encoder.encode, block))
                if len(ahead) > 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _exists(path: Path) -> FileExistsError:
    return FileExistsError(f"{path} already exists; remove it, or use overwrite=True (--force)")


def _about(source: BatchSource, encoder: RecordEncoder) -> dict[str, Any]:
    about: dict[str, Any] = {"format": encoder.format, "jaxkern": __version__}
    if encoder.max_side is not None:
        about["max_side"] = encoder.max_side
    while isinstance(source, Subset):
        source = source.source
    packed = source.metadata if isinstance(source, PackedSource) else {}
    classes = getattr(source, "classes", packed.get("classes"))
    if classes is not None:
        about["classes"] = [str(name) for name in classes]
    return about


def _digest(source: BatchSource, about: dict[str, Any], encoder: RecordEncoder) -> str:
    digest = hashlib.blake2b(digest_size=8)
    fields = [field.as_dict() for field in encoder.fields]
    digest.update(json.dumps([about, len(source), fields, _files(source, False)]).encode())
    for record in (0, len(source) - 1):
        for value in encoder.encode(range(record, record + 1))[0].values():
            digest.update(value.data if isinstance(value, Stored) else value.tobytes())
    return digest.hexdigest()


def _files(source: BatchSource, times: bool) -> list[Any]:
    root = getattr(source, "root", "/")
    stats = [(os.path.relpath(path, root), os.stat(path)) for path in getattr(source, "files", ())]
    return [[name, s.st_size, *([s.st_mtime_ns] if times else [])] for name, s in stats]


class RecordEncoder:
    """Encodes records of a source, with the arguments of `pack`; called from several threads."""

    def __init__(
        self, source: BatchSource, format: str, max_side: int | None, images: Sequence[str]
    ) -> None:
        match = _FORMAT.match(format) if isinstance(format, str) else None
        if match is None or (match[2] and match[1] != "jpeg"):
            raise ValueError(f"format is {format!r}; expected 'npy', 'raw', 'jpeg' or 'jpeg:90'")
        self._quality = int(match[2] or 90)
        if not 1 <= self._quality <= 100:
            raise ValueError(f"format is {format!r}; expected a quality from 1 to 100")
        self._jpeg = match[1] == "jpeg"
        self.format = f"jpeg:{self._quality}" if self._jpeg else match[1]
        if self.format == "npy" and max_side is not None:
            raise ValueError(f"max_side is {max_side}, but format 'npy' stores arrays unchanged")
        self.max_side, self._images = max_side, () if self.format == "npy" else tuple(images)
        self._source = source
        self._arrays = {} if source.encoded_images() else source.row_arrays() or {}
        first = self._record(0)
        if self.format != "npy" and (not images or not first.keys() >= {*images}):
            raise ValueError(
                f"format {format} packs the images {[*images]}, and the fields are {[*first]}; "
                "name the fields that are images, or use format 'npy'"
            )
        self.fields = tuple(self._field(name, value) for name, value in first.items())
        size = max(1, sum(value.nbytes for value in first.values()))
        #: number of records that are encoded together
        self.block = max(1, min(256, _BLOCK_BYTES // size)) if self._arrays else 1

    def encode(self, records: range) -> list[PackedRecord]:
        """Encode records."""
        encoded = []
        with jax.enable_x64(True):  # preserves 64-bit numbers
            for record in records:
                try:
                    encoded.append(self._encode(record))
                except BaseException as error:
                    note(error, "while packing record {} of {!r}", record, self._source)
                    raise
        return encoded

    def _encode(self, record: int) -> PackedRecord:
        values, names = self._record(record), [field.name for field in self.fields]
        if values.keys() != set(names):
            raise ValueError(f"record {record} has the fields {list(values)} and record 0 {names}")
        readable = bool(np.all(values.get("valid", True)))  # otherwise the pixels are zeros
        return {
            field.name: self._stored(field, record, values[field.name], readable)
            for field in self.fields
        }

    def _stored(
        self, field: PackedField, record: int, value: np.ndarray, readable: bool
    ) -> np.ndarray | Stored:
        self._check(field, record, value)
        if field.name in self._images:
            limit = self.max_side
            small = limit is None or max(value.shape[:2]) <= limit
            if field.codec == "jpeg" and readable and small:
                jpeg = self._source.encoded_bytes(field.name, record)
                if jpeg is not None and jpeg_size(jpeg) == value.shape[:2]:  # avoids a second loss
                    return _with_checksum(jpeg, value.shape[:2])
            value = value if small else resize(value, limit or 0)
            if field.codec == "jpeg":
                file = io.BytesIO()
                _pillow(value).save(file, "JPEG", quality=self._quality)
                return _with_checksum(file.getvalue(), value.shape[:2])
        value = np.asarray(value, field.dtype, order="C")
        if field.codec == "column":
            return value
        return _with_checksum(value.reshape(-1).view(np.uint8).data, value.shape)

    def _check(self, field: PackedField, record: int, value: np.ndarray) -> None:
        same = value.dtype.newbyteorder("<") == field.dtype and value.ndim == len(field.shape)
        if field.codec == "column":
            same = same and value.shape == field.shape
        elif field.name in self._images:
            same = same and value.shape[2] == field.shape[2] and value.size > 0
        if not same:
            raise ValueError(
                f"record {record} has {field.name!r} {value.dtype}{list(value.shape)} and record 0 "
                f"{field.dtype}{list(field.shape)}; expected equal dtypes, dimensions and channels"
            )

    def _field(self, name: str, value: np.ndarray) -> PackedField:
        if not can_store(value.dtype):
            raise TypeError(f"field {name!r} has dtype {value.dtype}; expected a dtype of JAX")
        codec: Codec = "array"
        shape = (0,) * value.ndim
        if name in self._images:
            if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] not in CHANNELS:
                raise ValueError(
                    f"field {name!r} is {value.dtype}{list(value.shape)}; expected uint8 [H, W, C] "
                    "with 1, 3 or 4 channels, or format 'npy'"
                )
            shape = (0, 0, value.shape[2])
            if self._jpeg and value.shape[2] == 4:
                raise ValueError(f"field {name!r} has 4 channels; use format 'raw'")
            codec = "jpeg" if self._jpeg else "array"
        elif value.ndim == 0 or (name in self._arrays and value.nbytes <= _COLUMN_BYTES):
            codec, shape = "column", value.shape
        return PackedField(name, codec, value.dtype.newbyteorder("<"), shape)

    def _record(self, record: int) -> dict[str, np.ndarray]:
        if self._arrays:
            records = np.array([record])
            self._source.check(records)
            row = self._source.rows_of(records)
            values = {}
            for name, array in self._arrays.items():
                if isinstance(array, RowParts):
                    values[name] = array.take(row)[0]
                else:
                    check_mapped(f"field {name!r}", array)
                    values[name] = np.asarray(array[row[0]])
            return values
        with jax.enable_x64(True):
            if isinstance(self._source, RecordSource):
                return self._source.record(record)
            data = row_of(self._source.gather(np.array([record])), 0)
        return {name: np.asarray(value) for name, value in data.items()}


def resize(image: np.ndarray, max_side: int) -> np.ndarray:
    """Resize uint8 [H, W, C] to a longer side of `max_side`, with the same aspect ratio."""
    from PIL.Image import Resampling

    height, width = image.shape[:2]
    scale = max_side / max(height, width)
    size = tuple(max(1, round(side * scale)) for side in (width, height))
    small = np.asarray(_pillow(image).resize(size, Resampling.LANCZOS))
    return small.reshape(size[1], size[0], image.shape[2])


def _pillow(image: np.ndarray) -> Any:
    import PIL.Image

    pixels = np.ascontiguousarray(image)
    return PIL.Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _with_checksum(data: Any, shape: tuple[int, ...]) -> Stored:
    return Stored(data, tuple(shape), zlib.crc32(data))
