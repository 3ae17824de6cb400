"""Small files in the formats that pipelines read, made by each format's own library."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image


def encoded(image: np.ndarray, kind: str = "png", **options: Any) -> bytes:
    """Encode an image [H, W, C]."""
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, kind, **options)
    return file.getvalue()


def write_tar(path: Path, samples: Sequence[tuple[str, Mapping[str, bytes]]]) -> Path:
    """Write a WebDataset shard of (name, {extension: bytes}) samples."""
    with tarfile.open(path, "w") as tar:
        for name, members in samples:
            for ending, data in members.items():
                info = tarfile.TarInfo(f"{name}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def write_arrow(path: Path, table: Any, rows: int = 10, stream: bool = False) -> Path:
    """Write an Arrow file or stream with `rows` rows per batch."""
    import pyarrow as pa

    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_array_record(path: Path, records: Sequence[bytes]) -> Path:
    """Write an ArrayRecord file."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write_tfrecord(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write a TFRecord file of tf.train.Example: bytes, lists of int or of float."""
    import tfrecord

    kinds = {bytes: "byte", int: "int", float: "float"}
    writer = tfrecord.TFRecordWriter(str(path))
    for record in records:
        writer.write(
            {
                name: (value, kinds[type(value[0] if isinstance(value, list) else value)])
                for name, value in record.items()
            }
        )
    writer.close()
    return path


def savez(**arrays: Any) -> bytes:
    """Return an archive of `numpy.savez` as bytes."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    assert zipfile.is_zipfile(file)
    return file.getvalue()
