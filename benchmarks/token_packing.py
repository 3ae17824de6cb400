"""Documents of 20 to 2,000 tokens packed into rows of 2,048, compared with Grain, on one core.

    python benchmarks/token_packing.py            # prints, and writes benchmarks/results/
    python benchmarks/token_packing.py --quick    # fewer documents and rounds, writes nothing

The process runs on one core. Every arm packs the same documents in the same order, with the same
number of bins. First it is checked that each document appears once, in one piece if the method does
not split, with its segment and positions. Then the arms take turns; a turn is an epoch, for Grain
of 1/20 of the documents. Grain delivers NumPy arrays (without a loss mask), the pipeline jax.Arrays
through its worker thread and ring.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Pack, TokenSource

LENGTH, ROWS, BINS = 2048, 64, 64
PART = 20  # Grain, which takes longer, packs 1/20 of the documents
SHORTEST, LONGEST = 20, 2000
BAR = 300e6  # tokens a second
METHODS = ("first-fit", "best-fit", "concat-split")
BYTES = 2 + 3 * 4 + 1  # of a token: read as uint16, written to three int32 arrays and the mask

Batches = Iterator[dict[str, Any]]


class Corpus:
    """Documents whose tokens are random, in one array."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        lengths = rng.integers(SHORTEST, LONGEST + 1, count)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.values = rng.integers(1, 50_000, self.offsets[-1]).astype(np.uint16)

    @property
    def tokens(self) -> int:
        return len(self.values)

    def part(self, count: int) -> Corpus:
        """The first documents."""
        found = copy.copy(self)
        found.offsets = self.offsets[: count + 1]
        found.values = self.values[: found.offsets[-1]]
        return found

    def documents(self) -> Iterator[np.ndarray]:
        """One by one, int32 as the pipeline's rows."""
        for begin, end in itertools.pairwise(self.offsets):
            yield self.values[begin:end].astype(np.int32)

    @functools.cached_property
    def records(self) -> list[dict[str, np.ndarray]]:
        """The documents as Grain reads them."""
        return [{"tokens": document} for document in self.documents()]

    def pipeline(self, method: Any) -> Batches:
        source = TokenSource(self.values, self.offsets)
        pack = Pack(LENGTH, method=method, max_open_bins=BINS)
        yield from jk.from_source(source, ROWS, num_workers=1) >> pack

    def grain(self, method: str) -> Batches:
        """Batches by Grain's packer of the same name."""
        import grain
        from grain.experimental import (
            BestFitPackIterDataset,
            ConcatThenSplitIterDataset,
            FirstFitPackIterDataset,
        )

        documents = grain.MapDataset.source(self.records).to_iter_dataset()
        lengths = {"tokens": LENGTH}
        if method == "concat-split":
            rows = ConcatThenSplitIterDataset(documents, length_struct=lengths)
        else:
            kind = FirstFitPackIterDataset if method == "first-fit" else BestFitPackIterDataset
            rows = kind(documents, length_struct=lengths, num_packing_bins=BINS)
        for batch in rows.batch(ROWS, drop_remainder=False):
            names = {"tokens_segment_ids": "segment_ids", "tokens_positions": "positions"}
            yield {names.get(name, name): array for name, array in batch.items()}

    def copied(self) -> Batches:
        """Nothing but copies of ready rows: what memory allows who writes as many bytes."""
        for number in range(self.tokens // (ROWS * LENGTH)):
            for ready, place in zip(*(rows[number % 4] for rows in self.ready), strict=True):
                np.copyto(place, ready)
            yield {}

    @functools.cached_property
    def ready(self) -> list[list[list[np.ndarray]]]:
        """Rows of four batches, and places for them."""
        kinds = [np.int32, np.int32, np.int32, np.bool_]
        return [[[np.ones((ROWS, LENGTH), k) for k in kinds] for _ in range(4)] for _ in range(2)]


def efficiency(corpus: Corpus, batches: Batches, whole: bool) -> float:
    """The share of places with a token.

    Raises: ValueError unless each document is there once, whole or else in parts.
    """
    places, found = 0, []
    total = np.zeros(50_000, np.int64)
    for batch in batches:
        tokens, segments, positions = (
            np.asarray(batch[name]) for name in ("tokens", "segment_ids", "positions")
        )
        places += tokens.size
        real = segments > 0
        total += np.bincount(tokens[real], minlength=len(total))
        first = real & (positions == 0)
        starts = np.flatnonzero(first[real])
        for part in np.split(tokens[real], starts[1:]):
            found.append(hash(part.astype(np.int32).tobytes()))
        counted = np.concatenate([np.arange(len(p)) for p in np.split(tokens[real], starts[1:])])
        if not np.array_equal(positions[real], counted):
            raise ValueError("positions do not count from a segment's first token")
    if not np.array_equal(total, np.bincount(corpus.values, minlength=len(total))):
        raise ValueError("the rows have other tokens than the documents")
    expected = [hash(document.tobytes()) for document in corpus.documents()]
    if whole and sorted(found) != sorted(expected):
        raise ValueError("the segments are not the documents")
    return corpus.tokens / places


def drained(made: Callable[[], Batches]) -> Callable[[], Any]:
    def turn() -> None:
        for batch in made():
            jax.block_until_ready(batch)

    return turn


def table(rates: dict[str, float], filled: dict[str, float], missing: list[str]) -> str:
    """Tokens a second and efficiency of every arm, with the bars."""
    lines = [
        "| method | arm | tokens/s a core | against Grain | efficiency | rows against Grain |",
        "|---|---|--:|--:|--:|--:|",
    ]
    verdicts = []
    for method in METHODS:
        arms = [name for name in rates if name.endswith(method)]
        grain = next((name for name in arms if name.startswith("Grain")), None)
        for name in arms:
            ratio = rows = ""
            if grain is not None:
                ratio = f"{rates[name] / rates[grain]:.1f}"
                rows = f"{filled[grain] / filled[name]:.3f}"
            lines.append(
                f"| {method} | {name.partition(',')[0]} | {rates[name] / 1e6:,.1f} M | {ratio} "
                f"| {filled[name]:.2%} | {rows} |"
            )
        ours = f"jaxkern, {method}"
        verdicts.append(f"{method}: 300 M tokens/s a core {harness.at_least(rates[ours], BAR)}")
        if grain is not None:
            verdict = harness.at_least(filled[ours], filled[grain])
            verdicts[-1] += f", efficiency at least Grain's {verdict}"
    copied = rates["copies of ready rows"]
    lines += [
        "",
        *(f"{text}.\n" for text in verdicts),
        f"A token is {BYTES} bytes: 2 read and 13 written. Copying ready rows of as many bytes, "
        f"and nothing else: {copied / 1e6:,.0f} M tokens/s.",
        *(f"\n{text}." for text in missing),
    ]
    return "\n".join(lines)


def main() -> None:
    options = harness.parse(
        __doc__, ("--documents", {"type": int, "default": 100000}), rounds=(9, 3)
    )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX has threads
    corpus = Corpus(10_000 if options.quick else options.documents)
    part = corpus.part(len(corpus.offsets) // PART)
    missing = []
    try:
        import grain  # noqa: F401
    except ImportError as error:
        missing.append(f"Grain is missing: {error}")
    makers: dict[str, tuple[Corpus, Callable[[], Batches]]] = {}
    filled = {}
    for method in harness.progress(METHODS, "checking"):
        whole = method != "concat-split"
        name = f"jaxkern, {method}"
        makers[name] = corpus, functools.partial(corpus.pipeline, method)
        efficiency(corpus, corpus.pipeline(method), whole)
        filled[name] = efficiency(part, part.pipeline(method), whole)
        if not missing:
            name = f"Grain, {method}"
            makers[name] = part, functools.partial(part.grain, method)
            filled[name] = efficiency(part, part.grain(method), whole)
    makers["copies of ready rows"] = corpus, corpus.copied
    arms = {name: drained(made) for name, (_, made) in makers.items()}
    rounds = options.rounds
    samples = harness.interleave(arms, rounds, warmup=1, turn_seconds=0)
    rates = {name: used.tokens / samples[name].median for name, (used, _) in makers.items()}
    text = table(rates, filled, missing)
    note = (
        f"{len(corpus.offsets) - 1:,} documents of {SHORTEST} to {LONGEST:,} tokens (uniform) into "
        f"rows of {LENGTH:,}, batches of {ROWS} rows, {BINS} bins; one core. Efficiency of both, "
        "and the rate of Grain, of the first twentieth of them. Medians of interleaved epochs."
    )
    record = {
        "tokens": corpus.tokens,
        "samples": samples,
        "tokens_per_second": rates,
        "efficiency": filled,
        "missing": missing,
    }
    harness.write(
        "token-packing",
        "Packing token sequences",
        text,
        record,
        ["grain"],
        note,
        quick=options.quick,
    )


if __name__ == "__main__":
    main()
