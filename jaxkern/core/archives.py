"""Archives of arrays, as NumPy's `savez` makes them, in memory."""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np


def npz_bytes(arrays: Mapping[str, Any]) -> bytes:
    """The bytes of an .npz file with these arrays.

    A thread writes them: Ctrl-C comes to the main thread, and between two steps of `zipfile` it
    would turn into the ValueError of an archive that cannot be closed.
    """
    stream = io.BytesIO()
    with ThreadPoolExecutor(1) as writer:
        writer.submit(partial(np.savez, stream, **arrays)).result()
    return stream.getvalue()
