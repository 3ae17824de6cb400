"""Pipelines with automatic numbers of workers, compared with the defaults and fixed numbers.

    python benchmarks/chosen_workers.py            # prints, and writes benchmarks/results/
    python benchmarks/chosen_workers.py --quick    # few rounds, writes nothing

For each workload: automatic numbers (both "auto"), the defaults, and 1, 4 and 8 workers. First the
batches of all arms are compared. The automatic pipeline runs for some seconds until it has chosen;
then the arms take turns, one epoch each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Filter, Pipeline

BATCH, BAR = 64, 0.97  # of the defaults' rate, for noise
SECONDS = 12.0  # in which a choice is made
PIXELS = np.random.default_rng(0).integers(0, 256, (2048, 64, 64, 3), np.uint8)
ROWS = {"image": PIXELS, "label": np.arange(len(PIXELS), dtype=np.int32)}


class Far:
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


def rows(**options: Any) -> Pipeline:
    return jk.from_source(ROWS, BATCH, shuffle=True, **options)


EVEN = Filter(lambda batch: batch["label"] % 2 == 0, batched=True)
WORKS: dict[str, Callable[..., Pipeline]] = {
    "rows in native threads": rows,
    "a NumPy function": lambda **options: rows(**options) >> roots,
    "a source with latency": lambda **options: jk.from_source(
        Far(), BATCH, shuffle=True, **options
    ),
    "a filter": lambda **options: rows(**options) >> roots >> EVEN,
    "a stream": lambda **options: (
        jk.from_stream(records, BATCH, shuffle_buffer=500, **options) >> roots
    ),
}


def epoch(pipe: Pipeline) -> Iterator[Any]:
    pipe.epoch = 0
    yield from pipe


def sums(pipe: Pipeline) -> list[Any]:
    """Return sums that identify the batches."""
    return [[np.asarray(x, float).sum() for x in jax.tree.leaves(b)] for b in epoch(pipe)]


def main() -> None:
    options = harness.parse(__doc__, rounds=(15, 3))
    rows, choices, record = [], [], {}
    for work, make in harness.progress(WORKS.items(), "works"):
        pipes = {"chosen": make(num_workers="auto", prefetch_size="auto"), "defaults": make()}
        pipes |= {f"{n} workers": make(num_workers=n, prefetch_size=n + 2) for n in (1, 4, 8)}
        identities = {name: sums(pipe) for name, pipe in pipes.items()}
        if any(other != identities["defaults"] for other in identities.values()):
            raise ValueError(f"the batches of {work} depend on the workers")
        arms = {n: harness.drained(lambda pipe=pipe: epoch(pipe)) for n, pipe in pipes.items()}
        end = time.perf_counter() + (2.0 if options.quick else SECONDS)
        while time.perf_counter() < end:
            arms["chosen"]()
        samples = harness.interleave(arms, options.rounds, warmup=1, turn_seconds=0)
        rates = {name: f"{1 / times.median:.3g}" for name, times in samples.items()}
        row = harness.Row(work, samples, "chosen", ["defaults"], BAR)
        fixed = ", ".join(rates[f"{n} workers"] for n in (1, 4, 8))
        verdict = harness.at_least(row.ratio.value, BAR)
        rows.append((work, rates["chosen"], rates["defaults"], fixed, row.ratio, BAR, verdict))
        last = iter(pipes["chosen"])
        next(last), next(last)
        stats = last.stats()
        last.close()
        assert stats is not None
        chosen = f"{stats.num_workers} threads, {stats.prefetch_size} batches ahead"
        choices += [f"- {work}: {chosen}", *(f"  - {text}" for text in stats.choices)]
        record[work] = {"samples": samples, "choices": stats.choices}
    header = (
        "work | chosen, epochs/s | defaults | 1, 4, 8 workers "
        "| chosen / defaults (95% interval) | bar | "
    )
    lines = [*harness.table(header, "lrrlrrl", rows), "", "Choices:", "", *choices]
    title = "Workers that a pipeline chooses"
    harness.write("chosen-workers", title, lines, record, quick=options.quick)


if __name__ == "__main__":
    main()
