"""Sources of Arrow tables and files, of Parquet files, and of Hugging Face data sets."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from jaxkern.core.memory import available_bytes
from jaxkern.core.progress import track
from jaxkern.pipeline.sources.files import Paths, expand_paths, import_extra, map_file
from jaxkern.pipeline.sources.images.columns import (
    Column,
    Decode,
    EncodedSource,
    decoded,
    part_name,
)
from jaxkern.pipeline.sources.images.fields import ImageOptions
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.remote import File, RemoteError, Url, binary_file, expand_files
from jaxkern.pipeline.sources.source import BatchSource, RecordSource, check_numeric, join_arrays
from jaxkern.ring import RowParts

_BYTES = ("binary", "large_binary", "binary_view")
_TEXT = ("string", "large_string", "string_view")
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}  # by the mode in Hugging Face's `Image(mode=...)`


def _arrow() -> Any:
    return import_extra("pyarrow", "parquet")


class _Part(NamedTuple):
    origin: str
    table: Any
    file: np.ndarray | None = None  # mapped file that the values may refer to


class _TableSource(EncodedSource):
    """Source of selected `rows` int64 [N] of tables; `image_names` may restrict the images."""

    def __init__(
        self,
        parts: Sequence[_Part],
        names: Sequence[str] | None,
        decoders: Mapping[str, Decode] | None,
        images: ImageOptions,
        image_names: Sequence[str] | None = None,
        rows: np.ndarray | None = None,
    ) -> None:
        if isinstance(names, str):
            raise TypeError(f"columns is {names!r}; expected a sequence of names")
        decoders = decoders or {}
        missing = images.get("on_bad_record") == "mask"
        columns: dict[str, Column] = {}
        for name in parts[0].table.column_names if names is None else names:
            for part in parts:
                _check_names(part.origin, part.table.column_names, [name])
            decode = decoders.get(name)
            is_image = decode is None and (image_names is None or name in image_names)
            columns[name] = _column(name, parts, decode, missing, is_image, rows)
        if unknown := sorted(decoders.keys() - columns.keys()):
            raise KeyError(f"decoders has {unknown}; the columns are {sorted(columns)}")
        origins = [part.origin for part in parts]
        ends = np.cumsum([part.table.num_rows for part in parts])
        if rows is not None:
            ends = np.array([len(rows)])
        if ends[-1] == 0:
            raise ValueError(f"{origins[0]} has no rows")
        super().__init__(columns, functools.partial(part_name, "row", origins, ends), **images)


class ArrowSource(_TableSource):
    """Source of rows of Arrow tables, or of Arrow files (IPC files and streams, Feather).

    Files are mapped into memory and not copied. Compressed files, such as Feather files by default,
    are decompressed into memory by the constructor.

    Numbers, lists of equal length and tensors become arrays [N, ...]. Bytes, and structs of bytes
    and path, are encoded images, which become a `jaxkern.image.Ragged`.

    Args:
      tables: a pyarrow.Table, or paths: a file, a list, a folder, a pattern such as ``*.arrow``.
      columns: names of the columns; all by default.
      decoders: column of bytes or text -> function from bytes to a number, an array or a dict of
        these, of equal shapes for all records.
      verify: if True, read the files completely and check offsets, UTF-8 and dictionary indices.
      images: `channels`, `max_size`, `max_pixels`, `on_bad_record`, `decode`: as for `Encoded`.

    Attributes:
      bad_images: (field, record) -> error of each masked image.

    Raises:
      ValueError: a file is damaged (the message names it), or a column has missing values or lists
        of different lengths.
      TypeError, KeyError: a column has another type, or does not exist.

    Example:
      >>> import pyarrow as pa, jaxkern as jk
      >>> table = pa.table({"label": [0, 1], "x": [[1.0, 2.0], [3.0, 4.0]]})
      >>> jk.pipeline.ArrowSource(table)[1]["x"].tolist()
      [3.0, 4.0]
    """

    def __init__(
        self,
        tables: Any,
        columns: Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        *,
        verify: bool = False,
        **images: Unpack[ImageOptions],
    ) -> None:
        if isinstance(tables, _arrow().Table):
            parts = [_Part("the table", tables)]
            tables.validate(full=verify)
        else:
            files = expand_paths(tables, (".arrow", ".feather"), "Arrow")
            parts = [_mapped_table(file, verify) for file in files]
        super().__init__(parts, columns, decoders, images)


class ParquetSource(_TableSource):
    """Source of rows of Parquet files; the constructor decodes the columns into memory.

    If they do not fit, convert them to an Arrow file, which is mapped, or use
    `jaxkern.pipeline.pack`.

    Args:
      paths: a file, a list, a folder, or a pattern such as ``data/*.parquet``; or URLs, of which
        only the bytes of the columns are read.
      columns, decoders, images: as for `ArrowSource`, and so are the fields.
      verify: if True, check page checksums if the file has them, the properties that `ArrowSource`
        checks, and that numbers are within the statistics of their row group. Reading takes up to
        twice as long.

    Raises:
      As `ArrowSource`, and MemoryError; OSError if a server fails or its file is replaced.

    Example:
      >>> import pyarrow as pa, pyarrow.parquet, tempfile, jaxkern as jk
      >>> path = tempfile.mkdtemp() + "/data.parquet"
      >>> pa.parquet.write_table(pa.table({"x": [1, 2, 3]}), path)
      >>> jk.pipeline.ParquetSource(path)[2]["x"].item()
      3
    """

    def __init__(
        self,
        paths: Paths,
        columns: Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        *,
        verify: bool = False,
        **images: Unpack[ImageOptions],
    ) -> None:
        _arrow()
        files = expand_files(paths, (".parquet",), "Parquet")
        parts = _parquet_tables(files, columns, verify)
        super().__init__(parts, columns, decoders, images)


class HuggingFaceSource(_TableSource):
    """Source of the rows of a `datasets.Dataset`, read from its Arrow table without a copy.

    Columns are fields as in `ArrowSource`, independent of the data set's format. `Image` features
    are encoded images; `ClassLabel` features are integers. The order of `select`, `shuffle` and
    `train_test_split` and the columns of the format are respected. `from_source` reads a data set
    with a transform through the data set itself, record by record.

    Args:
      dataset: one split with a length, not a `DatasetDict` or an `IterableDataset`.
      columns, decoders, images: as for `ArrowSource`; `channels` is by default that of
        ``Image(mode=...)``.

    Raises:
      TypeError: not a `Dataset`, a transform, or columns that are neither numbers nor images.
      ValueError: values are missing.
    """

    def __init__(
        self,
        dataset: Any,
        columns: Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        **images: Unpack[ImageOptions],
    ) -> None:
        _check_dataset(dataset)
        if _is_transformed(dataset):
            raise TypeError(
                f"the format {dataset.format['type']!r} of the data set transforms values; use "
                "from_source(dataset), which reads it through the data set itself"
            )
        names = dataset.format["columns"] if columns is None else columns
        features = dataset.features
        modes = [str(getattr(features.get(name), "mode", None)) for name in names]
        if channels := [_CHANNELS[mode] for mode in modes if mode in _CHANNELS]:
            images.setdefault("channels", max(channels))
        rows = None
        if dataset._indices is not None:
            rows = dataset._indices.table.column(0).to_numpy().astype(np.int64)
            if len(rows) and rows.max() >= dataset.data.num_rows:
                raise ValueError(
                    f"the data set selects row {rows.max()} of {dataset.data.num_rows}"
                )
        self._selection = "" if rows is None else f"#{zlib.crc32(rows.tobytes()):08x}"
        parts = [_Part("the data set", dataset.data.table)]
        image_names = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
        super().__init__(parts, names, decoders, images, image_names, rows)

    def describe(self) -> str:
        return super().describe() + self._selection


def huggingface_source(dataset: Any) -> BatchSource:
    """Return a source that reads the table of a data set, or its records if it transforms them."""
    _check_dataset(dataset)
    return RecordSource(dataset) if _is_transformed(dataset) else HuggingFaceSource(dataset)


def _is_transformed(dataset: Any) -> bool:
    return dataset.format["type"] == "custom" or bool(dataset.format["format_kwargs"])


def _check_dataset(dataset: Any) -> None:
    datasets = import_extra("datasets", "huggingface")
    if isinstance(dataset, datasets.Dataset):
        return
    more = ""
    if isinstance(dataset, datasets.DatasetDict):
        more = f": select a split, {' or '.join(f'dataset[{name!r}]' for name in dataset)}"
    elif isinstance(dataset, datasets.IterableDataset):
        more = ": it has no length; jaxkern.from_stream reads it"
    raise TypeError(f"{type(dataset).__name__} is not a datasets.Dataset{more}")


def _mapped_table(file: Path, verify: bool) -> _Part:
    arrow = _arrow()
    data = map_file(file)
    open_table = arrow.ipc.open_file if data[:6].tobytes() == b"ARROW1" else arrow.ipc.open_stream
    try:
        table = open_table(arrow.BufferReader(arrow.py_buffer(data))).read_all()
        table.validate(full=verify)
        table.column_names  # noqa: B018 raises if a name is invalid
    except (arrow.ArrowException, OSError, UnicodeError) as error:
        raise ValueError(
            f"{file} is not a readable Arrow file (IPC or Feather version 2): {error}"
        ) from error
    return _Part(str(file), table, data)


def _parquet_tables(
    files: Sequence[File], names: Sequence[str] | None, verify: bool
) -> list[_Part]:
    arrow = _arrow()
    parquet = import_extra("pyarrow.parquet", "parquet")
    parts: list[_Part] = []
    largest = 0
    for path in track(files, "Parquet", "files"):
        groups = []
        options = {"page_checksum_verification": verify, "pre_buffer": isinstance(path, Url)}
        try:
            with binary_file(path) as opened, parquet.ParquetFile(opened, **options) as file:
                _check_names(str(path), file.schema_arrow.names, names)
                for group in range(file.num_row_groups):
                    if largest > available_bytes():
                        raise MemoryError(
                            f"memory suffices for {group} of {file.num_row_groups} row groups "
                            f"of {path}; use columns=[...], or an Arrow file"
                        )
                    part = file.read_row_group(group, None if names is None else [*names])
                    part.validate(full=verify)
                    if verify:
                        _check_statistics(path, file, group, part)
                    groups.append(part)
                    largest = max(largest, part.nbytes)
                table = arrow.concat_tables(groups or [file.schema_arrow.empty_table()])
        except (RemoteError, FileNotFoundError):
            raise
        except (arrow.ArrowException, OSError, UnicodeError) as error:
            raise ValueError(f"{path} is not a readable Parquet file: {error}") from error
        parts.append(_Part(str(path), table))
    return parts


def _check_statistics(path: File, file: Any, group: int, table: Any) -> None:
    """Raise ValueError if numbers exceed the statistics of their row group."""
    compute = import_extra("pyarrow.compute", "parquet")
    stored = file.metadata.row_group(group)
    for number in range(stored.num_columns):
        name, bounds = stored.column(number).path_in_schema, stored.column(number).statistics
        if bounds is None or not bounds.has_min_max or name not in table.column_names:
            continue
        actual: Any = compute.min_max(table.column(name)).as_py() if _is_number(bounds.min) else {}
        low, high = actual.get("min"), actual.get("max")
        if _is_number(low) and _is_number(high) and not bounds.min <= low <= high <= bounds.max:
            raise ValueError(
                f"{path} is damaged: column {name!r} has numbers from {low} to {high} in row group "
                f"{group}, whose statistics are {bounds.min} to {bounds.max}"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value


def _column(
    name: str,
    parts: Sequence[_Part],
    decode: Decode | None,
    missing: bool,
    is_image: bool,
    rows: np.ndarray | None,
) -> Column:
    kind = parts[0].table.schema.field(name).type
    if decode is not None and not (_is_file(kind) or str(_plain(kind)) in _BYTES + _TEXT):
        raise TypeError(f"decoders has {name!r}, which is {kind}; expected bytes or text")
    if decode is not None or (is_image and (_is_file(kind) or str(kind) in _BYTES)):
        ranges = _byte_ranges(name, parts, missing)
        ranges = ranges if rows is None else ranges.select(rows)
        return ranges if decode is None else decoded(ranges, decode)
    pieces: list[np.ndarray] = []
    for part in parts:
        for chunk in part.table.column(name).chunks:
            if len(chunk):
                what = f"column {name!r} of {part.origin}"
                values = _on_file(_values(chunk, what), part.file)
                check_numeric(values, what)
                pieces.append(values)
                kinds = [f"{p.dtype}{list(p.shape[1:])}" for p in (pieces[0], values)]
                if kinds[0] != kinds[1]:
                    raise ValueError(f"{what} has rows {kinds[1]} after rows {kinds[0]}")
    column = join_arrays(pieces or [np.empty(0, np.float32)])
    if rows is None:
        return column
    return column.take(rows) if isinstance(column, RowParts) else np.asarray(column[rows])


def _is_file(kind: Any) -> bool:
    """True for a struct of bytes and path, as Hugging Face's `Image`."""
    if not _arrow().types.is_struct(kind):
        return False
    types = {field.name: str(field.type) for field in kind}
    return types.get("bytes") in (*_BYTES, "null") and types.get("path") in (*_TEXT, "null")


def _plain(kind: Any) -> Any:
    """Return the type with offsets to cast bytes and text of other layouts to."""
    arrow = _arrow()
    if arrow.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if str(kind) == "string_view":
        return arrow.large_string()
    if str(kind) in ("binary_view", "null") or arrow.types.is_fixed_size_binary(kind):
        return arrow.large_binary()
    return kind


def _values(array: Any, what: str) -> Any:
    """Return the values [N, ...] of numbers or nested lists, as a view if possible."""
    arrow = _arrow()
    kind, types = array.type, arrow.types
    if array.null_count:
        raise ValueError(
            f"{what} has {array.null_count} missing values; drop them, or use pyarrow's fill_null"
        )
    if isinstance(kind, arrow.FixedShapeTensorType):
        _values(array.storage, what)  # checks for missing numbers
        return array.to_numpy_ndarray()
    if isinstance(array, arrow.ExtensionArray):
        return _values(array.storage, what)
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode(), what)
    if types.is_fixed_size_list(kind):
        inner = array.values[array.offset * kind.list_size :][: len(array) * kind.list_size]
        values = _values(inner, what)
        return values.reshape(len(array), kind.list_size, *values.shape[1:])
    if types.is_list(kind) or types.is_large_list(kind):
        starts = _offsets(array, len(array.values), what)
        lengths = np.diff(starts) if len(array) else np.zeros(1, np.int64)
        if (odd := np.flatnonzero(lengths != lengths[0])).size:
            raise ValueError(
                f"{what} has lists of {lengths[0]} and of {lengths[odd[0]]} items; expected equal "
                "lengths: pad or truncate them"
            )
        values = _values(array.values[int(starts[0]) : int(starts[-1])], what)
        return values.reshape(len(array), int(lengths[0]), *values.shape[1:])
    if types.is_boolean(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False), bool)
    if types.is_integer(kind) or types.is_floating(kind):
        return array.to_numpy(zero_copy_only=True)
    raise TypeError(
        f"{what} is {kind}; expected numbers, lists of numbers or images: select columns=[...], or "
        "set decoders={column: a function of bytes} for bytes and text"
    )


def _offsets(array: Any, limit: int, what: str) -> np.ndarray:
    """Return the offsets [N + 1] of lists or bytes."""
    if not len(array):
        return np.zeros(1, np.int64)
    dtype = np.dtype(np.int64 if str(array.type).startswith("large_") else np.int32)
    start = array.offset * dtype.itemsize
    offsets = np.frombuffer(array.buffers()[1], dtype, len(array) + 1, start).astype(np.int64)
    if offsets[0] < 0 or offsets[-1] > limit or (np.diff(offsets) < 0).any():
        raise ValueError(f"{what} is damaged: its offsets decrease or exceed 0 to {limit}")
    return offsets


def _on_file(values: np.ndarray, data: np.ndarray | None) -> np.ndarray:
    """Return the values as a view of the mapped file, whose length is checked before reads."""
    if data is None or not values.flags.c_contiguous:
        return values
    start = values.__array_interface__["data"][0] - data.__array_interface__["data"][0]
    if not 0 <= start <= len(data) - values.nbytes:
        return values
    return data[start : start + values.nbytes].view(values.dtype).reshape(values.shape)


def _byte_ranges(name: str, parts: Sequence[_Part], missing: bool) -> ByteRanges:
    """Return the byte ranges of a column; if `missing`, missing values become empty ranges."""
    blobs: list[np.ndarray] = []
    ranges = [np.empty((0, 3), np.int64)]
    forms: set[bool] = set()  # True for file paths
    for part in parts:
        what = f"column {name!r} of {part.origin}"
        for chunk in part.table.column(name).chunks:
            if not len(chunk):
                continue
            array = chunk
            if _arrow().types.is_struct(chunk.type):
                array = chunk.field("bytes")
                in_files = array.null_count == len(array) and not chunk.field("path").null_count
                array = chunk.field("path") if in_files else array
                forms.add(in_files)
            if (plain := _plain(array.type)) != array.type:
                array = array.cast(plain)
            if (count := max(chunk.null_count, array.null_count)) and not missing:
                raise ValueError(
                    f"{what} has {count} missing values; drop them, or use on_bad_record='mask' "
                    "for images"
                )
            stored = np.frombuffer(array.buffers()[2] or b"", np.uint8)
            offsets = _offsets(array, len(stored), what)
            mapped = _on_file(stored, part.file)
            if mapped is not stored and part.file is not None:
                offsets += mapped.ctypes.data - part.file.ctypes.data
                stored = part.file
            if not blobs or blobs[-1] is not stored:
                blobs.append(stored)
            rows = np.full((len(array), 3), len(blobs) - 1)
            rows[:, 1], rows[:, 2] = offsets[:-1], np.diff(offsets)
            for nullable in (array, chunk):  # nulls become empty ranges, which fail to decode
                if nullable.null_count:
                    rows[nullable.is_null().to_numpy(zero_copy_only=False), 2] = 0
            ranges.append(rows)
    if len(forms) > 1:
        raise ValueError(f"column {name!r} has both bytes and paths of images; expected one form")
    return ByteRanges(tuple(blobs), np.concatenate(ranges), in_files=True in forms)


def _check_names(where: str, existing: Sequence[str], names: Sequence[str] | None) -> None:
    for name in () if names is None or isinstance(names, str) else names:
        if existing.count(name) != 1:
            raise KeyError(f"expected one column {name!r} in {where}, got {[*existing]}")
