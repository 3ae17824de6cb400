"""Frames that are still being taken: a folder that files appear in, or a file that grows."""

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

# A file that has changed is opened again, at most for this part of the time.
_SHARE = 0.1
# What a file looked like that was closed since, to be opened again.
_CLOSED = (-1, -1, -1)


class _Part(NamedTuple):
    """A file, how many frames of it are taken, and what it looked like when it was opened.

    `ends` is a digest of the first and the last of these frames, and None while there are none.
    """

    path: Path
    source: FrameSource
    frames: int
    looks: tuple[int, int, int]
    ends: bytes | None = None


class GrowingFrames(FrameSource):
    """Frames of a folder or of one file, as a writer appends them.

    `poll` looks for more; in between this is a source of the frames that were found. Files of a
    folder follow each other in the order of their names (2 before 10). One that cannot be read is
    taken for unfinished, and holds up those behind it; so is the last frame of a file of events
    until another follows. `finish` takes what is left. A file whose frames have become others, such
    as one that was replaced, increases `generation`: correlators read all frames again. `dead` has
    the pixels that every file marks; as a file grows it may mark others, which is looked at
    whenever twice as many frames are there and by `finish`.

    Args:
      place: a folder, or a file, which need not be there yet.
      frame_shape: (H, W), where files do not say it.
      dataset: of HDF5 files, see `open_frames`.
      pattern: of the names of a folder's files; files of unknown suffixes are left out anyway, and
        so are those that end in ``_metadata.hdf``.
      exclude: files of the folder that are no frames.

    Raises:
      DetectorFileError: from `poll`, files of other shapes or types than the first, one that got
        shorter, and one that appears behind those that come after it; from `finish`, one that
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
        place: str | os.PathLike[str],
        frame_shape: tuple[int, int] | None = None,
        dataset: str | None = None,
        pattern: str = "*",
        exclude: Iterable[str | os.PathLike[str]] = (),
    ):
        super().__init__()
        self._place = home_path(place)
        self.name = os.fspath(self._place)
        self._frame_shape, self._dataset, self._pattern = frame_shape, dataset, pattern
        self._exclude = {Path(path).absolute() for path in exclude}
        self._parts: list[_Part] = []
        self._next_look, self._waiting = 0.0, ""
        self._frames_at_dead = 0
        self.shape = (0, *(frame_shape or (0, 0)))
        self.dtype = np.dtype(np.uint8)

    def poll(self) -> int:
        """Looks for more frames; returns how many there are now."""
        return self._look(finished=False)

    def finish(self) -> int:
        """Takes what is left, as nothing more comes; returns how many frames there are."""
        self._next_look = 0.0
        count = self._look(finished=True)
        if self._waiting:
            raise DetectorFileError(self._waiting)
        return count

    def _look(self, finished: bool) -> int:
        began = time.monotonic()
        if began < self._next_look:
            return self.shape[0]
        paths = self._paths()
        self._check_order(paths)
        self._waiting = ""
        taken = max(len(self._parts) - 1, 0)
        for number in range(taken, len(paths)):
            if not self._take(number, paths[number], finished or number + 1 < len(paths)):
                break
        n = sum(part.frames for part in self._parts)
        self.shape = (n, *self.shape[1:])
        if n and not self._waiting and (finished or n >= 2 * self._frames_at_dead):
            self.dead, self._frames_at_dead = self._marked_by_all(), n
        self._next_look = time.monotonic() + (time.monotonic() - began) * (1 / _SHARE - 1)
        return n

    def _marked_by_all(self) -> NDArray[np.bool_] | None:
        dead: NDArray[np.bool_] | None = None
        for part in self._parts:
            if part.source.dead is None:
                return None
            dead = part.source.dead if dead is None else dead & part.source.dead
        return dead

    def _paths(self) -> list[Path]:
        if not self._place.is_dir():
            return [self._place] if self._place.exists() else []
        files = frame_files(self._place, self._exclude)
        return [path for path in files if fnmatch(path.name, self._pattern)]

    def _check_order(self, paths: list[Path]) -> None:
        for part, path in zip(self._parts, [*paths, *[None] * len(self._parts)], strict=False):
            if path != part.path:
                what = "is gone" if path is None or part.path not in paths else "was not the next"
                raise DetectorFileError(
                    f"{part.path} {what}: {path or 'nothing'} stands there now; wanted files that "
                    "stay, and whose names are in the order of their frames"
                )

    def _take(self, number: int, path: Path, complete: bool) -> bool:
        """Takes what a file has; whether it was readable."""
        known = self._parts[number] if number < len(self._parts) else None
        try:
            looks = _looks(path)
            if known is not None and known.looks == looks:
                return self._keep(number, known, complete)
            if known is not None:
                # HDF5 shows a file that is open as it was, also to who opens it again.
                known.source.close()
                self._parts[number] = known._replace(looks=_CLOSED)
            source = open_frames(path, self._frame_shape, self._dataset)
            if known is not None and source.shape[0] >= known.frames:
                if _ends(source, known.frames) != known.ends:
                    self.generation += 1
        except (OSError, ValueError) as error:
            self._waiting = str(error)
            return False
        if known is not None and source.shape[0] < known.frames:
            raise DetectorFileError(
                f"{path} has {source.shape[0]} frames and had {known.frames}; wanted a file that "
                "grows"
            )
        self._check_alike(source)
        return self._keep(number, _Part(path, source, 0, looks), complete)

    def _keep(self, number: int, part: _Part, complete: bool) -> bool:
        # More of the events of the last frame may come.
        held_back = int(part.source.is_sparse and not complete)
        frames = max(part.source.shape[0] - held_back, 0)
        if frames != part.frames:
            try:
                part = part._replace(frames=frames, ends=_ends(part.source, frames))
            except (OSError, ValueError) as error:  # as of a chunk that is not written yet
                self._waiting = str(error)
                return False
        self._parts[number : number + 1] = [part]
        return True

    def _check_alike(self, source: FrameSource) -> None:
        if not self._parts:
            self.shape, self.dtype = (0, *source.shape[1:]), source.dtype
            self.metadata = source.metadata
        if source.shape[1:] != self.shape[1:] or source.dtype != self.dtype:
            raise DetectorFileError(
                f"{source.name} has frames of {source.shape[1]} x {source.shape[2]} "
                f"({source.dtype}); wanted {self.shape[1]} x {self.shape[2]} ({self.dtype}), as "
                f"those of {self._parts[0].path}"
            )

    def read(self, first: int, stop: int) -> NDArray[Any]:
        self.check_range(first, stop)
        pieces, start = [], 0
        for part in self._parts:
            begin, end = max(first - start, 0), min(stop - start, part.frames)
            if begin < end:
                if part.looks == _CLOSED:
                    raise DetectorFileError(f"{part.path} is unfinished just now: {self._waiting}")
                pieces.append(part.source.read(begin, end))
            start += part.frames
        if not pieces:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def close(self) -> None:
        for part in self._parts:
            part.source.close()


def _looks(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _ends(source: FrameSource, frames: int) -> bytes | None:
    """A digest of the first and the last of some frames."""
    if not frames:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for number in sorted({0, frames - 1}):
        digest.update(np.ascontiguousarray(source.read(number, number + 1)).tobytes())
    return digest.digest()
