"""Check of a file of XPCS data for damage, in a child process, which the HDF5 library may crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxkern.core.failures import describe_exception
from jaxkern.xpcs.detectors.hdf5_access import check_filters, hdf5_errors, open_hdf5
from jaxkern.xpcs.detectors.opening import open_frames
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.aps import ApsFile
from jaxkern.xpcs.files.results_reader import read_results

if TYPE_CHECKING:
    import h5py

_HDF5 = b"\x89HDF\r\n\x1a\n"
# Results have this data set. Files of matrices by other programs do not.
_G2_OF_PAIRS = "xpcs/twotime/normalized_g2"
_MATRICES = ("exchange/C2T_all", "xpcs/twotime/correlation_map")
_BLOCK = 1 << 26  # bytes that are read at a time


@dataclass(frozen=True)
class FileCheck:
    """Result of `check_file`: a description of a file's content, or of its damage."""

    path: Path
    holds: str | None
    error: str | None


def check_file(
    path: str | os.PathLike[str],
    frame_shape: tuple[int, int] | None = None,
    dataset: str | None = None,
) -> FileCheck:
    """Read all data of a file that this package can read, in a child process.

    Args:
      path: frames, events, a map of bins, two-time correlations or results.
      frame_shape: (H, W), for files of frames or events that do not store it.
      dataset: see `open_frames`.

    Example:
      >>> import jaxkern as jk, numpy as np, pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "qmap.h5"
      >>> jk.xpcs.QMap(np.ones((4, 4), int)).write(path)
      >>> check_file(path).holds
      'a map of bins: QMap(4 x 4, 1 dynamic and 1 static bins, 16 pixels)'
    """
    path = Path(path)
    path.stat()
    arguments = json.dumps([os.fspath(path), frame_shape, dataset])
    command = [sys.executable, "-c", f"from {__name__} import _child; _child()", arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    child = subprocess.run(command, capture_output=True, env=env, check=False)
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return FileCheck(path, None, f"the library that reads the file crashed ({name})")
    try:
        return FileCheck(path, *json.loads(child.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        error = f"the process that read the file ended with exit code {child.returncode}"
        return FileCheck(path, None, error)


def holds_matrices(path: Path) -> bool:
    """Return True for an HDF5 file of two-time correlations, with or without g2.

    Raises:
      ValueError: the file has g2 only.
    """
    with path.open("rb") as file:
        if file.read(len(_HDF5)) != _HDF5:
            return False
    with open_hdf5(path) as file:
        if any(name in file for name in _MATRICES):
            return True
        if "xpcs/multitau" in file:
            raise ValueError(
                f"{path}: expected frames or two-time correlations, got g2; see report"
            )
    return False


def _child() -> None:
    path, frame_shape, dataset = json.loads(sys.argv[1])
    holds, error = None, None
    try:
        holds = _read_all(path, frame_shape, dataset)
    except (OSError, ValueError) as raised:
        error = str(raised)
    except Exception as raised:
        error = describe_exception(raised)
    print(json.dumps([holds, error]), flush=True)


def _read_all(path: str, frame_shape: tuple[int, int] | None, dataset: str | None) -> str:
    """Read all data of a file, and return a description of its content."""
    with open(path, "rb") as file:
        begin = file.read(len(_HDF5))
    if begin == _HDF5:
        names = _read_objects(path)
        if dataset is None and {"xpcs/multitau", "xpcs/twotime_binned", _G2_OF_PAIRS} & names:
            results = read_results(path)
            kinds = {"g2": results.multitau, "two-time correlations": results.twotime}
            counts = [f"{name} of {len(one.bins)} bins" for name, one in kinds.items() if one]
            return f"results: {', '.join(counts)}"
        if dataset is None and names.intersection(_MATRICES):
            return _read_matrices(path)
        if dataset is None and {"qmap", "xpcs/qmap"} & names:
            return f"a map of bins: {QMap.read(path)}"
    with open_frames(path, frame_shape, dataset) as source:
        step = max(1, _BLOCK // max(1, source.frame_bytes))
        read: Any = source.events if source.is_sparse else source.read
        for first in range(0, len(source), step):
            read(first, min(first + step, len(source)))
        return f"frames: {source!r}"


def _read_matrices(path: str) -> str:
    with ApsFile(path) as file:
        for angle in range(file.shape[0]):
            for first in range(0, file.shape[1], 512):
                file.read(angle, first, min(first + 512, file.shape[1]))
        return f"two-time correlations {list(file.shape)}"


def _read_objects(path: str) -> set[str]:
    """Read every data set and attribute of an HDF5 file, and return the names of its objects."""
    import h5py

    with open_hdf5(path) as file, hdf5_errors(path):
        items: list[tuple[str, Any]] = [("", file)]
        file.visititems(lambda name, item: items.append((name, item)))
        for name, item in items:
            with hdf5_errors(path, name):
                dict(item.attrs)
                if isinstance(item, h5py.Dataset):
                    check_filters(path, item)
                    for part in _parts(item):
                        item[part]
    return {name for name, _ in items}


def _parts(stored: h5py.Dataset) -> Iterator[Any]:
    """Yield selections of a data set along its first axis, of whole chunks and bounded size."""
    if not stored.shape or not stored.size:
        yield from [()] if stored.shape is not None else []
        return
    row = max(1, int(np.prod(stored.shape[1:], dtype=object)) * stored.dtype.itemsize)
    chunk = stored.chunks[0] if stored.chunks else 1
    step = max(1, _BLOCK // row // chunk) * chunk
    for first in range(0, stored.shape[0], step):
        yield slice(first, first + step)
