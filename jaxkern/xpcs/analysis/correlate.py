"""One file of frames to one file of results, which says what it was made of."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.archives import digest
from jaxkern.core.arguments import check_integer
from jaxkern.core.version import __version__
from jaxkern.xpcs.analysis.correlation_plots import plot_correlations
from jaxkern.xpcs.correlators.bin_checks import CorrelationWarning
from jaxkern.xpcs.correlators.delays import MOST_DELAYS
from jaxkern.xpcs.correlators.frame_sums import intensity_limits
from jaxkern.xpcs.correlators.hot_pixels import HotPixels, check_hot_pixels
from jaxkern.xpcs.correlators.labels import BinLabels, asked_time
from jaxkern.xpcs.correlators.multitau import multitau
from jaxkern.xpcs.correlators.results import MultiTauResult, TwoTimeResult
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.correlators.two_time import twotime
from jaxkern.xpcs.correlators.two_time_reduction import check_form, check_smoothing, form_edges
from jaxkern.xpcs.detectors.frames import DetectorFileError, FrameSource
from jaxkern.xpcs.detectors.hdf5_access import hdf5_errors, look, open_hdf5
from jaxkern.xpcs.detectors.hdf5_metadata import detector_metadata
from jaxkern.xpcs.detectors.opening import open_frames
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.made_of import file_told, links_told
from jaxkern.xpcs.files.results_writer import write_results

# A longer list is told by its digest.
_LISTED = 20


@dataclass(frozen=True)
class CorrelationChoices:
    """How frames are correlated: arguments of `multitau` and `twotime`, and where times come from.

    Attributes:
      twotime: the form of two-time correlations, as `twotime` takes it; None for none. With them
        `bins` are those that have one, and g2 is of all bins.
      metadata: a ``*_metadata.hdf``, of which /entry is copied into the results.
    """

    dpl: int = 4
    normalize: bool = False
    bad_frames: Sequence[int] | NDArray[Any] | None = None
    begin: int = 0
    end: int | None = None
    stride: int = 1
    average: int = 1
    intensity_cut: tuple[float | None, float | None] | None = None
    hot_pixels: HotPixels = "report"
    bins: Sequence[int] | NDArray[Any] | None = None
    parts: int = 0
    twotime: Any = None
    smoothing: Literal["static", "none"] = "static"
    frame_time: float | None = None
    dataset: str | None = None
    metadata: Path | None = None

    def check(self, qmap: QMap) -> None:
        """Raises, before any frame is read, for what cannot be whatever the frames are."""
        check_integer("dpl", self.dpl, 1, MOST_DELAYS)
        for name, least in (("begin", 0), ("stride", 1), ("average", 1), ("parts", 0)):
            check_integer(name, getattr(self, name), least)
        if self.end is not None:
            check_integer("end", self.end, self.begin)
        if self.frame_time is not None:
            asked_time(self.frame_time)
        intensity_limits(self.intensity_cut)
        check_hot_pixels(self.hot_pixels)
        BinLabels(qmap, self.bins)
        check_smoothing(self.smoothing)
        check_form("full" if self.twotime is None else self.twotime)
        if self.metadata is not None:
            read_metadata(self.metadata)

    def told(self, qmap: QMap) -> dict[str, Any]:
        """What results say that they were made of, besides the files of frames."""
        told = {field.name: _told(getattr(self, field.name)) for field in fields(self)}
        if self.metadata is not None:
            told["metadata"] = file_told(self.metadata)
        labels = [x for x in (qmap.q, qmap.phi) if x is not None]
        return {
            "qmap": digest(qmap.dynamic, qmap.static, qmap.mask, *labels),
            **told,
            "jaxkern": __version__,
        }


class CorrelatedFile(NamedTuple):
    """What came of a file.

    source: the file, closed. multitau, twotime: the results. files: what was written. seconds:
    that the correlations took.
    """

    source: FrameSource
    multitau: MultiTauResult
    twotime: TwoTimeResult | None
    files: list[Path]
    seconds: float

    @property
    def warnings(self) -> list[str]:
        """What is doubtful about the correlations, each once."""
        pairs = () if self.twotime is None else self.twotime.warnings
        return list(dict.fromkeys((*self.multitau.warnings, *pairs)))


def correlate_file(
    path: Path,
    qmap: QMap,
    output: Path,
    choices: CorrelationChoices,
    *,
    plots: Path | None = None,
    plot_all: bool = False,
    progress: bool = False,
    opened: Callable[[FrameSource], None] | None = None,
) -> CorrelatedFile:
    """Correlates a file and writes its results, whole or not at all.

    Args:
      path: the frames or events.
      output: the file of results; one that is there is replaced.
      plots: a folder of plots of them, or None.
      plot_all: see `plot_correlations`.
      opened: called with the open file before the work.

    Raises:
      ValueError, OSError: see `open_frames`, `multitau`, `twotime` and `write_results`.
    """
    made_of = {"file": file_told(path), **choices.told(qmap)}
    began = time.monotonic()
    with (
        open_frames(path, qmap.shape, choices.dataset) as source,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", CorrelationWarning)  # they are in the results
        made_of["linked"] = links_told(path, source.linked)
        common: dict[str, Any] = {
            name: getattr(choices, name)
            for name in ("begin", "end", "stride", "average", "bad_frames")
        }
        common["frame_time"] = time_between(choices.frame_time, choices.metadata, source)
        common["progress"] = progress
        if choices.twotime is not None:
            taken = FrameSelection(
                source.shape[0], choices.begin, choices.end, choices.stride, choices.average
            )
            form_edges(check_form(choices.twotime), max(taken.n, 1))
        if opened is not None:
            opened(source)
        found = multitau(
            source,
            qmap,
            choices.dpl,
            choices.normalize,
            intensity_cut=choices.intensity_cut,
            hot_pixels=choices.hot_pixels,
            bins=choices.bins if choices.twotime is None else None,
            parts=choices.parts,
            overview=True,
            **common,
        )
        pairs = None
        if choices.twotime is not None:
            common["bad_frames"] = found.config["bad_frames"]
            masked = found.config["hot_pixels"] if choices.hot_pixels == "mask" else []
            pairs = twotime(
                source,
                qmap.without(np.array(masked, np.int64).reshape(-1, 2)) if masked else qmap,
                bins=choices.bins,
                smoothing=choices.smoothing,
                form=choices.twotime,
                **common,
            )
        seconds = time.monotonic() - began
        files = [write_results(output, found, pairs, choices.metadata, source, made_of)]
        if plots is not None:
            files += plot_correlations(plots, found, pairs, title=path.name, all_bins=plot_all)
    return CorrelatedFile(source, found, pairs, files, seconds)


def time_between(
    frame_time: float | None, metadata: Path | None, source: FrameSource
) -> float | None:
    """From one frame to the next in s: as given, of a file of metadata, or the source's own."""
    if frame_time is not None:
        return float(frame_time)
    told = {} if metadata is None else read_metadata(metadata)
    return told.get("frame_time", source.metadata.get("frame_time"))


def read_metadata(path: Path) -> dict[str, Any]:
    """What a file of metadata says.

    Raises:
      ValueError: for a file that has no group /entry.
    """
    with open_hdf5(str(path)) as file, hdf5_errors(str(path)):
        if not hasattr(look(file, "entry"), "keys"):
            raise DetectorFileError(f"{path}: there is no group /entry; wanted a file of metadata")
        return detector_metadata(file)


def _told(value: Any) -> Any:
    """A choice as JSON has it; long lists by their digest."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple | range):
        if len(value) > _LISTED:
            return f"{len(value)} numbers ({digest(np.asarray(value))})"
        return [_told(item) for item in value]
    return value
