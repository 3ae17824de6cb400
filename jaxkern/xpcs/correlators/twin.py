"""The update of multi-tau states in JAX: whole counts in pairs of uint32, without x64.

It takes one frame after the other and goes up the levels of delays as a binary counter does: every
second sum of a level completes one of the next.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkern.xpcs.correlators.blocks import MOST_COUNTS


def multitau_update(
    frames: Any, seen: Any, total: Any, g: Any, head: Any, history: Any, *, dpl: int
) -> tuple[Any, Any, Any, Any]:
    """The op `jaxkern.multitau_update` of one state."""
    real = np.dtype(frames.dtype).kind == "f"
    if real and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"multi-tau sums of {frames.dtype} frames are float64, which pure JAX has under x64 "
            "alone: jax.config.update('jax_enable_x64', True), or use the native kernel, or frames "
            "of whole counts"
        )
    counts = _Reals() if real else _Counts()
    kept = 2 * dpl
    levels = history.shape[0] // kept
    delays = g.shape[0]
    # A last level of fewer delays takes its rows of zeros with the others.
    more = (levels + 1) * dpl - delays
    state = (
        counts.unpacked(total),
        tuple(_padded(x, more) for x in counts.unpacked(g)),
        tuple(_padded(x, more) for x in counts.narrow(head)),
        tuple(x.reshape(levels, kept, *x.shape[1:]) for x in counts.narrow(history)),
    )

    def add(i: Any, state: Any) -> Any:
        total, *rest = state
        s = counts.values(frames[i])
        total = counts.plus(total, counts.widened(s))
        k = seen + i
        rest, s, odd = _level(counts, rest, s, k, 0, 0, 1, kept)

        def more_levels(carry: Any) -> Any:
            level, odd = carry[0], carry[-1]
            return odd & (level < levels)

        def next_level(carry: Any) -> Any:
            level, rest, s, k, _ = carry
            rest, s, odd = _level(counts, rest, s, k, level, dpl * (level + 1), dpl + 1, dpl)
            return level + 1, rest, s, k // 2, odd

        _, rest, *_ = lax.while_loop(more_levels, next_level, (jnp.int32(1), rest, s, k // 2, odd))
        return total, *rest

    total, g, head, history = lax.fori_loop(0, frames.shape[0], add, state)
    return (
        counts.packed(total),
        counts.packed(tuple(x[:delays] for x in g)),
        counts.packed_narrow(tuple(x[:delays] for x in head)),
        counts.packed_narrow(tuple(x.reshape(levels * kept, *x.shape[2:]) for x in history)),
    )


def _level(
    counts: Any, rest: Any, s: Any, k: Any, level: Any, row: Any, first: int, delays: int
) -> tuple[Any, Any, Any]:
    """Adds sum k of a level; gives the sum of the next level, and whether it is complete."""
    g, head, history = rest
    ring = tuple(lax.dynamic_index_in_dim(h, level, 0, keepdims=False) for h in history)
    kept = ring[0].shape[0]
    t = first + jnp.arange(delays, dtype=jnp.int32)
    earlier = tuple(h[(k - t) % kept] for h in ring)  # zeros before the first sum
    rows = tuple(lax.dynamic_slice_in_dim(x, row, delays) for x in g)
    rows = counts.plus(rows, counts.product(tuple(x[None] for x in s), earlier))
    g = tuple(lax.dynamic_update_slice_in_dim(x, r, row, 0) for x, r in zip(g, rows, strict=True))
    head = tuple(
        lax.dynamic_update_slice_in_dim(
            x,
            lax.dynamic_slice_in_dim(x, row, delays)
            + jnp.where((k < t)[:, None], v[None], jnp.zeros_like(v)),
            row,
            0,
        )
        for x, v in zip(head, s, strict=True)
    )
    before = tuple(h[(k - 1) % kept] for h in ring)
    history = tuple(h.at[level, k % kept].set(v) for h, v in zip(history, s, strict=True))
    both = tuple(x + y for x, y in zip(before, s, strict=True))
    return [g, head, history], both, k % 2 == 1


class _Counts:
    """Sums of whole counts: narrow ones are uint32, wide ones (low, high) pairs of it."""

    def values(self, frame: Any) -> Any:
        if frame.dtype == jnp.int32:
            # A negative count becomes what a total never reaches.
            frame = jnp.where(frame < 0, jnp.uint32(MOST_COUNTS), frame.astype(jnp.uint32))
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
        """Of two numbers of 32 bits, by halves of 16."""
        x, y = a[0], b[0]
        half = jnp.uint32(0xFFFF)
        x0, x1, y0, y1 = x & half, x >> 16, y & half, y >> 16
        low, across = x0 * y0, x1 * y0
        middle = across + (low >> 16)  # at most (2^16 - 1) 2^16
        other = x0 * y1 + (middle & half)
        return (other << 16) | (low & half), x1 * y1 + (middle >> 16) + (other >> 16)


class _Reals:
    """Sums of reals: float64, stored as the two halves of its bits."""

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


def _padded(x: Any, rows: int) -> Any:
    return jnp.pad(x, [(0, rows)] + [(0, 0)] * (x.ndim - 1))
