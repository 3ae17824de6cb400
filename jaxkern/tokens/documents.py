"""Token documents, stored as concatenated values and offsets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import check_mapped, map_npy

_FIELD = "tokens"
_BLOCK = 1 << 20  # number of documents per step of the search for the longest


class Documents:
    """Documents of tokens: document i is ``values[offsets[i] : offsets[i + 1]]`` of every field.

    Arrays, memory maps, ``.npy`` files and Arrow lists of one chunk are not copied.

    Args:
      values: array [T] of integers or float32, which becomes the field "tokens", or a dict of
        field -> array. The path of an ``.npy`` file can replace an array. Without `offsets`:
        a sequence of one array per document, or an Arrow array of lists.
      offsets: non-decreasing integers [N + 1] in [0, T]; or a path.
      max_length: documents are truncated to this number of tokens; None: no limit.

    Raises:
      ValueError, TypeError: offsets decrease or are out of range, or values have another dtype.

    Attributes:
      fields: field -> array [T].
      offsets: int64 [N + 1].

    >>> import numpy as np
    >>> from jaxkern.tokens import Documents
    >>> documents = Documents(np.arange(10), [0, 3, 3, 10])
    >>> len(documents), documents.locate([2, 0])
    (3, (array([3, 0]), array([7, 3])))
    """

    def __init__(self, values: Any, offsets: Any = None, max_length: int | None = None) -> None:
        self.max_length = None if max_length is None else check_integer("max_length", max_length, 1)
        by_field = values if isinstance(values, Mapping) else {_FIELD: values}
        if not by_field:
            raise ValueError("values is an empty dict; expected at least one field -> array")
        if offsets is None:
            parts = {str(name): _concatenate(str(name), value) for name, value in by_field.items()}
            first, (_, bounds) = next(iter(parts.items()))
            for name, (_, other) in parts.items():
                if not np.array_equal(bounds, other):
                    raise ValueError(f"{first!r} and {name!r} have documents of different lengths")
            self.fields = {name: flat for name, (flat, _) in parts.items()}
        else:
            self.fields = {str(name): _flat(f"{name!r}", array) for name, array in by_field.items()}
            bounds = _flat("offsets", offsets)
        if bounds.dtype.kind not in "iu":
            raise TypeError(f"offsets has dtype {bounds.dtype}; expected integers [N + 1]")
        path = f" ({os.fspath(offsets)})" if isinstance(offsets, str | os.PathLike) else ""
        self.offsets = np.ascontiguousarray(bounds, np.int64)
        if len(self.offsets) == 0:
            raise ValueError("offsets is empty; expected N + 1 offsets for N documents")
        check_mapped("offsets", self.offsets)
        size = min(map(len, self.fields.values()))
        index = native().bad_token_offset(self.offsets, size)
        if index >= 0:
            before = "" if index == 0 else f" after {self.offsets[index - 1]}"
            raise ValueError(
                f"offsets{path}[{index}] is {self.offsets[index]}{before}; expected "
                f"non-decreasing offsets from 0 to {size}"
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Documents({', '.join(self.fields)}; {len(self)} documents)"

    def locate(self, documents: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets and the lengths of documents [M]: int64 [M] each."""
        numbers = np.asarray(documents, np.int64)
        begins = self.offsets[numbers]
        lengths = self.offsets[numbers + 1] - begins
        return begins, lengths if self.max_length is None else lengths.clip(max=self.max_length)

    def longest(self) -> int:
        """Return the number of tokens of the longest document."""
        longest = 0
        for first in range(0, len(self), _BLOCK):
            part = self.offsets[first : first + _BLOCK + 1]
            longest = max(longest, int(np.diff(part).max()))
        return longest if self.max_length is None else min(longest, self.max_length)

    def check_files(self) -> None:
        """Raise OSError if a mapped file was truncated."""
        check_mapped("offsets", self.offsets)
        for name, array in self.fields.items():
            check_mapped(f"field {name!r}", array)


def native() -> Any:
    """Return the native module; packing has no Python implementation."""
    module = registry.module("cpu")
    if module is None:
        raise RuntimeError("packing tokens needs jaxkern's native library; see jaxkern.doctor()")
    return module


def _flat(name: str, value: Any) -> np.ndarray:
    """Return a contiguous 1-D array of integers or float32, without a copy if possible."""
    if isinstance(value, str | os.PathLike):
        name, value = f"{name} ({os.fspath(value)})", map_npy(value)
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim != 1:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; expected one dimension")
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu" and array.dtype != np.float32:
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers or float32")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _concatenate(name: str, value: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return values and offsets of a sequence of documents or of an Arrow array of lists."""
    if type(value).__module__.split(".")[0] == "pyarrow":
        return _from_arrow(name, value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(f"{name!r} is {value!r:.80}; expected offsets, or a sequence of documents")
    parts = [_flat(f"document {i} of {name!r}", part) for i, part in enumerate(value)]
    offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return np.concatenate(parts) if parts else np.empty(0, np.int32), offsets


def _from_arrow(name: str, value: Any) -> tuple[np.ndarray, np.ndarray]:
    if hasattr(value, "chunks"):  # a column of a table; a single chunk is not copied
        value = value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
    if not hasattr(value, "offsets"):
        raise TypeError(f"{name!r} is an Arrow array of {value.type}; expected lists of integers")
    if value.null_count or value.values.null_count:
        raise ValueError(f"{name!r} contains nulls; drop or fill them")
    values = value.values.to_numpy(zero_copy_only=True)
    return _flat(f"{name!r}", values), value.offsets.to_numpy(zero_copy_only=True)
