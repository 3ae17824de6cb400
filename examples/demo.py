"""Streams augmented crops of photographs through the native kernels, and compares the throughput.

    make demo        # or: python examples/demo.py

Writes a contact sheet and a bar chart into ``demo-output/`` and prints a table of images/s. The
results of all libraries are compared before they are timed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import jaxkern as jk
from jaxkern.benchmarking.plots import bar_chart

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import image_augment as bench

BATCH, BATCHES = bench.COUNT, 64
OUTPUT = Path("demo-output")


@jax.jit
def train_step(total: jax.Array, images: jax.Array, record_ids: jax.Array, epoch: jax.Array):
    """The input part of a training step: augment a batch, and use its values."""
    keys = jk.random.record_keys(0, epoch, record_ids)
    batch = AUGMENT(keys, images)
    return total + batch[:, ::32, ::32].mean(axis=(0, 1, 2)), batch


AUGMENT = jk.image.Compose(
    [
        jk.image.RandomResizedCrop(bench.SIZE, scale=(0.2, 1.0), antialias=True),
        jk.image.RandomHorizontalFlip(0.5),
        jk.image.RandAugment(2, 9),
        jk.image.Normalize(bench.MEAN.tolist(), bench.STD.tolist()),
        jk.image.RandomErasing(p=0.25),
    ]
)


def stream(images: jax.Array, console: Console) -> tuple[np.ndarray, float]:
    """Augment BATCHES batches; return the first batch and the rate in images/s."""
    ids = jnp.arange(BATCH)
    total, first = train_step(jnp.zeros(3), images, ids, jnp.int32(0))
    columns = (TextColumn("augmenting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    start = time.perf_counter()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("augmenting", total=BATCHES * BATCH)
        for epoch in range(1, BATCHES + 1):
            total, batch = train_step(total, images, ids, jnp.int32(epoch))
            batch.block_until_ready()
            bar.advance(task, BATCH)
    rate = BATCHES * BATCH / (time.perf_counter() - start)
    if not np.isfinite(np.asarray(total)).all():
        raise SystemExit("expected finite values in the stream, got NaN or infinity")
    return np.asarray(first), rate


def contact_sheet(path: Path, images: np.ndarray) -> None:
    """Save a figure with a photograph and its augmented crops of several epochs in each row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows, columns = 4, 7
    augmented = [
        np.asarray(AUGMENT(jk.random.record_keys(0, epoch, np.arange(rows)), images[:rows]))
        for epoch in range(columns - 1)
    ]
    figure, axes = plt.subplots(rows, columns, figsize=(1.6 * columns, 1.65 * rows))
    for r in range(rows):
        for c in range(columns):
            shown = images[r] / 255 if c == 0 else augmented[c - 1][r] * bench.STD + bench.MEAN
            axes[r, c].imshow(np.clip(shown, 0, 1))
            axes[r, c].set_axis_off()
    axes[0, 0].set_title("source", fontsize=9)
    for c in range(1, columns):
        axes[0, c].set_title(f"epoch {c - 1}", fontsize=9)
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    console = Console()
    jk.performance.tune_host_allocator()
    OUTPUT.mkdir(exist_ok=True)
    report = jk.doctor()
    console.print(f"native kernels in use: {report.ok} (SIMD level {report.simd_level})")
    images = bench.photographs()
    first, rate = stream(jnp.asarray(images), console)
    console.print(
        f"{BATCHES * BATCH:,} crops of {first.shape[1]}x{first.shape[2]} (antialias, "
        f"RandAugment, erasing) inside jit: {rate:,.0f} images/s"
    )
    table, missing, _ = bench.rows(rounds=7)
    medians = {name: arm.median for name, arm in table[0].samples.items()}
    ranked = [name for name in sorted(medians, key=medians.__getitem__) if "only" not in name]
    shown = Table(title="crop, resize to 224, flip, normalize to f32: 64 photographs a batch")
    for heading in ("", "images/s", "times the native kernel's time"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for name in ranked:
        relative = medians[name] / medians["jaxkern"]
        shown.add_row(name, f"{BATCH / medians[name]:,.0f}", f"{relative:.1f}")
    for name in missing:
        shown.add_row(f"{name.split(':')[0]} (not installed)", "", "")
    console.print(shown)
    contact_sheet(OUTPUT / "contact-sheet.png", images)
    bar_chart(
        OUTPUT / "images-per-second.png",
        ranked,
        [BATCH / medians[name] for name in ranked],
        "Crop, resize, flip, normalize: images/s on this machine",
        "images/s",
        own="jaxkern",
    )
    console.print(f"wrote {OUTPUT}/contact-sheet.png and {OUTPUT}/images-per-second.png")
    if not report.ok:
        raise SystemExit("native kernels are not available; run: python -m jaxkern doctor")


if __name__ == "__main__":
    main()
