"""Colour operations of image programs, against NumPy, and native kernels against pure JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import image as im
from jaxkern.image import ops
from jaxkern.image.program.program import VALUES, Code, ProgramStep, program_operands

RNG = np.random.default_rng(3)
SMOOTH = np.stack(
    [np.add.outer(np.arange(17) * a, np.arange(23) * b) % 256 for a, b in ((7, 3), (2, 9), (0, 1))],
    axis=-1,
)
FEW = RNG.choice([31, 90, 90, 140, 203], (17, 23, 3))
FEW[..., 2] = 77  # a constant channel
FEW[:4, :5] = [200, 0, 40]  # red, with more blue than green
U8 = np.stack([SMOOTH, FEW, RNG.integers(0, 256, (17, 23, 3))]).astype(np.uint8)
F32 = (RNG.random((3, 17, 23, 3)) * 1.2 - 0.1).astype(np.float32)

# Several values of each operation; blends have a factor and 1 - factor.
OPERATION_VALUES = {
    Code.BRIGHTNESS: [(0.0,), (0.37,), (1.9,), (-2.0,), (1e30,)],
    Code.CONTRAST: [(0.0, 1.0), (0.37, 0.63), (1.9, -0.9), (3e9, -3e9)],
    Code.SATURATION: [(0.0, 1.0), (0.37, 0.63), (1.9, -0.9), (1.27, -0.27)],
    Code.HUE: [(0.0,), (0.5,), (-0.5,), (0.123,), (-0.31,), (7.25,)],
    Code.SHARPNESS: [(0.0, 1.0), (0.37, 0.63), (1.9, -0.9)],
    Code.POSTERIZE: [(0.0,), (1.0,), (4.0,), (8.0,), (99.0,), (-5.0,)],
    Code.SOLARIZE: [(0.0,), (0.5,), (1.0,), (128.0, 1.0), (200.5, 1.0)],
    Code.AUTOCONTRAST: [()],
    Code.EQUALIZE: [()],
    Code.INVERT: [()],
    Code.GRAYSCALE: [()],
    Code.PERMUTE: [(2.0, 0.0, 1.0), (0.0, 0.0, 9.0), (-3.0, 1.0, 1.4)],
}
ALL = tuple(OPERATION_VALUES)


def program(images, rows, codes=None, backend="native"):
    """Run rows [[(code, values), ...], ...], one per image, in steps of `codes` (default: all)."""
    count = max(len(row) for row in rows)
    op = np.full((len(rows), count), int(Code.NONE), np.int32)
    values = np.zeros((len(rows), count, VALUES), np.float32)
    for n, row in enumerate(rows):
        for s, (code, inputs) in enumerate(row):
            op[n, s] = code
            values[n, s, : len(inputs)] = inputs
    draws = [tuple(Code(k) for k in sorted({*op[:, s]} & {*ALL})) for s in range(count)]
    return run(images, op, values, tuple(ProgramStep(codes or draw) for draw in draws), backend)


def run(images, op, values, steps, backend):
    """Run a program in jitted code with op [N or 1, S] and values [N or 1, S, VALUES]."""
    static = {"steps": steps, "channels": images.shape[-1], "batch_dims": 1}
    with jk.backend(backend):
        return np.asarray(
            jax.jit(lambda *arrays: ops.program(*arrays, **static))(images, op, values)
        )


def fused(a, b, c):
    """Return a * b + c in float32 with one rounding: the product is exact in float64."""
    wide = np.asarray(a, np.float64) * np.float64(np.float32(b)) + np.asarray(c, np.float64)
    return wide.astype(np.float32)


def levels(x):
    return np.trunc(np.clip(np.asarray(x, np.float32), 0, 255)).astype(np.uint8)


def gray_levels(x):
    return (x.astype(np.int64) @ [2989, 5870, 1140]) // 10_000


def hue(unit, shift):
    """Shift the hue by Python's colorsys, in float64."""
    import colorsys

    rotated = np.empty_like(unit, dtype=np.float64)
    for at in np.ndindex(unit.shape[:-1]):
        h, s, v = colorsys.rgb_to_hsv(*unit[at].tolist())
        rotated[at] = colorsys.hsv_to_rgb((h + shift) % 1.0, s, v)
    return rotated


def smoothed(x):
    total = 4 * x[1:-1, 1:-1]
    for dy in range(3):
        for dx in range(3):
            total = total + x[dy : x.shape[0] - 2 + dy, dx : x.shape[1] - 2 + dx]
    return total / 13


def oracle_u8(x, code, inputs):
    """Apply one operation to an image u8 of three channels, by the rules in docs/reference."""
    f, rest = ([*inputs, 0.0, 0.0])[:2]
    wide = x.astype(np.float32)
    factor = np.float32(np.clip(f, -1024, 1024))
    rest = np.float32(np.clip(rest, -1024, 1024))
    if code is Code.BRIGHTNESS:
        return levels(wide * factor)
    if code is Code.CONTRAST:
        mean = np.float32(gray_levels(x).sum()) / np.float32(x[..., 0].size)
        return levels(wide * factor + mean * rest)
    if code is Code.SATURATION:
        return levels(fused(gray_levels(x)[..., None], rest, wide * factor))
    if code is Code.SHARPNESS:
        out = x.copy()
        inner = x[1:-1, 1:-1].astype(np.float64)
        near = np.rint(smoothed(x.astype(np.int64)))
        out[1:-1, 1:-1] = levels(fused(near - inner, rest, inner))
        return out
    if code is Code.POSTERIZE:
        bits = int(np.clip(f, 0, 8))
        return (x >> (8 - bits)) << (8 - bits) if bits else np.zeros_like(x)
    if code is Code.SOLARIZE:
        threshold = f if len(inputs) == 2 else 255 * f
        return np.where(x >= threshold, 255 - x, x)
    if code is Code.AUTOCONTRAST:
        low, high = wide.min((0, 1)), wide.max((0, 1))
        scale = (high - low) * np.float32(1 / 255)
        spread = levels((wide - low) / np.where(scale == 0, np.float32(1), scale))
        return np.where(scale == 0, x, spread)
    if code is Code.EQUALIZE:
        out = x.copy()
        for c in range(3):
            count = np.bincount(x[..., c].reshape(-1), minlength=256)
            step = (x[..., c].size - count[x[..., c].max()]) // 255
            if step:
                before = np.concatenate([[0], np.cumsum(count)[:-1]])
                table = np.minimum((before + step // 2) // step, 255).astype(np.uint8)
                out[..., c] = table[x[..., c]]
        return out
    if code is Code.INVERT:
        return 255 - x
    if code is Code.GRAYSCALE:
        return np.repeat(gray_levels(x)[..., None], 3, axis=-1).astype(np.uint8)
    order = [int(np.clip(np.rint(k), 0, 2)) for k in inputs]
    return x[..., order]


def with_all_values(images, code):
    """Run every operation with each of its values on each image."""
    inputs = OPERATION_VALUES[code]
    rows = [[(code, values)] for values in inputs for _ in images]
    return np.concatenate([images] * len(inputs)), rows


@pytest.mark.parametrize("code", ALL, ids=lambda code: code.name)
def test_levels_equal_the_oracle_and_pure_jax(code):
    images, rows = with_all_values(U8, code)
    native = program(images, rows, (code,))
    np.testing.assert_array_equal(native, program(images, rows, (code,), "jax"))
    for x, [(_, inputs)], out in zip(images, rows, native, strict=True):
        if code is Code.HUE:
            off = np.abs(out - np.trunc(hue(x / 255.0, inputs[0]) * 255.999))
            assert off.max() <= 1
            assert (off > 0).mean() < 0.01, inputs
        else:
            np.testing.assert_array_equal(out, oracle_u8(x, code, inputs), err_msg=str(inputs))


def test_the_mean_of_one_level_is_that_level():
    """61 * 16 equal levels over 61 * 16; a product with the inverse would be less."""
    images = np.full((4, 61, 16, 1), [[[[level]]] for level in (3, 244, 85, 1)], np.uint8)
    rows = [[(Code.CONTRAST, (0.0, 1.0))]] * 4
    for backend in ("native", "jax"):
        np.testing.assert_array_equal(program(images, rows, backend=backend), images)


def random_rows(count, steps, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        draws = [ALL[k] for k in rng.integers(0, len(ALL), steps)]
        rows.append(
            [
                (code, OPERATION_VALUES[code][rng.integers(len(OPERATION_VALUES[code]))])
                for code in draws
            ]
        )
    return rows


def test_programs_equal_successive_operations():
    images = np.concatenate([U8, U8[:, ::-1]])
    rows = random_rows(len(images), 7, 1)
    native = program(images, rows)
    expected = images
    for s in range(7):
        expected = program(expected, [[row[s]] for row in rows])
    np.testing.assert_array_equal(native, expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_programs_of_any_channels_equal_pure_jax(channels):
    images = RNG.integers(0, 256, (3, 9, 300, channels), np.uint8)
    rows = random_rows(3, 4, channels)
    native = program(images, rows)
    np.testing.assert_array_equal(native, program(images, rows, backend="jax"))
    if channels == 4:
        np.testing.assert_array_equal(native[..., 3], images[..., 3])


@pytest.mark.parametrize("code", ALL, ids=lambda code: code.name)
def test_floats_equal_pure_jax(code):
    images, rows = with_all_values(F32, code)
    native = program(images, rows, (code,))
    twin = program(images, rows, (code,), "jax")
    # Rounding errors are multiplied by up to 1,024.
    np.testing.assert_allclose(native, twin, atol=5e-4 if code is Code.CONTRAST else 1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 2), (3, 1), (20_000, 20)])
def test_small_and_long_images(shape):
    images = RNG.integers(0, 256, (1, *shape, 3), np.uint8)
    rows = [[(code, OPERATION_VALUES[code][0]) for code in ALL if code is not Code.HUE]]
    expected = images[0]
    for code, inputs in rows[0]:
        if code is not Code.SHARPNESS or min(shape) > 2:
            expected = oracle_u8(expected, code, inputs)
    np.testing.assert_array_equal(program(images, rows)[0], expected)
    rotated = program(
        images.astype(np.float32) / 255, [[(code, OPERATION_VALUES[code][0]) for code in ALL]]
    )
    assert np.isfinite(rotated).all()


def test_undeclared_codes_change_nothing():
    bad = [-7, 18, 99, 2**31 - 1, -(2**31)]
    images = np.concatenate([U8, U8])[:5]
    rows = [[(code, (0.5, 0.5))] for code in bad]
    np.testing.assert_array_equal(program(images, rows, ALL), images)
    # A code that the step does not declare.
    rows = [[(Code.INVERT, ())]] * 3
    for backend in ("native", "jax"):
        np.testing.assert_array_equal(program(U8, rows, (Code.HUE,), backend), U8)


def test_values_that_are_not_finite_change_nothing():
    rows = [
        [(code, (*[0.5] * position, bad)) for code in ALL]
        for position, bad in enumerate((np.nan, np.inf, -np.inf))
    ]
    for backend in ("native", "jax"):
        np.testing.assert_array_equal(program(U8, rows, backend=backend), U8)


@pytest.mark.parametrize("code", ALL, ids=lambda code: code.name)
def test_images_that_are_not_finite(code):
    images = F32.copy()
    images[:, 3, 4, 1] = (np.nan, np.inf, -np.inf)
    rows = [[(code, OPERATION_VALUES[code][0])]] * 3
    native, twin = (program(images, rows, backend=backend) for backend in ("native", "jax"))
    far = np.s_[:, 8:, 8:]  # its neighbourhood is finite
    np.testing.assert_allclose(native[far], twin[far], atol=2e-4)


# Codes and static parts of steps; the warps have no position between two pixels.
TURN = (0.0, 1.0, 0.0, -1.0, 0.0, 0.0)
TILTED = Code.PERSPECTIVE
TILT = (1.03, 0.11, -0.7, -0.13, 0.97, 1.9, 2e-3, -1e-3)
MOVES = [
    (Code.BLUR, (1.3, 0.4), ProgramStep((Code.BLUR,), kernel=(5, 3))),
    (Code.WARP, TURN, ProgramStep((Code.WARP,), fill=(9.0, 8.0, 7.0))),
    (TILTED, TILT, ProgramStep((TILTED, Code.INVERT), "bilinear", fill=(60.0,))),
    (TILTED, TILT, ProgramStep((TILTED,), "bilinear", fill=(float("nan"),))),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_blurs_and_warps_between_colours(dtype):
    """Both buffers are written, and tables run before pixels move."""
    images = U8 if dtype is np.uint8 else F32
    codes = (Code.INVERT, Code.POSTERIZE)  # of which each takes time to compile in pure JAX
    invert = (np.int32(Code.INVERT), np.zeros((1, VALUES), np.float32), ProgramStep(codes))
    moved = [np.float32([*inputs, *[0.0] * (VALUES - len(inputs))])[None] for _, inputs, _ in MOVES]
    moves = [(np.int32(c), v, s) for (c, _, s), v in zip(MOVES, moved, strict=True)]
    for steps in (moves[:3], [invert, moves[0], invert], [invert, *moves, invert]):
        operands = program_operands(steps)
        outs = [run(images, *operands, backend) for backend in ("native", "jax")]
        atol = 0 if dtype is np.uint8 else 1e-3
        np.testing.assert_allclose(outs[0].astype(float), outs[1].astype(float), atol=atol)
        assert (outs[0] != images).any()


def jitter(**options):
    return im.ColorJitter(**({"brightness": 0.4, "contrast": 0.4, "saturation": 0.4} | options))


def test_the_order_of_a_jitter():
    order = np.asarray([[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]], np.int32)
    names = ("brightness", "contrast", "saturation", "hue")
    factors = dict(zip(names, np.float32([1.3, 0.75, 1.25, 0.1]), strict=True))
    codes = (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION, Code.HUE)
    inputs = [(f, 1 - f) for f in list(factors.values())[:3]] + [(factors["hue"],)]
    aug = im.Compose([jitter(hue=0.2)])
    out = aug.apply(U8, ({**factors, "order": order},))
    expected = program(U8, [[(codes[k], inputs[k]) for k in row] for row in order])
    np.testing.assert_array_equal(out, expected)
    # A factor that is None and an invalid position are not applied.
    out = im.Compose([im.ColorJitter(brightness=0.4)]).apply(U8, ({**factors, "order": order},))
    np.testing.assert_array_equal(out, program(U8, [[(codes[0], inputs[0])]] * 3))
    out = aug.apply(U8, ({**factors, "order": order + 90},))
    np.testing.assert_array_equal(out, U8)


def test_levels_are_rounded_before_and_after_a_program():
    """A resize ends in levels; the operation after it reads levels."""
    aug = im.Compose([im.Resize((9, 11)), im.RandomInvert(1.0), im.Normalize(0.5, 0.25)])
    params = ({}, {"apply": np.asarray([True, False, True])}, {})
    resized = im.Compose([im.Resize((9, 11))]).apply(U8)
    expected = np.where(np.asarray([1, 0, 1])[:, None, None, None], 255 - resized, resized)
    expected = (expected / 255 - 0.5) / 0.25
    np.testing.assert_allclose(aug.apply(U8, params), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32])
def test_half_types_are_computed_in_float32(dtype):
    images = jnp.asarray(np.clip(F32, 0, 1), dtype)
    aug = im.Compose([im.RandomInvert(), im.RandomSolarize(0.5)])
    out = aug.apply(images, ({"apply": True}, {"apply": True}))
    assert out.dtype == images.dtype
    inverted = 1 - images.astype(jnp.float32)
    expected = jnp.where(inverted >= 0.5, 1 - inverted, inverted)
    np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=1e-2)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_grayscale_and_its_channels(channels):
    images = RNG.integers(0, 256, (2, 5, 6, channels), np.uint8)
    gray = images[..., :1] if channels == 1 else gray_levels(images[..., :3])[..., None]
    three = im.Compose([im.Grayscale(3)]).apply(images)
    assert three.shape[-1] == max(channels, 3)
    np.testing.assert_array_equal(three[..., :3], np.repeat(gray, 3, axis=-1))
    if channels == 4:
        np.testing.assert_array_equal(three[..., 3], images[..., 3])
        with raises(ValueError, "Grayscale"):
            im.Compose([im.Grayscale()]).apply(images)
        return
    normalized = im.Compose([im.Grayscale(), im.RandomInvert(), im.Normalize(0.5, 0.5)])
    out = normalized.apply(images, ({}, {"apply": True}, {}))
    np.testing.assert_allclose(out, (1 - gray / 255 - 0.5) / 0.5, atol=1e-5)


def test_draws_depend_on_the_record_and_compile_nothing():
    aug = im.Compose(
        [jitter(hue=0.1), im.RandomPhotometricDistort(), im.RandomChannelPermutation()]
    )
    keys = jk.random.record_keys(0, 0, np.arange(6))
    images = np.concatenate([U8, U8])
    traced = []

    @jax.jit
    def run(keys, images):
        traced.append(1)
        return aug(keys, images)

    complete = run(keys, images)
    rotated = run(keys[::-1], images[::-1])
    np.testing.assert_array_equal(complete, rotated[::-1])
    assert len(traced) == 1


def test_gradients_of_float_chains():
    """Derivatives by pixels and factors, against differences."""
    aug = im.Compose([im.ColorJitter(0.4, saturation=0.4), im.RandomAdjustSharpness(1.5, 1.0)])
    x = jnp.asarray(0.3 + 0.3 * RNG.random((1, 5, 6, 3)), jnp.float32)
    order = np.asarray([[2, 1, 0, 3]], np.int32)

    @jax.jit
    def loss(x, factor):
        inputs = {"brightness": factor, "contrast": 1.1, "saturation": factor, "hue": 0.0}
        inputs = {name: jnp.broadcast_to(jnp.float32(f), (1,)) for name, f in inputs.items()}
        out = aug.apply(x, ({**inputs, "order": order}, {"apply": True}))
        return jnp.sum(out * jnp.arange(out.size, dtype=jnp.float32).reshape(out.shape)) / 100

    of_pixels, of_factor = jax.jit(jax.grad(loss, (0, 1)))(x, jnp.float32(0.9))
    step = 1e-2
    slope = (loss(x, 0.9 + step) - loss(x, 0.9 - step)) / (2 * step)
    np.testing.assert_allclose(of_factor, slope, rtol=2e-2)
    away = jnp.zeros_like(x).at[0, 2, 3, 1].set(step)
    slope = (loss(x + away, 0.9) - loss(x - away, 0.9)) / (2 * step)
    np.testing.assert_allclose(of_pixels[0, 2, 3, 1], slope, rtol=2e-2)
