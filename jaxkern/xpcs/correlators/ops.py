"""The correlators' op, declared: frames that are added to a multi-tau state."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxkern.core.cost import Cost
from jaxkern.core.op import Op
from jaxkern.xpcs.correlators import twin
from jaxkern.xpcs.correlators.blocks import COUNT_DTYPES

FRAME_DTYPES = tuple(dtype.name for dtype in COUNT_DTYPES)


def state_shapes(delays: int, pixels: int, dpl: int, real: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of a state, all uint32; a last axis of 2 is a pair, low word first."""
    levels = 1 + max(-(-(delays - 2 * dpl) // dpl), 0)
    pair = (2,) if real else ()
    return {
        "total": (pixels, 2),
        "g": (delays, pixels, 2),
        "head": (delays, pixels, *pair),
        "history": (levels * 2 * dpl, pixels, *pair),
    }


def _abstract(
    frames: Any, seen: Any, total: Any, g: Any, head: Any, history: Any, *, dpl: int
) -> Any:
    op, dtype = "multitau_update", np.dtype(frames.dtype)
    if dtype.name not in FRAME_DTYPES or len(frames.shape) != 2:
        raise ValueError(
            f"{op}: frames is {dtype.name}{list(frames.shape)} of one state; wanted [T, P] of "
            f"{', '.join(FRAME_DTYPES)}"
        )
    if seen.shape != () or seen.dtype != np.int32:
        raise ValueError(f"{op}: seen is {seen.dtype}{list(seen.shape)}; wanted int32[]")
    delays = g.shape[0] if g.shape else 0
    wanted = state_shapes(delays, frames.shape[1], dpl, dtype.kind == "f")
    for (name, shape), x in zip(wanted.items(), (total, g, head, history), strict=True):
        if tuple(x.shape) != shape or x.dtype != np.uint32:
            raise ValueError(
                f"{op}: {name} is {x.dtype}{list(x.shape)}; wanted uint32{list(shape)} for "
                f"{delays} delays, {dpl} a level, and frames {dtype.name}{list(frames.shape)}"
            )
    return tuple(jax.ShapeDtypeStruct(shape, np.uint32) for shape in wanted.values())


def _cost(frames: Any, seen: Any, *state: Any, dpl: int) -> Cost:
    # Half as many sums a level higher: 4 dpl products a value at most.
    read = frames.size * np.dtype(frames.dtype).itemsize
    return Cost(flops=8 * dpl * frames.size, bytes=read + 8 * sum(x.size for x in state))


multitau_update_op = Op(
    "jaxkern.multitau_update",
    version=1,
    abstract=_abstract,
    impl=twin.multitau_update,
    attributes=lambda dpl: {"dpl": np.int32(dpl)},
    cost=_cost,
    aliases={2: 0, 3: 1, 4: 2, 5: 3},
)
