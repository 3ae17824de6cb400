"""Would catch: an exported chain that runs for one batch size only."""

from __future__ import annotations

import jax
import numpy as np

import jaxkern as jk
from jaxkern import image as im

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 16, 20, 3), np.uint8)


def test_a_symbolic_batch_size():
    aug = im.Compose([im.Resize((8, 8)), im.Normalize(0.5, 0.5)])
    (count,) = jax.export.symbolic_shape("n")
    checks = [jax.export.DisabledSafetyCheck.custom_call(t) for t in jk.export_targets()]
    exported = jax.export.export(jax.jit(lambda x: aug.apply(x)), disabled_checks=checks)(
        jax.ShapeDtypeStruct((count, 16, 20, 3), np.uint8)
    )
    assert "jaxkern.image_chain" in exported.mlir_module()
    for batch in (1, 5):
        np.testing.assert_array_equal(exported.call(IMAGES[:batch]), aug.apply(IMAGES[:batch]))
