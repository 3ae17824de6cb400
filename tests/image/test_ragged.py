"""Ragged batches against the oracle on each image, and with offsets that change during a call."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.image.comparison import assert_close
from support.image.oracle import reference

from jaxkern import image as im
from jaxkern.core.arrays import aligned_array

RNG = np.random.default_rng(3)
IMAGES = [
    RNG.integers(0, 256, (h, w, 3), np.uint8) for h, w in [(9, 14), (21, 6), (1, 1), (16, 16)]
]


@pytest.fixture(scope="module")
def batch():
    return im.Ragged.from_list(IMAGES)


CHAINS = {
    "train": im.Compose(
        [
            im.RandomResizedCrop(8, antialias=False),
            im.RandomHorizontalFlip(),
            im.Normalize(0.5, 0.2),
        ]
    ),
    "antialias": im.Compose([im.RandomVerticalFlip(), im.RandomResizedCrop((5, 7))], np.float32),
    "nearest": im.Compose([im.RandomResizedCrop(8, interpolation="nearest")]),
    "eval": im.Compose([im.Resize(12), im.CenterCrop(8), im.Normalize(0.5, 0.2)]),
    "limited": im.Compose(
        [im.Resize(6, max_size=9, antialias=False), im.CenterCrop((11, 8))], "f4"
    ),
    "crop": im.Compose(
        [im.Pad((1, 2), fill=9), im.RandomCrop(10, pad_if_needed=True, fill=9), im.Resize((6, 6))]
    ),
    "border": im.Compose([im.CenterCrop(18), im.RandomErasing(p=1.0, value=3)], layout="NCHW"),
}


@pytest.mark.parametrize(
    ("backend", "name"),
    [*(("native", name) for name in CHAINS), ("jax", "train"), ("jax", "limited"), ("jax", "crop")],
    indirect=["backend"],
)
def test_equals_oracle(run, batch, name):
    aug = CHAINS[name]
    keys = jax.random.split(jax.random.key(5), len(IMAGES))
    params = aug.sample(keys, batch)
    out = run(aug, batch, params)
    assert_close(out, reference(aug, IMAGES, params, out.dtype), odd_levels=0.02)


def test_sample_accepts_sizes_or_a_batch(batch):
    aug = CHAINS["train"]
    keys = jax.random.split(jax.random.key(5), len(IMAGES))
    by_batch, by_size = aug.sample(keys, batch), aug.sample(keys, (batch.height, batch.width))
    jax.tree.map(np.testing.assert_array_equal, by_batch, by_size)
    crop = by_batch[0]
    assert np.all(np.asarray(crop["top"] + crop["height"]) <= batch.height)
    assert np.all(np.asarray(crop["left"] + crop["width"]) <= batch.width)


def test_call_and_bounds(run):
    batch = im.Ragged.from_list(IMAGES, max_height=40, max_width=50, buffer_size=4000)
    assert (batch.max_height, batch.max_width, batch.buffer.shape) == (40, 50, (4000,))
    aug = CHAINS["eval"]
    small = im.Ragged.from_list(IMAGES)
    expected = run(aug, small, ({}, {}, {}))
    np.testing.assert_allclose(run(aug, batch, ({}, {}, {})), expected, atol=2e-4)
    np.testing.assert_allclose(jax.jit(aug)(jax.random.key(0), batch), expected, atol=2e-4)


def test_is_a_pytree(batch):
    doubled = jax.jit(lambda b: jax.tree.map(lambda x: x, b))(batch)
    assert isinstance(doubled, im.Ragged)
    assert (doubled.channels, doubled.max_height, doubled.max_width) == (3, 21, 16)
    assert len(doubled) == 4


def test_offsets_are_int32_without_x64(batch):
    assert batch.offset.dtype == (np.int64 if jax.config.jax_enable_x64 else np.int32)


def test_errors(batch):
    with raises(TypeError, "images[1]:", "float32"):
        im.Ragged.from_list([IMAGES[0], IMAGES[0].astype(np.float32)])
    with raises(ValueError, "images[0]:", "(9, 14)"):
        im.Ragged.from_list([IMAGES[0][..., 0]])
    with raises(ValueError, "images[1]:", "3 channels", "got 1"):
        im.Ragged.from_list([IMAGES[0], IMAGES[0][..., :1]])
    with raises(ValueError, "max_width:", "got 5"):
        im.Ragged.from_list(IMAGES, max_width=5)
    assert im.Ragged.from_list(IMAGES, buffer_size=np.int64(9000)).buffer.shape == (9000,)
    with raises(ValueError, "buffer_size:", "got 3"):
        im.Ragged.from_list(IMAGES, buffer_size=3)
    with raises(ValueError, "channels:", "empty list"):
        im.Ragged.from_list([])
    with raises(ValueError, "output size", "Resize((h, w))"):
        im.Compose([im.Resize(8)]).apply(batch, ({},))
    with raises(ValueError, "one size", "CenterCrop"):
        im.Compose([im.Pad(1), im.Resize((4, 4))]).apply(batch, ({}, {}))
    bad = im.Ragged(batch.buffer, batch.offset, batch.height[:2], batch.width, 3, 21, 16)
    with raises(ValueError, "images.offset:", "(2,)", "(4,)"):
        im.Compose([im.Resize((4, 4))]).apply(bad, ({},))


def test_empty_list(run):
    batch = im.Ragged.from_list([], channels=3)
    assert run(im.Compose([im.Resize((4, 4))]), batch, ({},)).shape == (0, 4, 4, 3)
    assert jnp.asarray(batch.buffer).shape == (1,)


def test_rounded_buffers_have_few_lengths():
    sizes = np.arange(1, 520)
    images = [np.ones((n, 1, 1), np.uint8) for n in sizes]
    lengths = np.array(
        [im.Ragged.from_list([image], buffer_size="rounded").buffer.size for image in images]
    )
    assert (lengths >= sizes).all()
    assert (lengths < 1.25 * sizes).all()
    assert set(lengths[(sizes > 256) & (sizes <= 512)].tolist()) == {320, 384, 448, 512}
    with raises(ValueError, "'rounded'", "'round'"):
        im.Ragged.from_list(IMAGES, buffer_size="round")


def test_offsets_that_change_during_a_call():
    count, length = 50_000, 4096
    memory, offset = (
        aligned_array(n, t, np.zeros) for n, t in ((2 * length, np.uint8), (count, np.int32))
    )
    memory[length:] = 255  # mapped, but outside the buffer
    sizes = np.ones(count, np.int32)
    buffer, shared = jax.dlpack.from_dlpack(memory[:length]), jax.dlpack.from_dlpack(offset)
    batch = im.Ragged(buffer, shared, sizes, sizes, 1, 1, 1)
    run = jax.jit(im.Compose([im.Resize((1, 1), "nearest")]).apply)
    np.testing.assert_array_equal(run(batch, ({},)), 0)
    ended = threading.Event()

    def change():
        while not ended.is_set():
            offset[:] = length
            offset[:] = 0

    thread = threading.Thread(target=change)
    thread.start()
    errors = 0
    try:
        for _ in range(60):
            try:
                out = np.asarray(run(batch, ({},)))
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                errors += "operand 'buffer'" in str(error)
            else:
                assert not out.any(), "read beyond the buffer"
    finally:
        ended.set()
        thread.join()
    assert errors > 0  # the memory changed during calls
