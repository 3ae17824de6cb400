"""Would catch: a library that cannot run here breaking JAX, or failing without a reason.

Each case runs in its own process, because what is registered with XLA stays registered.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.core.native_library import build
from support.core.processes import python_output, run_python

_STILL_WORKS = """
import jax, jax.numpy as jnp
assert jax.jit(lambda x: x + 1)(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]
op = jk.Op("test.scale", version=1, abstract=lambda x, s: x, impl=lambda x, s: x * s)
assert op(jnp.arange(3.0), 2.0).tolist() == [0.0, 2.0, 4.0]
"""


@pytest.mark.slow
def test_newer_handler_would_break_jax(tmp_path):
    """Without the check, JAX's entire CPU backend fails."""
    build(tmp_path, "newer_library", minor=99)
    code = """
import warnings
import jax, jax.numpy as jnp, jaxkern, newer_library
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert "built for XLA FFI 0.99" in jaxkern.load_library("newer_library").problem
jax.ffi.register_ffi_target(
    "test.scale.v1", newer_library.registrations()["test.scale.v1"], platform="cpu")
jnp.ones(3) + 1
"""
    done = run_python(code, tmp_path)
    assert done.returncode != 0
    assert "incompatible with the framework's API version" in done.stderr


# Modules with the interface of native libraries, which are rejected before a handler is called.
_REFUSED = {
    "newer": """
import jaxkern._cpu as inner
registrations = inner.registrations
def abi(): return inner.abi()[0], 99
""",
    "broken": "import ctypes; ctypes.CDLL('./libbroken.so')",
    "half": """
import jaxkern._cpu as inner
abi = inner.abi
def registrations():
    class Failing(dict):
        def items(self):
            yield from super().items()
            raise RuntimeError("no more")
    return Failing({"test.scale.v1": next(iter(inner.registrations().values()))})
""",
}


def test_pure_jax_without_usable_libraries(tmp_path):
    """One for a newer FFI, one that cannot be loaded, and one whose registration fails."""
    (tmp_path / "libbroken.so").write_bytes(b"not a library")
    for name, text in _REFUSED.items():
        (tmp_path / f"{name}.py").write_text(text)
    code = f"""
import warnings
import jaxkern as jk
for name, problem in (
    ("newer", "built for XLA FFI 0.99 and the running jaxlib has"),
    ("broken", "cannot be loaded (OSError"),
    ("half", "cannot be loaded (RuntimeError: no more)"),
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library = jk.load_library(name)
        jk.load_library(name)
    assert len(caught) == 1 and problem in str(caught[0].message), caught
    assert library.targets == [] and library.loaded is None and problem in library.problem
    assert problem in str(jk.doctor())
assert "test.scale.v1" not in jk.export_targets()
{_STILL_WORKS}
"""
    python_output(code, tmp_path)


def _without_native_module(folder):
    """Hide jaxkern._cpu from a child process, as on a platform without a wheel."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'jaxkern._cpu':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )


def test_pure_jax_without_the_native_module(tmp_path):
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
        raise AssertionError("'native' fell back without an error")
"""
    python_output(code, tmp_path, JAXKERN_REQUIRE="")


@pytest.mark.parametrize(
    ("name", "value"), [("JAXKERN_REQUIRE", "cpu"), ("JAXKERN_NUM_THREADS", "many")]
)
def test_variables_that_make_the_import_fail(tmp_path, name, value):
    _without_native_module(tmp_path)
    done = run_python("import jaxkern", tmp_path, **{name: value})
    assert done.returncode != 0
    assert name in done.stderr
    assert repr(value) in done.stderr


def test_unknown_simd_level_is_an_error_of_the_call(tmp_path):
    """The import and ``doctor()`` succeed; one thread is a limit."""
    code = """
import jax, jax.numpy as jnp, jaxkern as jk
print(jk.doctor())
assert not jk.doctor().ok and jk.doctor().kernel_threads == 1
aug = jk.image.Compose([jk.image.RandomHorizontalFlip(0.5)])
aug(jax.random.key(0), jnp.zeros((2, 4, 4, 3), jnp.uint8)).block_until_ready()
"""
    done = run_python(code, tmp_path, JAXKERN_SIMD="v9", JAXKERN_NUM_THREADS="1")
    assert "JAXKERN_SIMD" in done.stdout, done.stderr
    assert done.returncode != 0
    assert "JAXKERN_SIMD" in done.stderr
    assert "AssertionError" not in done.stderr


def test_installed_headers_are_found():
    import jaxkern as jk

    assert (Path(jk.get_include()) / "jaxkern" / "core" / "module.h").exists()
