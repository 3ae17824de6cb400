"""Where documents of tokens lie: values behind each other, and offsets among them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.core import registry
from jaxkern.core.archives import map_npy
from jaxkern.core.arguments import check_integer
from jaxkern.core.mapped import check_mapped

_FIELD = "tokens"
_BLOCK = 1 << 20  # documents whose lengths are looked at together


class Documents:
    """Documents of tokens: document i is ``values[offsets[i] : offsets[i + 1]]`` of every field.

    Nothing is copied where the values are arrays, memory maps, paths of ``.npy`` files or Arrow
    lists of one chunk.

    Args:
      values: integers or float32 [T] in one array, which is the field "tokens", or field -> array;
        a path of an ``.npy`` file in the place of an array. Without `offsets` also a sequence of
        arrays, one a document, or an Arrow array of lists.
      offsets: integers [N + 1] that rise from 0 or more to T or less; or a path.
      max_length: tokens that a document has at most; what is behind them is left out. None: all.
    Raises: ValueError for offsets that do not rise or end beyond the values, and for values that
      are no flat arrays; TypeError for values that are no tokens.

    Attributes:
      fields: field -> array [T].
      offsets: int64 [N + 1].

    >>> import numpy as np
    >>> from jaxkern.tokens import Documents
    >>> documents = Documents(np.arange(10), [0, 3, 3, 10])
    >>> len(documents), documents.places([2, 0])
    (3, (array([3, 0]), array([7, 3])))
    """

    def __init__(
        self,
        values: Any,
        offsets: Any = None,
        max_length: int | None = None,
    ) -> None:
        self.max_length = None if max_length is None else check_integer("max_length", max_length, 1)
        given = values if isinstance(values, Mapping) else {_FIELD: values}
        if not given:
            raise ValueError("values is an empty dict; wanted at least one field -> array")
        if offsets is None:
            parts = {str(name): _joined(str(name), value) for name, value in given.items()}
            found = next(iter(parts.values()))[1]
            for name, (_, other) in parts.items():
                if not np.array_equal(found, other):
                    raise ValueError(
                        f"field {name!r} has documents of other lengths than {next(iter(parts))!r};"
                        " fields that are packed alike have the same"
                    )
            self.fields = {name: flat for name, (flat, _) in parts.items()}
        else:
            self.fields = {str(name): _flat(f"{name!r}", array) for name, array in given.items()}
            found = _flat("offsets", offsets)
        if found.dtype.kind not in "iu":
            raise TypeError(f"offsets is {found.dtype}{list(found.shape)}; wanted integers [N + 1]")
        is_path = isinstance(offsets, str | os.PathLike)
        self._offsets_name = f"offsets ({os.fspath(offsets)})" if is_path else "offsets"
        self.offsets = np.ascontiguousarray(found, np.int64)
        sizes = {name: len(array) for name, array in self.fields.items()}
        if len(self.offsets) == 0:
            raise ValueError("offsets is empty; wanted [N + 1], where N documents end too")
        self._check(min(sizes.values()))

    def _check(self, size: int) -> None:
        check_mapped("offsets", self.offsets)
        place = native().bad_token_offset(self.offsets, size)
        if place < 0:
            return
        before = "" if place == 0 else f" behind {self.offsets[place - 1]}"
        raise ValueError(
            f"{self._offsets_name}[{place}] is {self.offsets[place]}{before}; wanted offsets that "
            f"rise from 0 or more to {size} or less, the number of values"
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"Documents({', '.join(self.fields)}; {len(self)} documents)"

    def places(self, documents: Any) -> tuple[np.ndarray, np.ndarray]:
        """Where documents [M] begin among the values, and their lengths: int64 [M] each."""
        chosen = np.asarray(documents, np.int64)
        begins = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - begins
        return begins, lengths if self.max_length is None else lengths.clip(max=self.max_length)

    def longest(self) -> int:
        """Tokens of the longest document."""
        longest = 0
        for first in range(0, len(self), _BLOCK):
            part = self.offsets[first : first + _BLOCK + 1]
            longest = max(longest, int(np.diff(part).max()))
        return longest if self.max_length is None else min(longest, self.max_length)

    def check_files(self) -> None:
        """Raises OSError where a file that is mapped was cut short."""
        check_mapped("offsets", self.offsets)
        for name, array in self.fields.items():
            check_mapped(f"field {name!r}", array)


def native() -> Any:
    """The module with the native code, which has no twin in Python."""
    module = registry.module("cpu")
    if module is None:
        raise RuntimeError(
            "packing tokens needs jaxkern's native library, which is not usable here; "
            "jaxkern.doctor() says why"
        )
    return module


def _flat(name: str, value: Any) -> np.ndarray:
    """A flat array as it lies, of numbers that rows can hold."""
    if isinstance(value, str | os.PathLike):
        name, value = f"{name} ({os.fspath(value)})", map_npy(value)
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim != 1:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}; wanted a flat array")
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu" and array.dtype != np.float32:
        raise TypeError(f"{name} has dtype {array.dtype}; wanted integers or float32")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _joined(name: str, value: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values and offsets of documents that are given one by one, or as an Arrow array of lists."""
    if type(value).__module__.split(".")[0] == "pyarrow":
        return _of_arrow(name, value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(
            f"{name!r} is {value!r:.80}; wanted offsets with it, or a sequence of arrays, one a "
            "document, or an Arrow array of lists"
        )
    parts = [_flat(f"document {i} of {name!r}", part) for i, part in enumerate(value)]
    offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return np.concatenate(parts) if parts else np.empty(0, np.int32), offsets


def _of_arrow(name: str, value: Any) -> tuple[np.ndarray, np.ndarray]:
    if hasattr(value, "chunks"):  # a column of a table; one chunk is taken as it lies
        value = value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
    if not hasattr(value, "offsets"):
        raise TypeError(f"{name!r} is an Arrow array of {value.type}; wanted lists of integers")
    if value.null_count or value.values.null_count:
        raise ValueError(f"{name!r} has nulls in it; wanted lists of tokens: drop or fill them")
    values = value.values.to_numpy(zero_copy_only=True)
    return _flat(f"{name!r}", values), value.offsets.to_numpy(zero_copy_only=True)
