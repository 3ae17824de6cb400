"""Random keys that belong to a record, not to its place in a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.integers import check_range


def record_keys(seed: Any, epoch: Any, record_ids: Any) -> jax.Array:
    """Keys [N], each a function of (seed, epoch, record id) alone.

    The same record gets the same key whatever the batch size, its place in the batch, the shuffle
    or the host, and another one in every epoch. Works under jit, with any argument traced.

    Args:
      seed, epoch: integers; Python integers and NumPy int64 may be up to 2**63 - 1.
      record_ids: integers [N]; NumPy int64 (and int64 under x64) up to 2**63 - 1.

    Returns:
      New-style keys [N].

    Raises:
      TypeError: for arguments that are not integers.
      ValueError: for other ranks, and for integers from 2**63 on. NumPy int64 that are arguments
        of a jitted function of your own have lost their high half before they come here, unless
        x64 is on.

    >>> import numpy as np
    >>> from jaxkern.random import record_keys
    >>> record_keys(0, 1, np.array([7, 2**40])).shape
    (2,)
    """
    ids = split_int64(record_ids, "record_ids", rank=1)
    return fold_records(epoch_key(seed, epoch), *ids)


def epoch_key(seed: Any, epoch: Any) -> jax.Array:
    """The key that the keys of an epoch's records are folded from."""
    # Of one kind whatever JAX's default is: others give a sample that depends on its place.
    key = jax.random.key(np.uint32(0), impl="threefry2x32")
    for name, value in (("seed", seed), ("epoch", epoch)):
        for half in split_int64(value, name, rank=0):
            key = jax.random.fold_in(key, half)
    return key


def fold_records(key: jax.Array, high: Any, low: Any) -> jax.Array:
    """Keys [N] of records given as the high and the low 32 bits of each."""

    def fold(high: jax.Array, low: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(key, high), low)

    return jax.vmap(fold)(high, low)


def split_int64(value: Any, name: str, rank: int) -> tuple[jax.Array, jax.Array]:
    """The high and low 32 bits of signed 64-bit integers, without needing 64-bit types in JAX."""
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
        if value.size == 0 and value.dtype.kind == "f":
            value = value.astype(np.int64)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {value.dtype}; wanted integers")
    if value.ndim != rank:
        wanted = "[N]" if rank else "one integer"
        raise ValueError(f"{name} has shape {value.shape}; wanted {wanted}")
    if isinstance(value, np.ndarray):
        check_range(value, np.int64, name)
        bits = value.astype(np.int64).view(np.uint64)
        high, low = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
        return jnp.asarray(high.astype(np.uint32)), jnp.asarray(low.astype(np.uint32))
    low = value.astype(jnp.uint32)
    if value.dtype.itemsize == 8:
        return (value >> 32).astype(jnp.uint32), low
    if jnp.issubdtype(value.dtype, jnp.unsignedinteger):
        return jnp.zeros_like(low), low
    return (value.astype(jnp.int32) >> 31).astype(jnp.uint32), low
