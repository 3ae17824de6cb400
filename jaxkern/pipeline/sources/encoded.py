"""Images that a source holds encoded, as native threads read them: where the bytes lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedImages:
    """One field of a source, for native threads that decode it themselves.

    Attributes:
      blobs: uint8 [B] each, C-contiguous: bytes of encoded images, a memory map as well; with
        `in_files`, the names of files as the system takes them.
      place: int64 [N, 3] of each record: its blob, and offset and length of its bytes (or of its
        file's name) there.
      in_files: whether `blobs` hold names of files.
      size: int32 [N, 2], height and width of the image as it stands upright, from its header; a row
        of zeros where the header cannot be understood.
      codec: "jpeg"; or "raw": uint8 [height, width, channels] as it is.
      channels: of the decoded image: 1, 3 or 4.
      max_pixels: height * width that no image may exceed.
      scaled: whether JPEG may be decoded at 1/2, 1/4 or 1/8 where the Compose shrinks it by at
        least as much, which is faster and changes values.
      rows_of: from numbers of records to rows of `place` and `size`, where they differ.
    """

    blobs: tuple[np.ndarray, ...]
    place: np.ndarray
    in_files: bool
    size: np.ndarray
    codec: Literal["jpeg", "raw"] = "jpeg"
    channels: int = 3
    max_pixels: int = 178_956_970
    scaled: bool = False
    rows_of: Callable[[np.ndarray], np.ndarray] | None = None
