"""Pipelines with automatic numbers of workers, compared with the defaults and fixed numbers.

For each case: automatic numbers (both "auto"), the defaults, and 1, 4 and 8 workers. First the
batches of all arms are compared. The automatic pipeline runs for some seconds until it has chosen;
then the arms take turns, one epoch each.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Filter, Pipeline

BATCH, BAR = 64, 0.97  # of the defaults' rate, for noise
PIXELS = np.random.default_rng(0).integers(0, 256, (2048, 64, 64, 3), np.uint8)
ROWS = {"image": PIXELS, "label": np.arange(len(PIXELS), dtype=np.int32)}


class SlowSource:
    """A source with latency, like a network."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, record: int) -> dict[str, Any]:
        time.sleep(0.0005)
        return {"image": PIXELS[record], "label": np.int32(record)}


def roots(batch: dict[str, Any]) -> dict[str, Any]:
    """Work for which NumPy releases the interpreter's lock."""
    return {**batch, "image": np.sqrt(np.sqrt(batch["image"].astype(np.float32) + 1))}


def records() -> Iterator[dict[str, Any]]:
    for image, label in zip(PIXELS, ROWS["label"], strict=True):
        yield {"image": image, "label": label}


def shuffled(source: Any, **workers: Any) -> Pipeline:
    return jk.from_source(source, BATCH, shuffle=True, **workers)


EVEN = Filter(lambda batch: batch["label"] % 2 == 0, batched=True)
CASES: dict[str, Callable[..., Pipeline]] = {
    "rows in native threads": functools.partial(shuffled, ROWS),
    "a NumPy function": lambda **workers: shuffled(ROWS, **workers) >> roots,
    "a source with latency": functools.partial(shuffled, SlowSource()),
    "a filter": lambda **workers: shuffled(ROWS, **workers) >> roots >> EVEN,
    "a stream": lambda **workers: (
        jk.from_stream(records, BATCH, shuffle_buffer=500, **workers) >> roots
    ),
}


def first_epoch(pipe: Pipeline) -> Iterator[Any]:
    pipe.epoch = 0
    yield from pipe


def sums(pipe: Pipeline) -> list[Any]:
    """Return sums that identify the batches."""
    return [[np.asarray(x, float).sum() for x in jax.tree.leaves(b)] for b in first_epoch(pipe)]


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(15, 3))
    rows, choices = [], []
    for case, make in harness.progress(CASES.items(), "cases"):
        pipes = {"chosen": make(num_workers="auto", prefetch_size="auto"), "defaults": make()}
        pipes |= {f"{n} workers": make(num_workers=n, prefetch_size=n + 2) for n in (1, 4, 8)}
        identities = [sums(pipe) for pipe in pipes.values()]
        if any(other != identities[0] for other in identities):
            raise ValueError(f"the batches of {case} depend on the workers")
        end = time.perf_counter() + (2 if bench.quick else 12)
        while time.perf_counter() < end:
            sums(pipes["chosen"])
        epochs = {name: functools.partial(first_epoch, pipe) for name, pipe in pipes.items()}
        samples = harness.interleave_epochs(epochs, bench.rounds)
        chosen, defaults, *fixed = (f"{1 / samples[name].median:.3g}" for name in pipes)
        row = harness.Row(case, samples, "chosen", ["defaults"], BAR)
        rows.append((case, chosen, defaults, ", ".join(fixed), row.ratio, BAR, row.verdict))
        last = iter(pipes["chosen"])
        next(last), next(last)
        stats = last.stats()
        last.close()
        counts = f"{stats.num_workers} threads, {stats.prefetch_size} batches ahead"
        choices += [f"- {case}: {counts}", *(f"  - {text}" for text in stats.choices)]
    header = (
        "work | chosen, epochs/s | defaults | 1, 4, 8 workers "
        "| chosen / defaults (95% interval) | bar | "
    )
    bench.write([*harness.table(header, "lrrlrrl", rows), "", "Choices:", "", *choices])


if __name__ == "__main__":
    main()
