"""Opening of detector files, and NumPy files of frames or events."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxkern.core.archives import NUMPY_DAMAGE, map_npy
from jaxkern.core.mapped import check_mapped
from jaxkern.core.paths import natural_order
from jaxkern.xpcs.detectors.frames import (
    ArrayFrames,
    DetectorFileError,
    EventFrames,
    FrameSource,
    check_frame_shape,
    event_shape,
    mark_sentinels,
)
from jaxkern.xpcs.detectors.hdf5 import Hdf5Frames, hdf5_frames
from jaxkern.xpcs.detectors.imm import ImmFrames
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.detectors.rigaku import MODULE, Rigaku3MFrames, RigakuFrames


class NpyFrames(ArrayFrames):
    """An array [N, H, W], or [N, P] with `frame_shape`, of a `.npy` file mapped into memory."""

    def __init__(
        self, path: str | os.PathLike[str], frame_shape: tuple[int, int] | None = None
    ) -> None:
        name = os.fspath(path)
        Path(name).stat()
        try:
            super().__init__(np.asarray(map_npy(name)), frame_shape, name)
        except ValueError as error:
            raise DetectorFileError(str(error)) from error
        check_frame_shape(name, self.shape[1:])

    def read(self, first: int, stop: int) -> Any:
        check_mapped(self.name, self._stored)
        return super().read(first, stop)


def npz_events(
    path: str | os.PathLike[str], frame_shape: tuple[int, int] | None = None
) -> EventFrames:
    """Read events of a `.npz` file: arrays pixel, frame, optionally count, and shape (N, H, W)."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            if missing := {"pixel", "frame"} - set(file.files):
                raise DetectorFileError(
                    f"{name}: expected the arrays pixel, frame and count, got "
                    f"{sorted(file.files)[:10]} without {', '.join(sorted(missing))}"
                )
            keys = ("pixel", "frame", "count", "shape", "frame_time")
            *columns, stored_shape, time = (file.get(key) for key in keys)
            metadata = {}
            if time is not None and time.size == 1:
                metadata["frame_time"] = float(time.reshape(-1)[0])
    except (DetectorFileError, FileNotFoundError):
        raise
    except NUMPY_DAMAGE as error:
        raise DetectorFileError(f"{name} cannot be read as a .npz file: {error}") from error
    shape, n_frames = event_shape(name, stored_shape, frame_shape)
    return EventFrames(*columns, shape, n_frames, name, metadata)


Shape = tuple[int, int]


def _rigaku(path: str, frame_shape: Shape | None) -> FrameSource:
    if frame_shape is None:
        return RigakuFrames(path)
    height, width = check_frame_shape(path, frame_shape)
    # The map of bins may be rotated relative to the detector. Its shape then has as many pixels,
    # and is not the shape of the frames.
    same = height * width == MODULE[0] * MODULE[1]
    return RigakuFrames(path, MODULE if same else (height, width))


#: suffix of a path -> its reader, a function of the path and the requested frame shape
SUFFIXES: dict[str, Callable[[str, Shape | None], FrameSource]] = {
    ".bin": _rigaku,
    ".bin.000": lambda path, frame_shape: Rigaku3MFrames(path),
    ".imm": lambda path, frame_shape: ImmFrames(path),
    ".npy": NpyFrames,
    ".npz": npz_events,
    ".h5": hdf5_frames,
    ".hdf": hdf5_frames,
    ".hdf5": hdf5_frames,
    ".nxs": hdf5_frames,
    ".cxi": hdf5_frames,
}
# First bytes of a file -> its reader. Rigaku files have no signature.
_MAGIC: dict[bytes, Callable[[str, Shape | None], FrameSource]] = {
    b"\x89HDF\r\n\x1a\n": hdf5_frames,
    b"\x93NUMPY": NpyFrames,
    b"PK\x03\x04": npz_events,
}


def frame_files(folder: Path, exclude: Container[Path] = ()) -> list[Path]:
    """Return the files of a folder with known suffixes, 2 before 10, but not ``*_metadata.hdf``."""
    return [
        folder / name
        for name in natural_order(os.listdir(folder))
        if name.lower().endswith(tuple(SUFFIXES))
        and not name.startswith(".")
        and not name.endswith("_metadata.hdf")
        and (folder / name).absolute() not in exclude
    ]


def as_frames(
    frames: Any, frame_shape: Shape | None = None, dataset: str | None = None
) -> FrameSource:
    """Return an array [N, H, W] or [N, P], a `FrameSource` or a path as a `FrameSource`.

    Args:
      frame_shape: (H, W), for arrays [N, P] and for files of events that do not store it.
      dataset: for paths, see `open_frames`.

    Raises:
      TypeError: any other type.
      ValueError: an array of another rank; see `open_frames`.
    """
    if isinstance(frames, FrameSource):
        return frames
    if isinstance(frames, str | os.PathLike):
        return open_frames(frames, frame_shape, dataset)
    if hasattr(frames, "shape") and hasattr(frames, "dtype"):
        return ArrayFrames(frames, frame_shape)
    raise TypeError(f"frames: expected an array, a FrameSource or a path, got {frames!r:.80}")


@contextmanager
def frames_and_map(frames: Any, qmap: QMap, mask: Any = None) -> Iterator[tuple[FrameSource, QMap]]:
    """Yield frames as a source, and the map without masked and dead pixels; close own files."""
    source = as_frames(frames, qmap.shape)
    try:
        yield source, without_dead_pixels(qmap.with_mask(mask), source)
    finally:
        if source is not frames:
            source.close()


def without_dead_pixels(qmap: QMap, source: FrameSource) -> QMap:
    """Return the map of a source's frames without its dead pixels, after a check of the shape."""
    if source.shape[1:] != qmap.shape:
        raise ValueError(
            f"qmap: expected {source.shape[1]} x {source.shape[2]} pixels, as the frames of "
            f"{source.name}, got {qmap.shape[0]} x {qmap.shape[1]}"
        )
    return qmap.without(source.dead)


def open_frames(
    path: str | os.PathLike[str], frame_shape: Shape | None = None, dataset: str | None = None
) -> FrameSource:
    """Open the frames or events of a detector's file, which are read in parts.

    The format is that of the first bytes of HDF5 and NumPy files, and of the suffix of others:
    `.bin` and `.bin.000` (Rigaku), `.imm`, `.h5`, `.hdf`, `.hdf5`, `.nxs`, `.cxi`, `.npy`, `.npz`.

    Args:
      path: the file; the master or the first one of several files.
      frame_shape: (H, W), for files that do not store it.
      dataset: for HDF5, the name of the data set [N, H, W], of a group with data_000001, ..., or of
        a group with events; None to search it.

    Raises:
      FileNotFoundError: no such file.
      DetectorFileError: the content contradicts the format; it is a ValueError.
      ImportError: h5py, or hdf5plugin for some compressions, is required and not installed.

    Example:
      >>> import jaxkern as jk, numpy as np, pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "events.npz"
      >>> np.savez(path, pixel=[3, 0], frame=[0, 2], count=[1, 5], shape=[4, 2, 2])
      >>> frames = jk.xpcs.open_frames(path)
      >>> frames.shape, frames.read(2, 3).tolist()
      ((4, 2, 2), [[[5, 0], [0, 0]]])
    """
    name = os.fspath(path)
    if Path(name).is_dir():
        raise DetectorFileError(f"expected a file of frames or events, got the folder {name}")
    if not Path(name).exists():
        raise FileNotFoundError(f"file not found: {name!r}")
    with open(name, "rb") as file:
        begin = file.read(8)
    lower = name.lower()
    by_suffix = next((SUFFIXES[s] for s in SUFFIXES if lower.endswith(s)), None)
    by_content = next((_MAGIC[m] for m in _MAGIC if begin.startswith(m)), None)
    # A .bin may begin with any bytes.
    reader = by_suffix if by_suffix is _rigaku else by_content or by_suffix
    if reader is None:
        raise DetectorFileError(
            f"{name}: expected one of the suffixes {', '.join(SUFFIXES)}, or the content of an "
            "HDF5 or NumPy file"
        )
    if dataset is None:
        source = reader(name, frame_shape)
    elif reader is hdf5_frames:
        source = hdf5_frames(name, frame_shape, dataset)
    else:
        raise ValueError(f"dataset: expected None, as {name} is not HDF5, got {dataset!r}")
    if not isinstance(source, Hdf5Frames):  # which marks them itself
        mark_sentinels(source)
    return source
