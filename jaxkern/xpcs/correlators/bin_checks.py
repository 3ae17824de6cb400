"""Bins without a meaningful correlation, and why: no pixels, no counts, or counts of NaN."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.correlators.blocks import frame_blocks, is_whole
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.labels import BinLabels
from jaxkern.xpcs.correlators.results import TwoTimeResult
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

_SHOWN = 10  # bins that a message lists
_MOST_EMPTY = 0.01  # share of a bin's frames that may have no counts without a message


class CorrelationWarning(UserWarning):
    """Something about pixels or bins that makes a correlation doubtful, or NaN."""


@contextmanager
def rows_and_columns(width: int) -> Iterator[None]:
    """Adds row and column to what kernels, which only have numbers, say about a pixel."""

    try:
        yield
    except ValueError as error:
        match = re.search(r"pixel (\d+) has", str(error))
        if match is None:
            raise
        row, column = divmod(int(match[1]), width)
        raise ValueError(f"row {row}, column {column}: {error}") from error


def warn_of(messages: Sequence[str]) -> tuple[str, ...]:
    """Issues a `CorrelationWarning` for each message; returns them."""
    for message in messages:
        warnings.warn(message, CorrelationWarning, stacklevel=3)
    return tuple(messages)


def check_empty_bins(
    qmap: QMap,
    labels: BinLabels,
    dead: NDArray[np.bool_] | None,
    mask: NDArray[np.bool_] | None,
    name: str,
) -> list[str]:
    """Returns a message for each reason why some of the bins have no pixels.

    Args:
      qmap: the map before dead and masked pixels were left out.
      labels: the bins of the map after that.
      dead: [H, W], true for pixels that the file marks as dead.
      mask: [H, W], true for pixels that the caller wants.
      name: of the frames.

    Raises:
      ValueError: none of the bins has a pixel.
    """
    empty = labels.bins[labels.n_pixels == 0]
    if not len(empty):
        return []
    bins = np.where(qmap.static > 0, qmap.dynamic, 0)
    left = bins > 0
    reasons: dict[str, NDArray[np.int64]] = {}
    steps = [("the map has no pixels in them", left)]
    left = left & qmap.mask
    steps.append(("the map's mask is 0 in all of their pixels", left))
    if mask is not None:
        left = left & mask
        steps.append(("the mask is 0 in all of their pixels that the map's mask keeps", left))
    if dead is not None:
        left = left & ~dead
        steps.append((f"{name} marks all of their other pixels as dead", left))
    steps.append(("all of their other pixels are masked as hot pixels", left & False))
    unexplained = empty
    for reason, kept in steps:
        gone = np.bincount(bins[kept], minlength=qmap.n_dynamic + 1)[unexplained] == 0
        if gone.any():
            reasons[reason] = unexplained[gone]
            unexplained = unexplained[~gone]
    texts = [f"bins {_listed(numbers)} have no pixels: {why}" for why, numbers in reasons.items()]
    if len(empty) == len(labels.bins):
        inverted = ""
        for what, given in (("the map's mask", qmap.mask), ("the mask", mask)):
            if given is not None and given.any() and not (given & (bins > 0)).any():
                outside = int(given.sum())
                inverted = (
                    f". {what[0].upper()}{what[1:]} is 1 in {outside:,} pixels, all outside of the "
                    f"bins; is it inverted (expected 1 for good pixels)?"
                )
        raise ValueError(f"no pixels are left to correlate: {'; '.join(texts)}{inverted}")
    return [f"{text}; their correlations are NaN" for text in texts]


def dark_bins(sums: BinSums, labels: BinLabels) -> list[str]:
    """Returns a message if bins with pixels have no counts at any delay."""
    if not sums.weight.any():  # all frames are bad
        return []
    light = np.zeros(labels.qmap.n_dynamic + 1)
    np.add.at(light, labels.qmap.dynamic_of_static, np.abs(sums.sums[1:]).sum(axis=(0, 1)))
    dark = labels.bins[(light[labels.bins] == 0) & (labels.n_pixels > 0)]
    if not len(dark):
        return []
    return [f"bins {_listed(dark)} have no counts in any frame; their g2 is 0"]


def empty_frames(result: TwoTimeResult) -> list[str]:
    """Returns a message if more than 1% of the good frames have no counts in some bin."""
    assert result.n_empty is not None
    assert result.n_pairs is not None
    frames = result.n_empty + result.n_pairs[0]
    share = result.n_empty / np.maximum(frames, 1)
    many = int((share > _MOST_EMPTY).sum())
    if not many:
        return []
    k = int(np.argmax(share))
    worst = f"{100 * share[k]:.3g}%"
    numbers = f"({result.n_empty[k]:,} of {frames[k]:,})"
    where = f"bin {result.bins[k]} has no counts in {worst} of the frames {numbers}"
    if many > 1:
        where = (
            f"{many} of {len(result.bins)} bins have no counts in more than 1% of the frames, "
            f"bin {result.bins[k]} in {worst} {numbers}"
        )
    return [
        f"{where}: C(t1, t2) is NaN there, and averages leave these frames out; to have "
        "fewer of them, sum neighbouring frames (average) or use larger bins"
    ]


def nan_bins(
    finite: NDArray[np.bool_],
    labels: BinLabels,
    source: FrameSource,
    selection: FrameSelection,
) -> list[str]:
    """Returns a message if correlations of floating-point frames are NaN, naming the pixels.

    Args:
      finite: [n_bins], true where a bin's correlation is finite wherever there are pairs of frames.

    Raises:
      ValueError: no bin with pixels has a finite correlation.
    """
    wrong = ~finite & (labels.n_pixels > 0)
    if is_whole(source) or not wrong.any():
        return []
    qmap = labels.qmap
    inside = qmap.used & np.isin(qmap.dynamic, labels.bins[wrong])
    numbers = np.flatnonzero(inside)
    spoilt, first = np.zeros(len(numbers), bool), ""
    bad = selection.bad_places()
    for number, block in frame_blocks(source, selection):
        begin = number * selection.average
        counts = np.take(block, numbers, axis=1)
        counts = np.where(bad[begin : begin + len(block), None], 0, counts)
        unknown = ~np.isfinite(counts)
        if not first and unknown.any():
            frame, k = (int(found[0]) for found in np.nonzero(unknown))
            row, column = divmod(int(numbers[k]), qmap.shape[1])
            place = selection.begin + (begin + frame) * selection.stride
            first = f"frame {place} has {counts[frame, k]} in row {row}, column {column}"
        spoilt |= unknown.any(axis=0)
    if not first:
        first = "sums of their counts overflow"
    elif spoilt.sum() > 1:
        first += f", and {int(spoilt.sum()) - 1:,} more pixels of these bins have such counts"
    text = f"the correlations of bins {_listed(labels.bins[wrong])} are NaN: {first}"
    if wrong.sum() == (labels.n_pixels > 0).sum():
        raise ValueError(f"{source.name}: {text}; mask these pixels, or leave these frames out")
    return [f"{text}; mask these pixels (mask=, --mask, --hot-pixels mask)"]


def _listed(bins: NDArray[np.int64]) -> str:
    shown = ", ".join(map(str, bins[:_SHOWN].tolist()))
    return f"[{shown}]" if len(bins) <= _SHOWN else f"[{shown}, ...] ({len(bins):,} bins)"
