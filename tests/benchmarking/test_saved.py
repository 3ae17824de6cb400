"""Saved measurements, baselines and reports: would catch samples that are lost on disk, a verdict
due to noise, an unnoticed change of the machine, and an incomplete report."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern.benchmarking import Measurement, compare_to_baseline, load, report, save
from jaxkern.benchmarking.measurement import environment

HERE = environment()


def measurement(scale=1.0, seed=0, noise=0.05, count=40, **changes):
    seconds = scale * 1e-3 * np.random.default_rng(seed).lognormal(0, noise, count)
    measured = Measurement(
        name="work", kind="call", seconds=tuple(seconds), environment=HERE,
        dimensions={"points": 1000}, methodology=("Scripted samples.",),
    )  # fmt: skip
    return dataclasses.replace(measured, **changes)


def test_save_and_load(tmp_path):
    measured = jk.benchmarking.profile_fn(sorted, [2, 1], calls=5, seconds=0, name="a b/c")
    path = save(measured, tmp_path / "new")
    assert path.name.startswith("a-b-c-")
    result = load(path)
    for field in dataclasses.fields(Measurement):
        assert getattr(result, field.name) == getattr(measured, field.name), field.name
    record = json.loads(path.read_text())
    assert record["figures"]["median"] == measured.median
    assert record["figures"]["compile_seconds"] == measured.compile_seconds


def test_only_measurements_are_saved(tmp_path):
    result = jk.benchmarking.compare({"a": lambda: 1, "b": lambda: 1}, rounds=5, turn_seconds=0)
    for wrong, name in ((result, "Comparison"), (3, "int")):
        with raises(TypeError, name):
            save(wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert load(save(result["a"], tmp_path / "new")).name == "a"


def test_default_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert save(measurement()).parent.name == "benchmark-results"


def test_newest_measurement_is_the_baseline(tmp_path):
    save(measurement(1.0), tmp_path)
    save(measurement(3.0), tmp_path)
    save(measurement(9.0, name="work-other"), tmp_path)
    assert compare_to_baseline(measurement(3.0, seed=1), tmp_path).outcome == "no difference shown"
    assert compare_to_baseline(measurement(0.5, seed=1), tmp_path).outcome == "faster"
    with raises(FileNotFoundError, "'none'"):
        compare_to_baseline(measurement(name="none"), tmp_path)


def test_variation_between_runs(tmp_path):
    for number, scale in enumerate((1.0, 1.3, 1.1)):
        save(measurement(scale, seed=number), tmp_path)
    among = compare_to_baseline(measurement(1.25, seed=7), tmp_path)
    assert among.ratio.low > 1.05
    assert among.outcome == "no difference shown"
    assert any("3 saved runs" in note for note in among.notes)
    assert compare_to_baseline(measurement(1.6, seed=7), tmp_path).outcome == "slower"
    assert compare_to_baseline(measurement(0.8, seed=7), tmp_path).outcome == "faster"


@pytest.mark.parametrize(
    ("scale", "noise", "outcome"),
    [
        (0.8, 0.05, "faster"),
        (1.25, 0.05, "slower"),
        (1.0, 0.05, "no difference shown"),
        # Significant, but below least_change.
        (1.03, 0.001, "no difference shown"),
        # Ten percent is less than the noise.
        (1.1, 1.0, "no difference shown"),
    ],
)
def test_verdicts(scale, noise, outcome):
    for seed in range(1, 6):
        baseline = measurement(noise=noise, seed=100 + seed)
        verdict = compare_to_baseline(measurement(scale, seed, noise), baseline)
        assert verdict.outcome == outcome, seed
        assert verdict.same_machine
        assert str(verdict).startswith(outcome)


def test_false_positive_rate():
    pairs = [(measurement(seed=2 * k), measurement(seed=2 * k + 1)) for k in range(50)]
    outcomes = [compare_to_baseline(*pair, least_change=0).outcome for pair in pairs]
    # 5% of 50 are expected; more than 9 have a probability of 5e-4.
    assert outcomes.count("no difference shown") >= 41


def test_another_machine_is_reported():
    there = copy.deepcopy(HERE)
    there["machine"]["cores"] = 9999
    there["versions"]["jax"] = "0.0.1"
    verdict = compare_to_baseline(measurement(), measurement(2.0, environment=there))
    assert not verdict.same_machine
    assert "another machine" in str(verdict)
    assert any("was 9999" in note for note in verdict.notes)
    assert any(note.endswith("was 0.0.1") for note in verdict.notes)


def test_unequal_work_and_few_samples_are_reported():
    verdict = compare_to_baseline(measurement(count=3), measurement(2.0, dimensions={"points": 1}))
    assert verdict.outcome == "no difference shown"
    assert any("unequal work" in note for note in verdict.notes)
    assert any(note.startswith("3 samples") for note in verdict.notes)


def test_invalid_files(tmp_path):
    for text in ('{"format": "other"}', "["):
        (tmp_path / "x.json").write_text(text)
        with raises(ValueError, "x.json"):
            load(tmp_path / "x.json")
    record = json.loads(save(measurement(), tmp_path).read_text())
    del record["seconds"]
    (tmp_path / "x.json").write_text(json.dumps(record))
    with raises(ValueError, "'seconds'"):
        load(tmp_path / "x.json")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.json")
    with raises(ValueError, "call", "batch"):
        compare_to_baseline(measurement(), measurement(kind="batch"))


def test_report(tmp_path):
    before, after = measurement(2.0), measurement(1.0, seed=1, name="new")
    path = tmp_path / "a" / "r.md"
    text = report(before, after, title="Sorting", dimensions={"keys": 7}, path=path)
    assert path.read_text() == text
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "Environment", "Dimensions", "Before: work", "After: new", "Speedup", "Methodology",
    ]  # fmt: skip
    ratio = before.median / after.median
    assert f"**{ratio:.3g}x**" in text
    assert "new is faster" in text
    for fact in ("- points: 1000", "- keys: 7", HERE["versions"]["jax"], HERE["machine"]["cpu"]):
        assert str(fact) in text
    assert "Scripted samples." in text


def test_report_of_a_comparison_pairs_rounds():
    result = jk.benchmarking.compare({"a": lambda: 1, "b": lambda: 1}, rounds=5, turn_seconds=0)
    text = report(result["a"], result["b"])
    assert "rounds drawn in pairs" in text
    assert "All results are equal." in text
    assert "resources (all arms)" in text


def test_report_of_separate_measurements(tmp_path):
    there = copy.deepcopy(HERE)
    there["machine"]["cpu"] = "Another"
    text = report(measurement(environment=there, dimensions={"points": 2}), measurement())
    assert "measured separately" in text
    assert "was Another**" in text
    assert "**the dimensions differ" in text
    with raises(ValueError, "call", "arm"):
        report(measurement(), measurement(kind="arm"))


def test_dimensions_of_any_type_are_saved(tmp_path):
    sizes = {"shape": (3, np.int64(4)), "noise": np.float32(0.5), 7: np.dtype("f4")}
    measured = measurement(dimensions=sizes)
    result = load(save(measured, tmp_path))
    assert result.dimensions == {"shape": [3, 4], "noise": 0.5, "7": "float32"}
    assert not compare_to_baseline(measured, result).notes
    assert "differ" not in report(result, measured).replace("not shown to differ", "")
