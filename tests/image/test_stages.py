"""Stages in one call, against a call for each chain and program, and the passes of a chain."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.image.pictures import pictures

import jaxkern as jk
from jaxkern import image as im
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Dtype, Filter, Layout
from jaxkern.image.ops import MAX_STAGES, StagesBuilder

COUNT = 6


def images(dtype=np.uint8):
    return pictures(3, (COUNT, 20, 23, 3), dtype)


def ragged():
    random = np.random.default_rng(4)
    return im.Ragged.from_list(
        [random.integers(0, 256, (9 + 3 * k, 25 - 2 * k, 3), np.uint8) for k in range(COUNT)]
    )


RANDOM = np.random.default_rng(5)


def flags():
    return {"apply": RANDOM.integers(0, 2, COUNT) > 0}


def integers(largest, *names):
    return {name: RANDOM.integers(0, largest, COUNT).astype(np.int32) for name in names}


def box(largest):
    return {
        **integers(4, "top", "left"),
        **{n: np.full(COUNT, largest) for n in ("height", "width")},
    }


def policy():
    draws = RANDOM.permutation(np.arange(COUNT * 2)).reshape(COUNT, 2) % 14
    return {"op": draws.astype(np.int32), "magnitude": np.full((COUNT, 2), 0.3, np.float32)}


NOTHING = np.zeros((COUNT, 0), np.float32)

# Parameters are constants, since a compiled `sample` takes time.
CASES = {
    "recipe": (
        images,
        (im.RandomResizedCrop(12), box(14)),
        (im.RandAugment(2, 9), policy()),
        (im.RandomHorizontalFlip(), {"flip": RANDOM.integers(0, 2, COUNT) > 0}),
        (im.Normalize(0.4, [0.2, 0.3, 0.4]), {}),
        (im.RandomErasing(1.0), {"erase": True, **box(5)}),
    ),
    "sizes between": (
        images,
        (im.RandomInvert(), flags()),
        (im.Resize((30, 28)), {}),
        (im.RandomErasing(0.7, value=9), {"erase": True, **box(9)}),
        (im.RandomRotation(40, fill=7), {"angle": np.linspace(-40, 40, COUNT, dtype=np.float32)}),
        (im.CenterCrop(11), {}),
        (im.RandomErasing(0.7), {"erase": True, **box(5)}),
        (im.RandomSolarize(0.3), flags()),
    ),
    "float16 NCHW": (
        lambda: images(np.float16),
        (im.RandomCrop(12), integers(8, "top", "left")),
        (im.RandomInvert(), flags()),
        (im.Pad(1), {}),
    ),
    "ragged": (
        ragged,
        (im.RandomResizedCrop(12), box(8)),
        (im.RandomPosterize(3), flags()),
        (im.Normalize(0.5, 0.5), {}),
    ),
    "more stages than one call has": (
        images,
        *(
            step
            for k in range(MAX_STAGES + 1)
            for step in ((im.CenterCrop(19 - k), {}), (im.RandomInvert(), flags()))
        ),
    ),
    "chains with nothing between them": (
        images,
        (im.CenterCrop(15), {}),
        (im.RandAugment(0), {"op": NOTHING.astype(int), "magnitude": NOTHING}),
        (im.Resize(9), {}),
    ),
    "mirrored and bicubic": (
        images,
        (im.Pad(3, padding_mode="reflect"), {}),
        (im.RandomInvert(), flags()),
        (im.Resize((14, 17), "bicubic"), {}),
        (im.RandomCrop(15, padding=2, padding_mode="edge"), integers(4, "top", "left")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_call_is_the_separate_calls(name, monkeypatch):
    make, *steps = CASES[name]
    transforms, params = zip(*steps, strict=True)
    aug = im.Compose(transforms, layout="NCHW" if "NCHW" in name else "NHWC")
    calls, inputs = StagesBuilder.calls, make()

    def both(inputs):
        first = aug.apply(inputs, params)
        monkeypatch.setattr(StagesBuilder, "calls", lambda self, _: calls(self, fuse=False))
        return first, aug.apply(inputs, params)

    one, many = map(np.asarray, jax.jit(both)(inputs))
    assert one.dtype == many.dtype
    np.testing.assert_array_equal(one.view(np.uint8), many.view(np.uint8))


def calls_of(transforms, inputs):
    """Return the native calls of a chain."""
    aug = im.Compose(transforms)
    any_of = {"bool": True, "int": 1, "float": 0.5, "number": 0.5}
    params = [{n: any_of[kind] for n, kind in t.parameters.items()} for t in transforms]
    jaxpr = jax.make_jaxpr(lambda x: aug.apply(x, params))(inputs)
    words = str(jaxpr).split()
    return [word.split("[")[0][8:] for word in words if word.startswith("jaxkern.image")]


def test_a_chain_with_programs_is_one_call():
    invert, crop, erase = im.RandomInvert(), im.RandomCrop(9), im.RandomErasing()
    assert calls_of([crop, invert, erase], images()) == ["image_stages.v1"]
    assert calls_of([crop, invert], images()) == ["image_stages.v1"]
    # image_program.v1 overwrites its operand, which XLA would first copy.
    assert calls_of([invert], images()) == ["image_stages.v1"]
    assert calls_of([crop, erase], images()) == ["image_chain.v1"]
    assert calls_of([crop, invert, erase], ragged()) == ["image_stages_ragged.v1"]
    long = [t for k in range(MAX_STAGES + 1) for t in (im.CenterCrop(19 - k), invert)]
    assert calls_of(long, images()) == ["image_stages.v1"] * 2
    gray = [crop, im.Grayscale(1), im.Pad(1)]
    assert calls_of(gray, images()) == ["image_stages.v1", "image_chain.v1"]
    mixed = [invert, crop, im.MixUp(0.5), invert]
    assert calls_of(mixed, images()) == ["image_stages.v1", "image_mix.v1", "image_stages.v1"]


def test_without_a_kernel_of_stages_each_has_a_call(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    transforms = [im.RandomCrop(9), im.RandomInvert(), im.RandomErasing()]
    expected = ["image_chain.v1", "image_program.v1", "image_chain.v1"]
    assert calls_of(transforms, images()) == expected


def test_errors_name_the_segment_of_a_box():
    """Segments are counted over all stages."""
    aug = im.Compose([im.CenterCrop(9), im.RandomInvert(), im.RandomCrop(4)])
    position = {"top": jnp.asarray([0, 0, 99, 0, 0, 0], np.int32), "left": 0}
    problem = "'geometry' of sample 2, segment 1.*rows 99 to 102 in an input of 9"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=problem):
        np.asarray(aug.apply(images(), ({}, {"apply": True}, position)))


def test_a_batch_without_images():
    aug = im.Compose([im.RandomCrop(9), im.RandomInvert(), im.RandomCrop(4), im.Normalize(0, 1)])
    nothing = np.zeros((0, 12, 12, 3), np.uint8)
    created = aug(jax.random.split(jax.random.key(0), 0), nothing)
    assert created.shape == (0, 4, 4, 3)
    assert created.dtype == np.float32


def test_pure_jax_has_the_same_levels():
    aug = im.Compose([im.CenterCrop(9), im.RandomInvert(), im.Pad(2)])
    native = aug.apply(images(), ({}, {"apply": True}, {}))
    with jk.backend("jax"):
        np.testing.assert_array_equal(aug.apply(images(), ({}, {"apply": True}, {})), native)


FLOAT = im.ToDtype(np.float32, scale=True)
NORM = im.Normalize([0.4, 0.5, 0.6], 0.25)
CROP, NEAREST = im.RandomResizedCrop(8), im.RandomResizedCrop(8, interpolation="nearest")
MIRROR = im.Pad(2, padding_mode="reflect")
HFLIP, VFLIP, ERASE = im.RandomHorizontalFlip(), im.RandomVerticalFlip(), im.RandomErasing()

PASSES = {
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


@pytest.mark.parametrize("name", PASSES)
def test_passes(name):
    transforms, passes = PASSES[name]
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
