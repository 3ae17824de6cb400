"""NumPy files: `.npz` archives, `.npy` files mapped into memory, and hashes of arrays."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

#: exceptions that NumPy raises for damaged files and files of other formats
NUMPY_DAMAGE = (
    ValueError, OSError, EOFError, OverflowError, SyntaxError, TypeError, KeyError, IndexError,
    MemoryError, NotImplementedError, RuntimeError, UnicodeError, AttributeError, RecursionError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def npz_bytes(arrays: Mapping[str, Any]) -> bytes:
    """Return the bytes of an .npz file with these arrays."""
    stream = io.BytesIO()
    # Ctrl-C reaches the main thread only; inside `zipfile` it would become a ValueError.
    with ThreadPoolExecutor(1) as writer:
        writer.submit(partial(np.savez, stream, **arrays)).result()
    return stream.getvalue()


def map_npy(path: str | os.PathLike[str]) -> np.memmap[Any, Any]:
    """Map the array of an `.npy` file into memory, read-only.

    Raises:
      OSError: the file does not exist or cannot be opened.
      ValueError: the file is not an `.npy` file, is damaged, or its length contradicts its
        header; the message names the file.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.npy"
    >>> np.save(path, [1, 2])
    >>> map_npy(path).tolist()
    [1, 2]
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        begin = file.read(6)
    if begin != b"\x93NUMPY":
        kind = "an .npz archive" if begin.startswith(b"PK") else repr(begin)
        raise ValueError(f"{name}: expected an .npy file with one array, got {kind}")
    try:
        array = np.lib.format.open_memmap(name, mode="r")
    except NUMPY_DAMAGE as error:
        raise ValueError(
            f"{name} is damaged and cannot be read as an .npy file: {error}"
        ) from error
    end = int(getattr(array, "offset", 0)) + array.nbytes
    size = os.stat(name).st_size
    if end != size:
        raise ValueError(
            f"{name} is damaged, truncated or still being written: its header says {array.dtype}"
            f"{list(array.shape)}, which ends at byte {end}, but the file has {size} bytes"
        )
    return array


def digest(*arrays: Any) -> str:
    """Return a short hash of the bytes, shapes and dtypes of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        value = np.ascontiguousarray(array)
        total.update(f"{value.dtype.str}{value.shape}".encode())
        total.update(value.tobytes())
    return total.hexdigest()[:32]
