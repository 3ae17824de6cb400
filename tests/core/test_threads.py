"""Sources of the number of threads.

Would catch: a SLURM or container allocation that is not read, a quota of an outer control group
that is missed, 0 taken for "one thread".
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.errors import raises

from jaxkern.core import threads
from jaxkern.performance import set_num_threads


@pytest.fixture
def sixteen_cpus(monkeypatch):
    """Return a function that sets the two variables on a machine with 16 CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(threads, "cgroup_cpus", lambda: None)

    def set_variables(requested="", slurm=""):
        monkeypatch.setenv("JAXKERN_NUM_THREADS", requested)
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)

    return set_variables


def test_requested_threads(sixteen_cpus):
    sixteen_cpus("3", slurm="2")
    assert threads.num_threads() == 3
    sixteen_cpus("24")
    assert threads.worker_cap() == 24
    sixteen_cpus("x")
    with raises(ValueError, "JAXKERN_NUM_THREADS is 'x'"):
        threads.num_threads()


@pytest.mark.parametrize(
    "text", ["\u00b2", "\u0663", "1e3", "-1", "2147483648", "1" + 20 * "0", 9999 * "9"]
)
def test_invalid_numbers_of_threads(sixteen_cpus, text):
    """Superscripts and other digits that ``str.isdigit`` accepts, and more than a C int holds."""
    sixteen_cpus(text)
    for function in (threads.num_threads, threads.worker_cap):
        with raises(ValueError, "JAXKERN_NUM_THREADS is"):
            function()
    # Variables of other programs are ignored.
    sixteen_cpus(slurm=text)
    assert threads.num_threads() == 16


def test_invalid_caps():
    for wrong in (-1, 1.5, True, "2", 10**20):
        with raises(ValueError, "count is", "; expected an integer from 0 to 2147483647"):
            set_num_threads(wrong)


@pytest.mark.parametrize(
    ("requested", "slurm", "count", "cap"),
    [("0", "2", 2, 0), ("", "", 16, 0), ("", "4", 4, 4), ("", "64", 16, 0), ("", "0", 16, 0)],
)
def test_no_cap_slurm_and_affinity(sixteen_cpus, requested, slurm, count, cap):
    sixteen_cpus(requested, slurm)
    assert threads.num_threads() == count
    assert threads.worker_cap() == cap


def test_quota_of_a_container(sixteen_cpus, monkeypatch):
    monkeypatch.setattr(threads, "cgroup_cpus", lambda: 5)
    sixteen_cpus()
    assert threads.num_threads() == 5
    sixteen_cpus(slurm="4")
    assert threads.num_threads() == 4


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_smallest_quota_of_version_2(tmp_path):
    root = tmp_path / "cgroup"
    _write(root / "job" / "cpu.max", "250000 100000\n")
    membership = _write(tmp_path / "membership", "0::/job/step\n")
    for quota, cpus in (("max", 3), ("50000", 1), ("600000", 3)):
        _write(root / "job" / "step" / "cpu.max", f"{quota} 100000\n")
        assert threads.cgroup_cpus(root, membership) == cpus


def test_version_1(tmp_path):
    root = tmp_path / "cgroup"
    _write(root / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us", "400000\n")
    _write(root / "cpu,cpuacct" / "job" / "cpu.cfs_period_us", "100000\n")
    membership = _write(tmp_path / "membership", "7:memory:/job\n4:cpu,cpuacct:/job\n")
    assert threads.cgroup_cpus(root, membership) == 4
    _write(root / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us", "-1\n")
    assert threads.cgroup_cpus(root, membership) is None


def test_no_control_group(tmp_path):
    assert threads.cgroup_cpus(tmp_path / "none", tmp_path / "none") is None
