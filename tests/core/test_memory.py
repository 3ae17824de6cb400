"""The limits of memory: would catch a limit of the system that is overlooked or misread."""

from __future__ import annotations

import mmap

from support.errors import raises

from jaxkern.core import memory


def test_limits_from_the_environment(monkeypatch):
    for name in ("JAXKERN_MEMORY_LIMIT", "SLURM_MEM_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    # Each of these takes precedence over those before.
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    assert memory.memory_limit() == 200 / 1024
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    assert memory.memory_limit() == 0.5
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "0.19")
    assert memory.memory_limit() == 0.19
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "much")
    with raises(ValueError, "JAXKERN_MEMORY_LIMIT is 'much'"):
        memory.memory_limit()


def test_cgroup_limits(tmp_path):
    process = tmp_path / "cgroup"
    process.write_text("0::/batch/job\n")
    (tmp_path / "batch" / "job").mkdir(parents=True)
    (tmp_path / "batch" / "job" / "memory.max").write_text("max\n")
    (tmp_path / "batch" / "memory.max").write_text("1073741824\n")
    assert memory._cgroup_bytes(tmp_path, process) == [2**30]
    process.write_text("5:memory:/job\n")
    (tmp_path / "memory" / "job").mkdir(parents=True)
    (tmp_path / "memory" / "job" / "memory.limit_in_bytes").write_text("268435456\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory._cgroup_bytes(tmp_path, process) == [2**28]


def test_available_memory_shrinks_with_allocations(monkeypatch):
    limit = memory.anonymous_bytes() / memory.GIB + 1  # the tests before may have kept a lot
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", str(limit))
    before = memory.available_bytes()
    assert 0 < before < 1.1 * memory.GIB
    # A new mapping: an array may reuse memory that the allocator retained from another test.
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapping:
        mapping.write(b"x" * len(mapping))
        assert before - memory.available_bytes() > len(mapping) / 2
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "inf")
    assert 0 < memory.available_bytes() <= memory.machine_bytes()
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "0.001")
    assert memory.available_bytes() == 0


def test_arrays_that_do_not_fit(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    memory.check_memory("arrays", 10**9, "use fewer")
    memory.check_memory("arrays", 3 * 10**9, "use fewer", minimum=3 * 10**9)
    with raises(MemoryError, "2 arrays need 1.5 GB", "1 GB of memory", "use fewer"):
        memory.check_memory("2 arrays", 1_500_000_000, "use fewer")
