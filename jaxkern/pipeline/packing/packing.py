"""Packing a source: threads encode its records, and one writes them in order, file by file."""

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
    """Writes a source's records into a packed file, which `from_source` reads through a map.

    Files appear whole, under their names, or not at all. A call that was interrupted or killed is
    continued by the same call, with the bytes of one that was not; the bytes do not depend on the
    number of threads.

    Args:
      source: as for `from_source`.
      path: of the file, NAME.jkp.
      format: "npy": all arrays as they are, of any shapes. "raw": the same, and `images` are
        uint8 [H, W, C] that may be resized. "jpeg:90": images as JPEG files of that quality; a
        source's own JPEG files are taken as they are where they are not to be resized.
      max_side: that no side of an image exceeds; larger ones are resized, antialiased, once.
      images: the fields that are images.
      shards: how many files to write instead, NAME-00000-of-00064.jkp and so on, each with the
        records behind those of the one before.
      threads: that read and encode; as many as there are cores if not given.
      overwrite: whether files that are there are replaced; otherwise they are errors.
      progress: whether to show a bar.
    Returns: the paths of the files.
    Raises:
      FileExistsError: for a file that is there, also one that another process finishes meanwhile;
        for a link in the place of a file that this writes.
      BlockingIOError: where another process packs it.
      TypeError, ValueError: for what cannot be packed, with its record; and what the source raises.

    >>> import tempfile, numpy as np, jaxkern as jk
    >>> path = tempfile.mkdtemp() + "/numbers.jkp"
    >>> [file] = jk.pipeline.pack({"x": np.arange(5.0)}, path, progress=False)
    >>> sorted(float(x) for batch in jk.from_source(path, 2, shuffle=True) for x in batch["x"])
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    if max_side is not None:
        max_side = check_integer("max_side", max_side, 1)
    threads = num_threads() if threads is None else check_integer("threads", threads, 1)
    form = PackFormat.of(format, max_side, images)
    reader = as_source(source)
    if len(reader) == 0:
        raise ValueError(f"the source {reader!r} is empty; wanted at least one record")
    paths = shard_paths(Path(path), len(reader), shards)
    _check_free(paths, overwrite)
    encoder = RecordEncoder(reader, form)
    about = _about(reader, form)
    found = _digest(reader, about, encoder)
    purpose = hashlib.blake2b(f"{found} {reader.describe()} {_files(reader, True)}".encode())
    with ProgressBar(progress, "packing", "records") as bar:
        bar.update(done=0, total=len(reader))
        for number, shard in enumerate(paths):
            records = range(
                len(reader) * number // len(paths), len(reader) * (number + 1) // len(paths)
            )
            metadata = about
            if shards is not None:
                metadata = {**about, "set": found, "shard": [number, len(paths)]}
                if not overwrite and os.path.lexists(shard):
                    _check_same(shard, metadata)  # of the call that this one continues
                    journal_of(shard).unlink(missing_ok=True)
                    continue
            with PackedWriter(
                shard, encoder.fields, len(records), purpose.digest(), overwrite
            ) as writer:
                bar.update(text=shard.name)
                try:
                    left = records[writer.done :]
                    for made in _encoded(encoder, left, threads):
                        for record in made:
                            writer.write(record)
                        bar.update(done=records.start + writer.done)
                except BaseException as error:
                    note(error, "{} of {} records are kept: the same call goes on behind them",
                         records.start + writer.done, len(reader))  # fmt: skip
                    raise
                writer.finish(metadata)
    return paths


def shard_paths(path: Path, records: int, shards: int | None) -> list[Path]:
    """The files of a set, or the one file."""
    if path.suffix != SUFFIX:
        raise ValueError(f"path is {path}; wanted a name that ends in {SUFFIX}")
    if shards is None:
        return [path]
    shards = check_integer("shards", shards, 1)
    if shards > records:
        raise ValueError(f"shards is {shards} and there are {records} records; wanted one in each")
    if shards > 99_999:
        raise ValueError(f"shards is {shards}; wanted up to 99999, the digits of their names")
    return [path.with_name(f"{path.stem}-{n:05}-of-{shards:05}{SUFFIX}") for n in range(shards)]


def _encoded(encoder: RecordEncoder, records: range, threads: int) -> Iterator[list[PackedRecord]]:
    """The records in order, encoded by threads a little ahead."""
    blocks = (records[i : i + encoder.block] for i in range(0, len(records), encoder.block))
    with concurrent.futures.ThreadPoolExecutor(threads, "jaxkern-pack") as pool:
        ahead: collections.deque[Any] = collections.deque()
        try:
            for block in blocks:
                ahead.append(pool.submit(encoder.encoded, block))
                if len(ahead) > 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _check_free(paths: Sequence[Path], overwrite: bool) -> None:
    """Raises where a file, or all of a set, is there; a part of a set may be continued."""
    if not overwrite and all(map(os.path.lexists, paths)):
        raise FileExistsError(
            f"{paths[0]} is there already; remove it, or use overwrite=True (--force)"
        )


def _check_same(path: Path, metadata: Mapping[str, Any]) -> None:
    if PackedSource(path).shard_metadata != metadata:
        raise FileExistsError(
            f"{path} is there already and is of another set; remove it, or use overwrite=True "
            "(--force)"
        )


def _about(source: BatchSource, form: PackFormat) -> dict[str, Any]:
    """What the files say of the whole; nothing of where or when they were made."""
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
    """Of the settings, and of what tells a source from another without reading it."""
    digest = hashlib.blake2b(digest_size=8)
    fields = [field.described() for field in encoder.fields]
    digest.update(json.dumps([about, len(source), fields, _files(source, False)]).encode())
    for record in (0, len(source) - 1):
        for value in encoder.encoded(range(record, record + 1))[0].values():
            digest.update(value.data if isinstance(value, Stored) else value.tobytes())
    return digest.hexdigest()


def _files(source: BatchSource, times: bool) -> list[Any]:
    """The files of a source of files: names below their folder, sizes, and times of change."""
    root = getattr(source, "root", "/")
    found: list[Any] = []
    for path in getattr(source, "files", ()):
        status = os.stat(path)
        found.append([os.path.relpath(path, root), status.st_size])
        if times:
            found[-1].append(status.st_mtime_ns)
    return found
