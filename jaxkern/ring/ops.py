"""Ops that pop batches from a ring, or push them to it, inside jitted programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxkern.core import compat, registry
from jaxkern.ring.ring import Ring
from jaxkern.ring.structure import Structure, packed

POP, PUSH = "jaxkern.ring_pop.v1", "jaxkern.ring_push.v1"


def pop(ring: Any, token: jax.Array) -> tuple[Any, jax.Array]:
    """Return the next batch and the next token inside jitted code; the program waits for it.

    The token orders the pops, and identifies the ring, so a compiled function works with every ring
    of the same structure.

    Args:
      ring: the `Ring`, or the structure of its batches; only the structure matters.
      token: uint32 [2], from ``ring.token()`` or from the previous pop or push.

    Raises:
      jax.errors.JaxRuntimeError: at run time, if the producer failed (with its message), if the
        ring is closed, has ended or has another structure, or if no batch was put within
        ``pop_timeout``.
      NotImplementedError: under ``vmap``, in a program over several devices, on a GPU, where the
        wait would block all launches (iterate over ``Ring(..., device=gpu)`` instead), and without
        the native library.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32))
      >>> ring.put(np.ones(2, np.float32)), ring.put(np.full(2, 2.0, np.float32))
      (0, 1)
      >>> @jax.jit
      ... def total(token):
      ...     def step(carry, _):
      ...         batch, token = jk.ring.pop(ring, carry[1])
      ...         return (carry[0] + batch.sum(), token), None
      ...     return jax.lax.scan(step, (0.0, token), length=2)[0][0]
      >>> float(total(ring.token()))
      6.0
    """
    structure = _structure(ring)
    results = [jax.ShapeDtypeStruct((2,), jnp.uint32), *structure.leaves]
    call = jax.ffi.ffi_call(POP, results, has_side_effect=True)
    token, *leaves = call(_checked.bind(_token(token), target=POP))
    return structure.treedef.unflatten(leaves), token


def push(ring: Any, token: jax.Array, batch: Any) -> jax.Array:
    """Put a batch after the last one inside jitted code, and return the next token.

    The program waits while the ring is full.

    Args:
      ring: the `Ring`, or the structure of its batches; only the structure matters.
      token: uint32 [2], from ``ring.token()`` or from the previous push or pop.
      batch: a pytree of arrays that matches the ring's structure.

    Raises:
      ValueError: a shape, a dtype or the tree differs from the ring's.
      jax.errors.JaxRuntimeError, NotImplementedError: as for `pop`.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32))
      >>> push_ones = jax.jit(lambda token: jk.ring.push(ring, token, np.ones(2, np.float32)))
      >>> _ = push_ones(ring.token()).block_until_ready()
      >>> ring.get().tolist()
      [1.0, 1.0]
    """
    structure = _structure(ring)
    leaves = structure.program_leaves(batch)
    call = jax.ffi.ffi_call(PUSH, jax.ShapeDtypeStruct((2,), jnp.uint32), has_side_effect=True)
    return call(_checked.bind(_token(token), target=PUSH), *leaves)


def _structure(ring: Any) -> Structure:
    structure = ring._structure if isinstance(ring, Ring) else Structure(ring)
    for name, leaf in zip(structure.names, structure.leaves, strict=True):
        if packed(leaf.dtype):
            raise TypeError(f"{name} has dtype {leaf.dtype}, which JAX packs in jit; use uint8")
    return structure


def _token(value: Any) -> jax.Array:
    token: jax.Array = jnp.asarray(value)
    if token.shape != (2,) or token.dtype != jnp.uint32:
        raise ValueError(
            f"the token is {token.dtype}{list(token.shape)}; expected uint32[2] from ring.token()"
        )
    return token


# The identity on a token; its rules reject transformations that a pop does not support.
_checked = Primitive("jaxkern_ring_token")
_checked.def_impl(lambda token, target: token)
_checked.def_abstract_eval(lambda token, target: token)


def _reject_vmap(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("jaxkern.ring.pop and push under vmap; map over the batch instead")


def _lower(ctx: Any, token: Any, *, target: str) -> Any:
    if compat.is_partitioned(ctx):
        raise NotImplementedError(
            "jaxkern.ring.pop and push in a program over several devices; use ring.get() of "
            "Ring(..., device=sharding) outside"
        )
    for platform in ctx.platforms or ctx.module_context.platforms:
        if platform != "cpu":
            raise NotImplementedError(
                f"jaxkern.ring.pop and push on {platform}: programs wait for a ring on the CPU "
                "only; iterate over jaxkern.ring.Ring(..., device=device) outside the program, "
                "which copies the next batches meanwhile"
            )
        problem = registry.missing(target, platform)
        if problem is not None:
            raise NotImplementedError(f"jaxkern.ring.pop and push on {platform}: {problem}")
    return [token]


batching.primitive_batchers[_checked] = _reject_vmap
mlir.register_lowering(_checked, _lower)
