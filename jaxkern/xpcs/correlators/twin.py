"""Pure-JAX update of multi-tau states: 64-bit integers are pairs of uint32, so x64 is not needed.

Every second sum of a level completes one sum of the next level, as digits of a binary counter.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkern.xpcs.correlators.selection import COUNT_LIMIT


def state_shapes(delays: int, pixels: int, dpl: int, real: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the uint32 arrays of a state; the last axis may be pairs of words."""
    levels = 1 + max(-(-(delays - 2 * dpl) // dpl), 0)
    pair = (2,) if real else ()
    return {
        "total": (pixels, 2),
        "g": (delays, pixels, 2),
        "head": (delays, pixels, *pair),
        "history": (levels * 2 * dpl, pixels, *pair),
    }


def multitau_update(
    frames: Any, seen: Any, total: Any, g: Any, head: Any, history: Any, *, dpl: int
) -> tuple[Any, ...]:
    """Compute the op `jaxkern.multitau_update` for one state."""
    total, g, history, head = add_frames(frames, seen, total, g, history, head, dpl=dpl)
    return total, g, head, history


def add_frames(
    frames: Any, seen: Any, total: Any, g: Any, history: Any, *others: Any, dpl: int
) -> tuple[Any, ...]:
    """Add frames [T, P] to a state, which is returned.

    `others` is the state's head; or past and future, like `g` the sums of s[k] c[k + t] and of
    c[k] s[k + t], if the last pixel holds c, the number of good frames in each sum.
    """
    real = np.dtype(frames.dtype).kind == "f"
    if real and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"frames are {frames.dtype}, whose pure-JAX multi-tau sums need float64: call "
            "jax.config.update('jax_enable_x64', True), or use the native kernel or integers"
        )
    counts, depth, delays = _Reals() if real else _Counts(), 2 * dpl, g.shape[0]
    levels = history.shape[0] // depth
    # The last level may have fewer than dpl delays. Rows of zeros complete it.
    more = (levels + 1) * dpl - delays
    padded = partial(jax.tree.map, lambda x: jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)))
    has_head = len(others) == 1
    unpack: Any = (lambda x: counts.widened(counts.narrow(x))) if has_head else counts.unpacked
    pack: Any = counts.packed_narrow if has_head else counts.packed
    state = (
        counts.unpacked(total),
        padded(counts.unpacked(g)),
        tuple(x.reshape(levels, depth, *x.shape[1:]) for x in counts.narrow(history)),
        *(padded(unpack(other)) for other in others),
    )

    def add(i: Any, state: Any) -> Any:
        total, *rest = state
        s = counts.values(frames[i])
        total = counts.plus(total, counts.widened(s))
        k = seen + i
        rest, s, odd = _level(counts, rest, s, k, 0, 0, 1, depth)

        def next_level(carry: Any) -> Any:
            level, rest, s, k, _ = carry
            rest, s, odd = _level(counts, rest, s, k, level, dpl * (level + 1), dpl + 1, dpl)
            return level + 1, rest, s, k // 2, odd

        carry = (jnp.int32(1), rest, s, k // 2, odd)
        _, rest, *_ = lax.while_loop(lambda x: x[-1] & (x[0] < levels), next_level, carry)
        return total, *rest

    total, g, history, *arrays = lax.fori_loop(0, frames.shape[0], add, state)
    return (
        counts.packed(total),
        counts.packed(tuple(x[:delays] for x in g)),
        counts.packed_narrow(tuple(x.reshape(levels * depth, *x.shape[2:]) for x in history)),
        *(pack(tuple(x[:delays] for x in array)) for array in arrays),
    )


def _level(
    counts: Any, rest: Any, s: Any, k: Any, level: Any, row: Any, first: int, delays: int
) -> tuple[Any, Any, Any]:
    """Add sum k of a level; return the arrays, the next level's sum, and whether it is complete."""
    g, history, *others = rest
    ring = tuple(lax.dynamic_index_in_dim(h, level, 0, keepdims=False) for h in history)
    depth = ring[0].shape[0]
    t = first + jnp.arange(delays, dtype=jnp.int32)
    earlier = tuple(h[(k - t) % depth] for h in ring)  # zeros before the first sum
    now = tuple(x[None] for x in s)

    def add_rows(array: Any, terms: Any) -> Any:
        rows = tuple(lax.dynamic_slice_in_dim(x, row, delays) for x in array)
        rows = counts.plus(rows, terms)
        return tuple(
            lax.dynamic_update_slice_in_dim(x, r, row, 0) for x, r in zip(array, rows, strict=True)
        )

    g = add_rows(g, counts.product(now, earlier))
    if len(others) == 1:  # the sum of the frames before the first delay
        early = tuple(jnp.where((k < t)[:, None], x, jnp.zeros_like(x)) for x in now)
        others = [add_rows(others[0], counts.widened(early))]
    else:
        past, future = others
        others = [
            add_rows(past, counts.product(earlier, tuple(x[:, -1:] for x in now))),
            add_rows(future, counts.product(now, tuple(x[:, -1:] for x in earlier))),
        ]
    before = tuple(h[(k - 1) % depth] for h in ring)
    history = tuple(h.at[level, k % depth].set(v) for h, v in zip(history, s, strict=True))
    both = tuple(x + y for x, y in zip(before, s, strict=True))
    return [g, history, *others], both, k % 2 == 1


class _Counts:
    """Arithmetic of integer counts: narrow sums are uint32, wide sums are pairs (low, high)."""

    def values(self, frame: Any) -> Any:
        if frame.dtype == jnp.int32:
            # A negative count becomes a number that no valid total reaches.
            frame = jnp.where(frame < 0, jnp.uint32(COUNT_LIMIT), frame.astype(jnp.uint32))
        return (frame.astype(jnp.uint32),)

    def unpacked(self, pairs: Any) -> Any:
        return pairs[..., 0], pairs[..., 1]

    def packed(self, wide: Any) -> Any:
        return jnp.stack(wide, axis=-1)

    def narrow(self, stored: Any) -> Any:
        return (stored,)

    def packed_narrow(self, narrow: Any) -> Any:
        return narrow[0]

    def widened(self, narrow: Any) -> Any:
        return narrow[0], jnp.zeros_like(narrow[0])

    def plus(self, a: Any, b: Any) -> Any:
        low = a[0] + b[0]
        return low, a[1] + b[1] + (low < b[0]).astype(jnp.uint32)

    def product(self, a: Any, b: Any) -> Any:
        """Multiply 32-bit numbers by halves of 16 bits."""
        x, y = a[0], b[0]
        half = jnp.uint32(0xFFFF)
        x0, x1, y0, y1 = x & half, x >> 16, y & half, y >> 16
        low, across = x0 * y0, x1 * y0
        middle = across + (low >> 16)  # at most (2^16 - 1) 2^16
        other = x0 * y1 + (middle & half)
        return (other << 16) | (low & half), x1 * y1 + (middle >> 16) + (other >> 16)


class _Reals:
    """Arithmetic of floating-point counts: float64, stored as two 32-bit words."""

    def values(self, frame: Any) -> Any:
        return (frame.astype(jnp.float64),)

    def unpacked(self, pairs: Any) -> Any:
        return (lax.bitcast_convert_type(pairs, jnp.float64),)

    def packed(self, wide: Any) -> Any:
        return lax.bitcast_convert_type(wide[0], jnp.uint32)

    narrow, packed_narrow = unpacked, packed

    def widened(self, narrow: Any) -> Any:
        return narrow

    def plus(self, a: Any, b: Any) -> Any:
        return (a[0] + b[0],)

    def product(self, a: Any, b: Any) -> Any:
        return (a[0] * b[0],)
