"""Ctrl-C during a fit: `fit` and the command line return the best result so far.

The tests send SIGINT to their own process.
"""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.cli import main
from jaxkern.xpcs.fitting.evaluation import FitProgress

SETTINGS = """\
data_files: {file: run.h5}
analysis: {model: static}
simulation: {frames: 60, phi: [0.0, 60.0], parameters: {D0: 900.0, alpha: 0.3, D_offset: 20.0}}
initial_parameters: {values: {D0: 700.0, alpha: 0.2}, hold: [D_offset]}
"""


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that arranges SIGINT after the n-th call of a method of `FitProgress`."""

    def after(number, method="after_pass"):
        plain, seen = getattr(FitProgress, method), []

        def counted(self, *arguments):
            plain(self, *arguments)
            seen.append(arguments)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(FitProgress, method, counted)

    return after


@pytest.fixture(scope="module")
def case():
    return problems.simulate(seed=3)


def stopped(case, **options):
    with pytest.raises(KeyboardInterrupt) as error:
        checks.fit(model_of(case), case.data, p0=problems.START, **options)
    assert isinstance(error.value, jk.xpcs.FitInterrupted)
    return error.value.result


def test_the_best_point_so_far(case, interrupt):
    interrupt(4)
    result = stopped(case)
    assert result.interrupted
    assert not result.success
    assert "0 of 1 starts" in result.message
    assert np.isfinite(result.popt).all()
    assert "interrupted" in str(result).splitlines()[0]
    monitored = problems.correlation(result.physics, result.contrast, result.offset, 40)
    away = np.triu(np.ones((40, 40)), 1) * (case.data - monitored) / result.sigma[:, None, None]
    assert result.chi2 == pytest.approx(2 * (away**2).sum(), rel=1e-6)


def test_before_the_end_of_the_first_pass(case, interrupt):
    interrupt(1, "__enter__")
    with pytest.raises(KeyboardInterrupt):
        checks.fit(model_of(case), case.data, p0=problems.START)


def test_finished_starts_are_part_of_the_result(case, interrupt):
    finished = checks.fit(model_of(case), case.data, p0=problems.START)
    interrupt(finished.nfev + 3)
    result = stopped(case, multistart=4, seed=1)
    assert "1 of 4 starts" in result.message
    assert result.cost == min(result.start_costs) == pytest.approx(finished.cost)
    np.testing.assert_array_equal(result.popt, finished.popt)
    assert np.isfinite(result.start_costs[:2]).all()
    assert np.isinf(result.start_costs[2:]).all()


def test_during_the_passes_for_the_errors(case, interrupt):
    interrupt(2, "after_extra")
    result = stopped(case)
    assert "1 of 1 starts" in result.message
    assert result.interrupted
    assert result.errors == "independent"
    assert np.isfinite(result.perr).all()


def test_the_command_line_saves_and_exits_with_130(tmp_path, interrupt, capsys):
    (tmp_path / "config.yaml").write_text(SETTINGS)
    arguments = ["--config", str(tmp_path / "config.yaml"), "--output-dir", str(tmp_path / "out")]
    assert main(["xpcs", "simulate", *arguments, "--quiet"]) == 0
    capsys.readouterr()
    interrupt(3)
    assert main(["xpcs", "fit", *arguments, "--quiet"]) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert "interrupted" in printed.err
    assert str(tmp_path / "out" / "results.json") in printed.err
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["interrupted"] is True
    assert record["success"] is False
    assert record["parameters"]["D_offset"]["held"] is True
    assert not (tmp_path / "out" / "maps.png").exists()
    # And before anything can be saved.
    interrupt(1, "__enter__")
    assert main(["xpcs", "fit", *arguments, "--quiet"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted; nothing was saved"
