"""Archives in memory: would catch an interrupt that zipfile's cleaning up replaces."""

from __future__ import annotations

import io
import signal
import threading
import zipfile
from concurrent.futures import Future

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
    close, result, is_waiting = zipfile._ZipWriteFile.close, Future.result, threading.Event()

    def interrupted(file):
        is_waiting.wait()  # CPython may lose an interrupt of the start of a thread
        signal.raise_signal(signal.SIGINT)
        close(file)

    def waited(future):
        is_waiting.set()
        return result(future)

    monkeypatch.setattr(zipfile._ZipWriteFile, "close", interrupted)
    monkeypatch.setattr(Future, "result", waited)
    with pytest.raises(KeyboardInterrupt):
        npz_bytes({"a": np.arange(5)})


def test_other_errors_are_raised():
    with raises(ValueError, "too large"):
        npz_bytes({"a": _WithoutValues()})


class _WithoutValues:
    def __array__(self, dtype=None, copy=None):
        raise ValueError("too large")
