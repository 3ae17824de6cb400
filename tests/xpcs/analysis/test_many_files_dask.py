"""Files on the workers of a dask.distributed cluster: processes of this machine, some are killed.

Would catch results that depend on the worker, two files at a time on one worker, a late worker
without tasks, and a death or Ctrl-C that loses finished files or leaves half ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support.errors import raises
from support.xpcs.correlated_files import files_of_frames, listed

if sys.version_info >= (3, 14):
    pytest.skip("the test extra has dask below Python 3.14 only", allow_module_level=True)
import dask
from distributed import Client, LocalCluster, WorkerPlugin

from jaxkern import xpcs
from jaxkern.core import dask_engine
from jaxkern.core.registry import module
from jaxkern.xpcs.analysis import many

NAMES = [f"run{k}" for k in range(5)]


@pytest.fixture
def data(tmp_path):
    return files_of_frames(tmp_path / "data", NAMES)


def cluster(scheduler_kwargs=None, **options):
    """Of one process (this one) or several; no web page, no limits."""
    return LocalCluster(
        memory_limit=0,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False, **(scheduler_kwargs or {})},
        silence_logs=60,
        **options,
    )


def g2_of(folder):
    return {name: xpcs.read_results(folder / f"{name}.hdf").multitau.g2 for name in NAMES}


def busy(client, folder):
    """Make workers mark the file that they process, and wait until the test releases them."""

    def install(folder):
        from jaxkern.xpcs.analysis import many

        real = many.correlate_file

        def waiting(path, *args, **kwargs):
            (folder / f"{path.stem}.{os.getpid()}").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
            (folder / f"{path.stem}.{os.getpid()}").unlink()
            return real(path, *args, **kwargs)

        many.correlate_file = waiting

    folder.mkdir()
    client.run(install, folder)


def until(folder, count):
    """Wait for a number of marks (NAME.PID) of files in progress, and return them."""
    deadline = time.monotonic() + 60
    while len(result := [path.name for path in folder.iterdir() if path.name != "go"]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


def test_on_a_client_of_ones_own(data, monkeypatch):
    """One worker with three threads, in this process: one file at a time, with three threads."""
    running, most, caps = [], [], []
    real = many.correlate_file

    def correlate_file(path, *args, **kwargs):
        running.append(path.stem)
        most.append(len(running))
        if path.stem == "run3":
            running.remove(path.stem)
            raise OSError("no disk")
        made = real(path, *args, **kwargs)
        time.sleep(0.02)
        running.remove(path.stem)
        return made

    monkeypatch.setattr(many, "correlate_file", correlate_file)
    monkeypatch.setattr("jaxkern.core.dask_engine.set_max_workers", caps.append)
    monkeypatch.delenv("JAXKERN_NUM_THREADS", raising=False)
    with cluster(processes=False, n_workers=1, threads_per_worker=3) as own, Client(own) as client:
        result = xpcs.correlate_files(
            data, data / "qmap.h5", data / "new", engine=client, retries=2
        )
        assert [outcome.status for outcome in result.outcomes] == ["done"] * 3 + ["failed", "done"]
        assert "no disk" in result.errors[data / "run3.npy"]
        # Tried three times; nothing is left on the cluster.
        assert (max(most), len(most), set(caps[::2])) == (1, 7, {3})
        second = xpcs.correlate_files(
            data, data / "qmap.h5", data / "new", engine=client, retries=0
        )
        assert (second.count("skipped"), second.count("failed")) == (4, 1)
        with raises(ValueError, "scheduler, workers", "client"):
            xpcs.correlate_files(data, data / "qmap.h5", data / "new", engine=client, workers=2)
        how = {"engine": client, "force": True, "shown": lambda _: client.close()}
        with raises(ConnectionError, "scheduler"):
            xpcs.correlate_files(data, data / "qmap.h5", data / "new", **how)
    with raises(TypeError, "engine", "got 3"):
        xpcs.correlate_files(data, data / "qmap.h5", data / "new", engine=3)
    local = xpcs.correlate_files(data, data / "qmap.h5", data / "local", retries=0)
    assert [row.get("g2") for row in local.table] == [row.get("g2") for row in result.table]


def test_workers_of_one_process_leave_it_its_own_threads_and_memory(monkeypatch):
    """Whichever of them ends first."""
    native = module("cpu")
    monkeypatch.delenv("JAXKERN_NUM_THREADS", raising=False)
    monkeypatch.delenv("JAXKERN_MEMORY_LIMIT", raising=False)
    limit = SimpleNamespace(memory_limit=2**30)
    worker = SimpleNamespace(memory_manager=limit, state=SimpleNamespace(nthreads=1))
    before = native.max_workers()
    one, other = dask_engine._worker_limits(worker), dask_engine._worker_limits(worker)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert (native.max_workers(), os.environ["JAXKERN_MEMORY_LIMIT"]) == (1, "1.0")
    other.__exit__(None, None, None)
    assert native.max_workers() == before
    assert "JAXKERN_MEMORY_LIMIT" not in os.environ


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(data, tmp_path):
    results, marks = tmp_path / "results", tmp_path / "marks"
    outcomes = []
    with cluster(n_workers=2, threads_per_worker=2) as own, Client(own) as client:
        busy(client, marks)

        def shown(outcome):
            outcomes.append(outcome)

        def kill():
            victim = until(marks, 2)[0]
            half = results / f"{victim.split('.')[0]}.hdf.0badcafe.tmp"
            results.mkdir(exist_ok=True)
            half.write_text("half")
            os.kill(int(victim.split(".")[1]), signal.SIGKILL)
            (marks / victim).unlink()
            (marks / "go").touch()

        killer = threading.Thread(target=kill)
        killer.start()
        result = xpcs.correlate_files(
            data, data / "qmap.h5", results, engine=client, retries=0, shown=shown
        )
        killer.join()
    assert result.errors == {}
    assert sorted(o.file.stem for o in outcomes) == NAMES
    assert listed(results) == [f"{name}.hdf" for name in NAMES]
    xpcs.correlate_files(data, data / "qmap.h5", tmp_path / "local")
    for name, g2 in g2_of(results).items():
        np.testing.assert_array_equal(g2, g2_of(tmp_path / "local")[name])


@pytest.mark.slow
def test_a_file_that_ends_every_worker_is_named(data, tmp_path):
    """As one that needs more memory than there is."""

    class Dying(WorkerPlugin):
        """In workers that come for the dead, too."""

        def setup(self, worker):
            from jaxkern.xpcs.analysis import many

            real = many.correlate_file

            def dying(path, *args, **kwargs):
                if path.stem == "run1":
                    (path.parent / f"death.{os.getpid()}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(path, *args, **kwargs)

            many.correlate_file = dying

    with (
        # Each death is final, so that one is enough.
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster(n_workers=2, threads_per_worker=1) as own,
        Client(own) as client,
    ):
        client.register_plugin(Dying())
        result = xpcs.correlate_files(data, data / "qmap.h5", tmp_path / "results", engine=client)
    assert list(result.errors) == [data / "run1.npy"]
    assert "KilledWorker" in result.errors[data / "run1.npy"]
    assert result.count("done") == 4
    # Once next to other tasks, and once alone.
    assert len([name for name in listed(data) if name.startswith("death.")]) == 2


@pytest.mark.slow
def test_workers_that_come_late_take_part(data, tmp_path):
    """And a scheduler by its address, and by its file."""
    marks, scheduler_file = tmp_path / "marks", tmp_path / "scheduler.json"
    options = {"scheduler_kwargs": {"scheduler_file": str(scheduler_file)}, "threads_per_worker": 4}
    with cluster(n_workers=1, **options) as own, Client(own) as client:
        busy(client, marks)

        def scale():
            until(marks, 1)
            own.scale(2)
            # The second one does all but the first file; it does not wait.
            deadline = time.monotonic() + 60
            while len(list((tmp_path / "results").glob("*.hdf"))) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            (marks / "go").touch()

        helper = threading.Thread(target=scale)
        helper.start()
        address = own.scheduler_address
        how = {"engine": "dask", "scheduler": address}
        result = xpcs.correlate_files(data, data / "qmap.h5", tmp_path / "results", **how)
        helper.join()
        assert result.count("done") == 5
        how["scheduler"] = str(scheduler_file)
        result = xpcs.correlate_files(data, data / "qmap.h5", tmp_path / "more", **how)
        assert result.count("done") == 5


def command(data, results, *more):
    files, qmap = [data / f"{name}.npy" for name in NAMES], data / "qmap.h5"
    flags = ["--qmap", qmap, "--output", results, "--engine", "dask", "--workers", "2"]
    return [sys.executable, "-m", "jaxkern", "xpcs", "correlate", *files, *flags, *more]


@pytest.mark.slow
def test_the_command_on_processes_here(data, tmp_path):
    flags = ["--table", tmp_path / "t.csv", "--frame-time", "1"]
    run = command(data, tmp_path / "results", *flags)
    with contextlib.ExitStack() as stack:
        # Occupies the port of dask's dashboard, unless another process does.
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("", 8787)))
        done = subprocess.run(run, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5 done, 0 skipped, 0 failed" in done.stdout
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 26
    assert listed(tmp_path / "results") == [f"{name}.hdf" for name in NAMES]


@pytest.mark.slow
def test_ctrl_c_leaves_whole_files(data, tmp_path):
    """Of the whole process group, as a terminal sends it, while files are worked on."""
    results = tmp_path / "results"
    big = np.random.default_rng(0).poisson(0.5, (6000, 6, 8)).astype(np.uint8)
    for name in NAMES[1:]:
        np.save(data / f"{name}.npy", big)
    run = subprocess.Popen(
        command(data, results, "--twotime"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (results / "run0.hdf").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)
    _, error = run.communicate(timeout=60)
    assert run.returncode == 130, error
    assert error.startswith("interrupted: ")
    # The lock of an output may remain, which does not stop the next run.
    names = [name for name in listed(results) if not name.endswith(".lock")]
    assert "run0.hdf" in names
    assert len(names) < 5
    assert not [name for name in names if not name.endswith(".hdf")]
    for name in names:
        assert xpcs.read_results(results / name).multitau is not None
