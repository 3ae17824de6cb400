"""Trains a convolutional network on handwritten digits; killed at any time, it resumes exactly.

    make train       # or: python examples/train_digits.py --help; needs jaxkern-native[train]

The pipeline gathers, augments and prefetches the batches; Flax NNX and Optax train; Orbax keeps
weights, optimizer, random streams and the pipeline's position in one checkpoint. End it with Ctrl-C
or `kill -9` and start it again: it continues with the next batch, and the last line, a digest of
the weights, equals that of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxkern as jk

SIZE = 16
AUGMENT = jk.image.Compose(
    [
        jk.image.RandomResizedCrop(SIZE, scale=(0.7, 1.0), ratio=(0.8, 1.25)),
        jk.image.Normalize(0.3, 0.35),
    ]
)


class Network(nnx.Module):
    """A network from images, float32 [N, 16, 16, 1], to logits, float32 [N, 10]."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.norm1 = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.norm2 = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.logits = nnx.Linear((SIZE // 4) ** 2 * 32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.norm1(self.conv1(images))), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.norm2(self.conv2(x))), (2, 2), (2, 2))
        return self.logits(self.dropout(x.reshape(len(x), -1)))


def pipelines(batch_size: int, seed: int) -> tuple[jk.pipeline.Pipeline, jk.pipeline.Pipeline]:
    """Return pipelines of augmented training data (80%) and of plain held-out data."""
    digits = load_digits()  # 1,797 scans of 8x8 in 17 shades of grey
    images = np.round(digits.images[..., None] * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int32)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    train = jk.from_source(
        {"image": train_images, "label": train_labels},
        batch_size,
        shuffle=True,
        seed=seed,
        drop_remainder=True,
    )
    test = jk.from_source({"image": test_images, "label": test_labels}, batch_size=60)
    return train >> jk.OperatorNode(AUGMENT), test >> jk.OperatorNode(AUGMENT.eval())


@nnx.jit
def train_step(
    model: Network, optimizer: nnx.Optimizer, loss: nnx.metrics.Average, batch: dict[str, jax.Array]
) -> None:
    """Run one optimizer step; `loss` accumulates the mean over the epoch on the device."""

    def mean_loss(model: Network) -> jax.Array:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    value, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    loss.update(values=value)


@nnx.jit
def count_correct(model: Network, batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.sum(model(batch["image"]).argmax(-1) == batch["label"])


def accuracy(model: Network, pipe: jk.pipeline.Pipeline) -> float:
    """Return the fraction of the pipeline's records that the model classifies correctly."""
    model.eval()
    pairs = [(count_correct(model, batch), len(batch["label"])) for batch in pipe]
    model.train()
    correct, records = (sum(map(int, column)) for column in zip(*pairs, strict=True))
    return correct / records


def save(
    checkpoints: ocp.CheckpointManager,
    step: int,
    parts: dict[str, Any],
    batches: jk.pipeline.PipelineIterator,
    history: list[dict[str, float]],
) -> None:
    """Write a checkpoint in the background; a checkpoint is complete or absent.

    Arguments must not change during the write: arrays are immutable, the state of the pipeline is a
    new dict in each call, and the list is copied.
    """
    items = ocp.args.Composite(
        training=ocp.args.StandardSave(nnx.state(parts)),
        pipeline=ocp.args.JsonSave(batches.get_state()),
        history=ocp.args.JsonSave({"epochs": list(history)}),
    )
    checkpoints.save(step, args=items)


def restore(
    checkpoints: ocp.CheckpointManager,
    parts: dict[str, Any],
    batches: jk.pipeline.PipelineIterator,
) -> tuple[int, list[dict[str, float]]]:
    """Restore `parts` and `batches` from the latest checkpoint; return its step and history."""
    step = checkpoints.latest_step()
    if step is None:
        return 0, []
    items = ocp.args.Composite(
        training=ocp.args.StandardRestore(nnx.state(parts)),
        pipeline=ocp.args.JsonRestore(),
        history=ocp.args.JsonRestore(),
    )
    saved = checkpoints.restore(step, args=items)
    nnx.update(parts, saved.training)
    batches.set_state(saved.pipeline)
    return step, saved.history["epochs"]


def train(options: argparse.Namespace, console: Console) -> tuple[Network, list[dict[str, float]]]:
    """Train; return the model, and the loss and held-out accuracy of every epoch."""
    pipe, test_pipe = pipelines(options.batch_size, options.seed)
    model = Network(nnx.Rngs(options.seed))
    optimizer = nnx.Optimizer(model, optax.adamw(options.learning_rate), wrt=nnx.Param)
    loss = nnx.metrics.Average()
    parts = {"model": model, "optimizer": optimizer, "loss": loss}

    directory = options.checkpoint_dir.absolute()
    keep = ocp.CheckpointManagerOptions(max_to_keep=2, cleanup_tmp_directories=True)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ocp.CheckpointManager(directory, options=keep) as checkpoints,
        Progress(*columns, console=console) as bar,
    ):
        batches = iter(pipe)  # one iterator per epoch
        step, history = restore(checkpoints, parts, batches)
        if step:
            console.print(f"resumed after step {step} from {directory}")
        task = bar.add_task("training", completed=step, total=options.epochs * len(pipe))
        while batches.epoch < options.epochs:
            for batch in batches:
                train_step(model, optimizer, loss, batch)
                step += 1
                bar.advance(task)
                if step % options.save_every == 0 or step % len(pipe) == 0:
                    save(checkpoints, step, parts, batches, history)
            # After resuming from the last step of an epoch, the iterator has no more batches.
            row = {"loss": float(loss.compute()), "accuracy": accuracy(model, test_pipe)}
            history.append(row)
            console.print(
                f"epoch {len(history):3}   loss {row['loss']:.4f}   "
                f"held-out accuracy {row['accuracy']:.4f}"
            )
            loss.reset()
            batches = iter(pipe)
    return model, history


def digest(model: Network) -> str:
    """Return a hash of the weights: sixteen hexadecimal digits."""
    weights = jax.tree.leaves(nnx.state(model, nnx.Param))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in weights)).hexdigest()[:16]


def plot(history: list[dict[str, float]], path: Path) -> None:
    """Plot loss and held-out accuracy by epoch to a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    epochs = range(1, len(history) + 1)
    figure, left = plt.subplots(figsize=(6, 3.4))
    right = left.twinx()
    left.plot(epochs, [row["loss"] for row in history], color="#8d99ae")
    right.plot(epochs, [row["accuracy"] for row in history], color="#d1495b")
    left.set(xlabel="epoch", yscale="log")
    left.set_ylabel("training loss", color="#5c677d")
    right.set_ylabel("held-out accuracy", color="#d1495b")
    left.xaxis.get_major_locator().set_params(integer=True)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("demo-output/train-digits"))
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="where to draw loss and accuracy")
    options = parser.parse_args()
    if options.epochs < 1 or options.save_every < 1:
        parser.error("--epochs and --save-every: expected at least 1")
    console = Console(highlight=False)
    model, history = train(options, console)
    if options.plot:
        plot(history, options.plot)
        console.print(f"wrote {options.plot}")
    console.print(f"held-out accuracy {history[-1]['accuracy']:.4f}, weights {digest(model)}")


if __name__ == "__main__":
    main()
