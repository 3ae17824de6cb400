"""Properties of every public transform, and examples in every docstring."""

from __future__ import annotations

import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkern import image as im

TRANSFORMS = [
    im.AugMix(all_ops=False),
    im.AutoAugment("svhn", fill=[1, 2, 3]),
    im.CenterCrop(30),
    im.ColorJitter(0.4, None, (0.2, 0.8), 0.1),
    im.CutMix(),
    im.ElasticTransform(3.0, 1.0),
    im.GaussianBlur((3, 5)),
    im.GaussianNoise(sigma=0.2),
    im.Grayscale(3),
    im.MixUp(0.2, per_sample=True),
    im.Normalize([0.1, 0.2, 0.3], 0.5),
    im.Pad((1, 2), padding_mode="edge"),
    im.RandAugment(magnitude=3, interpolation="bilinear"),
    im.RandomAdjustSharpness(2),
    im.RandomAffine(9, (0.1, 0.2), (0.9, 1.1), (1, 2, 3, 4), fill=None),
    im.RandomApply([im.ColorJitter(0.4), im.RandomRotation(9)], p=0.8),
    im.RandomAutocontrast(),
    im.RandomChannelPermutation(),
    im.RandomChoice([im.RandomInvert(), im.AutoAugment()], p=[1, 2]),
    im.RandomCrop(20, padding=4, fill=7),
    im.RandomEqualize(),
    im.RandomErasing(value="random"),
    im.RandomGrayscale(),
    im.RandomHorizontalFlip(),
    im.RandomIoUCrop(sampler_options=[0.3, 1.0], trials=5),
    im.RandomInvert(),
    im.RandomOrder([im.RandomInvert(), im.RandomVerticalFlip()]),
    im.RandomPerspective(0.3),
    im.RandomPhotometricDistort(),
    im.RandomPosterize(3),
    im.RandomResizedCrop(20, interpolation="bicubic"),
    im.RandomRotation(30, center=(3, 4)),
    im.RandomShortestSize([20, 30], 50, canvas=60),
    im.RandomSolarize(128),
    im.RandomVerticalFlip(),
    im.RandomZoomOut([1, 2, 3]),
    im.Resize(40, max_size=60),
    im.SanitizeBoundingBoxes(4),
    im.ScaleJitter((40, 30)),
    im.ToDtype(jnp.bfloat16, scale=True),
    im.TrivialAugmentWide(),
]
NAMES = [type(transform).__name__ for transform in TRANSFORMS]
SIZE = (37, 53)
_QUICK = ("RandomRotation", "GaussianBlur")
BOXES = np.float32([[3, 4, 20, 30], [10, 12, 50, 33]])


def test_all_public_transforms_are_listed():
    public = {name: getattr(im, name) for name in im.__all__ if name != "Transform"}
    kinds = {n for n, c in public.items() if isinstance(c, type) and issubclass(c, im.Transform)}
    assert kinds == set(NAMES)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=NAMES)
def test_repr_constructs_the_transform(transform):
    created = eval(repr(transform), dict(vars(im)))
    assert created == transform
    assert repr(created) == repr(transform)
    chain = im.Compose([transform], jnp.bfloat16, boxes="xywh")
    assert repr(eval(repr(chain), dict(vars(im)))) == repr(chain)


def _sample(transform):
    def draw(key):
        return transform.sample(key, SIZE, *([BOXES] if transform.needs_boxes else []))

    return draw


@pytest.mark.parametrize("transform", TRANSFORMS, ids=NAMES)
def test_x64_does_not_change_draws(transform):
    """Random bits of 64, or results of other types, would give other numbers."""
    draw, key = _sample(transform), jax.random.key(0)
    types = jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(draw, key))
    with jax.enable_x64(True):
        text = str(jax.make_jaxpr(draw)(key))
        assert jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(draw, key)) == types
    assert "bit_width=64" not in text
    assert transform.parameters.keys() == types.keys()


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(t, id=n, marks=[] if n in _QUICK else pytest.mark.slow)
        for t, n in zip(TRANSFORMS, NAMES, strict=True)
        if t.parameters
    ],
)
def test_draws_are_the_same_with_x64(transform):
    keys = jax.random.split(jax.random.key(3), 8)
    draw = jax.vmap(_sample(transform))
    expected = draw(keys)
    with jax.enable_x64(True):
        actual = draw(keys)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value)


MODULES = ["compose.compose", "transforms.policies", "ragged"]
MODULES += [f"transforms.{name}" for name in ("choices", "colour", "crops", "detection")]
MODULES += [f"transforms.{name}" for name in ("sizes", "transform", "values", "warps")]


@pytest.mark.parametrize("name", [*(f"image.{name}" for name in MODULES), "core.keys"])
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.{name}"))


@pytest.mark.parametrize("name", im.__all__)
def test_public_names_have_examples(name):
    assert ">>> " in inspect.getdoc(getattr(im, name))
