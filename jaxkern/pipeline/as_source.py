"""What `from_source` takes, as a source of batches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jaxkern.pipeline.columns import ImageColumn
from jaxkern.pipeline.hdf5 import HDF5Source
from jaxkern.pipeline.images import EncodedSource
from jaxkern.pipeline.packed import PackedSource
from jaxkern.pipeline.packed_format import SUFFIX
from jaxkern.pipeline.source import ArraySource, BatchSource, RecordSource


@runtime_checkable
class RandomAccessSource(Protocol):
    """Anything with a length whose items 0..len-1 are records: dicts of arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def as_source(source: Any) -> BatchSource:
    """What `from_source` was given, as a source of batches."""
    if isinstance(source, BatchSource):
        return source
    if isinstance(source, Mapping):
        images = {k: value for k, value in source.items() if isinstance(value, ImageColumn)}
        if images:
            return EncodedSource(images, {k: v for k, v in source.items() if k not in images})
        if any(_is_hdf5(value) for value in source.values()):
            return HDF5Source(source)
        return ArraySource(source)
    if isinstance(source, str | os.PathLike) and os.fspath(source).endswith(SUFFIX):
        return PackedSource(source)
    if isinstance(source, str | os.PathLike) or not isinstance(source, RandomAccessSource):
        raise TypeError(
            f"source is {source!r:.80}; wanted a dict of arrays, the name of a packed file (.jkp), "
            "or anything with len() and [i] that gives dicts; jaxkern.pipeline has ArraySource, "
            "HDF5Source and ImageFolder"
        )
    return RecordSource(source)


def _is_hdf5(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "h5py"
