"""Streaming from files of two sizes: would catch memory that grows with the file or with passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import SUPPORT, environment
from support.xpcs import fit_problems as problems

MIB = 2**20


def streamed(path: Path, n: int) -> dict:
    """Bytes of anonymous memory of a fit of 2 angles of n^2 points f32 that are mapped."""
    data = np.lib.format.open_memmap(path, "w+", np.float32, (2, n, n))
    random = np.random.default_rng(0)
    for k in range(2):
        clean = problems.correlation(problems.TRUTH, [0.3], [1.0], n, problems.PHI[k : k + 1])[0]
        data[k] = clean + 0.01 * random.standard_normal((n, n), np.float32)
    data.flush()
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "xpcs" / "memory_fit.py"), str(path), "STREAMING"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
    )
    path.unlink()
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_memory_does_not_know_the_size_of_the_file(tmp_path):
    # Both are many chunks of 2^21 points, of which one is in the kernel and one ahead of it.
    small, large = streamed(tmp_path / "small.npy", 2048), streamed(tmp_path / "large.npy", 4096)
    extra_data = 4 * 2 * (4096**2 - 2048**2)
    added = [max(seen["samples"]) - seen["before"] for seen in (small, large)]
    assert extra_data == 96 * MIB
    assert added[1] - added[0] < 24 * MIB
    # From where the pass is compiled, the fit's memory is flat.
    steady = np.array(large["samples"][len(large["samples"]) // 2 :])
    assert steady.std() < 0.2 * (steady.mean() - 0.5 * large["before"])
