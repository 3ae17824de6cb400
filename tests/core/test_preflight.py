"""Would catch: a library that cannot run here breaking JAX, or failing without a reason.

Each case runs in its own process, because what is registered with XLA stays registered.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from native_library import build

_STILL_WORKS = """
import jax, jax.numpy as jnp
assert jax.jit(lambda x: x + 1)(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]
op = jk.Op("test.scale", version=1, abstract=lambda x, s: x, impl=lambda x, s: x * s)
assert op(jnp.arange(3.0), 2.0).tolist() == [0.0, 2.0, 4.0]
"""


def _run(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
    )


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a handler library whose headers claim a far newer FFI."""
    folder = tmp_path_factory.mktemp("newer")
    build(folder, "newer_library", minor=99)
    return folder


@pytest.mark.slow
def test_a_newer_handler_would_break_jax(newer: Path) -> None:
    """The danger is real: without the check, JAX's whole CPU backend fails."""
    code = """
import jax, jax.numpy as jnp, newer_library
jax.ffi.register_ffi_target(
    "test.scale.v1", newer_library.registrations()["test.scale.v1"], platform="cpu")
jnp.ones(3) + 1
"""
    done = _run(code, newer)
    assert done.returncode != 0
    assert "incompatible with the framework's API version" in done.stderr


def test_a_newer_handler_is_refused(newer: Path) -> None:
    code = f"""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jaxkern as jk
    library = jk.load_library("newer_library")
    jk.load_library("newer_library")
assert len(caught) == 1, caught
assert "built for XLA FFI 0.99" in str(caught[0].message), caught[0]
assert library.targets == [] and "0.99" in library.problem
{_STILL_WORKS}
print(jk.doctor())
"""
    done = _run(code, newer)
    assert done.returncode == 0, done.stderr
    assert "built for XLA FFI 0.99 and the running jaxlib speaks" in done.stdout


def test_a_broken_library_leaves_pure_jax(tmp_path: Path) -> None:
    (tmp_path / "libbroken.so").write_bytes(b"not a library")
    (tmp_path / "broken.py").write_text("import ctypes\nctypes.CDLL('./libbroken.so')\n")
    code = f"""
import warnings
import jaxkern as jk
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    library = jk.load_library("broken")
assert len(caught) == 1 and "cannot be loaded (OSError" in str(caught[0].message), caught
{_STILL_WORKS}
"""
    done = _run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def _without_native_module(folder: Path) -> None:
    """Hides jaxkern._cpu from a child process, as a platform without a wheel lacks it."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'jaxkern._cpu':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )


def test_a_missing_native_module_leaves_pure_jax(tmp_path: Path) -> None:
    _without_native_module(tmp_path)
    code = f"""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jaxkern as jk
assert len(caught) == 1, caught
assert "this installation has no kernels" in str(caught[0].message), caught[0]
{_STILL_WORKS}
assert not jk.doctor().ok and "this installation has no kernels" in str(jk.doctor())
with jk.backend("native"):
    try:
        op(jnp.arange(3.0), 2.0)
    except NotImplementedError as error:
        assert "test.scale has no native kernel" in str(error), error
    else:
        raise AssertionError("'native' fell back without a word")
"""
    done = _run(code, tmp_path, JAXKERN_REQUIRE="")
    assert done.returncode == 0, done.stderr


def test_require_makes_a_missing_module_an_error(tmp_path: Path) -> None:
    _without_native_module(tmp_path)
    done = _run("import jaxkern", tmp_path, JAXKERN_REQUIRE="cpu")
    assert done.returncode != 0
    assert "JAXKERN_REQUIRE names 'cpu'" in done.stderr


def test_import_starts_no_backend(tmp_path: Path) -> None:
    code = """
import jaxkern
import jaxkern.image, jaxkern.random
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
    done = _run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_number_of_threads_that_is_none(tmp_path: Path) -> None:
    done = _run("import jaxkern", tmp_path, JAXKERN_NUM_THREADS="many")
    assert done.returncode != 0
    assert "JAXKERN_NUM_THREADS is 'many'; wanted a number of threads" in done.stderr
    code = "import jaxkern as jk; assert jk.doctor().max_workers == 1"
    assert _run(code, tmp_path, JAXKERN_NUM_THREADS="1").returncode == 0


def test_an_unknown_simd_level_is_an_error_of_the_call(tmp_path: Path) -> None:
    code = """
import jax, jax.numpy as jnp, jaxkern as jk
aug = jk.image.Compose([jk.image.RandomHorizontalFlip(0.5)])
aug(jax.random.key(0), jnp.zeros((2, 4, 4, 3), jnp.uint8)).block_until_ready()
"""
    done = _run(code, tmp_path, JAXKERN_SIMD="v9")
    assert done.returncode != 0
    assert "JAXKERN_SIMD" in done.stderr
    report = _run(
        "import jaxkern as jk; print(jk.doctor(), jk.doctor().ok)", tmp_path, JAXKERN_SIMD="v9"
    )
    assert "JAXKERN_SIMD" in report.stdout
    assert report.stdout.rstrip().endswith("False")


def test_doctor_without_a_backend(tmp_path: Path) -> None:
    code = "import jaxkern as jk; print(jk.doctor(), jk.doctor().ok)"
    done = _run(code, tmp_path, JAX_PLATFORMS="tpu")
    assert done.returncode == 0, done.stderr
    assert "JAX cannot start its default backend" in done.stdout


def test_a_library_that_fails_half_way_registers_nothing(tmp_path: Path) -> None:
    build(tmp_path, "half_inner")
    (tmp_path / "half.py").write_text(
        "import half_inner\n"
        "abi = half_inner.abi\n"
        "class Failing(dict):\n"
        "    def items(self):\n"
        "        yield from super().items()\n"
        "        raise RuntimeError('no more')\n"
        "def registrations(): return Failing(half_inner.registrations())\n"
    )
    code = f"""
import warnings
import jaxkern as jk
with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")
    library = jk.load_library("half")
assert library.problem and library.targets == [] and library.loaded is None
assert "test.scale.v1" not in jk.export_targets()
{_STILL_WORKS}
"""
    done = _run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_installed_headers_are_found() -> None:
    import jaxkern as jk

    assert (Path(jk.get_include()) / "jaxkern" / "core" / "module.h").exists()
