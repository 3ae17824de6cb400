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
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Pack, TokenSource

LENGTH, ROWS, BINS = 2048, 64, 64
PART = 20  # Grain, which takes longer, packs 1/20 of the documents
SHORTEST, LONGEST = 20, 2000
BAR = 300e6  # tokens a second
METHODS = ("first-fit", "best-fit", "concat-split")
BYTES = 2 + 3 * 4 + 1  # of a token: read as uint16, written to three int32 arrays and the mask

COPIES = "copies of ready rows"
Batches = Iterator[dict[str, Any]]


class Corpus:
    """Documents whose tokens are random, in one array."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        lengths = rng.integers(SHORTEST, LONGEST + 1, count)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.values = rng.integers(1, 50_000, self.offsets[-1]).astype(np.uint16)

    def part(self, count: int) -> Corpus:
        """Return the first documents."""
        result = copy.copy(self)
        result.offsets = self.offsets[: count + 1]
        result.values = self.values[: result.offsets[-1]]
        return result

    @functools.cached_property
    def documents(self) -> list[np.ndarray]:
        """The documents one by one, int32 as the rows of the pipeline."""
        pairs = itertools.pairwise(self.offsets)
        return [self.values[begin:end].astype(np.int32) for begin, end in pairs]

    def pipeline(self, method: Any) -> Batches:
        source = TokenSource(self.values, self.offsets)
        pack = Pack(LENGTH, method=method, max_open_bins=BINS)
        yield from jk.from_source(source, ROWS, num_workers=1) >> pack

    def grain(self, method: str) -> Batches:
        """Yield batches by Grain's packer of the same name."""
        import grain
        from grain.experimental import (
            BestFitPackIterDataset,
            ConcatThenSplitIterDataset,
            FirstFitPackIterDataset,
        )

        records = [{"tokens": document} for document in self.documents]
        documents = grain.MapDataset.source(records).to_iter_dataset()
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
        """Copy rows that are ready, of as many bytes: the limit of the memory."""
        kinds = [np.int32, np.int32, np.int32, np.bool_]
        ready = [[np.ones((ROWS, LENGTH), kind) for kind in kinds] for _ in range(4)]
        outputs = [[np.empty_like(array) for array in rows] for rows in ready]
        for number in range(len(self.values) // (ROWS * LENGTH)):
            for array, output in zip(ready[number % 4], outputs[number % 4], strict=True):
                np.copyto(output, array)
            yield {}


def efficiency(corpus: Corpus, batches: Batches, complete: bool) -> float:
    """Return the share of positions with a token.

    Raises:
      ValueError: a token is missing or repeated, or a document is not ``complete`` in one piece.
    """
    size, pieces = 0, []
    total = np.zeros(50_000, np.int64)
    for batch in batches:
        names = ("tokens", "segment_ids", "positions")
        tokens, segments, positions = (np.asarray(batch[name]) for name in names)
        size += tokens.size
        real = segments > 0
        total += np.bincount(tokens[real], minlength=len(total))
        starts = np.flatnonzero((positions == 0)[real])
        split = np.split(tokens[real], starts[1:])
        pieces += [hash(piece.astype(np.int32).tobytes()) for piece in split]
        if not np.array_equal(positions[real], np.concatenate([np.arange(len(p)) for p in split])):
            raise ValueError("positions do not count from the first token of a segment")
    if not np.array_equal(total, np.bincount(corpus.values, minlength=len(total))):
        raise ValueError("the rows have other tokens than the documents")
    expected = [hash(document.tobytes()) for document in corpus.documents]
    if complete and sorted(pieces) != sorted(expected):
        raise ValueError("the segments are not the documents")
    return len(corpus.values) / size


def table(rates: dict[str, float], filled: dict[str, float], missing: list[str]) -> list[str]:
    """Return a table of the tokens per second and the efficiency of every arm, with the bars."""
    rows, verdicts = [], []
    for method in METHODS:
        ours, grain = f"jaxkern, {method}", f"Grain, {method}"
        verdict = f"{method}: 300 M tokens/s a core {harness.at_least(rates[ours], BAR)}"
        for name in (ours, grain) if grain in rates else (ours,):
            row = [method, name.partition(",")[0], f"{rates[name] / 1e6:,.1f} M"]
            ratio = f"{rates[name] / rates[grain]:.1f}" if grain in rates else ""
            count = f"{filled[grain] / filled[name]:.3f}" if grain in rates else ""
            rows.append([*row, ratio, f"{filled[name]:.2%}", count])
        if grain in rates:
            better = harness.at_least(filled[ours], filled[grain])
            verdict += f", efficiency at least Grain's {better}"
        verdicts.append(f"{verdict}.\n")
    header = "method | arm | tokens/s a core | against Grain | efficiency | rows against Grain"
    limit = (
        f"A token is {BYTES} bytes: 2 read and 13 written. Copying ready rows of as many bytes, "
        f"and nothing else: {rates[COPIES] / 1e6:,.0f} M tokens/s."
    )
    absent = [f"\n{text}." for text in missing]
    return [*harness.table(header, "llrrrr", rows), "", *verdicts, limit, *absent]


def main() -> None:
    options = harness.parse(
        __doc__, ("--documents", {"type": int, "default": 100000}), rounds=(9, 3)
    )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX has threads
    corpus = Corpus(10_000 if options.quick else options.documents)
    part = corpus.part(len(corpus.offsets) // PART)
    available = importlib.util.find_spec("grain") is not None
    makers: dict[str, tuple[Corpus, Callable[[], Batches]]] = {COPIES: (corpus, corpus.copied)}
    filled = {}
    for method in harness.progress(METHODS, "checking"):
        complete = method != "concat-split"
        name = f"jaxkern, {method}"
        makers[name] = corpus, functools.partial(corpus.pipeline, method)
        efficiency(corpus, corpus.pipeline(method), complete)
        filled[name] = efficiency(part, part.pipeline(method), complete)
        if available:
            name = f"Grain, {method}"
            makers[name] = part, functools.partial(part.grain, method)
            filled[name] = efficiency(part, part.grain(method), complete)
    arms = {name: harness.drained(make) for name, (_, make) in makers.items()}
    samples = harness.interleave(arms, options.rounds, warmup=1, turn_seconds=0)
    rates = {name: len(used.values) / samples[name].median for name, (used, _) in makers.items()}
    note = (
        f"{len(corpus.offsets) - 1:,} documents of {SHORTEST} to {LONGEST:,} tokens (uniform) into "
        f"rows of {LENGTH:,}, batches of {ROWS} rows, {BINS} bins; one core. Efficiency of both, "
        "and the rate of Grain, of the first twentieth of them. Medians of interleaved epochs."
    )
    record = {"tokens": len(corpus.values), "samples": samples, "efficiency": filled}
    lines = table(rates, filled, [] if available else ["Grain is not installed"])
    title = "Packing token sequences"
    harness.write("token-packing", title, lines, record, ["grain"], note, options.quick)


if __name__ == "__main__":
    main()
