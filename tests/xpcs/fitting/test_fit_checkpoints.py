"""Checkpoints: would catch a file that can be torn, believed though damaged, or resumed wrongly."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import pickle
import subprocess
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from support import SUPPORT, environment
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.xpcs.fitting import checkpoint, evaluation
from jaxkern.xpcs.fitting.checkpoint import CheckpointError, PartialPass, PassLog

N = 64


class Interrupted(Exception):
    pass


class InterruptedSource:
    """Raises after a number of reads, as a killed process would end there."""

    symmetric = True

    def __init__(self, data, reads=None):
        self.shape, self.dtype, self._data, self._left = data.shape, data.dtype, data, reads
        self.reads = 0

    def read(self, angle, first_row, stop_row):
        self.reads += 1
        if self._left is not None and self.reads > self._left:
            raise Interrupted
        return self._data[angle, first_row:stop_row]


def options(folder, **changed):
    return jk.xpcs.StreamingOptions(
        **{
            "enable_checkpoints": True,
            "checkpoint_frequency": 1,
            "checkpoint_dir": folder,
            "max_checkpoint_overhead": 1.0,
            "chunk_points": 32 * N,
            **changed,
        }
    )


def run(case, source, folder, **changed):
    arguments = {"p0": problems.START, "strategy": "STREAMING", "progress": False, **changed}
    return jk.xpcs.fit(model_of(case), source, streaming=options(folder), **arguments)


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=41)


@pytest.fixture
def interrupted(case, tmp_path):
    """A folder with the checkpoint of a fit that ended in its third pass."""
    with pytest.raises(Interrupted):
        run(case, InterruptedSource(case.data, 48 * 3 + 14), tmp_path)
    return tmp_path


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    """SIGKILL at 20 moments, most of them inside a checkpoint's write: the same bits at the end."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "xpcs" / "killed_fit.py"), str(tmp_path), "20", "1"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert sum(report["kills"].values()) == 20
    assert all(count >= 2 for count in report["kills"].values())
    assert report["ends"] >= 1
    assert report["identical"] == report["ends"]
    assert report["resumed"] >= 10


def test_a_resumed_fit_goes_on_where_it_was(case, interrupted):
    whole = InterruptedSource(case.data)
    straight = jk.xpcs.fit(
        model_of(case),
        whole,
        p0=problems.START,
        strategy="STREAMING",
        streaming=jk.xpcs.StreamingOptions(chunk_points=32 * N),
        progress=False,
    )
    rest = InterruptedSource(case.data)
    found = run(case, rest, interrupted)
    assert rest.reads < whole.reads - 10
    assert found.popt.tobytes() == straight.popt.tobytes()
    assert found.pcov.tobytes() == straight.pcov.tobytes()
    assert (found.nfev, found.chi2) == (straight.nfev, straight.chi2)
    assert list(interrupted.iterdir()) == []


INTERRUPTS = """
import os, random, signal, sys
from support.xpcs import fit_problems as problems
import jaxkern as jk
from support.xpcs.fit_checks import model_of

case = problems.simulate(64, seed=41)
def fit(**options):
    streaming = jk.xpcs.StreamingOptions(chunk_points=32 * 64, **options)
    return jk.xpcs.fit(
        model_of(case), case.data, p0=problems.START, strategy="STREAMING", progress=False,
        streaming=streaming,
    )
straight = fit()
draw = random.Random(0)
interrupts, same, scale = 0, True, 1.0
signal.signal(signal.SIGALRM, signal.default_int_handler)
while interrupts < 3:  # alarms come sooner each time: a fit can be done before the first
    folder, here = f"{sys.argv[1]}/{scale}", 0
    while True:
        try:
            signal.setitimer(
                signal.ITIMER_REAL, scale * draw.uniform(0.05, 0.3) * 1.5**here
            )
            found = fit(
                enable_checkpoints=True, checkpoint_frequency=1, checkpoint_dir=folder,
                max_checkpoint_overhead=1.0,
            )
            signal.setitimer(signal.ITIMER_REAL, 0)
            break
        except KeyboardInterrupt:
            here += 1
    same = same and found.popt.tobytes() == straight.popt.tobytes()
    same = same and found.nfev == straight.nfev and not os.listdir(folder)
    interrupts, scale = interrupts + here, scale / 2
print(same)
"""


def test_a_fit_that_is_interrupted_again_and_again(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTS, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["True"]


def test_an_interrupt_behind_the_fit_leaves_its_passes(case, tmp_path, monkeypatch):
    """The files are gone by then, and the result is not there yet."""
    first = InterruptedSource(case.data)
    remove = checkpoint.remove

    def interrupted(path):
        remove(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(case, first, tmp_path)
    monkeypatch.undo()
    again = InterruptedSource(case.data)
    found = run(case, again, tmp_path)
    chunks = 2 * len(case.data)
    kept = found.nfev + found.error_passes
    assert again.reads == first.reads - chunks * kept  # what is looked at besides
    assert found.success
    assert list(tmp_path.iterdir()) == []


def test_a_fit_that_is_killed_in_the_passes_for_its_errors_goes_on_there(case, tmp_path):
    whole = InterruptedSource(case.data)
    straight = run(case, whole, tmp_path)
    # After these passes, the check of averages reads each angle once.
    reads = whole.reads - 6 * straight.error_passes - len(case.data)
    assert straight.error_passes == 10
    with pytest.raises(Interrupted):
        run(case, InterruptedSource(case.data, reads + 6 * 7 + 4), tmp_path)
    rest = InterruptedSource(case.data)
    found = run(case, rest, tmp_path)
    assert rest.reads == whole.reads - 6 * straight.nfev - 6 * 7 - 4
    for name in ("popt", "pcov", "pcov_independent"):
        assert getattr(found, name).tobytes() == getattr(straight, name).tobytes()
    assert (found.inflation, found.errors) == (straight.inflation, straight.errors)
    assert list(tmp_path.iterdir()) == []


def test_compiling_for_the_fingerprint_is_not_taken_off_the_passes(tmp_path):
    other = problems.simulate(N + 3, seed=44)  # sizes that nothing was compiled for
    timings = run(other, other.data, tmp_path).timings
    assert min(timings.compile, timings.compute) > 0
    assert timings.compile + timings.compute < timings.total


def test_damaged_files_are_refused(case, interrupted):
    path = interrupted / "fit.checkpoint"
    content = path.read_bytes()
    for place in (20, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"damaged|not a checkpoint"):
            run(case, case.data, interrupted)
    path.write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match="damaged: its checksum"):
        run(case, case.data, interrupted)
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        run(case, case.data, interrupted)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"p0": problems.TRUTH}, "start"),
        ({"sigma": 0.1}, "sigma"),
        ({"loss": "huber"}, "loss"),
        ({"scaling": "constant"}, "scaling"),
        ({"ftol": 1e-3}, r"tolerances \(there \[1e-08, 1e-08, 1e-08, None\]"),
        ({"keep": np.arange(N) != 5}, "frames"),
        ({"strategy": "CHUNKED"}, "strategy"),
    ],
)
def test_another_fit_is_refused(case, interrupted, changed, reason):
    with pytest.raises(CheckpointError, match=f"belongs to another fit.*{reason}"):
        run(case, InterruptedSource(case.data), interrupted, **changed)


def test_other_data_or_software_are_refused(case, interrupted, monkeypatch):
    with pytest.raises(CheckpointError, match="differs in data"):
        run(case, InterruptedSource(case.data + 1e-12), interrupted)
    monkeypatch.setattr("jaxkern.core.version.__version__", "0.0.0")
    with pytest.raises(CheckpointError, match="differs in jaxkern"):
        run(case, InterruptedSource(case.data), interrupted)


def decay(n, rate):
    """A model of one rate, which lies in a partial: in no code that could be looked at."""
    geometry = jk.xpcs.Geometry(0.0054, None, 1.0, np.arange(n) * 1.0, 0.0)

    def phases(factor, p):
        return p[0] * factor * jnp.arange(n), jnp.zeros((1, n))

    function = functools.partial(phases, rate)
    return jk.xpcs.CustomModel(geometry, function, ["rate"], shear_power=0)


@pytest.mark.parametrize("changed", ["model", "sigma"])
def test_what_a_model_computes_and_sigma_by_points_are_compared(tmp_path, changed):
    lag = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    noise = np.triu(np.random.default_rng(0).normal(size=(N, N)) * 0.01, 1)
    data = (1 + 0.3 * np.exp(-0.04 * lag) + noise + noise.T)[None]
    sigma = np.full(data.shape, 0.01)

    def run(rate, sigma, reads=None):
        # NumPy's numbers too are options that a checkpoint can hold.
        numbers = {"max_nfev": np.int64(50), "f_scale": np.float32(1.0)}
        source = InterruptedSource(data, reads)
        return jk.xpcs.fit(
            decay(N, rate), source, sigma, p0=[1.5], strategy="STREAMING",
            streaming=options(tmp_path), progress=False, **numbers,
        )  # fmt: skip

    with pytest.raises(Interrupted):
        run(0.01, sigma, 48 + 5)
    other = sigma * np.where(lag > 5, 1.0, 2.0)
    with pytest.raises(CheckpointError, match="phases" if changed == "model" else "sigma"):
        run(*((0.02, sigma) if changed == "model" else (0.01, other)))
    assert run(0.01, sigma).success


def test_what_is_saved_comes_back(tmp_path):
    draw = np.random.default_rng(0)
    path = tmp_path / "deep" / "fit.checkpoint"
    log = PassLog(
        points=[draw.normal(size=3) for _ in range(4)],
        states=[draw.normal(size=(2, 7)) for _ in range(4)],
        partial=PartialPass(draw.normal(size=3), draw.normal(size=(2, 7)), 5),
        excluded=[(0, 3), (1, 2)],
        start=draw.normal(size=3),
        earlier=6,
    )
    checkpoint.save(path, {"a": [1, 2.5, None]}, log)
    loaded = checkpoint.load(path, {"a": [1, 2.5, None]}, (3, 2, 7))
    np.testing.assert_array_equal(loaded.points, log.points)
    np.testing.assert_array_equal(loaded.states, log.states)
    np.testing.assert_array_equal(loaded.partial.x, log.partial.x)
    np.testing.assert_array_equal(loaded.partial.states, log.partial.states)
    np.testing.assert_array_equal(loaded.start, log.start)
    assert (loaded.partial.chunks, loaded.earlier, loaded.excluded) == (5, 6, [(0, 3), (1, 2)])
    assert [p.name for p in path.parent.iterdir()] == ["fit.checkpoint"]


def test_saving_takes_its_share_of_time_only(tmp_path, monkeypatch):
    """After a save of 2 s, a tenth of the time means that the next is 18 s away."""
    now = 0.0

    def save(*_):
        nonlocal now
        now += 2.0

    monkeypatch.setattr(evaluation, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(checkpoint, "save", save)
    store = evaluation.CheckpointStore(tmp_path / "fit.checkpoint", {}, 3, 0.1)
    assert [store.is_due(chunks) for chunks in range(1, 7)] == [False, False, True] * 2
    store.save(PassLog())
    now = 19.9
    assert not store.is_due(3)
    now = 20.0
    assert store.is_due(3)
    assert not store.is_due(4)


def rewritten(path, change):
    """Replaces what a checkpoint holds, with the checksum that belongs to it."""
    content = path.read_bytes()
    payload = change(content[content.index(b"\n") + 66 :])
    digest = hashlib.sha256(payload).hexdigest().encode() + b"\n"
    path.write_bytes(checkpoint._MAGIC + digest + payload)


def with_arrays(**changed):
    """The archive with some arrays replaced, or left out where they are None."""

    def change(payload):
        arrays = {**np.load(io.BytesIO(payload)), **changed}
        stream = io.BytesIO()
        np.savez(stream, **{k: v for k, v in arrays.items() if v is not None})
        return stream.getvalue()

    return change


def text(content):
    return np.frombuffer(content, np.uint8)


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: b"",
        lambda payload: b"no archive",
        lambda payload: payload[: len(payload) // 2],
        lambda payload: pickle.dumps({"fingerprint": 1}),
        with_arrays(fingerprint=None),
        with_arrays(fingerprint=text(b"\xff\xfe")),
        with_arrays(fingerprint=text(b"[1]")),
        with_arrays(fingerprint=text(b"[" * 100_000)),
        with_arrays(excluded=np.zeros((2, 3), np.int64)),
        with_arrays(excluded=np.array([[0, -1]])),
        with_arrays(earlier=np.zeros(2)),
        with_arrays(states=None),
        with_arrays(points=np.zeros((1, 3))),
        with_arrays(points=np.zeros((2, 4))),
        with_arrays(states=np.zeros((2, 3, 7))),
        with_arrays(states=np.array(["a", "b"])),
        with_arrays(partial_states=np.zeros((2, 6))),
        with_arrays(partial_chunks=np.int64(-1)),
        with_arrays(partial_states=None),
        with_arrays(start=np.zeros(5)),
    ],
)
def test_a_bad_content_with_its_checksum_is_refused(tmp_path, change):
    path = tmp_path / "fit.checkpoint"
    log = PassLog(
        [np.ones(3)] * 2, [np.ones((2, 7))] * 2, PartialPass(np.ones(3), np.ones((2, 7)), 5)
    )
    checkpoint.save(path, {"a": 1}, log)
    assert checkpoint.load(path, {"a": 1}, (3, 2, 7)).partial.chunks == 5
    rewritten(path, change)
    with pytest.raises(CheckpointError, match=r"fit\.checkpoint is damaged: it holds no passes"):
        checkpoint.load(path, {"a": 1}, (3, 2, 7))


def test_passes_of_other_sizes_are_refused_by_the_fit(case, interrupted):
    rewritten(interrupted / "fit.checkpoint", with_arrays(points=np.zeros((2, 12))))
    with pytest.raises(CheckpointError, match=r"float64 \[12\] where float64 \(13,\) belongs"):
        run(case, InterruptedSource(case.data), interrupted)
