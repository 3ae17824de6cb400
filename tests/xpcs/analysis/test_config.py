"""The YAML settings: what is accepted, what is refused and with which words, the template.

Would catch: a mistyped key that is ignored, `1e-8` read as text, a template that cannot be read
back, a setting without a comment.
"""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from jaxkern.xpcs.analysis import config as cf
from jaxkern.xpcs.analysis.schema import Optimization

TEXT = """
data_files: {file: run7.h5, q: 0.0054, layout: aps-u}
analysis:
  model: laminar_flow
  phi_filtering: {enabled: true, ranges: [[-10, 10], [170.5, 190]]}
  frames: {start: 5, bad: [3, [7, 9]]}
initial_parameters:
  values: {D0: 1e4, alpha: -0.5}
  bounds: {D0: [100, 1e5]}
scaling: individual
optimization:
  ftol: 1e-10
  streaming: {enable_checkpoints: true, checkpoint_frequency: 4, checkpoint_dir: /scratch/run7}
"""


def _load(tmp_path, text, **overrides):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return cf.load_config(path, {k.replace("__", "."): v for k, v in overrides.items()})


def test_values_land_where_they_are_named(tmp_path):
    config = _load(tmp_path, TEXT)
    assert config.data_files.file == "run7.h5"
    assert config.analysis.phi_filtering.ranges == ((-10.0, 10.0), (170.5, 190.0))
    assert config.analysis.frames.bad == (3, (7, 9))
    assert config.initial_parameters.values == {"D0": 1e4, "alpha": -0.5}
    assert config.initial_parameters.bounds == {"D0": (100.0, 1e5)}
    assert config.optimization.ftol == 1e-10
    assert config.optimization.streaming.enable_checkpoints is True
    assert config.optimization.streaming.checkpoint_frequency == 4
    assert config.optimization.streaming.checkpoint_dir == "/scratch/run7"
    assert config.optimization.xtol == Optimization().xtol


def test_flags_replace_the_file(tmp_path):
    config = _load(tmp_path, TEXT, optimization__loss="huber", scaling="fixed")
    assert (config.optimization.loss, config.scaling) == ("huber", "fixed")
    assert config.optimization.ftol == 1e-10
    with pytest.raises(cf.ConfigError, match=r"unknown key optimization.los; did you mean loss\?"):
        _load(tmp_path, TEXT, optimization__los="huber")
    with pytest.raises(cf.ConfigError, match="scaling has no settings of its own"):
        _load(tmp_path, TEXT, scaling__mode="fixed")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optimisation: {}", r"unknown key optimisation; did you mean optimization\?"),
        (
            "optimization: {streaming: {enable_checkpoint: true}}",
            r"unknown key optimization.streaming.enable_checkpoint; did you mean "
            r"enable_checkpoints\?",
        ),
        ("dt: 0.1", r"unknown key dt; did you mean experiment.dt\?"),
        ("zzz: 0.1", "unknown key zzz; there are data_files, experiment, analysis"),
        ("scaling: both", "scaling is 'both'; wanted one of auto, individual, constant, fixed"),
        ("experiment: {dt: fast}", "experiment.dt is 'fast'; wanted a number or null"),
        ("experiment: {dt: .nan}", "experiment.dt is nan; wanted a number"),
        ("experiment: {dt: true}", "experiment.dt is True; wanted a number"),
        ("experiment: 3", "experiment: 3; wanted keys with values"),
        ("analysis: {frames: {start: 1.5}}", "analysis.frames.start is 1.5; wanted a whole number"),
        ("analysis: {frames: {end: x}}", "frames.end is 'x'; wanted a whole number or null"),
        (
            "analysis: {phi_filtering: {ranges: [[1, 2, 3]]}}",
            r"ranges\[0\] is \[1, 2, 3\]; wanted a pair \[a number, a number\]",
        ),
        (
            "optimization: {streaming: {enable_checkpoints: 1}}",
            "enable_checkpoints is 1; wanted true or false",
        ),
        ("analysis: {shear_power: 3}", "shear_power is 3; wanted one of 2, 4"),
        ("simulation: {contrast: [0.1, x]}", r"simulation.contrast is .*wanted a number or a list"),
        ("- 1", r"the settings: \[1\]; wanted keys"),
        ("a: [", "is not valid YAML"),
        (
            "optimization: {multistart: 8}",
            r"optimization.multistart: 8; wanted keys with values: starts, seed; such as "
            r"\{starts: 8\}",
        ),
        (
            "initial_parameters: {hold: D0}",
            r"initial_parameters.hold is 'D0'; wanted a list, each of it text, such as \['D0'\]",
        ),
        ("analysis: {frames: {bad: 7}}", r"frames.bad is 7; wanted a list, .*, such as \[7\]"),
        ("a: " + "[" * 2_000, "config.yaml is nested far deeper than settings are"),
        ("experiment: {dt: 2001-99-99}", "is not valid YAML: month must be in"),
        ("experiment: {dt: 0x" + "f" * 9000 + "}", "dt is a number of thousands of digits; wanted"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, words):
    with pytest.raises(cf.ConfigError, match=words) as caught:
        _load(tmp_path, text)
    assert "config.yaml" in str(caught.value)


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes("# Settings\n# für é\nscaling: fixed\n".encode("latin-1"))
    with pytest.raises(cf.ConfigError, match=r"config.yaml is not UTF-8 text: byte 0xfc in line 2"):
        cf.load_config(path)
    path.write_bytes("scaling: fixed".encode("utf-16"))
    with pytest.raises(cf.ConfigError, match="byte 0xff in line 1; save it as UTF-8"):
        cf.load_config(path)
    path.write_text("# für é\nscaling: fixed\n", encoding="utf-8-sig")
    assert cf.load_config(path).scaling == "fixed"


def test_aliases_that_nest_without_end_are_shown_in_short(tmp_path):
    """Ten levels of ten aliases each: repr would write ten billion letters."""
    levels = "\n".join(f"  - &x{k} [{', '.join([f'*x{k - 1}'] * 10)}]" for k in range(1, 11))
    with pytest.raises(cf.ConfigError, match=r"scaling is .*wanted one of") as caught:
        _load(tmp_path, f"scaling:\n  - &x0 lol\n{levels}\n")
    assert len(str(caught.value)) < 300


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="`python -m jaxkern xpcs config` writes one"):
        cf.load_config(tmp_path / "none.yaml")


def test_an_empty_file_is_the_defaults(tmp_path):
    assert _load(tmp_path, "") == cf.Config()
    assert _load(tmp_path, "# nothing") == cf.Config()


def test_the_template_is_read_back_and_every_key_has_its_comment(tmp_path):
    text = cf.template()
    assert _load(tmp_path, text) == cf.Config()
    for name in cf.settings():
        key = name.rsplit(".", 1)[-1]
        lines = [line for line in text.splitlines() if line.lstrip().startswith(f"{key}:")]
        assert lines, name
        assert all(len(line.split("  # ")[-1]) > 4 for line in lines), name
    # YAML's own rules read every number as one.
    tree = yaml.safe_load(text)
    assert tree["optimization"]["ftol"] == 1e-8
    assert tree["data_files"]["q_tolerance"] == 0.1


def test_a_config_that_was_changed_is_written_as_it_is(tmp_path):
    config = _load(tmp_path, TEXT)
    assert _load(tmp_path, cf.template(config)) == config
    assert cf.parse_config(cf.as_tree(config)) == config
    assert dataclasses.asdict(config)["scaling"] == "individual"


@pytest.mark.parametrize("name", ["no", "1e5", "a: b # c", 'quote".h5', "é.h5", "~/x.h5"])
def test_a_file_name_that_yaml_could_misread(tmp_path, name):
    config = cf.parse_config({"data_files": {"file": name}})
    assert _load(tmp_path, cf.template(config)) == config
