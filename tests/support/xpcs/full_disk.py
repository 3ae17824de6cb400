"""Write results, maps and matrices in a process whose file size is limited, like a full disk."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxkern as jk
from jaxkern.cli import main


def limit(size):
    """As a full disk does, `write` fails beyond it (EFBIG and not ENOSPC)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def run(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    random = np.random.default_rng(0)
    bins = 1 + np.arange(256).reshape(16, 16) // 16
    qmap = jk.xpcs.QMap(bins, q=np.linspace(0.01, 0.1, 16), phi=np.zeros(16))
    frames = random.poisson(1.0, (60, 16, 16)).astype("u1")
    result = jk.xpcs.multitau(frames, qmap, overview=True)
    pairs = jk.xpcs.twotime(frames, qmap)
    np.save(folder / "frames.npy", frames)
    qmap.write(folder / "qmap.h5")
    ways = {
        "results.hdf": lambda path: jk.xpcs.write_results(path, result, pairs),
        "map.hdf": qmap.write,
        "matrices.hdf": lambda path: jk.xpcs.write_aps(
            path, pairs.c2[:4], q=0.01, phi=np.arange(4.0)
        ),
    }
    for name, write in ways.items():
        path = folder / "whole" / name
        path.parent.mkdir(exist_ok=True)
        write(path)
        size = path.stat().st_size
        for part in (*np.linspace(0, size - 1000, 7).astype(int).tolist(), 800):
            limit(part)
            with pytest.raises(OSError, match=name):
                write(folder / name)
            limit(resource.RLIM_INFINITY)
            assert not list(folder.glob(f"{name}*"))
        if name == "results.hdf":  # what is there stays
            (folder / name).write_bytes(b"before")
            limit(size // 2)
            with pytest.raises(OSError, match=name):
                write(folder / name)
            limit(resource.RLIM_INFINITY)
            assert (folder / name).read_bytes() == b"before"
            (folder / name).unlink()
        write(folder / name)  # which nothing that was left is in the way of
    limit(2_000)
    sys.stderr.write("correlate:\n")
    frames, qmap, output = (str(folder / n) for n in ("frames.npy", "qmap.h5", "cli.hdf"))
    code = main(["xpcs", "correlate", frames, "--qmap", qmap, "--output", output, "--quiet"])
    assert not os.path.exists(output)
    limit(resource.RLIM_INFINITY)
    sys.exit(10 + code)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
