"""Would catch a device report that differs from the system, and a GPU that is ignored silently."""

import json
import os

import jax
import numpy as np
import pytest
from support.core.processes import python_output
from support.errors import raises

import jaxkern as jk
from jaxkern.core import registry
from jaxkern.core.ceilings import Ceilings, Rates
from jaxkern.device import (
    benchmark,
    benchmark_device_performance,
    configure_optimal_device,
    get_device_status,
)


@pytest.fixture(autouse=True)
def restore_settings():
    cap, device = registry.module("cpu").max_workers(), jax.config.jax_default_device
    yield
    registry.set_max_workers(cap)
    jax.config.update("jax_default_device", device)


def test_status():
    status = get_device_status()
    assert [d.id for d in status.devices if d.platform == "cpu"] == [0, 1, 2, 3]
    assert status.default_backend == jax.default_backend()
    assert status.cpus == os.cpu_count()
    assert status.affinity_cpus == len(os.sched_getaffinity(0))
    pages, size = (os.sysconf(name) for name in ("SC_PHYS_PAGES", "SC_PAGE_SIZE"))
    assert status.memory_bytes == pages * size
    assert 0 < status.memory_available_bytes <= status.memory_bytes
    assert status.simd_level in status.simd_levels
    assert status.versions["jax"] == jax.__version__
    assert status.versions["jaxkern"] == jk.__version__
    assert json.loads(json.dumps(status.as_dict()))["devices"][0]["platform"] == "cpu"
    text = str(status)
    for fact in (
        "usable cpus",
        "cpu:0",
        f"jax {jax.__version__}",
        f"simd level          {status.simd_level}",
    ):
        assert fact in text


def test_limits_of_slurm_and_of_the_user(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    monkeypatch.setenv("JAXKERN_NUM_THREADS", "64")  # limits the kernels, not the CPUs
    status = get_device_status()
    assert (status.slurm_cpus, status.usable_cpus) == (1, 1)
    assert status.memory_limit_bytes == 512 << 20
    assert "0.50 GiB" in str(status)


def test_no_memory_limit(monkeypatch):
    monkeypatch.setattr("jaxkern.device.status.memory_limit", lambda: 2.0**20)
    status = get_device_status()
    assert status.memory_limit_bytes is None
    assert "memory limit" not in str(status)


def test_affinity():
    code = "import jaxkern.device as d; print(d.get_device_status().usable_cpus)"
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); {code}"
    assert python_output(code, JAX_PLATFORMS="cpu").split() == ["1"]


def test_problems(monkeypatch):
    monkeypatch.setattr(
        registry,
        "_libraries",
        {("jaxkern._cpu", "cpu"): registry.Library("jaxkern._cpu", "cpu", "not found")},
    )
    status = get_device_status()
    assert status.problems == ("the cpu kernels are not used: not found",)
    assert (status.simd_level, status.kernel_threads) == (None, None)
    assert status.problems[0] in str(status)


def hide_gpus(monkeypatch):
    real = jax.local_devices

    def devices(backend=None):
        if backend == "gpu":
            raise RuntimeError("Unknown backend: 'gpu' requested\nmore")
        return real(backend="cpu" if backend is None else backend)

    monkeypatch.setattr(jax, "local_devices", devices)


def test_cpu_is_selected_without_a_gpu(monkeypatch):
    hide_gpus(monkeypatch)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.1")
    chosen = configure_optimal_device(memory_fraction=0.5, cpu_threads=1)
    assert (chosen.platform, chosen.cpu_threads, chosen.memory_fraction) == ("cpu", 1, 0.5)
    assert "Unknown backend: 'gpu' requested" in str(chosen)
    assert "memory fraction" in chosen.notes[1]
    assert registry.module("cpu").max_workers() == 1
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.5"
    json.dumps(chosen.as_dict())


def test_required_gpu_that_is_missing(monkeypatch):
    hide_gpus(monkeypatch)
    with raises(RuntimeError, "Unknown backend", "jax[cuda13]"):
        configure_optimal_device(require="gpu")


@pytest.mark.parametrize("options", [{}, {"require": "gpu"}, {"prefer_gpu": False}])
def test_platforms_are_named_if_jax_starts_none(monkeypatch, request, options):
    def fail(*_, **__):
        raise AssertionError  # without a text, as in JAX

    for name in ("default_backend", "devices", "local_devices"):
        monkeypatch.setattr(jax, name, fail)
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", "cuda")
    request.addfinalizer(lambda: jax.config.update("jax_platforms", before))
    with raises(RuntimeError, "JAX_PLATFORMS is 'cuda'", "JAX_PLATFORMS=cpu"):
        configure_optimal_device(**options)
    with raises(RuntimeError, "JAX_PLATFORMS is 'cuda'"):
        benchmark_device_performance()
    status = get_device_status()
    assert (status.devices, status.default_backend) == ((), "none")
    assert "JAX_PLATFORMS is 'cuda'" in status.problems[0]


def test_excluded_cpu(monkeypatch):
    def devices(backend=None):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", devices)
    with raises(RuntimeError, "JAX_PLATFORMS"):
        configure_optimal_device(prefer_gpu=False)


def test_gpu_is_selected(monkeypatch):
    stand_in = jax.devices("cpu")[2]
    real = jax.local_devices

    def devices(backend=None):
        return [stand_in] if backend == "gpu" else real(backend=backend)

    monkeypatch.setattr(jax, "local_devices", devices)
    assert configure_optimal_device().notes == ()
    assert jax.numpy.zeros(3).devices() == {stand_in}
    assert configure_optimal_device(prefer_gpu=False).notes == ()
    assert jax.numpy.zeros(3).devices() == {jax.devices("cpu")[0]}
    assert configure_optimal_device(require="cpu").platform == "cpu"


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"require": "tpu"}, "require.*'tpu'"),
        ({"require": "gpu", "prefer_gpu": False}, "prefer_gpu"),
        ({"cpu_threads": -1}, "cpu_threads is -1.*2147483647"),
        ({"cpu_threads": "2"}, "cpu_threads is '2'"),
        ({"cpu_threads": np.arange(2)}, "cpu_threads is array"),
        ({"cpu_threads": True}, "cpu_threads is True"),
        ({"memory_fraction": 0}, "the memory fraction is 0"),
    ],
)
def test_invalid_options(options, fact):
    with pytest.raises(ValueError, match=fact):
        configure_optimal_device(**options)


def test_requested_device_is_measured(monkeypatch):
    requested, ran = jax.devices()[2], []
    roof = Ceilings("cpu", "r", 2, None, None, Rates(1, 1, 1, 1, 1), 1, None, 1.0, "now")

    def timed(run, *operands, **_):
        ran.append(run(*operands).devices())
        return [1.0]

    monkeypatch.setattr(benchmark, "ceilings", lambda device, refresh: roof)
    monkeypatch.setattr(benchmark, "call_seconds", timed)
    benchmark_device_performance(requested, size=8)
    assert ran == [{requested}]


def test_process_of_a_cluster_uses_a_local_device(monkeypatch):
    class Foreign:
        platform, process_index = "cpu", 7

    # The devices of all processes begin with those of the first process.
    monkeypatch.setattr(jax, "devices", lambda *_: [Foreign(), *jax.local_devices()])
    configure_optimal_device(prefer_gpu=False)
    assert jax.config.jax_default_device == jax.local_devices()[0]


def test_g2_kernel_and_ceilings(monkeypatch):
    roof = Ceilings(
        "cpu", "round", 2, "v3", None, Rates(1e9, 1e9, 1e9, 1e10, 5e9), 1 << 20, None, 1.0, "now"
    )
    monkeypatch.setattr(benchmark, "ceilings", lambda device, refresh: roof)
    result = benchmark_device_performance(size=100)
    assert result.native
    assert result.points_per_second == pytest.approx(100**2 / result.seconds)
    # Every point is written once, in f32.
    assert result.bytes_per_second == pytest.approx(4 * result.points_per_second)
    intensity = result.flops_per_second / result.bytes_per_second
    assert result.ceiling == pytest.approx(min(1e10, intensity * 1e9))
    assert result.efficiency == pytest.approx(result.flops_per_second / result.ceiling)
    assert "two-time g2 of 100 frames" in str(result)
    json.dumps(result.as_dict(), allow_nan=False)
    with jk.backend("jax"):
        assert benchmark_device_performance(size=100).reason == "the backend is 'jax'"
    for size in (1, 2.5, "a"):
        with raises(ValueError, "size is"):
            benchmark_device_performance(size=size)
