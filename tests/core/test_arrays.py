"""Archives in memory: would catch an interrupt that zipfile's cleaning up replaces."""

from __future__ import annotations

import io
import signal
import zipfile

import numpy as np
import pytest
from support.errors import raises

from jaxkern.core.arrays import npz_bytes


def test_archive_contains_the_arrays():
    arrays = {"a": np.arange(5), "b": np.ones((2, 3), np.float32)}
    result = np.load(io.BytesIO(npz_bytes(arrays)))
    assert {name: result[name].tolist() for name in result} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_interrupt_is_raised(monkeypatch):
    close = zipfile._ZipWriteFile.close

    def interrupted(file):
        signal.raise_signal(signal.SIGINT)
        close(file)

    monkeypatch.setattr(zipfile._ZipWriteFile, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        npz_bytes({"a": np.arange(5)})


def test_other_errors_are_raised():
    with raises(ValueError, "too large"):
        npz_bytes({"a": _WithoutValues()})


class _WithoutValues:
    def __array__(self, dtype=None, copy=None):
        raise ValueError("too large")
