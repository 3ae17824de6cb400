"""Frames, bins and times of a run, and its frames or events as the kernels read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.arrays import check_mapped
from jaxkern.core.memory import check_memory
from jaxkern.xpcs.correlators.native import computed_ahead
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

_FRAME_BYTES = 32  # memory for the numbers of one frame, including temporary arrays


class FrameSelection:
    """Frames `begin` to `end` (exclusive), every `stride`-th, with `average` neighbours summed.

    Sum k of the N = (end - begin) // (stride * average) sums is over the frames
    begin + (k * average + i) * stride, i < average. `total` and `bad_frames` count the source's
    frames from its first.
    """

    def __init__(
        self,
        total: int,
        begin: int = 0,
        end: int | None = None,
        stride: int = 1,
        average: int = 1,
        bad_frames: Sequence[int] | NDArray[Any] | None = None,
    ):
        end = total if end is None else end
        self.total = total
        self.begin = check_integer("begin", begin, 0)
        self.end = check_integer("end", end, 0)
        self.stride = check_integer("stride", stride, 1)
        self.average = check_integer("average", average, 1)
        if not self.begin <= self.end <= total:
            raise ValueError(f"begin, end: expected begin <= end <= {total}, got {begin}, {end}")
        bad = np.unique(np.asarray([] if bad_frames is None else bad_frames))
        if bad.size and (bad.dtype.kind not in "ui" or bad[0] < 0 or bad[-1] >= total):
            raise ValueError(f"bad_frames: expected 0 to {total - 1}, got {bad_frames!r:.80}")
        self.bad = bad.astype(np.int64)
        self.n = (self.end - self.begin) // (self.stride * self.average)

    def part(self, first: int, stop: int) -> FrameSelection:
        """Return the selection of the sums first .. stop - 1."""
        length = self.stride * self.average
        begin, end = (self.begin + k * length for k in (first, stop))
        return FrameSelection(self.total, begin, end, self.stride, self.average, self.bad)

    def time_step(self, frame_time: float | None) -> float | None:
        """Return the time in s between sums of frames that are `frame_time` apart."""
        return None if frame_time is None else frame_time * self.stride * self.average

    @property
    def bad_selected(self) -> NDArray[np.int64]:
        """The bad frames that would otherwise be in a sum."""
        from_begin = self.bad - self.begin
        inside = (from_begin >= 0) & (from_begin < self.n * self.average * self.stride)
        return self.bad[inside & (from_begin % self.stride == 0)]

    def check_length(self, source: FrameSource, least: int, reason: str = "") -> None:
        """Raise ValueError for fewer than `least` sums of frames of a source."""
        if self.n < least:
            raise ValueError(
                f"frames: expected at least {least}{reason}, got {self.n} of the {self.total} "
                f"frames of {source.name} by begin, end, stride and average"
            )

    def check_memory(self, frames: int) -> None:
        """Raise MemoryError if arrays with numbers for `frames` frames do not fit into memory."""
        check_memory(
            f"arrays for {frames:,} frames",
            frames * _FRAME_BYTES,
            "select fewer frames (begin=, end=). multitau_events does without these arrays if "
            "bad_frames, stride, average, intensity_cut, normalize and overview are not used",
            minimum=2**28,
        )

    def bad_mask(self) -> NDArray[np.bool_]:
        """Return a mask [N * average] of the selected frames, true for bad ones."""
        self.check_memory(self.n * self.average)
        mask = np.zeros(self.n * self.average, bool)
        mask[(self.bad_selected - self.begin) // self.stride] = True
        return mask

    def config(self) -> dict[str, Any]:
        """Return the selection as entries of a result's `config`."""
        names = ("begin", "end", "stride", "average")
        return {
            **{name: getattr(self, name) for name in names},
            "bad_frames": self.bad_selected.tolist(),
        }

    def good_counts(self) -> NDArray[np.uint32]:
        """Return the number of good frames [N] in each sum."""
        self.check_memory(self.n)
        counts = np.full(self.n, self.average, np.uint32)
        sums = (self.bad_selected - self.begin) // (self.stride * self.average)
        np.subtract.at(counts, sums, 1)
        return counts

    def missing_counts(self) -> NDArray[np.uint32]:
        """Return the number of bad frames [N] in each sum."""
        return self.average - self.good_counts()


class BinLabels:
    """Some dynamic bins of a map (numbers from 1; None for all), with q, phi and pixel counts."""

    def __init__(self, qmap: QMap, bins: Any = None) -> None:
        self.qmap = qmap
        every = np.arange(1, qmap.n_dynamic + 1)
        chosen = every if bins is None else np.atleast_1d(np.asarray(bins))
        unique = np.unique(chosen)
        if chosen.ndim != 1 or not np.isin(chosen, every).all() or len(unique) != len(chosen):
            raise ValueError(f"bins: expected 1 to {qmap.n_dynamic} once each, got {bins!r:.80}")
        self.bins: NDArray[np.int64] = chosen.astype(np.int64)
        self.n_pixels = qmap.pixels_of_bin[self.bins - 1]

    def fields(
        self, selection: FrameSelection, frame_time: float | None, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the fields common to results of both kinds; `frame_time` is the source's, in s."""
        q, phi = (None if x is None else x[self.bins - 1] for x in (self.qmap.q, self.qmap.phi))
        return {
            "bins": self.bins,
            "q": q,
            "phi": phi,
            "n_pixels": self.n_pixels,
            "n_frames": selection.n,
            "frame_time": selection.time_step(frame_time),
            "qmap": self.qmap,
            "overview": None,
            "config": {**config, **selection.config()},
        }


def check_frame_time(frame_time: float) -> float:
    """Return a time between frames in s, which must be above 0 and finite."""
    step = check_number("frame_time", frame_time, 0.0)
    if not 0 < step < math.inf:
        raise ValueError(f"frame_time: expected a finite time above 0 s, got {frame_time!r}")
    return step


def time_step(frame_time: float | None, source: FrameSource) -> float | None:
    """Return the time between frames in s: `frame_time`, or a valid one of the source, or None."""
    if frame_time is not None:
        return check_frame_time(frame_time)
    stored = source.metadata.get("frame_time")
    return float(stored) if stored is not None and 0 < stored < math.inf else None


@dataclass(frozen=True, eq=False)
class BinnedPixels:
    """Pixels and their bins, which are numbered from 0 here."""

    pixel: NDArray[np.int32]  # [P] row * W + column, ascending
    static: NDArray[np.int32]  # [P]
    dynamic: NDArray[np.int32]  # [P]
    n_static: int  # bins of the map
    n_dynamic: int

    @classmethod
    def from_map(cls, qmap: QMap, bins: NDArray[np.int64]) -> BinnedPixels:
        """Return the pixels of some dynamic bins, numbered from 1, of a map."""
        pixel = np.sort(qmap.pixels)
        pixel = pixel[np.isin(qmap.dynamic.ravel()[pixel], bins)]
        static, dynamic = (x.ravel()[pixel] - 1 for x in (qmap.static, qmap.dynamic))
        return cls(pixel, static, dynamic, qmap.n_static, qmap.n_dynamic)

    def __len__(self) -> int:
        return len(self.pixel)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of native kernels for these pixels."""
        return self.pixel, self.static, self.dynamic, self.n_static, self.n_dynamic

    def grouped(self, n: int) -> tuple[BinnedPixels, PixelGroups]:
        """Divide the pixels of each dynamic bin into n groups of successive pixels.

        The static bins of the result are the parts of static bins in one group.
        """
        sizes = np.bincount(self.dynamic, minlength=self.n_dynamic)
        order = np.argsort(self.dynamic, kind="stable")
        rank = np.empty(len(self), np.int64)
        rank[order] = np.arange(len(self)) - (np.cumsum(sizes) - sizes)[self.dynamic[order]]
        group = rank * n // np.maximum(sizes, 1)[self.dynamic]
        cells, cell, pixels = np.unique(
            self.static.astype(np.int64) * n + group, return_inverse=True, return_counts=True
        )
        groups = PixelGroups(n, cells // n, cells % n, pixels, sizes >= n)
        divided = replace(self, static=cell.astype(np.int32), n_static=max(len(cells), 1))
        return divided, groups

    def split(self, tile: NDArray[np.int64], max_pixels: int) -> list[BinnedPixels]:
        """Split at tiles, ascending [P], into groups of at most `max_pixels`, or one tile, each."""
        if len(self) <= max_pixels:
            return [self]
        ends = np.append(np.flatnonzero(np.diff(tile)) + 1, len(self))
        parts, begin = [], 0
        while begin < len(self):
            fitting = ends[(ends > begin) & (ends <= begin + max_pixels)]
            end = int(fitting[-1] if len(fitting) else ends[ends > begin][0])
            pixel, static, dynamic = (x[begin:end] for x in (self.pixel, self.static, self.dynamic))
            parts.append(BinnedPixels(pixel, static, dynamic, self.n_static, self.n_dynamic))
            begin = end
        return parts


class PixelGroups(NamedTuple):
    """Parts of static bins in n groups of pixels; there are C parts."""

    n: int
    static: NDArray[np.int64]  # [C] the static bin of each part, from 0
    group: NDArray[np.int64]  # [C]
    pixels: NDArray[np.int64]  # [C]
    known: NDArray[np.bool_]  # [n_dynamic] bins with a pixel in each group


#: dtypes that kernels read: integers of at most 32 bits, or floating-point numbers
COUNT_DTYPES = tuple(np.dtype(name) for name in ("u1", "u2", "u4", "i4", "f4", "f8"))
#: the integer counts of a pixel must sum to less, so that all sums of products fit into 63 bits
COUNT_LIMIT = 2**32 - 1
BLOCK_BYTES = 32 * 2**20
_WIDE = {"f": np.float64, "i": np.int64, "u": np.uint64}


def as_counts(frames: NDArray[Any], name: str = "frames") -> NDArray[Any]:
    """Return frames in a dtype that kernels read, a copy if their own dtype is another."""
    native = frames.dtype.newbyteorder("=")
    if native in COUNT_DTYPES:
        return frames.astype(native, copy=False)
    if native.kind == "f":
        return frames.astype(np.float32 if native.itemsize < 4 else np.float64)
    target = np.dtype(np.uint32 if native.kind == "u" else np.int32)
    least, most = int(frames.min(initial=0)), int(frames.max(initial=0))
    if least < np.iinfo(target).min or most > np.iinfo(target).max:
        got = f"{frames.dtype} from {least} to {most}"
        raise ValueError(f"{name}: expected counts that fit into {target}, or floats, got {got}")
    return frames.astype(target)


def has_integer_counts(source: FrameSource) -> bool:
    """True if a source's counts are integers."""
    return source.dtype.kind != "f"


def selected_frames(
    source: FrameSource, selection: FrameSelection, first: int, stop: int
) -> NDArray[Any]:
    """Return the frames [T * average, H * W], good or bad, of T = stop - first sums."""
    step, count = selection.stride, (stop - first) * selection.average
    begin = selection.begin + first * selection.average * step
    end = begin + max(count - 1, 0) * step + min(count, 1)
    if source.array is not None:
        frames = source.array[begin:end:step]
        check_mapped(source.name, frames)
    else:
        one_by_one = step >= 8  # reading single frames is faster than reading all of them
        read = count if one_by_one else end - begin
        what = f"{source.name}: {read:,} frames for sums of {selection.average:,}"
        needed, advice = 2 * read * source.frame_bytes, "use a smaller average="
        check_memory(what, needed, advice, minimum=4 * BLOCK_BYTES)
        if one_by_one:
            frames = np.concatenate([source.read(k, k + 1) for k in range(begin, end, step)])
        else:
            frames = source.read(begin, end)[::step]
    shape = (count, *source.shape[1:])
    if frames.shape != shape:
        raise ValueError(f"{source!r}: expected frames of shape {shape}, got {frames.shape}")
    flat = as_counts(frames.reshape(count, -1), source.name)
    return flat if is_contiguous(flat) else flat.copy()


def is_contiguous(frames: NDArray[Any]) -> bool:
    """True if kernels can read frames [N, ...] in place."""
    if frames.size == 0:
        return True
    return bool(is_strided(frames) and frames[0].flags.c_contiguous)


def is_strided(array: NDArray[Any]) -> bool:
    """True if the items of an array are aligned, unlike some fields of structured arrays."""
    return bool(array.flags.aligned and array.strides[0] % array.itemsize == 0)


def frame_blocks(
    source: FrameSource,
    selection: FrameSelection,
    divisor: NDArray[np.float64] | None = None,
    n_bytes: int | None = None,
) -> Iterator[tuple[int, NDArray[Any], NDArray[np.bool_], NDArray[np.float64] | None]]:
    """Yield (first sum, `selected_frames`, bad frames, divisors) of blocks, read one ahead."""
    sum_bytes = max(source.frame_bytes * selection.average, 1)
    size = max((n_bytes or BLOCK_BYTES) // sum_bytes, 1)
    starts = range(0, selection.n, size)
    calls = [(source, selection, k, min(k + size, selection.n)) for k in starts]
    if source.array is not None:
        blocks: Iterator[NDArray[Any]] = (selected_frames(*call) for call in calls)
    else:
        blocks = computed_ahead(selected_frames, calls, "jaxkern-frames")
    bad = selection.bad_mask()
    for first, block in zip(starts, blocks, strict=True):
        at = slice(first * selection.average, first * selection.average + len(block))
        yield first, block, bad[at], None if divisor is None else divisor[at]


def summed(
    frames: NDArray[Any],
    average: int,
    bad: NDArray[np.bool_],
    divisor: NDArray[np.float64] | None = None,
) -> NDArray[Any]:
    """Return sums [T, P] of `average` frames, divided by `divisor` and 0 where `bad`."""
    if divisor is not None:
        frames = frames / divisor[:, None]
    if bad.any():
        frames = frames.copy()
        frames[bad] = 0
    if average == 1:
        return frames
    grouped = frames.reshape(len(frames) // average, average, frames.shape[1])
    return np.asarray(grouped.sum(axis=1, dtype=_WIDE[frames.dtype.kind]))


_BLOCK_EVENTS = 2**22


@dataclass(frozen=True, eq=False)
class EventMemory:
    """All events of a source, in memory or in memory maps, as Rigaku words or as columns."""

    #: first arguments of the native kernels: words, their first pixel, whether they are in a
    #: read-only memory map, and the columns pixel, frame and count, or None
    arguments: tuple[Any, ...]
    size: int  # events
    event_bytes: int
    n_frames: int
    frame_pixels: int

    @classmethod
    def from_source(cls, source: FrameSource) -> Self:
        """Return the events of a source, without a copy if they are in memory."""
        shape = source.shape[0], source.shape[1] * source.shape[2]
        words = source.words
        if words is not None and words.flags.c_contiguous:
            check_mapped(source.name, words)
            arguments = (words, source.pixel_base, _read_only_map(words), None, None, None)
            return cls(arguments, len(words), 8, *shape)
        columns = source.columns or source.events(0, source.shape[0])
        for column in columns:
            check_mapped(source.name, column)
        native = [x.astype(x.dtype.newbyteorder("="), copy=False) for x in columns]
        readable = [x if is_strided(x) else x.copy() for x in native]
        event_bytes = sum(column.itemsize for column in readable)
        return cls((None, 0, False, *readable), len(readable[0]), event_bytes, *shape)

    def frames(self, selection: FrameSelection) -> tuple[Any, ...]:
        """Return the next arguments: n_frames, n_sums, first_frame, sum, good, frame_pixels."""
        good = selection.good_counts() if len(selection.bad_selected) else None
        sums = None
        if selection.stride > 1 or selection.average > 1 or good is not None:
            selection.check_memory(self.n_frames)
            sums = np.full(self.n_frames, -1, np.int32)
            count = selection.n * selection.average
            at = selection.begin + np.arange(count) * selection.stride
            sums[at] = np.arange(count) // selection.average
            sums[selection.bad_selected] = -1
        return self.n_frames, selection.n, selection.begin, sums, good, self.frame_pixels


def _read_only_map(array: NDArray[Any]) -> bool:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            return owner.mode == "r"
        owner = owner.base
    return False


def event_blocks(
    source: FrameSource, selection: FrameSelection
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]]:
    """Yield blocks (position, pixel, count) of all events; positions count selected frames."""
    stop = selection.begin + selection.n * selection.average * selection.stride
    stop = min(stop, source.shape[0])
    step, first = 1, selection.begin
    while first < stop:
        step = min(step, stop - first)
        pixel, frame, count = source.events(first, first + step)
        position = frame.astype(np.int64) - selection.begin
        if selection.stride > 1:
            selected = position % selection.stride == 0
            position = position[selected] // selection.stride
            pixel, count = pixel[selected], count[selected]
        yield position, pixel, count
        first += step
        step = max(int(step * min(_BLOCK_EVENTS / max(len(frame), 1), 16)), 1)


def exact_sums(numbers: NDArray[Any], counts: NDArray[Any], length: int) -> NDArray[np.int64]:
    """Return exact sums [length] of integer counts, each added at its number."""
    # bincount adds in float64, in which sums of 2^37 numbers of 16 bits are exact.
    low = np.bincount(numbers, counts & 0xFFFF, minlength=length).astype(np.int64)
    if int(counts.max(initial=0)) >= 1 << 16:
        low += np.bincount(numbers, counts >> 16, minlength=length).astype(np.int64) << 16
    return low
