"""Training example: would catch a checkpoint with inconsistent parts, batches that are repeated or
skipped after a kill, and batches with wrong labels.

Runs only if named (`make train-check`), with the extra `train`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from rich.console import Console

import jaxkern as jk

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
EPOCHS, STEPS = 4, 22  # 1,437 digits in batches of 64
BOUND = 0.96  # the expected accuracy is 0.986; guessing reaches 0.1


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_digits", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TrainingRun:
    """A training process in a folder, which ends or is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        numbers = ["--epochs", str(EPOCHS), "--save-every", "8"]
        command = [sys.executable, "-P", EXAMPLE, *numbers, "--checkpoint-dir", folder]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self) -> str:
        """Wait for the end of the process and return its output."""
        assert self.process.wait(timeout=120) == 0, self.log.read_text()
        return self.log.read_text()

    def kill(self, during: str, step: int, delay: float) -> bool:
        """Kill the process `delay` s after the first checkpoint from `step` on, or after its write
        begins; return True if a write was interrupted."""
        pattern = "*.orbax-checkpoint-tmp*" if during == "write" else "*[0-9]"
        try:
            while not any(int(p.name.split(".")[0]) >= step for p in self.folder.glob(pattern)):
                assert self.process.poll() is None, f"not killed: {self.log.read_text()}"
                time.sleep(0.001)
            time.sleep(delay)
        finally:
            self.process.kill()
        assert self.process.wait(timeout=120) == -9, self.log.read_text()
        return any(self.folder.glob("*.orbax-checkpoint-tmp*"))


def bits(folder: Path) -> tuple[dict, list]:
    """Return the JSON items of the last checkpoint, and path, dtype, shape and bytes of arrays."""
    step = EPOCHS * STEPS
    names = ocp.args.Composite(
        training=ocp.args.StandardRestore(),
        pipeline=ocp.args.JsonRestore(),
        history=ocp.args.JsonRestore(),
    )
    with ocp.CheckpointManager(folder) as checkpoints:
        assert checkpoints.latest_step() == step
        saved = checkpoints.restore(step, args=names)
    arrays = []
    for path, x in jax.tree.leaves_with_path(saved.training):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        arrays.append((jax.tree_util.keystr(path), str(x.dtype), x.shape, np.asarray(x).tobytes()))
    return {"pipeline": saved.pipeline, "history": saved.history}, arrays


def test_a_killed_and_resumed_run_ends_with_the_same_bits(tmp_path):
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    expected_line = TrainingRun(alone).finish().splitlines()[-1]
    assert float(re.search(r"held-out accuracy (\S+),", expected_line)[1]) > BOUND

    draw = random.Random(time.time_ns())
    cut, resumed = 0, []
    for during, step in (("write", 20), ("training", 40)):
        cut += TrainingRun(killed).kill(
            during, step, 0 if during == "write" else draw.uniform(0, 0.3)
        )
        resumed += re.findall(r"resumed after step (\d+)", killed.with_suffix(".log").read_text())
    last = TrainingRun(killed).finish()
    resumed += re.findall(r"resumed after step (\d+)", last)
    assert cut > 0, "no kill interrupted a write"
    assert any(int(step) % STEPS for step in resumed), f"{resumed}: expected a step within an epoch"
    assert last.splitlines()[-1] == expected_line
    assert bits(killed) == bits(alone)


def shifted(batch):
    """Return the batch with the labels of other rows."""
    return {**batch, "label": np.roll(batch["label"], 1)}


def test_a_broken_pipeline_misses_the_bound(example, tmp_path, monkeypatch):
    build = jk.from_source

    def broken(*args, **options):
        pipe = build(*args, **options)
        return pipe >> shifted if options.get("shuffle") else pipe

    monkeypatch.setattr(jk, "from_source", broken)
    options = argparse.Namespace(
        epochs=EPOCHS, batch_size=64, learning_rate=5e-3, seed=0, save_every=1000,
        checkpoint_dir=tmp_path,
    )  # fmt: skip
    _, history = example.train(options, Console(quiet=True))
    assert len(history) == EPOCHS
    assert max(row["accuracy"] for row in history) < 0.3


def test_the_batches_come_from_the_fused_kernel(example):
    pipe, _ = example.pipelines(64, 0)
    batch = next(iter(pipe))
    assert batch["image"].shape == (64, example.SIZE, example.SIZE, 1)
    keys = jk.random.record_keys(0, 0, np.arange(2))
    images = np.zeros((2, 8, 8, 1), np.uint8)
    program = jax.jit(example.AUGMENT).lower(keys, images).compile().as_text()
    assert program.count('custom_call_target="jaxkern.image_chain') == 1


def test_the_plot_is_written(example, tmp_path):
    rows = [{"loss": 1.0, "accuracy": 0.5}, {"loss": 0.1, "accuracy": 0.9}]
    example.plot(rows, tmp_path / "deep" / "history.png")
    assert (tmp_path / "deep" / "history.png").stat().st_size > 5000
