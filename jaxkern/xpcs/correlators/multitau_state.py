"""Multi-tau correlation inside jit: a state, frames that are added to it, results at any time."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.correlators.bin_checks import rows_and_columns
from jaxkern.xpcs.correlators.blocks import MOST_COUNTS
from jaxkern.xpcs.correlators.delays import MOST_DELAYS, multitau_delays
from jaxkern.xpcs.correlators.labels import BinLabels, g2_result
from jaxkern.xpcs.correlators.native_sums import native_module, sums_of_state
from jaxkern.xpcs.correlators.numpy_sums import bins_of_pixels, too_many_counts
from jaxkern.xpcs.correlators.ops import FRAME_DTYPES, multitau_update_op, state_shapes
from jaxkern.xpcs.correlators.pixels import BinnedPixels
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.qmap import QMap


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MultiTauState:
    """What frames have left so far, a pytree; from `multitau_init`.

    Wide sums are pairs of uint32, low word first: whole numbers, or the bits of float64 where
    frames are floating-point. Pixels are an axis of every array but `seen`, so that a state can be
    sharded over them.

    Attributes:
      seen: int32 [], frames so far.
      total: uint32 [P, 2] all counts of a pixel.
      g: uint32 [n_tau, P, 2] sum of s[k] s[k - t].
      head: uint32 [n_tau, P] the first `delay` frames together.
      history: uint32 [levels * 2 dpl, P] the last sums of each level, sum k in row k % (2 dpl).
      n_frames_max, dpl, dtype: as `multitau_init` was told.
    """

    seen: jax.Array
    total: jax.Array
    g: jax.Array
    head: jax.Array
    history: jax.Array
    n_frames_max: int = dataclasses.field(metadata={"static": True})
    dpl: int = dataclasses.field(metadata={"static": True})
    dtype: str = dataclasses.field(metadata={"static": True})


class PixelCorrelations(NamedTuple):
    """G, IP and IF [n_tau, P] of each pixel at `delay` [n_tau]; NaN at delays not reached."""

    delay: NDArray[np.int64]
    G: NDArray[np.float64]
    IP: NDArray[np.float64]
    IF: NDArray[np.float64]


def multitau_init(n_pixels: int, n_frames_max: int, dtype: Any, dpl: int = 4) -> MultiTauState:
    """The state before the first frame, for `multitau_update`.

    Args:
      n_pixels: P, pixels of a frame.
      n_frames_max: decides the delays, those of so many frames; more frames may come and count at
        the same delays.
      dtype: of the frames: uint8, uint16, uint32, int32, float32 or float64. Memory is 8 bytes a
        pixel, and for whole counts 12 for each delay and 8 dpl for each level of delays; for
        floating-point ones 16 and 16 dpl.
      dpl: delays a level, at most 64, see `multitau_delays`.

    Raises:
      ValueError: for numbers out of range, other dtypes, and float64 without x64.

    Example:
      >>> import jaxkern as jk, jax, numpy as np
      >>> state = jk.xpcs.multitau_init(n_pixels=6, n_frames_max=100, dtype=np.uint8)
      >>> add = jax.jit(jk.xpcs.multitau_update, donate_argnums=0)
      >>> frames = np.random.default_rng(0).poisson(3.0, (40, 6)).astype(np.uint8)
      >>> for block in np.split(frames, 4):
      ...     state = add(state, block)
      >>> delay, G, IP, IF = jk.xpcs.multitau_result(state)
      >>> delay[:3].tolist(), G.shape, bool(G[0, 0] == (frames[1:, 0] * 1.0 @ frames[:-1, 0]) / 39)
      ([1, 2, 3], (21, 6), True)
      >>> int(np.isnan(G[:, 0]).sum())  # the delays from 40 frames on
      5
    """
    check_integer("n_pixels", n_pixels, 0, 2**31 - 1)
    check_integer("n_frames_max", n_frames_max, 1, 2**31 - 1)
    check_integer("dpl", dpl, 1, MOST_DELAYS)
    name = np.dtype(dtype).name
    if name not in FRAME_DTYPES or jax.dtypes.canonicalize_dtype(name).name != name:
        raise ValueError(
            f"dtype is {name}; wanted one of {', '.join(FRAME_DTYPES)}, float64 with "
            "jax.config.update('jax_enable_x64', True)"
        )
    delays = len(multitau_delays(n_frames_max, dpl))
    shapes = state_shapes(delays, n_pixels, dpl, name.startswith("float"))
    arrays = {key: jnp.zeros(shape, jnp.uint32) for key, shape in shapes.items()}
    return MultiTauState(jnp.int32(0), **arrays, n_frames_max=n_frames_max, dpl=dpl, dtype=name)


def multitau_update(state: MultiTauState, frames: Any) -> MultiTauState:
    """The state with more frames.

    Any split of frames into blocks gives the same bits. Donate the state to `jax.jit`, or carry it
    in `lax.scan`, and its arrays are written in place.

    Args:
      state: from `multitau_init` or an earlier update.
      frames: [T, P], or [T, H, W] with H W = P, of the state's dtype. Whole counts are exact as
        long as those of each pixel sum to less than 2^32 - 1, which `multitau_result` checks.

    Raises:
      ValueError: for frames of another dtype or other pixels; in pure JAX (without the native
        kernel) for floating-point frames without x64.
    """
    array = frames if hasattr(frames, "dtype") else jnp.asarray(frames)
    pixels = state.total.shape[-2]
    if str(array.dtype) != state.dtype or array.ndim not in (2, 3):
        raise ValueError(
            f"frames is {array.dtype}{list(array.shape)}; wanted {state.dtype}, the dtype of the "
            f"state, and [T, {pixels}]"
        )
    if array.ndim == 3:
        array = array.reshape(array.shape[0], -1)
    arrays = multitau_update_op(
        array, state.seen, state.total, state.g, state.head, state.history, dpl=state.dpl
    )
    names = ("total", "g", "head", "history")
    changed = dict(zip(names, arrays, strict=True))
    return dataclasses.replace(state, seen=state.seen + array.shape[0], **changed)


def multitau_result(
    state: MultiTauState,
    qmap: QMap | None = None,
    *,
    bins: Any = None,
    frame_time: float | None = None,
) -> Any:
    """What a state gives so far, outside of jit.

    Args:
      state: of one data set.
      qmap: a map of H W = P pixels; without it every pixel's numbers are given.
      bins: the dynamic bins that are wanted; by default all.
      frame_time: from one frame to the next in s.

    Returns:
      With a map a `MultiTauResult`; without, (delay [n_tau], G, IP, IF [n_tau, P] float64) as
      defined there. Delays that were not reached are NaN.

    Raises:
      TypeError: inside jit, and for a batch of states.
      ValueError: for a map of other pixels; for pixels of it with negative counts, or counts that
        sum to 2^32 - 1 or more.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> state = jk.xpcs.multitau_init(6, 100, np.uint16)
      >>> frames = np.random.default_rng(0).poisson(3.0, (50, 2, 3)).astype(np.uint16)
      >>> state = jk.xpcs.multitau_update(state, frames)
      >>> qmap = jk.xpcs.QMap(np.array([[1, 1, 2], [1, 1, 0]]))
      >>> r = jk.xpcs.multitau_result(state, qmap, frame_time=1e-3)
      >>> bool((r.g2[:16] == jk.xpcs.multitau(frames, qmap, progress=False).g2[:16]).all())
      True
    """
    if isinstance(state.seen, jax.core.Tracer) or state.seen.ndim:
        raise TypeError(
            f"state.seen is {state.seen!r:.80}; wanted the state of one data set, outside of jit "
            "(of a batch, jax.tree.map(lambda x: x[i], state))"
        )
    seen, whole = int(state.seen), not state.dtype.startswith("float")
    stored = [np.asarray(x) for x in (state.total, state.g, state.head, state.history)]
    pixels = stored[0].shape[0]
    if qmap is None:
        return _of_pixels(state, stored, seen, whole, slice(None), range(pixels))
    if qmap.shape[0] * qmap.shape[1] != pixels:
        raise ValueError(
            f"the map has {qmap.shape[0]} x {qmap.shape[1]} pixels; wanted {pixels}, as the state"
        )
    labels = BinLabels(qmap, bins)
    chosen = BinnedPixels.of(qmap, labels.bins)
    with rows_and_columns(qmap.shape[1]):
        native = native_module()
        if native is not None:
            options = {"most_frames": state.n_frames_max, "dpl": state.dpl, "real": not whole}
            sums = sums_of_state(native, stored, seen, pixels, chosen, options)
        else:
            G, IP, IF, pairs = _exact(state, stored, seen, whole, chosen.pixel, chosen.pixel)
            sums = bins_of_pixels(chosen, pairs.astype(np.float64), np.stack([G, IP, IF]), whole)
    every = FrameSelection(state.n_frames_max)
    result = g2_result(sums, every, labels, frame_time, {"dpl": state.dpl})
    return dataclasses.replace(result, n_frames=seen, n_pairs=sums.weight.astype(np.int64))


def _of_pixels(
    state: MultiTauState, stored: list[Any], seen: int, whole: bool, which: Any, numbers: Any
) -> PixelCorrelations:
    *sums, pairs = _exact(state, stored, seen, whole, which, numbers)
    delay = multitau_delays(state.n_frames_max, state.dpl)
    width = _widths(delay, state.dpl).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        per = np.where(pairs > 0, pairs, np.nan)[:, None]
        G, IP, IF = (
            x / (per * width[:, None] ** power) for x, power in zip(sums, (2, 1, 1), strict=True)
        )
    return PixelCorrelations(delay, G, IP, IF)


def _widths(delay: NDArray[np.int64], dpl: int) -> NDArray[np.int64]:
    """2^L of each delay's level."""
    level = [max(0, (int(d) - 1) // (2 * dpl)).bit_length() for d in delay]
    return np.int64(1) << np.array(level, np.int64)


def _exact(
    state: MultiTauState, stored: list[Any], seen: int, whole: bool, which: Any, numbers: Any
) -> tuple[Any, Any, Any, NDArray[np.int64]]:
    """Sums of s s', s and s' [n_tau, P] of some pixels, zeros where a delay was not reached, and
    the numbers of pairs [n_tau]."""
    wide, narrow = (np.uint64, np.uint32) if whole else (np.float64, np.float64)
    total, g = (np.ascontiguousarray(x).view(wide)[..., 0] for x in stored[:2])
    head, history = stored[2:]
    if not whole:
        head, history = (np.ascontiguousarray(x).view(narrow)[..., 0] for x in stored[2:])
    total, g = total[which], g[:, which]
    if whole and (total >= MOST_COUNTS).any():
        worst = numbers[int(np.argmax(total >= MOST_COUNTS))]
        raise ValueError(too_many_counts(int(worst)))
    total = total.astype(np.int64 if whole else np.float64)
    delay, kept = multitau_delays(state.n_frames_max, state.dpl), 2 * state.dpl
    sums = np.zeros((3, len(delay), len(total)), total.dtype)
    pairs = np.zeros(len(delay), np.int64)
    for level in range(len(history) // kept):
        ring = history[level * kept : (level + 1) * kept]
        n = seen >> level
        tail = np.zeros_like(total)
        before = state.dpl if level else 0  # sums of the level with delays of a lower one
        for t in range(1, min(kept, n - 1) + 1):
            tail += ring[(n - t) % kept][which]
            tau = state.dpl * level + t - 1
            if t <= before or tau >= len(delay):
                continue
            sums[:, tau] = g[tau], total - tail, total - head[tau][which]
            pairs[tau] = n - t
        if n % 2:
            total = total - ring[(n - 1) % kept][which].astype(total.dtype)
    return *sums, pairs
