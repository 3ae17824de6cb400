"""Frames without counts in a bin: C(t1, t2) is NaN there, and averages must skip it.

Would catch a baseline below 1 in faint light, numbers of pairs that differ from the pairs averaged,
and a warning, a file or a plot that omits such frames. The oracle is NumPy in float64: photons of
constant intensity, whose g2 is 1 at every nonzero lag.
"""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from support.errors import warns
from support.xpcs.correlator_frames import events_of

import jaxkern as jk
from jaxkern.cli import main
from jaxkern.xpcs.analysis import correlation_plots
from jaxkern.xpcs.files.prepare import correct_diagonal
from jaxkern.xpcs.files.results_reader import read_summary

N, SHAPE = 300, (15, 20)
QUIET = pytest.mark.filterwarnings("ignore:.* no counts in:jaxkern.xpcs.CorrelationWarning")


def photons(mean, n=N, shape=SHAPE, seed=0):
    """Frames with `mean` photons each, on average."""
    draw = np.random.default_rng(seed)
    return draw.poisson(mean / np.prod(shape), (n, *shape)).astype(np.uint8)


def two_time(kind, frames, **options):
    """Correlate all pixels in one bin, from frames or events."""
    qmap = jk.xpcs.QMap(np.ones(SHAPE, int))
    if kind == "frames":
        return jk.xpcs.twotime(frames, qmap, **options)
    return jk.xpcs.twotime_events(*events_of(frames), N, qmap, **options)


def correlation(frames):
    """C [N, N] in float64, NaN in the rows and columns of frames without counts."""
    I = frames.reshape(len(frames), -1).astype(np.float64)  # noqa: E741
    total = I.sum(axis=1)
    total[total == 0] = np.nan
    return I.shape[1] * (I @ I.T) / np.outer(total, total)


def diagonals(C):
    """Means of the diagonals over what is a number, and how many these are."""
    parts = [np.diagonal(C, lag) for lag in range(len(C))]
    parts = [part[~np.isnan(part)] for part in parts]
    return (
        np.array([part.mean() if len(part) else np.nan for part in parts]),
        np.array([len(part) for part in parts]),
    )


def baseline(values, pairs):
    """Mean over lags from 1 on, each weighted by its pairs."""
    used = pairs[1:] > 0
    return np.average(values[1:][used], weights=pairs[1:][used])


@QUIET
@pytest.mark.parametrize("mean", [3, 0.5])
@pytest.mark.parametrize("kind", ["frames", "events"])
def test_the_baseline_is_one(backend, kind, mean):
    frames = photons(mean)
    c = two_time(kind, frames)
    expected = correlation(frames)
    np.testing.assert_allclose(c.c2[0], expected, 1e-12)
    g2, n_pairs = diagonals(expected)
    np.testing.assert_allclose(c.g2[:, 0], g2, 1e-12)
    np.testing.assert_array_equal(c.n_pairs[:, 0], n_pairs)
    for part in range(5):
        inside = slice(part * N // 5, (part + 1) * N // 5)
        g2, n_pairs = diagonals(expected[inside, inside])
        np.testing.assert_allclose(c.g2_parts[part, :, 0], g2, 1e-12)
        np.testing.assert_array_equal(c.n_pairs_parts[part, :, 0], n_pairs)
    empty = (frames.sum(axis=(1, 2)) == 0).sum()
    assert c.n_empty.tolist() == [empty]
    assert empty > 0.7 * N * np.exp(-mean)  # which the frames of this seed have
    # Values of C off the diagonal do not depend on each other: the light is constant.
    off = expected[np.triu_indices(N, 1)]
    off = off[~np.isnan(off)]
    error = off.std() / np.sqrt(len(off))
    assert abs(baseline(c.g2[:, 0], c.n_pairs[:, 0]) - 1) < 3 * error
    assert error < 0.05 * 3 / mean


@QUIET
@pytest.mark.parametrize("smoothing", ["static", "none"])
def test_the_baseline_of_several_static_bins(smoothing):
    """Which are without counts in most frames, while the dynamic bin has some."""
    static = np.repeat(np.arange(1, 6)[:, None], 3, 0).repeat(20, 1).reshape(SHAPE)
    frames = photons(3)
    c = jk.xpcs.twotime(frames, jk.xpcs.QMap(np.ones(SHAPE, int), static), smoothing)
    off = c.c2[0][np.triu_indices(N, 1)]
    off = off[~np.isnan(off)]
    assert len(off) == c.n_pairs[1:].sum()
    assert abs(off.mean() - 1) < 3 * off.std() / np.sqrt(len(off))


@QUIET
@pytest.mark.parametrize("form", [("t1t2", 7), ("age-lag", 5, 8, 3)])
@pytest.mark.parametrize("kind", ["frames", "events"])
def test_cells_are_means_of_defined_pairs(kind, form):
    frames = photons(1.5)
    c = two_time(kind, frames, form=form, bad_frames=[7, 8])
    expected = correlation(frames)
    expected[[7, 8]] = expected[:, [7, 8]] = np.nan
    t1, t2 = np.indices(expected.shape)
    place = (t1, t2) if form[0] == "t1t2" else ((t1 + t2) / 2, t2 - t1)
    used = (t1 <= t2) & ~np.isnan(expected)
    coordinates = [x[used] for x in place]
    sums, *_ = np.histogram2d(*coordinates, (c.t1, c.t2), weights=expected[used])
    pairs, *_ = np.histogram2d(*coordinates, (c.t1, c.t2))
    with np.errstate(invalid="ignore"):
        means = sums / pairs
    if form[0] == "t1t2":
        upper = np.triu_indices(7)
        np.testing.assert_allclose(c.c2[0][upper], means[upper], 1e-12)
        np.testing.assert_array_equal(c.c2_pairs[0][upper], pairs[upper])
    else:
        np.testing.assert_allclose(c.c2[0], means, 1e-12)
        np.testing.assert_array_equal(c.c2_pairs[0], pairs)
    assert c.n_empty[0] == (np.delete(frames, [7, 8], 0).sum(axis=(1, 2)) == 0).sum()


@pytest.mark.parametrize("mean", [3, 0.5])
@pytest.mark.parametrize("normalize", [False, True])
def test_multi_tau_divides_by_means_over_time(mean, normalize):
    """Frames without counts leave its baseline at 1, and none of them is left out."""
    qmap, frames = jk.xpcs.QMap(np.ones(SHAPE, int)), photons(mean, 10000)
    result = jk.xpcs.multitau(frames, qmap, normalize=normalize, parts=10)
    if not normalize:
        of_events = jk.xpcs.multitau_events(*events_of(frames), 10000, qmap)
        np.testing.assert_array_equal(of_events.g2, result.g2)
    baselines = [part.g2[:8, 0].mean() for part in result.parts]
    error = np.std(baselines, ddof=1) / np.sqrt(10)
    assert abs(np.mean(baselines) - 1) < 3 * error
    assert error < 0.02 * 3 / mean


def two_bins(empty, n=200):
    """Frames of two bins; the second one has no counts in `empty` frames."""
    frames = 1 + photons(30, n, (4, 6))
    frames[np.linspace(5, n - 5, empty).astype(int), :, 3:] = 0
    return frames, jk.xpcs.QMap(np.repeat([[1, 2]], 4, 0).repeat(3, 1), q=[0.01, 0.01], phi=[0, 90])


def test_the_warning_names_the_bin_and_the_frames(recwarn):
    frames, qmap = two_bins(2)
    assert jk.xpcs.twotime(frames, qmap).n_empty.tolist() == [0, 2]
    assert not recwarn.list  # the threshold is more than 1%
    frames, qmap = two_bins(3)
    with warns(jk.xpcs.CorrelationWarning, "bin 2", "1.5%", "3 of 200") as issued:
        c = jk.xpcs.twotime(frames, qmap)
    assert c.warnings == (str(issued[0].message),)
    assert issued[0].filename == __file__
    frames[:90] = 0
    with warns(jk.xpcs.CorrelationWarning, "bin 2", "46%", "92 of 200", "2 of 2 bins"):
        c = jk.xpcs.twotime(frames, qmap)
    assert c.n_empty.tolist() == [90, 92]
    # Bad frames are not counted as empty, and a sum of frames may have counts.
    recwarn.clear()
    lit = jk.xpcs.twotime(frames, qmap, begin=90, bad_frames=[195])
    assert lit.n_empty.tolist() == [0, 1]
    assert jk.xpcs.twotime(frames, qmap, begin=90, average=2).n_empty.tolist() == [0, 0]
    assert not recwarn.list
    frames[...] = 0
    with warns(jk.xpcs.CorrelationWarning, "bin 2", "100%", "200 of 200"):
        jk.xpcs.twotime(frames, qmap, bins=[2])


@QUIET
def test_each_bin_counts_its_own_pairs():
    frames, qmap = two_bins(20)
    c = jk.xpcs.twotime(frames, qmap, frame_time=1e-3)
    dark = np.isnan(np.diagonal(c.c2, axis1=1, axis2=2))
    assert dark.sum(axis=1).tolist() == [0, 20]
    assert c.n_pairs[0].tolist() == [200, 180]
    assert np.isnan(c.c2[1]).sum() == 200**2 - 180**2
    # Data of a fit keep these rows.
    data = c.fit_data(0.01).data
    np.testing.assert_array_equal(data, c.c2)
    # The diagonal is replaced by whichever neighbour is a number.
    corrected = np.diagonal(correct_diagonal(c.c2[1]))
    alone = np.convolve(dark[1], [1, 1, 1], "same") == 3
    np.testing.assert_array_equal(np.isnan(corrected), dark[1] | alone)


@QUIET
def test_files_keep_them(tmp_path):
    frames, qmap = two_bins(20)
    for form in ("full", ("t1t2", 20)):
        c = jk.xpcs.twotime(frames, qmap, form=form, frame_time=1e-3)
        path = jk.xpcs.write_results(tmp_path / "r.hdf", twotime=c)
        result = jk.xpcs.read_results(path, bins=[2]).twotime
        np.testing.assert_array_equal(result.c2[0], c.c2[1])
        np.testing.assert_array_equal(result.n_empty, [20])
        for name in ("n_pairs", "n_pairs_parts", "g2", "g2_parts"):
            np.testing.assert_array_equal(getattr(result, name), getattr(c, name)[..., [1]])
    c = jk.xpcs.twotime(frames, qmap, frame_time=1e-3)
    with jk.xpcs.ApsFile(jk.xpcs.write_results(tmp_path / "r.hdf", twotime=c)) as file:
        np.testing.assert_array_equal(file.read(1, 0, 200), c.c2[1])


@QUIET
def test_plots_draw_the_rest():
    frames, qmap = two_bins(6, 40)
    frames[:, :, :3] = 0  # a bin that never has counts
    c = jk.xpcs.twotime(frames, qmap)
    figure = correlation_plots.plot_twotime(c)
    maps = [axes.images[0] for axes in figure.axes if axes.images]
    curves = [axes.lines[0] for axes in figure.axes if axes.lines]
    assert len(maps) == len(curves) == 2
    for k in range(2):
        off = np.where(np.eye(40, dtype=bool), np.nan, c.c2[k])
        np.testing.assert_array_equal(maps[k].get_array().filled(np.nan), off)
        np.testing.assert_array_equal(curves[k].get_ydata(), c.g2[1:, k])
    # The scale of colours is that of the values of C.
    assert maps[1].get_clim() == tuple(np.nanpercentile(off, [1, 99]))


def test_the_command_lines_say_so_once(tmp_path, capsys):
    frames, qmap = two_bins(20)
    qmap.write(tmp_path / "qmap.h5")
    for name in ("one", "two"):
        np.save(tmp_path / f"{name}.npy", frames)
    files = [str(tmp_path / f"{name}.npy") for name in ("one", "two")]
    common = ["--qmap", str(tmp_path / "qmap.h5"), "--frame-time", "1", "--twotime", "--json"]
    command = ["xpcs", "correlate", files[0], "--output", str(tmp_path / "r.hdf"), *common]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["empty_frames"] == [0, 20]
    (warning,) = json.loads(out)["warnings"]
    assert err == f"warning: {warning}\n"
    assert jk.xpcs.read_results(tmp_path / "r.hdf").twotime.warnings == (warning,)
    assert "bin 2" in err
    assert "(20 of 200)" in err
    (tmp_path / "run").mkdir()
    np.save(tmp_path / "run" / "one.npy", frames)
    flags = ["--output", str(tmp_path / "w.hdf"), "--idle", "0.1", "--every", "0"]
    assert main(["xpcs", "watch", str(tmp_path / "run"), *flags, *common]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["warnings"] == [warning]
    assert err == f"warning: {warning}\n"
    # Of several files, and once more where they are finished.
    many = ["xpcs", "correlate", *files, "--output", str(tmp_path / "many"), *common]
    for _ in range(2):
        assert main(many) == 0
        err = capsys.readouterr().err
        assert err.count("\n") == 2  # a line for each file
        for file in files:
            assert f"{file}: bin 2 " in err
        assert err.count("(20 of 200)") == 2
    table = (tmp_path / "many" / "results.csv").read_text().splitlines()
    column = table[0].split(",").index("empty_frames")
    assert [line.split(",")[column] for line in table[1:]] == ["0", "20"] * 2


Q, RATE = 0.0054, 0.02


def speckle_correlations(mean, angles, seed, frames=N):
    """C [angles, n, n] of a bin of 300 pixels with `mean` photons a frame; NaN without photons."""
    draw = np.random.default_rng(seed)
    lags = np.abs(np.subtract.outer(np.arange(frames), np.arange(frames)))
    values, vectors = np.linalg.eigh(np.exp(-RATE * lags))
    root = vectors * np.sqrt(np.clip(values, 0, None))
    result = np.empty((angles, frames, frames))
    for angle in range(angles):
        field = root @ draw.standard_normal((2, frames, 300))
        counts = draw.poisson(mean / 300 * (field**2).mean(0))
        result[angle] = correlation(counts)
    return result


def fit_of(data):
    """`Static` with its rate alone free, as contrast and offset of each angle."""
    phi, t = np.linspace(0, 90, len(data)), np.arange(float(data.shape[1]))
    model = jk.xpcs.Static(jk.xpcs.Geometry(Q, None, 1.0, t, phi))
    start = {"D0": 2 * RATE / Q**2, "alpha": 0.0, "D_offset": 0.0}
    return jk.xpcs.fit(
        model,
        data,
        p0=start,
        hold=["alpha", "D_offset"],
        bounds={"D0": (1.0, 1e7)},
        streaming=jk.xpcs.StreamingOptions(symmetric=True),
        progress=False,
    )


NAMED = pytest.mark.filterwarnings("ignore:frames .* no finite number:RuntimeWarning")


def deviation(result):
    """How far the rate is off, in standard errors."""
    place = result.names.index("D0")
    return (result.popt[place] * Q**2 / 2 - RATE) / (result.perr[place] * Q**2 / 2)


@NAMED
def test_a_fit_leaves_a_frame_out_at_the_angles_where_it_is_empty():
    data = speckle_correlations(3, 2, 1)
    result = fit_of(data)
    assert result.success, result.message
    np.testing.assert_array_equal(result.keep, ~np.isnan(data).all(axis=2))
    assert abs(deviation(result)) < 3
    keep = result.keep[:, None] & result.keep[:, :, None] & ~np.eye(N, dtype=bool)
    assert result.count == keep.sum()
    # sigma is the scatter of C, of which most are 0; contrast and baseline count for little in it.
    scatter = [np.std(c2[counts]) for c2, counts in zip(data, keep, strict=True)]
    np.testing.assert_allclose(result.sigma, scatter, rtol=0.2)
    # A value that no counts explain.
    data[1, 20, 200] = data[1, 200, 20] = 1e5
    assert not fit_of(data).success


@pytest.mark.slow
@NAMED
@pytest.mark.parametrize(("mean", "angles"), [(3, 1), (1.5, 8)])
def test_fits_of_data_with_empty_frames(mean, angles):
    """Of six fits of the right model, all but one at most pass, with rates that agree."""
    fits = [fit_of(speckle_correlations(mean, angles, seed)) for seed in range(6)]
    assert sum(result.success for result in fits) >= 5, [result.message for result in fits]
    assert sum(abs(deviation(result)) < 3 for result in fits) >= 5


@QUIET
def test_old_files_without_these_numbers(tmp_path):
    """They store the pairs once for all bins, and no empty frames."""
    frames, qmap = two_bins(0)
    c = jk.xpcs.twotime(frames, qmap)
    path = jk.xpcs.write_results(tmp_path / "r.hdf", jk.xpcs.multitau(frames, qmap), c)
    with h5py.File(path, "r+") as file:
        group = file["xpcs/twotime"]
        for name in ("n_pairs", "n_pairs_segments", "n_empty"):
            del group[name]
        group["n_pairs"] = c.n_pairs[:, 0]
    result = jk.xpcs.read_results(path, bins=[2]).twotime
    np.testing.assert_array_equal(result.n_pairs, c.n_pairs[:, 1:])
    assert result.n_pairs_parts is None
    assert result.n_empty is None
    assert read_summary(path)[1:] == ({}, ())


@QUIET
def test_zeros_of_other_programs_are_read_as_nan(tmp_path):
    """boost-corr stores 0 in rows and columns of frames without counts."""
    frames, qmap = two_bins(20, 600)  # more frames than are read at a time
    c = jk.xpcs.twotime(frames, qmap, frame_time=1e-3)
    path = jk.xpcs.write_results(tmp_path / "r.hdf", twotime=c)
    with h5py.File(path, "r+") as file:
        for stored in file["xpcs/twotime/correlation_map"].values():
            stored[...] = np.nan_to_num(stored[()])
    np.testing.assert_array_equal(jk.xpcs.read_results(path).twotime.c2, c.c2)
    np.testing.assert_array_equal(jk.xpcs.load_aps(path).c2, c.c2)
    with jk.xpcs.ApsFile(path) as file:
        np.testing.assert_array_equal(file.read(1, 290, 560), c.c2[1, 290:560])
    # A diagonal that was removed says nothing of the frames.
    upper = np.triu(np.ones((8, 8)), 1)
    path = jk.xpcs.write_aps(tmp_path / "a.h5", (upper + upper.T)[None], q=0.01, phi=0)
    np.testing.assert_array_equal(jk.xpcs.load_aps(path).c2[0], upper + upper.T)
