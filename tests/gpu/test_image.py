"""Would catch: a CUDA kernel whose results differ from the CPU kernel's and pure JAX's."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_same, on

import jaxkern as jk
from jaxkern import image as im
from jaxkern.image import ops
from jaxkern.image.chain.plan import (
    ChainPlan,
    Dtype,
    Filter,
    Layout,
    Operands,
    Rounding,
    Segment,
)

_DTYPES = (np.uint8, np.float16, jnp.bfloat16, np.float32)
_FILTERS = {
    "nearest": {"interpolation": "nearest"},
    "bilinear": {"antialias": False},
    "antialias": {"antialias": True},
}
_CASES = list(itertools.product(_DTYPES, _DTYPES, (1, 3, 4), _FILTERS))


def _images(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).random(shape, np.float32)
    return (values * 255).astype(np.uint8) if dtype is np.uint8 else values.astype(dtype)


def _three_ways(device: Any, host: Any, fn: Any, *operands: Any, **limits: Any) -> np.ndarray:
    got = on(device, "native", fn, *operands)
    assert_same(got, on(host, "native", fn, *operands), **limits)
    assert_same(got, on(device, "jax", fn, *operands), **limits)
    return got


@pytest.mark.parametrize("case", range(len(_CASES)))
def test_every_dtype_channel_count_and_filter(device: Any, host: Any, case: int) -> None:
    source, result, channels, name = _CASES[case]
    layout = ("NHWC", "NCHW")[case % 2]
    height, width = ((37, 53), (64, 48))[case // 2 % 2]
    size = ((41, 300), (32, 32), (17, 19))[case // 4 % 3]
    aug = im.Compose(
        [
            im.RandomResizedCrop(size, **_FILTERS[name]),
            im.RandomHorizontalFlip(),
            im.RandomVerticalFlip(),
        ],
        dtype=result,
        layout=layout,
    )
    images = _images(source, (5, height, width, channels), case)
    params = aug.sample(jax.random.split(jax.random.key(case), 5), (height, width))
    got = on(device, "native", aug.apply, images, params)
    assert_same(got, on(host, "native", aug.apply, images, params))
    if case % 6 == 0:
        assert_same(got, on(device, "jax", aug.apply, images, params))


def test_a_chain_of_several_segments(device: Any, host: Any) -> None:
    aug = im.Compose(
        [
            im.RandomResizedCrop(64, antialias=True),
            im.RandomCrop(56, padding=6),
            im.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]),
            im.RandomErasing(1.0),
            im.Resize((40, 44)),
            im.RandomErasing(1.0),
            im.Resize((30, 34), antialias=False),
        ],
        dtype=jnp.float32,
    )
    images = _images(np.uint8, (40, 96, 80, 3))
    params = aug.sample(jax.random.split(jax.random.key(1), 40), (96, 80))
    _three_ways(device, host, aug.apply, images, params, slack=2.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("antialias", [False, True])
def test_bicubic_and_mirrored(device: Any, host: Any, antialias: bool, dtype: Any) -> None:
    aug = im.Compose(
        [
            im.RandomCrop(70, padding=5, padding_mode="edge"),
            im.RandomResizedCrop(40, interpolation="bicubic", antialias=antialias),
            im.Pad((3, 9), padding_mode="reflect"),
            im.RandomHorizontalFlip(),
            im.Resize((90, 31), "bicubic"),
            im.Pad(8, padding_mode="symmetric"),
        ],
        dtype=jnp.float32,
    )
    images = _images(dtype, (9, 66, 80, 3))
    params = aug.sample(jax.random.split(jax.random.key(2), 9), (66, 80))
    _three_ways(device, host, aug.apply, images, params, slack=2.0)


def test_segments_that_do_not_fit_into_one_chunk(device: Any, host: Any) -> None:
    """There are more samples than fit the scratch between two segments."""
    rows = (
        Segment(Filter.BILINEAR, 512, 512),
        Segment(Filter.ANTIALIAS, 64, 64, rounding=Rounding.KEEP),
        Segment(Filter.BILINEAR, 33, 35),
    )
    plan = ChainPlan(rows, 3, Dtype.U8, Dtype.F32)
    sizes = [(60, 60), (512, 512), (64, 64), (33, 35)]
    geometry = [
        [0, 0, *sizes[s], *sizes[s + 1], 0, 0, *sizes[s + 1], 0, 1, sizes[s + 1][1] - 1, -1]
        for s in range(3)
    ]
    operands = Operands(
        np.asarray([geometry] * 24, np.int32),
        np.tile(np.asarray([1.0, 0.0], np.float32)[None, None, :, None], (1, 3, 1, 3)),
        np.zeros((1, 3, 3), np.float32),
        np.zeros((24, 0, 4), np.int32),
        np.zeros((1, 0, 3), np.float32),
    )
    images = _images(np.uint8, (24, 60, 60, 3))
    fn = lambda x, p: ops.chain(x, *p, batch_dims=1, plan=plan)  # noqa: E731
    _three_ways(device, host, fn, images, operands, slack=2.0)


@pytest.mark.parametrize("antialias", [False, True])
def test_ragged(device: Any, host: Any, antialias: bool) -> None:
    random = np.random.default_rng(3)
    sizes = [(random.integers(20, 90), random.integers(20, 90)) for _ in range(9)]
    ragged = im.Ragged.from_list([_images(np.uint8, (*s, 3), i) for i, s in enumerate(sizes)])
    aug = im.Compose(
        [im.RandomResizedCrop(32, antialias=antialias), im.Normalize([0.5] * 3, [0.25] * 3)]
    )
    params = aug.sample(jax.random.split(jax.random.key(2), 9), ragged)
    _three_ways(device, host, aug.apply, ragged, params)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("transform", [im.MixUp(), im.CutMix()])
@pytest.mark.parametrize("side", [16, 15])
def test_mixing(device: Any, host: Any, transform: Any, dtype: Any, side: int) -> None:
    aug = im.Compose([transform], dtype=dtype)
    images = _images(dtype, (6, side, side, 3))
    params = aug.sample(jax.random.split(jax.random.key(4), 6), (side, side))
    labels = jax.nn.one_hot(jnp.arange(6), 6)
    _three_ways(device, host, aug.apply, images, params, labels)


_PROGRAMS = {
    "colours": [
        im.ColorJitter(0.4, 0.4, 0.4, 0.1),
        im.RandomAutocontrast(0.7),
        im.RandomEqualize(),
    ],
    "levels": [im.RandomPosterize(3, 0.7), im.RandomSolarize(0.5, 0.7), im.RandomInvert()],
    "blurs": [im.GaussianBlur(9), im.RandomAdjustSharpness(2.0, 0.7), im.RandomGrayscale(0.5)],
    "warps": [im.RandomRotation(30), im.RandomPerspective(p=0.7), im.ElasticTransform(20.0, 3.0)],
    "noise": [im.GaussianNoise(), im.RandomErasing(0.8, value="random")],
    "means": [im.AugMix()],
}


@pytest.mark.parametrize("name", _PROGRAMS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("count", [1, 9, 300])
def test_programs(device: Any, host: Any, count: int, dtype: Any, name: str) -> None:
    """Several blocks share an image of a small batch; a block runs several of a large one."""
    aug = im.Compose(_PROGRAMS[name], dtype=dtype)
    shape = (40, 52) if count == 300 else (120, 131)
    images = _images(dtype, (count, *shape, 3), count)
    params = aug.sample(jax.random.split(jax.random.key(10), count), shape)
    got, expected = (on(d, "native", aug.apply, images, params) for d in (device, host))
    # Functions of the device, such as a logarithm, may round to the neighbouring level.
    assert_same(got, expected)
    if dtype == np.uint8:
        assert np.mean(got != expected) < (0.5 if name == "noise" else 0.01)


def test_calls_in_a_command_buffer(device: Any, host: Any) -> None:
    """XLA captures calls without scratch memory in a CUDA graph, which later calls replay."""
    random = np.random.default_rng(11)
    factors = random.uniform(0, 1, (8, 6)).astype(np.float32)
    boxes = random.integers(0, 16, (8, 6, 4), dtype=np.int32)

    def fn(x: Any) -> Any:
        for lam, box in zip(factors, boxes, strict=True):
            x = ops.mix(x, x[::-1], lam, box, batch_dims=1, layout=Layout.NHWC)
        return x

    program = jax.jit(fn)
    with jk.backend("native"):
        for seed in range(4):
            images = _images(np.float32, (6, 16, 16, 3), seed)
            got = np.asarray(program(jax.device_put(images, device)))
            assert_same(got, on(host, "native", fn, images))


def test_more_samples_than_a_grid_has_rows(device: Any, host: Any) -> None:
    """The second and third axis of a grid have at most 65,535 blocks."""
    aug = im.Compose([im.RandomResizedCrop(4), im.MixUp()], dtype=jnp.float32)
    images = _images(np.uint8, (70_001, 6, 5, 1))
    params = aug.sample(jax.random.split(jax.random.key(12), len(images)), images.shape[1:3])
    got = on(device, "native", aug.apply, images, params)
    assert_same(got, on(host, "native", aug.apply, images, params))


def _crop() -> im.Compose:
    return im.Compose(
        [im.RandomResizedCrop(24, antialias=False), im.RandomHorizontalFlip()], dtype=jnp.float32
    )


def test_vmap_does_not_copy_shared_operands(device: Any, host: Any) -> None:
    aug = _crop()
    images = _images(np.float32, (4, 30, 40, 3))
    keys = jax.random.split(jax.random.key(5), 12).reshape(3, 4)
    params = jax.vmap(lambda k: aug.sample(k, (30, 40)))(keys)
    got = _three_ways(device, host, jax.vmap(aug.apply, (None, 0)), images, params)
    assert got.shape == (3, 4, 24, 24, 3)
    assert np.abs(got[0] - got[1]).max() > 0.1  # other parameters, another result


def test_gradients(device: Any, host: Any) -> None:
    aug = _crop()
    images = _images(np.float32, (4, 30, 40, 3))
    params = aug.sample(jax.random.split(jax.random.key(6), 4), (30, 40))

    def loss(x: Any, p: Any) -> Any:
        return jnp.sum(jnp.sin(3 * aug.apply(x, p)))

    _three_ways(device, host, lambda x, p: jax.grad(loss)(x, p), images, params, slack=5.0)


def test_sharded_over_one_device(device: Any, host: Any) -> None:
    aug = _crop()
    images = _images(np.uint8, (4, 30, 40, 3))
    params = aug.sample(jax.random.split(jax.random.key(7), 4), (30, 40))
    mesh = jax.make_mesh((1,), ("data",), devices=[device])
    spread = jax.NamedSharding(mesh, jax.P("data"))
    moved = jax.device_put((images, params), spread)
    with jk.backend("native"):
        got = np.asarray(jax.jit(aug.apply)(*moved))
    assert_same(got, on(host, "native", aug.apply, images, params))


def test_an_empty_batch(device: Any) -> None:
    aug = _crop()
    params = jax.tree.map(
        lambda x: x[:0], aug.sample(jax.random.split(jax.random.key(8), 1), (30, 40))
    )
    got = on(device, "native", aug.apply, _images(np.uint8, (0, 30, 40, 3)), params)
    assert got.shape == (0, 24, 24, 3)


def test_one_pixel_crops_and_a_large_image(device: Any, host: Any) -> None:
    aug = _crop()
    images = _images(np.uint8, (3, 1500, 1100, 3))
    box = {
        "top": np.asarray([1499, 0, 7], np.int32),
        "left": np.asarray([1099, 0, 9], np.int32),
        "height": np.asarray([1, 1500, 1], np.int32),
        "width": np.asarray([1, 1100, 900], np.int32),
    }
    params = (box, {"flip": np.asarray([False, True, True])})
    _three_ways(device, host, aug.apply, images, params)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16, np.uint8])
def test_a_box_outside_its_image_becomes_nan(device: Any, dtype: Any) -> None:
    """The CPU kernel returns an error here; a kernel on a stream cannot."""
    if device.platform == "cpu":
        pytest.skip("the CPU returns an error instead, see tests/image/test_errors.py")
    aug = im.Compose([im.RandomResizedCrop(8)], dtype=dtype)
    box = {
        "top": np.asarray([0, 25, 0, 0], np.int32),
        "left": np.asarray([0, 0, -1, 0], np.int32),
        "height": np.asarray([10, 10, 10, 10], np.int32),
        "width": np.asarray([10, 10, 10, 2**31 - 1], np.int32),
    }
    images = _images(np.uint8, (4, 30, 30, 3)) | 1
    got = on(device, "native", aug.apply, images, (box,)).astype(np.float32)
    if dtype is np.uint8:
        assert (got[1:] == 0).all()
        assert (got[0] > 0).any()
    else:
        assert np.isnan(got[1:]).all()
        assert np.isfinite(got[0]).all()


def test_the_native_targets_are_called(device: Any) -> None:
    aug = _crop()
    images = jax.ShapeDtypeStruct((4, 30, 40, 3), np.uint8)
    params = aug.sample(jax.random.split(jax.random.key(9), 4), (30, 40))
    with jk.backend("native"), jax.default_device(device):
        text = jax.jit(aug.apply).lower(images, params).as_text()
    assert "jaxkern.image_chain.v1" in text
