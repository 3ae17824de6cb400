"""From JPEG files to augmented batches, compared with other libraries; see `file_peers`.

    python benchmarks/file_batches.py            # prints, and writes benchmarks/results/
    python benchmarks/file_batches.py --quick    # few files and rounds, writes nothing

2,048 photographs of about 500 x 375 to float32 batches of 64, two threads or processes everywhere:
random resized crop to 224, flip and normalize (training); resize to 256 and center crop
(evaluation). The files are in the page cache. The first batch of every arm is compared with
Pillow's decoding and the chain of this package; then the arms take turns, one epoch each. ``--ffcv
PYTHON``, an interpreter with ffcv, adds ffcv, which draws its own boxes and reads files that are
packed before. ``--native build/bench/bench_jpeg``, which ``make bench-native`` builds, only decodes
the same boxes, which is the upper limit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import file_peers
import harness
import jax
import numpy as np
from file_peers import FileWork
from photographs import make_folder, megabytes

import jaxkern as jk
from jaxkern.benchmarking.plots import bar_chart
from jaxkern.core.threads import schedulable_cpus

COUNT, BATCH, SIZE = 2048, 64, 224
MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])
BARS = {"training": 1.4, "evaluation": 1.2}
LIMIT = "regions decoded alone"
LIMIT_BAR = 0.9
# Mean difference in levels of 255 from the reference that a peer's rounding and decoder may have.
LEVELS = 2.0


def chain(work: str, antialias: bool = True) -> jk.image.Compose:
    image = jk.image
    if work == "training":
        first: list[Any] = [
            image.RandomResizedCrop(SIZE, antialias=antialias),
            image.RandomHorizontalFlip(),
        ]
    else:
        first = [image.Resize(256, antialias=antialias), image.CenterCrop(SIZE)]
    return image.Compose([*first, image.Normalize(MEAN.tolist(), STD.tolist())])


def drawn(work: str, paths: list[Path]) -> FileWork:
    """The boxes and flips that this package draws for the records of its first epoch."""
    from PIL import Image

    sizes = np.array([Image.open(path).size[::-1] for path in paths], np.int32)
    if work == "training":
        keys = jk.random.record_keys(0, 0, np.arange(len(paths)))
        crop, flip, _ = chain(work).sample(keys, (sizes[:, 0], sizes[:, 1]))
        boxes = np.stack([np.asarray(crop[k]) for k in ("top", "left", "height", "width")], 1)
        flips = np.asarray(flip["flip"])
    else:  # the part of the file's image that the center crop of the resized one shows
        side = sizes.min(1) * SIZE / 256
        boxes = np.stack([(sizes[:, 0] - side) / 2, (sizes[:, 1] - side) / 2, side, side], 1)
        boxes, flips = np.round(boxes).astype(np.int32), np.zeros(len(paths), bool)
    return FileWork(paths, boxes, flips, SIZE, BATCH, MEAN, STD)


def reference(work: str, paths: list[Path], antialias: bool, records: range) -> np.ndarray:
    """The batch of these records: decoded by Pillow, and the chain in pure JAX."""
    from PIL import Image

    with jk.backend("jax"):
        images = [np.asarray(Image.open(paths[i]).convert("RGB")) for i in records]
        ragged = jk.image.Ragged.from_list(images)
        aug = chain(work, antialias)
        keys = jk.random.record_keys(0, 0, np.array(records))
        return np.asarray(aug.apply(ragged, aug.sample(keys, ragged)))


def ours(root: Path, work: str, antialias: bool = True) -> Callable[[], Iterator[jax.Array]]:
    """Return an arm with a pipeline as users write it; each turn is the next epoch."""
    source = jk.pipeline.ImageFolder(root)
    pipe = jk.from_source(source, BATCH, drop_remainder=True) >> chain(work, antialias)

    def epoch() -> Iterator[jax.Array]:
        for batch in pipe:
            yield batch["image"]

    return epoch


def levels(batch: Any, expected: np.ndarray) -> float:
    """Mean difference in levels of 255."""
    found = np.asarray(batch)
    if found.shape[1] == 3:
        found = found.transpose(0, 2, 3, 1)
    return float(np.mean(np.abs(found - expected) * (255 * STD)))


def compared(
    root: Path, paths: list[Path], work: str, rounds: int, options: argparse.Namespace
) -> tuple[Any, ...]:
    """Rows of the table, what is missing, and the differences in levels."""
    given = drawn(work, paths)
    arms: dict[str, Callable[[], Iterator[Any]]] = {"jaxkern": ours(root, work)}
    peers, missing = file_peers.made(given)
    arms |= peers
    errors = {}
    usual = range(len(paths))
    for name, arm in arms.items():
        smooth = name == "jaxkern" or file_peers.PEERS[name][2]
        batches = arm()
        first = file_peers.FIRST.get(name, usual)[:BATCH]
        errors[name] = levels(next(batches), reference(work, paths, smooth, first))
        for _ in batches:
            pass
        # A center crop of whole pixels is not the crop of the resized image: it may be off by one.
        limit = LEVELS if work == "training" else 4 * LEVELS
        if errors[name] > (1e-3 if name == "jaxkern" else limit):
            raise SystemExit(f"{name} differs by {errors[name]:.3g} levels from the reference")

    if options.ffcv and work == "training":
        packed = root.with_name(root.name + ".beton")
        arms["ffcv, its own file"] = file_peers.ffcv(options.ffcv, root, packed, "jpg", 512, given)
    theirs = [name for name in arms if name != "jaxkern"]
    if options.native:
        listing = root.with_name(f"{root.name}-{work}.txt")
        arms[LIMIT] = file_peers.regions_alone(options.native, listing, given)

    def epoch(arm: Callable[[], Iterator[Any]]) -> Callable[[], None]:
        def run() -> None:
            for _ in arm():
                pass

        return run

    samples = harness.interleave(
        {name: epoch(arm) for name, arm in arms.items()}, rounds, warmup=1, turn_seconds=0.0
    )
    bar = BARS[work]
    rows = [harness.Row(name, samples, "jaxkern", [name], bar) for name in theirs]
    rows.append(harness.Row("the fastest", samples, "jaxkern", theirs, bar))
    if LIMIT in samples:
        rows.append(harness.Row(LIMIT, samples, "jaxkern", [LIMIT], LIMIT_BAR))
    return rows, missing, errors


def main() -> None:
    options = harness.parse(
        __doc__,
        ("--folder", {"type": Path, "help": "directory of the photographs; created if missing"}),
        ("--ffcv", {"metavar": "PYTHON", "help": "a Python interpreter with ffcv"}),
        ("--native", {"metavar": "BENCH_JPEG", "help": "program that decodes only the boxes"}),
    )
    count, rounds = (256, 2) if options.quick else (COUNT, 5)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        paths = sorted(make_folder(root, count))
        made = count // BATCH * BATCH
        lines: list[str] = []
        record: dict[str, Any] = {"images": made, "megabytes": megabytes(paths)}
        for work in BARS:
            rows, missing, errors = compared(root, paths, work, rounds, options)
            absent = [f"| {name} | missing | | | | |" for name in missing]
            lines += [f"## {work.capitalize()}", "", *harness.rates(rows, made), *absent, ""]
            record[work] = {
                "samples": rows[0].samples,
                "ratios": harness.ratios(rows),
                "mean_difference_in_levels": errors,
                "missing": missing,
            }
    text = "\n".join(lines)
    note = (
        f"{count} JPEG files, {record['megabytes']:.0f} MB, quality 90, 4:2:0, in the page cache; "
        f"{BATCH} a batch; SIMD {jk.doctor().simd_level}. Medians of interleaved epochs, as an "
        "ordinary process runs."
    )
    packages = [
        "opencv-python-headless", "simplejpeg", "pillow", "torch", "torchvision",
        "nvidia-dali-cuda130", "grain",
    ]  # fmt: skip
    path = harness.write(
        "file-batches",
        "From JPEG files to batches",
        text,
        record,
        packages,
        note,
        quick=options.quick,
    )
    if path is None:
        return
    samples = record["training"]["samples"]
    shown = sorted(samples, key=lambda name: samples[name].median)
    bar_chart(
        path.with_suffix(".png"),
        shown,
        [made / samples[name].median for name in shown],
        f"JPEG files to augmented batches on {schedulable_cpus()} cores",
        "images/s",
        own="jaxkern",
    )


if __name__ == "__main__":
    main()
