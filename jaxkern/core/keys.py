"""Random keys that depend on the record, not on its position in a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import check_range


def record_keys(seed: Any, epoch: Any, record_ids: Any) -> jax.Array:
    """Return keys [N], each a function of (seed, epoch, record id) only.

    A record's key is independent of batch size, position in the batch, shuffling and host, and
    differs between epochs. Works under jit, with any argument traced.

    Args:
      seed, epoch: integers; Python integers and NumPy int64 may be up to 2**63 - 1.
      record_ids: integers [N]; NumPy int64 (and int64 under x64) up to 2**63 - 1.

    Returns:
      New-style keys [N].

    Raises:
      TypeError: an argument is not an integer.
      ValueError: an argument has the wrong rank, or an integer is 2**63 or larger. NumPy int64
        arguments of a jitted function lose their high 32 bits at its entry, unless x64 is on.

    >>> import numpy as np
    >>> from jaxkern.random import record_keys
    >>> record_keys(0, 1, np.array([7, 2**40])).shape
    (2,)
    """
    ids = split_int64(record_ids, "record_ids", rank=1)
    return fold_records(epoch_key(seed, epoch), *ids)


def epoch_key(seed: Any, epoch: Any) -> jax.Array:
    """Return the key from which the keys of an epoch's records are folded."""
    # A fixed implementation, independent of JAX's default: with some of the others a sample
    # depends on its position in the batch.
    key = jax.random.key(np.uint32(0), impl="threefry2x32")
    for name, value in (("seed", seed), ("epoch", epoch)):
        for half in split_int64(value, name, rank=0):
            key = jax.random.fold_in(key, half)
    return key


def fold_records(key: jax.Array, high: Any, low: Any) -> jax.Array:
    """Return keys [N] for record ids split into their high and low 32 bits."""

    def fold(high: jax.Array, low: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(key, high), low)

    return jax.vmap(fold)(high, low)


def split_int64(value: Any, name: str, rank: int) -> tuple[jax.Array, jax.Array]:
    """Split signed 64-bit integers into high and low 32 bits, without 64-bit types in JAX."""
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
        if value.size == 0 and value.dtype.kind == "f":
            value = value.astype(np.int64)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {value.dtype}; expected integers")
    if value.ndim != rank:
        expected = "[N]" if rank else "one integer"
        raise ValueError(f"{name} has shape {value.shape}; expected {expected}")
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
