"""The number of passes of fused chains."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

from jaxkern import image as im
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Dtype, Filter, Layout

FLOAT = im.ToDtype(np.float32, scale=True)
NORM = im.Normalize([0.4, 0.5, 0.6], 0.25)
CROP, NEAREST = im.RandomResizedCrop(8), im.RandomResizedCrop(8, interpolation="nearest")
MIRROR = im.Pad(2, padding_mode="reflect")
HFLIP, VFLIP, ERASE = im.RandomHorizontalFlip(), im.RandomVerticalFlip(), im.RandomErasing()

CASES = {
    "train": ([CROP, HFLIP, NORM, ERASE], 1),
    "eval": ([im.Resize(20), im.CenterCrop(8), NORM], 1),
    "cifar": ([im.RandomCrop(16, padding=2), HFLIP, NORM], 1),
    "flips first": ([HFLIP, VFLIP, CROP, HFLIP, NORM], 1),
    "crop, resize": ([im.RandomCrop(12), HFLIP, im.Resize((8, 8)), FLOAT], 1),
    "normalize first": ([NORM, CROP], 1),
    "erase, crop, flip": ([NORM, ERASE, im.RandomCrop(8), HFLIP], 1),
    "same fills": ([im.Pad(2), im.RandomCrop(18, padding=1), im.CenterCrop(30)], 1),
    "fill after normalize": ([im.Pad(1), NORM, HFLIP, ERASE], 1),
    "same size": ([im.Resize((16, 16)), CROP], 1),
    "pad, resize": ([im.Pad(2), CROP], 2),
    "erase, resize": ([ERASE, CROP], 2),
    "two fills": ([im.Pad(1, fill=1), im.Pad(1, fill=2)], 2),
    "flip, nearest": ([HFLIP, NEAREST], 2),
    "nearest, flip": ([NEAREST, HFLIP], 1),
    "two resizes": ([CROP, im.Resize((4, 4))], 2),
    "levels inside": ([CROP, im.ToDtype(np.uint8), NORM], 2),
    "mirrored": ([CROP, HFLIP, MIRROR, HFLIP, im.CenterCrop(9), im.Pad(1), NORM, ERASE], 1),
    "mirrored crop": ([im.RandomCrop(16, padding=2, padding_mode="edge"), HFLIP, NORM], 1),
    "fill, mirrored": ([im.Pad(1), MIRROR], 2),
    "erased, mirrored": ([ERASE, MIRROR], 2),
    "moved, mirrored": ([CROP, im.RandomCrop(6), MIRROR], 2),
    "mirrored twice": ([MIRROR, im.CenterCrop(16), MIRROR], 2),
    "mirrored, resized": ([MIRROR, CROP], 2),
    "whole levels": ([HFLIP, im.ToDtype(np.uint8), NORM], 1),
}


def fold(transforms, params, size=(16, 16)):
    chain = ChainBuilder(*size, 3, Dtype.U8)
    for transform, inputs in zip(transforms, params, strict=True):
        transform.fold(chain, inputs)
    return chain.finish(Dtype.F32, Layout.NHWC)


def sampled(transforms):
    aug = im.Compose(transforms)
    shapes = jax.eval_shape(lambda key: aug.sample(key, (16, 16)), jax.random.split(KEY, 3))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


KEY = jax.random.key(0)


@pytest.mark.parametrize("name", CASES)
def test_passes(name):
    transforms, passes = CASES[name]
    plan, operands = fold(transforms, sampled(transforms))
    assert len(plan.segments) == passes
    assert operands.geometry.shape[1:] == (passes, 14)
    assert operands.affine.shape == (1, passes, 2, 3)
    assert operands.fill.shape == (1, passes, 3)
    assert operands.erase_box.shape[1:] == (sum(s.erasures for s in plan.segments), 4)
    assert operands.erase_value.shape == (1, sum(s.erasures for s in plan.segments), 3)


def test_constant_chain_has_shared_geometry():
    plan, operands = fold([im.Resize(20), im.CenterCrop(8), NORM], ({}, {}, {}))
    assert operands.geometry.shape == (1, 1, 14)
    assert isinstance(operands.geometry, np.ndarray)
    assert plan.segments[0].filter is Filter.ANTIALIAS
    fields = operands.geometry[0, 0].tolist()
    assert fields == [0, 0, 16, 16, 20, 20, 0, 0, 8, 8, 6, 1, 6, 1]


def test_equal_plans_have_equal_hashes():
    """A plan is a static argument of the op: an unequal hash would retrace every call."""
    first, second = (fold([CROP, NORM], sampled([CROP, NORM]))[0] for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


def test_too_many_passes_and_erasures():
    pads = [im.Pad(1, fill=k) for k in range(9)]
    with raises(ValueError, "8 passes"):
        fold(pads, [{}] * 9)
    erasures = [ERASE] * 17
    with raises(ValueError, "16 erasures", "17"):
        fold(erasures, sampled(erasures))


def test_identity_makes_no_call():
    chain = ChainBuilder(4, 4, 3, Dtype.F32)
    assert chain.finish(Dtype.F32, Layout.NHWC) is None
