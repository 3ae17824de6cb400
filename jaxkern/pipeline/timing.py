"""How long the batches of several forms of a pipeline take, in turns."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import jax

from jaxkern.pipeline.iteration import PipelineIterator
from jaxkern.pipeline.rows import Data

_ROUNDS = 3
_SECONDS = 0.3  # of batches, in each round and form
_BATCHES = 3  # at least, where the epoch has them

Form = TypeVar("Form")


def batch_seconds(forms: Mapping[Form, Callable[[int], PipelineIterator]]) -> dict[Form, float]:
    """Seconds of a batch, medians of rounds: from one to the next, or of an epoch of few.

    Args:
      forms: what makes the iterator of an epoch. Epoch 0 is read several times, from its start.
    """
    rounds: dict[Form, list[float]] = {form: [] for form in forms}
    for start in forms.values():  # compiles
        _one_round(start, 0.0)
    for _ in range(_ROUNDS):
        for form, start in forms.items():
            rounds[form].append(_one_round(start, _SECONDS))
    return {form: statistics.median(times) for form, times in rounds.items()}


def _one_round(start: Callable[[int], PipelineIterator], seconds: float) -> float:
    with contextlib.closing(start(0)) as batches:
        started = time.perf_counter()
        whole = _without_errors(batches)
        jax.block_until_ready(next(whole))
        taken, begin = 0, time.perf_counter()
        for batch in whole:
            jax.block_until_ready(batch)
            taken += 1
            if taken >= _BATCHES and time.perf_counter() - begin >= seconds:
                break
        if taken >= _BATCHES:
            return (time.perf_counter() - begin) / taken
        # Those few behind the first were made while that was waited for.
        return (time.perf_counter() - started) / (taken + 1)


def _without_errors(batches: PipelineIterator) -> Iterator[Data]:
    """The batches that do not raise; the error of the last one where all of them do."""
    failed, found = None, False
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except Exception as error:
            failed = error
            continue
        found = True
        yield batch
    if failed is not None and not found:
        raise failed
