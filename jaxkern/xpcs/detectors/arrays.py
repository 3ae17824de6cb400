"""Frames and events in NumPy's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxkern.core.archives import NUMPY_DAMAGE, map_npy
from jaxkern.core.mapped import check_mapped
from jaxkern.xpcs.detectors.events import EventFrames, check_frame_shape, shape_of_events
from jaxkern.xpcs.detectors.frames import ArrayFrames, DetectorFileError

_COLUMNS = ("pixel", "frame", "count")


class NpyFrames(ArrayFrames):
    """An array [N, H, W], or [N, P] with `frame_shape`, of a `.npy` file mapped into memory.

    Raises:
      FileNotFoundError: no such file.
      DetectorFileError: not such a file, one that is cut short, other ranks or dtypes.
    """

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
    """Events of a `.npz` file: arrays pixel, frame and count (ones without), and shape (N, H, W).

    Raises:
      FileNotFoundError: no such file.
      DetectorFileError: not such a file, a damaged one, arrays that are missing, or see
        `EventFrames`.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = set(file.files)
            if missing := {"pixel", "frame"} - names:
                raise DetectorFileError(
                    f"{name} has the arrays {sorted(names)[:10]}; wanted pixel, frame and count, "
                    f"and {', '.join(sorted(missing))} is not there"
                )
            columns = [file[key] if key in names else None for key in _COLUMNS]
            said = file["shape"] if "shape" in names else None
            metadata = {}
            if "frame_time" in names and file["frame_time"].size == 1:
                metadata["frame_time"] = float(file["frame_time"].reshape(-1)[0])
    except (DetectorFileError, FileNotFoundError):
        raise
    except NUMPY_DAMAGE as error:
        raise DetectorFileError(f"{name} cannot be read as a .npz file: {error}") from error
    shape, n_frames = shape_of_events(name, said, frame_shape)
    return EventFrames(columns[0], columns[1], columns[2], shape, n_frames, name, metadata)
