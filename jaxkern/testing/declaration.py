"""Checks of what an op says of itself: its name, its twin, its cost."""

from __future__ import annotations

import jax

from jaxkern.core.op import ops
from jaxkern.testing.case import OpCase


def declaration(case: OpCase) -> None:
    """The name is the op's alone, and impl's results are as abstract says."""
    name = case.op.name
    assert ops().get(name) is case.op, (
        f"a later op is named {name!r} too: both would call one target; give each its own name"
    )
    jax.eval_shape(case.twin.one, *case.first)


def cost(case: OpCase) -> None:
    """The cost grows with the batch, and bytes count what must be read and written."""
    one = case.op.cost(*case.first, **case.static)
    many = case.op.cost(*case.stacked, batch_dims=1, **case.static)
    assert one.bytes, f"a call moves {one.bytes} bytes"
    assert many.bytes == case.count * one.bytes, f"{one} for one, {many} for all"
    assert one.flops is None or many.flops == case.count * one.flops
