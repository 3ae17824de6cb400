"""Derivatives of chains against central differences of the float64 oracle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.image.oracle import reference

import jaxkern as jk
from jaxkern import image as im

RNG = np.random.default_rng(5)
F32 = RNG.random((2, 7, 9, 3)).astype(np.float32)
MEAN, STD = np.asarray([0.3, 0.5, 0.6], np.float32), np.asarray([0.2, 0.4, 0.5], np.float32)
FILL, VALUE = np.asarray([0.1, 0.2, 0.3], np.float32), np.asarray([1.0, -1.0, 2.0], np.float32)


def chain(mean, std, fill, value, antialias):
    return im.Compose(
        [
            im.RandomResizedCrop((6, 5), antialias=antialias),
            im.Pad(1, fill=fill),
            im.RandomHorizontalFlip(),
            im.Normalize(mean, std),
            im.RandomErasing(value=value),
            im.MixUp(per_sample=True),
        ]
    )


CROP = {"top": [1, 0], "left": [2, 0], "height": [5, 7], "width": [4, 9]}
ERASE = {"top": [2, 0], "left": [1, 3], "height": [3, 2], "width": [2, 2]}
PARAMS = (
    {name: np.asarray(v, np.int32) for name, v in CROP.items()},
    {},
    {"flip": np.asarray([True, False])},
    {},
    {name: np.asarray(v, np.int32) for name, v in ERASE.items()} | {"erase": np.ones(2, bool)},
    {"lam": np.asarray([0.3, 0.8], np.float32)},
)


@pytest.mark.parametrize("antialias", [False, True])
def test_gradients_equal_differences(backend, antialias):
    weight = RNG.standard_normal((2, 8, 7, 3)).astype(np.float32)

    def loss(images, *constants):
        return jnp.sum(weight * chain(*constants, antialias).apply(images, PARAMS))

    arguments = (F32, MEAN, STD, FILL, VALUE)
    with jk.backend(backend):
        gradients = jax.jit(jax.grad(loss, argnums=range(5)))(*arguments)

    def oracle(images, *constants):
        aug = chain(MEAN, STD, FILL, VALUE, antialias)
        for transform, names in ((1, ("fill",)), (3, ("mean", "std")), (4, ("value",))):
            for name in names:
                at = ("mean", "std", "fill", "value").index(name)
                object.__setattr__(aug.transforms[transform], name, constants[at])
        return np.sum(weight * reference(aug, images, PARAMS, np.float32))

    for position, (name, got) in enumerate(
        zip(("images", "mean", "std", "fill", "value"), gradients, strict=True)
    ):
        direction = RNG.standard_normal(arguments[position].shape)
        moved = [
            [a if k != position else a + s * 1e-4 * direction for k, a in enumerate(arguments)]
            for s in (1, -1)
        ]
        expected = (oracle(*moved[0]) - oracle(*moved[1])) / 2e-4
        np.testing.assert_allclose(
            np.sum(np.asarray(got) * direction), expected, rtol=2e-3, atol=2e-3, err_msg=name
        )


def test_half_gradients_accumulate_in_float32(backend):
    """One source pixel feeds 4096 outputs: in bfloat16 the sum would stop at 256."""
    aug = im.Compose([im.Resize((64, 64), antialias=False)], dtype=np.float32)
    images = jnp.ones((1, 1, 1, 1), jnp.bfloat16)
    with jk.backend(backend):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(aug.apply(x, ({},)))))(images)
    assert gradient.dtype == jnp.bfloat16
    assert float(gradient[0, 0, 0, 0]) == 4096


def test_gradients_of_bicubic_and_mirrored_images_equal_differences(backend):
    """A chain that is linear in the images: one difference is exact."""
    pad = im.Pad((2, 0, 3, 1), padding_mode="reflect")
    resizes = [im.Resize((5, 6), "bicubic"), im.Resize((7, 4), "bicubic", antialias=False)]
    aug = im.Compose([resizes[0], pad, im.Normalize(0, 2), resizes[1]])
    params = ({}, {}, {}, {})
    weight = RNG.standard_normal((2, 7, 4, 3)).astype(np.float32)
    with jk.backend(backend):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(weight * aug.apply(x, params))))(F32)
    direction = RNG.standard_normal(F32.shape)
    expected = np.sum(weight * reference(aug, direction, params, np.float32))
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * direction), expected, rtol=1e-4)


def test_forward_equals_reverse(backend):
    aug = im.Compose([im.RandomVerticalFlip(), im.Resize((4, 11)), im.Normalize(MEAN, STD)])
    params = ({"flip": np.asarray([True, False])}, {}, {})

    def f(x):
        return aug.apply(x, params)

    tangent = RNG.standard_normal(F32.shape).astype(np.float32)
    with jk.backend(backend):
        out, forward = jax.jit(lambda x, t: jax.jvp(f, (x,), (t,)))(F32, tangent)
        cotangent = RNG.standard_normal(out.shape).astype(np.float32)
        (back,) = jax.jit(lambda x, c: jax.vjp(f, x)[1](c))(F32, cotangent)
    np.testing.assert_allclose(
        np.vdot(cotangent, forward), np.vdot(np.asarray(back), tangent), rtol=1e-4
    )
