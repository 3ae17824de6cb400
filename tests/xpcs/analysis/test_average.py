"""`xpcs average`: repeats of one measurement.

Would catch: a wrong weight, an outlier that is kept, a good repeat that is left out, and files that
do not belong together.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.xpcs.analysis.averaging import weighted_average


@pytest.fixture(scope="module")
def repeats(tmp_path_factory):
    """Six files of the same sample, of which the fourth is another sample."""
    folder = tmp_path_factory.mktemp("repeats")
    paths = []
    for k in range(6):
        rates = [2.0, 6.0] if k == 3 else [0.02, 0.06]
        frames = xpcs.simulate_frames(rates, n_frames=400, pixels=200, seed=k, progress=False)
        options = {"frame_time": 1e-3, "progress": False}
        result = xpcs.multitau(frames, frames.qmap, **options, overview=True)
        pairs = xpcs.twotime(frames, frames.qmap, **options) if k < 2 else None
        paths.append(xpcs.write_results(folder / f"run{k}.hdf", result, pairs))
    return paths


def test_the_average_is_that_of_numpy_without_the_outlier(repeats, tmp_path, capsys):
    output = tmp_path / "average.hdf"
    command = ["xpcs", "average", *map(str, repeats), "--output", str(output)]
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record["rejected"]) == [str(repeats[3])]
    kept = [xpcs.read_results(path).multitau for k, path in enumerate(repeats) if k != 3]
    result = xpcs.read_results(output).multitau
    errors = np.array([r.g2_err for r in kept])
    usable = (errors > 0).all(axis=0)  # not at delays of one pair of frames
    assert usable[:-2].all()
    weights = np.where(usable, errors, 1.0) ** -2
    expected = np.average([r.g2 for r in kept], axis=0, weights=weights)
    np.testing.assert_allclose(result.g2, expected, rtol=1e-12)
    expected_err = np.sum(weights, axis=0) ** -0.5
    np.testing.assert_allclose(result.g2_err[usable], expected_err[usable], rtol=1e-12)
    assert (result.n_frames, len(result.parts)) == (2000, 5)
    np.testing.assert_array_equal(result.parts[3].g2, kept[3].g2)
    images = np.mean([r.overview.mean_image for r in kept], axis=0)
    np.testing.assert_allclose(result.overview.mean_image, images)
    # The fit has errors from the scatter of the repeats.
    assert "5 parts" in result.fit_g2().error_method
    assert main(command) == 2  # the file exists
    assert main([*command, "--force", "--keep-outliers"]) == 0
    assert len(xpcs.read_results(output).multitau.parts) == 6


def test_good_repeats_are_kept(repeats):
    averaged = xpcs.average_results([p for k, p in enumerate(repeats) if k != 3])
    assert averaged.used.all()
    few = xpcs.average_results(repeats[2:4])
    assert few.used.all()
    assert np.isnan(few.scores).all()


def test_files_that_do_not_belong_together(repeats, tmp_path):
    one = xpcs.read_results(repeats[0]).multitau
    other = dataclasses.replace(one, frame_time=2e-3, tau=one.tau * 2)
    path = xpcs.write_results(tmp_path / "slow.hdf", other)
    with pytest.raises(ValueError, match=r"slow.hdf differs from .*run0.hdf in frame_time"):
        xpcs.average_results([repeats[0], path])
    with pytest.raises(ValueError, match="at least 2 repeats"):
        xpcs.average_results(repeats[:1])


def test_a_bin_without_counts_in_one_repeat():
    """It was NaN in the average."""
    curves = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])
    errors = np.array([[0.1, 0.2, np.nan], [0.2, np.nan, np.nan]])
    average, error = weighted_average(curves, errors)
    np.testing.assert_allclose(average, [(100 * 1 + 25 * 3) / 125, 2.0, np.nan])
    np.testing.assert_allclose(error, [125**-0.5, 0.2, np.nan])
