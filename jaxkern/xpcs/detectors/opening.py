"""Opening of detector files, NumPy files, and frames of a running measurement."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arrays import NUMPY_DAMAGE, check_mapped, map_npy
from jaxkern.core.paths import home_path, natural_order
from jaxkern.xpcs.detectors.binary import MODULE, ImmFrames, Rigaku3MFrames, RigakuFrames
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
from jaxkern.xpcs.detectors.qmap import QMap


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
                got = f"{sorted(file.files)[:10]} without {', '.join(sorted(missing))}"
                raise DetectorFileError(f"{name}: expected arrays pixel, frame, count; got {got}")
            keys = ("pixel", "frame", "count", "shape", "frame_time")
            pixel, frame, count, stored_shape, frame_time = (file.get(key) for key in keys)
            metadata = {}
            if frame_time is not None and frame_time.size == 1:
                metadata["frame_time"] = float(frame_time.reshape(-1)[0])
    except (DetectorFileError, FileNotFoundError):
        raise
    except NUMPY_DAMAGE as error:
        raise DetectorFileError(f"{name} cannot be read as a .npz file: {error}") from error
    shape, n_frames = event_shape(name, stored_shape, frame_shape)
    return EventFrames(pixel, frame, count, shape, n_frames, name, metadata)


Shape = tuple[int, int]


def _rigaku(path: str, frame_shape: Shape | None) -> FrameSource:
    height, width = check_frame_shape(path, frame_shape or MODULE)
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

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> jk.xpcs.as_frames(np.zeros((10, 6), np.uint16), frame_shape=(2, 3)).shape
      (10, 2, 3)
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
        known = ", ".join(SUFFIXES)
        raise DetectorFileError(f"{name}: expected an HDF5 or NumPy file, or a suffix of {known}")
    if dataset is None:
        source = reader(name, frame_shape)
    elif reader is hdf5_frames:
        source = hdf5_frames(name, frame_shape, dataset)
    else:
        raise ValueError(f"dataset: expected None, as {name} is not HDF5, got {dataset!r}")
    if not isinstance(source, Hdf5Frames):  # which marks them itself
        mark_sentinels(source)
    return source


# Largest fraction of the time for opening changed files again.
_SHARE = 0.1
# Fingerprint of a file that was closed to be opened again.
_CLOSED = (-1, -1, -1)


class _Part(NamedTuple):
    """A file of the run."""

    path: Path
    source: FrameSource
    frames: int  # in use
    fingerprint: tuple[int, int, int]  # of the file when it was opened
    ends: bytes | None = None  # digest of the first and the last of these frames


class GrowingFrames(FrameSource):
    """Frames of a folder or of one file, as a writer appends them.

    `poll` searches for new frames. Between calls this is a source of the frames found so far. The
    files of a folder are in the order of their names (2 before 10). A file that cannot be read, and
    the last frame of a file of events, count as unfinished, and later files wait for it. `finish`
    adds all remaining frames. If the frames of a file change, `generation` increases, and
    correlators read all frames again. `dead` has the pixels that every file marks; it is checked
    whenever the number of frames has doubled, and by `finish`.

    Args:
      path: a folder or a file, which may not exist yet.
      frame_shape: (H, W), for files that do not store it.
      dataset: data set of HDF5 files, see `open_frames`.
      pattern: pattern of the names of a folder's files. Files with unknown suffixes and files that
        end in ``_metadata.hdf`` are always skipped.
      exclude: files of the folder that do not hold frames.

    Raises:
      DetectorFileError: from `poll`, files of other shapes or dtypes than the first, a file that
        became shorter, or one that appears before files already read; from `finish`, a file that
        cannot be read.

    Example:
      >>> import jaxkern as jk, numpy as np, pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> frames = jk.xpcs.GrowingFrames(folder)
      >>> frames.poll()
      0
      >>> np.save(folder / "run_1.npy", np.ones((5, 4, 4), np.uint8))
      >>> frames.finish(), frames.shape, frames.read(3, 5).shape
      (5, (5, 4, 4), (2, 4, 4))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        frame_shape: tuple[int, int] | None = None,
        dataset: str | None = None,
        pattern: str = "*",
        exclude: Iterable[str | os.PathLike[str]] = (),
    ):
        self._path = home_path(path)
        self.name = os.fspath(self._path)
        self._frame_shape, self._dataset, self._pattern = frame_shape, dataset, pattern
        self._exclude = {Path(file).absolute() for file in exclude}
        self._parts: list[_Part] = []
        self._next_search, self._waiting = 0.0, ""
        self._frames_at_dead = 0
        self.shape = (0, *(frame_shape or (0, 0)))
        self.dtype = np.dtype(np.uint8)

    def poll(self) -> int:
        """Search for new frames, and return the number of frames."""
        return self._search(finished=False)

    def finish(self) -> int:
        """Add all remaining frames of a finished measurement, and return the number of frames."""
        self._next_search = 0.0
        count = self._search(finished=True)
        if self._waiting:
            raise DetectorFileError(self._waiting)
        return count

    def _search(self, finished: bool) -> int:
        start = time.monotonic()
        if start < self._next_search:
            return self.shape[0]
        paths = [self._path] if self._path.exists() else []
        if self._path.is_dir():
            files = frame_files(self._path, self._exclude)
            paths = [path for path in files if fnmatch(path.name, self._pattern)]
        for part, path in zip(self._parts, [*paths, *[None] * len(self._parts)], strict=False):
            if path != part.path:
                removed = path is None or part.path not in paths
                problem = "was removed" if removed else f"is now after the new file {path}"
                raise DetectorFileError(f"{part.path} {problem}; expected files to remain in order")
        self._waiting = ""
        complete = max(len(self._parts) - 1, 0)
        for number in range(complete, len(paths)):
            if not self._read_file(number, paths[number], finished or number + 1 < len(paths)):
                break
        n = sum(part.frames for part in self._parts)
        self.shape = (n, *self.shape[1:])
        if n and not self._waiting and (finished or n >= 2 * self._frames_at_dead):
            marked = [part.source.dead for part in self._parts if part.source.dead is not None]
            in_all = len(marked) == len(self._parts)
            self.dead, self._frames_at_dead = np.logical_and.reduce(marked) if in_all else None, n
        self._next_search = time.monotonic() + (time.monotonic() - start) * (1 / _SHARE - 1)
        return n

    def _read_file(self, number: int, path: Path, complete: bool) -> bool:
        """Open a file if it is new or changed; return True if it was readable."""
        known = self._parts[number] if number < len(self._parts) else None
        try:
            status = path.stat()
            fingerprint = status.st_ino, status.st_size, status.st_mtime_ns
            if known is not None and known.fingerprint == fingerprint:
                return self._store(number, known, complete)
            if known is not None:
                # HDF5 shares the state of an open file with a second handle of it.
                known.source.close()
                self._parts[number] = known._replace(fingerprint=_CLOSED)
            source = open_frames(path, self._frame_shape, self._dataset)
            if known is not None and source.shape[0] >= known.frames:
                if _ends(source, known.frames) != known.ends:
                    self.generation += 1
        except (OSError, ValueError) as error:
            self._waiting = str(error)
            return False
        if known is not None and source.shape[0] < known.frames:
            raise DetectorFileError(
                f"{path}: expected at least {known.frames} frames, as before, got {source.shape[0]}"
            )
        self._check_format(source)
        return self._store(number, _Part(path, source, 0, fingerprint), complete)

    def _store(self, number: int, part: _Part, complete: bool) -> bool:
        # The last frame may still receive events.
        unfinished = int(part.source.is_sparse and not complete)
        frames = max(part.source.shape[0] - unfinished, 0)
        if frames != part.frames:
            try:
                part = part._replace(frames=frames, ends=_ends(part.source, frames))
            except (OSError, ValueError) as error:  # such as a chunk that is not written yet
                self._waiting = str(error)
                return False
        self._parts[number : number + 1] = [part]
        return True

    def _check_format(self, source: FrameSource) -> None:
        if not self._parts:
            self.shape, self.dtype = (0, *source.shape[1:]), source.dtype
            self.metadata = source.metadata
        if source.shape[1:] != self.shape[1:] or source.dtype != self.dtype:
            expected, got = (f"{x.shape[1]} x {x.shape[2]} ({x.dtype})" for x in (self, source))
            where = f"{expected}, as in {self._parts[0].path}"
            raise DetectorFileError(f"{source.name}: expected frames of {where}, got {got}")

    def read(self, first: int, stop: int) -> NDArray[Any]:
        def read(part: _Part, begin: int, end: int) -> NDArray[Any]:
            if part.fingerprint == _CLOSED:
                raise DetectorFileError(f"{part.path} is unfinished: {self._waiting}")
            return part.source.read(begin, end)

        self.check_range(first, stop)
        parts = [(part.frames, partial(read, part)) for part in self._parts]
        return self.joined(parts, first, stop)

    def close(self) -> None:
        for part in self._parts:
            part.source.close()


def _ends(source: FrameSource, frames: int) -> bytes | None:
    """Return a digest of the first and the last of `frames` frames; None for 0 frames."""
    if not frames:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for number in sorted({0, frames - 1}):
        digest.update(np.ascontiguousarray(source.read(number, number + 1)).tobytes())
    return digest.digest()
