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

BATCH = 64
BAR = 0.97  # of the defaults' rate, for noise
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
    """Work that NumPy does without the interpreter's lock."""
    values = batch["image"].astype(np.float32)
    return {**batch, "image": np.sqrt(np.sqrt(values + 1))}


def even(batch: dict[str, Any]) -> np.ndarray:
    return batch["label"] % 2 == 0


def records() -> Iterator[dict[str, Any]]:
    for image, label in zip(PIXELS, ROWS["label"], strict=True):
        yield {"image": image, "label": label}


WORKS: dict[str, Callable[..., Pipeline]] = {
    "rows in native threads": lambda **how: jk.from_source(ROWS, BATCH, shuffle=True, **how),
    "a NumPy function": lambda **how: jk.from_source(ROWS, BATCH, shuffle=True, **how) >> roots,
    "a source with latency": lambda **how: jk.from_source(Far(), BATCH, shuffle=True, **how),
    "a filter": lambda **how: (
        jk.from_source(ROWS, BATCH, shuffle=True, **how) >> roots >> Filter(even, batched=True)
    ),
    "a stream": lambda **how: jk.from_stream(records, BATCH, shuffle_buffer=500, **how) >> roots,
}


def epoch(pipe: Pipeline) -> None:
    pipe.epoch = 0
    for batch in pipe:
        jax.block_until_ready(batch)


def sums(pipe: Pipeline) -> list[Any]:
    """Return sums that identify the batches."""
    pipe.epoch = 0
    return [[np.asarray(x, np.float64).sum() for x in jax.tree.leaves(batch)] for batch in pipe]


def main() -> None:
    options = harness.parse(__doc__, rounds=(15, 3))
    lines = [
        "| work | chosen, epochs/s | defaults | 1, 4, 8 workers | chosen / defaults "
        "(95% interval) | bar | |",
        "|---|--:|--:|---|--:|--:|---|",
    ]
    choices, record = [], {}
    for work, make in harness.progress(WORKS.items(), "works"):
        pipes = {"chosen": make(num_workers="auto", prefetch_size="auto"), "defaults": make()}
        pipes |= {f"{n} workers": make(num_workers=n, prefetch_size=n + 2) for n in (1, 4, 8)}
        found = {name: sums(pipe) for name, pipe in pipes.items()}
        if any(other != found["defaults"] for other in found.values()):
            raise ValueError(f"the batches of {work} depend on the workers")
        end = time.perf_counter() + (2.0 if options.quick else SECONDS)
        while time.perf_counter() < end:
            epoch(pipes["chosen"])
        arms = {name: lambda pipe=pipe: epoch(pipe) for name, pipe in pipes.items()}
        rounds = options.rounds
        samples = harness.interleave(arms, rounds, warmup=1, turn_seconds=0)
        rates = {name: 1 / times.median for name, times in samples.items()}
        row = harness.Row(work, samples, "chosen", ["defaults"], BAR)
        fixed = ", ".join(f"{rates[f'{n} workers']:.3g}" for n in (1, 4, 8))
        lines.append(
            f"| {work} | {rates['chosen']:.3g} | {rates['defaults']:.3g} | {fixed} | {row.ratio} "
            f"| {BAR:g} | {harness.at_least(row.ratio.value, BAR)} |"
        )
        last = iter(pipes["chosen"])
        next(last), next(last)
        stats = last.stats()
        last.close()
        assert stats is not None
        choices.append(
            f"- {work}: {stats.num_workers} threads, {stats.prefetch_size} batches ahead"
        )
        choices += [f"  - {text}" for text in stats.choices]
        record[work] = {"samples": samples, "choices": stats.choices}
    text = "\n".join([*lines, "", "What was tried and kept:", "", *choices])
    harness.write(
        "chosen-workers", "Workers that a pipeline chooses", text, record, quick=options.quick
    )


if __name__ == "__main__":
    main()
