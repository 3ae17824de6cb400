"""Memory of a fit compared with its estimate: no extra copy of the data, no leak, any file size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import SUPPORT
from support.xpcs import fit_problems as problems
from support.xpcs import run_program

import jaxkern as jk

N = 2048  # 2 angles in float32: 32 MiB
MIB = 2**20
PROGRAM = SUPPORT / "xpcs" / "memory_fit.py"


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "c2.npy"
    data = np.empty((2, N, N), np.float32)
    for k in range(2):
        data[k] = problems.correlation(problems.TRUTH, [0.3], [1.0], N, problems.PHI[k : k + 1])[0]
    data += 0.01 * np.random.default_rng(0).standard_normal(data.shape, np.float32)
    np.save(path, data)
    return path


@pytest.mark.parametrize("strategy", ["stream", pytest.param("memory", marks=pytest.mark.slow)])
def test_memory_agrees_with_the_estimate(stored, strategy):
    """Compare the anonymous memory that the fit adds with `estimate_memory`."""
    seen = run_program(PROGRAM, stored, strategy)
    estimate = jk.xpcs.estimate_memory(
        2 * N * N, 11, n_phi=2, itemsize=4, in_memory=strategy != "stream", strategy=strategy
    )
    added = max(*seen["samples"], seen["peak"]) - seen["before"]
    assert added < 1.3 * estimate.fit * 2**30
    assert added > 0.3 * estimate.fit * 2**30
    if strategy == "stream":
        assert added < 32 * MIB + 1.3 * jk.xpcs.estimate_memory(1, 1).fit * 2**30
    # After compilation of the first pass, memory is constant.
    steady = np.array(seen["samples"][len(seen["samples"]) * 2 // 3 :])
    assert steady.std() < 0.2 * steady.mean()
    assert seen["peak"] >= 0.9 * np.median(steady)


def streamed(path: Path, n: int) -> dict:
    """Return the anonymous memory of a streamed fit of a mapped file of 2 angles, n^2 points."""
    data = np.lib.format.open_memmap(path, "w+", np.float32, (2, n, n))
    random = np.random.default_rng(0)
    for k in range(2):
        clean = problems.correlation(problems.TRUTH, [0.3], [1.0], n, problems.PHI[k : k + 1])[0]
        data[k] = clean + 0.01 * random.standard_normal((n, n), np.float32)
    data.flush()
    seen = run_program(PROGRAM, path, "stream")
    path.unlink()
    return seen


@pytest.mark.slow
def test_memory_does_not_depend_on_the_size_of_the_file(tmp_path):
    # Both have many chunks of 2^21 points: one in the kernel, one being read.
    small, large = streamed(tmp_path / "small.npy", 2048), streamed(tmp_path / "large.npy", 4096)
    extra_data = 4 * 2 * (4096**2 - 2048**2)
    added = [max(seen["samples"]) - seen["before"] for seen in (small, large)]
    assert extra_data == 96 * MIB
    assert added[1] - added[0] < 24 * MIB
    # After compilation, memory is constant.
    steady = np.array(large["samples"][len(large["samples"]) // 2 :])
    assert steady.std() < 0.2 * (steady.mean() - 0.5 * large["before"])
