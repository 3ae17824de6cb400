"""Sources of Arrow tables, Arrow files and Parquet files."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jaxkern.core.memory import available_bytes
from jaxkern.core.progress import ProgressBar
from jaxkern.pipeline.sources.files import Paths, expand_paths, import_extra
from jaxkern.pipeline.sources.formats.columns import (
    Bytes,
    Chunks,
    Column,
    ColumnSource,
    Decode,
    ImageOptions,
    masks,
)
from jaxkern.pipeline.sources.source import check_numeric

#: maximum size in bytes of a chunked column of numbers that is concatenated for native threads
_CONCATENATED_BYTES = 2**28


class ArrowSource(ColumnSource):
    """Source of rows of Arrow tables, or of Arrow files (IPC files and streams, Feather).

    Files are mapped into memory and not copied. Compressed files, such as Feather files by default,
    are decompressed into memory by the constructor.

    =========================================== ==========================================
    column                                      field of a batch
    =========================================== ==========================================
    numbers, bools                              [N]
    lists of one length, fixed-size lists of    [N, length, ...]
    numbers, tensors of one shape
    binary, struct of bytes and path            `jaxkern.image.Ragged`: an encoded image, as input
                                                of a Compose
    =========================================== ==========================================

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
      ImportError: pyarrow is not installed.
      FileNotFoundError: a file does not exist.
      ValueError: a file is damaged (the message names it), or a column has missing values or lists
        of different lengths.
      TypeError: a column has another type.
      KeyError: a column does not exist.
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
        arrow = import_extra("pyarrow", "parquet")
        if isinstance(tables, arrow.Table):
            parts: list[Part] = [("the table", tables, None)]
            tables.validate(full=verify)
        else:
            files = expand_paths(tables, (".arrow", ".feather"), "Arrow")
            parts = [(str(file), *_mapped_table(file, verify)) for file in files]
        _init(self, parts, columns, decoders, images)


class ParquetSource(ColumnSource):
    """Source of rows of Parquet files; the constructor decodes the columns into memory.

    A full shuffle reads rows in any order, but Parquet is decoded in groups of many thousand rows.
    If the columns do not fit into memory, convert them to an Arrow file, which is mapped, or use
    `jaxkern.pipeline.pack`.

    Args:
      paths: a file, a list, a folder, or a pattern such as ``data/*.parquet``.
      columns, decoders, images: as for `ArrowSource`, and so are the fields.
      verify: if True, check page checksums if the file has them, the properties that `ArrowSource`
        checks, and that numbers are within the statistics of their row group. Reading takes up to
        twice as long.

    Attributes:
      bad_images: (field, record) -> error of each masked image.

    Raises:
      As `ArrowSource`; MemoryError if the columns do not fit into memory.
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
        import_extra("pyarrow", "parquet")
        files = expand_paths(paths, (".parquet",), "Parquet")
        parts = _parquet_tables(files, columns, verify)
        _init(self, parts, columns, decoders, images)


#: origin of a table, the table, and the mapped file that its values may refer to
Part = tuple[str, Any, np.ndarray | None]


def _init(
    source: ColumnSource,
    parts: Sequence[Part],
    names: Sequence[str] | None,
    decoders: Mapping[str, Decode] | None,
    images: ImageOptions,
) -> None:
    columns = table_columns(parts, names, decoders or {}, masks(images))
    ends = np.cumsum([table.num_rows for _, table, _ in parts])
    if ends[-1] == 0:
        raise ValueError(f"{parts[0][0]} has no rows")
    name_of = functools.partial(_row_name, [where for where, _, _ in parts], ends)
    ColumnSource.__init__(source, columns, name_of, **images)


def _row_name(origins: Sequence[str], ends: np.ndarray, record: int) -> str:
    part = int(np.searchsorted(ends, record, "right"))
    return f"row {record - (ends[part - 1] if part else 0)} of {origins[part]}"


def _mapped_table(file: Path, verify: bool) -> tuple[Any, np.ndarray]:
    arrow = import_extra("pyarrow", "parquet")
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty; expected an Arrow file")
    data = np.memmap(file, np.uint8, "r")
    open_table = arrow.ipc.open_file if data[:6].tobytes() == b"ARROW1" else arrow.ipc.open_stream
    try:
        table = open_table(arrow.BufferReader(arrow.py_buffer(data))).read_all()
        table.validate(full=verify)
        table.column_names  # noqa: B018 raises if a name is invalid
    except (arrow.ArrowException, OSError, UnicodeError) as error:
        raise ValueError(
            f"{file} is not a readable Arrow file: {error}; expected an IPC file or stream, or "
            "Feather version 2"
        ) from error
    return table, data


def _parquet_tables(files: Sequence[Path], names: Sequence[str] | None, verify: bool) -> list[Part]:
    arrow = import_extra("pyarrow", "parquet")
    parquet = import_extra("pyarrow.parquet", "parquet")
    parts: list[Part] = []
    largest = 0
    with ProgressBar(True, "Parquet", "files") as bar:
        for number, path in enumerate(files):
            groups = []
            try:
                with parquet.ParquetFile(path, page_checksum_verification=verify) as file:
                    _check_names(str(path), file.schema_arrow.names, names)
                    for group in range(file.num_row_groups):
                        if largest > available_bytes():
                            raise MemoryError(
                                f"memory suffices for {group} of {file.num_row_groups} row groups "
                                f"of {path}: select columns=[...], or use an Arrow file"
                            )
                        part = file.read_row_group(group, None if names is None else [*names])
                        part.validate(full=verify)
                        if verify:
                            _check_statistics(path, file, group, part)
                        groups.append(part)
                        largest = max(largest, part.nbytes)
                    table = arrow.concat_tables(groups or [file.schema_arrow.empty_table()])
            except (arrow.ArrowException, OSError, UnicodeError) as error:
                raise ValueError(f"{path} is not a readable Parquet file: {error}") from error
            parts.append((str(path), table, None))
            bar.update(number + 1, len(files))
    return parts


def _check_statistics(path: Path, file: Any, group: int, table: Any) -> None:
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


def table_columns(
    parts: Sequence[Part],
    names: Sequence[str] | None,
    decoders: Mapping[str, Decode],
    missing: bool,
    images: Sequence[str] | None = None,
) -> dict[str, Column]:
    """Return the columns of the concatenation of tables.

    Args:
      parts: the tables.
      names: names of the columns; None for all.
      decoders: column -> decoding function.
      missing: True if a missing image is an image that cannot be decoded, False if an error.
      images: columns of encoded images; None for all columns of bytes not in `decoders`.
    """
    if isinstance(names, str):
        raise TypeError(f"columns is {names!r}; expected a sequence of names")
    first = parts[0][1].column_names
    columns: dict[str, Column] = {}
    for name in first if names is None else names:
        for where, table, _ in parts:
            _check_names(where, table.column_names, [name])
        columns[name] = _column(name, parts, decoders.get(name), missing, images)
    if unknown := sorted(decoders.keys() - columns.keys()):
        raise KeyError(f"decoders has {unknown}; the columns are {sorted(columns)}")
    return columns


def _column(
    name: str,
    parts: Sequence[Part],
    decode: Decode | None,
    missing: bool,
    images: Sequence[str] | None,
) -> Column:
    kind = parts[0][1].schema.field(name).type
    is_image = decode is None and (images is None or name in images)
    if is_image and (_is_file(kind) or _is_binary(kind)):
        return _bytes(name, parts, None, missing)
    if decode is not None:
        if not (_is_file(kind) or _is_binary(_plain(kind)) or _is_text(_plain(kind))):
            raise TypeError(
                f"decoders has {name!r}, which is {kind} in {parts[0][0]}; expected bytes or text"
            )
        return _bytes(name, parts, decode, missing)
    pieces: list[np.ndarray] = []
    for where, table, data in parts:
        for chunk in table.column(name).chunks:
            if len(chunk):
                values = _on_file(_values(chunk, f"column {name!r} of {where}"), data)
                check_numeric(values, f"column {name!r} of {where}")
                pieces.append(values)
                rows = [f"{p.dtype}{list(p.shape[1:])}" for p in (pieces[0], values)]
                if rows[0] != rows[1]:
                    raise ValueError(
                        f"column {name!r} of {where} has rows {rows[1]} after rows {rows[0]}; "
                        "expected equal shapes and types"
                    )
    if not pieces:
        return np.empty(0, np.float32)
    if len(pieces) == 1:
        return pieces[0]
    is_small = sum(piece.nbytes for piece in pieces) <= _CONCATENATED_BYTES
    return np.concatenate(pieces) if is_small else Chunks(pieces)


def _is_file(kind: Any) -> bool:
    """True for a struct of bytes and path, as Hugging Face's `Image`."""
    if not import_extra("pyarrow", "parquet").types.is_struct(kind):
        return False
    indices = [kind.get_field_index(name) for name in ("bytes", "path")]
    if min(indices) < 0:
        return False
    data, path = (kind.field(index).type for index in indices)
    null = import_extra("pyarrow", "parquet").types.is_null
    return (_is_binary(data) or null(data)) and (_is_text(path) or null(path))


def _plain(kind: Any) -> Any:
    """Return the type with offsets to which bytes and text of other layouts are cast."""
    arrow = import_extra("pyarrow", "parquet")
    types = arrow.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_string_view(kind):
        return arrow.large_string()
    if types.is_binary_view(kind) or types.is_fixed_size_binary(kind) or types.is_null(kind):
        return arrow.large_binary()
    return kind


def _is_binary(kind: Any) -> bool:
    types = import_extra("pyarrow", "parquet").types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_text(kind: Any) -> bool:
    types = import_extra("pyarrow", "parquet").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _values(array: Any, what: str) -> np.ndarray:
    """Return the values [N, ...] of numbers or nested lists, as a view if possible."""
    arrow = import_extra("pyarrow", "parquet")
    kind, types = array.type, arrow.types
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(
            f"{what} has {array.null_count} missing values, the first at row {row} of a chunk; "
            "fill or drop them (pyarrow.compute.fill_null)"
        )
    if isinstance(kind, arrow.FixedShapeTensorType):
        _values(array.storage, what)  # checks for missing numbers
        tensors: np.ndarray = array.to_numpy_ndarray()
        return tensors
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
        numbers: np.ndarray = array.to_numpy(zero_copy_only=True)
        return numbers
    raise TypeError(
        f"{what} is {kind}; expected numbers, lists of numbers or encoded images: select "
        "columns=[...] without it, or set decoders={column: a function of bytes} for bytes and text"
    )


def _offsets(array: Any, limit: int, what: str) -> np.ndarray:
    """Return the offsets [N + 1] of lists or bytes."""
    if not len(array):
        return np.zeros(1, np.int64)
    wide = str(array.type).startswith("large_")
    dtype = np.dtype(np.int64 if wide else np.int32)
    buffer = array.buffers()[1]
    offsets = np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)
    if offsets[0] < 0 or offsets[-1] > limit or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"{what} is damaged: its offsets decrease or are not between 0 and {limit}"
        )
    return offsets


def _on_file(values: np.ndarray, data: np.ndarray | None) -> np.ndarray:
    """Return the values as a view of the mapped file, whose length is checked before reads."""
    if data is None or not values.flags.c_contiguous:
        return values
    start = values.__array_interface__["data"][0] - data.__array_interface__["data"][0]
    if not 0 <= start <= len(data) - values.nbytes:
        return values
    return data[start : start + values.nbytes].view(values.dtype).reshape(values.shape)


def _bytes(name: str, parts: Sequence[Part], decode: Decode | None, missing: bool) -> Bytes:
    arrow = import_extra("pyarrow", "parquet")
    blobs: list[np.ndarray] = []
    ranges: list[np.ndarray] = []
    paths: set[bool] = set()
    for where, table, data in parts:
        file = None
        for chunk in table.column(name).chunks:
            if not len(chunk):
                continue
            what = f"column {name!r} of {where}"
            array = chunk
            if arrow.types.is_struct(chunk.type):
                array = chunk.field("bytes")
                in_files = array.null_count == len(array) and not chunk.field("path").null_count
                array = chunk.field("path") if in_files else array
                paths.add(in_files)
            if (plain := _plain(array.type)) != array.type:
                array = array.cast(plain)
            if (chunk.null_count or array.null_count) and not missing:
                raise ValueError(
                    f"{what} has {max(chunk.null_count, array.null_count)} missing values; "
                    "expected bytes in every row, or on_bad_record='mask' for images"
                )
            stored = np.frombuffer(array.buffers()[2] or b"", np.uint8)
            offsets = _offsets(array, len(stored), what).astype(np.int64)
            rows = np.empty((len(array), 3), np.int64)
            rows[:, 1], rows[:, 2] = offsets[:-1], np.diff(offsets)
            for nullable in (array, chunk):  # a null becomes empty, which cannot be decoded
                if nullable.null_count:
                    rows[nullable.is_null().to_numpy(zero_copy_only=False), 2] = 0
            mapped = _on_file(stored, data)
            if mapped is not stored and data is not None:
                rows[:, 1] += mapped.ctypes.data - data.ctypes.data
                if file is None:
                    file = len(blobs)
                    blobs.append(data)
                rows[:, 0] = file
            else:
                rows[:, 0] = len(blobs)
                blobs.append(stored)
            ranges.append(rows)
    if len(paths) > 1:
        raise ValueError(
            f"column {name!r} has both bytes and paths of images; expected one of them in all rows"
        )
    return Bytes(
        blobs, np.concatenate(ranges or [np.empty((0, 3), np.int64)]), decode, paths == {True}
    )


def _check_names(where: str, existing: Sequence[str], names: Sequence[str] | None) -> None:
    for name in () if names is None or isinstance(names, str) else names:
        if existing.count(name) != 1:
            raise KeyError(
                f"expected one column {name!r} in {where}, got {existing.count(name)}; it has "
                f"{[*existing]}"
            )
