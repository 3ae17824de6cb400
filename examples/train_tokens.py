"""Trains a small language model on packed documents: the functions of Python's standard library.

    make train-tokens    # or: python examples/train_tokens.py --help; needs jaxkern-native[train]

A document is the source text of one function or class; a token is a byte. `Pack` puts several
documents into a row: segment ids restrict attention to a document, positions restart with each
document, and the loss mask excludes padding. Flax NNX and Optax train; Orbax stores weights,
optimizer and the pipeline's position, also in the middle of a row, in one checkpoint. End it with
Ctrl-C or `kill -9` and start it again: it continues with the next batch, to the same weights.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import sysconfig
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

import jaxkern as jk
from jaxkern.pipeline import Pack, Subset, TokenSource

BEGIN, TOKENS = 256, 257  # the first token of a document, and the number of tokens
WIDTH, HEADS, LAYERS = 64, 4, 2


def documents(files: int) -> list[np.ndarray]:
    """Return the tokens, uint16, of each top-level function and class of the first modules."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files]:
        text = path.read_text(encoding="utf-8", errors="ignore")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                source = (ast.get_source_segment(text, node) or "").encode()
                found.append(np.array([BEGIN, *source], np.uint16))
    return found


def pipelines(options: argparse.Namespace) -> tuple[jk.pipeline.Pipeline, jk.pipeline.Pipeline]:
    """Return pipelines of packed batches of training documents (90%) and held-out ones."""
    source = TokenSource(documents(options.files))
    order = np.random.default_rng(0).permutation(len(source))
    held_out, rest = order[: len(source) // 10], order[len(source) // 10 :]
    # A document that is longer than a row continues in the next one.
    pack = Pack(options.length, method="best-fit", long="split")
    train = jk.from_source(
        Subset(source, rest),
        options.batch_size,
        shuffle=True,
        seed=options.seed,
        drop_remainder=True,
    )
    test = jk.from_source(Subset(source, held_out), options.batch_size, pad_remainder=True)
    return train >> pack, test >> pack


class Block(nnx.Module):
    """Attention and a perceptron with residual connections."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.wide = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.wide(self.norm2(x))))


class LanguageModel(nnx.Module):
    """A model from packed rows, int32 [N, length], to logits, float32 [N, length, TOKENS]."""

    def __init__(self, length: int, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(TOKENS, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(length, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.positions(positions)
        # A token attends to earlier tokens of its document.
        mask = nnx.make_attention_mask(segments, segments, jnp.equal) * nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.tokens.attend(self.norm(x))


def losses(model: LanguageModel, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the losses of all predicted tokens, and their number."""
    logits = model(batch["tokens"], batch["segment_ids"], batch["positions"])
    # The mask excludes padding, and the first token of a document, which does not follow from the
    # previous document of the row.
    each = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], batch["tokens"][:, 1:])
    mask = batch["loss_mask"][:, 1:]
    return jnp.sum(each * mask), jnp.sum(mask)


@nnx.jit
def train_step(
    model: LanguageModel, optimizer: nnx.Optimizer, batch: dict[str, jax.Array]
) -> jax.Array:
    """Run one optimizer step; return the mean loss before it."""

    def mean_loss(model: LanguageModel) -> jax.Array:
        total, count = losses(model, batch)
        return total / count

    value, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    return value


def held_out_loss(model: LanguageModel, pipe: jk.pipeline.Pipeline) -> float:
    """Return the mean loss of all tokens of a pipeline."""
    pipe.epoch = 0
    pairs = [count_losses(model, batch) for batch in pipe]
    total, count = (sum(map(float, column)) for column in zip(*pairs, strict=True))
    return total / count


count_losses = nnx.jit(losses)


def train(options: argparse.Namespace, console: Console) -> tuple[LanguageModel, list[float]]:
    """Train; return the model, and the held-out loss at the start and after each epoch."""
    pipe, test_pipe = pipelines(options)
    model = LanguageModel(options.length, nnx.Rngs(options.seed))
    optimizer = nnx.Optimizer(model, optax.adamw(options.learning_rate), wrt=nnx.Param)
    parts = {"model": model, "optimizer": optimizer}
    keep = ocp.CheckpointManagerOptions(max_to_keep=2, cleanup_tmp_directories=True)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ocp.CheckpointManager(options.checkpoint_dir.absolute(), options=keep) as checkpoints,
        Progress(*columns, console=console) as bar,
    ):
        batches = iter(pipe)
        step, history = restore(checkpoints, parts, batches)
        if step:
            console.print(f"resumed after step {step}")
        else:
            history.append(held_out_loss(model, test_pipe))
        task = bar.add_task("training", completed=step, total=options.steps)
        while step < options.steps:
            batch = next(batches, None)
            if batch is None:  # the next epoch has a different order
                history.append(held_out_loss(model, test_pipe))
                console.print(f"step {step}   held-out loss {history[-1]:.3f}   {batches.packing}")
                batches = iter(pipe)
                continue
            train_step(model, optimizer, batch)
            step += 1
            bar.advance(task)
            if step % options.save_every == 0 or step == options.steps:
                items = ocp.args.Composite(
                    training=ocp.args.StandardSave(nnx.state(parts)),
                    pipeline=ocp.args.JsonSave(batches.get_state()),
                    history=ocp.args.JsonSave({"losses": list(history)}),
                )
                checkpoints.save(step, args=items)
    return model, [*history, held_out_loss(model, test_pipe)]


def restore(
    checkpoints: ocp.CheckpointManager,
    parts: dict[str, Any],
    batches: jk.pipeline.PipelineIterator,
) -> tuple[int, list[float]]:
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
    return step, saved.history["losses"]


def digest(model: LanguageModel) -> str:
    """Return a hash of the weights: sixteen hexadecimal digits."""
    weights = jax.tree.leaves(nnx.state(model, nnx.Param))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in weights)).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--files", type=int, default=16, help="modules of the standard library")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a batch")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("demo-output/train-tokens"))
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    options = parser.parse_args()
    if min(options.steps, options.save_every, options.files) < 1:
        parser.error("--steps, --save-every and --files: expected at least 1")
    console = Console(highlight=False)
    model, history = train(options, console)
    console.print(
        f"held-out loss {history[0]:.3f} -> {history[-1]:.3f} nats a byte, weights {digest(model)}"
    )


if __name__ == "__main__":
    main()
