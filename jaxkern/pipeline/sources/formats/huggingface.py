"""Hugging Face data sets: the Arrow table behind a `datasets.Dataset`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from jaxkern.pipeline.sources.files import import_extra
from jaxkern.pipeline.sources.formats.arrow import columns_of
from jaxkern.pipeline.sources.formats.columns import (
    Bytes,
    Chunks,
    Column,
    ColumnSource,
    Decode,
    ImageOptions,
    masks,
)
from jaxkern.pipeline.sources.source import BatchSource, RecordSource

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}  # of what `Image(mode=...)` wants


class HuggingFaceSource(ColumnSource):
    """The rows of a `datasets.Dataset`, read from its Arrow table without a copy.

    Columns are fields as in `ArrowSource`, whatever container its format has ("numpy", "torch",
    ...): `Image` features are encoded images, which become a `jaxkern.image.Ragged`, `ClassLabel`
    whole numbers. What `select`, `shuffle`, `train_test_split` and the like have picked comes in
    that order, and of the format its columns.

    `from_source` reads a data set with a transform (`with_transform`), or a format that has
    arguments, through the data set itself, record by record.

    Args:
      dataset: with a length: one split, no `DatasetDict` and no `IterableDataset`.
      columns, decoders, images: as for `ArrowSource`; `channels` are those of ``Image(mode=...)``
        where they are not given.

    Attributes:
      bad_images: (field, record) -> error of each image that did not decode, where masked.

    Raises: ImportError without datasets; TypeError for what is no such data set, one with a
      transform, and columns that are neither numbers nor images; ValueError for missing values.
    """

    def __init__(
        self,
        dataset: Any,
        columns: Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        **images: Unpack[ImageOptions],
    ) -> None:
        _check(dataset)
        if _is_transformed(dataset):
            raise TypeError(
                f"the data set has the format {dataset.format['type']!r} with "
                f"{sorted(dataset.format['format_kwargs'])}; wanted none that changes values: "
                "from_source(dataset) reads it through the data set itself"
            )
        names = dataset.format["columns"] if columns is None else columns
        of_images = [
            name for name, kind in dataset.features.items() if type(kind).__name__ == "Image"
        ]
        where = "the data set"
        table = dataset.data.table
        found = columns_of([(where, table, None)], names, decoders or {}, masks(images), of_images)
        self._picked = ""
        if dataset._indices is not None:
            rows = dataset._indices.table.column(0).to_numpy().astype(np.int64)
            if len(rows) and rows.max() >= table.num_rows:
                raise ValueError(f"{where} picks row {rows.max()} of {table.num_rows}")
            found = {name: _picked(column, rows) for name, column in found.items()}
            self._picked = f"#{zlib.crc32(rows.tobytes()):08x}"
        if len(dataset) == 0:
            raise ValueError(f"{where} has no rows")
        modes = [str(getattr(dataset.features[name], "mode", None)) for name in found]
        if wanted := [_CHANNELS[mode] for mode in modes if mode in _CHANNELS]:
            images.setdefault("channels", max(wanted))
        super().__init__(found, _name_of, **images)

    def describe(self) -> str:
        """With the rows that were picked: another shuffle is another source."""
        return super().describe() + self._picked


def huggingface_source(dataset: Any) -> BatchSource:
    """A data set as a source: of its table, or of itself where it transforms its records."""
    _check(dataset)
    return RecordSource(dataset) if _is_transformed(dataset) else HuggingFaceSource(dataset)


def _name_of(record: int) -> str:
    return f"row {record} of the data set"


def _is_transformed(dataset: Any) -> bool:
    return dataset.format["type"] == "custom" or bool(dataset.format["format_kwargs"])


def _check(dataset: Any) -> None:
    datasets = import_extra("datasets", "huggingface")
    if isinstance(dataset, datasets.Dataset):
        return
    more = ""
    if isinstance(dataset, datasets.DatasetDict):
        more = f": choose a split, {' or '.join(f'dataset[{name!r}]' for name in dataset)}"
    elif isinstance(dataset, datasets.IterableDataset):
        more = ": it has no length; jaxkern.from_stream reads it"
    raise TypeError(f"{type(dataset).__name__} is no datasets.Dataset{more}")


def _picked(column: Column, rows: np.ndarray) -> Column:
    if isinstance(column, Bytes):
        return Bytes(column.blobs, column.place[rows], column.decode, column.in_files)
    if isinstance(column, Chunks):
        return column.take(rows)
    picked: np.ndarray = column[rows]
    return picked
