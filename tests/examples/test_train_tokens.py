"""Language model example: would catch useless batches, attention or positions that extend to other
documents of a row, and a checkpoint in the middle of a row that resumes at another position.

Runs only if named (`make train-check`), with the extra `train`.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from rich.console import Console

import jaxkern as jk

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_tokens.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_tokens", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(folder, **changed):
    values = {"steps": 60, "files": 8, "length": 64, "batch_size": 4, "learning_rate": 3e-3}
    values |= {"seed": 0, "checkpoint_dir": folder, "save_every": 20}
    return argparse.Namespace(**{**values, **changed})


def test_a_resumed_run_ends_with_the_same_bits(example, tmp_path):
    quiet = Console(quiet=True)
    uninterrupted, history = example.train(options(tmp_path / "whole"), quiet)
    example.train(options(tmp_path / "cut", steps=31), quiet)
    model, resumed = example.train(options(tmp_path / "cut"), quiet)
    assert example.digest(model) == example.digest(uninterrupted)
    assert resumed == history
    assert history[0] > 5 > 3.6 > history[-1]


def test_documents_of_a_row_do_not_see_each_other(example):
    documents = [np.array([256, *text.encode()]) for text in ("def f(): pass", "x = 1", "class A")]
    packed = jk.tokens.pack(documents, length=40)
    assert packed["segment_ids"].max() == 3
    model = example.LanguageModel(40, nnx.Rngs(0))
    together = model(packed["tokens"], packed["segment_ids"], packed["positions"])[0]
    for document in documents:
        alone = jk.tokens.pack([document], length=len(document))
        logits = model(alone["tokens"], alone["segment_ids"], alone["positions"])[0]
        start = int(np.flatnonzero(packed["tokens"][0] == document[1])[0]) - 1
        np.testing.assert_allclose(together[start : start + len(document)], logits, atol=2e-5)
