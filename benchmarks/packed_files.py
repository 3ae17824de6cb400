"""From packed files to augmented batches, compared with the kernel alone and with unpacked files.

    python benchmarks/packed_files.py            # prints, and writes benchmarks/results/
    python benchmarks/packed_files.py --quick    # few images and rounds, writes nothing

Two threads, float32 batches of 64, random resized crop to 224, flip and normalize. One packed file
has raw images, 256 x 256; it is compared with the kernel alone on batches in memory, and with
arrays in memory. The other has JPEG images with a longest side of 256, made from photographs of
about 500 x 375; it is compared with the folder of the photographs. All files are in the page cache,
and checksums were verified in an earlier epoch. First the values of a batch are compared; then the
arms take turns, one epoch each, with the default allocator, where results are fresh memory, and
again with freed memory kept. ``--ffcv PYTHON``, an interpreter with ffcv, adds ffcv's raw file of
the folder.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import file_peers
import harness
import jax
import numpy as np
from file_batches import BATCH, LEVELS, chain, drawn, levels
from photographs import make_folder, megabytes
from ring_batches import in_fresh_process, made_images

import jaxkern as jk

SIDE = 256
RAW_BAR, JPEG_BAR, FFCV_BAR = 0.85, 2.0, 5.0

Epoch = Callable[[], Iterator[Any]]


def of_pipeline(source: Any, antialias: bool) -> Epoch:
    """Return an arm with a shuffled pipeline; each turn is the next epoch."""
    pipe = jk.from_source(source, BATCH, shuffle=True, drop_remainder=True)
    pipe = pipe >> chain("training", antialias)

    def epoch() -> Iterator[jax.Array]:
        for batch in pipe:
            yield batch["image"]

    return epoch


def kernel_alone(images: np.ndarray) -> Epoch:
    """The chain's compiled call with each batch's own parameters, on eight batches of images."""
    aug = chain("training", antialias=False)
    ready = [
        jax.numpy.asarray(images[i * BATCH : (i + 1) * BATCH])
        for i in range(min(8, len(images) // BATCH))
    ]
    apply = jax.jit(aug.apply)
    keys = jk.random.record_keys(0, 0, np.arange(len(images)))
    params = jax.tree.map(np.asarray, jax.jit(lambda k: aug.sample(k, (SIDE, SIDE)))(keys))

    def epoch() -> Iterator[jax.Array]:
        for number in range(len(images) // BATCH):
            rows = slice(number * BATCH, (number + 1) * BATCH)
            of_batch = jax.tree.map(lambda x, rows=rows: x[rows], params)
            yield apply(ready[number % len(ready)], of_batch).block_until_ready()

    return epoch


def first_batch(source: Any, antialias: bool) -> np.ndarray:
    """Of the records in order, by native threads."""
    pipe = jk.from_source(source, BATCH) >> chain("training", antialias)
    return np.asarray(next(iter(pipe))["image"])


def in_jax(images: list[np.ndarray], antialias: bool) -> np.ndarray:
    """The same of decoded images by the JAX code."""
    with jk.backend("jax"):
        aug = chain("training", antialias)
        ragged = jk.image.Ragged.from_list(images)
        keys = jk.random.record_keys(0, 0, np.arange(len(images)))
        return np.asarray(aug.apply(ragged, aug.sample(keys, ragged)))


def check(name: str, found: np.ndarray, expected: np.ndarray, limit: float) -> None:
    if not levels(found, expected) <= limit:
        raise SystemExit(
            f"{name} differs by {levels(found, expected):.3g} levels from the reference"
        )


def pillow(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB")
        scale = SIDE / max(small.size)
        size = tuple(round(side * scale) for side in small.size)
        return np.asarray(small.resize(size, Image.Resampling.LANCZOS))


def packed(folder: Path, raw: int, photographs: int) -> dict[str, float]:
    """Write the packed files and the folder; return their sizes in MB."""
    paths = make_folder(folder / "photos", photographs)
    photos = jk.pipeline.ImageFolder(folder / "photos")
    pack = jk.pipeline.pack
    pack({"image": made_images(raw)}, folder / "raw.jkp", format="raw")
    pack(photos, folder / "jpeg.jkp", format="jpeg:90", max_side=SIDE)
    pack(photos, folder / "photos.jkp", format="raw", max_side=SIDE)
    sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(folder.glob("*.jkp"))}
    return {**sizes, "the folder": megabytes(paths)}


def compared(folder: Path, rounds: int, ffcv: str | None, kept: bool) -> list[Any] | None:
    """Rows with the images of a turn; None where freed memory shall be `kept` and cannot be."""
    if kept and not jk.performance.tune_host_allocator():
        return None
    photos, raw, jpeg = folder / "photos", folder / "raw.jkp", folder / "jpeg.jkp"
    paths = sorted(photos.glob("*/*.jpg"))
    images = made_images(len(jk.pipeline.PackedSource(raw)))
    check("raw", first_batch(raw, False), in_jax(list(images[:BATCH]), False), 1e-3)
    # Compressed once more than the reference.
    small = [pillow(path) for path in paths[:BATCH]]
    check("JPEG", first_batch(jpeg, True), in_jax(small, True), 2 * LEVELS)

    arms: dict[str, Epoch] = {
        "packed raw": of_pipeline(raw, False),
        "arrays in memory": of_pipeline({"image": images}, False),
        "the kernel alone, 2 threads": kernel_alone(images),
        "packed JPEG": of_pipeline(jpeg, True),
        "the folder": of_pipeline(jk.pipeline.ImageFolder(photos), True),
    }
    pairs = [
        ("the kernel alone", "packed raw", "the kernel alone, 2 threads", RAW_BAR),
        ("arrays in memory", "packed raw", "arrays in memory", 0.0),
        ("the folder of full-size files", "packed JPEG", "the folder", JPEG_BAR),
    ]
    if ffcv:
        work = drawn("training", paths)
        arms["packed raw photographs"] = of_pipeline(folder / "photos.jkp", True)
        arms["ffcv, raw"] = file_peers.ffcv(
            ffcv, photos, folder / "photos.beton", "raw", SIDE, work
        )
        pairs.append(("ffcv, raw", "packed raw photographs", "ffcv, raw", FFCV_BAR))

    def drained(name: str) -> None:
        count = 0
        for batch in arms[name]():
            count += 1
            del batch  # the next one may take its place
        if name != "ffcv, raw":  # which counts in its own process
            assert count in (len(paths) // BATCH, len(images) // BATCH), count

    turns = {name: functools.partial(drained, name) for name in arms}
    samples = harness.interleave(turns, rounds, warmup=1, turn_seconds=0.0)
    table = []
    for name, ours, theirs, bar in pairs:
        count = len(images if ours == "packed raw" else paths) // BATCH * BATCH
        table.append((harness.Row(name, samples, ours, [theirs], bar), count))
    return table


def main() -> None:
    options = harness.parse(
        __doc__, ("--ffcv", {"metavar": "PYTHON", "help": "a Python interpreter with ffcv"})
    )
    raw, photographs, rounds = (512, 256, 3) if options.quick else (4096, 2048, 11)
    lines: list[str] = []
    record: dict[str, Any] = {"raw": raw, "photographs": photographs}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        record["megabytes"] = sizes = packed(folder, raw, photographs)
        for title, kept in (("As a program starts", False), ("Freed memory kept", True)):
            rows = in_fresh_process(compared, folder, rounds, options.ffcv, kept)
            if rows is None:
                lines += [f"## {title}", "", "Not possible here.", ""]
                continue
            table = [harness.rates([row], made) for row, made in rows]
            lines += [f"## {title}", "", *table[0][:2], *(one[2] for one in table), ""]
            record[title] = {
                "samples": rows[0][0].samples,
                "ratios": {row.name: {"ratio": row.ratio.value, "bar": row.bar} for row, _ in rows},
            }
    lines.append("Files: " + ", ".join(f"{name} {size:,.0f} MB" for name, size in sizes.items()))
    if not options.ffcv:
        lines.append("ffcv: not given (--ffcv PYTHON).")
    text = "\n".join(lines)
    note = (
        f"{raw} raw images and {photographs} photographs, in the page cache; {BATCH} a batch; SIMD "
        f"{jk.doctor().simd_level}. Medians of interleaved epochs."
    )
    harness.write(
        "packed-files",
        "From packed files to batches",
        text,
        record,
        ["pillow"],
        note,
        quick=options.quick,
    )


if __name__ == "__main__":
    main()
