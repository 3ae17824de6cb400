"""Options of a fit that go together: how it goes through large or unsafe data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxkern.core.arguments import check_integer


@dataclass(frozen=True)
class StreamingOptions:
    """How a fit goes through large or unsafe data.

    Attributes:
      enable_checkpoints: write ``checkpoint_dir/fit.checkpoint`` and resume from it where it is; it
        is removed when the fit has ended.
      checkpoint_frequency: chunks between two checkpoints inside a pass; one follows every pass.
      checkpoint_dir: made where it is missing.
      max_checkpoint_overhead: the part of the time that writing may take; checkpoints wait for it.
      chunk_points: points that the kernel gets at a time; None for 2^21, and for whole matrices
        up to 2^22 points.
      on_bad_chunk: ``"exclude"`` leaves rows with NaN, or that cannot be read, out in blocks of 32;
        ``"raise"`` fails the fit.
      retries: attempts to read such rows again before that.
    """

    enable_checkpoints: bool = False
    checkpoint_frequency: int = 10
    checkpoint_dir: str | Path = "checkpoints"
    max_checkpoint_overhead: float = 0.02
    chunk_points: int | None = None
    on_bad_chunk: Literal["exclude", "raise"] = "exclude"
    retries: int = 2

    def __post_init__(self) -> None:
        check_integer("checkpoint_frequency", self.checkpoint_frequency, 1)
        check_integer("retries", self.retries, 0)
        if self.chunk_points is not None:
            check_integer("chunk_points", self.chunk_points, 1)
        if not 0 < self.max_checkpoint_overhead <= 1:
            raise ValueError(
                f"max_checkpoint_overhead is {self.max_checkpoint_overhead}; wanted 0 < part <= 1"
            )
        if self.on_bad_chunk not in ("exclude", "raise"):
            raise ValueError(f"on_bad_chunk is {self.on_bad_chunk!r}; wanted 'exclude' or 'raise'")
