"""Would catch ceilings that are far from what other programs reach, and a stale cache of them.

The figures of this machine vary with its other work: rates that are compared are measured in turns,
the best of each counts, and the margins are wide.
"""

import dataclasses
import json
import os
import pwd
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from support.core.processes import python_output
from support.errors import raises

from jaxkern import performance
from jaxkern.core import ceilings as module
from jaxkern.core import machine, paths, registry
from jaxkern.core.ceilings import Ceilings, Rates, ceilings

CPU = registry.module("cpu")


def probe_once(**changes):
    """Replace the native probes, which take seconds, and count the calls."""
    calls = []

    class Probes:
        def simd_levels(self):
            return ["portable", *changes.get("levels", ["v3"])]

        def measure_memory(self, level, threads, bytes, seconds):
            calls.append((level, threads, bytes))
            stores, copies = {"store": 5.0, "store_streaming": 6.0}, {"copy": 8.0}
            return {"load": 10.0 * threads, **stores, **copies, "copy_streaming": 7.0}

        def measure_compute(self, level, threads, seconds):
            return {"fma_f32": 100.0 * threads, "fma_f64": 50.0 * threads}

    return Probes(), calls


@pytest.fixture
def probes(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native, calls = probe_once()
    monkeypatch.setattr(registry, "module", lambda name="cpu": native if name == "cpu" else None)
    monkeypatch.setattr(module, "usable_cpus", lambda: 3)
    monkeypatch.setattr(module, "busy_seconds", lambda: None)
    return calls


def test_second_call_reads_the_file(probes, tmp_path):
    first, second = ceilings(), ceilings()
    assert [c[1] for c in probes] == [1, 3]
    (file,) = (tmp_path / "jaxkern").iterdir()
    assert (first.source, second.source) == ("measured", str(file))
    assert dataclasses.replace(second, source="measured") == first
    assert first.all_threads == Rates(30.0, 6.0, 8.0, 300.0, 150.0)
    assert first.one_thread == Rates(10.0, 6.0, 8.0, 100.0, 50.0)
    assert first.best.bandwidth == 30.0
    assert "read from" in str(second)
    json.dumps(first.as_dict(), allow_nan=False)
    ceilings(refresh=True)
    assert len(probes) == 4


@pytest.mark.parametrize("part", ["threads", "simd_level", "device", "jaxkern"])
def test_another_machine_or_version_is_measured_again(probes, monkeypatch, part):
    ceilings()
    native, _ = probe_once(levels=["v3", "v4"])
    changed = {
        "threads": (module, "usable_cpus", lambda: 1),
        "simd_level": (registry, "module", lambda name="cpu": native),
        "device": (module, "cpu_model", lambda: "another"),
        "jaxkern": (module, "__version__", "9"),
    }
    monkeypatch.setattr(*changed[part])
    assert ceilings().source == "measured"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1}', "\x00\x01", "rate", "identity"])
def test_damaged_file_is_replaced(probes, tmp_path, damage):
    ceilings()
    (file,) = (tmp_path / "jaxkern").iterdir()
    if damage in ("rate", "identity"):
        content = json.loads(file.read_text())
        if damage == "rate":
            content["ceilings"]["all_threads"]["load"] = -1
        else:
            content["identity"]["device"] = "of a file that was copied here"
        damage = json.dumps(content)
    file.write_text(damage)
    assert ceilings().source == "measured"
    assert ceilings().source == str(file)


def check_uncached(probes, fact):
    """The figures remain for this process, and a note gives the reason."""
    result = ceilings()
    assert result.all_threads.load == 30.0
    assert "could not be cached" in result.notes[-1]
    assert fact in str(result)
    assert ceilings() is result
    assert len(probes) == 2


def test_folder_that_cannot_be_written(probes, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    check_uncached(probes, "set XDG_CACHE_HOME")


def test_a_user_without_a_home_folder(probes, monkeypatch, tmp_path):
    """As `docker run --user 1234` without HOME."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", raising(KeyError("uid not found: 1234")))
    monkeypatch.chdir(tmp_path)
    check_uncached(probes, "this user has no home folder; set XDG_CACHE_HOME")
    assert list(tmp_path.iterdir()) == []
    for function in (paths.home_path, performance.enable_persistent_cache):
        with raises(ValueError, "~/cache", "HOME"):
            function("~/cache")


def raising(error):
    def function(*_args, **_options):
        raise error

    return function


def test_failed_write_leaves_no_file(probes, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxkern.core.paths.os.fsync", raising(OSError(28, "No space left")))
    check_uncached(probes, "No space left")
    assert list((tmp_path / "jaxkern").iterdir()) == []


def test_relative_cache_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert module.cache_folder() == tmp_path / ".cache" / "jaxkern"


def test_buffers_exceed_the_caches_and_fit_into_memory(probes, monkeypatch):
    monkeypatch.setattr(module, "last_level_caches", lambda: [60 << 20, 40 << 20])
    for threads, available, size in ((3, 64 << 30, 400), (1, 64 << 30, 240), (3, 64 << 20, 16)):
        monkeypatch.setattr(module, "usable_cpus", lambda threads=threads: threads)
        monkeypatch.setattr(module, "available_bytes", lambda available=available: available)
        result = ceilings(refresh=True)
        assert result.buffer_bytes == size << 20
    assert "memory allowed a buffer" in result.notes[0]
    # One thread's own cache is the larger of the two.
    assert [c[2] >> 20 for c in probes] == [240, 400, 240, 16, 16]


def test_note_on_a_busy_machine(probes, monkeypatch):
    # At first everything that the CPUs did, and more, was the work of others.
    seconds = iter([100.0, 100.0 + 1e6, 100.0, 100.0])
    monkeypatch.setattr(module, "busy_seconds", lambda: next(seconds))
    assert "% of the CPUs" in ceilings().notes[0]
    assert "figures may be low" in str(ceilings())  # the cached ones too
    assert ceilings(refresh=True).notes == ()


def test_busy_seconds_include_this_process(tmp_path):
    before, own = machine.busy_seconds(), time.process_time()
    while time.process_time() - own < 0.3:
        pass
    assert machine.busy_seconds() - before > 0.2
    (tmp_path / "stat").write_text("cpu  1 2 3 1000 1000 4 5 6 7 8\ncpu0 1\n")
    assert machine.busy_seconds(tmp_path / "stat") == 21 / os.sysconf("SC_CLK_TCK")
    assert machine.busy_seconds(tmp_path / "none") is None


def test_platforms_and_missing_libraries_are_clear_errors(monkeypatch):
    class Device:
        platform = "tpu"

    with raises(NotImplementedError, "tpu"):
        ceilings(Device())
    monkeypatch.setattr(registry, "module", lambda name="cpu": None)
    with raises(RuntimeError, "native probes"):
        ceilings(jax.devices("cpu")[0])


def test_caches_and_processor_of_the_system(tmp_path):
    def cache(cpu, index, level, kind, size, shared):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        values = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        for name, text in values.items():
            (folder / name).write_text(f"{text}\n")

    for cpu in range(4):
        cache(cpu, 0, 1, "Data", "32K", str(cpu))
        cache(cpu, 1, 1, "Instruction", "64K", str(cpu))
        # Two caches of 16 MiB, each of two processors.
        cache(cpu, 2, 3, "Unified", "16384K", "0-1" if cpu < 2 else "2-3")
    assert machine.last_level_caches(tmp_path) == [16 << 20] * 2
    assert machine.last_level_caches(tmp_path / "none") == []
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n")
    assert machine.cpu_model(info) == "Some CPU @ 2 GHz"
    info.write_text("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c\n")
    assert machine.cpu_model(info).endswith("0x41 0xd0c")


_MEASURE = """
import json
from jaxkern.core.ceilings import ceilings
print(json.dumps(ceilings().as_dict()))
"""


@pytest.mark.slow
def test_two_processes_share_one_measurement(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    first, second = (json.loads(python_output(_MEASURE, **environment)) for _ in range(2))
    assert first["source"] == "measured"
    assert second["source"].startswith(str(tmp_path))
    del first["source"], second["source"]
    assert first == second
    rates = Rates(**first["all_threads"])
    assert all(1e7 < rate < 1e16 for rate in dataclasses.astuple(rates))
    # Compares the rates of one thread: concurrent tests seldom leave all cores undisturbed.
    one = Rates(**first["one_thread"])
    assert one.fma_f32 > one.fma_f64
    # The documented 5 s apply to an idle machine; on a busy one, the notes say so.
    assert first["seconds"] < 10 or any("other processes" in note for note in first["notes"])


def stream_copy(threads, arrays):
    """Return the rate of NumPy copies in bytes/s; each thread copies a separate pair of arrays."""
    with ThreadPoolExecutor(threads) as pool:
        begun = time.perf_counter()
        list(pool.map(lambda pair: np.copyto(*pair), arrays[:threads]))
        return 2 * sum(a.nbytes for a, _ in arrays[:threads]) / (time.perf_counter() - begun)


@pytest.mark.benchmark
def test_memory_ceilings_are_near_numpys_copies():
    threads = 2
    arrays = [(np.ones(4 << 20), np.ones(4 << 20)) for _ in range(threads)]  # 32 MiB each
    level = CPU.simd_levels()[-1]
    copies, ceiling = [], []
    for _ in range(3):
        for count in (1, threads):
            result = CPU.measure_memory(level, count, 64 << 20, 0.02)
            ceiling.append(max(result["copy"], result["copy_streaming"]))
            assert min(result["load"], result["store"]) > 0
        copies += [stream_copy(threads, arrays) for _ in range(3)]
    assert 0.05 * max(ceiling) < max(copies) < 1.5 * max(ceiling)


@pytest.mark.benchmark
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_matrix_product_is_above_the_peak(dtype):
    n, threads = 768, os.cpu_count()
    a = np.random.default_rng(0).uniform(size=(n, n)).astype(dtype)
    name = "fma_f32" if dtype == np.float32 else "fma_f64"
    products, peaks = [], []
    for _ in range(4):
        for count in {1, threads}:
            peaks.append(CPU.measure_compute(CPU.simd_levels()[-1], count, 0.03)[name])
        for _ in range(3):
            begun = time.perf_counter()
            np.dot(a, a)
            products.append(2 * n**3 / (time.perf_counter() - begun))
    assert 0.01 * max(peaks) < max(products) < 1.15 * max(peaks)


def test_invalid_arguments_of_the_native_probes():
    for call, what in (
        (lambda: CPU.measure_memory("v9", 1, 1 << 20, 0.0), "v9"),
        (lambda: CPU.measure_memory("portable", 0, 1 << 20, 0.0), "threads"),
        (lambda: CPU.measure_memory("portable", 1, 0, 0.0), "bytes"),
        (lambda: CPU.measure_compute("portable", 1, -1.0), "seconds"),
    ):
        with pytest.raises(ValueError, match=what):
            call()
    with pytest.raises(MemoryError):
        CPU.measure_memory("portable", 1, 1 << 60, 0.0)


def test_ceilings_from_given_rates():
    made = Ceilings("cpu", "mine", 1, None, None, Rates(1, 1, 1, 1, 1), 0, None, 0.0, "today")
    assert made.best.bandwidth == 1
