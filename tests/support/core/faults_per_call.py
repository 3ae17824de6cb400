"""Prints the page faults of calls of each native op with a large result, as JSON.

test_huge_pages.py runs it in a separate process. "never" is a call for which the system provides no
huge pages.
"""

from __future__ import annotations

import ctypes
import json
import resource

import jax
import jax.numpy as jnp
import numpy as np

import jaxkern as jk
from jaxkern.image import ops
from jaxkern.image.chain.plan import Layout

# glibc maps buffers of 32 MiB or more again for each call.
BYTES = 34 << 20
CALLS = 3
_PR_SET_THP_DISABLE = 41


def calls():
    side = 512
    count = -(-BYTES // (side * side * 3))
    images = jnp.zeros((count, side, side, 3), jnp.uint8)
    flip = jk.image.Compose([jk.image.RandomHorizontalFlip(1.0)])
    params = ({"flip": jnp.ones(count, bool)},)
    yield "image_chain", jax.jit(flip.apply), (images, params)

    small = jk.image.Ragged.from_list([np.zeros((8, 8, 3), np.uint8)] * count)
    resize = jk.image.Compose([jk.image.Resize((side, side), antialias=False)])
    yield "image_chain_ragged", jax.jit(lambda r: resize.apply(r, ({},))), (small,)

    def mix(x, lam):
        # A broadcast x cannot be the result's memory, which XLA would write before the op does.
        box = jnp.zeros((1, 4), jnp.int32)
        return ops.mix(x, x, lam, box, batch_dims=1, layout=Layout.NHWC)

    yield "image_mix", jax.jit(mix), (images[:1], jnp.full(count, 0.5, jnp.float32))

    angles, frames = 3, 1300
    model = jk.xpcs.LaminarFlow(
        jk.xpcs.Geometry(
            q=0.0054, gap=2e6, dt=0.1, t=np.arange(frames) * 0.1, phi=np.arange(angles) * 40.0
        )
    )
    physics = jnp.asarray(model.defaults)
    c, o = jnp.full(angles, 0.2), jnp.ones(angles)

    def g2(p):
        return jk.xpcs.g2(model, p, c, o)

    def tangent(p):
        return jax.jvp(g2, (p,), (jnp.ones_like(p),))[1]

    def residual(p, data):
        return jk.xpcs.residual(model, p, c, o, data, 0.1)

    def g2_at(p, index):
        return jk.xpcs.g2_at(model, p, c, o, index)

    data = jax.jit(g2)(physics)
    yield "two_time_g2", jax.jit(g2), (physics,)
    yield "two_time_g2_tangent", jax.jit(tangent), (physics,)
    yield "two_time_residual", jax.jit(residual), (physics, data)
    index = jnp.zeros((BYTES // 8, 3), jnp.int32)
    yield "two_time_g2_at", jax.jit(g2_at), (physics, index)

    batch = np.zeros(BYTES, np.uint8)
    ring = jk.ring.Ring(batch, capacity=CALLS)
    token = ring.token()
    for _ in range(CALLS):
        ring.put(batch)
    yield "ring_pop", jax.jit(lambda token: jk.ring.pop(ring, token)[0]), (token,)


def faults(call, operands) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(call(*operands))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def main() -> None:
    prctl = ctypes.CDLL(None).prctl
    jax.config.update("jax_enable_x64", True)
    found = {}
    for name, call, operands in calls():
        size = jax.block_until_ready(call(*operands)).nbytes
        advised = faults(call, operands)
        assert prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
        found[name] = {"bytes": size, "advised": advised, "never": faults(call, operands)}
        assert prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0
    print(json.dumps(found))


if __name__ == "__main__":
    main()
