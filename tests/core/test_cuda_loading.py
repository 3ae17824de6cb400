"""Would catch: a CUDA module that is tried where JAX cannot use it, or that fails without a reason.

A GPU is not needed: what decides is which plugin is installed and what the driver supports. Each
case runs in its own process, with a folder ahead on the path that stands in for both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def _fake_plugin(folder: Path) -> None:
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


def _run(code: str, folder: Path, **environment: str) -> None:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAX_PLATFORMS", "JAXKERN_REQUIRE", "JAXKERN_CUDA_DRIVER_VERSION")
    }
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**inherited, "PYTHONPATH": path, **environment},
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr


def test_without_a_plugin_nothing_is_tried(tmp_path: Path) -> None:
    hide = (
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: (\n"
        "    None if name.startswith('jax_cuda') else found(name, package))\n"
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
def test_another_platform_is_asked_for(tmp_path: Path) -> None:
    _fake_plugin(tmp_path)
    code = f"""{_IMPORT}
assert ours == [], ours
assert "JAX_PLATFORMS is 'cpu'" in cuda.problem, cuda.problem
{_STILL_WORKS}
"""
    _run(code, tmp_path, JAX_PLATFORMS="cpu")


def test_an_old_driver_is_refused(tmp_path: Path) -> None:
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
def test_a_missing_driver_is_named(tmp_path: Path) -> None:
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
def test_requiring_cuda_without_it_is_an_error(tmp_path: Path) -> None:
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
