"""From JPEG files to augmented batches, compared with other libraries; see `peers`.

2,048 photographs of about 500 x 375 to float32 batches of 64, two threads or processes everywhere:
random resized crop to 224, flip and normalize (training); resize to 256 and center crop
(evaluation). The files are in the page cache. The first batch of every arm is compared with
Pillow's decoding and the chain of this package; then the arms take turns, one epoch each.
``--native build/bench/bench_jpeg``, which ``make bench-native`` builds, only decodes the same
boxes, which is the upper limit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import image_augment
import jax
import numpy as np
import peers
from image_augment import NORMALIZE, SIZE
from peers import Work
from photographs import make_folder, megabytes

import jaxkern as jk

BATCH = 64
BARS = {"training": 1.4, "evaluation": 1.2}
LIMIT, LIMIT_BAR = "regions decoded alone", 0.9
# Mean difference in levels of 255 from the reference that a peer's rounding and decoder may have.
# A center crop of whole pixels is not the crop of the resized image: it may be off by one.
LEVELS = {"training": 2.0, "evaluation": 8.0}


def chain(kind: str, antialias: bool = True) -> jk.image.Compose:
    if kind == "training":
        return image_augment.chain(antialias=antialias)
    resize = jk.image.Resize(256, antialias=antialias)
    return jk.image.Compose([resize, jk.image.CenterCrop(SIZE), NORMALIZE])


def work_of(kind: str, paths: list[Path]) -> Work:
    """Return the boxes and flips that this package draws for the records of its first epoch."""
    from PIL import Image

    sizes = np.array([Image.open(path).size[::-1] for path in paths], np.int32)
    if kind == "training":
        params = image_augment.draw(chain(kind), len(paths), (sizes[:, 0], sizes[:, 1]))
        return Work(paths, *image_augment.boxes_and_flips(params), SIZE, BATCH)
    # The part of the original image that the center crop of the resized one shows.
    side = sizes.min(1) * SIZE / 256
    boxes = np.stack([(sizes[:, 0] - side) / 2, (sizes[:, 1] - side) / 2, side, side], 1)
    return Work(paths, np.round(boxes).astype(np.int32), np.zeros(len(paths), bool), SIZE, BATCH)


def in_jax(kind: str, images: list[np.ndarray], antialias: bool, records: Any = None) -> np.ndarray:
    """Return the batch of decoded images by the chain in pure JAX."""
    with jk.backend("jax"):
        ragged, aug = jk.image.Ragged.from_list(images), chain(kind, antialias)
        records = np.arange(len(images)) if records is None else records
        keys = jk.random.record_keys(0, 0, records)
        return np.asarray(aug.apply(ragged, aug.sample(keys, ragged)))


def of_pipeline(source: Any, kind: str, antialias: bool = True, **options: Any) -> peers.Arm:
    """Return an arm with a pipeline as users write it; each turn is the next epoch."""
    pipe = jk.from_source(source, BATCH, drop_remainder=True, **options) >> chain(kind, antialias)

    def epoch() -> Iterator[jax.Array]:
        for batch in pipe:
            yield batch["image"]

    return epoch


def check_mean(name: str, batch: Any, expected: np.ndarray, limit: float) -> None:
    """End the benchmark if the mean difference exceeds ``limit`` levels of 255."""
    batch = np.asarray(batch)
    if batch.shape[1] == 3:
        batch = batch.transpose(0, 2, 3, 1)
    scale = image_augment.LEVELS
    harness.check_levels(name, batch, expected, limit, mean=True, scale=scale)


def compare_kind(
    root: Path, paths: list[Path], kind: str, rounds: int, native: str | None
) -> list[harness.Row]:
    """Return the rows of the table, after a comparison of the values."""
    work = work_of(kind, paths)
    arms = {"jaxkern": of_pipeline(jk.pipeline.ImageFolder(root), kind)}
    arms |= peers.available(peers.FILES, work)
    for name, arm in arms.items():
        ours = name == "jaxkern"
        records = np.arange(len(paths))[peers.FIRST.get(name, slice(None))][:BATCH]
        images = [peers.read_pillow(paths[i]) for i in records]
        expected = in_jax(kind, images, ours or peers.FILES[name][1], records)
        batches = arm()
        check_mean(f"{name}, {kind}", next(batches), expected, 1e-3 if ours else LEVELS[kind])
        for _ in batches:
            pass
    theirs = [name for name in arms if name != "jaxkern"]
    if native:
        listing = root.with_name(f"{root.name}-{kind}.txt")
        arms[LIMIT] = peers.regions_alone(native, listing, work)
    samples = harness.interleave_epochs(arms, rounds)
    rows = [harness.Row(name, samples, "jaxkern", [name], BARS[kind]) for name in theirs]
    rows.append(harness.Row("the fastest", samples, "jaxkern", theirs, BARS[kind]))
    if native:
        rows.append(harness.Row(LIMIT, samples, "jaxkern", [LIMIT], LIMIT_BAR))
    return rows


def main() -> None:
    bench = harness.Benchmark(
        __doc__,
        {
            "--native": {"metavar": "BENCH_JPEG", "help": "program that only decodes the boxes"},
        },
        rounds=(5, 2),
    )
    count = 256 if bench.quick else 2048
    images = count // BATCH * BATCH
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "photos")
        paths = make_folder(root, count)
        size = megabytes(paths)
        rows = {
            kind: compare_kind(root, paths, kind, bench.rounds, bench.options.native)
            for kind in BARS
        }
    for kind in BARS:
        lines += [f"## {kind.capitalize()}", "", *harness.rates(rows[kind], images), ""]
    note = (
        f"{count} JPEG files, {size:.0f} MB, quality 90, 4:2:0, in the page cache. Medians of "
        "interleaved epochs, as an ordinary process runs."
    )
    path = bench.write(lines, peers.PACKAGES, note)
    if path is not None:
        samples, title = rows["training"][0].samples, "JPEG files to augmented batches"
        harness.chart_rates(path.with_suffix(".png"), samples, images, title)


if __name__ == "__main__":
    main()
