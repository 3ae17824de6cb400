"""Packing of a source: threads encode records, and one thread writes them in order."""

from __future__ import annotations

import collections
import concurrent.futures
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxkern.core.arguments import check_integer
from jaxkern.core.failures import note
from jaxkern.core.progress import ProgressBar
from jaxkern.core.threads import num_threads
from jaxkern.core.version import __version__
from jaxkern.pipeline.packing.records import PackedRecord, PackFormat, RecordEncoder, Stored
from jaxkern.pipeline.packing.writer import PackedWriter, journal_of
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.combined import Subset
from jaxkern.pipeline.sources.packed.layout import SUFFIX
from jaxkern.pipeline.sources.packed.source import PackedSource
from jaxkern.pipeline.sources.source import BatchSource


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
    threads = num_threads() if threads is None else check_integer("threads", threads, 1)
    form = PackFormat.parse(format, max_side, images)
    reader = as_source(source)
    if len(reader) == 0:
        raise ValueError(f"the source {reader!r} is empty; expected at least one record")
    paths = shard_paths(Path(path), len(reader), shards)
    _check_free(paths, overwrite)
    encoder = RecordEncoder(reader, form)
    about = _about(reader, form)
    digest = _digest(reader, about, encoder)
    purpose = hashlib.blake2b(f"{digest} {reader.describe()} {_files(reader, True)}".encode())
    with ProgressBar(progress, "packing", "records") as bar:
        bar.update(done=0, total=len(reader))
        for number, shard in enumerate(paths):
            records = range(
                len(reader) * number // len(paths), len(reader) * (number + 1) // len(paths)
            )
            metadata = about
            if shards is not None:
                metadata = {**about, "set": digest, "shard": [number, len(paths)]}
                if not overwrite and os.path.lexists(shard):
                    _check_same(shard, metadata)  # written by the call that this one resumes
                    journal_of(shard).unlink(missing_ok=True)
                    continue
            with PackedWriter(
                shard, encoder.fields, len(records), purpose.digest(), overwrite
            ) as writer:
                bar.update(text=shard.name)
                try:
                    remaining = records[writer.done :]
                    for block in _encode(encoder, remaining, threads):
                        for record in block:
                            writer.write(record)
                        bar.update(done=records.start + writer.done)
                except BaseException as error:
                    note(error, "{} of {} records are written: the same call resumes after them",
                         records.start + writer.done, len(reader))  # fmt: skip
                    raise
                writer.finish(metadata)
    return paths


def shard_paths(path: Path, records: int, shards: int | None) -> list[Path]:
    """Return the paths of the files."""
    if path.suffix != SUFFIX:
        raise ValueError(f"path is {path}; expected a name that ends in {SUFFIX}")
    if shards is None:
        return [path]
    shards = check_integer("shards", shards, 1)
    if shards > records:
        raise ValueError(f"shards is {shards}; expected at most {records}, the number of records")
    if shards > 99_999:
        raise ValueError(f"shards is {shards}; expected at most 99999")
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


def _check_free(paths: Sequence[Path], overwrite: bool) -> None:
    """Raise if the file, or all files of a set, exist; a part of a set may be resumed."""
    if not overwrite and all(map(os.path.lexists, paths)):
        raise FileExistsError(
            f"{paths[0]} already exists; remove it, or use overwrite=True (--force)"
        )


def _check_same(path: Path, metadata: Mapping[str, Any]) -> None:
    if PackedSource(path).shard_metadata != metadata:
        raise FileExistsError(
            f"{path} already exists and belongs to another set; remove it, or use overwrite=True "
            "(--force)"
        )


def _about(source: BatchSource, form: PackFormat) -> dict[str, Any]:
    about: dict[str, Any] = {"format": str(form), "jaxkern": __version__}
    if form.max_side is not None:
        about["max_side"] = form.max_side
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
    entries: list[Any] = []
    for path in getattr(source, "files", ()):
        status = os.stat(path)
        entries.append([os.path.relpath(path, root), status.st_size])
        if times:
            entries[-1].append(status.st_mtime_ns)
    return entries
