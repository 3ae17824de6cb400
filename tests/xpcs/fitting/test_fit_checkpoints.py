"""Interrupted fits: checkpoints, bad ones, and the best result so far after Ctrl-C.

A resumed fit must reach the same minimum. The tests of Ctrl-C send SIGINT to their own process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from support import SUPPORT
from support.errors import raises
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs import run_program
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.cli import main
from jaxkern.xpcs.fitting.evaluation import CheckpointError, FitProgress

N = 64
CHUNKS = 6  # in a pass


class Interrupted(Exception):
    pass


def interrupted_source(data, reads=np.inf):
    """Return a source that raises after a number of reads, like a killed process."""

    def on_read(*_):
        if source.reads > reads:
            raise Interrupted

    source = checks.WatchedSource(data, on_read)
    return source


def run(case, source, folder, **changed):
    arguments = {
        "p0": problems.START,
        "strategy": "stream",
        "chunk_points": 32 * N,
        "enable_checkpoints": folder is not None,
        "checkpoint_dir": folder or "unused",
        **changed,
    }
    return checks.fit(model_of(case), source, **arguments)


def assert_same_minimum(result, straight):
    assert result.success
    assert result.cost == pytest.approx(straight.cost, rel=1e-9)
    np.testing.assert_array_less(np.abs(result.popt - straight.popt), 0.01 * straight.perr + 1e-12)
    np.testing.assert_allclose(result.perr, straight.perr, rtol=0.01)
    assert result.errors == straight.errors


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=41)


@pytest.fixture(scope="module")
def straight(case):
    source = interrupted_source(case.data)
    result = run(case, source, None)
    result.__dict__["reads"] = source.reads
    return result


@pytest.fixture
def interrupted(case, tmp_path):
    """A folder with the checkpoint of a fit that was interrupted in its fourth pass."""
    with pytest.raises(Interrupted):
        run(case, interrupted_source(case.data, 48 * 3 + 3 * CHUNKS + 2), tmp_path)
    return tmp_path


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    """SIGKILL at 20 moments, most of them while a checkpoint is written."""
    report = run_program(SUPPORT / "xpcs" / "killed_fit.py", tmp_path, 20, 1)
    assert sum(report["kills"].values()) == 20
    assert all(count >= 2 for count in report["kills"].values())
    assert report["ends"] >= 1
    assert report["equal"] == report["ends"]
    assert report["resumed"] >= 10


def test_a_resumed_fit_starts_from_the_best_point(case, straight, interrupted):
    stored = json.loads((interrupted / "fit.checkpoint").read_text().partition("\n")[2])
    assert stored["starts"]["0"]["passes"] == 3
    source = interrupted_source(case.data)
    result = run(case, source, interrupted)
    assert_same_minimum(result, straight)
    assert result.costs[0] == pytest.approx(stored["starts"]["0"]["cost"], rel=1e-12)
    assert list(interrupted.iterdir()) == []


def test_a_fit_that_is_interrupted_in_the_passes_for_its_errors(case, straight, tmp_path):
    """The solver does not run again: one pass at the solution, and those for the errors."""
    before = straight.reads - len(case.data) - CHUNKS * straight.error_passes
    with pytest.raises(Interrupted):
        run(case, interrupted_source(case.data, before + 2 * CHUNKS), tmp_path)
    source = interrupted_source(case.data)
    result = run(case, source, tmp_path)
    assert source.reads < straight.reads - CHUNKS * (straight.nfev - 4)
    assert (result.nfev, result.status) == (straight.nfev, straight.status)
    np.testing.assert_array_equal(result.popt, straight.popt)
    np.testing.assert_allclose(result.pcov, straight.pcov, rtol=1e-6)


def test_finished_starts_of_a_multistart_are_not_repeated(case, tmp_path, monkeypatch):
    options = {"multistart": 3, "seed": 1, "max_nfev": 40, "errors": "independent"}
    straight = run(case, case.data, None, **options)

    def on_read(*_):  # raises in the third start
        path = tmp_path / "fit.checkpoint"
        starts = json.loads(path.read_text().partition("\n")[2])["starts"] if path.exists() else {}
        if "2" in starts and starts["2"]["passes"] >= 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(case, checks.WatchedSource(case.data, on_read), tmp_path, **options)
    passes = []  # the number of each pass within its start
    monkeypatch.setattr(FitProgress, "after_pass", lambda self, n, cost: passes.append(n))
    result = run(case, case.data, tmp_path, **options)
    assert min(passes) > 2
    assert result.start_costs[:2] == straight.start_costs[:2]
    assert result.cost == pytest.approx(straight.cost, rel=1e-9)


INTERRUPTS = """
import os, random, signal, sys
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems

case, draw = problems.simulate(64, seed=41), random.Random(0)
def fit(**options):
    how = {"p0": problems.START, "strategy": "stream", "chunk_points": 32 * 64, **options}
    return checks.fit(checks.model_of(case), case.data, **how)
straight, interrupts, same, scale = fit(), 0, True, 1.0
signal.signal(signal.SIGALRM, signal.default_int_handler)
while interrupts < 3:  # alarms come sooner each time: a fit can be done before the first
    folder, here = f"{sys.argv[1]}/{scale}", 0
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, scale * draw.uniform(0.05, 0.3) * 1.5**here)
            result = fit(enable_checkpoints=True, checkpoint_dir=folder)
            signal.setitimer(signal.ITIMER_REAL, 0)
            break
        except KeyboardInterrupt:
            here += 1
    same = same and abs(result.cost / straight.cost - 1) < 1e-9 and not os.listdir(folder)
    interrupts, scale = interrupts + here, scale / 2
print(int(same))
"""


def test_a_fit_that_is_interrupted_repeatedly(tmp_path):
    assert run_program("-W", "ignore", "-c", INTERRUPTS, tmp_path)


def test_the_frequency_of_checkpoints(case, tmp_path):
    """With a frequency of 4, a fit interrupted in its sixth pass has the state after 4."""
    reads = 48 * 3 + 5 * CHUNKS + 2
    with pytest.raises(Interrupted):
        run(case, interrupted_source(case.data, reads), tmp_path, checkpoint_frequency=4)
    stored = json.loads((tmp_path / "fit.checkpoint").read_text().partition("\n")[2])
    assert stored["starts"]["0"]["passes"] == 4


def test_compilation_for_the_fingerprint_is_not_subtracted_from_the_passes(tmp_path):
    other = problems.simulate(N + 3, seed=44)  # sizes for which nothing has been compiled
    timings = run(other, other.data, tmp_path).timings
    assert min(timings.compile, timings.compute) > 0
    assert timings.compile + timings.compute < timings.total


def test_damaged_files(case, interrupted):
    path = interrupted / "fit.checkpoint"
    content = path.read_bytes()
    flipped = [bytearray(content) for _ in range(3)]
    for damaged, index in zip(flipped, (20, len(content) // 2, len(content) - 1), strict=True):
        damaged[index] ^= 1
    for damaged in (*flipped, content[:-100], b"", b"something else"):
        path.write_bytes(damaged)
        with raises(CheckpointError, "damaged"):
            run(case, case.data, interrupted)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"p0": problems.TRUTH}, "start"),
        ({"sigma": 0.1}, "sigma"),
        ({"loss": "huber"}, "loss"),
        ({"scaling": "constant"}, "scaling"),
        ({"keep": np.arange(N) != 5}, "keep"),
        ({"bounds": {"alpha": (-1.5, 1.0)}}, "bounds"),
        ({"multistart": 2}, "search"),
    ],
)
def test_another_fit(case, interrupted, changed, reason):
    with raises(CheckpointError, "another fit", f"{reason}"):
        run(case, interrupted_source(case.data), interrupted, **changed)
    with raises(CheckpointError, "differs in data"):
        run(case, interrupted_source(case.data + 1e-12), interrupted)


def test_other_tolerances_and_chunks_resume_the_same_fit(case, straight, interrupted):
    result = run(case, case.data, interrupted, ftol=1e-9, chunk_points=64 * N)
    assert_same_minimum(result, straight)


def decay(n, rate):
    """Return a model whose rate is bound in a partial, so that its code does not show it."""
    geometry = jk.xpcs.Geometry(0.0054, None, 1.0, np.arange(n) * 1.0, 0.0)

    def phases(factor, p):
        return p[0] * factor * jnp.arange(n), jnp.zeros((1, n))

    function = functools.partial(phases, rate)
    return jk.xpcs.CustomModel(geometry, function, ["rate"], shear_power=0)


@pytest.mark.parametrize("changed", ["model", "sigma"])
def test_custom_models_and_pointwise_sigma_are_compared(tmp_path, changed):
    lag = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    noise = np.triu(np.random.default_rng(0).normal(size=(N, N)) * 0.01, 1)
    data = (1 + 0.3 * np.exp(-0.04 * lag) + noise + noise.T)[None]
    sigma = np.full(data.shape, 0.01)

    def run(rate, sigma, reads=np.inf):
        # NumPy scalars are valid options.
        numbers = {"max_nfev": np.int64(50), "f_scale": np.float32(1.0), "seed": np.int64(0)}
        how = {"strategy": "stream", "chunk_points": 32 * N, "p0": [1.5], **numbers}
        how |= {"enable_checkpoints": True, "checkpoint_dir": tmp_path}
        return checks.fit(decay(N, rate), interrupted_source(data, reads), sigma, **how)

    with pytest.raises(Interrupted):
        run(0.01, sigma, 48 + 5)
    other = sigma * np.where(lag > 5, 1.0, 2.0)
    with pytest.raises(CheckpointError, match="phases" if changed == "model" else "sigma"):
        run(*((0.02, sigma) if changed == "model" else (0.01, other)))
    assert run(0.01, sigma).success


def with_entry(*keys, value):
    """Return a function that replaces an entry of the JSON object; None deletes it."""

    def change(text):
        content = json.loads(text)
        inner = functools.reduce(lambda part, key: part[key], keys[:-1], content)
        inner.pop(keys[-1]) if value is None else inner.update({keys[-1]: value})
        return json.dumps(content).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: b"no json",
        lambda text: text[: len(text) // 2],
        lambda text: pickle.dumps({"fingerprint": 1}),
        lambda text: b"[1]",
        lambda text: b"[" * 100_000,
        with_entry("fingerprint", value=None),
        with_entry("fingerprint", value=3),
        with_entry("excluded", value=[[0, 1, 2]]),
        with_entry("excluded", value=5),
        with_entry("starts", value=[1]),
        with_entry("starts", "0", value={"x": [1.0]}),
        with_entry("starts", "0", "x", value=[1.0] * 12),
        with_entry("starts", "0", "x", value=[[1.0]]),
        with_entry("starts", "0", "x", value=["a"] * 13),
        with_entry("starts", "a", value={}),
    ],
)
def test_bad_contents_with_a_valid_checksum(case, interrupted, change):
    path = interrupted / "fit.checkpoint"
    text = change(path.read_bytes().partition(b"\n")[2])
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    with raises(CheckpointError, "fit.checkpoint is damaged"):
        run(case, case.data, interrupted)


def test_no_temporary_files_remain(case, tmp_path):
    folder = tmp_path / "new" / "folder"
    run(case, case.data, folder)
    assert os.listdir(folder) == []


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
    monitored = problems.correlation(result.physics, result.contrast, result.offset, N)
    away = np.triu(np.ones((N, N)), 1) * (case.data - monitored) / result.sigma[:, None, None]
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
