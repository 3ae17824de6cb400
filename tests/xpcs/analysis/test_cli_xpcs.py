"""`python -m jaxkern xpcs`: simulate, fit and plot from one YAML file, through real APS files.

Would catch: a setting or flag that does not reach the fit, parameters that are not recovered, a
result that cannot be plotted again, an error that is a traceback.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import jax
import numpy as np
import pytest

from jaxkern import xpcs
from jaxkern.cli import main
from jaxkern.core import memory

SETTINGS = """\
data_files: {file: run.h5}
analysis: {model: static}
simulation:
  frames: 90
  phi: [0.0, 60.0, 120.0]
  parameters: {D0: 900.0, alpha: 0.3, D_offset: 20.0}
  noise: 0.01
initial_parameters: {values: {D0: 700.0, alpha: 0.2}, hold: [D_offset]}
scaling: individual
optimization: {streaming: {enable_checkpoints: true, checkpoint_frequency: 2}}
output: {fitted_c2: true, nlsq_files: true, text_columns: true}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xpcs")
    (folder / "config.yaml").write_text(SETTINGS)
    assert run(folder, "simulate") == 0
    assert run(folder, "fit") == 0
    return folder


def run(folder, action, *more):
    settings, output = str(folder / "config.yaml"), str(folder / "results")
    return main(["xpcs", action, "--config", settings, "--output-dir", output, "--quiet", *more])


@pytest.mark.parametrize("layout", ["aps", "aps-u"])
def test_simulate_writes_a_file_of_either_layout(folder, layout, tmp_path):
    path = tmp_path / "other.h5"
    assert run(folder, "simulate", "--layout", layout, "--data", str(path)) == 0
    with h5py.File(path) as file:
        name = "exchange/C2T_all" if layout == "aps" else "xpcs/twotime/correlation_map"
        assert len(file[name]) == 3


def test_the_truth_is_found(folder):
    truth = json.loads((folder / "results" / "truth.json").read_text())
    result = json.loads((folder / "results" / "results.json").read_text())["parameters"]
    for name in ("D0", "alpha"):
        off = (result[name]["value"] - truth["parameters"][name]) / result[name]["error"]
        assert abs(off) < 4, (name, off)
    # The held parameter stays at its start, the default of the model.
    assert result.get("D_offset", {"value": 10.0})["value"] == 10.0


def test_numbers_and_pictures_are_written(folder):
    output = folder / "results"
    arrays = np.load(output / "results.npz")
    assert arrays["popt"].shape == arrays["names"].shape
    for name in ("maps", "cuts", "residuals", "parameters", "convergence"):
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_files_of_other_programs(folder):
    output = folder / "results"
    arrays = np.load(output / "fitted_data.npz")
    stored = xpcs.correct_diagonal(xpcs.load_aps(folder / "run.h5").c2)
    np.testing.assert_allclose(arrays["c2_exp"], stored, rtol=1e-6)
    fitted = xpcs.load_aps(output / "fitted.h5").c2
    np.testing.assert_allclose(arrays["c2_theoretical_scaled"], fitted, rtol=1e-6)
    contrast, offset = arrays["per_angle_scaling"].T[:, :, None, None]
    raw = offset + contrast * arrays["c2_theoretical_raw"]
    np.testing.assert_allclose(raw, arrays["c2_theoretical_scaled"], rtol=1e-12)
    residual = arrays["c2_exp"] - arrays["c2_theoretical_scaled"]
    np.testing.assert_array_equal(arrays["residuals"], residual)
    np.testing.assert_allclose(arrays["residuals_normalized"][:, 0, 1:].std(), 1.0, atol=0.15)
    theirs = json.loads((output / "nlsq_result.json").read_text())
    ours = json.loads((output / "results.json").read_text())
    assert theirs["metadata"]["reduced_chi_squared"] == ours["reduced_chi2"]
    assert theirs["parameters"]["D0"]["uncertainty"] == ours["parameters"]["D0"]["error"]
    lines = (output / "parameters.txt").read_text().splitlines()
    assert lines[0] == "name\tvalue\terror\tunit"
    assert f"{ours['parameters']['D0']['value']:.9g}" in "".join(lines)
    cuts = np.genfromtxt(output / "cuts.txt", names=True, delimiter="\t")
    assert len(cuts.dtype.names) == 1 + 3 * 3
    np.testing.assert_allclose(cuts["lag_s"], 0.1 * np.arange(1, 90))
    for lag in (1, 40, 89):
        for name, array in (("data_2", "c2_exp"), ("residual_2", "residuals")):
            mean = np.mean([arrays[array][2, i, i + lag] for i in range(90 - lag)])
            np.testing.assert_allclose(cuts[name][lag - 1], mean, rtol=1e-6, atol=1e-9)


def test_the_fitted_g2_is_saved(folder):
    arrays = np.load(folder / "results" / "results.npz")
    saved = xpcs.load_aps(folder / "results" / "fitted.h5")
    t = 0.1 * np.arange(90)
    model = xpcs.Static(xpcs.Geometry(q=0.0054, gap=None, dt=0.1, t=t, phi=saved.phi))
    with jax.enable_x64(True):
        expected = xpcs.g2(model, arrays["physics"], arrays["contrast"], arrays["offset"])
    np.testing.assert_allclose(saved.c2, expected, rtol=1e-6)
    assert saved.phi.tolist() == [0.0, 60.0, 120.0]


def test_plot_draws_an_earlier_result(folder):
    (folder / "results" / "maps.png").unlink()
    assert run(folder, "plot") == 0
    assert (folder / "results" / "maps.png").exists()


def test_json_is_all_that_is_printed(folder, tmp_path, capsys):
    def printed(*arguments):
        capsys.readouterr()
        assert run(folder, *arguments) == 0
        return json.loads(capsys.readouterr().out)

    fitted = printed("fit", "--json", "--no-plots")
    assert fitted["success"] is True
    assert fitted["parameters"]["D0"]["error"] > 0
    assert str(folder / "results" / "fitted.h5") in fitted["files"]
    for result in (fitted, printed("plot", "--json")):
        assert result["files"]
        assert all(Path(path).exists() for path in result["files"])
    made = printed("simulate", "--json", "--data", str(tmp_path / "new.h5"))
    assert made["truth"]["parameters"]["D0"] > 0
    assert str(tmp_path / "new.h5") in made["files"]


def test_a_fit_of_the_wrong_model_exits_with_1_and_says_why(folder, tmp_path, capsys):
    """Also with --quiet, and with --json, which still prints nothing else."""
    elsewhere = ["--output-dir", str(tmp_path), "--no-plots"]
    wrong = ["--set", "initial_parameters.bounds={alpha: [-1.0, -0.5]}"]
    wrong += ["--set", "initial_parameters.values={D0: 700.0, alpha: -0.6}"]
    assert run(folder, "fit", *elsewhere, *wrong) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "warning: alpha is at its upper bound -0.5" in printed.err
    assert "the residuals are not noise" in printed.err
    assert run(folder, "fit", *elsewhere, *wrong, "--json") == 1
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record["success"] is False
    assert "the residuals are not noise" in record["message"]
    assert "the residuals are not noise" in printed.err


def test_scaling_is_individual_unless_told(folder, tmp_path):
    """With angles whose contrasts differ by 10%, one for all would be off by many errors."""
    text = SETTINGS.replace("scaling: individual\n", "").replace("run.h5", "other.h5")
    text = text.replace("  noise: 0.01", "  noise: 0.003\n  contrast: [0.27, 0.3, 0.33]")
    (tmp_path / "config.yaml").write_text(text)
    assert run(tmp_path, "simulate") == 0
    assert run(tmp_path, "fit", "--no-plots") == 0
    result = json.loads((tmp_path / "results" / "results.json").read_text())["parameters"]
    assert "contrast[2]" in result
    assert abs(result["D0"]["value"] - 900.0) < 4 * result["D0"]["error"]
    assert run(tmp_path, "fit", "--no-plots", "--scaling", "auto") == 1
    result = json.loads((tmp_path / "results" / "results.json").read_text())
    assert "contrast" in result["parameters"]
    assert "the residuals are not noise" in result["message"]


def test_a_path_of_set_is_relative_to_where_the_command_runs(folder, tmp_path, monkeypatch):
    shutil.copy(folder / "run.h5", tmp_path / "elsewhere.h5")
    monkeypatch.chdir(tmp_path)
    more = ["--no-plots", "--output-dir", "out", "--set", "data_files.file=elsewhere.h5"]
    assert run(folder, "fit", *more) == 0
    assert (tmp_path / "out" / "results.json").exists()
    monkeypatch.setenv("HOME", str(tmp_path))
    more[-1] = "data_files.file=~/elsewhere.h5"
    monkeypatch.chdir(folder)
    assert run(folder, "fit", *more, "--output-dir", str(tmp_path / "out")) == 0


def test_averages_over_cells_are_no_data_of_a_fit(folder, tmp_path, capsys):
    """As of `correlate --twotime t1t2:N`: the message says what to run instead."""
    frames = xpcs.simulate_frames([0.1], n_frames=24, pixels=40, photons=3.0)
    pairs = xpcs.twotime(frames, frames.qmap, form=("t1t2", 6), frame_time=0.1)
    path = xpcs.write_results(tmp_path / "cells.hdf", None, pairs)
    assert run(folder, "fit", "--data", str(path), "--output-dir", str(tmp_path)) == 2
    captured = capsys.readouterr().err
    assert "--twotime full" in captured
    assert "g2 alone" not in captured


def test_config_writes_a_template_that_loads(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    assert main(["xpcs", "config", str(path)]) == 0
    assert "# seconds between frames" in path.read_text()
    assert main(["xpcs", "config", str(path)]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--set", "optimization.streaming.chekpoint_dir=x"], "checkpoint_dir"),
        (["--set", "scaling=constantly"], "constant"),
        (["--data", "nowhere.h5"], "nowhere.h5"),
        (["--q", "0.1"], "0.0054"),
        (["--q", "["], "data_files.q is '[', which is not valid YAML"),
        (["--set", "scaling=["], "scaling is '[', which is not valid YAML"),
        (["--set", "initial_parameters.values={D1: 3}"], "D0"),
    ],
)
def test_errors_are_one_line_that_names_what_is_wrong(folder, flags, names, capsys):
    assert run(folder, "fit", *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert names in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", ["results.json", "results.npz"])
@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff\xfe\x00"])
def test_a_damaged_result_is_told(folder, tmp_path, capsys, name, content):
    results = tmp_path / "results"
    shutil.copytree(folder / "results", results)
    (results / name).write_bytes(content)
    assert run(folder, "plot", "--output-dir", str(results)) == 2
    assert f"error: {results / name} cannot be read as a result" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (99_999_999, "3 angles and 99,999,999 frames need a file of 1.2e+08 GB"),
        (10**30, "GB free"),
        (1, "simulation.frames"),
        (-5, "simulation.frames"),
    ],
)
def test_frames_that_nothing_holds(folder, frames, words, tmp_path, capsys):
    new = ["--data", str(tmp_path / "new.h5"), "--set", f"simulation.frames={frames}"]
    assert run(folder, "simulate", *new) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_more_frames_than_memory_holds(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 16 * 20**2 - 1)
    t = 0.1 * np.arange(20)
    model = xpcs.Static(xpcs.Geometry(q=0.01, gap=None, dt=0.1, t=t, phi=[0.0]))
    with pytest.raises(MemoryError, match=r"1.*angles.*20.*frames.*6\.4e-06"):
        xpcs.simulate(model, model.defaults, 0.3, 1.0)
