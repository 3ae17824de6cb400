"""The YAML settings: what is accepted, what is refused and with which words, the template.

Would catch: a mistyped key that is ignored, `1e-8` read as text, a template that cannot be read
back, a setting without a comment.
"""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from jaxkern.xpcs.analysis import settings as cf
from jaxkern.xpcs.analysis.settings import Optimization

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
    with pytest.raises(cf.ConfigError, match="scaling"):
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
        ("zzz: 0.1", r"unknown.*key.*zzz.*data_files.*experiment.*analysis"),
        ("scaling: both", r"scaling.*auto.*individual.*constant.*fixed.*both"),
        ("experiment: {dt: fast}", r"experiment\.dt.*null"),
        ("experiment: {dt: .nan}", r"experiment\.dt.*number.*nan"),
        ("experiment: {dt: true}", r"experiment\.dt"),
        ("experiment: 3", "experiment"),
        ("analysis: {frames: {start: 1.5}}", r"analysis\.frames\.start"),
        ("analysis: {frames: {end: x}}", "frames.end"),
        ("analysis: {phi_filtering: {ranges: [[1, 2, 3]]}}", r"phi_filtering.ranges"),
        ("optimization: {streaming: {enable_checkpoints: 1}}", "enable_checkpoints"),
        ("analysis: {shear_power: 3}", r"shear_power.*2.*4"),
        ("simulation: {contrast: [0.1, x]}", r"simulation\.contrast"),
        ("- 1", "settings"),
        ("a: [", "is not valid YAML"),
        ("optimization: {multistart: 8}", r"optimization\.multistart"),
        ("initial_parameters: {hold: D0}", r"initial_parameters\.hold"),
        ("analysis: {frames: {bad: 7}}", "frames.bad"),
        ("a: " + "[" * 2_000, r"config\.yaml.*recursion"),
        ("experiment: {dt: 2001-99-99}", r"valid.*YAML.*month.*must"),
        ("experiment: {dt: 0x" + "f" * 9000 + "}", "experiment.dt"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, words):
    with pytest.raises(cf.ConfigError, match=words) as caught:
        _load(tmp_path, text)
    assert "config.yaml" in str(caught.value)


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes("# Settings\n# für é\nscaling: fixed\n".encode("latin-1"))
    with pytest.raises(cf.ConfigError, match=r"config\.yaml.*UTF.*byte"):
        cf.load_config(path)
    path.write_bytes("scaling: fixed".encode("utf-16"))
    assert cf.load_config(path).scaling == "fixed"
    path.write_text("# für é\nscaling: fixed\n", encoding="utf-8-sig")
    assert cf.load_config(path).scaling == "fixed"


def test_aliases_that_nest_without_end_are_shown_in_short(tmp_path):
    """Ten levels of ten aliases each: repr would write ten billion letters."""
    levels = "\n".join(f"  - &x{k} [{', '.join([f'*x{k - 1}'] * 10)}]" for k in range(1, 11))
    with pytest.raises(cf.ConfigError, match="scaling") as caught:
        _load(tmp_path, f"scaling:\n  - &x0 lol\n{levels}\n")
    assert len(str(caught.value)) < 300


def test_an_empty_file_is_the_defaults(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        cf.load_config(tmp_path / "none.yaml")
    assert _load(tmp_path, "") == cf.Config()
    assert _load(tmp_path, "# nothing") == cf.Config()


def test_the_template_is_read_back_and_every_key_has_its_comment(tmp_path):
    text = cf.template()
    assert _load(tmp_path, text) == cf.Config()
    for line in text.splitlines()[1:]:
        if line and not line.endswith(":"):
            assert len(line.partition("  # ")[2]) > 4, line
    # YAML's own rules read every number as one.
    tree = yaml.safe_load(text)
    assert tree["optimization"]["ftol"] == 1e-8
    assert tree["data_files"]["q_tolerance"] == 0.1


def test_a_config_that_was_changed_is_written_as_it_is(tmp_path):
    config = _load(tmp_path, TEXT)
    assert _load(tmp_path, cf.template(config)) == config
    assert cf.parse_config(dataclasses.asdict(config)) == config
    assert dataclasses.asdict(config)["scaling"] == "individual"


@pytest.mark.parametrize("name", ["no", "1e5", "a: b # c", 'quote".h5', "é.h5", "~/x.h5"])
def test_a_file_name_that_yaml_could_misread(tmp_path, name):
    config = cf.parse_config({"data_files": {"file": name}})
    assert _load(tmp_path, cf.template(config)) == config
