"""NumPy arrays: aligned memory, `.npz` archives, `.npy` files mapped into memory, and hashes."""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

#: bytes; JAX on the CPU uses arrays at its multiples without a copy, and NumPy allocates large
#: arrays at 16 mod 64
ALIGNMENT = 64

#: exceptions that NumPy raises for damaged files and files of other formats
NUMPY_DAMAGE = (
    ValueError, OSError, EOFError, OverflowError, SyntaxError, TypeError, KeyError, IndexError,
    MemoryError, NotImplementedError, RuntimeError, UnicodeError, AttributeError, RecursionError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def aligned_array(
    shape: int | tuple[int, ...], dtype: Any, make: Callable[..., np.ndarray] = np.empty
) -> np.ndarray:
    """Allocate an array with `make` (``np.empty`` or ``np.zeros``) at a multiple of `ALIGNMENT`."""
    shape, dtype = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    space = make(size + ALIGNMENT - 1, np.uint8)
    start = -space.__array_interface__["data"][0] % ALIGNMENT
    return space[start : start + size].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Copy an array to memory that JAX on the CPU uses without another copy."""
    copy = aligned_array(array.shape, array.dtype)
    copy[...] = array
    return copy


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
      ValueError: the path is a URL, or the file is not an `.npy` file, is damaged, or its length
        contradicts its header; the message names the file.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.npy"
    >>> np.save(path, [1, 2])
    >>> map_npy(path).tolist()
    [1, 2]
    """
    name = os.fspath(path)
    if "://" in name:
        raise ValueError(f"{name}: expected a local file; jaxkern.pipeline.cached downloads URLs")
    with open(name, "rb") as file:
        begin = file.read(6)
    if begin != b"\x93NUMPY":
        kind = "an .npz archive" if begin.startswith(b"PK") else repr(begin)
        raise ValueError(f"{name}: expected an .npy file with one array, got {kind}")
    try:
        array = np.lib.format.open_memmap(name, mode="r")
    except NUMPY_DAMAGE as error:
        raise ValueError(f"{name} is damaged, not an .npy file: {error}") from error
    end, size = int(getattr(array, "offset", 0)) + array.nbytes, os.stat(name).st_size
    if end != size:
        raise ValueError(
            f"{name} is damaged, truncated or still being written: its header says {array.dtype}"
            f"{list(array.shape)}, which ends at byte {end}, but the file has {size} bytes"
        )
    return array


def check_mapped(name: str, array: np.ndarray) -> None:
    """Raise OSError if an array's file was truncated after it was mapped.

    Access beyond the end of the file terminates the process (SIGBUS), so call this before reading.
    A file that is truncated between the check and the access still terminates it. The check takes
    about 1 us and accepts arrays that are not mapped.

    >>> check_mapped("x", np.zeros(3))
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        base = owner.base
        if isinstance(base, memoryview):
            base = base.obj
        if isinstance(base, mmap.mmap):
            break
        owner = base
    else:
        return
    try:
        size = base.size()  # the current size of the file
    except (OSError, ValueError):  # an anonymous map
        return
    if not array.size:
        return
    # The mmap object does not know its offset in the file; NumPy's array does.
    begin = getattr(owner, "offset", 0) - owner.__array_interface__["data"][0]
    needed = begin + np.lib.array_utils.byte_bounds(array)[1]
    if size < needed:
        raise OSError(
            f"{name} is mapped from {getattr(owner, 'filename', None) or 'a file'}, which was "
            f"truncated to {size} bytes; the array ends at byte {needed}. Open the file again. To "
            "replace a file that is in use, write a new file and rename it"
        )


def digest(*arrays: Any) -> str:
    """Return a short hash of the bytes, shapes and dtypes of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        value = np.ascontiguousarray(array)
        total.update(f"{value.dtype.str}{value.shape}".encode())
        total.update(value.tobytes())
    return total.hexdigest()[:32]
