"""`python -m jaxkern xpcs fit-g2`: a file of results to a table, plots and a power law, in process.

Would catch: an option that does not reach the fit, groups of the file that are not used, an error
that is a traceback.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from jaxkern import xpcs
from jaxkern.cli import main

Q = np.array([0.01, 0.015, 0.02])
RATES = 1e-3 * 2e5 * Q**2  # in units of the time between frames, 1 ms


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit_g2")
    qmap = xpcs.QMap(np.repeat([[1], [2], [3]], 300, 1), q=Q, phi=np.zeros(3))
    frames = xpcs.simulate_frames(
        RATES, n_frames=2000, qmap=qmap, photons=2.0, seed=1, progress=False
    )
    for name, options in (("groups", {"groups": 20, "frame_time": 1e-3}), ("plain", {})):
        result = xpcs.multitau(frames, qmap, overview=True, progress=False, **options)
        xpcs.write_results(folder / f"{name}.hdf", result)
        if name == "plain":
            summed = xpcs.multitau(frames, qmap, stride=2, average=2, overview=True, progress=False)
            xpcs.write_results(folder / "summed.hdf", summed)
        np.save(folder / f"{name}.npy", np.array(result.g2_groups, np.float64))
    return folder


def test_table_plots_and_power_law(folder, tmp_path, capsys):
    output, plots = tmp_path / "fit.csv", tmp_path / "plots"
    command = ["xpcs", "fit-g2", str(folder / "groups.hdf"), "--bounds", "baseline=0.9,1.1"]
    command += ["--output", str(output), "--plots", str(plots)]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert captured.err == ""
    assert record["errors"] == "jackknife over 20 groups of pixels"
    assert [row["q"] for row in record["bins"]] == Q.tolist()
    result = xpcs.read_results(folder / "groups.hdf").multitau
    np.testing.assert_array_equal(result.g2_groups, np.load(folder / "groups.npy"))
    fit = result.fit_g2(bounds={"baseline": (0.9, 1.1)})
    assert [row["rate"] for row in record["bins"]] == fit.params["rate"].tolist()
    for row, rate in zip(record["bins"], 1e3 * RATES, strict=True):
        assert abs(row["rate"] - rate) < 4 * row["rate_err"] < rate
    assert record["tau_q"]["exponent"] == fit.tau_q().exponent
    assert abs(record["tau_q"]["exponent"] - 2) < 0.5
    assert len(output.read_text().splitlines()) == 4
    assert {path.name for path in plots.iterdir()} == {"g2-fit.png", "tau-q.png"}
    for kept in (output, plots / "g2-fit.png", plots / "tau-q.png"):
        assert main(command) == 2
        assert f"{kept} exists already; --force" in capsys.readouterr().err
        kept.unlink()


def test_shared_parameters_and_a_time_between_frames(folder, capsys):
    command = ["xpcs", "fit-g2", str(folder / "plain.hdf"), "--frame-time", "0.001"]
    assert main([*command, "--share", "D"]) == 0
    captured = capsys.readouterr()
    assert "3 of 3" in captured.out
    result = xpcs.read_results(folder / "groups.hdf").multitau
    joint = xpcs.fit_g2(result.tau, result.g2, result.g2_err, q=Q, share=["D"])
    value, error = joint.params["D"][0], joint.errors["D"][0]
    assert f"rate = D q^2 in all bins: D {value:.5g} +/- {error:.2g}\n" in captured.out
    assert "--groups 32" in captured.err
    command[2] = str(folder / "summed.hdf")  # sums of 2 frames of every second one
    assert main([*command, "--bounds", "baseline=1,1", "--json"]) == 0
    for row, rate in zip(json.loads(capsys.readouterr().out)["bins"], 1e3 * RATES, strict=True):
        assert abs(row["rate"] / rate - 1) < 0.5


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ([], ["time between frames", "--frame-time"]),
        (["--frame-time", "0"], ["--frame-time", "> 0"]),
        (["--frame-time", "1", "--bounds", "rate=1"], ["--bounds", "'rate=1'"]),
        (["--frame-time", "1", "--share", "contrst"], ["did you mean 'contrast'"]),
    ],
)
def test_invalid_options_are_one_line(folder, options, facts, capsys):
    assert main(["xpcs", "fit-g2", str(folder / "plain.hdf"), *options]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert all(fact in text for fact in facts), text
