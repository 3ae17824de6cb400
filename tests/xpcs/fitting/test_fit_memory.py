"""Memory of a fit: would catch a copy of the data, a leak from pass to pass, a wrong estimate."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from support import SUPPORT, environment
from support.xpcs import fit_problems as problems

import jaxkern as jk

N = 2048  # 2 angles in float32: 32 MiB
MIB = 2**20


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "c2.npy"
    data = np.empty((2, N, N), np.float32)
    for k in range(2):
        data[k] = problems.correlation(problems.TRUTH, [0.3], [1.0], N, problems.PHI[k : k + 1])[0]
    data += 0.01 * np.random.default_rng(0).standard_normal(data.shape, np.float32)
    np.save(path, data)
    return path


@pytest.mark.parametrize(
    "strategy",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("LARGE", "STREAMING")), "CHUNKED"],
)
def test_estimate_holds(stored, strategy):
    """Anonymous memory that the fit adds, against what `estimate_memory` says it will."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "xpcs" / "memory_fit.py"), str(stored), strategy],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    estimate = jk.xpcs.estimate_memory(
        2 * N * N,
        11,
        n_phi=2,
        itemsize=4,
        in_memory=strategy != "STREAMING",
        strategy=strategy,
    )
    added = max(*seen["samples"], seen["peak"]) - seen["before"]
    assert added < 1.3 * estimate.fit * 2**30
    assert added > 0.3 * estimate.fit * 2**30
    if strategy != "LARGE":
        assert added < 32 * MIB + 1.3 * jk.xpcs.estimate_memory(1, 1).fit * 2**30
    # After the first pass has been compiled, memory stays.
    steady = np.array(seen["samples"][len(seen["samples"]) * 2 // 3 :])
    assert steady.std() < 0.2 * steady.mean()
    assert seen["peak"] >= 0.9 * steady.mean()
