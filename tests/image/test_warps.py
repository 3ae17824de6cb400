"""Warps and blurs against their formulas in NumPy float64, on both backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.ndimage import correlate1d
from support.image.comparison import slow
from support.image.draws import sample
from support.image.pictures import pictures

import jaxkern as jk
from jaxkern import image as im

SIZE = (21, 34)


def rotation(angle):
    turn = np.deg2rad(angle)
    return np.asarray([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])


def affine_map(params, k, size, center=None):
    """Return the forward map of pixel centres (x, y), 3 x 3: T C R S SHy SHx C^-1."""
    p = {name: float(value[k]) for name, value in params.items()}
    shear_x = np.asarray([[1, -np.tan(np.deg2rad(p["shear_x"]))], [0, 1]])
    shear_y = np.asarray([[1, 0], [-np.tan(np.deg2rad(p["shear_y"])), 1]])
    linear = p["scale"] * rotation(p["angle"]) @ shear_y @ shear_x
    middle = np.asarray([size[1] / 2, size[0] / 2] if center is None else center)
    shift = middle - linear @ middle + np.asarray([p["translate_x"], p["translate_y"]])
    return np.block([[linear, shift[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]])


def perspective_map(endpoints, size):
    """Return the map of the corners (0, 0) to (W - 1, H - 1) to the end points, by 8 equations."""
    height, width = size
    corners = [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]
    rows, expected = [], []
    for (x, y), (u, v) in zip(corners, np.asarray(endpoints, float), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        expected += [u, v]
    return np.append(np.linalg.solve(np.asarray(rows, float), expected), 1.0).reshape(3, 3)


def warped(image, forward, interpolation, fill):
    """Warp an image [H, W, C] by `forward` in float64, without rounding."""
    height, width, channels = image.shape
    y, x = np.mgrid[:height, :width] + 0.5
    back = np.linalg.inv(forward)
    u, v, w = (row[0] * x + row[1] * y + row[2] for row in back / back[2, 2])
    px, py = u / w - 0.5, v / w - 0.5
    padded = np.zeros((height + 2, width + 2, channels + 1))
    padded[1:-1, 1:-1, :channels] = image
    padded[1:-1, 1:-1, channels] = 1

    def pixel(row, column):
        row, column = (
            np.clip(at, -1, side).astype(int) + 1 for at, side in ((row, height), (column, width))
        )
        return padded[row, column]

    if interpolation == "nearest":
        actual = pixel(np.rint(py), np.rint(px))
        return np.where(actual[..., channels:] > 0, actual[..., :channels], fill or 0)
    first_x, first_y = np.floor(px), np.floor(py)
    across, down = (px - first_x)[..., None], (py - first_y)[..., None]
    upper = (1 - across) * pixel(first_y, first_x) + across * pixel(first_y, first_x + 1)
    lower = (1 - across) * pixel(first_y + 1, first_x) + across * pixel(first_y + 1, first_x + 1)
    actual = (1 - down) * upper + down * lower
    value, mask = actual[..., :channels], actual[..., channels:]
    return value if fill is None else mask * (value - fill) + fill


def assert_warped(out, expected, interpolation):
    """Compare: uint8 by one level on one pixel of a thousand; nearest any value on as many."""
    out = np.asarray(out)
    if out.dtype == np.uint8:
        expected = np.rint(np.clip(expected, 0, 255))
    off = np.abs(out.astype(float) - expected).max(axis=-1)
    if out.dtype == np.uint8 or interpolation == "nearest":
        assert (off > (0 if out.dtype == np.uint8 else 2e-4)).mean() <= 1e-3
        assert interpolation == "nearest" or off.max() <= 1
    else:
        assert off.max() <= 2e-4


AFFINE = {
    "angle": np.float32([31.7, -100.3, 4.4]),
    "translate_x": np.float32([3, -5, 0]),
    "translate_y": np.float32([-2, 0, 7]),
    "scale": np.float32([1.31, 0.77, 1.0]),
    "shear_x": np.float32([12.5, -7.1, 0.0]),
    "shear_y": np.float32([0.0, 9.3, -3.9]),
}
ENDPOINTS = np.int32(
    [
        [[3, 2], [30, 1], [28, 18], [5, 19]],
        [[0, 6], [33, 0], [20, 20], [9, 11]],
        [[0, 0], [33, 0], [33, 20], [0, 20]],
    ]
)


@pytest.mark.parametrize(
    ("interpolation", "channels", "dtype", "fill", "center"),
    [
        ("nearest", 3, np.uint8, 0, None),
        ("bilinear", 3, np.uint8, 0, None),
        ("bilinear", 3, np.float32, 0.25, (10, 3)),
        slow("nearest", 3, np.float32, 0.25, (10, 3)),
        slow("nearest", 1, np.uint8, None, (4.5, 20.25)),
        slow("bilinear", 1, np.uint8, None, (4.5, 20.25)),
        slow("bilinear", 4, np.uint8, 77, None),
    ],
)
def test_affine_maps(run, interpolation, channels, dtype, fill, center):
    images = pictures(channels, (3, *SIZE, channels), dtype)
    transform = im.RandomAffine(9, interpolation=interpolation, fill=fill, center=center)
    out = run(im.Compose([transform]), images, (AFFINE,))
    maps = [affine_map(AFFINE, k, SIZE, center) for k in range(3)]
    expected = [warped(*each, interpolation, fill) for each in zip(images, maps, strict=True)]
    assert_warped(out, np.stack(expected), interpolation)
    angle = AFFINE["angle"]
    turn = im.RandomRotation(9, interpolation=interpolation, fill=fill, center=center)
    out = run(im.Compose([turn]), images, ({"angle": angle},))
    still = {name: np.full(3, name == "scale") for name in AFFINE}
    maps = [affine_map(still | {"angle": -angle}, k, SIZE, center) for k in range(3)]
    expected = [warped(*each, interpolation, fill) for each in zip(images, maps, strict=True)]
    assert_warped(out, np.stack(expected), interpolation)


def test_rotations_that_expand(run):
    """Rotations by 30 degrees and by quarter turns, and without expansion."""
    images = pictures(3, (3, *SIZE, 3), np.float32)
    first = im.RandomRotation((30, 30), "bilinear", expand=True, fill=None)
    second = im.RandomRotation((-90, -90), expand=True)
    size = first.output_size(SIZE)
    assert size == (37, 40)  # from 10.5 - 17.6 to 10.5 + 17.6, and from 17 - 19.97 to 17 + 19.97
    assert im.Compose([first, second]).sample(jax.random.split(jax.random.key(0), 3), SIZE)
    angles = ({"angle": np.float32([30, 30, np.nan])}, {"angle": -90.0})
    out = run(im.Compose([first, second]), images, angles)
    assert out.shape == (3, 40, 37, 3)
    canvas = np.zeros((3, *size, 3), np.float32)
    canvas[:, : SIZE[0], : SIZE[1]] = images
    linear = rotation(-30.0)
    shift = np.asarray(size[::-1]) / 2 - linear @ (np.asarray(SIZE[::-1]) / 2)
    forward = np.block([[linear, shift[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]])
    expected = np.stack([warped(image, forward, "bilinear", None) for image in canvas])
    expected[2] = canvas[2]
    np.testing.assert_allclose(out, np.rot90(expected, -1, (1, 2)), atol=1e-5)


@pytest.mark.parametrize(
    ("interpolation", "channels", "dtype", "fill"),
    [
        ("nearest", 1, np.float32, 0),
        ("bilinear", 3, np.uint8, 200),
        slow("nearest", 3, np.uint8, 200),
        slow("bilinear", 1, np.float32, 0),
    ],
)
def test_perspectives(run, interpolation, channels, dtype, fill):
    images = pictures(channels, (3, *SIZE, channels), dtype)
    transform = im.RandomPerspective(interpolation=interpolation, fill=fill)
    out = run(im.Compose([transform]), images, ({"endpoints": ENDPOINTS},))
    maps = [perspective_map(points, SIZE) for points in ENDPOINTS]
    expected = [warped(*each, interpolation, fill) for each in zip(images, maps, strict=True)]
    assert_warped(out, np.stack(expected), interpolation)
    np.testing.assert_array_equal(out[2], images[2])


def test_marked_pixels_move_as_the_matrix_maps_them(run):
    """The centre of mass of a spot is at the mapped centre of its pixels."""
    rows, columns = np.mgrid[:60, :80] + 0.5
    x, y = 33.5, 25.5
    blot = np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 8).astype(np.float32)
    images = np.stack([blot[..., None]] * 3)
    maps = [affine_map(AFFINE, k, (60, 80)) for k in range(3)]
    out = run(im.Compose([im.RandomAffine(0, interpolation="bilinear")]), images, (AFFINE,))
    angle = np.float32([90.0, 30.0, -45.0])
    rotated = run(im.Compose([im.RandomRotation(0, "bilinear")]), images, ({"angle": angle},))
    # Counter-clockwise in an image whose rows go down: to the right becomes up.
    for k in range(3):
        linear = rotation(-angle[k])
        shift = np.asarray([40, 30]) - linear @ [40, 30]
        maps.append(np.block([[linear, shift[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]]))
    for moved, forward in zip([*out, *rotated], maps, strict=True):
        weight = np.asarray(moved)[..., 0].astype(float)
        actual = np.asarray([(weight * columns).sum(), (weight * rows).sum()]) / weight.sum()
        expected = forward @ [x, y, 1]
        assert np.abs(actual - expected[:2] / expected[2]).max() < 0.05


def blurred(image, kernel, sigma):
    value = image.astype(float)
    for axis, (size, width) in enumerate(zip(kernel[::-1], sigma[::-1], strict=True)):
        t = np.arange(size) - size // 2
        weight = np.exp(-(t**2) / (2 * width**2))
        value = correlate1d(value, weight / weight.sum(), axis, mode="mirror")
    return value


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    "kernel",
    [
        (5, 9),
        slow((23, 3)),
        slow((1, 1)),
    ],
)
def test_gaussian_blur(run, dtype, kernel):
    images = pictures(3, (3, *SIZE, 3), dtype)
    sigma = np.float32([0.3, 1.1, 2.0])
    out = run(im.Compose([im.GaussianBlur(kernel)]), images, ({"sigma": sigma},))
    expected = [
        blurred(image, kernel, [each] * 2) for image, each in zip(images, sigma, strict=True)
    ]
    assert_warped(out, np.stack(expected), "bilinear")


def test_both_backends_round_u8_alike():
    images = pictures(3, (8, 40, 56, 3))
    keys = jax.random.split(jax.random.key(5), 8)
    augment = im.Compose(
        [
            im.RandomAffine(40, (0.2, 0.2), (0.5, 2), (-9, 9, -9, 9), "bilinear", fill=9),
            im.RandomPerspective(0.7, 1.0),
            im.GaussianBlur((7, 5)),
        ]
    )
    params = sample(augment, keys, (40, 56))
    outs = []
    for backend in ("jax", "native"):
        with jk.backend(backend):
            outs.append(np.asarray(jax.jit(lambda i, p: augment.apply(i, p))(images, params)))
    np.testing.assert_array_equal(*outs)


def test_parameters_that_are_not_finite_change_nothing(run):
    images = pictures(3, (3, *SIZE, 3))
    bad = np.float32([np.nan, np.inf, 20])
    out = run(im.Compose([im.RandomRotation(9)]), images, ({"angle": bad},))
    np.testing.assert_array_equal(out[:2], images[:2])
    assert (np.asarray(out[2]) != images[2]).any()
    scales = AFFINE | {"scale": np.float32([0, -1, np.nan])}
    out = run(im.Compose([im.RandomAffine(9)]), images, (scales,))
    np.testing.assert_array_equal(out, images)
    flat = np.zeros((3, 4, 2), np.int32)
    out = run(im.Compose([im.RandomPerspective()]), images, ({"endpoints": flat},))
    np.testing.assert_array_equal(out, images)
    sigma = np.float32([np.nan, 0, -1])
    out = run(im.Compose([im.GaussianBlur(5)]), images, ({"sigma": sigma},))
    np.testing.assert_array_equal(out, images)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_sigma_whose_square_is_zero_blurs_nothing(run, dtype):
    images = pictures(3, (4, *SIZE, 3), dtype)
    sigma = np.float32([1e-18, 1e-25, 1e-42, 0.01])
    out = run(im.Compose([im.GaussianBlur(5)]), images, ({"sigma": sigma},))
    np.testing.assert_array_equal(out, images)


def test_a_sigma_whose_square_is_zero_has_no_slope(backend):
    images = pictures(3, (2, *SIZE, 3), np.float32)
    chain = im.Compose([im.GaussianBlur(5)])
    sums = jax.jit(jax.grad(lambda sigma: chain.apply(images, ({"sigma": sigma},)).sum()))
    with jk.backend(backend):
        np.testing.assert_array_equal(sums(np.float32([1e-25, 1e-18])), [0, 0])


def test_images_of_one_pixel_and_of_one_row(run):
    chain = im.Compose([im.RandomRotation(9, "bilinear"), im.GaussianBlur(1)])
    for size in [(1, 1), (300, 1)]:
        images = pictures(3, (1, *size, 3))
        out = run(chain, images, ({"angle": np.float32([180.0])}, {"sigma": np.float32([1])}))
        np.testing.assert_array_equal(out, images[:, ::-1, ::-1])


@pytest.mark.slow
def test_derivatives_of_images_and_factors(backend):
    images = pictures(1, (2, 6, 7, 1), np.float32)

    def loss(images, angle, scale, sigma):
        params = {name: value[:2] for name, value in AFFINE.items()}
        params |= {"angle": angle, "scale": scale}
        chain = im.Compose([im.RandomAffine(9, interpolation="bilinear"), im.GaussianBlur(3)])
        out = chain.apply(images, (params, {"sigma": sigma}))
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum()

    inputs = (images, np.float32([11, -7]), np.float32([1.2, 0.9]), np.float32([0.6, 0.9]))
    with jk.backend(backend):
        check_grads(jax.jit(loss), inputs, 1, ("fwd", "rev"), eps=1e-3, atol=2e-2, rtol=2e-2)


def test_draws_are_within_their_ranges():
    keys = jax.random.split(jax.random.key(1), 400)
    augment = im.Compose(
        [
            im.RandomAffine((-5, 40), (0.1, 0.3), (0.8, 1.5), (1, 2, -4, -3)),
            im.RandomPerspective(0.5, 0.5),
            im.RandomRotation((3, 3)),
            im.GaussianBlur(3, 0.7),
        ]
    )
    affine, perspective, turn, blur = sample(augment, keys, (60, 90))
    for name, low, high in [
        ("angle", -5, 40),
        ("translate_x", -9, 9),
        ("translate_y", -18, 18),
        ("scale", 0.8, 1.5),
        ("shear_x", 1, 2),
        ("shear_y", -4, -3),
    ]:
        draws = np.asarray(affine[name])
        assert draws.min() >= low
        assert draws.max() <= high
        assert draws.min() < low + 0.05 * (high - low)
        assert draws.max() > high - 0.05 * (high - low)
    assert (np.asarray(affine["translate_x"]) % 1 == 0).all()
    corners = np.asarray([[0, 0], [89, 0], [89, 59], [0, 59]])
    inwards = np.abs(np.asarray(perspective["endpoints"]) - corners)
    assert inwards[..., 0].max() == 22
    assert inwards[..., 1].max() == 15
    assert 0.4 < (inwards == 0).all(axis=(1, 2)).mean() < 0.6
    np.testing.assert_array_equal(turn["angle"], np.float32(3))
    np.testing.assert_array_equal(blur["sigma"], np.float32(0.7))


def test_corners_move_by_integer_pixels():
    """0.29 of 100 pixels are 28.999999999999996, as torchvision multiplies: 28."""
    perspective = im.RandomPerspective(0.29, 1.0)
    keys = jax.random.split(jax.random.key(2), 400)
    for size in [(200, 200), tuple(np.full(400, 200, np.int32) for _ in "hw")]:
        (draws,) = jax.jit(lambda k, s=size: im.Compose([perspective]).sample(k, s))(keys)
        points = np.asarray(draws["endpoints"])
        assert np.minimum(points, 199 - points).max() == 28
