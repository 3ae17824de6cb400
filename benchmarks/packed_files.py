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

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import jax
import numpy as np
import peers
from file_batches import BATCH, LEVELS, chain, drawn, in_jax, of_pipeline, same
from photographs import make_folder, megabytes
from ring_batches import in_fresh_process, make_images

import jaxkern as jk

SIDE = 256
RAW_BAR, JPEG_BAR, FFCV_BAR = 0.85, 2.0, 5.0


def kernel_alone(images: np.ndarray) -> peers.Arm:
    """The chain's compiled call with each batch's own parameters, on eight batches of images."""
    aug, batches = chain("training", antialias=False), len(images) // BATCH
    ready = [jax.numpy.asarray(images[i * BATCH : (i + 1) * BATCH]) for i in range(min(8, batches))]
    apply = jax.jit(aug.apply)
    keys = jk.random.record_keys(0, 0, np.arange(len(images)))
    params = jax.tree.map(np.asarray, jax.jit(lambda k: aug.sample(k, (SIDE, SIDE)))(keys))

    def epoch() -> Iterator[jax.Array]:
        for i in range(batches):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            of_batch = jax.tree.map(lambda x, rows=rows: x[rows], params)
            yield apply(ready[i % len(ready)], of_batch).block_until_ready()

    return epoch


def first_batch(source: Any, antialias: bool) -> np.ndarray:
    return np.asarray(next(of_pipeline(source, "training", antialias)()))


def small(path: Path) -> np.ndarray:
    """Decode a photograph and shrink it to the longest side of the packed file, with Pillow."""
    from PIL import Image

    with Image.open(path) as image:
        size = tuple(round(side * SIDE / max(image.size)) for side in image.size)
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS))


def packed(folder: Path, raw: int, photographs: int) -> dict[str, float]:
    """Write the packed files and the folder; return their sizes in MB."""
    paths = make_folder(folder / "photos", photographs)
    photos = jk.pipeline.ImageFolder(folder / "photos")
    pack = jk.pipeline.pack
    pack({"image": make_images(raw)}, folder / "raw.jkp", format="raw")
    pack(photos, folder / "jpeg.jkp", format="jpeg:90", max_side=SIDE)
    pack(photos, folder / "photos.jkp", format="raw", max_side=SIDE)
    sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(folder.glob("*.jkp"))}
    return {**sizes, "the folder": megabytes(paths)}


def compared(folder: Path, rounds: int, ffcv: str | None, kept: bool) -> list[Any] | None:
    """Return rows and their images per turn; None if freed memory cannot be `kept` as asked."""
    if kept and not jk.performance.tune_host_allocator():
        return None
    photos, raw, jpeg = folder / "photos", folder / "raw.jkp", folder / "jpeg.jkp"
    paths = sorted(photos.glob("*/*.jpg"))
    images = make_images(len(jk.pipeline.PackedSource(raw)))
    expected = in_jax("training", list(images[:BATCH]), False)
    same("raw", first_batch(raw, False), expected, 1e-3)
    expected = in_jax("training", [small(path) for path in paths[:BATCH]], True)
    # The images are compressed once more than those of the reference.
    same("JPEG", first_batch(jpeg, True), expected, 2 * LEVELS["training"])

    def shuffled(source: Any, antialias: bool) -> peers.Arm:
        return of_pipeline(source, "training", antialias, shuffle=True)

    arms: dict[str, peers.Arm] = {
        "packed raw": shuffled(raw, False),
        "arrays in memory": shuffled({"image": images}, False),
        "the kernel alone, 2 threads": kernel_alone(images),
        "packed JPEG": shuffled(jpeg, True),
        "the folder": shuffled(jk.pipeline.ImageFolder(photos), True),
    }
    pairs = [
        ("the kernel alone", "packed raw", "the kernel alone, 2 threads", RAW_BAR),
        ("arrays in memory", "packed raw", "arrays in memory", 0.0),
        ("the folder of full-size files", "packed JPEG", "the folder", JPEG_BAR),
    ]
    if ffcv:
        work, beton = drawn("training", paths), folder / "photos.beton"
        arms["packed raw photographs"] = shuffled(folder / "photos.jkp", True)
        arms["ffcv, raw"] = peers.ffcv(ffcv, photos, beton, "raw", SIDE, work)
        pairs.append(("ffcv, raw", "packed raw photographs", "ffcv, raw", FFCV_BAR))
    turns = {name: harness.drained(arm) for name, arm in arms.items()}
    samples = harness.interleave(turns, rounds, warmup=1, turn_seconds=0.0)
    table = []
    for name, ours, theirs, bar in pairs:
        count = len(images if ours == "packed raw" else paths) // BATCH * BATCH
        table.append((harness.Row(name, samples, ours, [theirs], bar), count))
    return table


def main() -> None:
    options = harness.parse(
        __doc__,
        ("--ffcv", {"metavar": "PYTHON", "help": "a Python interpreter with ffcv"}),
        rounds=(11, 3),
    )
    raw, photographs = (512, 256) if options.quick else (4096, 2048)
    lines: list[str] = []
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        record["megabytes"] = sizes = packed(folder, raw, photographs)
        for title, kept in (("As a program starts", False), ("Freed memory kept", True)):
            rows = in_fresh_process(compared, folder, options.rounds, options.ffcv, kept)
            if rows is None:
                lines += [f"## {title}", "", "Not possible here.", ""]
                continue
            tables = [harness.rates([row], count) for row, count in rows]
            lines += [f"## {title}", "", *tables[0][:2], *(table[2] for table in tables), ""]
            record[title] = harness.record([row for row, _ in rows])
    lines.append("Files: " + ", ".join(f"{name} {size:,.0f} MB" for name, size in sizes.items()))
    if not options.ffcv:
        lines.append("ffcv: not compared (--ffcv PYTHON).")
    note = (
        f"{raw} raw images and {photographs} photographs, in the page cache; {BATCH} a batch; SIMD "
        f"{jk.doctor().simd_level}. Medians of interleaved epochs."
    )
    title = "From packed files to batches"
    harness.write("packed-files", title, lines, record, ["pillow"], note, options.quick)


if __name__ == "__main__":
    main()
