"""Records that a source hands out with encoded images in them, as Grain's sources do."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxkern.core.failures import note
from jaxkern.core.progress import ProgressBar
from jaxkern.core.threads import num_threads
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.images.decoding import MAX_PIXELS, jpeg_decoding
from jaxkern.pipeline.sources.images.fields import Encoded, ImageColumn, OnBadRecord
from jaxkern.pipeline.sources.images.headers import Headers, Places, read_headers
from jaxkern.pipeline.sources.images.sources import EncodedSource
from jaxkern.pipeline.sources.source import record_arrays, stacked

_CHUNK = 256  # records whose bytes are held at once for their headers


class EncodedRecords(EncodedSource):
    """Records of which some fields are the bytes of encoded images, decoded in worker threads.

    For Grain's `RandomAccessDataSource` and any other source that is read in Python; what lies in
    memory or in files is an `Encoded` or `ImageFiles`, which native threads decode.

    Args:
      source: anything with ``len`` and ``[i]`` that gives dicts.
      fields: the names of those that are images: bytes, or uint8 [n].
      channels, max_pixels, on_bad_record: as for `ImageFiles`.
      max_size: (height, width) that no image exceeds; None reads every record, at the first use.
    Raises: `gather`: TypeError for a record that has no such field; ValueError that names a record
      that exceeds `max_size`.

    >>> import io, numpy as np, PIL.Image, jaxkern as jk
    >>> file = io.BytesIO()
    >>> PIL.Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(file, "png")
    >>> records = [{"image": file.getvalue(), "label": k} for k in range(3)]
    >>> source = jk.pipeline.EncodedRecords(records, max_size=(8, 8))
    >>> batch = next(iter(jk.from_source(source, 3)))
    >>> batch["image"].height.tolist(), batch["label"].tolist()
    ([4, 4, 4], [0, 1, 2])
    """

    def __init__(
        self,
        source: Any,
        fields: str | Sequence[str] = "image",
        channels: int = 3,
        max_size: tuple[int, int] | None = None,
        *,
        max_pixels: int = MAX_PIXELS,
        on_bad_record: OnBadRecord = "raise",
    ) -> None:
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        if not names:
            raise ValueError("fields is empty; wanted the name of at least one field")
        self.source = source
        self._gathering = threading.local()
        images = {
            name: _FieldOfRecords(
                self._encoded(name), len(source), channels, max_size, max_pixels, on_bad_record
            )
            for name in names
        }
        super().__init__(images, {})

    def __repr__(self) -> str:
        return f"EncodedRecords({type(self.source).__name__}; {len(self)} records)"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The decoded images as Ragged, and what else the records have, stacked."""
        numbers = records.tolist()
        rows = {record: self._record(record) for record in numbers}
        others = [{k: v for k, v in rows[r].items() if k not in self.images} for r in numbers]
        self._gathering.rows = rows
        try:
            data = super().gather(records)
        finally:
            del self._gathering.rows
        if any(others):
            arrays = [record_arrays(o, r, repr(self)) for o, r in zip(others, numbers, strict=True)]
            data = {**stacked(arrays, numbers, repr(self)), **data}
        return data

    def _record(self, record: int) -> dict[str, Any]:
        try:
            fields = self.source[record]
        except BaseException as error:
            note(error, "while reading record {} of {!r}", record, self)
            raise
        missing = [name for name in self.images if name not in fields]
        if missing:
            raise TypeError(
                f"record {record} of {self!r} has {sorted(fields)!r:.200} and no {missing[0]!r}; "
                "wanted a dict with every field of images"
            )
        return dict(fields)

    def _encoded(self, name: str) -> Callable[[int], Any]:
        def encoded(record: int) -> Any:
            rows = getattr(self._gathering, "rows", {})
            return (rows[record] if record in rows else self._record(record))[name]

        return encoded


class _FieldOfRecords(ImageColumn):
    def __init__(self, read: Callable[[int], Any], length: int, *options: Any) -> None:
        nowhere = np.broadcast_to(np.zeros(3, np.int64), (length, 3))
        super().__init__(Places((), nowhere, in_files=False), *options)
        self._read_one = read

    def name_of(self, record: int) -> str:
        return f"record {record}"

    def bytes_of(self, record: int) -> Any:
        return Encoded([self._read_one(record)]).bytes_of(0)

    def size_of(self, record: int) -> tuple[int, int] | None:
        return Encoded([self._read_one(record)], max_pixels=self.max_pixels).size_of(0)

    def _read(self) -> Headers:
        sizes = []
        with (
            ProgressBar(True, "headers", "record") as bar,
            concurrent.futures.ThreadPoolExecutor(num_threads()) as threads,
        ):
            for start in range(0, len(self), _CHUNK):
                records = range(start, min(start + _CHUNK, len(self)))
                part = Encoded([*threads.map(self.bytes_of, records)])
                sizes.append(read_headers(part.images).size)
                bar.update(records.stop, len(self))
        return dataclasses.replace(Headers.unknown(len(self)), size=np.concatenate(sizes))

    def native_problem(self) -> str:
        return "the records are read in Python"

    def remarks(self) -> list[str]:
        return [
            f"JPEG by {jpeg_decoding().name}, others by Pillow, in worker threads, for "
            f"{self.native_problem()}"
        ]
