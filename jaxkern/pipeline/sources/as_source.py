"""Conversion of the argument of `from_source` to a source of batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from jaxkern.pipeline.sources.files import suffix_of
from jaxkern.pipeline.sources.formats.arrow import ArrowSource, ParquetSource, huggingface_source
from jaxkern.pipeline.sources.formats.record_files import ArrayRecordSource, TFRecordSource
from jaxkern.pipeline.sources.formats.webdataset import WebDatasetSource
from jaxkern.pipeline.sources.images.columns import EncodedSource
from jaxkern.pipeline.sources.images.fields import ImageColumn
from jaxkern.pipeline.sources.packed.layout import SUFFIX
from jaxkern.pipeline.sources.packed.source import PackedSource
from jaxkern.pipeline.sources.source import ArraySource, BatchSource, RecordSource
from jaxkern.pipeline.sources.stored_arrays import HDF5Source, ZarrSource

#: path suffix -> source class
SUFFIXES: dict[str, Callable[[Any], BatchSource]] = {
    ".array_record": ArrayRecordSource,
    ".arrayrecord": ArrayRecordSource,
    ".arrow": ArrowSource,
    ".feather": ArrowSource,
    ".parquet": ParquetSource,
    ".tar": WebDatasetSource,
    ".tfrecord": TFRecordSource,
    ".tfrecords": TFRecordSource,
    ".zarr": ZarrSource,
    SUFFIX: PackedSource,
}
#: (package, class name) of an object -> source class
_OBJECTS: dict[tuple[str, str], Callable[[Any], BatchSource]] = {
    ("datasets", "Dataset"): huggingface_source,
    ("datasets", "DatasetDict"): huggingface_source,
    ("datasets", "IterableDataset"): huggingface_source,
    ("pyarrow", "Table"): ArrowSource,
    ("zarr", "Array"): ZarrSource,
    ("zarr", "Group"): ZarrSource,
}


def as_source(source: Any) -> BatchSource:
    """Convert a dict of arrays, paths, a data set or a sequence to a source of batches."""
    if isinstance(source, BatchSource):
        return source
    for kind in type(source).__mro__:
        if make := _OBJECTS.get((kind.__module__.split(".")[0], kind.__name__)):
            return make(source)
    if isinstance(source, Mapping):
        if any(isinstance(value, ImageColumn) for value in source.values()):
            return EncodedSource(source)
        if any(type(value).__module__.split(".")[0] == "h5py" for value in source.values()):
            return HDF5Source(source)
        return ArraySource(source)
    path = source[0] if isinstance(source, list | tuple) and source else source
    if isinstance(path, str | os.PathLike):
        if suffix_of(path) in SUFFIXES:
            return SUFFIXES[suffix_of(path)](source)
        raise TypeError(
            f"source is {source!r:.80}; expected a suffix of {', '.join(sorted(SUFFIXES))}; "
            "jaxkern.pipeline.ImageFolder(...) and ImageFiles(paths) read images, and a dict of "
            "fields reads .npy files: {'x': 'x.npy'}"
        )
    if isinstance(source, np.ndarray | jax.Array):
        raise TypeError(f"source is an array {source.shape}; expected a dict, {{'x': array}}")
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return RecordSource(source)
    if isinstance(source, Iterable):
        raise TypeError(
            f"source is {source!r:.80}, which has no len() and [i]; jaxkern.from_stream reads "
            "iterables, preferably from a function that opens one for each epoch"
        )
    raise TypeError(
        f"source is {source!r:.80}; expected a dict of arrays, a path, or an object with len() and "
        "[i] that returns dicts; jaxkern.from_stream accepts a function that opens a stream"
    )
