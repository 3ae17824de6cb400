"""Multi-tau correlation inside jit: an op adds frames to a state, which gives results any time."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.op import Cost, Op
from jaxkern.xpcs.correlators.checks import rows_and_columns
from jaxkern.xpcs.correlators.multitau_sums import bins_of_pixels, check_totals, sums_of_state
from jaxkern.xpcs.correlators.native import native_module
from jaxkern.xpcs.correlators.results import MAX_DELAYS, g2_result, multitau_delays
from jaxkern.xpcs.correlators.selection import COUNT_DTYPES, BinLabels, BinnedPixels, FrameSelection
from jaxkern.xpcs.correlators.twin import multitau_update as pure_jax_update
from jaxkern.xpcs.correlators.twin import state_shapes
from jaxkern.xpcs.detectors.qmap import QMap

FRAME_DTYPES = tuple(dtype.name for dtype in COUNT_DTYPES)
_ARRAYS = ("total", "g", "head", "history")


def _abstract(frames: Any, seen: Any, *arrays: Any, dpl: int) -> Any:
    op, dtype = "multitau_update", np.dtype(frames.dtype)
    if dtype.name not in FRAME_DTYPES or len(frames.shape) != 2:
        got = f"{dtype.name}{list(frames.shape)}"
        raise ValueError(f"{op}: frames: expected [T, P] of {', '.join(FRAME_DTYPES)}, got {got}")
    if seen.shape != () or seen.dtype != np.int32:
        raise ValueError(f"{op}: seen: expected int32[], got {seen.dtype}{list(seen.shape)}")
    delays = arrays[1].shape[0] if arrays[1].shape else 0
    shapes = state_shapes(delays, frames.shape[1], dpl, dtype.kind == "f")
    for (name, shape), x in zip(shapes.items(), arrays, strict=True):
        if tuple(x.shape) != shape or x.dtype != np.uint32:
            state = f"uint32{list(shape)} for {dtype.name}{list(frames.shape)} and dpl={dpl}"
            raise ValueError(f"{op}: {name}: expected {state}, got {x.dtype}{list(x.shape)}")
    return tuple(jax.ShapeDtypeStruct(shape, np.uint32) for shape in shapes.values())


def _cost(frames: Any, seen: Any, *state: Any, dpl: int) -> Cost:
    # Each level has half as many sums as the level before: at most 4 dpl products per value.
    read = frames.size * np.dtype(frames.dtype).itemsize
    return Cost(flops=8 * dpl * frames.size, bytes=read + 8 * sum(x.size for x in state))


multitau_update_op = Op(
    "jaxkern.multitau_update",
    version=1,
    abstract=_abstract,
    impl=pure_jax_update,
    attributes=lambda dpl: {"dpl": np.int32(dpl)},
    cost=_cost,
    aliases={2: 0, 3: 1, 4: 2, 5: 3},
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class MultiTauState:
    """Running sums of the frames added so far, a pytree created by `multitau_init`.

    Wide sums are pairs of uint32, low word first: integers, or the bits of float64 for
    floating-point frames. Every array except `seen` has an axis of pixels, so that a state can be
    sharded over them.

    Attributes:
      seen: int32 [], the number of frames so far.
      total: uint32 [P, 2] the sum of all counts of a pixel.
      g: uint32 [n_tau, P, 2] sum of s[k] s[k - t].
      head: uint32 [n_tau, P] the sum of the first `delay` frames.
      history: uint32 [levels * 2 dpl, P] the last sums of each level, sum k in row k % (2 dpl).
      n_frames_max, dpl, dtype: arguments of `multitau_init`.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> state = jk.xpcs.multitau_init(n_pixels=6, n_frames_max=100, dtype=np.uint8)
      >>> int(state.seen), state.total.shape
      (0, (6, 2))
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
    """G, IP and IF [n_tau, P] of each pixel at `delay` [n_tau]; NaN at delays without pairs.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> state = jk.xpcs.multitau_init(n_pixels=6, n_frames_max=100, dtype=np.uint16)
      >>> state = jk.xpcs.multitau_update(state, np.full((40, 6), 2, np.uint16))
      >>> r = jk.xpcs.multitau_result(state)
      >>> int(r.delay[0]), r.G[0, 0].item(), r.IP[0, 0].item(), r.IF[0, 0].item()
      (1, 4.0, 2.0, 2.0)
    """

    delay: NDArray[np.int64]
    G: NDArray[np.float64]
    IP: NDArray[np.float64]
    IF: NDArray[np.float64]


def multitau_init(n_pixels: int, n_frames_max: int, dtype: Any, dpl: int = 4) -> MultiTauState:
    """Return the state before the first frame, for `multitau_update`.

    Args:
      n_pixels: P, the number of pixels of a frame.
      n_frames_max: determines the delays, which are those of this number of frames. More frames can
        be added; they count at the same delays.
      dtype: dtype of the frames: uint8, uint16, uint32, int32, float32 or float64. A pixel needs
        12 bytes per delay and 8 dpl bytes per level for integers, 16 and 16 dpl for floats.
      dpl: delays per level, at most 64, see `multitau_delays`.

    Raises:
      ValueError: numbers out of range, another dtype, or float64 without x64.

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
    check_integer("dpl", dpl, 1, MAX_DELAYS)
    name = np.dtype(dtype).name
    if name not in FRAME_DTYPES or jax.dtypes.canonicalize_dtype(name).name != name:
        known = ", ".join(FRAME_DTYPES)
        raise ValueError(f"dtype: expected one of {known} (float64 requires x64), got {name}")
    delays = len(multitau_delays(n_frames_max, dpl))
    shapes = state_shapes(delays, n_pixels, dpl, name.startswith("float"))
    arrays = {key: jnp.zeros(shape, jnp.uint32) for key, shape in shapes.items()}
    return MultiTauState(jnp.int32(0), **arrays, n_frames_max=n_frames_max, dpl=dpl, dtype=name)


def multitau_update(state: MultiTauState, frames: Any) -> MultiTauState:
    """Add frames to a state and return the new state.

    The result does not depend on how frames are split into blocks. The arrays are updated in place
    if the state is donated to `jax.jit` or carried in `lax.scan`.

    Args:
      state: from `multitau_init` or an earlier update.
      frames: [T, P], or [T, H, W] with H W = P, of the state's dtype. Integer counts are exact if
        those of each pixel sum to less than 2^32 - 1, which `multitau_result` checks.

    Raises:
      ValueError: frames of another dtype or number of pixels; without the native kernel,
        floating-point frames without x64.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> state = jk.xpcs.multitau_init(n_pixels=6, n_frames_max=100, dtype=np.uint16)
      >>> state = jk.xpcs.multitau_update(state, np.ones((40, 6), np.uint16))
      >>> int(state.seen)
      40
    """
    array = frames if hasattr(frames, "dtype") else jnp.asarray(frames)
    pixels = state.total.shape[-2]
    if str(array.dtype) != state.dtype or array.ndim not in (2, 3):
        got = f"{array.dtype}{list(array.shape)}"
        raise ValueError(f"frames: expected {state.dtype}[T, {pixels}], got {got}")
    if array.ndim == 3:
        array = array.reshape(array.shape[0], -1)
    arrays = multitau_update_op(array, state.seen, *_arrays(state), dpl=state.dpl)
    changed = dict(zip(_ARRAYS, arrays, strict=True))
    return dataclasses.replace(state, seen=state.seen + array.shape[0], **changed)


def multitau_result(
    state: MultiTauState,
    qmap: QMap | None = None,
    *,
    bins: Any = None,
    frame_time: float | None = None,
) -> Any:
    """Return the correlations of the frames added so far, outside of jit.

    Args:
      state: a state of one data set.
      qmap: a map of H W = P pixels; None for the numbers of each pixel.
      bins: the dynamic bins to return; by default all.
      frame_time: time between frames in s.

    Returns:
      A `MultiTauResult` with a map; without one, (delay [n_tau], G, IP, IF [n_tau, P] float64) as
      defined in `multitau`. Values are NaN at delays without pairs.

    Raises:
      TypeError: called inside jit, or a batch of states.
      ValueError: a map with another number of pixels, or a pixel of the map whose counts are
        negative or sum to 2^32 - 1 or more.

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
        expected = "one data set outside of jit, jax.tree.map(lambda x: x[i], state) of a batch"
        raise TypeError(f"state: expected the state of {expected}, got seen={state.seen!r:.80}")
    if qmap is None:
        exact, pairs = _exact_sums(state)
        delay = multitau_delays(state.n_frames_max, state.dpl)
        levels = [max(0, (d - 1) // (2 * state.dpl)).bit_length() for d in delay.tolist()]
        per, width = np.where(pairs > 0, pairs, np.nan), 2.0 ** np.array(levels)
        scales = (per * width**2, per * width, per * width)
        G, IP, IF = (x / scale[:, None] for x, scale in zip(exact, scales, strict=True))
        return PixelCorrelations(delay, G, IP, IF)
    pixels, seen = state.total.shape[0], int(state.seen)
    if qmap.shape[0] * qmap.shape[1] != pixels:
        raise ValueError(f"qmap: expected {pixels} pixels, got {qmap.shape[0]} x {qmap.shape[1]}")
    labels = BinLabels(qmap, bins)
    chosen = BinnedPixels.from_map(qmap, labels.bins)
    with rows_and_columns(qmap.shape[1]):
        native = native_module()
        if native is not None:
            options = {
                "most_frames": state.n_frames_max,
                "dpl": state.dpl,
                "real": state.dtype.startswith("float"),
            }
            stored = [np.asarray(x) for x in _arrays(state)]
            sums = sums_of_state(native, stored, seen, pixels, chosen, options)
        else:
            arrays, pairs = _exact_sums(state, chosen.pixel)
            sums = bins_of_pixels(chosen, pairs.astype(np.float64), arrays)
    selection = FrameSelection(state.n_frames_max)
    result = g2_result(sums, selection, labels, frame_time, {"dpl": state.dpl})
    return dataclasses.replace(result, n_frames=seen, n_pairs=sums.weight.astype(np.int64))


def _arrays(state: MultiTauState) -> tuple[jax.Array, ...]:
    return tuple(getattr(state, name) for name in _ARRAYS)


def _exact_sums(
    state: MultiTauState, which: Any = slice(None)
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return sums of s s', s and s' [3, n_tau, P] of some pixels, and numbers of pairs [n_tau]."""
    seen, integer_counts = int(state.seen), not state.dtype.startswith("float")
    arrays: list[Any] = [np.ascontiguousarray(x) for x in _arrays(state)]
    wide = np.uint64 if integer_counts else np.float64
    for k in range(2 if integer_counts else 4):
        arrays[k] = arrays[k].view(wide)[..., 0]
    total, g, head, history = arrays
    if integer_counts:
        check_totals(total[which], np.arange(len(total))[which])
    total = total[which].astype(np.int64 if integer_counts else np.float64)
    n_tau, depth = len(g), 2 * state.dpl
    sums, pairs = np.zeros((3, n_tau, len(total)), total.dtype), np.zeros(n_tau, np.int64)
    for level in range(len(history) // depth):
        ring = history[level * depth : (level + 1) * depth]
        n, tail = seen >> level, np.zeros_like(total)
        before = state.dpl if level else 0  # shorter delays belong to the level before
        for t in range(1, min(depth, n - 1) + 1):
            tail += ring[(n - t) % depth][which]
            tau = state.dpl * level + t - 1
            if before < t and tau < n_tau:
                sums[:, tau] = g[tau][which], total - tail, total - head[tau][which]
                pairs[tau] = n - t
        if n % 2:
            total = total - ring[(n - 1) % depth][which].astype(total.dtype)
    return sums, pairs
