"""Documents of 20 to 2,000 tokens packed into rows of 2,048, compared with Grain, on one core.

The process runs on one core. Every arm packs the same documents in the same order, with the same
number of bins. First it is checked that each document appears once, in one piece if the method does
not split, with its segment and positions. Then the arms take turns; a turn is an epoch, for Grain,
which takes longer, of 1/20 of the documents. Grain delivers NumPy arrays (without a loss mask), the
pipeline jax.Arrays through its worker thread and ring. A token is 15 bytes: 2 read and 13 written.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Pack, TokenSource

LENGTH, ROWS, BINS = 2048, 64, 64
BAR = 300e6  # tokens a second
METHODS = ("first-fit", "best-fit", "concat-split")
Batches = Iterator[dict[str, Any]]


class Corpus:
    """The first ``count`` documents, whose tokens are random, in one array."""

    def __init__(self, count: int) -> None:
        lengths = np.random.default_rng(0).integers(20, 2001, count)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.random.default_rng(1).integers(1, 50_000, self.offsets[-1])
        self.values = tokens.astype(np.uint16)

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
        from grain import experimental

        records = [{"tokens": document} for document in self.documents]
        documents = grain.MapDataset.source(records).to_iter_dataset()
        kinds = {
            "first-fit": (experimental.FirstFitPackIterDataset, {"num_packing_bins": BINS}),
            "best-fit": (experimental.BestFitPackIterDataset, {"num_packing_bins": BINS}),
            "concat-split": (experimental.ConcatThenSplitIterDataset, {}),
        }
        kind, options = kinds[method]
        rows = kind(documents, length_struct={"tokens": LENGTH}, **options)
        names = {"tokens_segment_ids": "segment_ids", "tokens_positions": "positions"}
        for batch in rows.batch(ROWS, drop_remainder=False):
            yield {names.get(name, name): array for name, array in batch.items()}

    def copied(self) -> Batches:
        """Copy rows that are ready, of the same number of bytes: the limit of the memory."""
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
        split = np.split(tokens[real], np.flatnonzero((positions == 0)[real])[1:])
        pieces += [hash(piece.astype(np.int32).tobytes()) for piece in split]
        if not np.array_equal(positions[real], np.concatenate([np.arange(len(p)) for p in split])):
            raise ValueError("positions do not count from the first token of a segment")
    if not np.array_equal(total, np.bincount(corpus.values, minlength=len(total))):
        raise ValueError("the rows have other tokens than the documents")
    expected = [hash(document.tobytes()) for document in corpus.documents]
    if complete and sorted(pieces) != sorted(expected):
        raise ValueError("the segments are not the documents")
    return len(corpus.values) / size


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(9, 3))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX has threads
    count = 10_000 if bench.quick else 100_000
    corpus, part = Corpus(count), Corpus(count // 20)
    # Name -> documents, and a function that packs them.
    arms: dict[str, tuple[Corpus, Callable[[], Batches]]] = {"copies": (corpus, corpus.copied)}
    packed = {}
    for method in harness.progress(METHODS, "checking"):
        complete = method != "concat-split"
        arms[f"jaxkern, {method}"] = corpus, functools.partial(corpus.pipeline, method)
        efficiency(corpus, corpus.pipeline(method), complete)
        packed[f"jaxkern, {method}"] = efficiency(part, part.pipeline(method), complete)
        with harness.optional("Grain"):
            packed[f"Grain, {method}"] = efficiency(part, part.grain(method), complete)
            arms[f"Grain, {method}"] = part, functools.partial(part.grain, method)
    samples = harness.interleave_epochs({n: make for n, (_, make) in arms.items()}, bench.rounds)
    rates = {name: len(used.values) / samples[name].median for name, (used, _) in arms.items()}
    rows = []
    for name, share in packed.items():
        library, _, method = name.partition(", ")
        row = [method, library, f"{rates[name] / 1e6:,.1f} M", f"{share:.2%}"]
        if library == "Grain":
            rows.append([*row, "", "", ""])
            continue
        verdict = harness.at_least(rates[name], BAR)
        ratio = faster = ""
        if grain := packed.get(f"Grain, {method}"):
            faster, ratio = f"{rates[name] / rates[f'Grain, {method}']:.1f}", f"{grain / share:.3f}"
            verdict += "" if share >= grain else ", **less efficient**"
        rows.append([*row, faster, ratio, verdict])
    header = (
        "method | arm | tokens/s a core | efficiency | against Grain | rows against Grain "
        f"| bar {BAR / 1e6:.0f} M"
    )
    limit = (
        "Copying ready rows of as many bytes, and nothing else: "
        f"{rates['copies'] / 1e6:,.0f} M tokens/s."
    )
    note = (
        f"{count:,} documents into batches of {ROWS} rows, {BINS} bins. Efficiency of both, and "
        "the rate of Grain, of the first twentieth of them. Medians of interleaved epochs."
    )
    lines = [*harness.table(header, "llrrrrl", rows), "", limit]
    bench.write(lines, ["grain"], note, tokens=len(corpus.values), efficiency=packed)


if __name__ == "__main__":
    main()
