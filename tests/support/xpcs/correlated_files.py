"""Files of frames in a folder, `xpcs correlate` of them, and what it wrote."""

from __future__ import annotations

import csv

import numpy as np

from jaxkern.cli import main
from jaxkern.xpcs.analysis import many
from support.xpcs import correlation_results as samples

NAMES = ("run2", "run10", "run11")


def files_of_frames(folder, names):
    """The folder, made, with these files of 40 frames and a map for them."""
    folder.mkdir()
    for seed, name in enumerate(names):
        np.save(folder / f"{name}.npy", samples.frames(40, seed))
    samples.qmap().write(folder / "qmap.h5")
    return folder


def paths(data):
    return [data / f"{name}.npy" for name in NAMES]


def correlate(data, *more, files=NAMES, output="results", quiet=True):
    paths = [str(data / f"{name}.npy") for name in files]
    flags = ["--qmap", str(data / "qmap.h5"), "--output", str(data.parent / output)]
    return main(["xpcs", "correlate", *paths, *flags, *more, *(["--quiet"] if quiet else [])])


def table_of(path):
    """The rows of a CSV file; None where a cell is empty."""
    with path.open(newline="") as file:
        return [{k: v or None for k, v in row.items()} for row in csv.DictReader(file)]


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def called(monkeypatch, fails=()):
    """The files that are correlated from now on; the first calls of some fail."""
    seen, failing, real = [], list(fails), many.correlate_file

    def correlate_file(path, *args, **kwargs):
        seen.append(path.stem)
        if path.stem in failing:
            failing.remove(path.stem)
            raise OSError("the disk is away")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(many, "correlate_file", correlate_file)
    return seen
