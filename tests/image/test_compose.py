"""Compose beyond single transforms: dtypes, mixing, eval, sampling by record, uint16 images."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.image.comparison import assert_close
from support.image.draws import sample
from support.image.oracle import reference

import jaxkern as jk
from jaxkern import image as im
from jaxkern import random as jr

RNG = np.random.default_rng(11)
U8 = RNG.integers(0, 256, (4, 10, 12, 3), np.uint8)
F32 = RNG.random((4, 10, 12, 3)).astype(np.float32)
LABELS = np.eye(5, dtype=np.float32)[[0, 3, 1, 4]]
FLIP = im.RandomHorizontalFlip()
NORM = im.Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])


@pytest.mark.parametrize(
    ("images", "transforms", "dtype", "scale", "expected"),
    [
        (U8, [im.CenterCrop(4)], None, True, (np.uint8, 1)),
        (U8, [im.CenterCrop(4)], np.float32, True, (np.float32, 1 / 255)),
        (U8, [im.CenterCrop(4)], np.float32, False, (np.float32, 1)),
        (U8, [im.CenterCrop(4), im.ToDtype(np.float32)], None, True, (np.float32, 1)),
        (U8, [im.ToDtype(np.float16, True), im.CenterCrop(4)], None, True, (np.float16, 1 / 255)),
        (U8, [im.CenterCrop(4), im.Normalize(0, 1)], None, True, (np.float32, 1 / 255)),
        (U8, [im.CenterCrop(4), im.Normalize(0, 1)], None, False, (np.float32, 1)),
        (F32, [im.CenterCrop(4)], None, True, (np.float32, 1)),
        (F32, [im.CenterCrop(4), im.Normalize(0, 2)], jnp.bfloat16, True, (jnp.bfloat16, 0.5)),
    ],
)
def test_value_space_and_dtype(run, images, transforms, dtype, scale, expected):
    out = run(im.Compose(transforms, dtype, scale=scale), images, ({},) * len(transforms))
    assert out.dtype == expected[0]
    middle = images[:, 3:7, 4:8].astype(np.float64) * expected[1]
    assert_close(out, middle)


def test_float_to_u8_truncates(run):
    levels = np.arange(256, dtype=np.float32).reshape(1, 16, 16, 1) / 255
    aug = im.Compose([im.ToDtype(np.uint8, scale=True)])
    np.testing.assert_array_equal(run(aug, levels, ({},)).reshape(-1), np.arange(256))
    edges = np.asarray([-1, 0.999 / 255.999, 1.001 / 255.999, 0.5, 2], np.float32)
    out = run(aug, edges.reshape(1, 1, 5, 1), ({},))
    assert out.reshape(-1).tolist() == [0, 0, 1, 127, 255]


def test_u8_resize_rounds_half_to_even(run):
    images = np.asarray([0, 1, 1, 2, 2, 3], np.uint8).reshape(1, 1, 6, 1)
    out = run(im.Compose([im.Resize((1, 3), antialias=False)]), images, ({},))
    assert out.reshape(-1).tolist() == [0, 2, 2]


MIXES = {
    "mixup": [FLIP, NORM, im.MixUp(0.4, per_sample=True)],
    "mixup first": [im.MixUp(0.4), NORM, FLIP],
    "cutmix": [im.RandomResizedCrop(7, antialias=False), im.CutMix(per_sample=True), NORM],
    "mix, erase, mix": [im.MixUp(), im.RandomErasing(1.0), im.CutMix(), im.CenterCrop(8)],
}
# Constants, since beta variates take long to compile.
MIX_DRAWS = {
    **{"lam": np.float32([0.7, 0.05, 1.0, 0.4]), "flip": np.bool_([1, 0, 0, 1])},
    **{"top": np.int32([0, 3, 2, 5]), "left": np.int32([2, 0, 6, 1])},
    **{"height": np.int32([4, 1, 5, 2]), "width": np.int32([5, 7, 1, 3])},
    "erase": np.bool_([1, 1, 0, 1]),
}


@pytest.mark.parametrize(
    ("backend", "name"),
    [*(("native", name) for name in MIXES), ("jax", "cutmix"), ("jax", "mixup first")],
    indirect=["backend"],
)
def test_mixing_equals_oracle(run, name):
    layout = "NCHW" if name in ("cutmix", "mix, erase, mix") else "NHWC"
    aug = im.Compose(MIXES[name], dtype=np.float32, layout=layout)
    params = [{key: MIX_DRAWS[key] for key in t.parameters} for t in aug.transforms]
    out, soft = run(aug, U8, params, LABELS)
    expected, expected_soft = reference(aug, U8, params, np.float32, LABELS)
    assert_close(out, expected)
    np.testing.assert_allclose(soft, expected_soft, atol=1e-6)
    np.testing.assert_allclose(np.asarray(soft).sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, jnp.bfloat16])
def test_mixing_in_other_dtypes(run, dtype):
    aug = im.Compose([im.CenterCrop(8), im.MixUp(per_sample=True)], dtype=dtype)
    params = ({}, {"lam": np.asarray([0.0, 1.0, 0.3, 0.5], np.float32)})
    assert_close(run(aug, U8, params), reference(aug, U8, params, dtype), odd_levels=0.01)


def test_bfloat16_rounds_half_to_even(run):
    values = np.asarray([1.0, 1 + 2**-7, 1 + 2 * 2**-7, 1 + 3 * 2**-7], np.float32)
    pair = np.stack([values[:-1], values[1:]]).reshape(2, 1, 3, 1)
    aug = im.Compose([im.MixUp(per_sample=True)], dtype=jnp.bfloat16)
    out = run(aug, jnp.asarray(pair, jnp.bfloat16), ({"lam": np.full(2, 0.5, np.float32)},))
    np.testing.assert_array_equal(np.asarray(out, np.float32)[0].ravel(), values[[0, 2, 2]])


def test_cutmix_labels_follow_clipped_box(run):
    """Only the part of a box inside the image counts, whatever `lam` is."""
    aug = im.Compose([im.CutMix()])
    box = {"top": 8, "left": -3, "height": 6, "width": 7}
    out, soft = run(aug, F32, ({"lam": 0.9, **box},), LABELS)
    share = 2 * 4 / 120
    np.testing.assert_allclose(soft[1], (1 - share) * LABELS[1] + share * LABELS[0], atol=1e-6)
    np.testing.assert_array_equal(out[1, 8:, :4], F32[0, 8:, :4])
    np.testing.assert_array_equal(out[1, :8], F32[1, :8])


def test_labels_pass_through_without_mixing(run):
    out, labels = run(im.Compose([FLIP]), U8, ({"flip": False},), LABELS)
    np.testing.assert_array_equal(out, U8)
    np.testing.assert_array_equal(labels, LABELS)


def test_one_mixture_per_batch_by_default():
    aug = im.Compose([FLIP, im.MixUp(), im.MixUp(per_sample=True)])
    keys = jax.random.split(jax.random.key(0), 6)
    _, shared, own = sample(aug, keys, (8, 8))
    assert len(set(np.asarray(shared["lam"]).tolist())) == 1
    assert len(set(np.asarray(own["lam"]).tolist())) == 6
    same_first = sample(aug, keys[jnp.asarray([0, 0, 5, 2, 0, 1])], (8, 8))
    np.testing.assert_array_equal(same_first[1]["lam"], shared["lam"])


def test_eval_is_deterministic(run):
    train = im.Compose(
        [im.RandomResizedCrop(7), FLIP, NORM, im.RandomErasing(), im.MixUp()], np.float32, "NCHW"
    )
    chain = train.eval()
    assert [type(t).__name__ for t in chain.transforms] == ["Resize", "CenterCrop", "Normalize"]
    assert chain.transforms[0].size == 8
    assert (chain.output_size, chain.dtype, chain.layout) == ((7, 7), np.float32, "NCHW")
    expected = reference(chain, U8, ({},) * 3, np.float32)
    assert_close(run(chain, U8, ({},) * 3), expected)
    first, second = (jax.jit(chain)(jax.random.key(k), U8) for k in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(chain.apply(U8), first, atol=1e-6)  # needs no parameters
    only = im.Compose([FLIP]).eval()
    np.testing.assert_array_equal(only.apply(U8, ({},)), U8)
    cropped = im.Compose([im.RandomCrop(6, padding=2)]).eval()
    assert repr(cropped.transforms) == "(CenterCrop(size=(6, 6)),)"


def test_output_size():
    assert im.Compose([im.Resize(8)]).output_size is None
    assert im.Compose([im.Resize(8), im.CenterCrop(6), im.Pad(1)]).output_size == (8, 8)
    assert im.Compose([im.RandomCrop((3, 4)), im.Resize(6)]).output_size == (6, 8)


def test_repr_is_readable():
    text = repr(im.Compose([im.Pad(2, fill=3), NORM], jnp.bfloat16))
    assert "Pad(padding=(2, 2, 2, 2), fill=(3.0,), padding_mode='constant')" in text
    assert "dtype='bfloat16', layout='NHWC', scale=True" in text


def test_call_accepts_one_key_or_many():
    aug = im.Compose([im.RandomCrop(5), FLIP])
    call = jax.jit(aug)
    key = jax.random.key(2)
    keys = jax.random.split(key, 4)
    expected = aug.apply(U8, sample(aug, keys, (10, 12)))
    np.testing.assert_array_equal(call(key, U8), expected)
    np.testing.assert_array_equal(call(keys, U8), expected)
    old = jax.random.PRNGKey(2)
    np.testing.assert_array_equal(call(old, U8), expected)
    np.testing.assert_array_equal(call(jax.random.split(old, 4), U8), expected)


def test_sampling_depends_on_the_record_only():
    """The same records in other batches, orders and sizes get the same parameters."""
    aug = im.Compose([im.RandomResizedCrop(5), FLIP, im.RandomErasing()])
    draw = functools.partial(sample, aug, size=(10, 12))
    ids = np.arange(12)
    complete = draw(jr.record_keys(0, 3, ids))
    order = np.random.default_rng(0).permutation(12)
    for part in np.split(order, 3):
        draws = draw(jr.record_keys(0, 3, ids[part]))
        same = jax.tree.map(lambda a, b, p=part: np.array_equal(a[p], b), complete, draws)
        assert all(jax.tree.leaves(same))
    other = draw(jr.record_keys(0, 4, ids))
    assert not np.array_equal(other[0]["top"], complete[0]["top"])


def test_position_in_the_chain_changes_the_draw():
    flips = im.Compose([FLIP] * 3).sample(jax.random.split(jax.random.key(0), 64), (4, 4))
    assert not np.array_equal(flips[0]["flip"], flips[1]["flip"])
    assert not np.array_equal(flips[1]["flip"], flips[2]["flip"])


@pytest.mark.parametrize("traced", [False, True])
def test_record_keys(traced):
    def data(keys):
        return np.asarray(jax.random.key_data(keys))

    ids = np.asarray([0, 1, 2**31 - 1])
    expected = data(jr.record_keys(5, 1, ids))
    if traced:
        keys = jax.jit(jr.record_keys)(jnp.int32(5), jnp.int32(1), jnp.asarray(ids, jnp.int32))
    else:
        keys = jr.record_keys(5, 1, ids[::-1])[::-1]
    np.testing.assert_array_equal(data(keys), expected)


def test_record_keys_use_all_64_bits():
    ids = np.asarray([3, 3 + 2**32, 3 + 2**62, 2**63 - 1], np.int64)
    data = [
        jax.random.key_data(jr.record_keys(seed, epoch, ids))
        for seed, epoch in ((0, 0), (1, 0), (0, 1), (2**40, 0), (0, 2**40))
    ]
    rows = np.concatenate([np.asarray(part) for part in data])
    assert len(np.unique(rows, axis=0)) == 20
    assert jr.record_keys(0, 0, []).shape == (0,)
    with raises(TypeError, "record_ids has dtype float64"):
        jr.record_keys(0, 0, np.asarray([1.5]))
    with raises(ValueError, "record_ids has shape ()"):
        jr.record_keys(0, 0, 3)


def test_export_with_a_symbolic_batch_size():
    aug = im.Compose([im.Resize((8, 8)), im.Normalize(0.5, 0.5)])
    (count,) = jax.export.symbolic_shape("n")
    checks = [jax.export.DisabledSafetyCheck.custom_call(t) for t in jk.export_targets()]
    exported = jax.export.export(jax.jit(lambda x: aug.apply(x)), disabled_checks=checks)(
        jax.ShapeDtypeStruct((count, 10, 12, 3), np.uint8)
    )
    assert "jaxkern.image_chain" in exported.mlir_module()
    for batch in (1, 4):
        np.testing.assert_array_equal(exported.call(U8[:batch]), aug.apply(U8[:batch]))


LEVELS16 = np.random.default_rng(0).integers(0, 65536, (3, 9, 12, 1), np.uint16)
LEVELS16[0, 0, :2, 0] = [0, 65535]


def test_crops_keep_levels_and_values_are_rounded():
    aug = im.Compose([im.RandomCrop((7, 8)), im.RandomHorizontalFlip()])
    params = ({"top": 1, "left": 2}, {"flip": np.bool_([1, 0, 1])})
    out = aug.apply(LEVELS16, params)
    assert out.dtype == np.uint16
    expected = LEVELS16[:, 1:8, 2:10].copy()
    expected[::2] = expected[::2, :, ::-1]
    np.testing.assert_array_equal(out, expected)
    half = im.Compose([im.Resize((3, 4), antialias=False)]).apply(LEVELS16)
    np.testing.assert_array_equal(half, LEVELS16[:, 1::3, 1::3])  # the centre of three
    assert im.Compose([im.RandomInvert(1.0)])(jax.random.key(0), LEVELS16).dtype == np.uint16
    dark = im.Compose([im.RandomInvert()]).apply(LEVELS16, ({"apply": True},))
    np.testing.assert_array_equal(dark, 65535 - LEVELS16)


def test_floats_are_fractions_of_65535():
    values = LEVELS16 / 65535.0
    out = im.Compose([im.Normalize(0.4, 0.3)]).apply(LEVELS16)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, (values - 0.4) / 0.3, atol=1e-6)
    out = im.Compose([im.ToDtype(jnp.float32, scale=True)]).apply(LEVELS16)
    np.testing.assert_allclose(out, values, atol=1e-7)
    out = im.Compose([im.Normalize(1000, 2)], scale=False).apply(LEVELS16)
    np.testing.assert_allclose(out, (LEVELS16 - 1000.0) / 2, rtol=1e-6)
    twice = np.float32([-1, 0.5 / 65535, 1.5 / 65535, 2, np.nan]).reshape(1, 1, 5, 1)
    out = im.Compose([im.CenterCrop((1, 5))], dtype=np.uint16).apply(twice)
    assert out.dtype == np.uint16
    assert np.asarray(out)[0, 0, :, 0].tolist() == [0, 0, 2, 65535, 0]


def test_invalid_chains():
    with raises(ValueError, "ToDtype", "scale=True"):
        im.Compose([im.ToDtype(jnp.float32)]).apply(LEVELS16)
    for transform, name in (
        (im.Pad(1, fill=30000), "fill=30000 / 65535"),
        (im.RandomErasing(value=[9, 0, 0]), "value up to 1"),
        (im.RandomApply([im.RandomSolarize(128)]), "threshold up to 1"),
    ):
        with raises(ValueError, name):
            im.Compose([transform]).apply(LEVELS16)
    for transform in (im.RandomOrder([im.ColorJitter(0.4)]), im.RandAugment(), im.GaussianNoise()):
        with raises(ValueError, "0 to 1", "scale=True"):
            im.Compose([transform], scale=False).apply(LEVELS16)
    struct = jax.ShapeDtypeStruct((9, 12, 1), np.uint8)
    with raises(ValueError, "uint16"):
        im.ChainProducer(im.Compose([im.CenterCrop(4)], dtype="uint16"), struct)
    with raises(TypeError, "uint16"):
        im.ChainProducer(im.Compose([im.CenterCrop(4)]), jax.ShapeDtypeStruct((9, 9, 1), np.uint16))


def test_eager_calls_pass_other_fields_on():
    """Fields that the chain does not use stay the same objects; float64 images are an error."""
    flip = im.Compose([FLIP])
    key, images = jax.random.key(0), np.zeros((4, 6, 6, 3), np.uint8)
    fields = {"image": images, "label": np.array(list("abcd")), "id": np.arange(4)}
    result = flip(key, fields)
    assert result["label"] is fields["label"]
    assert result["id"] is fields["id"]
    numbers = np.arange(4.0)
    assert flip(key, {"image": images, "label": numbers})["label"] is numbers
    with raises(TypeError, "float64"):
        flip(key, images.astype(np.float64))


def test_eager_calls_see_changed_attributes():
    """Only frozen transforms in a `Compose` itself are compiled once."""

    class Turned(im.RandomHorizontalFlip):
        turned = False

        def sample(self, key, size):
            return {"flip": jnp.asarray(self.turned)}

    transform = Turned()
    aug, images = im.Compose([transform]), np.arange(4, dtype=np.uint8).reshape(1, 1, 4, 1)
    key = jax.random.key(0)
    before = np.asarray(aug(key, images))
    object.__setattr__(transform, "turned", True)
    np.testing.assert_array_equal(np.asarray(aug(key, images)), before[:, :, ::-1])
