"""A fit whose memory is watched: run as a program by test_fit_memory.

    python memory_fit.py FILE STRATEGY

Maps FILE for STREAMING and loads it for the rest. Prints one JSON object, bytes of anonymous
memory: what the process had before the fit, the fit's own peak, and samples taken while it ran.
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
from support.xpcs import fit_problems as problems


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell RssAnon")


def main() -> None:
    path, strategy = sys.argv[1], sys.argv[2]
    data = np.load(path, mmap_mode="r" if strategy == "STREAMING" else None)
    n_phi, n, _ = data.shape
    geometry = jk.xpcs.Geometry(
        problems.Q, problems.GAP, problems.DT, problems.DT * np.arange(n), problems.PHI[:n_phi]
    )
    jax.block_until_ready(jax.numpy.zeros(1))  # the backend's own memory is not the fit's
    before, samples, running = anonymous(), [], [True]

    def watch() -> None:
        while running[0]:
            samples.append(anonymous())
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = jk.xpcs.fit(
        jk.xpcs.LaminarFlow(geometry),
        data,
        0.01,
        problems.START,
        strategy=strategy,
        symmetric=False,
        progress=False,
        max_nfev=12,
    )
    running[0] = False
    watcher.join()
    print(
        json.dumps(
            {
                "before": before,
                "peak": found.peak_memory,
                "samples": samples,
                "strategy": found.strategy,
                "compute": found.timings.compute,
                "compile": found.timings.compile,
                "nfev": found.nfev,
            }
        )
    )


if __name__ == "__main__":
    main()
