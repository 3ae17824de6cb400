"""Frames of a running measurement: a folder in which files appear, or a file that grows."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path
from jaxkern.xpcs.detectors.frames import DetectorFileError, FrameSource
from jaxkern.xpcs.detectors.opening import frame_files, open_frames

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
        super().__init__()
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
        paths = self._paths()
        self._check_order(paths)
        self._waiting = ""
        complete = max(len(self._parts) - 1, 0)
        for number in range(complete, len(paths)):
            if not self._read_file(number, paths[number], finished or number + 1 < len(paths)):
                break
        n = sum(part.frames for part in self._parts)
        self.shape = (n, *self.shape[1:])
        if n and not self._waiting and (finished or n >= 2 * self._frames_at_dead):
            self.dead, self._frames_at_dead = self._dead_in_all_files(), n
        self._next_search = time.monotonic() + (time.monotonic() - start) * (1 / _SHARE - 1)
        return n

    def _dead_in_all_files(self) -> NDArray[np.bool_] | None:
        marked = [part.source.dead for part in self._parts if part.source.dead is not None]
        complete = len(marked) == len(self._parts)
        return np.logical_and.reduce(marked) if complete else None

    def _paths(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path] if self._path.exists() else []
        files = frame_files(self._path, self._exclude)
        return [path for path in files if fnmatch(path.name, self._pattern)]

    def _check_order(self, paths: list[Path]) -> None:
        for part, path in zip(self._parts, [*paths, *[None] * len(self._parts)], strict=False):
            if path != part.path:
                removed = path is None or part.path not in paths
                problem = "was removed" if removed else f"is now after the new file {path}"
                raise DetectorFileError(f"{part.path} {problem}; expected files to remain in order")

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
            raise DetectorFileError(
                f"{source.name}: expected frames of {expected}, as in {self._parts[0].path}, got "
                f"{got}"
            )

    def read(self, first: int, stop: int) -> NDArray[Any]:
        self.check_range(first, stop)
        pieces, start = [], 0
        for part in self._parts:
            begin, end = max(first - start, 0), min(stop - start, part.frames)
            if begin < end:
                if part.fingerprint == _CLOSED:
                    raise DetectorFileError(f"{part.path} is unfinished: {self._waiting}")
                pieces.append(part.source.read(begin, end))
            start += part.frames
        if not pieces:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

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
