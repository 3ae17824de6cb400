"""From packed files to augmented batches, compared with the kernel alone and with unpacked files.

Two threads, float32 batches of 64, random resized crop to 224, flip and normalize. One packed file
has raw images, 256 x 256; it is compared with the kernel alone on batches in memory, and with
arrays in memory. The other has JPEG images with a longest side of 256, made from photographs of
about 500 x 375; it is compared with the folder of the photographs. All files are in the page cache,
and checksums were verified in an earlier epoch. First the values of a batch are compared; then the
arms take turns, one epoch each, with the default allocator, where results are fresh memory, and
again with freed memory kept.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import harness
import image_augment
import numpy as np
import peers
from file_batches import BATCH, LEVELS, check_mean, in_jax, of_pipeline
from photographs import make_folder, megabytes
from ring_batches import kernel_alone, make_images

import jaxkern as jk

SIDE = 256


def shrunk(path: Path) -> np.ndarray:
    """Decode a photograph and shrink it to the longest side of the packed file, with Pillow."""
    from PIL import Image

    with Image.open(path) as image:
        size = tuple(round(side * SIDE / max(image.size)) for side in image.size)
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS))


def write_files(folder: Path, raw: int, photographs: int) -> dict[str, float]:
    """Write the packed files and the folder; return their sizes in MB."""
    paths = make_folder(folder / "photos", photographs)
    photos = jk.pipeline.ImageFolder(folder / "photos")
    pack = jk.pipeline.pack
    pack({"image": make_images(raw)}, folder / "raw.jkp", format="raw")
    pack(photos, folder / "jpeg.jkp", format="jpeg:90", max_side=SIDE)
    sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(folder.glob("*.jkp"))}
    return {**sizes, "the folder": megabytes(paths)}


def compare_files(folder: Path, rounds: int, kept: bool) -> list[tuple[harness.Row, int]]:
    """Return rows and their images per turn; no rows if freed memory cannot be `kept`."""
    if kept and not jk.performance.tune_host_allocator():
        return []
    photos, raw, jpeg = folder / "photos", folder / "raw.jkp", folder / "jpeg.jkp"
    paths = sorted(photos.glob("*/*.jpg"))
    images = make_images(len(jk.pipeline.PackedSource(raw)))
    # The JPEG images are compressed once more than those of the reference.
    for source, reference, antialias, limit in (
        (raw, images[:BATCH], False, 1e-3),
        (jpeg, [shrunk(path) for path in paths[:BATCH]], True, 2 * LEVELS["training"]),
    ):
        batch = next(of_pipeline(source, "training", antialias)())
        check_mean(source.name, batch, in_jax("training", list(reference), antialias), limit)

    def shuffled(source: Any, antialias: bool) -> peers.Arm:
        return of_pipeline(source, "training", antialias, shuffle=True)

    aug = image_augment.chain()
    arms: dict[str, peers.Arm] = {
        "packed raw": shuffled(raw, False),
        "arrays in memory": shuffled({"image": images}, False),
        "the kernel alone": lambda: kernel_alone(aug, images, params),
        "packed JPEG": shuffled(jpeg, True),
        "the folder of full-size files": shuffled(jk.pipeline.ImageFolder(photos), True),
    }
    params = image_augment.draw(aug, len(images))
    pairs = [
        ("the kernel alone", "packed raw", 0.85),
        ("arrays in memory", "packed raw", 0.0),
        ("the folder of full-size files", "packed JPEG", 2.0),
    ]
    samples = harness.interleave_epochs(arms, rounds)
    table = []
    for theirs, ours, bar in pairs:
        count = len(images if ours == "packed raw" else paths) // BATCH * BATCH
        table.append((harness.Row(theirs, samples, ours, [theirs], bar), count))
    return table


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(11, 3))
    raw, photographs = (512, 256) if bench.quick else (4096, 2048)
    lines: list[str] = []
    samples = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sizes = write_files(folder, raw, photographs)
        for title, kept in (("As a program starts", False), ("Freed memory kept", True)):
            rows = harness.call("packed_files", "compare_files", folder, bench.rounds, kept)
            tables = [harness.rates([row], count) for row, count in rows]
            body = [*tables[0][:2], *(t[2] for t in tables)] if rows else ["Not possible here."]
            lines += [f"## {title}", "", *body, ""]
            samples[title] = [row.samples for row, _ in rows[:1]]
    lines.append("Files: " + ", ".join(f"{name} {size:,.0f} MB" for name, size in sizes.items()))
    note = (
        f"{raw} raw images and {photographs} photographs, in the page cache. Medians of "
        "interleaved epochs."
    )
    bench.write(lines, ["pillow"], note, of_processes=samples)


if __name__ == "__main__":
    main()
