"""What correlators take as frames, as a source of frames."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from jaxkern.xpcs.detectors.frames import ArrayFrames, FrameSource

#: the suffix of a path -> the source that reads it
SUFFIXES: dict[str, Callable[[Any], FrameSource]] = {}


def as_frames(frames: Any, frame_shape: tuple[int, int] | None = None) -> FrameSource:
    """An array [N, H, W] or [N, P], a `FrameSource` or a path, as a `FrameSource`.

    Raises:
      TypeError: for what is none of them.
      ValueError: for arrays of other ranks, and paths whose suffix no reader knows.
    """
    if isinstance(frames, FrameSource):
        return frames
    if isinstance(frames, str | os.PathLike):
        suffix = os.path.splitext(os.fspath(frames))[1].lower()
        if suffix not in SUFFIXES:
            raise ValueError(
                f"{os.fspath(frames)!r} has the suffix {suffix!r}; wanted one of {sorted(SUFFIXES)}"
            )
        return SUFFIXES[suffix](frames)
    if hasattr(frames, "shape") and hasattr(frames, "dtype"):
        return ArrayFrames(frames, frame_shape)
    raise TypeError(
        f"frames is {frames!r:.80}; wanted an array [N, H, W] or [N, P], a FrameSource, or a path"
    )
