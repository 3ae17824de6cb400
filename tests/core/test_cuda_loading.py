"""Would catch: a CUDA module that is tried where JAX cannot use it, or that fails without a reason.

A GPU is not needed: what decides is which plugin is installed and what the driver supports. Each
case runs in its own process, with a folder ahead on the path that stands in for both.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from support.core.processes import python_output
from support.errors import raises, warns

import jaxkern as jk
from jaxkern.core import compat, registry

_IMPORT = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jaxkern as jk
ours = [str(w.message) for w in caught if "jaxkern" in str(w.message)]
from jaxkern.core import registry
cuda = next(x for x in registry.libraries() if x.platform == "cuda")
assert cuda.targets == [] and cuda.loaded is None
assert registry.module("cuda") is None
"""

_STILL_WORKS = """
import jax, jax.numpy as jnp
assert jax.jit(lambda x: x + 1)(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]
assert registry.module("cpu") is not None and jk.doctor().ok
"""

# A CUDA module as the loader sees one; its handlers are never reached.
_MODULE = """
import jax
def abi():
    from jaxkern.core import registry
    return registry.running_abi()
def cuda_runtime():
    return 13000
def architectures():
    return ["sm_90"]
def registrations():
    raise AssertionError("registered although the driver cannot run it")
"""


def _fake_plugin(folder):
    """An installed jax-cuda plugin, and jaxkern._cuda for it whether or not this build has one."""
    (folder / "jax_cuda13_plugin").mkdir()
    (folder / "jax_cuda13_plugin" / "__init__.py").write_text("")
    (folder / "faked_cuda_module.py").write_text(_MODULE)
    (folder / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        f"path = {str(folder / 'faked_cuda_module.py')!r}\n"
        "class Fake:\n"
        "    def find_spec(self, name, path_=None, target=None):\n"
        "        if name == 'jaxkern._cuda':\n"
        "            return importlib.util.spec_from_file_location(name, path)\n"
        "sys.meta_path.insert(0, Fake())\n"
    )


def _run(code, folder, **environment):
    names = ("JAX_PLATFORMS", "JAXKERN_REQUIRE", "JAXKERN_CUDA_DRIVER_VERSION")
    python_output(code, folder, without=names, **environment)


def test_nothing_is_loaded_without_a_plugin(tmp_path):
    hide = (
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: (\n"
        "    None if name.startswith('jax_cuda') else find(name, package))\n"
    )
    code = f"""
{hide}{_IMPORT}
assert ours == [], ours
assert "no jax-cuda plugin is installed" in cuda.problem, cuda.problem
assert "no jax-cuda plugin is installed" in str(jk.doctor())
{_STILL_WORKS}
"""
    _run(code, tmp_path)


@pytest.mark.slow
def test_nothing_is_loaded_for_another_platform(tmp_path):
    _fake_plugin(tmp_path)
    code = f"""{_IMPORT}
assert ours == [], ours
assert "JAX_PLATFORMS is 'cpu'" in cuda.problem, cuda.problem
{_STILL_WORKS}
"""
    _run(code, tmp_path, JAX_PLATFORMS="cpu")


def test_old_driver(tmp_path):
    _fake_plugin(tmp_path)
    code = f"""{_IMPORT}
assert len(ours) == 1, ours
assert "the CUDA driver supports CUDA 11.8 and the kernels need 13.0 or newer" in ours[0], ours
assert "CUDA 11.8" in cuda.problem and "CUDA 11.8" in str(jk.doctor())
import jax
jax.config.update("jax_platforms", "cpu")
{_STILL_WORKS}
"""
    _run(code, tmp_path, JAXKERN_CUDA_DRIVER_VERSION="11080")


@pytest.mark.slow
def test_missing_driver(tmp_path):
    _fake_plugin(tmp_path)
    hide = (
        "import ctypes\n"
        "class Missing(ctypes.CDLL):\n"
        "    def __init__(self, name, *rest, **more):\n"
        "        if name == 'libcuda.so.1':\n"
        "            raise OSError(name)\n"
        "        super().__init__(name, *rest, **more)\n"
        "ctypes.CDLL = Missing\n"
    )
    code = f"""
{hide}{_IMPORT}
assert len(ours) == 1, ours
assert "no CUDA driver (libcuda.so.1) was found" in ours[0], ours
import jax
jax.config.update("jax_platforms", "cpu")
{_STILL_WORKS}
"""
    _run(code, tmp_path)


@pytest.mark.slow
def test_required_cuda_that_is_missing(tmp_path):
    _fake_plugin(tmp_path)
    code = """
import warnings
warnings.simplefilter("ignore")
try:
    import jaxkern
except ImportError as error:
    assert "JAXKERN_REQUIRE names 'cuda'" in str(error) and "11.8" in str(error), error
else:
    raise AssertionError("imported")
"""
    _run(code, tmp_path, JAXKERN_CUDA_DRIVER_VERSION="11080", JAXKERN_REQUIRE="cuda")


WHEEL = ("sm_80", "sm_90", "compute_90")
CHIPS = [(8, 9), (9, 0), (9, 1), (10, 0), (10, 3), (12, 0)]


@pytest.mark.parametrize(
    ("capability", "driver"),
    [((8, 0), 13000), ((8, 9), 13000), ((9, 0), 13000), ((10, 0), 13020), ((12, 0), 13030)],
)
def test_gpus_that_run_the_device_code(capability, driver):
    assert registry.device_code_problem(WHEEL, 13020, capability, driver) is None


def test_gpus_that_do_not_run_the_device_code():
    problem = str(registry.device_code_problem(WHEEL, 13020, (7, 5), 13020))
    assert "compute capability 7.5" in problem
    assert "13.2" not in problem
    problem = str(registry.device_code_problem(WHEEL, 13020, (10, 0), 13010))
    assert "supports CUDA 13.1" in problem
    assert "13.2" in problem  # the CUDA that wrote the PTX


# Code for one chip alone, code for one family, and architectures that CMake chooses.
RUNS_ON = {
    "sm_90a": [(9, 0)],
    "compute_90a": [(9, 0)],
    "compute_90": [(9, 0), (9, 1), (10, 0), (10, 3), (12, 0)],
    "sm_100f": [(10, 0), (10, 3)],
    "compute_100f": [(10, 0), (10, 3)],
    **dict.fromkeys(("native", "all", "all-major"), CHIPS),
}


@pytest.mark.parametrize("capability", CHIPS)
@pytest.mark.parametrize("name", RUNS_ON)
def test_code_for_some_chips(name, capability):
    problem = registry.device_code_problem([name], 13000, capability, 13000)
    assert (problem is None) == (capability in RUNS_ON[name]), problem
    assert name in (problem or name)


_NEGATE = jk.Op("test.negate", version=1, abstract=lambda x: x, impl=lambda x: -x)


def _native_on_cuda():
    """Return True if a program lowered for CUDA calls the kernel of `_NEGATE`."""
    lowered = jax.jit(lambda x: _NEGATE(x)).trace(jnp.ones(3)).lower(lowering_platforms=("cuda",))
    return _NEGATE.target in lowered.as_text()


@pytest.fixture
def cuda_library(monkeypatch):
    """A CUDA library with the wheel's code, loaded in a process whose GPU is not known yet."""
    native = SimpleNamespace(architectures=lambda: list(WHEEL), cuda_runtime=lambda: 13000)
    library = registry.Library("jaxkern._cuda", "cuda", targets=[_NEGATE.target])
    library.loaded = native  # type: ignore[assignment]
    monkeypatch.setattr(registry, "_libraries", {("jaxkern._cuda", "cuda"): library})
    monkeypatch.setattr(registry, "_targets", {(_NEGATE.target, "cuda"): library})
    monkeypatch.setenv("JAXKERN_CUDA_DRIVER_VERSION", "13000")
    monkeypatch.delenv("JAXKERN_REQUIRE", raising=False)
    return library


def _start_on(monkeypatch, *capabilities):
    devices = [SimpleNamespace(compute_capability=capability) for capability in capabilities]
    monkeypatch.setattr(compat, "started_backends", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(jax, "local_devices", lambda backend: devices)


def test_nothing_is_checked_before_jax_starts_on_a_gpu(cuda_library, monkeypatch):
    monkeypatch.setattr(compat, "started_backends", lambda: ("cpu",))  # also on a machine with GPUs
    monkeypatch.setattr(registry, "cuda_capabilities", lambda: pytest.fail("CUDA was started"))
    assert _native_on_cuda()
    assert cuda_library.problem is None


def test_kernels_run_on_a_gpu_that_they_are_compiled_for(cuda_library, monkeypatch):
    _start_on(monkeypatch, "8.0", "9.0")
    assert _native_on_cuda()
    assert cuda_library.problem is None


def test_pure_jax_on_another_gpu(cuda_library, monkeypatch):
    _start_on(monkeypatch, "9.0", "7.5")
    with warns(RuntimeWarning, "compute capability 7.5"):
        assert registry.module("cuda") is None
    assert "sm_80, sm_90, compute_90" in str(cuda_library.problem)
    assert "7.5" in str(registry.missing(_NEGATE.target, "cuda"))
    assert not _native_on_cuda()  # without a second warning
    assert "compute capability 7.5" in str(jk.doctor())


def test_concurrent_compilations_wait_for_the_check(cuda_library, monkeypatch):
    asking, answer = threading.Event(), threading.Event()
    warned: list[registry.Library] = []

    def capabilities():
        asking.set()
        assert answer.wait(30)
        return [(7, 5)]

    _start_on(monkeypatch)
    monkeypatch.setattr(registry, "cuda_capabilities", capabilities)
    monkeypatch.setattr(registry, "_warn_not_used", warned.append)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(registry.missing, _NEGATE.target, "cuda")
        assert asking.wait(30)
        second = pool.submit(registry.missing, _NEGATE.target, "cuda")
        wait([second], timeout=0.2)
        answer.set()
    assert "7.5" in str(first.result())
    assert "7.5" in str(second.result())
    assert warned == [cuda_library]


def test_lowering_checks_the_gpu(cuda_library, monkeypatch):
    _start_on(monkeypatch, "7.5")
    with warns(RuntimeWarning, "compute capability 7.5"):
        assert not _native_on_cuda()


def test_required_library_on_another_gpu(cuda_library, monkeypatch):
    monkeypatch.setenv("JAXKERN_REQUIRE", "cpu,cuda")
    _start_on(monkeypatch, "7.5")
    with raises(RuntimeError, "compute capability 7.5"):
        _native_on_cuda()
    with raises(RuntimeError, "compute capability 7.5"):
        _native_on_cuda()  # not pure JAX at the next attempt
