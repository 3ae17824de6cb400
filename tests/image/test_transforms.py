"""Transforms that a user writes, properties of every public transform, and their examples."""

from __future__ import annotations

import dataclasses
import inspect
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.image.draws import sample

import jaxkern as jk
from jaxkern import image as im

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 9, 7, 3), np.uint8)
KEYS = jax.random.split(jax.random.key(3), 4)


@dataclasses.dataclass(frozen=True)
class RandomGamma(im.Transform):
    low: float = 0.5
    high: float = 2.0

    parameters: ClassVar = {"gamma": "float"}

    def sample(self, key, size):
        return {"gamma": jax.random.uniform(key, minval=self.low, maxval=self.high)}

    def transform(self, image, params):
        return image ** params["gamma"]


@dataclasses.dataclass(frozen=True)
class RandomExposure(im.Transform):
    """A program step: brightness in stops, in images where `apply` is True."""

    parameters: ClassVar = {"stops": "float", "apply": "bool"}
    kind = "program"

    def sample(self, key, size):
        stops = jax.random.uniform(key, minval=-1.0, maxval=1.0)
        return {"stops": stops, "apply": stops > -0.5}

    def program(self, params, size):
        factor = 2.0 ** jnp.asarray(params["stops"])
        return [im.program_step(im.Code.BRIGHTNESS, factor, apply=params["apply"])]


@dataclasses.dataclass(frozen=True)
class Shifted(im.Transform):
    """The same image with a constant added; no parameters."""

    offset: float = 0.25

    def transform(self, image, params):
        assert params == {}
        return image + self.offset


def gamma_in_numpy(images, gamma):
    values = (images / 255.0) ** np.reshape(gamma, (-1, 1, 1, 1))
    return np.rint(np.clip(values, 0, 1) * 255)


def test_levels_against_numpy():
    aug = im.Compose([RandomGamma()])
    params = sample(aug, KEYS, (9, 7))
    gamma = np.asarray(params[0]["gamma"])
    assert len(set(gamma.tolist())) == 4
    assert ((gamma >= 0.5) & (gamma <= 2.0)).all()
    for apply in (aug.apply, jax.jit(aug.apply)):
        out = apply(IMAGES, params)
        assert out.dtype == np.uint8
        assert np.abs(np.asarray(out, float) - gamma_in_numpy(IMAGES, gamma)).max() <= 1
    np.testing.assert_array_equal(aug(KEYS, IMAGES), aug.apply(IMAGES, params))
    np.testing.assert_array_equal(
        aug(KEYS[2:], IMAGES[2:]), np.asarray(aug(KEYS, IMAGES))[2:]
    )  # a record does not depend on its batch
    one = aug.apply(IMAGES, ({"gamma": 2.0},))  # a scalar is for all images
    assert np.abs(np.asarray(one, float) - gamma_in_numpy(IMAGES, 2.0)).max() <= 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint16])
def test_other_dtypes(dtype):
    top = 65535 if dtype == np.uint16 else 1
    images = (IMAGES / 255.0 * top).astype(dtype)
    out = im.Compose([RandomGamma()]).apply(images, ({"gamma": np.float32([0.5, 1, 2, 3])},))
    assert out.dtype == dtype
    expected = (images.astype(float) / top) ** np.reshape([0.5, 1, 2, 3], (-1, 1, 1, 1))
    np.testing.assert_allclose(np.asarray(out, float) / top, expected, atol=1e-3)


def test_inside_a_chain():
    """Crops, flips and normalization around it; the order of transforms is kept."""
    crop = {"top": np.int32([0, 1, 2, 3]), "left": np.int32([3, 2, 1, 0])}
    gamma = np.float32([0.5, 0.8, 1.5, 2.0])
    flip = np.array([True, False, True, False])
    chain = [
        im.RandomCrop((5, 4)),
        RandomGamma(),
        im.RandomHorizontalFlip(),
        Shifted(),
        im.Normalize(0.5, 0.25),
    ]
    out = im.Compose(chain, layout="NCHW").apply(
        IMAGES, (crop, {"gamma": gamma}, {"flip": flip}, {}, {})
    )
    expected = np.stack(
        [IMAGES[n, y : y + 5, x : x + 4] for n, y, x in zip(range(4), *crop.values(), strict=True)]
    )
    expected = gamma_in_numpy(expected, gamma)
    expected[flip] = expected[flip][:, :, ::-1]
    expected = np.rint(np.clip(expected / 255 + 0.25, 0, 1) * 255)
    expected = (expected / 255 - 0.5) / 0.25
    assert out.shape == (4, 3, 5, 4)
    assert np.abs(np.asarray(out) - expected.transpose(0, 3, 1, 2)).max() <= 4.1 * 2 / 255


def test_no_rounding_of_floats_and_gradients():
    images = jnp.asarray(IMAGES, jnp.float32) / 255
    aug = im.Compose([RandomGamma(), Shifted(0.5)])
    gamma = jnp.float32([0.5, 1.0, 1.5, 2.0])
    out = aug.apply(images, ({"gamma": gamma}, {}))
    np.testing.assert_allclose(out, images ** gamma[:, None, None, None] + 0.5, atol=1e-6)
    slope = jax.grad(lambda g: aug.apply(images + 0.01, ({"gamma": g}, {})).sum())(gamma)
    shifted = np.asarray(images, float) + 0.01
    power = shifted ** np.reshape(gamma, (-1, 1, 1, 1))
    np.testing.assert_allclose(slope, (power * np.log(shifted)).sum((1, 2, 3)), rtol=1e-4)


def test_eval_labels_clips_and_targets():
    aug = im.Compose([RandomGamma(), Shifted(), im.MixUp()])
    assert im.Compose([RandomGamma()]).eval().apply(IMAGES).tolist() == IMAGES.tolist()
    evaluated = aug.eval().apply(IMAGES)
    np.testing.assert_array_equal(evaluated, np.minimum(np.rint(IMAGES + 63.75), 255))
    labels = np.eye(4, dtype=np.float32)
    params = ({"gamma": np.ones(4, np.float32)}, {}, {"lam": np.float32([0.25] * 4)})
    out, soft = aug.apply(IMAGES, params, labels)
    np.testing.assert_allclose(soft, 0.25 * labels + 0.75 * np.roll(labels, 1, 0))
    mixed = 0.25 * np.asarray(evaluated) + 0.75 * np.roll(np.asarray(evaluated), 1, 0)
    assert np.abs(np.asarray(out, float) - mixed).max() <= 1
    aug = im.Compose([RandomGamma()])
    clips, gamma = IMAGES.reshape(2, 2, 9, 7, 3), np.float32([0.5, 2.0])
    frames = np.asarray(aug.apply(clips, ({"gamma": gamma},)), float)
    expected = gamma_in_numpy(IMAGES, np.repeat(gamma, 2)).reshape(clips.shape)
    assert np.abs(frames - expected).max() <= 1
    fields = {"image": IMAGES, "mask": IMAGES[..., 0], "boxes": np.float32([[[1, 2, 5, 6]]] * 4)}
    result = aug.apply(fields, ({"gamma": np.ones(4, np.float32)},))
    np.testing.assert_array_equal(result["mask"], fields["mask"])
    np.testing.assert_array_equal(result["boxes"], fields["boxes"])


def test_program_steps_join_the_native_call():
    aug = im.Compose([im.RandomCrop(5), RandomExposure(), im.RandomInvert()])
    params = sample(aug, KEYS, (9, 7))
    apply = jax.jit(aug.apply)
    out = np.asarray(apply(IMAGES, params), float)
    jitter = im.Compose([im.RandomCrop(5), im.ColorJitter(brightness=1.0), im.RandomInvert()])
    factor = np.where(params[1]["apply"], 2.0 ** np.asarray(params[1]["stops"]), 1.0)
    brightness = {name: np.ones(4, np.float32) for name in ("contrast", "saturation", "hue")}
    brightness |= {
        "brightness": factor.astype(np.float32),
        "order": np.tile(np.int32([0, 1, 2, 3]), (4, 1)),
    }
    jittered = jax.jit(jitter.apply)(IMAGES, (params[0], brightness, params[2]))
    np.testing.assert_array_equal(out, jittered)
    text = apply.lower(IMAGES, params).as_text()
    assert text.count("custom_call @jaxkern.image") == 1
    inner = im.Compose([im.RandomApply([RandomExposure()], p=1.0)])
    parts = {"apply": True, "0.stops": params[1]["stops"], "0.apply": params[1]["apply"]}
    expected = im.Compose([RandomExposure()]).apply(IMAGES, params[1:2])
    np.testing.assert_array_equal(inner.apply(IMAGES, (parts,)), expected)


@dataclasses.dataclass(frozen=True)
class FlipBoth(im.Transform):
    """Made of other transforms, which fuse; masks and boxes follow."""

    parameters: ClassVar = {"flip": "bool"}
    kind = "chain"
    geometric = True

    def sample(self, key, size):
        return {"flip": jax.random.bernoulli(key)}

    def parts(self, params, size):
        return [(im.RandomHorizontalFlip(), params), (im.RandomVerticalFlip(), params)]


def test_parts():
    flip = np.array([True, False, True, False])
    out = im.Compose([FlipBoth()]).apply(IMAGES, ({"flip": flip},))
    expected = IMAGES.copy()
    expected[flip] = expected[flip][:, ::-1, ::-1]
    np.testing.assert_array_equal(out, expected)


def test_under_vmap():
    """Two batches of images with their own parameters."""
    aug = im.Compose([RandomGamma()])
    images, gamma = np.stack([IMAGES, IMAGES[::-1]]), np.float32([[0.5] * 4, [2.0] * 4])
    out = jax.vmap(lambda x, g: aug.apply(x, ({"gamma": g},)))(images, gamma)
    for k in range(2):
        expected = gamma_in_numpy(images[k], gamma[k])
        assert np.abs(np.asarray(out[k], float) - expected).max() <= 1


def batches_of(chain, **options):
    source = {"image": np.tile(IMAGES, (3, 1, 1, 1)), "id": np.arange(12)}
    pipe = jk.from_source(source, batch_size=4, seed=5)
    for _ in range(2):
        yield [
            {name: np.asarray(value) for name, value in batch.items()}
            for batch in pipe >> jk.OperatorNode(im.Compose(chain), **options)
        ]


CHAIN = [im.RandomCrop(5), RandomGamma(), RandomExposure(), im.Normalize(0.5, 0.5)]


@pytest.fixture(scope="module")
def on_device():
    return next(batches_of(CHAIN, on="device"))


@pytest.mark.parametrize("options", [{}, {"on": "host"}, {"on": "device"}])
def test_in_pipelines(options, on_device):
    first = next(batches_of([Shifted()], **options))
    for k, batch in enumerate(first):
        np.testing.assert_array_equal(batch["id"], np.arange(4 * k, 4 * k + 4))
        np.testing.assert_array_equal(batch["image"], np.minimum(np.rint(IMAGES + 63.75), 255))
    first, again = batches_of(CHAIN, **options)
    assert len(first) == 3
    assert (first[0]["image"] != first[1]["image"]).any()
    for batch, repeated, expected in zip(first, again, on_device, strict=True):
        np.testing.assert_array_equal(batch["image"], repeated["image"])
        np.testing.assert_allclose(batch["image"], expected["image"], atol=2.1 / 255)


def test_invalid_transforms():
    class Unfinished(im.Transform):
        pass

    class WrongShape(im.Transform):
        def transform(self, image, params):
            return image[1:]

    class WrongParameters(RandomGamma):
        def sample(self, key, size):
            return {"alpha": jnp.float32(1)}

    with raises(NotImplementedError, "Unfinished", "transform(image, params)"):
        im.Compose([Unfinished()]).apply(IMAGES)
    with raises(ValueError, "WrongShape", "(9, 7, 3)", "(8, 7, 3)"):
        im.Compose([WrongShape()]).apply(IMAGES)
    with raises(ValueError, "WrongParameters", "missing ['gamma']", "unknown ['alpha']"):
        im.Compose([WrongParameters()])(KEYS, IMAGES)
    with raises(ValueError, "RandomApply", "RandomGamma"):
        im.RandomApply([RandomGamma()])
    ragged = im.Ragged.from_list([IMAGES[0], IMAGES[1, :5]])
    with raises(ValueError, "one size", "RandomResizedCrop"):
        im.Compose([Shifted()]).apply(ragged)
    struct = jax.ShapeDtypeStruct((9, 7, 3), np.uint8)
    with raises(ValueError, "'jax'"):
        im.ChainProducer(im.Compose([RandomGamma()]), struct)


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
    shapes = jax.tree.map(lambda leaf: str(leaf.shape), jax.eval_shape(draw, key))
    for name, kind in transform.parameters.items():  # scalars, or as in "int[4]"
        sides = [int(side) for side in kind.partition("[")[2].rstrip("]").split(",") if side]
        assert shapes[name] == str(tuple(sides))


@pytest.mark.parametrize(
    "transform",
    [pytest.param(t, id=n) for t, n in zip(TRANSFORMS, NAMES, strict=True) if n in _QUICK],
)
def test_draws_are_the_same_with_x64(transform):
    keys = jax.random.split(jax.random.key(3), 8)
    draw = jax.vmap(_sample(transform))
    expected = draw(keys)
    with jax.enable_x64(True):
        actual = draw(keys)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value)


@pytest.mark.parametrize("name", [*im.__all__, "record_keys"])
def test_public_names_have_examples(name):
    assert ">>> " in inspect.getdoc(getattr(im, name, None) or getattr(jk.random, name))
