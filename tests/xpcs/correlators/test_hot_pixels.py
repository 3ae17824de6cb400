"""Detection of hot pixels, and warnings about bins without finite correlations.

Would catch: a hot pixel that dominates the g2 of a bin without a warning, speckles or Poisson noise
reported as hot pixels, bursts missed in a pixel with a normal mean, and a mode "mask" that reports
a pixel without masking it.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.errors import raises, warns
from support.xpcs.correlator_frames import events_of

import jaxkern as jk
from jaxkern import xpcs
from jaxkern.xpcs.correlators.checks import suspect_pixels
from jaxkern.xpcs.correlators.results import Overview

SHAPE = (20, 30)
ROW, COLUMN = 7, 11
POSITION = f"row {ROW}, column {COLUMN}"


def one_bin(shape=SHAPE, size=300):
    number = np.arange(shape[0] * shape[1]).reshape(shape) // size + 1
    return xpcs.QMap(number)


def frames_of(mean, n=400, modes=1.0, seed=0, shape=SHAPE):
    """Photon counts of `modes` modes of speckle, each speckle pattern lasting 8 frames."""
    rng = np.random.default_rng(seed)
    light = rng.gamma(modes, mean / modes, (-(-n // 8), *shape)).repeat(8, axis=0)[:n]
    return rng.poisson(light).astype(np.uint16)


def sums(counts):
    """Return the overview of frames [N, H, W], computed by NumPy in float64."""
    wide = counts.astype(np.float64)
    some = np.zeros(1)
    return Overview(wide.mean(axis=0), some, some, some, (wide**2).mean(axis=0))


@pytest.mark.parametrize("kind", ["array", "events", "file", "float"])
def test_one_hot_pixel_in_a_bin_of_300(kind, backend, tmp_path):
    counts = frames_of(0.3)
    counts[:, ROW, COLUMN] = np.random.default_rng(1).poisson(60, 400)
    qmap = one_bin()
    source, events = counts, events_of(counts)
    if kind == "events":
        source = xpcs.EventFrames(*events, frame_shape=SHAPE, n_frames=400)
    if kind == "file":
        source = tmp_path / "run.npz"
        arrays = dict(zip(("pixel", "frame", "count"), events, strict=True))
        np.savez(source, **arrays, shape=counts.shape)
    if kind == "float":
        source = counts.astype(np.float32)
    spoilt = xpcs.multitau(source, qmap, progress=False)
    assert spoilt.g2[:, 0].max() > 20
    with warns(xpcs.CorrelationWarning, POSITION):
        reported = xpcs.multitau(source, qmap, hot_pixels="report", progress=False)
    np.testing.assert_array_equal(reported.g2, spoilt.g2)
    assert reported.config["hot_pixels"] == [[ROW, COLUMN]]
    assert len(reported.warnings) == 1
    with warns(xpcs.CorrelationWarning, POSITION, "masked"):
        masked = xpcs.multitau(source, qmap, hot_pixels="mask", progress=False)
    expected = xpcs.multitau(source, qmap.without([(ROW, COLUMN)]), progress=False)
    np.testing.assert_array_equal(masked.g2, expected.g2)
    assert not masked.qmap.mask[ROW, COLUMN]


@pytest.mark.parametrize("events", [False, True])
def test_two_time_correlations_mask_hot_pixels(events):
    counts = frames_of(0.5, n=60)
    counts[:, ROW, COLUMN] = 50
    source = xpcs.EventFrames(*events_of(counts), SHAPE, 60) if events else counts
    mask = np.ones(SHAPE, bool)
    mask[ROW, COLUMN] = False
    expected = xpcs.twotime(source, one_bin(), mask=mask, progress=False)
    assert expected.n_pixels[0] == 299
    with warns(xpcs.CorrelationWarning, POSITION):
        masked = xpcs.twotime(source, one_bin(), hot_pixels="mask", progress=False)
    np.testing.assert_array_equal(masked.c2, expected.c2)
    with warns(xpcs.CorrelationWarning, POSITION):
        reported = xpcs.twotime(source, one_bin(), hot_pixels="report", progress=False)
    assert reported.config["hot_pixels"] == [[ROW, COLUMN]]
    assert reported.overview is None


@pytest.mark.parametrize("hot_pixels", ["report", "mask"])
def test_live_runs(hot_pixels):
    counts = frames_of(0.3, n=200)
    counts[:, ROW, COLUMN] = 40
    live = xpcs.LiveMultiTau(one_bin(), 1000, hot_pixels=hot_pixels)
    live.update(xpcs.as_frames(counts[:70]))
    source = xpcs.as_frames(counts)
    with warns(xpcs.CorrelationWarning, POSITION):
        result = live.finish(source)
    with pytest.warns(xpcs.CorrelationWarning):
        expected = xpcs.multitau(
            counts, one_bin(), hot_pixels=hot_pixels, overview=True, progress=False
        )
    np.testing.assert_array_equal(result.g2, expected.g2)
    assert result.config["hot_pixels"] == expected.config["hot_pixels"]
    np.testing.assert_allclose(
        result.overview.mean_square, (counts.astype(float) ** 2).mean(axis=0), rtol=1e-14
    )


def test_bursts_in_a_pixel_with_a_normal_mean():
    counts = frames_of(1.0, n=1000, modes=5)
    counts[:, ROW, COLUMN] = 0
    counts[500:520, ROW, COLUMN] = 50
    suspects = suspect_pixels(sums(counts), one_bin(), 1000, True)
    assert list(suspects) == [ROW * SHAPE[1] + COLUMN]
    assert "rms" in suspects[ROW * SHAPE[1] + COLUMN]


def test_dark_and_non_finite_pixels():
    counts = frames_of(20, n=400, modes=10).astype(np.float32)
    counts[:, 3, 4] = 0
    counts[17, 5, 6] = np.nan
    suspects = suspect_pixels(sums(counts), one_bin(), 400, False)
    assert list(suspects) == [3 * SHAPE[1] + 4, 5 * SHAPE[1] + 6]
    assert "not finite" in suspects[5 * SHAPE[1] + 6]


def test_gain_and_dark_noise_of_an_integrating_detector_are_not_hot_pixels():
    """30 counts per photon, and noise around 0 in floating-point frames."""
    rng = np.random.default_rng(2)
    gained = 30 * rng.poisson(0.002, (200, *SHAPE))
    assert not suspect_pixels(sums(gained), one_bin(), 200, True)
    noisy = rng.normal(0, 2, (200, *SHAPE)) + gained
    assert not suspect_pixels(sums(noisy), one_bin(), 200, False)


def image_of(kind, mean, frames, size, seed):
    """Overview of `frames` frames of 10^6 pixels, and a map with bins of `size` pixels."""
    rng = np.random.default_rng(seed)
    n = 10**6
    light = {
        "Poisson": lambda: np.full(n, mean),
        "static": lambda: rng.exponential(mean, n),
        "static, 3 modes": lambda: rng.gamma(3, mean / 3, n),
        "40% static": lambda: mean * (0.6 + 0.4 * rng.exponential(1, n)),
    }[kind]()
    total, squares = np.zeros(n), np.zeros(n)
    for _ in range(frames):
        counts = rng.poisson(light)
        total += counts
        squares += counts.astype(float) ** 2
    shape = (1000, 1000)
    overview = Overview(
        (total / frames).reshape(shape), *[np.zeros(1)] * 3, (squares / frames).reshape(shape)
    )
    return overview, one_bin(shape, size)


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "size"), [(0.001, 300), (1.0, 300), (20.0, 300), (0.05, 30)])
@pytest.mark.parametrize("kind", ["Poisson", "static", "static, 3 modes", "40% static"])
def test_no_false_alarm_in_a_detector_image(kind, mean, size):
    overview, qmap = image_of(kind, mean, 4, size, seed=5)
    suspects = suspect_pixels(overview, qmap, 4, True)
    assert not suspects


@pytest.mark.parametrize("modes", [1.0, 4.0])
@pytest.mark.parametrize("mean", [0.01, 1.0])
def test_fluctuating_speckles_are_not_hot_pixels(mean, modes):
    counts = frames_of(mean, n=160, modes=modes, seed=6, shape=(100, 300))
    suspects = suspect_pixels(sums(counts), one_bin((100, 300)), 160, True)
    assert not suspects


def test_small_static_bins_are_joined():
    """A hot pixel is detected in 50 static bins of 6 pixels, too few for statistics of one bin."""
    counts = frames_of(1.0, n=300, modes=5)
    counts[:, ROW, COLUMN] = 60
    number = np.arange(600).reshape(SHAPE)
    qmap = xpcs.QMap(number // 300 + 1, number // 6 + 1)
    suspects = suspect_pixels(sums(counts), qmap, 300, True)
    assert list(suspects) == [ROW * SHAPE[1] + COLUMN]


def test_wrong_mode():
    with raises(ValueError, "hot_pixels", "'no'"):
        xpcs.multitau(frames_of(1, 20), one_bin(), hot_pixels="no")


# Bins that are NaN, or without pixels or counts --------------------------------------------------


def test_one_nan_names_its_frame_row_and_column(backend):
    counts = frames_of(1.0, n=40).astype(np.float32)
    counts[13, ROW, COLUMN] = np.nan
    counts[20, ROW + 1, 3] = np.inf
    with pytest.warns(xpcs.CorrelationWarning) as issued:
        result = xpcs.multitau(counts, one_bin(), begin=3, progress=False)
    (message,) = result.warnings
    assert [str(w.message) for w in issued] == [message]
    assert f"bins [1] are NaN: frame 13 has nan in row {ROW}, column {COLUMN}" in message
    assert "1 more pixel" in message
    assert np.isfinite(result.g2[:, 1]).all()
    with warns(xpcs.CorrelationWarning, "frame 13", "nan", POSITION):
        xpcs.twotime(counts, one_bin(), progress=False)
    with warns(xpcs.CorrelationWarning, "2 pixels", POSITION, f"row {ROW + 1}, column 3"):
        masked = xpcs.multitau(counts, one_bin(), hot_pixels="mask", progress=False)
    assert np.isfinite(masked.g2).all()


def test_frames_of_infinity_are_an_error():
    counts = np.full((20, *SHAPE), np.inf, np.float32)
    with raises(ValueError, "frame 0", "inf", "row 0, column 0"):
        xpcs.multitau(counts, one_bin(), progress=False)
    with raises(ValueError, "frame 0", "inf", "row 0, column 0"):
        xpcs.twotime(counts, one_bin(), progress=False)


def test_bins_without_pixels_or_counts_are_reported():
    counts = frames_of(1.0, n=20)
    counts[:, :10] = 0
    with warns(xpcs.CorrelationWarning, "bins [1]", "no counts"):
        xpcs.multitau(counts, one_bin(), progress=False)
    mask = np.ones(SHAPE, bool)
    mask[:10] = False
    with warns(xpcs.CorrelationWarning, "bins [1]", "no pixels", "the mask is 0"):
        xpcs.multitau(counts, one_bin(), mask=mask, progress=False)
    inverted = jk.xpcs.QMap(np.where(mask, 1, 0), mask=~mask)
    with raises(ValueError, "300 pixels", "inverted"):
        xpcs.multitau(counts, inverted, progress=False)


def test_errors_name_row_and_column(backend):
    counts = np.zeros((20, *SHAPE), np.int32)
    counts[4, ROW, COLUMN] = -1
    frame, pixel = [3, 3], [ROW * SHAPE[1] + COLUMN] * 2
    large = np.array([2**31, 2**31], np.uint32)
    for run in (
        lambda: xpcs.multitau(counts, one_bin(), progress=False),
        lambda: xpcs.multitau_events(pixel, frame, large, 20, one_bin(), progress=False),
        lambda: xpcs.twotime_events(pixel, frame, large, 20, one_bin(), progress=False),
    ):
        with raises(ValueError, POSITION):
            run()
    live = xpcs.LiveMultiTau(one_bin(), 100)
    live.update(xpcs.as_frames(counts))
    with raises(ValueError, POSITION):
        live.result()
