"""Damaged `.npy` files: would catch an error that does not name the file, such as the tokenizer's,
and a file that is shorter or longer than its header says."""

from __future__ import annotations

import numpy as np
import pytest

import jaxkern as jk
from jaxkern.xpcs.files.sources import as_source

READERS = {
    "tokens": lambda path: jk.pipeline.TokenSource(path, [0, 3, 12]),
    "offsets": lambda path: jk.pipeline.TokenSource(np.arange(20), path),
    "fields": lambda path: jk.from_source({"x": path}, 2),
    "matrix": as_source,
}


@pytest.fixture
def file(tmp_path, request):
    """Numbers that are tokens, offsets, fields and a square matrix, and what reads them."""
    path = tmp_path / "numbers.npy"
    values = np.arange(16, dtype=np.int32)
    np.save(path, values.reshape(4, 4).astype(np.float32) if request.param == "matrix" else values)
    return path, READERS[request.param]


def names(path, read):
    """Return True if reading raises an error, which must name the file."""
    error = None
    try:
        read(path)
    except (ValueError, TypeError) as raised:
        error = raised
    assert error is None or "numbers.npy" in str(error)
    return error is not None


@pytest.mark.parametrize("file", READERS, indirect=True)
def test_every_byte_of_the_header(file):
    path, read = file
    whole = path.read_bytes()
    refused = 0
    for place in range(whole.index(b"\n") + 1):
        for byte in (0, whole[place] ^ 1, ord("("), ord("\\"), 255):
            damaged = bytearray(whole)
            damaged[place] = byte
            path.write_bytes(damaged)
            refused += names(path, read)
    assert refused > 250


@pytest.mark.parametrize("file", READERS, indirect=True)
def test_other_lengths(file):
    path, read = file
    whole = path.read_bytes()
    cuts = b"", whole[:3], whole[:90], whole[:-1]
    for damaged in (*cuts, whole + b"\0", whole * 2, b"PK" + whole):
        path.write_bytes(damaged)
        assert names(path, read)
    path.write_bytes(whole)
    assert not names(path, read)
