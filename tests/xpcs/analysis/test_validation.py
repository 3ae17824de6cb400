"""The check of settings without a fit.

Would catch: a check that stops at the first problem, a wrong setting that only the fit reports, a
valid file with problems.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from jaxkern.cli import main
from jaxkern.xpcs import write_aps


@pytest.fixture
def folder(tmp_path):
    c2 = np.random.default_rng(0).normal(1.0, 0.01, (3, 12, 12))
    c2 = (c2 + c2.transpose(0, 2, 1)) / 2
    write_aps(tmp_path / "m.h5", c2, q=0.0054, phi=(0.0, 60.0, 120.0), dt=0.1)
    return tmp_path


def problems(folder, capsys, *options, **tree):
    (folder / "c.yaml").write_text(yaml.safe_dump(tree))
    code = main(["xpcs", "validate", str(folder / "c.yaml"), "--json", *options])
    found = json.loads(capsys.readouterr().out)["problems"]
    assert code == (1 if found else 0)
    return found


GOOD = {"data_files": {"file": "m.h5"}, "analysis": {"model": "static"}}


def test_settings_of_a_valid_fit(folder, capsys):
    assert problems(folder, capsys, **GOOD) == []
    assert main(["xpcs", "validate", str(folder / "c.yaml")]) == 0
    assert "no problem found" in capsys.readouterr().out
    other = GOOD | {"data_files": {"file": "absent.h5"}}
    assert problems(folder, capsys, "--data", str(folder / "m.h5"), **other) == []
    assert problems(folder, capsys, **other)[0].startswith("data_files.file: no such file: ")


def test_every_problem_is_listed(folder, capsys):
    wrong = {
        "data_files": {"file": "m.h5", "q": 0.02, "sigma": -1.0},
        "experiment": {"dt": 0.3, "start_time": -1.0},
        "analysis": {
            "model": "laminar_flow",
            "phi_filtering": {"enabled": True, "ranges": [[20, 30]]},
            "frames": {"start": 11, "bad": [40]},
        },
        "initial_parameters": {
            "values": {"D00": 1.0}, "bounds": {"D0": [5.0, 1.0]}, "hold": ["beta0"],
            "contrast": "high",
        },
        "optimization": {
            "lossy": 1, "loss": "square", "f_scale": -1.0, "ftol": 0.0, "threads": 0,
            "streaming": {"retries": -1}, "multistart": {"starts": 0},
        },
    }  # fmt: skip
    found = problems(folder, capsys, **wrong)
    facts = (
        "initial_parameters.contrast: Expected", "unknown key optimization.lossy",
        "optimization.loss: expected one of linear", "optimization.f_scale: expected",
        "optimization.ftol: expected", "optimization.threads: expected at least 1",
        "optimization.streaming.retries", "optimization.multistart", "experiment.gap: expected",
        "data_files.sigma: expected more than 0", "experiment.start_time: expected at least 0",
        "initial_parameters.values: expected one of the parameters", "hold: expected one of",
        "initial_parameters.bounds of D0: expected lower < upper",
        "analysis.phi_filtering.ranges: expected", "0.0054", "experiment.dt is 0.3 s",
        "analysis.frames.start, end: expected", "analysis.frames.bad: expected",
    )  # fmt: skip
    assert [fact for fact in facts if not any(fact in line for line in found)] == []
    assert len(found) == len(facts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"analysis": {"model": "static", "frames": {"bad": [[1, 10]]}}}, "analysis.frames: keep"),
        ({"initial_parameters": {"contrast": [0.1, 0.2]}}, "contrast: expected 1 or 3 numbers"),
        ({"data_files": "m.h5"}, "data_files: Expected object"),
        ({"a.b": 1}, "unknown key a.b"),
    ],
)
def test_single_problems(folder, capsys, change, message):
    assert message in problems(folder, capsys, **(GOOD | change))[0]


def test_a_damaged_file(folder, capsys):
    content = (folder / "m.h5").read_bytes()
    (folder / "m.h5").write_bytes(content[: len(content) // 2])
    assert "is damaged" in problems(folder, capsys, **GOOD)[0]
