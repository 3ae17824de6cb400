"""A fit whose memory is sampled; test_fit_strategies runs it as a program.

    python memory_fit.py FILE STRATEGY

Maps FILE for "stream" and loads it for "memory". Prints a JSON object with the anonymous memory in
bytes: before the fit, the peak that the fit reports, and samples during the fit.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np

import jaxkern as jk
from support.xpcs import fit_checks
from support.xpcs import fit_problems as problems


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def main() -> None:
    path, strategy = sys.argv[1], sys.argv[2]
    data = np.load(path, mmap_mode="r" if strategy == "stream" else None)
    n_phi, n, _ = data.shape
    jax.block_until_ready(jax.numpy.zeros(1))  # the memory of the backend is not counted
    before, samples, running = anonymous(), [], [True]

    def watch() -> None:
        while running[0]:
            samples.append(anonymous())
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = jk.xpcs.fit(
        fit_checks.flow(n, problems.PHI[:n_phi]),
        data,
        0.01,
        problems.START,
        solver=jk.xpcs.SolverOptions(max_nfev=12),
        streaming=jk.xpcs.StreamingOptions(strategy=strategy, symmetric=False),
        progress=False,
    )
    running[0] = False
    watcher.join()
    timings = {"compute": result.timings.compute, "compile": result.timings.compile}
    report = {"before": before, "peak": result.peak_memory, "samples": samples, **timings}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
