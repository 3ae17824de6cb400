"""Would catch: integers that wrap around when they are converted to the kernels' int32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern as jk
from jaxkern import image as im
from jaxkern.image.chain.axis import scaled

IMAGES = np.random.default_rng(5).integers(0, 256, (2, 9, 11, 3), np.uint8)
CROP = im.Compose([im.RandomCrop(4)])
FAR = 2**32 + 3


def cropped(top):
    return CROP.apply(IMAGES, ({"top": top, "left": np.zeros(2, np.int32)},))


@pytest.mark.parametrize(
    "top",
    [
        *(np.array([3, FAR], dtype) for dtype in (np.int64, np.uint64)),
        np.array([3, 2**31 + 3], np.uint32),
        np.array([-FAR, 3]),
        [3, FAR],
        FAR,
        np.int64(FAR),
        np.array(FAR),
        np.uint64(2**63 + 3),
    ],
    ids=repr,
)
def test_a_host_integer_beyond_int32_is_an_error(top):
    with pytest.raises(ValueError, match=r"'top'\].* is .*int32.* -2147483648"):
        cropped(top)


@pytest.mark.parametrize("top", [True, 3.0, np.array([3.0, 2.0]), [True, False], [2**70, 0]])
def test_a_value_that_is_not_an_integer_is_an_error(top):
    with pytest.raises(TypeError, match=r"'top'\]: .* int "):
        cropped(top)


def test_every_integer_type_gives_the_same():
    expected = np.stack([IMAGES[0, 3:7, :4], IMAGES[1, 2:6, :4]])
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        np.testing.assert_array_equal(cropped(np.array([3, 2], dtype)), expected)
    np.testing.assert_array_equal(cropped([3, 2]), expected)
    np.testing.assert_array_equal(cropped(jnp.array([3, 2], jnp.uint32)), expected)


def test_device_integers_saturate_instead_of_wrapping():
    # Python does not read values on a device. The kernel rejects the crop, which is outside.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="geometry"):
        cropped(jnp.array([3, 2**32 - 1], jnp.uint32)).block_until_ready()
    with jax.enable_x64(True), pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="geo"):
        cropped(jnp.array([3, FAR])).block_until_ready()


def ragged(**fields):
    first = im.Ragged.from_list(list(IMAGES))
    named = {"offset": first.offset, "height": first.height, "width": first.width, **fields}
    return im.Ragged(first.buffer, *named.values(), 3, 9, 11)


RESIZED = im.Compose([im.Resize((5, 5))])


@pytest.mark.parametrize("field", ["offset", "height", "width"])
def test_ragged_offsets_and_sizes(field):
    good = getattr(ragged(), field)
    expected = RESIZED.apply(ragged())
    for same in (good.astype(np.int64), good.astype(np.uint32), good.tolist(), jnp.asarray(good)):
        np.testing.assert_array_equal(RESIZED.apply(ragged(**{field: same})), expected)
    for far in (np.array([0, 2**33]), [0, 2**33], np.array([0, 2**33], np.uint64)):
        with pytest.raises(ValueError, match=rf"images.{field}\[1\] is 8589934592"):
            RESIZED.apply(ragged(**{field: far}))
    with pytest.raises(TypeError, match=rf"images.{field}: .* float64"):
        RESIZED.apply(ragged(**{field: good.astype(np.float64)}))


def test_sizes_passed_to_sample():
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match=r"height\[1\] is 4294967305"):
        CROP.sample(keys, (np.array([9, 2**32 + 9]), np.array([11, 11])))
    with pytest.raises(ValueError, match=r"images.width\[0\] is 4294967307"):
        CROP.sample(keys, ragged(width=np.array([2**32 + 11, 11])))
    with pytest.raises(ValueError, match="width is 4294967296"):
        CROP.sample(keys, (9, 2**32))


def test_operands_of_any_op():
    op = jk.Op("tests.plus_one", version=1, abstract=lambda x: x, impl=lambda x: x + 1)
    assert op(np.array([1, 2])).tolist() == [2, 3]
    for far in (np.array([1, FAR]), np.int64(FAR), [1, np.int64(FAR)], np.array([FAR], np.uint64)):
        with pytest.raises((ValueError, OverflowError), match=r"int32"):
            op(far)
    with jax.enable_x64(True):
        assert op(np.array([1, FAR])).tolist() == [2, FAR + 1]


def test_records_and_points():
    with pytest.raises(ValueError, match=r"record_ids\[1\] is 9223372036854775811"):
        jk.random.record_keys(0, 0, np.array([3, 2**63 + 3], np.uint64))
    with pytest.raises(ValueError, match="seed is 9223372036854775808"):
        jk.random.record_keys(2**63, 0, np.arange(2))
    model = jk.xpcs.Static(jk.xpcs.Geometry(0.0054, None, 0.1, 0.1 * np.arange(6), 0.0))
    at = lambda index: jk.xpcs.g2_at(model, model.defaults, 0.5, 1.0, index)  # noqa: E731
    for far in (np.array([[0, FAR, 1]]), [[0, FAR, 1]], np.array([[0, 2**32 - 1, 1]], np.uint32)):
        with pytest.raises(IndexError, match=r"index\[0\].*\b42949672\d\d"):
            at(far)
    assert np.isnan(jax.jit(at)(jnp.array([[0, 2**32 - 1, 1]], jnp.uint32))).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda n: im.Resize(n),
        lambda n: im.Resize((4, n)),
        lambda n: im.Resize(4, max_size=n),
        lambda n: im.CenterCrop(n),
        lambda n: im.RandomCrop((n, 4)),
        lambda n: im.RandomCrop(4, padding=n),
        lambda n: im.RandomResizedCrop(n),
        lambda n: im.Pad((1, n)),
    ],
)
@pytest.mark.parametrize("size", [2**24 + 1, 2**31, 2**70])
def test_sizes_above_the_limit_are_errors_in_constructors(make, size):
    with pytest.raises(ValueError, match=r"2\*\*24"):
        make(size)


def test_outputs_above_the_limit_are_errors():
    with pytest.raises(ValueError, match="16777216 x 256"):
        jax.eval_shape(im.Compose([im.Resize((2**24, 2**8))]).apply, IMAGES)


def test_scaled_is_exact_beyond_int32():
    rng = np.random.default_rng(0)
    exponents = rng.uniform(0, 24, (3, 20_000))
    a, b, c = (np.minimum(2**e, 2**24).astype(np.int32) for e in exponents)
    a[:50] = c[50:100] = 2**24
    expected = np.minimum(a.astype(object) * b.astype(object) // c.astype(object), 2**31 - 1)
    np.testing.assert_array_equal(scaled(a, b, c), expected.astype(np.int64))
    np.testing.assert_array_equal(jax.jit(scaled)(a, b, c), expected.astype(np.int64))
    assert scaled(70_000, 70_000, 1_000) == 4_900_000


@pytest.mark.parametrize("max_size", [None, 16_000_000])
def test_a_ragged_image_grows_beyond_int32(run, max_size):
    """31000 * 70000 exceeds int32 during a resize to 31000 x 15500000 pixels."""
    shape, side = (140, 70_000), 31_000
    image = np.arange(140 * 70_000, dtype=np.uint32).astype(np.uint8).reshape(*shape, 1)
    batch = im.Ragged.from_list([image, image[:, :150]])
    aug = im.Compose([im.Resize(side, "nearest", max_size), im.CenterCrop((4, 6))])
    out = run(aug, batch, ({}, {}))
    grown = (side, side * shape[1] // shape[0])
    at = []
    for size, own, crop in zip(grown, shape, (4, 6), strict=True):
        i = np.arange(crop, dtype=object) + (size - crop) // 2
        at.append(((2 * i + 1) * own // (2 * size)).astype(int))
    np.testing.assert_array_equal(out[0], image[np.ix_(*at)])


def test_boxes_up_to_the_largest_int32(run):
    """A very large height erases down to the last row; a pad and a flip move the box."""
    images = np.full((1, 6, 6, 1), 7, np.uint8)
    end = 2**31 - 1
    aug = im.Compose(
        [im.RandomErasing(value=1), im.Pad(1), im.RandomVerticalFlip(), im.CutMix(1.0)], np.uint8
    )
    box = {"top": 4, "left": 1 - end, "height": end, "width": end}
    cut = {"lam": 0.5, "top": 6, "left": 2, "height": end, "width": end}
    both = np.concatenate([images, images + 1])
    labels = np.eye(2, dtype=np.float32)
    out, soft = run(aug, both, ({**box, "erase": True}, {}, {"flip": True}, cut), labels)
    expected = np.zeros((2, 8, 8), int)
    expected[0, 1:7, 1:7], expected[1, 1:7, 1:7] = 7, 8
    expected[:, 1:3, 1] = 1  # column 0, rows 4 to 5 of 6, upside down
    expected[:, 6:, 2:] = expected[::-1, 6:, 2:].copy()
    np.testing.assert_array_equal(out[..., 0], expected)
    np.testing.assert_allclose(soft[0], [1 - 12 / 64, 12 / 64], rtol=1e-6)
