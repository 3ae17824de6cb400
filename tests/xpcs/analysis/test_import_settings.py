"""Imported settings of homodyne, xpcsjax and heterodyne.

Would catch: a key that is dropped without a word, another loss or sigma than theirs, parameters
under their old names, a file whose import cannot be fitted.
"""

from __future__ import annotations

import importlib.metadata
import json

import pytest
import yaml

from jaxkern.cli import main
from jaxkern.xpcs.analysis.import_settings import import_settings
from jaxkern.xpcs.analysis.settings import load_config, parse_yaml

COMMON = {
    "metadata": {"description": "x"},
    "experimental_data": {"data_folder_path": ".", "data_file_name": "run.hdf"},
    "analyzer_parameters": {
        "dt": 0.1,
        "start_frame": 1,
        "end_frame": 1000,
        "scattering": {"wavevector_q": 0.0054},
        "geometry": {"stator_rotor_gap": 2000000},
    },
    "phi_filtering": {
        "enabled": True,
        "target_ranges": [{"min_angle": -10, "max_angle": 130, "description": "x"}],
    },
    "optimization": {
        "method": "nlsq",
        "nlsq": {
            "max_iterations": 500,
            "tolerance": 1e-9,
            "anti_degeneracy": {
                "per_angle_mode": "individual",
                "shear_weighting": {"enable": True},
            },
            "multi_start": {"enable": True, "n_starts": 2, "seed": 7},
        },
    },
}
BOUNDS = [
    {"name": "D0", "min": 10.0, "max": 1e5, "unit": "A^2/s", "prior_mu": 1e3},
    {"name": "contrast", "min": 0.0, "max": 0.9},
]
FLOW = ["D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0"]
OLD_FLOW = ["D0", "alpha", "D_offset", "gamma0", "beta", "gamma_offset", "phi0"]
START = [800.0, 0.4, 10.0, 0.003, 0.1, 0.0, 5.0]


def _initial(names, values, **more):
    return {"initial_parameters": {"parameter_names": names, "values": values, **more}}


def _nlsq(mode, **sections):
    return COMMON | {"analysis_mode": mode, "parameter_space": {"bounds": BOUNDS}} | sections


# One component moves; the fractions are fixed, so that small data determine the parameters.
GROUPS = {
    "reference": {"D0_ref": {"value": 300.0, "min": 1.0, "max": 1e5, "vary": True}},
    "velocity": {"v0": {"value": 900.0, "min": 1.0, "max": 1e4, "vary": True},
                 "beta": {"value": 0.0, "min": -2.0, "max": 2.0, "vary": False}},
    "angle": {"phi0": {"value": 0.0, "min": -10.0, "max": 10.0, "vary": False}},
}  # fmt: skip
TWO = {"f0": 0.4, "f1": 0.0, "f2": 0.0, "f3": 0.0, "v_offset": 0.0, "D_offset_ref": 0.0,
       "alpha_ref": 0.0, "D0_sample": 500.0, "alpha_sample": 0.0,
       "D_offset_sample": 0.0}  # fmt: skip
OLD = {
    "optimization_config": {
        "_note": "x",
        "angle_filtering": COMMON["phi_filtering"],
        "classical_optimization": {"methods": ["Nelder-Mead"], "_note": "x"},
    },
    "analyzer_parameters": {
        "temporal": {"dt": 0.1, "start_frame": 1, "end_frame": -1},
        "scattering": {"wavevector_q": 0.0054},
        "geometry": {"stator_rotor_gap": 2000000},
    },
    "experimental_data": COMMON["experimental_data"] | {"data_type": "float64"},
    "analysis_settings": {"static_mode": False, "static_submode": None},
}
SEEN = ["D0", "alpha", "gamma0", "beta", "phi0"]
FLAT = {"gamma_dot_t_offset": 0, "D_offset": 10}
FIXED = {"fixed_parameters": {"D_offset": 10.0}}
# name: (old settings, true values in the names of this package)
CASES = {
    "static_isotropic": (
        _nlsq("static_isotropic", **_initial(FLOW[:3], START[:3], **FIXED)),
        {"D0": 1000.0, "alpha": 0.3, "D_offset": 10.0},
    ),
    "static_anisotropic": (
        _nlsq("static_anisotropic", **_initial(FLOW[:3], START[:3], active_parameters=FLOW[:2])),
        {"D0": 1000.0, "alpha": 0.3, "D_offset": 10.0},
    ),
    "laminar_flow": (
        _nlsq("laminar_flow", **_initial(FLOW, START, fixed_parameters=FLAT)),
        {"D0": 900.0, "alpha": 0.3, "gamma_dot_t0": 0.002, "beta": 0.2, "phi0": 3.0},
    ),
    "two_component": (
        COMMON | {"analysis_mode": "two_component", "parameters": GROUPS}
        | {"initial_parameters": {"fixed_parameters": TWO}},
        {"D0_ref": 400.0, "v0": 1000.0, "v_beta": 0.0, **TWO},
    ),
    "homodyne_analysis": (
        OLD | _initial(OLD_FLOW, START, active_parameters=SEEN),
        {"D0": 900.0, "alpha": 0.3, "gamma_dot_t0": 0.002, "beta": 0.2, "phi0": 3.0},
    ),
}  # fmt: skip


def _import(tmp_path, tree, *more):
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(tree))
    old, new = str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml")
    return main(["xpcs", "import-config", old, new, *more]), new


@pytest.mark.parametrize("case", CASES)
def test_imported_settings_find_the_truth(case, tmp_path, capsys):
    tree, truth = CASES[case]
    code, new = _import(tmp_path, tree, "--json")
    keys = json.loads(capsys.readouterr().out)["keys"]
    assert code == 0, keys
    options = ["--config", new, "--output-dir", str(tmp_path / "out"), "--quiet"]
    simulation = {"frames": 64, "phi": [0, 45, 90, 120, 200], "q": 0.0054, "noise": 0.01}
    for name, value in {**simulation, "parameters": truth}.items():
        options += ["--set", f"simulation.{name}={json.dumps(value)}"]
    assert main(["xpcs", "simulate", *options]) == 0
    code = main(["xpcs", "fit", *options, "--no-plots"])
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert code == 0, result["message"]
    assert result["geometry"]["phi"] == [0, 45, 90, 120]
    for name, item in result["parameters"].items():
        if name in truth and not item["held"]:
            assert abs(item["value"] - truth[name]) < 5 * item["error"], (name, item)
    held = {name for name, item in result["parameters"].items() if item["held"]}
    assert len(held) == {"two_component": 12, "laminar_flow": 2, "homodyne_analysis": 2}.get(
        case, 1
    )


def test_their_numbers_are_kept(tmp_path):
    _, new = _import(tmp_path, CASES["laminar_flow"][0])
    config = load_config(new)
    how = config.optimization
    assert (how.loss, how.f_scale, config.data_files.sigma) == ("soft_l1", 1.0, 0.01)
    assert (how.max_nfev, how.ftol, how.multistart.starts, how.multistart.seed) == (500, 1e-9, 2, 7)
    assert (config.experiment.dt_override, config.analysis.frames.end) == (True, 1000)
    bounds = config.initial_parameters.bounds
    assert bounds == {"D0": (10.0, 1e5), "contrast": (0.0, 0.9)}
    # homodyne-analysis minimizes squares, with contrast and baseline of each angle.
    old, _ = import_settings(CASES["homodyne_analysis"][0])
    assert (old.optimization.loss, old.data_files.sigma, old.scaling) == (
        "linear",
        None,
        "individual",
    )
    assert old.initial_parameters.values["gamma_dot_t0"] == 0.003


@pytest.mark.parametrize(
    ("mode", "scaling"),
    [("fourier", "fourier"), ("averaged", "constant"), ("constant", "fixed"), ("auto", "auto")],
)
def test_modes_of_contrast_and_baseline(mode, scaling):
    """Their "constant" is not fitted, and "averaged" is one pair."""
    series = {"per_angle_mode": mode, "fourier_order": 3, "fourier_auto_threshold": 6}
    optimization = {"method": "nlsq", "nlsq": {"anti_degeneracy": series}}
    config, keys = import_settings(_nlsq("laminar_flow", optimization=optimization))
    assert config is not None, [key for key in keys if key.outcome == "error"]
    assert (config.scaling, config.fourier_order) == (scaling, 3)


def _names(tree, prefix=""):
    for name, value in tree.items():
        if str(name).startswith("_"):
            continue
        if isinstance(value, dict) and value and name != "fixed_parameters":
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("case", CASES)
def test_every_key_has_an_outcome(case):
    tree, _ = CASES[case]
    _, keys = import_settings(tree)
    assert set(_names(tree)) <= {key.key for key in keys}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": {"directory": "x"}}, "outputs.directory: unknown key"),
        ({"analysis_mode": "sheared"}, "analysis_mode: expected one of static"),
        ({"optimization": {"method": "mcmc"}}, "optimization.method: expected nlsq, got 'mcmc'"),
        ({"phi_filtering": {"target_ranges": [{"low": 1}]}}, "expected min_angle and max_angle"),
        (_initial(["D0", "D9"], [1.0, 2.0]), "got 'D9'"),
        (_initial(["D0"], [1.0, 2.0]), "expected 1 numbers, got 2"),
        (_initial(["D0", "D0"], [1.0, 2.0]), "expected different names, got D0, D0"),
        (_initial([["D0"]], [1.0]), "expected parameters D0, alpha, D_offset, got ['D0']"),
        ({"initial_parameters": {"active_parameters": []}}, "expected at least one name"),
        ({"initial_parameters": {"fixed_parameters": {"offset": 1.0}}}, "or none, got offset"),
        ({"parameter_space": {"bounds": [{"name": "D0", "lo": 1}]}}, "expected name, min and max"),
        ({"analyzer_parameters": {"frame_step": 2}}, "expected 1, got 2"),
    ],
)
def test_a_key_without_an_equivalent_is_an_error(change, message, tmp_path, capsys):
    code, _ = _import(tmp_path, COMMON | {"analysis_mode": "static"} | change)
    assert (code, (tmp_path / "new.yaml").exists()) == (1, False)
    assert message in capsys.readouterr().err


PACKAGES = {"xpcsjax": 4, "homodyne-analysis": 3}


def test_words_of_their_programs():
    """Fixed contrasts were imported as parameters to hold, which fits refuse."""
    fixed = {"initial_parameters": {"fixed_parameters": {"contrast": 0.3, "offset": 1.0}}}
    names = {"parameter_names": ["gamma_dot_0", "gamma_dot_offset", "phi_0"], "values": [1, 2, 3]}
    flow = COMMON | {"analysis_mode": "laminar_flow"}
    config, _ = import_settings(flow | fixed)
    assert (config.scaling, config.initial_parameters.hold) == ("fixed", ())
    assert (config.initial_parameters.contrast, config.initial_parameters.offset) == (0.3, 1.0)
    config, _ = import_settings(flow | {"initial_parameters": names})
    expected = {"gamma_dot_t0": 1, "gamma_dot_t_offset": 2, "phi0": 3}
    assert config.initial_parameters.values == expected
    static = COMMON | {"analysis_mode": "static", "optimization": {"nlsq": {"loss": None}}}
    config, _ = import_settings(static)
    assert (config.scaling, config.optimization.loss) == ("individual", "soft_l1")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_templates_of_installed_packages(package):
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    files = [f for f in files if f.suffix in (".yaml", ".json") and "config" in f.parts]
    # template.json of homodyne-analysis is a form with CHANGE_ME in the place of values.
    files = [f for f in files if f.name != "template.json"]
    assert len(files) == PACKAGES[package]
    for file in files:
        tree = parse_yaml(file.read_text("utf-8"), file.name)
        config, keys = import_settings(tree)
        assert config is not None, [key for key in keys if key.outcome == "error"]
        assert set(_names(tree)) <= {key.key for key in keys}
