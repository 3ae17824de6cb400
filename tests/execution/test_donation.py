"""Would catch results in fresh memory, and donated results that stay readable or change values."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern as jk


def test_reuses_memory():
    """Each result is at the address of the earlier one, which is deleted; values are new."""
    aug = jk.image.Compose([jk.image.RandomCrop(8)])
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8))
    augment = jk.donated(aug)
    batch = augment(jk.random.record_keys(0, 0, np.arange(4)), images)
    for epoch in 1, 2:
        keys = jk.random.record_keys(0, epoch, np.arange(4))
        previous, address = batch, batch.unsafe_buffer_pointer()
        batch = augment(keys, images, out=previous)
        assert batch.unsafe_buffer_pointer() == address
        assert previous.is_deleted()
        np.testing.assert_array_equal(batch, aug(keys, images))


def test_other_shapes():
    """A smaller batch gets memory of its own, with JAX's warning, and its arguments stay."""
    double = jk.donated(lambda x, scale=2: {"x": scale * x})
    large, small = jnp.ones(8), jnp.ones(3)
    out = double(large)
    with pytest.warns(UserWarning, match="donated"):
        result = double(small, out=out, scale=3)
    assert result["x"].tolist() == [3, 3, 3]
    assert not small.is_deleted()
