"""Source of Hugging Face data sets, read from their Arrow tables."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from jaxkern.pipeline.sources.files import import_extra
from jaxkern.pipeline.sources.formats.arrow import table_columns
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

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}  # by the mode of `Image(mode=...)`


class HuggingFaceSource(ColumnSource):
    """Source of the rows of a `datasets.Dataset`, read from its Arrow table without a copy.

    Columns are fields as in `ArrowSource`, independent of the data set's format ("numpy", "torch",
    ...). `Image` features are encoded images, which become a `jaxkern.image.Ragged`; `ClassLabel`
    features are integers. The order of `select`, `shuffle` and `train_test_split` and the columns
    of the format are respected.

    `from_source` reads a data set with a transform (`with_transform`), or a format with arguments,
    through the data set itself, record by record.

    Args:
      dataset: one split with a length, not a `DatasetDict` or an `IterableDataset`.
      columns, decoders, images: as for `ArrowSource`; `channels` is by default that of
        ``Image(mode=...)``.

    Attributes:
      bad_images: (field, record) -> error of each masked image.

    Raises:
      ImportError: datasets is not installed.
      TypeError: not such a data set, a data set with a transform, or columns that are neither
        numbers nor images.
      ValueError: values are missing.
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
                f"{sorted(dataset.format['format_kwargs'])}; expected a format that keeps values: "
                "from_source(dataset) reads it through the data set itself"
            )
        names = dataset.format["columns"] if columns is None else columns
        image_names = [
            name for name, kind in dataset.features.items() if type(kind).__name__ == "Image"
        ]
        where = "the data set"
        table = dataset.data.table
        fields = table_columns(
            [(where, table, None)], names, decoders or {}, masks(images), image_names
        )
        self._selection = ""
        if dataset._indices is not None:
            rows = dataset._indices.table.column(0).to_numpy().astype(np.int64)
            if len(rows) and rows.max() >= table.num_rows:
                raise ValueError(f"{where} selects row {rows.max()} of {table.num_rows}")
            fields = {name: _select(column, rows) for name, column in fields.items()}
            self._selection = f"#{zlib.crc32(rows.tobytes()):08x}"
        if len(dataset) == 0:
            raise ValueError(f"{where} has no rows")
        modes = [str(getattr(dataset.features[name], "mode", None)) for name in fields]
        if channels := [_CHANNELS[mode] for mode in modes if mode in _CHANNELS]:
            images.setdefault("channels", max(channels))
        super().__init__(fields, _name_of, **images)

    def describe(self) -> str:
        return super().describe() + self._selection


def huggingface_source(dataset: Any) -> BatchSource:
    """Return a source of a data set's table, or of its records if it transforms them."""
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
        more = f": select a split, {' or '.join(f'dataset[{name!r}]' for name in dataset)}"
    elif isinstance(dataset, datasets.IterableDataset):
        more = ": it has no length; jaxkern.from_stream reads it"
    raise TypeError(f"{type(dataset).__name__} is not a datasets.Dataset{more}")


def _select(column: Column, rows: np.ndarray) -> Column:
    if isinstance(column, Bytes):
        return Bytes(column.blobs, column.ranges[rows], column.decode, column.in_files)
    if isinstance(column, Chunks):
        return column.take(rows)
    selected: np.ndarray = column[rows]
    return selected
