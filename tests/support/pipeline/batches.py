"""Helpers of the pipeline tests: small sources, and batches as NumPy arrays."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxkern as jk


def arrays(records: int = 23, size: int = 6) -> dict[str, np.ndarray]:
    """Return distinct u8 images, labels and record ids."""
    rng = np.random.default_rng(records)
    return {
        "image": rng.integers(0, 256, (records, size, size, 3), np.uint8),
        "label": rng.integers(0, 5, records).astype(np.int32),
        "record": np.arange(records, dtype=np.int32),
    }


def epoch_of(batches: Any) -> list[dict[str, Any]]:
    """Return the batches of an iteration as NumPy arrays."""
    return [jax.tree.map(np.asarray, batch) for batch in batches]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Assert that batches are bit-identical."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert jax.tree.structure(one) == jax.tree.structure(other)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def assert_resumes(make: Callable[[int], Any], expected: list[Any], epoch: int = 0) -> None:
    """Assert that every state resumes with the batches after it, with any number of workers.

    `make` makes a pipeline with a number of workers, and `expected` are its batches in an epoch.
    """
    for workers in (0, 3):
        pipe, fresh = make(workers), make(3 - workers)
        pipe.epoch = epoch
        running = iter(pipe)
        for number in range(len(expected) + 1):
            resumed = iter(fresh)
            resumed.set_state(json.loads(json.dumps(running.get_state())))
            assert_same(epoch_of(resumed), expected[number:])
            if number < len(expected):
                next(running)


def is_native(pipe: Any) -> bool:
    """True if native threads make the batches of a pipeline, up to a program on the device."""
    places = {where for *_, where in pipe.explain().nodes}
    return "native threads" in places and places <= {"native threads", "device program"}


def column(batches: list[dict[str, Any]], field: str) -> np.ndarray:
    """Return one field of all batches, concatenated."""
    return np.concatenate([batch[field] for batch in batches])


def outcomes(batches: Any) -> list[Any]:
    """Return each batch, or its exception."""
    iterator, found = iter(batches), []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


def add_noise(element: Any, key: Any) -> Any:
    """Add random bits to the label of a record."""
    return element.update_data({"noise": jax.random.key_data(key) + element.data.get("label", 0)})


#: draws for each record
NOISE = jk.ElementOperator(jk.ElementOperatorConfig(stochastic=True), add_noise)


def pipeline_threads() -> set[threading.Thread]:
    """Return the worker threads of pipelines."""
    return {t for t in threading.enumerate() if t.name.startswith("jaxkern-pipeline")}


def wait_for_no_threads(but: set[threading.Thread]) -> None:
    """Wait until no worker threads run, except some."""
    for thread in pipeline_threads() - but:
        thread.join(60)
        assert not thread.is_alive()
